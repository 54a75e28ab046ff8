"""How text is cut into words before merging: one row for each `tokenizer.ggml.pre` name of a byte-level vocabulary.

A file names its rules, it does not carry them. The rules here are those of the tokenizer.json published with the
models (Hugging Face), the names those that the converters of llama.cpp write. Rules are applied one after the other,
each to the pieces that the earlier ones left; `isolated` means that matches and what lies between them both become
pieces.
"""

from __future__ import annotations

from dataclasses import dataclass

from pellucid.errors import UnsupportedModelError

# GPT-2 (openai/gpt-2, src/encoder.py).
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+[\r\n]*"


def _cl100k(digits: str) -> str:
    """The form of GPT-4's cl100k_base (openai/tiktoken), with `digits` as the rule for numbers."""
    return rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}|{_PUNCTUATION}|{_SPACES}"


LLAMA3 = _cl100k(r"\p{N}{1,3}")
QWEN2 = _cl100k(r"\p{N}")
QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)

_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _o200k(contraction: str, digits: str) -> str:
    """The form of GPT-4o's o200k_base (openai/tiktoken): a word changes at a small letter before a capital."""
    before = r"[^\r\n\p{L}\p{N}]?"
    words = f"{before}{_UPPER}*{_LOWER}+{contraction}|{before}{_UPPER}+{_LOWER}*{contraction}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


GPT4O = _o200k(_CONTRACTION + "?", r"\p{N}{1,3}")
TEKKEN = _o200k("", r"\p{N}")

_CJK_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
DEEPSEEK_V3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)
# Letters of cased scripts, CJK and punctuation as listed in DeepSeek LLM's tokenizer.json; escaped, because some of
# them change under Unicode normalisation.
_CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-"
    "\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec"
    "\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-"
    "\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"
    "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17"
    "\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-"
    "\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_CJK_HANGUL = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_PUNCTUATION = r"!-/:-~" "\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002"
_DEEPSEEK_LLM_WORDS = (rf"\s?[{_CASED_LETTERS}]+", rf"\s?[{_DEEPSEEK_PUNCTUATION}]+")
SEED_CODER = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"
    r"|\s+(?!\S)|\s+"
)
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"


_FROM_EACH_SPACE = r"\s+$"
"""DeepSeek LLM's rule for the spaces at an end: in a run that does not end there, each space would begin a search."""


def linear(pattern: str) -> str:
    """A pattern with the same matches that is searched for in time proportional to the text."""
    return r"(?<!\s)\s+$" if pattern == _FROM_EACH_SPACE else pattern


# Steps that are no regular expression.
GPT2_WORDS = "@gpt2-words"  # GPT-2's rule; spells the bytes as characters, so what follows it sees those
EACH_DIGIT = "@each-digit"  # every digit alone (Hugging Face's `Digits(individual_digits=True)`)
DIGIT_RUNS = "@digit-runs"  # digits apart from everything else
PUNCTUATION = "@punctuation"  # runs of punctuation apart from everything else


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """The rules of one `tokenizer.ggml.pre` name.

    steps: applied in turn; one of the names above or a regular expression (Oniguruma), isolated.
    nfc: text is brought to Unicode normal form C first.
    ignore_merges: a word that is itself a token is taken whole.
    add_bos: whether BOS is added where the file does not say.
    """

    name: str
    steps: tuple[str, ...] = ()
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False


_Rows = dict[str, PreTokenizer]


def _row(names: str, *steps: str, nfc: bool = False, ignore_merges: bool = False, add_bos: bool = False) -> _Rows:
    rows = [PreTokenizer(name, steps, nfc, ignore_merges, add_bos) for name in names.split()]
    return {row.name: row for row in rows}


PRE_TOKENIZERS: _Rows = (
    _row("gpt-2 phi-2 gigachat mellum jais trillion granite-docling exaone4 a.x-4.0", GPT2_WORDS)
    | _row("olmo mpt", GPT2_WORDS, nfc=True)
    | _row("smollm starcoder refact codeshell exaone minerva-7b mellum2", EACH_DIGIT, GPT2_WORDS)
    | _row("command-r", EACH_DIGIT, GPT2_WORDS, nfc=True)
    | _row("falcon", PUNCTUATION, GPT2_WORDS, DIGIT_RUNS, "[0-9][0-9][0-9]")
    # llama.cpp's rule for files that do not say: an old approximation of Falcon's.
    | _row("default", r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")
    | _row("llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0", LLAMA3, ignore_merges=True, add_bos=True)
    | _row("lfm2", LLAMA3, ignore_merges=True, add_bos=True)
    | _row("glm4 glm5", LLAMA3, ignore_merges=True)
    | _row("dbrx smaug-bpe chatglm-bpe", LLAMA3)
    | _row("qwen2 deepseek-r1-qwen stablelm2", QWEN2, nfc=True)
    | _row("kormo megrez hunyuan solar-open grok-2", QWEN2)
    | _row("qwen35", QWEN35, nfc=True)
    | _row("gpt-4o llama4 kanana2 talkie minimax-m2", GPT4O)
    | _row("tekken", TEKKEN, ignore_merges=True, add_bos=True)
    | _row("seed-coder", SEED_CODER)
    | _row("bailingmoe bailingmoe2 llada-moe", BAILING)
    | _row("deepseek-llm", r"[\r\n]", *_DEEPSEEK_LLM_WORDS, _FROM_EACH_SPACE, _CJK_HANGUL, r"\p{N}+")
    | _row("deepseek-coder", r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK_HANGUL, r"\p{N}")
    | _row("deepseek-v3 hunyuan-dense joyai-llm", r"\p{N}{1,3}", _CJK_KANA, DEEPSEEK_V3)
    | _row("bloom poro-chat gpt3-finnish", BLOOM)
    | _row("viking", BLOOM, r"\p{N}")
)


def pre_tokenizer_named(name: str) -> PreTokenizer:
    """The rules named by `tokenizer.ggml.pre`; UnsupportedModelError for a name we do not know."""
    rules = PRE_TOKENIZERS.get(name)
    if rules is None:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise UnsupportedModelError(f"tokenizer.ggml.pre is {name!r}, which is not supported; supported are: {known}")
    return rules

"""How text is cut into words before merging: one row for each `tokenizer.ggml.pre` name of a byte-level vocabulary.

A file names its rules, it does not carry them. The rules here are those of the tokenizer.json published with the
models (Hugging Face), the names those that the converters of llama.cpp write. Rules are applied one after the other,
each to the pieces that the earlier ones left; `isolated` means that matches and what lies between them both become
pieces.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..errors import UnsupportedModelError

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
    word = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{contraction}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{contraction}"
    return rf"{word}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


GPT4O = _o200k(_CONTRACTION + "?", r"\p{N}{1,3}")
TEKKEN = _o200k("", r"\p{N}")

_CJK_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
DEEPSEEK_V3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)
# Letters of cased scripts, as listed in DeepSeek LLM's tokenizer.json.
_CASED_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼι"
    "ῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ"
    "𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_CJK_HANGUL = "[一-龥ࠀ-一가-퟿]+"
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """The rules of one `tokenizer.ggml.pre` name.

    splits: regular expressions (Oniguruma), applied in turn, isolated.
    individual_digits: every digit alone, before anything else (Hugging Face's `Digits`).
    gpt2_words: finish with GPT-2's own rule.
    nfc: text is brought to Unicode normal form C first.
    ignore_merges: a word that is itself a token is taken whole.
    add_bos: whether BOS is added where the file does not say.
    """

    name: str
    splits: tuple[str, ...] = ()
    punctuation: bool = False
    individual_digits: bool = False
    gpt2_words: bool = False
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False


def _table(rows: Iterable[tuple[str, PreTokenizer]]) -> dict[str, PreTokenizer]:
    return {name: replace(rules, name=name) for names, rules in rows for name in names.split()}


_P = PreTokenizer
PRE_TOKENIZERS = _table(
    [
        ("none", _P("")),
        ("gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de mellum", _P("", gpt2_words=True)),
        ("jais trillion granite-docling exaone4 a.x-4.0", _P("", gpt2_words=True)),
        ("jina-v1-en jina-v2-code roberta-bpe", _P("", gpt2_words=True)),
        ("olmo mpt modern-bert", _P("", gpt2_words=True, nfc=True)),
        ("smollm starcoder refact codeshell minerva-7b mellum2", _P("", individual_digits=True, gpt2_words=True)),
        ("command-r exaone", _P("", individual_digits=True, gpt2_words=True, nfc=True)),
        # llama.cpp's rule for files that do not say: an old approximation of Falcon's.
        ("default", _P("", (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))),
        ("falcon", _P("", ("[0-9][0-9][0-9]",), punctuation=True, gpt2_words=True)),
        ("llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0", _P("", (LLAMA3,), ignore_merges=True, add_bos=True)),
        ("lfm2 jina-v5-nano", _P("", (LLAMA3,), ignore_merges=True, add_bos=True)),
        ("dbrx smaug-bpe chatglm-bpe", _P("", (LLAMA3,))),
        ("glm4 glm5", _P("", (LLAMA3,), ignore_merges=True)),
        ("qwen2 deepseek-r1-qwen kormo f2llmv2 megrez", _P("", (QWEN2,), nfc=True)),
        ("stablelm2", _P("", (QWEN2,), nfc=True)),
        ("hunyuan solar-open grok-2", _P("", (QWEN2,))),
        ("qwen35", _P("", (QWEN35,), nfc=True)),
        ("gpt-4o llama4 kanana2 talkie minimax-m2", _P("", (GPT4O,))),
        ("tekken", _P("", (TEKKEN,), ignore_merges=True, add_bos=True)),
        ("deepseek-v3 hunyuan-dense joyai-llm", _P("", (r"\p{N}{1,3}", _CJK_KANA, DEEPSEEK_V3))),
    ]
)


def pre_tokenizer_named(name: str) -> PreTokenizer:
    """The rules named by `tokenizer.ggml.pre`; UnsupportedModelError for a name we do not know."""
    rules = PRE_TOKENIZERS.get(name)
    if rules is None:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise UnsupportedModelError(f"tokenizer.ggml.pre is {name!r}, which is not supported; supported are: {known}")
    return rules

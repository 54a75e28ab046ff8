"""A folder's tokenizer → the `tokenizer.*` keys of a GGUF file, in llama.cpp's spelling.

What was written is read back and must cut texts as before: GGUF names the rules of a tokenizer, it does not carry them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pellucid.errors import PellucidError, UnsupportedModelError, shown
from pellucid.formats.json_file import is_there
from pellucid.tokenizer.folder import SENTENCEPIECE_NAMES, folder_metadata, read_folder_vocabulary
from pellucid.tokenizer.pre_tokenizers import EACH_DIGIT, GPT2_WORDS, PRE_TOKENIZERS
from pellucid.tokenizer.tokenizer import Tokenizer
from pellucid.tokenizer.vocabulary import NORMAL, SPACE_MARK, Rules, Vocabulary, read_vocabulary

_PREFIX = "tokenizer.ggml."
SAMPLES = (
    "Hello, world! It's 12345 o'clock; we'LL see  two  spaces.\n\n\tTabs and\r\nlines   \n end ",
    "Ünïcödé naïve café, Größe, ﬁ ½ ①; İstanbul, ΣΊΣΥΦΟΣ, Привет мир.",
    "日本語のテキスト、中文文本。 한국어 텍스트 ไทย हिन्दी العربية עברית",
    "def f(x): return {'a': [x**2, 0x1F, 1e-5]}  # 100% <b>&amp;</b> https://example.org/?q=1",
    "👩‍👩‍👧‍👦 🦙 e\u0301 \u200b x\u00a0y ▁ ## ' \" `",
)
"""Texts on which both forms must agree; those that a tokenizer cannot spell are passed over."""


def tokenizer_keys(folder: Path) -> dict[str, Any]:
    """The keys. Raises `ModelFileError`, and `UnsupportedModelError` for a tokenizer that GGUF cannot say."""
    vocabulary = read_folder_vocabulary(folder)
    tokens, kinds = list(vocabulary.tokens), list(vocabulary.kinds)
    keys: dict[str, Any] = {}
    if any(is_there(folder / name) for name in SENTENCEPIECE_NAMES):
        keys = folder_metadata(folder)
        tokens, kinds = keys[_PREFIX + "tokens"], keys[_PREFIX + "token_type"]
    elif vocabulary.model == "gpt2" and vocabulary.spelling == "bytes":
        keys = {_PREFIX + "model": "gpt2", _PREFIX + "pre": _pre_name(vocabulary)}
        keys[_PREFIX + "merges"] = list(vocabulary.merges or ())
    elif vocabulary.model == "bert" and vocabulary.continuation == "##":
        keys = {_PREFIX + "model": "bert", _PREFIX + "token_type_count": 2, **_bert_flags(vocabulary.rules)}
        pairs = zip(tokens, kinds, strict=True)
        tokens = [_with_mark(token) if kind == NORMAL else token for token, kind in pairs]
    else:
        raise UnsupportedModelError(
            f"{folder.name}: a {vocabulary.model} tokenizer of tokenizer.json has no form in GGUF: "
            f"{' or '.join(SENTENCEPIECE_NAMES)} is needed"
        )
    keys |= {_PREFIX + "tokens": tokens, _PREFIX + "token_type": [int(kind) for kind in kinds]}
    keys |= _ids(vocabulary, folder)
    for name, template in vocabulary.chat_templates.items():
        keys["tokenizer.chat_template" + ("" if name == "default" else f".{name}")] = template
    _check(vocabulary, keys, folder)
    return keys


def _with_mark(token: str) -> str:
    return token[2:] if token.startswith("##") else SPACE_MARK + token


def _bert_flags(rules: Rules | None) -> dict[str, bool]:
    normalizer = {} if rules is None or rules.normalizer is None else rules.normalizer
    lowercase = bool(normalizer.get("lowercase", True))
    accents = normalizer.get("strip_accents")
    return {
        _PREFIX + "normalizer.lowercase": lowercase,
        _PREFIX + "normalizer.strip_accents": lowercase if accents is None else bool(accents),
    }


def _pre_name(vocabulary: Vocabulary) -> str:
    """The name of the rules by which words are cut."""
    if vocabulary.rules is None:
        return vocabulary.pre_tokenizer.name
    rules = vocabulary.rules
    nfc = {"type": "NFC"}
    normal = [] if rules.normalizer is None else list(rules.normalizer.get("normalizers") or [rules.normalizer])
    steps = _steps(rules.pre_tokenizer)
    if steps is not None and normal in ([], [nfc]):
        wanted = (tuple(steps), bool(normal), bool(rules.model.get("ignore_merges")))
        for row in PRE_TOKENIZERS.values():
            if (row.steps, row.nfc, row.ignore_merges) == wanted:
                return row.name
    raise UnsupportedModelError("tokenizer.json: words are cut by rules that no tokenizer.ggml.pre of GGUF names")


def _steps(value: Mapping[str, Any] | None) -> list[str] | None:
    """A pre_tokenizer in the terms of pre_tokenizers.py; None where it has none."""
    if value is None:
        return None
    kind, pattern = value.get("type"), value.get("pattern")
    if kind == "Sequence":
        listed = [_steps(step) for step in value.get("pretokenizers") or ()]
        return None if None in listed else [step for steps in listed if steps is not None for step in steps]
    if kind == "ByteLevel" and not value.get("add_prefix_space"):
        return [GPT2_WORDS] if value.get("use_regex", True) else []
    if kind == "Digits" and value.get("individual_digits"):
        return [EACH_DIGIT]
    if (
        kind == "Split"
        and value.get("behavior") == "Isolated"
        and not value.get("invert")
        and isinstance(pattern, dict)
    ):
        return [str(pattern["Regex"])] if "Regex" in pattern else None
    return None


def _ids(vocabulary: Vocabulary, folder: Path) -> dict[str, Any]:
    bos, eos = ("cls", "seperator") if vocabulary.model == "bert" else ("bos", "eos")
    named = {bos: vocabulary.bos_id, eos: vocabulary.eos_id, "unknown": vocabulary.unk_id, "padding": vocabulary.pad_id}
    keys: dict[str, Any] = {f"{_PREFIX}{name}_token_id": i for name, i in named.items() if i is not None}
    for ids, own, flag in (
        (vocabulary.prefix_ids, vocabulary.bos_id, "add_bos_token"),
        (vocabulary.suffix_ids, vocabulary.eos_id, "add_eos_token"),
    ):
        if ids not in ((), (own,)):
            raise UnsupportedModelError(f"{folder.name}: {shown(ids)} go around each text, which GGUF cannot say")
        keys[_PREFIX + flag] = bool(ids)
    others = sorted(vocabulary.eos_ids - {vocabulary.eos_id})
    if others:
        keys[_PREFIX + "eot_token_id"] = others[0]
        keys[_PREFIX + "eos_token_ids"] = sorted(vocabulary.eos_ids)
    return keys


def _check(vocabulary: Vocabulary, keys: Mapping[str, Any], folder: Path) -> None:
    """Whether both forms cut the samples alike, and end and begin alike."""
    given, written = Tokenizer(vocabulary), Tokenizer(read_vocabulary(keys))
    for text in (*SAMPLES, *vocabulary.chat_templates.values()):
        one, other = _encoded(given, text), _encoded(written, text)
        if one != other:
            raise UnsupportedModelError(f"{folder.name}: a GGUF file would cut the text {shown(text)} otherwise")
    if written.vocabulary.eos_ids != vocabulary.eos_ids:
        raise UnsupportedModelError(f"{folder.name}: a GGUF file would end answers at other tokens")


def _encoded(tokenizer: Tokenizer, text: str) -> list[int] | None:
    try:
        return list(tokenizer.encode(text[:4096], parse_special=True))
    except PellucidError:
        return None

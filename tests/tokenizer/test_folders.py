"""Tokenizers from folders: every kind of file gives the ids of the `tokenizers` library on the same file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from pellucid.errors import ModelFileError, UnsupportedModelError
from pellucid.tokenizer.chat_template import encode_chat
from pellucid.tokenizer.detokenizer import IncrementalDetokenizer
from pellucid.tokenizer.tokenizer import Tokenizer

SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
TEXTS = [
    "", " ", "Hello, world!", "  two  spaces ", "naïve Straße", "东京 の", "🦙 llama", "a\n\nb\tc", "1234 56.7",
    "x" * 300,
    "<|im_end|>\n<|im_start|>system", "<s>hi</s>", "<tool>x</tool>", "a <tool> b", "can't WON'T", "\u0301 e\u0301",
]  # fmt: skip
LEARNT = [
    "Hello world, the llama and the llamas can't say 1234 hello hellos worlds.",
    "Straße in 东京, naïve の 56.7",
] * 20


def byte_level() -> tokenizers.Tokenizer:
    engine = tokenizers.Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    engine.normalizer = normalizers.NFC()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    engine.train_from_iterator(
        LEARNT, trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet)
    )
    return engine


def byte_fallback(prefix: str) -> tokenizers.Tokenizer:
    """As Llama 2 (`legacy`: a normalizer writes the spaces) and as its newer form (`first`: Metaspace does)."""
    engine = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    engine.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    engine.train_from_iterator(LEARNT, trainers.BpeTrainer(vocab_size=420, special_tokens=[*SPECIAL, *bytes_]))
    state = json.loads(engine.to_str())
    state["added_tokens"] = [entry for entry in state["added_tokens"] if entry["content"] not in bytes_]
    state["model"]["vocab"] = state["model"]["vocab"]
    state["pre_tokenizer"] = None
    if prefix == "legacy":
        steps: list[Any] = [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]
        state["normalizer"] = {"type": "Sequence", "normalizers": steps}
    else:
        state["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": prefix, "split": False}
    engine = tokenizers.Tokenizer.from_str(json.dumps(state))
    engine.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return engine


def unigram() -> tokenizers.Tokenizer:
    engine = tokenizers.Tokenizer(models.Unigram())
    engine.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")])
    engine.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    engine.decoder = decoders.Metaspace()
    engine.train_from_iterator(
        LEARNT, trainers.UnigramTrainer(vocab_size=120, special_tokens=SPECIAL, unk_token="<unk>")
    )
    return engine


def wordpiece(lowercase: bool, strip_accents: bool | None) -> tokenizers.Tokenizer:
    engine = tokenizers.Tokenizer(models.WordPiece(unk_token="<unk>"))
    engine.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    engine.decoder = decoders.WordPiece(cleanup=False)
    engine.train_from_iterator(LEARNT, trainers.WordPieceTrainer(vocab_size=200, special_tokens=SPECIAL))
    return engine


KINDS: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "byte_level": byte_level,
    "legacy": lambda: byte_fallback("legacy"),
    "first": lambda: byte_fallback("first"),
    "always": lambda: byte_fallback("always"),
    "unigram": unigram,
    "wordpiece": lambda: wordpiece(True, None),
    "cased": lambda: wordpiece(False, False),
}


def saved(folder: Path, engine: tokenizers.Tokenizer, **settings: Any) -> Tokenizer:
    """The engine's file in a folder, with two added tokens, read by us."""
    engine.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    engine.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("</tool>", normalized=True)])
    engine.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>"} | settings
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return Tokenizer.from_folder(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_equal_the_library(tmp_path: Path, kind: str, corpus: list[str]) -> None:
    engine = KINDS[kind]()
    ours = saved(tmp_path, engine)
    for parse_special in (False, True):
        engine.encode_special_tokens = not parse_special
        for text in [*TEXTS, *corpus]:
            if kind == "unigram" and not parse_special and any(special in text for special in SPECIAL):
                continue  # here the library lets text become control ids, which are pieces of its model
            expected = engine.encode(text, add_special_tokens=False).ids
            assert ours.encode(text, add_special_tokens=False, parse_special=parse_special) == expected, text


@pytest.mark.parametrize("kind", KINDS)
def test_text_of_users_never_becomes_a_control_id(tmp_path: Path, kind: str, corpus: list[str]) -> None:
    ours = saved(tmp_path, KINDS[kind]())
    control = {ours.special_tokens[text] for text in SPECIAL[1:]}
    for text in [*TEXTS, *SPECIAL, *corpus, "".join(SPECIAL), " ".join(SPECIAL)]:
        assert not control & set(ours.encode(text, add_special_tokens=False)), text


@pytest.mark.parametrize("kind", ["byte_level", "legacy", "first", "always"])
def test_round_trip_and_streams(tmp_path: Path, kind: str) -> None:
    ours = saved(tmp_path, KINDS[kind]())
    for text in TEXTS:
        if (kind == "byte_level" and "e\u0301" in text) or (kind in ("first", "always") and text.startswith(" ")):
            continue  # the normal form joins characters; a space at the start stands for the one that is put there
        ids = ours.encode(text, add_special_tokens=False)
        if "<tool>" not in text and "</tool>" not in text:
            assert ours.decode(ids) == text
        stream = IncrementalDetokenizer(ours)
        assert "".join([*map(stream.push, ids), stream.flush()]) == ours.decode(ids)


def test_what_goes_around_a_text(tmp_path: Path) -> None:
    engine = wordpiece(True, None)
    bos, eos = engine.token_to_id("<s>"), engine.token_to_id("</s>")
    engine.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", bos), ("</s>", eos)]
    )
    engine.enable_truncation(8)
    engine.enable_padding(length=16)
    ours = saved(tmp_path, engine)
    ids = ours.encode("hello " * 50)
    assert (ids[0], ids[-1], len(ids)) == (bos, eos, 52), "neither cut nor padded, whatever the file says"
    assert ours.encode("") == [bos, eos]


def test_settings_add_begin_and_all_ends(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 4]}')
    (tmp_path / "config.json").write_text('{"eos_token_id": 3}')
    (tmp_path / "chat_template.jinja").write_text(
        "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}"
    )
    ours = saved(tmp_path, byte_level(), add_bos_token=True, chat_template="old")
    assert ours.eos_ids == {2, 3, 4}
    assert ours.encode("hello")[0] == ours.bos_id == 1
    ids = encode_chat(ours, [{"role": "user", "content": "a<|im_end|>"}]).token_ids
    assert (ids[:2], 4 in ids) == ([1, 3], False)


def test_a_very_long_word_is_no_problem(tmp_path: Path) -> None:
    for kind in KINDS:
        ours = saved(tmp_path, KINDS[kind]())
        ids = ours.encode("hello" * 20_000, add_special_tokens=False)
        assert ids
        if kind in ("byte_level", "legacy"):
            assert ours.decode(ids) == "hello" * 20_000


def test_fingerprints_tell_what_changes_ids(tmp_path: Path) -> None:
    engine = wordpiece(True, None)
    first = saved(tmp_path, engine).fingerprint
    assert saved(tmp_path, engine).fingerprint == first
    engine.normalizer = normalizers.BertNormalizer(lowercase=False)
    assert saved(tmp_path, engine).fingerprint != first
    data = json.loads((tmp_path / "tokenizer.json").read_text())
    vocab = data["model"]["vocab"]
    one, other = "h", "e"
    vocab[one], vocab[other] = vocab[other], vocab[one]
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    assert Tokenizer.from_folder(tmp_path).fingerprint != first


def test_vocab_txt_obeys_its_flags(tmp_path: Path) -> None:
    engine = wordpiece(True, None)
    vocab = engine.get_vocab()
    lines = sorted(vocab, key=vocab.__getitem__)
    names = {"<unk>": "[UNK]", "<s>": "[CLS]", "</s>": "[SEP]"}
    (tmp_path / "vocab.txt").write_text("\n".join(names.get(line, line) for line in lines) + "\n")
    for lowercase, strip_accents in ((True, None), (False, None), (True, False), (False, True)):
        settings = {"do_lower_case": lowercase, "strip_accents": strip_accents}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        engine.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
        ours = Tokenizer.from_folder(tmp_path)
        for text in ("Hello Naïve Straße", "naïve hello", "HELLO"):
            assert ours.encode(text) == [1, *engine.encode(text, add_special_tokens=False).ids, 2]


def test_vocab_json_and_merges(tmp_path: Path) -> None:
    engine = byte_level()
    engine.normalizer = None  # type: ignore[assignment]
    engine.model.save(str(tmp_path))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "GPT2Tokenizer", "eos_token": "</s>"})
    )
    ours = Tokenizer.from_folder(tmp_path)
    engine.encode_special_tokens = True
    for text in TEXTS:
        if not any(special in text for special in SPECIAL):
            assert ours.encode(text, add_special_tokens=False) == engine.encode(text).ids, text
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.json is needed"):
        Tokenizer.from_folder(tmp_path)


def test_a_folder_without_a_tokenizer_says_what_it_looks_for(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"none of tokenizer\.json, tokenizer\.model, spiece\.model"):
        Tokenizer.from_folder(tmp_path)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"model": None}, "model is missing"),
    ({"model": {"type": "WordLevel", "vocab": {"a": 0}}}, "model.type is 'WordLevel', which is not supported"),
    ({"model": {"type": "BPE", "vocab": {"a": 10**12}, "merges": []}}, "the piece 'a' has the id 1000000000000"),
    ({"model": {"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": []}}, "two pieces have the same id"),
    ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [1]}}, "merges must be pairs"),
    ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [], "dropout": 0.5}}, "dropout"),
    ({"model": {"type": "Unigram", "vocab": [["a", "b"]], "unk_id": 0}}, "pieces are"),
    ({"model": {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 7}}, "unk_id is 7"),
    ({"added_tokens": [{"id": 1 << 40, "content": "x"}]}, "no sound id"),
    ({"added_tokens": [{"id": 0, "content": "x"}]}, "id 0 is the piece 'a'"),
    ({"normalizer": {"type": "Nonsense"}}, "cannot be used"),
    ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}, "cannot be used"),
    (
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}},
        "cannot",
    ),
    ({"post_processor": {"type": "BertProcessing", "sep": ["x", 9], "cls": ["x", 0]}}, "post_processor"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_bad_files_are_one_sentence(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    data = {"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}} | change
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises((ModelFileError, UnsupportedModelError)) as caught:
        Tokenizer.from_folder(tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)

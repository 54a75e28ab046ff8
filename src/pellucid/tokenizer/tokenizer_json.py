"""tokenizer.json, the file of the `tokenizers` library: its model's pieces, its added tokens, its rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pellucid.errors import ModelFileError, UnsupportedModelError, shown
from pellucid.formats.json_file import read_json, refuse_repeated_keys
from pellucid.tokenizer.pre_tokenizers import PreTokenizer
from pellucid.tokenizer.vocabulary import (
    BYTE,
    CONTROL,
    NORMAL,
    SPACE_MARK,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Matching,
    Rules,
    Spelling,
    Vocabulary,
    is_text,
)

MAX_ID = 1 << 21
NAME = "tokenizer.json"
_MAX_HOLES = 1 << 16
"""Ids that may have no piece: a few words of a file must not ask for a list of millions."""
_MAX_DEPTH = 32
_MODELS = {"BPE": "gpt2", "Unigram": "t5", "WordPiece": "bert"}
# Role markers that some files add as ordinary tokens: text of users must not become one.
_MARKERS = ("<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]")


def read_tokenizer_json(path: Path, further_tokens: Sequence[Mapping[str, Any]] = ()) -> Vocabulary:
    """The vocabulary of the file; further_tokens: added tokens that tokenizer_config.json has.

    Raises ModelFileError and UnsupportedModelError, naming the field.
    """
    data = read_json(path)
    _check_depth(data)
    model = data.get("model")
    if not isinstance(model, dict):
        raise ModelFileError(f"{NAME}: model is missing or no object")
    kind = _model_type(model)
    if not isinstance(kind, str) or kind not in _MODELS:
        raise UnsupportedModelError(
            f"{NAME}: model.type is {shown(kind)}, which is not supported; supported are: {', '.join(_MODELS)}"
        )
    _check_options(model)
    pieces, scores = _unigram_pieces(model) if kind == "Unigram" else (check_pieces(model.get("vocab"), NAME), None)
    added = _added_tokens(data.get("added_tokens") or [], further_tokens)
    tokens = filled_tokens(pieces, added, NAME)
    kinds = kinds_of(tokens, pieces, added)
    if kind != "Unigram" and UNUSED in kinds:  # an id without a piece: another may have taken its place
        refuse_repeated_keys(path)
    unk_id = _unknown_id(model, kind, pieces)
    if unk_id is not None:
        kinds[unk_id] = UNKNOWN
    if model.get("byte_fallback"):
        for byte in range(256):
            token_id = pieces.get(f"<0x{byte:02X}>")
            if token_id is not None:
                kinds[token_id] = BYTE
    rules = Rules(_object(data, "normalizer"), _object(data, "pre_tokenizer"), _options(model, kind), f"{NAME}: ")
    spelling, continuation = _spelling(data, model, kind)
    prefix, suffix = _template(data.get("post_processor"), pieces, added)
    matching = {entry["id"]: _matching(entry) for entry in added}
    normalized = {
        entry["id"]: matching[entry["id"]]
        for entry in added
        if kinds[entry["id"]] == USER_DEFINED
        and entry.get("normalized")
        and rules.normalizer is not None
        and (kind != "Unigram" or entry["content"] in pieces)
    }
    return Vocabulary(
        model=_MODELS[kind],
        spelling=spelling,
        pre_tokenizer=PreTokenizer("none"),
        tokens=tokens,
        index={token: i for i, token in enumerate(tokens) if kinds[i] != UNUSED},
        kinds=kinds,
        scores=None if scores is None else np.asarray([*scores, *[0.0] * (len(tokens) - len(scores))]),
        merges=_merges(model) if kind == "BPE" else None,
        bos_id=None,
        eos_id=None,
        unk_id=unk_id,
        pad_id=None,
        eos_ids=frozenset(),
        prefix_ids=prefix,
        suffix_ids=suffix,
        add_space_prefix=_strips_space(data, spelling),
        chat_templates={},
        matching={i: m for i, m in matching.items() if i not in normalized and m != Matching()},
        rules=rules,
        normalized=normalized,
        continuation=continuation,
    )


def _model_type(model: Mapping[str, Any]) -> Any:
    """Old files have no type; each kind has a field of its own."""
    if "type" in model:
        return model["type"]
    if "merges" in model:
        return "BPE"
    return "Unigram" if isinstance(model.get("vocab"), list) else "WordPiece"


def _check_options(model: Mapping[str, Any]) -> None:
    """The small fields of the model, whichever kind it is of."""
    checks: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = (
        (("byte_fallback", "fuse_unk", "ignore_merges"), lambda value: isinstance(value, bool), "true or false"),
        (("unk_token", "continuing_subword_prefix", "end_of_word_suffix"), is_text, "a text"),
        (("max_input_chars_per_word",), lambda value: type(value) is int and value > 0, "a whole number from 1"),
    )
    for names, is_sound, allowed in checks:
        for name in names:
            value = model.get(name)
            if value is not None and not is_sound(value):
                raise ModelFileError(f"{NAME}: model.{name} is {shown(value)}, but must be {allowed}")


def check_pieces(pieces: Any, file: str) -> dict[str, int]:
    """Text → id, checked."""
    if not isinstance(pieces, dict) or not pieces or len(pieces) > MAX_ID:
        raise ModelFileError(f"{file}: the vocabulary is missing, empty or has more than {MAX_ID} pieces")
    for text, token_id in pieces.items():
        if type(token_id) is not int or not 0 <= token_id < MAX_ID:
            raise ModelFileError(f"{file}: the piece {shown(text)} has the id {shown(token_id)}")
    if len(set(pieces.values())) != len(pieces):
        raise ModelFileError(f"{file}: two pieces have the same id")
    return pieces


def _unigram_pieces(model: Mapping[str, Any]) -> tuple[dict[str, int], list[float]]:
    entries = model.get("vocab")
    if not isinstance(entries, list) or not 0 < len(entries) <= MAX_ID:
        raise ModelFileError(f"{NAME}: model.vocab is missing, empty or has more than {MAX_ID} pieces")
    scores: list[float] = []
    pieces: dict[str, int] = {}
    for i, entry in enumerate(entries):
        is_pair = isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str)
        if not is_pair or type(entry[1]) not in (int, float) or not abs(entry[1]) < 1e30:
            raise ModelFileError(f"{NAME}: model.vocab has {shown(entry)}, but pieces are [text, score]")
        pieces[entry[0]] = i
        scores.append(float(entry[1]))
    return pieces, scores


def _added_tokens(entries: Any, further: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if not isinstance(entries, list):
        raise ModelFileError(f"{NAME}: added_tokens must be a list")
    known: dict[int, dict[str, Any]] = {}
    for entry in [*entries, *further]:
        check_added_token(entry, f"{NAME}: added_tokens")
        before = known.setdefault(entry["id"], dict(entry))
        if before["content"] != entry["content"]:
            raise ModelFileError(
                f"{NAME}: added token {entry['id']} is {shown(before['content'])}, but "
                f"{entry.get('file', 'it')} has {shown(entry['content'])} too"
            )
    return list(known.values())


def check_added_token(entry: Any, place: str) -> None:
    """Refuse what is no {id, content, flags}."""
    if (
        not isinstance(entry, Mapping)
        or not isinstance(entry.get("content"), str)
        or type(entry.get("id")) is not int
        or not 0 <= entry["id"] < MAX_ID
    ):
        raise ModelFileError(f"{place} has {shown(entry)}, which has no sound id and content")
    for name in ("special", "lstrip", "rstrip", "single_word", "normalized"):
        if not isinstance(entry.get(name), (bool, type(None))):
            raise ModelFileError(f"{place} has {shown(entry)}, but {name} must be true or false")


def filled_tokens(pieces: Mapping[str, int], added: Sequence[Mapping[str, Any]], file: str) -> list[str]:
    """[highest id + 1] the text of each id; ids without a piece get an empty one."""
    size, known = 1 + max([*pieces.values(), *(entry["id"] for entry in added)]), len(pieces) + len(added)
    if size > known + _MAX_HOLES:
        place = next((entry.get("file", file) for entry in added if entry["id"] == size - 1), file)
        raise ModelFileError(f"{place}: ids go up to {size - 1}, but there are {known} pieces")
    tokens: list[str | None] = [None] * size
    for text, token_id in pieces.items():
        tokens[token_id] = text
    for entry in added:
        if tokens[entry["id"]] not in (None, entry["content"]):
            raise ModelFileError(
                f"{file}: id {entry['id']} is the piece {shown(tokens[entry['id']])} and the added token "
                f"{shown(entry['content'])}"
            )
        tokens[entry["id"]] = entry["content"]
    return ["" if token is None else token for token in tokens]


def kinds_of(tokens: Sequence[str], pieces: Mapping[str, int], added: Sequence[Mapping[str, Any]]) -> list[int]:
    """NORMAL, CONTROL, USER_DEFINED or UNUSED for each id."""
    kinds = [UNUSED] * len(tokens)
    for token_id in pieces.values():
        kinds[token_id] = NORMAL
    for entry in added:
        kinds[entry["id"]] = CONTROL if entry.get("special") or _is_marker(entry["content"]) else USER_DEFINED
    return kinds


def _is_marker(text: str) -> bool:
    return text in _MARKERS or (text[:2], text[-2:]) in (("<|", "|>"), ("<｜", "｜>"))


def _unknown_id(model: Mapping[str, Any], kind: str, pieces: Mapping[str, int]) -> int | None:
    if kind == "Unigram":
        unk_id = model.get("unk_id")
        if unk_id is not None and (type(unk_id) is not int or not 0 <= unk_id < len(pieces)):
            raise ModelFileError(f"{NAME}: model.unk_id is {shown(unk_id)}, but must be the id of a piece")
        return unk_id
    token = model.get("unk_token")
    if token is None or token == "":
        return None
    if token not in pieces:
        raise ModelFileError(f"{NAME}: model.unk_token is {shown(token)}, which is no piece")
    return pieces[token]


def _merges(model: Mapping[str, Any]) -> list[str]:
    merges = model.get("merges")
    if not isinstance(merges, list):
        raise ModelFileError(f"{NAME}: model.merges must be a list")
    if not merges or isinstance(merges[0], str):
        if all(isinstance(merge, str) for merge in merges):
            return merges
    elif all(isinstance(m, list) and len(m) == 2 and all(isinstance(half, str) for half in m) for m in merges):
        if not any(" " in left for left, _ in merges):
            return [f"{left} {right}" for left, right in merges]
        raise UnsupportedModelError(f"{NAME}: model.merges joins pieces with spaces in them, which is not supported")
    raise ModelFileError(f"{NAME}: model.merges must be pairs of pieces")


def _options(model: Mapping[str, Any], kind: str) -> dict[str, Any]:
    small = {key: value for key, value in model.items() if key not in ("vocab", "merges", "type")}
    return small | {"type": kind}


def _object(data: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    value = data.get(name)
    if value is not None and not isinstance(value, dict):
        raise ModelFileError(f"{NAME}: {name} is {shown(value)}, but must be an object or null")
    return value


def _check_depth(data: Mapping[str, Any]) -> None:
    """The components are walked by functions that call themselves."""
    level: list[Any] = [value for key, value in data.items() if key != "model"]
    for _ in range(_MAX_DEPTH):
        level = [
            inner
            for value in level
            if isinstance(value, (dict, list))
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise ModelFileError(f"{NAME}: its components lie in each other more than {_MAX_DEPTH} deep")


def _steps(value: Any) -> list[Mapping[str, Any]]:
    """A component and those inside a Sequence, flat."""
    if not isinstance(value, dict):
        return []
    lists = [value.get(key) for key in ("normalizers", "pretokenizers", "decoders", "processors")]
    return [value, *(step for items in lists if isinstance(items, list) for item in items for step in _steps(item))]


def _spelling(data: Mapping[str, Any], model: Mapping[str, Any], kind: str) -> tuple[Spelling, str]:
    if kind == "WordPiece":
        return "words", model.get("continuing_subword_prefix") or "##"
    steps = [*_steps(data.get("pre_tokenizer")), *_steps(data.get("decoder")), *_steps(data.get("normalizer"))]
    if any(step.get("type") == "ByteLevel" for step in steps):
        return "bytes", ""
    if model.get("end_of_word_suffix"):
        return "suffix", model["end_of_word_suffix"]
    marked = any(SPACE_MARK in (step.get("replacement"), step.get("content"), step.get("prepend")) for step in steps)
    return ("marks" if marked or kind == "Unigram" else "plain"), ""


def _strips_space(data: Mapping[str, Any], spelling: Spelling) -> bool:
    """Whether the space before a text is not part of it: the decoder strips it, because a rule puts it there."""
    if spelling == "words":
        return True
    rules = [*_steps(data.get("pre_tokenizer")), *_steps(data.get("normalizer"))]
    for step in rules:
        if step.get("type") == "Metaspace":
            return step.get("prepend_scheme") != "never" and step.get("add_prefix_space") is not False
        if step.get("type") == "Prepend" or (step.get("type") == "ByteLevel" and step.get("add_prefix_space")):
            return spelling != "bytes"
    return False


def _template(
    post_processor: Any, pieces: Mapping[str, int], added: Sequence[Mapping[str, Any]]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids before and after a single text."""
    ids = {**pieces, **{entry["content"]: entry["id"] for entry in added}}
    for step in _steps(post_processor):
        if step.get("type") in ("BertProcessing", "RobertaProcessing"):
            return (_pair_id(step, "cls", ids),), (_pair_id(step, "sep", ids),)
        if step.get("type") == "TemplateProcessing":
            return _single(step, ids)
    return (), ()


def _pair_id(step: Mapping[str, Any], name: str, ids: Mapping[str, int]) -> int:
    value = step.get(name)
    if not isinstance(value, list) or len(value) != 2 or type(value[1]) is not int or value[1] not in ids.values():
        raise ModelFileError(f"{NAME}: post_processor.{name} is {shown(value)}, but must be [token, id]")
    return value[1]


def _single(step: Mapping[str, Any], ids: Mapping[str, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    before: list[int] = []
    after: list[int] = []
    target = before
    known, entries, special = set(ids.values()), step.get("single"), step.get("special_tokens")
    if not isinstance(entries, list) or not isinstance(special, dict):
        raise ModelFileError(f"{NAME}: post_processor has no single and special_tokens")
    for entry in entries:
        if isinstance(entry, dict) and "Sequence" in entry:
            target = after
            continue
        token = entry.get("SpecialToken") if isinstance(entry, dict) else None
        name = token.get("id") if isinstance(token, dict) else None
        found = special.get(name) if isinstance(name, str) else None
        listed = found.get("ids") if isinstance(found, dict) else None
        if not isinstance(listed, list) or not all(type(i) is int and i in known for i in listed):
            raise ModelFileError(f"{NAME}: post_processor has {shown(entry)}, which is no token of the vocabulary")
        target += listed
    return tuple(before), tuple(after)


def _matching(entry: Mapping[str, Any]) -> Matching:
    return Matching(bool(entry.get("lstrip")), bool(entry.get("rstrip")), bool(entry.get("single_word")))

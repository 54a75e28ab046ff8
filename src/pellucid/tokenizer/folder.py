"""A folder's tokenizer: which files are read, and what the settings beside them say.

    tokenizer.json                        the library's own form
    tokenizer.model, spiece.model         SentencePiece
    vocab.json + merges.txt               byte-level BPE of GPT-2's kind
    vocab.txt                             WordPiece

The first that is there is read. tokenizer_config.json, special_tokens_map.json, generation_config.json, config.json and
chat_template.jinja add special tokens, all ids that end generation, and the chat template.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pellucid.errors import ModelFileError, UnsupportedModelError, shown
from pellucid.formats.json_file import is_there, read_json, read_text, refuse_repeated_keys
from pellucid.tokenizer.vocabulary import (
    CONTROL,
    NORMAL,
    UNUSED,
    Vocabulary,
    known_end_ids,
    read_vocabulary,
    wordpiece_rules,
)

SENTENCEPIECE_NAMES = ("tokenizer.model", "spiece.model")
MAX_TOKENS = 1 << 21

# Byte-level vocabularies without tokenizer.json: the class that transformers would use says how words are cut.
_BYTE_LEVEL_CLASSES = {"GPT2Tokenizer": "gpt-2", "Qwen2Tokenizer": "qwen2"}
_WORD_FLAGS = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
# SentencePiece files of these families have other ids than the model.
_SHIFTED_CLASSES = ("XGLM", "XLMRoberta", "Camembert", "MBart", "NLLB", "M2M100", "BigBird", "Reformer")


def read_folder_vocabulary(folder: Path) -> Vocabulary:
    """Raises ModelFileError and UnsupportedModelError, naming the file."""
    settings = FolderSettings(folder)
    if is_there(folder / "tokenizer.json"):
        from pellucid.tokenizer.tokenizer_json import read_tokenizer_json

        vocabulary = read_tokenizer_json(folder / "tokenizer.json", settings.added_tokens())
    elif _is_wordpiece(folder):
        vocabulary = _vocab_txt(folder, settings)
    else:
        vocabulary = read_vocabulary(_metadata(folder, settings))
    settings.apply(vocabulary)
    return vocabulary


def folder_metadata(folder: Path) -> dict[str, Any]:
    """The vocabulary of tokenizer.model, or of vocab.json and merges.txt, in the terms of GGUF metadata.

    Raises ModelFileError and UnsupportedModelError, naming the file.
    """
    return _metadata(folder, FolderSettings(folder))


class FolderSettings:
    """What the small files say; each may be absent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tokenizer = _optional(folder / "tokenizer_config.json")
        self.special = _optional(folder / "special_tokens_map.json")
        self.generation = _optional(folder / "generation_config.json")
        self.model = _optional(folder / "config.json")

    def flag(self, name: str) -> bool | None:
        """A flag of tokenizer_config.json."""
        value = self.tokenizer.get(name)
        if value is not None and not isinstance(value, bool):
            raise ModelFileError(f"tokenizer_config.json: {name} is {shown(value)}, but must be true or false")
        return value

    def token(self, name: str) -> str | None:
        """The text of bos_token, eos_token and so on."""
        for values, file in ((self.tokenizer, "tokenizer_config.json"), (self.special, "special_tokens_map.json")):
            value = values.get(name)
            if isinstance(value, dict):
                value = value.get("content")
            if value is not None:
                if not isinstance(value, str):
                    raise ModelFileError(f"{file}: {name} is {shown(value)}, but must be a text")
                return value
        return None

    def added_tokens(self) -> list[dict[str, Any]]:
        """Entries of added_tokens_decoder, with their ids, in the form of tokenizer.json's added_tokens."""
        from pellucid.tokenizer.tokenizer_json import check_added_token

        decoder = self.tokenizer.get("added_tokens_decoder") or {}
        if not isinstance(decoder, dict):
            raise ModelFileError("tokenizer_config.json: added_tokens_decoder must be an object")
        entries = []
        for key, entry in decoder.items():
            if not isinstance(entry, dict) or not key.isdecimal() or len(key) > 9:
                raise ModelFileError(f"tokenizer_config.json: added_tokens_decoder has the odd entry {shown(key)}")
            entries.append(entry | {"id": int(key), "file": "tokenizer_config.json"})
            check_added_token(entries[-1], "tokenizer_config.json: added_tokens_decoder")
        known = {entry["id"] for entry in entries}
        for text, token_id in _optional(self.folder / "added_tokens.json").items():
            if type(token_id) is not int or not 0 <= token_id < MAX_TOKENS:
                raise ModelFileError(f"added_tokens.json: {shown(text)} has the id {shown(token_id)}")
            if token_id not in known:
                entries.append({"id": token_id, "content": text, "file": "added_tokens.json"})
        return entries

    def apply(self, vocabulary: Vocabulary) -> None:
        """Set the special ids, the end ids and the templates."""
        for attribute, names in (
            ("bos_id", ("bos_token", "cls_token")),
            ("eos_id", ("eos_token", "sep_token")),
            ("pad_id", ("pad_token",)),
        ):
            found = self._named_id(names, vocabulary)
            if found is None and getattr(vocabulary, attribute) is None and attribute != "pad_id":
                found = self._id_in_model(names[0] + "_id", len(vocabulary.tokens))
            if found is not None:
                setattr(vocabulary, attribute, found)
                vocabulary.kinds[found] = CONTROL if vocabulary.kinds[found] == NORMAL else vocabulary.kinds[found]
        self._set_template_ids(vocabulary)
        ends = set(vocabulary.eos_ids) | known_end_ids(vocabulary.index, vocabulary.kinds)
        if vocabulary.eos_id is not None:
            ends.add(vocabulary.eos_id)
        for values, file in ((self.generation, "generation_config.json"), (self.model, "config.json")):
            ends |= _ids(values.get("eos_token_id"), f"{file}: eos_token_id", len(vocabulary.tokens))
        vocabulary.eos_ids = frozenset(ends)
        vocabulary.chat_templates = self._chat_templates() or vocabulary.chat_templates

    def _set_template_ids(self, vocabulary: Vocabulary) -> None:
        """add_bos_token and add_eos_token count where tokenizer.json does not say what goes around a text."""
        if vocabulary.prefix_ids or vocabulary.suffix_ids:
            return
        if self.flag("add_bos_token") and vocabulary.bos_id is not None:
            vocabulary.prefix_ids = (vocabulary.bos_id,)
        if self.flag("add_eos_token") and vocabulary.eos_id is not None:
            vocabulary.suffix_ids = (vocabulary.eos_id,)

    def _named_id(self, names: tuple[str, ...], vocabulary: Vocabulary) -> int | None:
        texts = [text for text in map(self.token, names) if text is not None]
        return next((vocabulary.index[text] for text in texts if text in vocabulary.index), None)

    def _id_in_model(self, name: str, count: int) -> int | None:
        for values, file in ((self.generation, "generation_config.json"), (self.model, "config.json")):
            value = values.get(name)
            first = value[0] if isinstance(value, list) and value else value
            if first is not None:
                found = _ids(first, f"{file}: {name}", count)
                return next(iter(found), None)
        return None

    def _chat_templates(self) -> dict[str, str]:
        templates: dict[str, str] = {}
        value = self.tokenizer.get("chat_template")
        if isinstance(value, str):
            templates["default"] = value
        elif isinstance(value, list):
            for entry in value:
                if not isinstance(entry, dict) or not all(isinstance(entry.get(k), str) for k in ("name", "template")):
                    raise ModelFileError("tokenizer_config.json: chat_template must be a text, or {name, template} …")
                templates[entry["name"]] = entry["template"]
        elif value is not None:
            raise ModelFileError(f"tokenizer_config.json: chat_template is {shown(value)}, but must be a text")
        legacy = _optional(self.folder / "chat_template.json").get("chat_template")
        if isinstance(legacy, str):
            templates["default"] = legacy
        if is_there(self.folder / "chat_template.jinja"):
            templates["default"] = read_text(self.folder / "chat_template.jinja")
        for file in sorted((self.folder / "additional_chat_templates").glob("*.jinja")):
            templates[file.stem] = read_text(file)
        return templates


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if is_there(path) else {}


def _ids(value: Any, what: str, count: int) -> set[int]:
    """The ids of an entry that may be absent, one id or a list; ids beyond the vocabulary name no token."""
    listed = [] if value is None else value if isinstance(value, list) else [value]
    if not all(type(item) is int for item in listed):
        raise ModelFileError(f"{what} is {shown(value)}, but must be a token id or a list of them")
    return {item for item in listed if 0 <= item < count}


def _is_wordpiece(folder: Path) -> bool:
    names = (*SENTENCEPIECE_NAMES, "vocab.json")
    return is_there(folder / "vocab.txt") and not any(is_there(folder / name) for name in names)


def _metadata(folder: Path, settings: FolderSettings) -> dict[str, Any]:
    """A vocabulary in the terms of GGUF metadata."""
    kind = str(settings.tokenizer.get("tokenizer_class") or "").removesuffix("Fast")
    for name in SENTENCEPIECE_NAMES:
        if is_there(folder / name):
            from pellucid.tokenizer.sentencepiece_file import read_sentencepiece

            if kind.startswith(_SHIFTED_CLASSES):
                raise UnsupportedModelError(f"{name}: {kind} has other ids than its file: tokenizer.json is needed")
            metadata = read_sentencepiece(folder / name, settings.added_tokens())
            break
    else:
        if not is_there(folder / "vocab.json"):
            raise ModelFileError(
                f"{folder.name}: no tokenizer: none of tokenizer.json, {', '.join(SENTENCEPIECE_NAMES)}, vocab.json "
                "and vocab.txt is in the folder"
            )
        metadata = _vocab_json(folder, settings, kind)
    for name in ("add_bos_token", "add_eos_token"):
        if (flag := settings.flag(name)) is not None:
            metadata[f"tokenizer.ggml.{name}"] = flag
    return metadata


def _vocab_json(folder: Path, settings: FolderSettings, kind: str) -> dict[str, Any]:
    if kind not in _BYTE_LEVEL_CLASSES:
        raise UnsupportedModelError(
            f"tokenizer_config.json: tokenizer_class is {shown(kind)}, whose words vocab.json alone does not tell "
            f"(those of {', '.join(_BYTE_LEVEL_CLASSES)} can): tokenizer.json is needed"
        )
    from pellucid.tokenizer.tokenizer_json import check_pieces, filled_tokens, kinds_of

    pieces = check_pieces(read_json(folder / "vocab.json"), "vocab.json")
    added = settings.added_tokens()
    named = {text for name in ("bos_token", "eos_token", "unk_token", "pad_token") if (text := settings.token(name))}
    tokens = filled_tokens(pieces, added, "vocab.json")
    kinds = kinds_of(tokens, pieces, added)
    for text in named:
        if text in pieces:
            kinds[pieces[text]] = CONTROL
    if UNUSED in kinds:
        refuse_repeated_keys(folder / "vocab.json")
    lines = read_text(folder / "merges.txt").split("\n")
    merges = [line.rstrip("\r") for line in lines if line.strip() and not line.startswith("#version")]
    for merge in merges:
        left, _, right = merge.partition(" ")
        if left not in pieces or right not in pieces or left + right not in pieces:
            raise ModelFileError(f"merges.txt: {shown(merge)} does not join two pieces of vocab.json into a third")
    metadata = {"model": "gpt2", "pre": _BYTE_LEVEL_CLASSES[kind], "tokens": tokens, "token_type": kinds}
    return {f"tokenizer.ggml.{key}": value for key, value in (metadata | {"merges": merges}).items()}


def _vocab_txt(folder: Path, settings: FolderSettings) -> Vocabulary:
    from pellucid.tokenizer.pre_tokenizers import PreTokenizer
    from pellucid.tokenizer.tokenizer_json import check_pieces, filled_tokens, kinds_of

    lines = read_text(folder / "vocab.txt").split("\n")
    lines = [line.rstrip("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]
    pieces = check_pieces({line: i for i, line in enumerate(lines)}, "vocab.txt")
    added = settings.added_tokens()
    tokens = filled_tokens(pieces, added, "vocab.txt")
    kinds = kinds_of(tokens, pieces, added)
    names = ("unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
    special = [settings.token(name) or f"[{name[:-6].upper()}]" for name in names]
    missing = next((text for text in (special[0], special[1], special[3]) if text not in pieces), None)
    if missing is not None:
        raise ModelFileError(f"vocab.txt: the token {shown(missing)} is missing")
    for text in special:
        if text in pieces:
            kinds[pieces[text]] = CONTROL
    sep, cls = pieces[special[1]], pieces[special[3]]
    return Vocabulary(
        model="bert",
        spelling="words",
        pre_tokenizer=PreTokenizer("none"),
        tokens=tokens,
        index={token: i for i, token in enumerate(tokens)},
        kinds=kinds,
        scores=None,
        merges=None,
        bos_id=cls,
        eos_id=sep,
        unk_id=pieces[special[0]],
        pad_id=pieces.get(special[2]),
        eos_ids=frozenset(),
        prefix_ids=(cls,),
        suffix_ids=(sep,),
        add_space_prefix=True,
        chat_templates={},
        rules=wordpiece_rules({name: flag for name in _WORD_FLAGS if (flag := settings.flag(name)) is not None}),
    )

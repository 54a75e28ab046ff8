"""Ids that were right once: kept in a file, and held against a tokenizer later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pellucid.cli import console
from pellucid.cli.console import plural
from pellucid.cli.exit_codes import EXIT_REQUEST_FAILED
from pellucid.errors import InvalidParameterError, ModelFileError, PellucidError, shown

if TYPE_CHECKING:
    from pellucid.tokenizer.tokenizer import Tokenizer

FORMAT = "pellucid-token-ids"
VERSION = 1


def save_ids(path: Path, model: str, tokenizer: Tokenizer, content: str) -> None:
    """Write the ids of each line of `content`, as a prompt (`ids`) and with its control strings read (`parsed`)."""
    texts = content.splitlines()
    data = {
        "format": FORMAT,
        "version": VERSION,
        "model": model,
        "fingerprint": tokenizer.fingerprint,
        "texts": [{"text": text, **_ids(tokenizer, text)} for text in texts],
    }
    partial = path.with_name(path.name + ".part")
    try:
        partial.write_text(json.dumps(data, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise InvalidParameterError("save", f"{path} cannot be written: {error.strerror}") from None
    console.say(f"{path}: the ids of {plural(len(texts), 'text')}, fingerprint {tokenizer.fingerprint[:16]}…")


def check_ids(path: Path, model: str, where: Path) -> int:
    """Hold the tokenizer of `model` to the file; the exit code, 1 where an id or the fingerprint differs."""
    from pellucid.models.model_files import read_tokenizer

    data = _read(path)
    try:
        tokenizer = read_tokenizer(where)
        problem = difference(data, tokenizer)
    except PellucidError as error:
        problem = str(error)
    if problem is not None:
        console.complain(f"{model}: {problem}")
        return EXIT_REQUEST_FAILED
    print(f"{model}: {plural(len(data['texts']), 'text')} give the ids of {path}, and the fingerprint is the same")
    return 0


def difference(data: dict[str, Any], tokenizer: Tokenizer) -> str | None:
    """The first text whose ids are others, or another fingerprint; None where all is as it was."""
    for number, entry in enumerate(data["texts"], 1):
        for kind, ids in _ids(tokenizer, entry["text"]).items():
            expected = entry[kind]
            if ids != expected:
                pairs = enumerate(zip(ids, expected, strict=False))
                at = next((i for i, (ours, kept) in pairs if ours != kept), min(len(ids), len(expected)))
                found = [str(seq[at]) if at < len(seq) else "nothing" for seq in (ids, expected)]
                return (
                    f"text {number}, {shown(entry['text'])}, has other ids ({kind}): token {at} is {found[0]}, but "
                    f"{found[1]} was kept"
                )
    if tokenizer.fingerprint != data["fingerprint"]:
        return (
            f"all texts give the ids that were kept, but the fingerprint is {tokenizer.fingerprint}, not "
            f"{data['fingerprint']}: other texts may differ"
        )
    return None


def _ids(tokenizer: Tokenizer, text: str) -> dict[str, list[int]]:
    return {"ids": tokenizer.encode(text), "parsed": tokenizer.encode(text, parse_special=True)}


def _read(path: Path) -> dict[str, Any]:
    from pellucid.formats.json_file import read_json

    data = read_json(path)
    texts = data.get("texts")
    sound = (
        data.get("format") == FORMAT
        and data.get("version") == VERSION
        and isinstance(data.get("fingerprint"), str)
        and isinstance(texts, list)
        and all(
            isinstance(entry, dict)
            and isinstance(entry.get("text"), str)
            and all(isinstance(entry.get(kind), list) for kind in ("ids", "parsed"))
            for entry in texts
        )
    )
    if not sound:
        raise ModelFileError(f"{path} is no file that `pellucid tokenize --save` wrote")
    return data

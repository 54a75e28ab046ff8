"""JSON and text files of bounded size: those beside a model's weights."""

from __future__ import annotations

import json
import os
import stat
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from pellucid.errors import ModelFileError, shown

MAX_JSON_BYTES: Final = 64 << 20


def is_there(path: Path) -> bool:
    """Whether the folder has an entry of that name; one that is no file, or leads nowhere, is named when it is read."""
    return os.path.lexists(path)


def regular_size(path: Path) -> int:
    """Bytes of a regular file. Raises `ModelFileError`, naming what is none: a pipe would be waited for, and a device
    has no end."""
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ModelFileError(f"{path.name}: can not be read ({reason})") from None
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "no regular file"
        raise ModelFileError(f"{path.name}: can not be read (it is {kind})")
    return status.st_size


def read_bytes(path: Path) -> bytes:
    """A whole file. Raises `ModelFileError`, naming the file."""
    size = regular_size(path)
    if size > MAX_JSON_BYTES:
        raise ModelFileError(f"{path.name}: {size} bytes, but at most {MAX_JSON_BYTES} are read")
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        raise ModelFileError(f"{path.name}: can not be read ({error.strerror})") from None


def read_text(path: Path) -> str:
    """A UTF-8 file. Raises `ModelFileError`, naming the file."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError:
        raise ModelFileError(f"{path.name}: is not UTF-8") from None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises `ModelFileError`, naming the file."""
    try:
        values = json.loads(read_text(path).removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path.name}: not valid JSON ({shown(str(error))})") from None
    if not isinstance(values, dict):
        raise ModelFileError(f"{path.name}: must hold a JSON object")
    return values


def refuse_repeated_keys(path: Path) -> None:
    """Refuse a JSON file in which an object has a key twice, of which `read_json` takes the last."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) != len(pairs):
            names = sorted(key for key, _ in pairs)
            twice = next(one for one, other in pairwise(names) if one == other)
            raise ModelFileError(f"{path.name}: {shown(twice)} stands in it twice")
        return values

    json.loads(read_text(path).removeprefix("\ufeff"), object_pairs_hook=unique)

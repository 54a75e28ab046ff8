"""JSON and text files of bounded size: those beside a model's weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from pellucid.errors import ModelFileError, shown

MAX_JSON_BYTES: Final = 64 << 20


def read_bytes(path: Path) -> bytes:
    """A whole file. Raises `ModelFileError`, naming the file."""
    try:
        size = path.stat().st_size
        if size > MAX_JSON_BYTES:
            raise ModelFileError(f"{path.name}: {size} bytes, but at most {MAX_JSON_BYTES} are read")
        return path.read_bytes()
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
        values = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path.name}: not valid JSON ({shown(str(error))})") from None
    if not isinstance(values, dict):
        raise ModelFileError(f"{path.name}: must hold a JSON object")
    return values

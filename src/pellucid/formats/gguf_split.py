"""GGUF models in several files: every part is opened and checked, and they look like one file.

llama.cpp's gguf-split names the parts `name-00001-of-00003.gguf`; each says in `split.no`, `split.count` and
`split.tensors.count` which one it is, and the first has the model's metadata.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

from pellucid.errors import ModelFileError, shown
from pellucid.formats.gguf import GGUFFile, GGUFTensor

PART: Final = re.compile(r"^(?P<base>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$", re.IGNORECASE)
MAX_PARTS: Final = 4096
_KEYS: Final = ("split.no", "split.count", "split.tensors.count")


def part_paths(path: Path) -> list[Path]:
    """All parts of the model that a file name belongs to; the file alone where its name is not that of a part."""
    match = PART.match(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    if not 1 <= int(match["number"]) <= count <= MAX_PARTS:
        raise ModelFileError(f"{path.name}: the name is that of a part, but its numbers are not 1 to {MAX_PARTS}")
    return [path.with_name(f"{match['base']}-{i:05}-of-{match['count']}.gguf") for i in range(1, count + 1)]


def open_gguf(path: str | os.PathLike[str]) -> GGUFFile:
    """Open a GGUF file, with the other parts where it is one of several.

    Raises ModelFileError as `GGUFFile.open`, and for a part that is missing, is no part of this model, or lacks
    tensors: it names the part.
    """
    paths = part_paths(Path(path))
    if len(paths) == 1:
        return GGUFFile.open(path)
    missing = next((part for part in paths if not part.is_file()), None)
    if missing is not None:
        raise ModelFileError(f"{missing} is missing: the model is split into {len(paths)} files, and needs them all")
    parts = [GGUFFile.open(part) for part in paths]
    tensors: dict[str, GGUFTensor] = {}
    for number, part in enumerate(parts):
        _check_part(part, number, len(parts))
        twice = next((name for name in part.tensors if name in tensors), None)
        if twice is not None:
            raise ModelFileError(f"{part.path} has tensor {shown(twice)}, which is in an earlier part too")
        tensors.update(part.tensors)
    first = parts[0]
    expected = first.metadata.get("split.tensors.count")
    if expected is not None and expected != len(tensors):
        raise ModelFileError(
            f"{first.path} says that the parts have {shown(expected)} tensors, but they have {len(tensors)}"
        )
    return GGUFFile(
        first.path,
        first.version,
        {key: value for key, value in first.metadata.items() if key not in _KEYS},
        tensors,
        alignment=first.alignment,
        data_offset=first.data_offset,
        file_size=sum(part.file_size for part in parts),
    )


def _check_part(part: GGUFFile, number: int, count: int) -> None:
    found: tuple[Any, Any] = (part.metadata.get("split.no"), part.metadata.get("split.count"))
    if found != (number, count):
        raise ModelFileError(
            f"{part.path} says that it is part {shown(found[0])} of {shown(found[1])}, but its name says {number} of "
            f"{count} (counted from 0)"
        )

"""Models that already lie on this machine, and the choice of one GGUF file among several."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from pellucid.errors import ModelFileError, ModelStoreError, UnsupportedModelError

_SPLIT = re.compile(r"-\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)
MAX_LISTED = 12


def looks_like_path(name: str) -> bool:
    """Whether a name can only be meant as a path: it starts like one, or ends in .gguf with at most one folder."""
    starts = name.startswith(("/", "./", "../", "~", ".\\", "..\\")) or name in (".", "..") or os.path.isabs(name)
    return starts or (name.lower().endswith(".gguf") and name.count("/") <= 1)


def resolve_local(name: str) -> Path | None:
    """The GGUF file that a path names, itself or as the only one in a folder; None if there is nothing there.

    Raises `ModelFileError` for a missing file, `ModelStoreError` for a folder with several.
    """
    path = Path(os.path.expanduser(name))
    try:
        if path.is_dir():
            return _of_folder(path)
        if path.exists():
            return path
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        raise ModelFileError(f"{name} cannot be read: {reason}") from error
    if looks_like_path(name):
        raise ModelFileError(
            f"there is no model file {path}: give the path of a GGUF file, or a name that `pellucid list` shows"
        )
    return None


def _of_folder(folder: Path) -> Path:
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_file())
    return folder / choose_gguf(names, None, str(folder), str(folder) + "/{file}")


def choose_gguf(names: Sequence[str], quant: str | None, where: str, spelling: str) -> str:
    """The one GGUF file meant among the file names of a folder or repository.

    `quant` is a type such as Q4_K_M, or None to take the only file. `where` names the place in errors and
    `spelling` shows how to ask for one file, with `{file}` in it.
    """
    files = [name for name in names if name.lower().endswith(".gguf") and "mmproj" not in name.lower()]
    if not files:
        if any(name.endswith(".safetensors") for name in names):
            raise UnsupportedModelError(
                f"{where} holds safetensors only, which are not supported yet: a GGUF file is needed"
            )
        raise ModelStoreError(f"{where} holds no GGUF file")
    fitting = [name for name in files if quant is None or _has_quant(name, quant)]
    if len(fitting) == 1:
        if _SPLIT.search(fitting[0]):
            raise UnsupportedModelError(
                f"{where}: {fitting[0]} is a piece of a split model, which is not supported yet"
            )
        return fitting[0]
    if fitting and all(_SPLIT.search(name) for name in fitting):
        raise UnsupportedModelError(f"{where} holds this model split over several files, which is not supported yet")
    wanted = "several GGUF files" if quant is None else f"{'several' if fitting else 'no'} GGUF files of type {quant}"
    listed = fitting or files
    more = f" and {len(listed) - MAX_LISTED} more" if len(listed) > MAX_LISTED else ""
    raise ModelStoreError(
        f"{where} holds {wanted}: choose one, for example {spelling.format(file=listed[0])}; "
        f"there are {', '.join(listed[:MAX_LISTED])}{more}"
    )


def _has_quant(name: str, quant: str) -> bool:
    """Whether a type such as Q4_K_M stands in the file name as a word of its own (Q4_K is not Q4_K_M)."""
    pattern = rf"(^|[^A-Za-z0-9_]){re.escape(quant)}(-\d{{5}}-of-\d{{5}})?\.gguf$"
    return re.search(pattern, name, re.IGNORECASE) is not None

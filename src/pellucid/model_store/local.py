"""Models that already lie on this machine: files, folders, and the choice of one GGUF file among several."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from pellucid.errors import ModelFileError, ModelStoreError

_SPLIT = re.compile(r"-\d{5}-of-(\d{5})\.gguf$", re.IGNORECASE)
_PICKLE = re.compile(r".*\.(bin|pt|pth|pkl|ckpt)", re.IGNORECASE)
MAX_LISTED = 12


def looks_like_path(name: str) -> bool:
    """Whether a name can only be meant as a path: it starts like one, or ends in .gguf with at most one folder."""
    starts = name.startswith(("/", "./", "../", "~", ".\\", "..\\")) or name in (".", "..") or os.path.isabs(name)
    return starts or (name.lower().endswith(".gguf") and name.count("/") <= 1)


def resolve_local(name: str) -> Path | None:
    """The GGUF file that a path names, itself or as the only one in a folder, or the folder with config.json and
    safetensors; None if there is nothing there.

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
    """The folder itself where it has config.json and no GGUF file: safetensors, which the loader looks at."""
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_file())
    if "config.json" in names and not any(name.lower().endswith(".gguf") for name in names):
        return folder
    return folder / choose_gguf(names, None, str(folder), str(folder) + "/{file}")


def choose_gguf(names: Sequence[str], quant: str | None, where: str, spelling: str) -> str:
    """The one GGUF file meant among the file names of a folder or repository.

    `quant` is a type such as Q4_K_M, or None to take the only file. `where` names the place in errors and
    `spelling` shows how to ask for one file, with `{file}` in it.
    """
    files = [name for name in names if name.lower().endswith(".gguf") and "mmproj" not in name.lower()]
    if not files:
        if any(name.endswith(".safetensors") for name in names):
            raise ModelStoreError(f"{where} holds safetensors, but no config.json that says what they are")
        pickle = next((name for name in sorted(names) if _PICKLE.fullmatch(name)), None)
        if pickle is not None:
            raise ModelStoreError(
                f"{where} has its weights in {pickle}, a pickle file, which may run any program when it is opened: "
                "only safetensors and GGUF files are read"
            )
        raise ModelStoreError(f"{where} holds no GGUF file, and no config.json with safetensors")
    fitting = [name for name in files if quant is None or _has_quant(name, quant)]
    if len({_SPLIT.sub("", name) for name in fitting}) == 1:
        return min(fitting)  # the first part stands for all
    wanted = "several GGUF files" if quant is None else f"{'several' if fitting else 'no'} GGUF files of type {quant}"
    listed = fitting or files
    more = f" and {len(listed) - MAX_LISTED} more" if len(listed) > MAX_LISTED else ""
    raise ModelStoreError(
        f"{where} holds {wanted}: choose one, for example {spelling.format(file=listed[0])}; "
        f"there are {', '.join(listed[:MAX_LISTED])}{more}"
    )


def split_parts(name: str) -> list[str]:
    """The names of all parts of a model whose part this is; the name alone where it is no part."""
    match = _SPLIT.search(name)
    if match is None:
        return [name]
    base = name[: match.start()]
    return [f"{base}-{i:05}-of-{match[1]}.gguf" for i in range(1, int(match[1]) + 1)]


def _has_quant(name: str, quant: str) -> bool:
    """Whether a type such as Q4_K_M stands in the file name as a word of its own (Q4_K is not Q4_K_M)."""
    pattern = rf"(^|[^A-Za-z0-9_]){re.escape(quant)}(-\d{{5}}-of-\d{{5}})?\.gguf$"
    return re.search(pattern, name, re.IGNORECASE) is not None

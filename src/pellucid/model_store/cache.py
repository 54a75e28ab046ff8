"""The cache folder: where models lie, which are known to be whole, and who may work on one.

models/<alias>/<file>.gguf        a whole model; nothing half-made ever has this name
models/<alias>/verified.json      size and time of the file when its checksum was last right
partial/<alias>/                  parts on their way; what is finished is kept for the next try
locks/<alias>.lock                held while someone fetches
hub.json                          files of Hugging Face repositories that were asked for
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pellucid.errors import ModelStoreError
from pellucid.model_store.aliases import Alias

CHUNK_BYTES = 1 << 20
_NO_ROOM = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}


def cache_folder() -> Path:
    """`$PELLUCID_CACHE`, else `$XDG_CACHE_HOME/pellucid`, else `~/.cache/pellucid`. It need not exist."""
    own = os.environ.get("PELLUCID_CACHE")
    if own:
        return Path(os.path.abspath(os.path.expanduser(own)))
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # the XDG specification: a relative path is to be ignored
        return Path(base) / "pellucid"
    return Path(os.path.expanduser("~")) / ".cache" / "pellucid"


def model_path(alias: Alias) -> Path:
    """Where the alias's file lies once it is whole."""
    return cache_folder() / "models" / alias.folder_name / alias.filename


def partial_folder(alias: Alias) -> Path:
    """Where its parts are kept until then."""
    return cache_folder() / "partial" / alias.folder_name


def is_present(alias: Alias) -> bool:
    """Whether the whole file is there. Reads its bytes only if it changed since the last check.

    Raises `ModelStoreError` if a file of that name is there, but is not the model.
    """
    path = model_path(alias)
    try:
        status = path.stat()
    except OSError:
        return False
    stamp = {"sha256": alias.sha256, "size": status.st_size, "mtime_ns": status.st_mtime_ns}
    if read_json(path.with_name("verified.json")) == stamp:
        return True
    try:
        is_whole = status.st_size == alias.size and file_sha256(path) == alias.sha256
    except OSError as error:
        raise ModelStoreError(f"{path} cannot be read: {error.strerror or error}") from None
    if not is_whole:
        raise DamagedModelError(alias, path, status.st_size)
    write_verified(alias)
    return True


class DamagedModelError(ModelStoreError):
    """A file lies where an alias's model should, but its size or checksum is wrong."""

    def __init__(self, alias: Alias, path: Path, size: int) -> None:
        what = "its sha256 differs" if size == alias.size else f"it has {size} bytes instead of {alias.size}"
        super().__init__(
            f"{path} is not the whole {alias.name}: {what}; run `pellucid pull {alias.name}` to fetch it again"
        )


def write_verified(alias: Alias) -> None:
    """Remember that the file as it is now has the right checksum; a read-only cache only costs time later."""
    path = model_path(alias)
    with contextlib.suppress(OSError):
        status = path.stat()
        stamp = {"sha256": alias.sha256, "size": status.st_size, "mtime_ns": status.st_mtime_ns}
        write_json(path.with_name("verified.json"), stamp)


def file_sha256(path: Path, on_bytes: Callable[[int], None] | None = None) -> str:
    """Checksum of a file, as hex; `on_bytes` gets the count read so far."""
    import hashlib

    digest, done = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            if on_bytes is not None:
                on_bytes(done)
    return digest.hexdigest()


def read_json(path: Path) -> Any:
    """The file's value, or None when it is missing or not JSON: everything kept so can be made again."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def write_json(path: Path, value: Any) -> None:
    """Write whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def make_folder(path: Path) -> Path:
    """Create a folder of the cache and make sure that files can be made in it."""
    with writing_to(cache_folder()):
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return path


@contextlib.contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals under `path` into one sentence each."""
    try:
        yield
    except OSError as error:
        raise storage_error(error.errno, path) from error


def storage_error(number: int | None, path: Path) -> ModelStoreError:
    """The sentence for an error number met while writing under `path`."""
    if number in _NO_ROOM:
        return ModelStoreError(
            f"the disk is full: there was no room to write to {path}; free some space, or set PELLUCID_CACHE to a "
            f"folder on another disk, and try again"
        )
    reason = os.strerror(number).lower() if number else "unknown error"
    return ModelStoreError(
        f"the model cache {path} cannot be written ({reason}): set PELLUCID_CACHE to a folder that can be"
    )


@contextlib.contextmanager
def locked(alias: Alias, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the alias's lock; a process that dies lets go of it. `on_wait` is called once if someone else has it."""
    try:
        import fcntl
    except ImportError:  # Windows: two fetches may both work, and the rename at the end is still whole or nothing
        yield
        return
    folder = make_folder(cache_folder() / "locks")
    path = folder / f"{alias.folder_name}.lock"
    with writing_to(cache_folder()):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        told = False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    told = True
                    on_wait()
                time.sleep(0.1)
        yield
    finally:
        os.close(descriptor)

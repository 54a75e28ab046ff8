"""Hugging Face repository ids: `owner/name`, `owner/name:Q4_K_M`, `owner/name/file.gguf`, each with `@revision`.

The files lie in Hugging Face's own cache, where other programs find them too. Which file a name stood for is
remembered, so that using it again needs neither the network nor the huggingface_hub library.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pellucid.errors import ModelStoreError, PellucidError, one_line
from pellucid.model_store.cache import cache_folder, file_sha256, make_folder, read_json, storage_error, write_json
from pellucid.model_store.local import choose_gguf, split_parts
from pellucid.model_store.progress import Progress

_ID = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::(?P<quant>[\w.-]+)|/(?P<file>[^:@]+\.gguf))?(?:@(?P<revision>[^:@]+))?"
)

_SHA256 = re.compile(r"[0-9a-f]{64}")

_NO_CONNECTION = {
    "ConnectionError",
    "ConnectError",
    "Timeout",
    "TimeoutError",
    "TransportError",
    "RequestException",
    "LocalEntryNotFoundError",
}
"""Names of the classes, here or in their ancestry, by which the HTTP libraries say that nobody answered."""


FOLDER_FILES = (
    *("*.json", "*.safetensors", "*.model", "*.jinja", "merges.txt", "vocab.txt"),
    *("1_Pooling/*.json", "additional_chat_templates/*.jinja"),
)
"""What is fetched of a repository without GGUF files."""


@dataclass(frozen=True, slots=True)
class HubReference:
    """A repository, and what of it is meant."""

    name: str
    """As the user wrote it."""
    repo: str
    quant: str | None
    file: str | None
    revision: str | None


def parse(name: str) -> HubReference | None:
    """Read a name as a repository id, or None if it is not one."""
    match = _ID.fullmatch(name)
    if match is None or ".." in match["repo"] or ".." in re.split("[/@]", name):
        return None
    return HubReference(name, match["repo"], match["quant"], match["file"], match["revision"])


def resolve(reference: HubReference, *, download: bool, progress: Progress) -> Path:
    """The local file: the one remembered for this name, else fetched. Errors as `model_store.resolve`."""
    remembered = _remembered(reference)
    if remembered is not None:
        return remembered
    if not download:
        raise ModelStoreError(f"{reference.name} is not in the model cache: run `pellucid pull {reference.name}`")
    return fetch(reference, progress)


def fetch(reference: HubReference, progress: Progress) -> Path:
    """Ask the hub which file is meant, fetch it unless its newest state is there, and remember it."""
    try:
        from huggingface_hub import HfApi, hf_hub_download
    except ImportError as error:
        raise ModelStoreError(
            f"{reference.name} is on Hugging Face, and the huggingface_hub library for it is missing: "
            f"run `pip install huggingface_hub`"
        ) from error
    try:
        file = reference.file
        if file is None:
            info = HfApi().model_info(reference.repo, revision=reference.revision)
            names = [sibling.rfilename for sibling in info.siblings or ()]
            where = f"Hugging Face repository {reference.repo}"
            if reference.quant is None and _is_folder_model(names):
                return _fetch_folder(reference, progress)
            file = choose_gguf(names, reference.quant, where, f"{reference.repo}/{{file}}")
        progress.note(f"{reference.repo}: {file}. The repository's own licence applies")
        paths = [Path(hf_hub_download(reference.repo, part, revision=reference.revision)) for part in split_parts(file)]
        _check_contents(reference, paths)
        path = paths[0]
    except PellucidError:
        raise
    except Exception as error:
        raise hub_failure(reference, error) from error
    _remember(reference, path)
    return path


def _is_folder_model(names: list[str]) -> bool:
    """Whether a repository is a folder of safetensors rather than of GGUF files."""
    has_gguf = any(name.lower().endswith(".gguf") for name in names)
    return "config.json" in names and not has_gguf and any(name.endswith(".safetensors") for name in names)


def _fetch_folder(reference: HubReference, progress: Progress) -> Path:
    """The snapshot's folder with weights, config and tokenizer; nothing that is not read, above all no pickles."""
    from huggingface_hub import snapshot_download

    progress.note(f"{reference.repo}: safetensors. The repository's own licence applies")
    path = Path(snapshot_download(reference.repo, revision=reference.revision, allow_patterns=list(FOLDER_FILES)))
    _check_contents(reference, sorted(path.rglob("*")))
    _remember(reference, path)
    return path


def _check_contents(reference: HubReference, paths: Sequence[Path]) -> None:
    """Large files lie in the cache under their sha256: what is damaged is removed, so that it is fetched again.

    Raises `ModelStoreError`.
    """
    for path in paths:
        blob = path.resolve()
        if path.is_file() and _SHA256.fullmatch(blob.name) and file_sha256(blob) != blob.name:
            blob.unlink()
            path.unlink(missing_ok=True)
            raise ModelStoreError(
                f"{reference.name} could not be fetched from Hugging Face: {path.name} is damaged, its checksum is not "
                "the one it was published with; try again"
            )


def hub_failure(reference: HubReference, error: Exception) -> ModelStoreError:
    """The one sentence for what the library raised; its class names are stable, its modules are not."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if type(error) in (OSError, PermissionError, FileExistsError, NotADirectoryError):
        return storage_error(error.errno, _hub_cache())  # type: ignore[attr-defined]
    if "OfflineModeIsEnabled" in kinds or _is_true(os.environ.get("HF_HUB_OFFLINE", "")):
        reason = (
            "HF_HUB_OFFLINE is set and the file is not in the cache; unset it, or name a local file or folder as "
            "the model"
        )
    elif "GatedRepoError" in kinds:
        reason = f"access to {reference.repo} must be granted on its page first; then log in with `hf auth login`"
    elif "RepositoryNotFoundError" in kinds:
        reason = (
            f"there is no file or folder {reference.name} here and no public repository {reference.repo}; check the "
            f"name, or log in with `hf auth login` if it is private"
        )
    elif "RevisionNotFoundError" in kinds:
        reason = f"{reference.repo} has no revision {reference.revision}"
    elif "EntryNotFoundError" in kinds and "LocalEntryNotFoundError" not in kinds:
        reason = f"{reference.repo} has no file {reference.file}"
    elif kinds & _NO_CONNECTION and not kinds & {"HfHubHTTPError", "HTTPStatusError"}:
        kind = type(error).__name__
        reason = f"no connection ({kind}); connect and try again, or name a local file or folder as the model"
    else:
        reason = one_line(str(error)) or type(error).__name__
    return ModelStoreError(f"{reference.name} could not be fetched from Hugging Face: {reason}")


def cached() -> list[tuple[str, Path, int, bool]]:
    """GGUF files in Hugging Face's cache: name to use, path, bytes, complete."""
    found: list[tuple[str, Path, int, bool]] = []
    with contextlib.suppress(OSError):
        for folder in sorted(_hub_cache().glob("models--*--*")):
            repo = folder.name.removeprefix("models--").replace("--", "/", 1)
            files: dict[str, Path] = {}
            for path in sorted(folder.glob("snapshots/*/**/*.gguf")):
                if path.is_file():
                    files["/".join(path.relative_to(folder).parts[2:])] = path
            found += [(f"{repo}/{file}", path, path.stat().st_size, True) for file, path in files.items()]
            if files or "gguf" in repo.lower():
                found += [(repo, blob, blob.stat().st_size, False) for blob in folder.glob("blobs/*.incomplete")]
    return found


def _is_true(value: str) -> bool:
    return value.upper() in ("1", "ON", "YES", "TRUE")


def _hub_cache() -> Path:
    """Hugging Face's cache folder, by the library's own rules, without importing it."""
    explicit = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(os.path.expandvars(os.path.expanduser(explicit or os.path.join(home, "hub"))))


def _record_path() -> Path:
    return cache_folder() / "hub.json"


def _remembered(reference: HubReference) -> Path | None:
    record: Any = read_json(_record_path())
    entry = record.get(reference.name) if isinstance(record, dict) else None
    if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
        return None
    path = Path(entry["path"])
    try:
        if path.is_dir():
            return path if (path / "config.json").is_file() else None
        return path if path.stat().st_size == entry.get("size") else None
    except (OSError, ValueError):  # ValueError: a path with a NUL
        return None


def _remember(reference: HubReference, path: Path) -> None:
    """Keep the name's file; if the cache cannot be written the name still works, only slower."""
    with contextlib.suppress(OSError, ModelStoreError):
        make_folder(_record_path().parent)
        record = read_json(_record_path())
        record = record if isinstance(record, dict) else {}
        record[reference.name] = {"path": str(path), "size": path.stat().st_size}
        write_json(_record_path(), record)

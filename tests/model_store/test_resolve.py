"""Names → files: aliases, paths, and a refusal for everything else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fake_index import Told, World

from pellucid.errors import ModelFileError, ModelStoreError
from pellucid.model_store import cache, store
from pellucid.model_store.aliases import ALIASES
from pellucid.model_store.progress import LineProgress, format_bytes


def place(world: World, data: bytes | None = None) -> None:
    world.path.parent.mkdir(parents=True)
    world.path.write_bytes(world.data if data is None else data)


def refuse(*args: object) -> str:
    raise AssertionError("the file was read")


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "own"))
    assert store.cache_folder() == tmp_path / "own"
    monkeypatch.setenv("PELLUCID_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert store.cache_folder() == tmp_path / "xdg" / "pellucid"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert store.cache_folder() == tmp_path / ".cache" / "pellucid"


def test_present_alias_is_resolved_without_reading_it_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    place(world)
    assert store.resolve("tiny:1", download=False) == world.path
    monkeypatch.setattr(cache, "file_sha256", refuse)
    for _ in range(20):
        assert store.resolve("tiny:1") == world.path


def test_changed_file_is_checked_again(world: World) -> None:
    place(world)
    store.resolve("tiny:1", download=False)
    os.utime(world.path, ns=(1, 1))
    assert store.resolve("tiny:1", download=False) == world.path  # the same bytes at another time

    damaged = bytearray(world.data)
    damaged[1234] ^= 1
    world.path.write_bytes(damaged)
    with pytest.raises(
        ModelStoreError, match=r"tiny.gguf is not the whole tiny:1: its sha256 differs; run `pellucid pull"
    ):
        store.resolve("tiny:1")


def test_cut_file_is_named_and_pull_mends_it(world: World) -> None:
    place(world, world.data[:-1])
    with pytest.raises(ModelStoreError, match="it has 2999999 bytes instead of 3000000"):
        store.resolve("tiny:1")
    world.keep_parts()
    told = Told()
    assert store.pull("tiny:1", told).read_bytes() == world.data
    assert "fetching it again" in told.notes[0]


def test_resolve_fetches_only_if_allowed(world: World) -> None:
    with pytest.raises(ModelStoreError, match="tiny:1 is not in the model cache: run `pellucid pull tiny:1`"):
        store.resolve("tiny:1", download=False)
    world.keep_parts()
    assert store.resolve("tiny:1", progress=Told()).read_bytes() == world.data


def test_unknown_name_lists_aliases_and_the_nearest() -> None:
    with pytest.raises(
        ModelStoreError, match=r"unknown model 'smolm2:135': .*smollm2:135m, gemma3:270m.*did you mean smollm2:135m\?"
    ):
        store.resolve("smolm2:135")
    with pytest.raises(ModelStoreError, match="unknown model ''"):
        store.resolve("")
    with pytest.raises(ModelStoreError, match="unknown model"):
        store.pull("qqq")


@pytest.mark.parametrize("name", ["x" * 10**6, "/" + "x" * 5000, "a/" + "b" * 5000, "\x1b[2J", "a\0b", "\udcff", ""])
def test_what_can_be_no_name_is_refused_in_one_short_line(name: str) -> None:
    for use in (store.resolve, store.pull):
        with pytest.raises(ModelStoreError, match="unknown model") as caught:
            use(name)
        assert len(str(caught.value)) < 300
        assert str(caught.value).isprintable()


def test_local_files_and_folders(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(ModelStoreError, match="holds no GGUF file"):
        store.resolve(str(folder))
    (folder / "model.safetensors").touch()
    with pytest.raises(ModelStoreError, match=r"holds safetensors, but no config.json"):
        store.resolve(str(folder))
    (folder / "config.json").touch()
    assert store.resolve(str(folder)) == folder
    one = folder / "a.Q4_K_M.gguf"
    one.touch()
    assert store.resolve(str(folder)) == one
    assert store.resolve(str(one)) == one
    (folder / "b.Q8_0.gguf").touch()
    with pytest.raises(
        ModelStoreError, match=r"several GGUF files: choose one, for example .*/a.Q4_K_M.gguf; there are .*b.Q8"
    ):
        store.resolve(str(folder))


@pytest.mark.parametrize(
    "name", ["/nowhere/model.gguf", "./model.gguf", "model.gguf", "folder/model.gguf", "~/no.gguf"]
)
def test_missing_file_is_named(name: str) -> None:
    with pytest.raises(ModelFileError, match=f"there is no model file .*{os.path.basename(name)}"):
        store.resolve(name)


def test_pull_of_a_local_file_is_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.touch()
    assert store.pull(str(path)) == path


def test_list_shows_what_is_there(world: World) -> None:
    assert [m for m in store.list_models() if m.name == "tiny:1"] == []
    place(world)
    hf = Path(os.environ["HF_HUB_CACHE"]) / "models--owner--some-GGUF"
    for file in ("snapshots/abc/x.Q8_0.gguf", "blobs/123.incomplete"):
        (hf / file).parent.mkdir(parents=True, exist_ok=True)
        (hf / file).write_bytes(b"12345")
    models = {m.name: m for m in store.list_models()}
    assert models["tiny:1"].complete
    assert models["tiny:1"].size == len(world.data)
    assert models["owner/some-GGUF/x.Q8_0.gguf"].complete
    assert models["owner/some-GGUF/x.Q8_0.gguf"].size == 5
    assert not models["owner/some-GGUF"].complete


def test_alias_table_is_sound() -> None:
    for name, alias in ALIASES.items():
        assert name == alias.name
        for digest in (alias.sha256, *(part.wheel_sha256 for part in alias.parts)):
            assert len(bytes.fromhex(digest)) == 32
        assert alias.licence
        assert alias.size > 0


def test_plain_lines_and_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    progress = LineProgress()
    progress.start("Fetching x", 98_362_432)
    progress.update(1)
    progress.finish()
    assert capsys.readouterr().err == "Fetching x (98.4 MB) …\n"
    assert [format_bytes(n) for n in (0, 999, 1000, 253_113_024, 5e12)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "253.1 MB",
        "5000.0 GB",
    ]

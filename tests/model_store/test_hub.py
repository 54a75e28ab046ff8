"""Hugging Face repository ids, with the library's place taken by a small one that needs no network."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest
from fake_index import Told, World

from pellucid.errors import ModelStoreError
from pellucid.model_store import hub, store
from pellucid.model_store.local import choose_gguf, split_parts

FILES = ["README.md", "tiny.Q4_K_M.gguf", "tiny.Q4_K_S.gguf", "tiny-Q8_0.gguf", "mmproj-tiny-f16.gguf"]


class FakeHub:
    """Repositories in memory; counts how often it was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.files, self.calls = folder, list(FILES), 0
        self.error: Exception | None = None

    def model_info(self, repo: str, revision: str | None = None) -> Any:
        self.calls += 1
        if self.error:
            raise self.error
        return types.SimpleNamespace(siblings=[types.SimpleNamespace(rfilename=name) for name in self.files])

    def hf_hub_download(self, repo: str, file: str, revision: str | None = None) -> str:
        self.calls += 1
        if self.error:
            raise self.error
        path = self.folder / (revision or "main") / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"GGUF")
        return str(path)


@pytest.fixture
def fake_hub(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub(tmp_path / "snapshots")
    module = types.ModuleType("huggingface_hub")
    module.HfApi = lambda: fake  # type: ignore[attr-defined]
    module.hf_hub_download = fake.hf_hub_download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return fake


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("owner/name", ("owner/name", None, None, None)),
        ("owner/name:Q4_K_M", ("owner/name", "Q4_K_M", None, None)),
        ("owner/name/file.gguf", ("owner/name", None, "file.gguf", None)),
        ("owner/name/sub/file.gguf@v1", ("owner/name", None, "sub/file.gguf", "v1")),
        (
            "Qwen/Qwen2.5-0.5B-Instruct-GGUF:q8_0@refs/pr/1",
            ("Qwen/Qwen2.5-0.5B-Instruct-GGUF", "q8_0", None, "refs/pr/1"),
        ),
    ],
)
def test_parse(name: str, expected: tuple[str | None, ...]) -> None:
    reference = hub.parse(name)
    assert reference is not None
    assert (reference.repo, reference.quant, reference.file, reference.revision) == expected


@pytest.mark.parametrize(
    "name",
    [
        *("name", "a/b/c", "a/b:", "a/b@", "../a", "a/../b.gguf", "a/b:x:y", "/a/b", "a b/c", "a/b@x:y"),
        *("a/b/../../c.gguf", "a/b/x/../c.gguf", "a/b@..", "a/b@../../c", "a/b/c.gguf@x/.."),
    ],
)
def test_what_is_no_repository_id(name: str) -> None:
    assert hub.parse(name) is None


def test_choice_among_files() -> None:
    def choose(quant: str | None, names: list[str] = FILES) -> str:
        return choose_gguf(names, quant, "here", "here/{file}")

    assert choose("Q4_K_M") == "tiny.Q4_K_M.gguf"
    assert choose("q8_0") == "tiny-Q8_0.gguf"
    assert choose(None, ["a.gguf", "mmproj-a.gguf"]) == "a.gguf"
    with pytest.raises(ModelStoreError, match=r"several GGUF files: choose one, for example here/tiny.Q4_K_M.gguf"):
        choose(None)
    with pytest.raises(ModelStoreError, match=r"no GGUF files of type Q4_K:.*tiny.Q4_K_S.gguf"):
        choose("Q4_K")
    parts = ["x-Q8_0-00002-of-00002.gguf", "x-Q8_0-00001-of-00002.gguf"]
    assert choose("Q8_0", parts) == parts[1], "the first part stands for all"
    assert split_parts(parts[0]) == sorted(parts)
    with pytest.raises(ModelStoreError, match=r"no config\.json"):
        choose(None, ["model.safetensors"])
    with pytest.raises(ModelStoreError, match="and 18 more"):
        choose(None, [f"{n}.gguf" for n in range(30)])


def test_fetch_then_remember(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    path = store.resolve("owner/name:Q4_K_M", progress=Told())
    assert path.name == "tiny.Q4_K_M.gguf"
    asked = fake_hub.calls
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # importing it would fail now
    assert store.resolve("owner/name:Q4_K_M", download=False) == path
    assert fake_hub.calls == asked
    with pytest.raises(ModelStoreError, match="owner/name:Q8_0 is not in the model cache"):
        store.resolve("owner/name:Q8_0", download=False)
    with pytest.raises(ModelStoreError, match="huggingface_hub library for it is missing"):
        store.resolve("owner/name:Q8_0")
    path.write_bytes(b"GGUF and more")  # not what was fetched any more
    with pytest.raises(ModelStoreError, match="not in the model cache"):
        store.resolve("owner/name:Q4_K_M", download=False)


def test_pull_asks_again_and_revisions_are_kept_apart(fake_hub: FakeHub) -> None:
    first = store.pull("owner/name/tiny-Q8_0.gguf", Told())
    assert fake_hub.calls == 1, "an exact file needs no listing"
    other = store.pull("owner/name/tiny-Q8_0.gguf@v2", Told())
    assert first != other
    store.pull("owner/name/tiny-Q8_0.gguf", Told())
    assert fake_hub.calls == 3


@pytest.mark.parametrize(
    "record", ['{"owner/name": {"path": "\\u0000", "size": 4}}', "[" * 100_000, "[1]", "{", "\xff"]
)
def test_a_damaged_record_only_costs_a_question(world: World, fake_hub: FakeHub, record: str) -> None:
    world.cache.mkdir()
    (world.cache / "hub.json").write_bytes(record.encode("latin-1"))
    fake_hub.files = ["one.gguf"]
    assert store.resolve("owner/name", progress=Told()).name == "one.gguf"
    assert fake_hub.calls == 2


def test_no_choice_is_made_for_the_user(fake_hub: FakeHub) -> None:
    with pytest.raises(
        ModelStoreError, match=r"repository owner/name holds several GGUF files.*owner/name/tiny.Q4_K_M.gguf"
    ):
        store.resolve("owner/name", progress=Told())


def _error(name: str, *bases: type[Exception], text: str = "it failed") -> Exception:
    error: Exception = type(name, bases or (Exception,), {})(text)
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (_error("ConnectError"), r"no connection \(ConnectError\); connect and try again"),
        (_error("ConnectTimeout", type("TransportError", (Exception,), {})), r"no connection \(ConnectTimeout\)"),
        (ValueError("Invalid pointer path\nof the file"), "Hugging Face: Invalid pointer path of the file$"),
        (KeyError(), "Hugging Face: KeyError$"),
        (_error("RepositoryNotFoundError"), "no public repository owner/name"),
        (_error("GatedRepoError"), "must be granted"),
        (_error("RevisionNotFoundError"), "has no revision v9"),
        (_error("EntryNotFoundError"), "has no file tiny.gguf"),
        (_error("HfHubHTTPError", text="503 Server Error\nmore"), "503 Server Error"),
        (_error("OfflineModeIsEnabled", ConnectionError), "HF_HUB_OFFLINE is set"),
        (OSError(28, "No space left on device"), "the disk is full"),
        (PermissionError(13, "Permission denied"), "cannot be written"),
    ],
)
def test_every_failure_has_its_sentence(fake_hub: FakeHub, error: Exception, expected: str) -> None:
    fake_hub.error = error
    with pytest.raises(ModelStoreError, match=expected) as caught:
        store.resolve("owner/name/tiny.gguf@v9", progress=Told())
    assert "\n" not in str(caught.value)


def test_the_real_library_offline(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("owner/name:Q8_0", "owner/name/tiny.gguf"):
        with pytest.raises(ModelStoreError, match="HF_HUB_OFFLINE is set"):
            store.resolve(name, progress=Told())

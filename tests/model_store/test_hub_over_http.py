"""Fetching from Hugging Face with its own library, from a small hub on the loopback, as `pellucid pull` does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import Hub
from parity.families import BY_NAME, golden_description, weights_of, write_folder, write_safetensors

from pellucid.kernels.dispatch import make_backend
from pellucid.models.model_files import open_model

pytest.importorskip("huggingface_hub")
REPO = "owner/small"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, bytes]:
    """A model in two shards with what else such repositories hold."""
    folder = write_folder(BY_NAME["llama"], tmp_path / "made")
    weights = weights_of(BY_NAME["llama"], golden_description("llama")["shapes"])
    names = sorted(weights)
    parts = {SHARDS[0]: names[: len(names) // 2], SHARDS[1]: names[len(names) // 2 :]}
    for shard, own in parts.items():
        write_safetensors(folder / shard, {name: weights[name] for name in own})
    index = {"weight_map": {name: shard for shard, own in parts.items() for name in own}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").unlink()
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    return found | {"README.md": b"# A model", "pytorch_model.bin": b"\x80\x04" * 2000, "onnx/model.onnx": b"x"}


def pull(hub: Hub, cache: Path, name: str = REPO, verb: str = "pull") -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(cache / "hf"),
        "PELLUCID_CACHE": str(cache / "pellucid"),
        "HF_HUB_DISABLE_XET": "1",
        "NO_PROXY": "*",
    }
    environment.pop("HF_HUB_OFFLINE", None)
    environment.pop("HF_HUB_CACHE", None)
    command = [sys.executable, "-m", "pellucid", verb, name]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)


def refused(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 2, result
    [sentence] = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in result.stderr
    return sentence


def test_a_sharded_repository(tmp_path: Path, files: dict[str, bytes]) -> None:
    with Hub({REPO: files}) as hub:
        path = Path(pull(hub, tmp_path).stdout.strip())
        names = {name for name, _ in hub.fetched}
        with open_model(path) as model:
            model.load(make_backend("reference"))
    assert names == {"config.json", "model.safetensors.index.json", *SHARDS}, "nothing that is not read, no pickles"
    assert {entry.name for entry in path.iterdir()} == names


def test_a_shard_that_breaks_off_is_fetched_after_all(tmp_path: Path, files: dict[str, bytes]) -> None:
    with Hub({REPO: files}, cut_once={SHARDS[1]}) as hub:
        first = pull(hub, tmp_path)
        result = first if first.returncode == 0 else pull(hub, tmp_path)
    assert (Path(result.stdout.strip()) / SHARDS[1]).read_bytes() == files[SHARDS[1]]


def test_a_large_file_goes_on_where_it_broke_off(tmp_path: Path) -> None:
    """The library keeps pieces of 10 MB."""
    data = b"GGUF" + bytes(25_000_000)
    with Hub({REPO: {"a.gguf": data}}, cut_once={"a.gguf"}) as hub:
        first = pull(hub, tmp_path)
        result = first if first.returncode == 0 else pull(hub, tmp_path)
        ranges = [wanted for _, wanted in hub.fetched]
    assert ranges[0] is None
    assert ranges[-1] is not None, "the second asks for the rest only"
    assert int(ranges[-1].removeprefix("bytes=").partition("-")[0]) > 0
    assert Path(result.stdout.strip()).read_bytes() == data


def test_damaged_contents_are_noticed_and_fetched_again(tmp_path: Path, files: dict[str, bytes]) -> None:
    data = bytearray(files[SHARDS[0]])
    data[-5] ^= 1
    with Hub({REPO: files}, damaged={SHARDS[0]: bytes(data)}) as hub:
        assert f"{SHARDS[0]} is damaged, its checksum is not the one it was published with" in refused(
            pull(hub, tmp_path)
        )
        hub.damaged.clear()
        path = Path(pull(hub, tmp_path).stdout.strip())
    assert (path / SHARDS[0]).read_bytes() == files[SHARDS[0]]


def test_a_missing_shard_is_named(tmp_path: Path, files: dict[str, bytes]) -> None:
    del files[SHARDS[1]]
    with Hub({REPO: files}) as hub:
        assert pull(hub, tmp_path).returncode == 0
        assert SHARDS[1] in refused(pull(hub, tmp_path, verb="inspect"))


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        (
            ("config.json", "pytorch_model.bin"),
            "has its weights in pytorch_model.bin, a pickle file, which may run any",
        ),
        (SHARDS, "holds safetensors, but no config.json"),
        (("README.md",), "holds no GGUF file, and no config.json with safetensors"),
    ],
)
def test_what_cannot_be_a_model(tmp_path: Path, files: dict[str, bytes], kept: tuple[str, ...], said: str) -> None:
    with Hub({REPO: {name: files[name] for name in kept}}) as hub:
        assert said in refused(pull(hub, tmp_path))
        assert not hub.fetched


def test_what_is_not_there(tmp_path: Path, files: dict[str, bytes]) -> None:
    with Hub({REPO: files}) as hub:
        assert "no public repository owner/other" in refused(pull(hub, tmp_path, "owner/other"))
        assert f"{REPO} has no file some.gguf" in refused(pull(hub, tmp_path, f"{REPO}/some.gguf"))
    assert "no connection" in refused(pull(hub, tmp_path))


def test_a_gguf_file_of_a_repository(tmp_path: Path) -> None:
    data = b"GGUF" + bytes(5000)
    with Hub(
        {REPO: {"a-Q8_0.gguf": data, "a-Q4_0.gguf": data[:2000]}},
    ) as hub:
        assert "holds several GGUF files" in refused(pull(hub, tmp_path))
        result = pull(hub, tmp_path, f"{REPO}:Q8_0")
    assert Path(result.stdout.strip()).read_bytes() == data

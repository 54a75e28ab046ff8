"""`pellucid quantize` on what cannot be: one sentence before any work, and never a file lost or left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import refused, run_here
from models import small_models
from models.test_loading import write_parts
from tokenizer.small_tokenizers import byte_level_metadata

from pellucid.formats.block_types import F32
from pellucid.models import quantized_file

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tensors = small_models.llama_tensors(np.random.default_rng(0))
    tokens = byte_level_metadata()
    rows = np.zeros((len(tokens["tokenizer.ggml.tokens"]), 64), dtype=np.float32)
    tensors["token_embd.weight"] = (rows.shape, F32, rows.reshape(-1).view(np.uint8))
    return small_models.write_llama(tmp_path / "m.gguf", small_models.llama_metadata() | tokens, tensors)


def states(folder: Path) -> dict[str, bytes | None]:
    return {path.name: path.read_bytes() if path.is_file() else None for path in folder.iterdir()}


def hard_link(out: Path, model: Path) -> None:
    os.link(model, out)


def soft_link(out: Path, model: Path) -> None:
    out.symlink_to(model.name)


OUTS: dict[str, tuple[Any, str]] = {
    "a hard link to the model": (hard_link, "but must be another file that ends in .gguf"),
    "a link to the model": (soft_link, "but must be another file that ends in .gguf"),
    "a folder": (lambda out, model: out.mkdir(), "is there already and is no file"),
    "a pipe": (lambda out, model: os.mkfifo(out), "is there already and is no file"),
    "a device": (lambda out, model: out.symlink_to("/dev/null"), "is there already and is no file"),
    "a link to itself": (lambda out, model: out.symlink_to(out.name), "cannot be written: Too many levels of"),
    "a link into no folder": (lambda out, model: out.symlink_to("no/q.gguf"), "cannot be written: No such file"),
}


@pytest.mark.parametrize("out", OUTS)
def test_where_nothing_can_be_written(capfd: Capture, model: Path, out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, said = OUTS[out]
    make(model.with_name("q.gguf"), model)
    before = states(model.parent)
    if "no folder" not in out:
        monkeypatch.setattr(quantized_file, "open_model", lambda path: pytest.fail("nothing may be read"))
    assert said in refused(run_here(capfd, "quantize", str(model), str(model.with_name("q.gguf"))))
    assert states(model.parent) == before


def test_onto_itself_into_no_folder_or_with_another_ending(capfd: Capture, model: Path) -> None:
    before = states(model.parent)
    for out, said in (
        (model, "must be another file"),
        (model.with_name("no") / "q.gguf", "cannot be written: No such file or directory"),
        (model.with_name("q.bin"), "must be another file that ends in .gguf"),
    ):
        assert said in refused(run_here(capfd, "quantize", str(model), str(out)))
    assert states(model.parent) == before


def test_onto_a_part_of_itself(capfd: Capture, tmp_path: Path) -> None:
    paths = write_parts(tmp_path, 3)
    before = states(tmp_path)
    assert "must be another file" in refused(run_here(capfd, "quantize", str(paths[0]), str(paths[1])))
    assert states(tmp_path) == before


def test_a_link_is_followed(capfd: Capture, model: Path) -> None:
    out = model.with_name("q.gguf")
    out.symlink_to("other.gguf")
    assert run_here(capfd, "quantize", str(model), str(out)).code == 0
    assert out.is_symlink()
    assert model.with_name("other.gguf").stat().st_size > 1000


@pytest.mark.parametrize("kind", ["Q8_0", "q3_k", "", "q8_0 ", "x" * 1000])
def test_an_unknown_type_names_the_flag(capfd: Capture, model: Path, kind: str) -> None:
    out = str(model.with_name("q.gguf"))
    said = refused(run_here(capfd, "quantize", str(model), out, "--type", kind))
    assert said.startswith("type is '")
    assert said.endswith("but must be one of q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k, q6_k")


def test_too_little_room_is_told_before_anything_is_written(
    capfd: Capture, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = quantized_file.shutil.disk_usage(model.parent)
    monkeypatch.setattr(quantized_file.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    before = states(model.parent)
    said = refused(run_here(capfd, "quantize", str(model), str(model.with_name("q.gguf"))))
    assert "q.gguf cannot be written: it takes" in said
    assert said.endswith("bytes, but 1000 are free there")
    assert states(model.parent) == before


def test_a_disk_that_fills_up_leaves_nothing_behind(model: Path) -> None:
    """By a limit on the size of files, which ends a write as a full disk does."""
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000));"
        "from pellucid.cli.main import main; sys.exit(main(['quantize', *sys.argv[1:]]))"
    )
    before = states(model.parent)
    done = subprocess.run(
        [sys.executable, "-c", program, str(model), str(model.with_name("q.gguf"))],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert done.returncode == 2, done
    assert done.stderr.strip() == f"error: {model.with_name('q.gguf')} cannot be written: File too large"
    assert states(model.parent) == before


@pytest.mark.parametrize("size", [0, 3, 100, 5000, -1])
def test_a_cut_file(capfd: Capture, model: Path, size: int) -> None:
    model.write_bytes(model.read_bytes()[:size])
    before = states(model.parent)
    assert "m.gguf is" in refused(run_here(capfd, "quantize", str(model), str(model.with_name("q.gguf"))))
    assert states(model.parent) == before

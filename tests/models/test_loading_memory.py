"""The most memory that loading takes: the packed weights, one layer of the file and 100 MB, for every form of file."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from models.large_models import (
    GPT_OSS,
    LLAMA,
    Shapes,
    gpt_oss_shapes,
    largest_layer,
    llama_shapes,
    num_bytes,
    write_folder,
    write_llama_gguf,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc"),
]
REST = 100_000_000
LOAD = """
import json, sys
from pellucid.kernels.dispatch import make_backend
from pellucid.models.model_files import open_model
with open_model(sys.argv[1]) as files:
    model = files.load(make_backend("native", 2), quantization=sys.argv[2] or None)
status = open("/proc/self/status").read()
peak, now = (int(status.split(name + ":")[1].split()[0]) * 1024 for name in ("VmHWM", "VmRSS"))
print(json.dumps({"peak": peak, "now": now, "packed": model.weights.packed_bytes}))
"""
FORMS = ("folder", "shards", "gguf", "split", "experts")


@pytest.fixture(scope="module", params=FORMS)
def large_model(request: pytest.FixtureRequest) -> Iterator[tuple[Path, Shapes]]:
    """A model of 360 to 480 MB; a folder of its own, so that it is gone after the tests."""
    shapes = gpt_oss_shapes() if request.param == "experts" else llama_shapes()
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "model"
        if request.param == "experts":
            write_folder(path, GPT_OSS, shapes)
        elif request.param in ("folder", "shards"):
            write_folder(path, LLAMA, shapes, shards=1 if request.param == "folder" else 3)
        else:
            path = write_llama_gguf(path.with_suffix(".gguf"), parts=1 if request.param == "gguf" else 2)[0]
        yield path, shapes


@pytest.mark.parametrize("quantization", ["", "q8_0"])
def test_the_peak_is_the_packed_weights_one_layer_and_100_mb(
    large_model: tuple[Path, Shapes], quantization: str
) -> None:
    path, shapes = large_model
    sizes = num_bytes(shapes)
    assert sum(sizes.values()) > 350_000_000
    ran = subprocess.run(
        [sys.executable, "-c", LOAD, str(path), quantization], capture_output=True, text=True, timeout=280
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["now"] > found["packed"], "all of it is really in memory"
    assert found["peak"] <= found["packed"] + largest_layer(shapes) + REST

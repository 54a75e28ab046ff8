"""`rope_scaling` and `rope_theta`: a file's scaling, put in from outside, gives the logits that transformers gave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models.small_models import llama_metadata, write_llama
from parity.families import BY_NAME, GOLDENS, golden_description, write_folder
from parity.ours import load_ours, logits
from tokenizer.small_tokenizers import byte_level_metadata

from pellucid.config import EngineArgs, RopeScaling
from pellucid.engine.loading import needed_bytes
from pellucid.errors import InvalidParameterError
from pellucid.kernels.dispatch import make_backend
from pellucid.kv_cache.sizing import beyond_training
from pellucid.models.model_files import open_model
from pellucid.models.rope_override import with_rope
from pellucid.models.rotary import inverse_frequencies

SCALED = ("llama-linear", "llama-dynamic", "llama-llama3", "llama-yarn", "phi3-long", "phi3-short", "deepseek-v3")


def plain_folder(name: str, place: Path) -> tuple[Path, dict[str, Any]]:
    """The family's folder without its scaling and with another base, and the scaling."""
    description = json.loads(json.dumps(golden_description(name)))
    config = description["config"]
    parameters = dict(config.pop("rope_parameters"))
    original = config.pop("original_max_position_embeddings", None)
    if parameters["rope_type"] == "longrope":
        parameters["original_max_position_embeddings"] = original
    for key in ("partial_rotary_factor", "type"):
        parameters.pop(key, None)
    config["rope_theta"] = 500.0
    folder = write_folder(BY_NAME[name], place, description)
    return folder, parameters


@pytest.mark.parametrize("name", SCALED)
def test_the_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    small = BY_NAME[name]
    folder, parameters = plain_folder(name, tmp_path / "plain")
    theta = parameters.pop("rope_theta")
    given = EngineArgs(rope_scaling=parameters, rope_theta=theta)
    assert given == EngineArgs(rope_scaling=json.dumps(parameters), rope_theta=theta)
    ids = small.token_ids()
    with np.load(GOLDENS / "logits.npz") as golden:
        expected, positions = golden[name], golden["positions"]
    with open_model(folder) as files:
        changed = files.with_rope(given.rope_scaling, given.rope_theta)
        model = changed.load(make_backend("reference"), max_model_len=len(ids))
        with open_model(write_folder(small, tmp_path / "whole")) as whole:
            assert changed.config.rope == whole.config.rope
            assert changed.config.attention_scale == whole.config.attention_scale
            if name != "phi3-short":  # its long factors would begin where the text ends
                assert changed.config.context_length >= whole.config.context_length
    ours = logits(model, ids)[positions]
    assert np.abs(ours - expected).max() / np.abs(expected).max() <= 1e-4
    without = logits(load_ours(folder, "reference", max_model_len=len(ids)), ids)[positions]
    assert np.abs(without - expected).max() / np.abs(expected).max() > 1e-2, "the scaling has an effect"


def test_what_it_makes_of_a_config(tmp_path: Path) -> None:
    with open_model(write_llama(tmp_path / "m.gguf")) as files:
        config = files.config
    assert (config.context_length, config.rope.theta) == (128, 5000.0)

    def changed(theta: float | None = None, **scaling: Any) -> Any:
        return with_rope(config, json.dumps(scaling) if scaling else None, theta)

    assert with_rope(config, None, None) is config
    assert changed(7000.0).rope.theta == 7000.0
    linear = changed(rope_type="linear", factor=4.0)
    assert (linear.context_length, linear.rope.scaling) == (512, RopeScaling("linear", 4.0))
    assert beyond_training(linear, 512) is None
    assert beyond_training(config, 512) is not None
    assert changed(rope_type="yarn", factor=4.0, original_max_position_embeddings=64).context_length == 256
    assert with_rope(linear, '{"rope_type": "default"}', None) == config, "the file's own scaling is undone"
    assert with_rope(linear, '{"rope_type": "linear", "factor": 2}', None).context_length == 256
    ntk = changed(rope_type="ntk", factor=4.0)
    # bloc97 2023: the slowest pair turns a quarter as fast, the fastest as before
    before, after = inverse_frequencies(config.rope), inverse_frequencies(ntk.rope)
    np.testing.assert_allclose([after[0], after[-1]], [before[0], before[-1] / 4], rtol=1e-5)


def test_lengths_decide_once(tmp_path: Path) -> None:
    with open_model(write_llama(tmp_path / "m.gguf")) as files:
        dynamic = files.with_rope({"rope_type": "dynamic", "factor": 2.0}, None).config
    short, long = (inverse_frequencies(dynamic.rope, length) for length in (128, 256))
    assert short[-1] == inverse_frequencies(files.config.rope)[-1]
    assert long[-1] < short[-1]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("{", r"rope_scaling is '{', but must be a JSON object with rope_type and the values of that type"),
        ("[" * 5000, "but must be a JSON object"),
        ("[1]", r"rope_scaling is '\[1\]', but must be a JSON object"),
        ({}, "has the rope_type None, but it must be one of default, linear, ntk"),
        ({"rope_type": "su"}, "has the rope_type 'su'"),
        ({"rope_type": ["yarn"]}, "has the rope_type"),
        (
            {"rope_type": "linear", "rope_theta": 5.0},
            "has 'rope_theta', but the keys of linear beside rope_type are: f",
        ),
        ({"rope_type": "default", "factor": 2.0}, "the keys of default beside rope_type are: none"),
        ({"rope_type": "yarn", "factor": 0.5}, "has the factor 0.5, but it must be a number from 1 to 1e6"),
        ({"rope_type": "yarn", "factor": float("nan")}, "has the factor nan"),
        ({"rope_type": "yarn", "factor": True}, "has the factor True"),
        ({"rope_type": "yarn", "factor": 2.0, "beta_fast": {1}}, "must be a JSON object with"),
        (5, "must be a JSON object"),
    ],
)
def test_a_faulty_scaling_has_its_sentence(value: Any, said: str) -> None:
    with pytest.raises(InvalidParameterError, match=said) as caught:
        EngineArgs(rope_scaling=value)
    assert caught.value.field == "rope_scaling"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [0, 1, -5.0, float("nan"), float("inf"), True, "10000"])
def test_a_faulty_theta(value: Any) -> None:
    with pytest.raises(InvalidParameterError, match=r"rope_theta is .* must be a number above 1"):
        EngineArgs(rope_theta=value)


def test_what_does_not_go_with_the_model(tmp_path: Path) -> None:
    def refused(name: str, said: str, scaling: Any = None, theta: float | None = None) -> None:
        folder = write_folder(BY_NAME[name], tmp_path / name)
        with open_model(folder) as files, pytest.raises(InvalidParameterError, match=said):
            files.with_rope(scaling, theta)

    refused("gpt2", "rope_theta is set, but the model has no rotary positions", theta=5000.0)
    refused("bloom", r"has no rotary positions \(its positions are: alibi\)", {"rope_type": "linear", "factor": 2})
    scaling = {"rope_type": "yarn", "factor": 2.0, "mscale_all_dim": "all"}
    refused("deepseek-v3", "mscale_all_dim is 'all', but must be a number above 0", scaling)
    refused("llama", "rope_scaling: key factor is missing", {"rope_type": "yarn"})
    refused("llama", "key long_factor is missing, but must be a list of 8 numbers", {"rope_type": "longrope"})
    refused("llama", "low_freq_factor is missing", {"rope_type": "llama3", "factor": 8.0})
    zeros = {"long_factor": [0.0] * 8, "short_factor": [0.0] * 8}
    refused("llama", "gives rotary frequencies that are not finite", {"rope_type": "longrope", **zeros})


def test_memory_is_counted_for_the_longer_context(tmp_path: Path) -> None:
    path = str(write_llama(tmp_path / "m.gguf", llama_metadata() | byte_level_metadata()))
    plain = needed_bytes(EngineArgs(model=path))
    assert needed_bytes(EngineArgs(model=path, rope_scaling={"rope_type": "linear", "factor": 8})) > plain

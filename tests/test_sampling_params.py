"""SamplingParams: every field's range, the sentence that refuses a value, and what is stored."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from pellucid.errors import InvalidParameterError
from pellucid.sampling_params import (
    MAX_LOGPROBS,
    MAX_STOP_STRINGS,
    MAX_TOKEN_IDS,
    MIN_TEMPERATURE,
    PRESETS,
    SamplingParams,
)

NAN, INF = float("nan"), float("inf")
TOKEN_ID_FIELDS = ("stop_token_ids", "banned_token_ids", "allowed_token_ids")

REFUSED: list[tuple[str, Any]] = [
    *(("n", v) for v in (0, -1, 129, 1.0, True, "2", None)),
    *(("temperature", v) for v in (-1, -1e-9, NAN, INF, "1", None, True, 10**400)),
    *(("top_k", v) for v in (-2, 0.5, 1.0, False, "40", None)),
    *(("top_p", v) for v in (0, 0.0, -0.1, 1.5, NAN, INF, None)),
    *(("min_p", v) for v in (-0.01, 1.01, NAN, None)),
    *(("repetition_penalty", v) for v in (0, -1.0, NAN, INF)),
    *(("frequency_penalty", v) for v in (-2.01, 2.01, NAN)),
    *(("presence_penalty", v) for v in (-2.01, 3, NAN)),
    *(("seed", v) for v in (-1, 2**63, 1.5, "7", True)),
    *(("max_tokens", v) for v in (0, -5, 2.5, True)),
    *(("min_tokens", v) for v in (-1, 0.5, None)),
    *(("stop", v) for v in ("", [""], ["a", ""], [1], 5, b"x", {"a"}, ["x"] * (MAX_STOP_STRINGS + 1))),
    *(("stop", v) for v in ("a\ud800", ["a", "\udfff"])),
    *((name, v) for name in ("max_tokens", "min_tokens", "top_k") for v in (2**63, 10**30)),
    *((name, v) for name in TOKEN_ID_FIELDS for v in ([2**31], [10**5000], range(10**12), [0] * (MAX_TOKEN_IDS + 1))),
    *(("logit_bias", v) for v in ({2**31: 1}, {10**5000: 1}, {"9999999999": 1})),
    *(("stop_token_ids", v) for v in (5, "5", [-1], [1.0], [True], ["1"])),
    *(("banned_token_ids", v) for v in (3, [-1], [None])),
    *(("allowed_token_ids", v) for v in ([], (), [-4], "ab")),
    *(("logit_bias", v) for v in ([1], {1: NAN}, {1: 101}, {1: "2"}, {-1: 1}, {"a": 1}, {1.5: 1})),
    *(("logit_bias", v) for v in ({"1": 1, 1: 2}, {"": 1}, {"-1": 1}, {"9" * 5000: 1})),
    *(("logit_bias", v) for v in ({1: None}, {True: 1}, {"1.5": 1})),
    *(("logprobs", v) for v in (-1, MAX_LOGPROBS + 1, 2.0, True)),
    *(("prompt_logprobs", v) for v in (-1, MAX_LOGPROBS + 1)),
    *(("include_stop_str_in_output", v) for v in (1, "yes", None)),
    *(("ignore_eos", v) for v in (0, "false")),
    *(("skip_special_tokens", v) for v in (1, None)),
]


def test_numbers_of_thousands_of_digits_are_refused_in_a_sentence_too() -> None:
    for name in ("temperature", "seed", "n", "max_tokens", "min_tokens", "top_k", "logprobs"):
        with pytest.raises(InvalidParameterError, match=f"{name} is a number too long to show"):
            SamplingParams(**{name: 10**5000})


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_value_out_of_range_is_refused_in_one_sentence_naming_the_field(name: str, value: Any) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        SamplingParams(**{name: value})
    message = str(caught.value)
    assert message.startswith(name)
    assert caught.value.field.startswith(name)
    assert "\n" not in message
    assert len(message) < 200
    assert isinstance(caught.value, ValueError)


ACCEPTED: list[tuple[str, Any, Any]] = [
    ("n", 128, 128),
    ("temperature", 0, 0.0),
    ("temperature", 100, 100.0),
    ("top_k", -1, -1),
    ("top_k", 10**9, 10**9),
    ("top_p", 1, 1.0),
    ("top_p", 1e-12, 1e-12),
    ("min_p", 1, 1.0),
    ("frequency_penalty", -2, -2.0),
    ("seed", 0, 0),
    ("seed", 2**63 - 1, 2**63 - 1),
    ("stop", "END", ("END",)),
    ("stop", ["a", "b"], ("a", "b")),
    ("stop", None, ()),
    ("stop_token_ids", [3, 1], (3, 1)),
    ("stop_token_ids", {3, 1}, (1, 3)),
    ("banned_token_ids", range(3), (0, 1, 2)),
    ("allowed_token_ids", [7], (7,)),
    ("logit_bias", {"50": -100, 2: 1}, {50: -100.0, 2: 1.0}),
    ("logit_bias", None, {}),
    ("logprobs", 0, 0),
    # NumPy's numbers are numbers too, and are stored as Python's.
    ("temperature", np.float32(0.5), 0.5),
    ("top_k", np.int64(4), 4),
    ("stop_token_ids", [np.int32(2)], (2,)),
]


@pytest.mark.parametrize(("name", "value", "stored"), ACCEPTED)
def test_value_in_range_is_stored_in_one_form(name: str, value: Any, stored: Any) -> None:
    got = getattr(SamplingParams(**{name: value}), name)
    assert got == stored
    assert type(got) is type(stored)
    if isinstance(got, tuple):
        assert [type(v) for v in got] == [type(v) for v in stored]


def test_fields_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidParameterError, match="min_tokens is 5, but must be at most max_tokens, which is 4"):
        SamplingParams(min_tokens=5, max_tokens=4)
    SamplingParams(min_tokens=4, max_tokens=4)
    SamplingParams(min_tokens=5)
    with pytest.raises(InvalidParameterError, match="allowed_token_ids has only ids that are in banned_token_ids"):
        SamplingParams(allowed_token_ids=(1, 2), banned_token_ids=(2, 1, 3))


def test_messages_say_what_is_allowed() -> None:
    for fields, sentence in (
        ({"top_p": 1.5}, "top_p is 1.5, but must be a number above 0 and at most 1"),
        ({"temperature": -1}, "temperature is -1, but must be a finite number at least 0"),
        ({"top_k": 0.5}, "top_k is 0.5, but must be a whole number of at least 1, or 0 or -1 to keep all tokens"),
        ({"seed": -1}, "seed is -1, but must be a whole number from 0 to 9223372036854775807"),
        ({"max_tokens": 0}, "max_tokens is 0, but must be a whole number of at least 1"),
        ({"ignore_eos": 1}, "ignore_eos is 1, but must be true or false"),
        ({"logit_bias": {7: 101}}, "logit_bias[7] is 101, but must be a number at least -100 and at most 100"),
    ):
        with pytest.raises(InvalidParameterError) as caught:
            SamplingParams(**fields)  # type: ignore[arg-type]
        assert str(caught.value) == sentence
    with pytest.raises(InvalidParameterError) as caught:
        SamplingParams(temperature="x" * 10_000)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 200


def test_unknown_names_are_refused() -> None:
    with pytest.raises(TypeError, match="best_of"):
        SamplingParams(best_of=3)  # type: ignore[call-arg]


def test_params_are_frozen_and_replaceable() -> None:
    params = SamplingParams(logit_bias={"3": 1})
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.top_k = 3  # type: ignore[misc]
    assert dataclasses.replace(params, top_k=3).logit_bias == {3: 1.0}
    with pytest.raises(InvalidParameterError):
        dataclasses.replace(params, top_k=-3)


def test_caller_keeps_its_own_containers() -> None:
    bias: dict[int, float] = {1: 1.0}
    ids = [4]
    params = SamplingParams(logit_bias=bias, stop_token_ids=ids)  # type: ignore[arg-type]
    bias[2] = 1.0
    ids.append(5)
    assert params.logit_bias == {1: 1.0}
    assert params.stop_token_ids == (4,)


def test_greedy_is_temperature_at_or_below_the_least() -> None:
    assert SamplingParams(temperature=0).greedy
    assert SamplingParams(temperature=MIN_TEMPERATURE).greedy
    assert not SamplingParams(temperature=2 * MIN_TEMPERATURE).greedy
    assert not SamplingParams().greedy


def test_presets_hold_and_are_overridden() -> None:
    for preset in PRESETS:
        SamplingParams.from_preset(preset)
    assert SamplingParams.from_preset("greedy").greedy
    params = SamplingParams.from_preset("factual", temperature=0.9, seed=4)
    assert (params.temperature, params.top_p, params.top_k, params.seed) == (0.9, 0.9, 40, 4)
    with pytest.raises(InvalidParameterError, match="preset is 'wild', but must be one of factual, creative, greedy"):
        SamplingParams.from_preset("wild")


def test_every_field_has_its_help_text() -> None:
    for field in dataclasses.fields(SamplingParams):
        assert field.metadata["help"].endswith("."), field.name

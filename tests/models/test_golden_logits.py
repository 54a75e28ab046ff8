"""Law 2, faithful: our logits against transformers' in float32 on the same dequantised weights.

The fixtures come from `tools/make_golden_logits.py`; how far their own rounding is from the truth is in their
metadata (about 2e-9 nats), and float32 itself is about 1e-11 nats from float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from golden.fidelity import (
    MAX_MEAN_KL,
    MAX_ROW_KL,
    SHORT_DOCUMENT,
    TOP_STRIDE,
    Fidelity,
    Golden,
    apply_head,
    golden_path,
    kl_divergence,
    load_golden,
    logsumexp,
    relative_error,
    row_chunks,
)
from golden.replay import CHUNK, chunk_sizes, compare, load_head, replay

from pellucid.kernels.dispatch import make_backend
from pellucid.models.decoder import Decoder
from pellucid.models.loading import load_model
from pellucid.trace.probe import Recorder

MIN_AGREEMENT = 0.99
"""Law 2, share of equal greedy choices."""
MIN_TOKENS = 2000
MAX_REFERENCE_ERROR = 1e-4
"""Relative error of a row's hidden state, reference backend; what two orders of float32 sums make is about 1e-5."""
MAX_NATIVE_LAYER_ERROR = 2e-3
"""The same per layer for the native backend with its rounded activations: finds a wrong layer, not a rounding."""
MAX_STORED_LOGIT_ERROR = 2e-3
"""What 16-bit hidden states may move one logit."""

RecordProperty = Callable[[str, object], None]


@dataclass(frozen=True)
class Subject:
    """A model file, its fixture and its native decoder."""

    path: Path
    golden: Golden
    decoder: Decoder


def make_subject(path: Path, model: str) -> Subject:
    return Subject(path, load_golden(golden_path(model)), load_model(path, make_backend("native", 2)))


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Subject:
    return make_subject(smollm2_path, "smollm2-135m")


@pytest.fixture(scope="module")
def gemma3(gemma3_path: Path) -> Subject:
    return make_subject(gemma3_path, "gemma3-270m")


@pytest.fixture(params=["smollm2", "gemma3"])
def subject(request: pytest.FixtureRequest) -> Subject:
    subject: Subject = request.getfixturevalue(request.param)
    return subject


def report(record_property: RecordProperty, result: Fidelity) -> None:
    """Keep the figures in the test report and show them with -s."""
    for name, value in result.summary().items():
        record_property(name, value)
    print(", ".join(f"{name} {value:.3g}" for name, value in result.summary().items()))


def compare_documents(subject: Subject, names: list[str]) -> Fidelity:
    """Run documents in chunks of 128 rows through the native backend and compare every position."""
    head = load_head(subject.path)
    result = Fidelity()
    for name in names:
        document = subject.golden.documents[name]
        ours = replay(subject.decoder, document.token_ids, chunk_sizes(len(document)))
        compare(result, subject.decoder, head, document, ours)
    return result


def check_law_two(subject: Subject, record_property: RecordProperty) -> None:
    result = compare_documents(subject, list(subject.golden.documents))
    report(record_property, result)
    assert result.num_tokens >= MIN_TOKENS
    assert result.mean_kl < MAX_MEAN_KL
    assert result.max_kl < MAX_ROW_KL
    assert result.agreement >= MIN_AGREEMENT


def test_kl_divergence_is_the_plain_formula() -> None:
    rng = np.random.default_rng(1)
    ref = rng.normal(0, 4, (5, 40_001)).astype(np.float32)
    ours = (ref + rng.normal(0, 0.01, ref.shape)).astype(np.float32)
    log_p = ref.astype(np.float64) - logsumexp(ref)[:, None]
    log_q = ours.astype(np.float64) - logsumexp(ours)[:, None]
    expected = (np.exp(log_p) * (log_p - log_q)).sum(axis=1)
    np.testing.assert_allclose(kl_divergence(ref, ours), expected, rtol=1e-8, atol=1e-13)
    assert np.abs(kl_divergence(ref, ref)).max() < 1e-13
    assert np.isnan(Fidelity().mean_kl)


def test_fixture_is_long_enough_and_passes_the_sliding_window(subject: Subject) -> None:
    golden, config = subject.golden, subject.decoder.config
    assert golden.num_tokens >= MIN_TOKENS
    assert golden.meta["rounding_mean_kl"] < 1e-8
    assert max(len(document) for document in golden.documents.values()) > max(900, config.sliding_window or 0)


def test_fixture_hidden_states_and_head_give_the_stored_logits(subject: Subject) -> None:
    """Ties the fixture to this model file: the top 64 logits and logsumexp were computed from unrounded states."""
    head = load_head(subject.path)
    for name in (SHORT_DOCUMENT, "chinese"):
        document = subject.golden.documents[name]
        for rows in row_chunks(len(document), CHUNK):
            logits = apply_head(document.hidden[rows], head)
            np.testing.assert_allclose(logsumexp(logits), document.logsumexp[rows], atol=MAX_STORED_LOGIT_ERROR)
            kept = slice(rows.start // TOP_STRIDE, -(-rows.stop // TOP_STRIDE))
            top = np.take_along_axis(logits[::TOP_STRIDE], document.top_ids[kept], axis=1)
            np.testing.assert_allclose(top, document.top_logits[kept], atol=MAX_STORED_LOGIT_ERROR)
            others = logits[::TOP_STRIDE].copy()
            np.put_along_axis(others, document.top_ids[kept], -np.inf, axis=1)
            assert (others.max(axis=1) <= document.top_logits[kept, -1] + MAX_STORED_LOGIT_ERROR).all()


def test_native_is_faithful_smollm2(smollm2: Subject, record_property: RecordProperty) -> None:
    check_law_two(smollm2, record_property)


@pytest.mark.slow
def test_native_is_faithful_gemma3(gemma3: Subject, record_property: RecordProperty) -> None:
    check_law_two(gemma3, record_property)


def test_native_is_faithful_gemma3_short_documents(gemma3: Subject, record_property: RecordProperty) -> None:
    """The quick part of the law on Gemma 3; all documents take longer and are marked slow."""
    result = compare_documents(gemma3, [SHORT_DOCUMENT, "chinese"])
    report(record_property, result)
    assert result.mean_kl < MAX_MEAN_KL
    assert result.max_kl < MAX_ROW_KL
    assert result.agreement >= MIN_AGREEMENT


def test_native_token_by_token_is_as_faithful_and_the_same_bits(
    subject: Subject, record_property: RecordProperty
) -> None:
    """32 single rows after a prefill, over the edge of Gemma's window of 512, against golden and against chunks."""
    document, start, stop = subject.golden.documents["prose"], 496, 528
    token_ids = document.token_ids[:stop]
    chunked = replay(subject.decoder, token_ids, chunk_sizes(stop))
    decoded = replay(subject.decoder, token_ids, [*chunk_sizes(start), *[1] * (stop - start)])
    np.testing.assert_array_equal(decoded.view(np.uint32), chunked.view(np.uint32))
    result = Fidelity()
    compare(result, subject.decoder, load_head(subject.path), document, decoded[start:], start)
    report(record_property, result)
    assert result.num_tokens == stop - start
    assert result.mean_kl < MAX_MEAN_KL
    assert result.max_kl < MAX_ROW_KL


def layer_errors(subject: Subject, decoder: Decoder) -> dict[str, float]:
    """Relative error of the short document's embedding and of every layer's output, in the model's order."""
    document = subject.golden.documents[SHORT_DOCUMENT]
    recorder = Recorder(frozenset(document.layers))
    replay(decoder, document.token_ids, [len(document)], kv_dtype="float32", probe=recorder)
    order = ["embedding", *(f"layers.{index}.residual" for index in range(decoder.config.num_layers))]
    assert set(order) == set(document.layers)
    return {name: relative_error(document.layers[name], recorder.tensors[name]) for name in order}


def first_wrong(errors: dict[str, float], bound: float) -> str | None:
    """The first tensor whose error is not below the bound, with its error."""
    return next((f"{name}: {error:.2e}" for name, error in errors.items() if not error < bound), None)


def test_native_layers_follow_the_golden_residuals(subject: Subject, record_property: RecordProperty) -> None:
    errors = layer_errors(subject, subject.decoder)
    record_property("worst_layer_error", max(errors.values()))
    assert first_wrong(errors, MAX_NATIVE_LAYER_ERROR) is None


def reference_error(subject: Subject, decoder: Decoder, name: str, stop: int) -> float:
    """Relative error of the first `stop` rows of a document's hidden states."""
    document = subject.golden.documents[name]
    token_ids = document.token_ids[:stop]
    ours = replay(decoder, token_ids, chunk_sizes(len(token_ids)), kv_dtype="float32")
    return relative_error(document.hidden[:stop], ours)


def test_reference_is_float32_of_the_same_mathematics(subject: Subject, record_property: RecordProperty) -> None:
    """Every layer of the short document, then the final hidden states over several chunks and blocks."""
    decoder = load_model(subject.path, make_backend("reference", 2))
    errors = layer_errors(subject, decoder)
    assert first_wrong(errors, MAX_REFERENCE_ERROR) is None
    worst = reference_error(subject, decoder, "chinese", 160)
    record_property("worst_layer_error", max(errors.values()))
    record_property("worst_hidden_error", worst)
    print(f"reference: layers {max(errors.values()):.2e}, hidden {worst:.2e}")
    assert worst < MAX_REFERENCE_ERROR


@pytest.mark.slow
def test_reference_past_the_sliding_window(gemma3: Subject, record_property: RecordProperty) -> None:
    decoder = load_model(gemma3.path, make_backend("reference", 2))
    window = decoder.config.sliding_window
    assert window is not None
    worst = reference_error(gemma3, decoder, "prose", window + 64)
    record_property("worst_hidden_error", worst)
    print(f"reference past the window: {worst:.2e}")
    assert worst < MAX_REFERENCE_ERROR

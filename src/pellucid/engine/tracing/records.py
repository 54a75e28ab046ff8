"""What the engine puts into the ring. A record holds what no longer changes; its events are made when it is read."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from pellucid.engine.tracing.request_trace import StepTimes
from pellucid.outputs import CompletionOutput
from pellucid.request import Request
from pellucid.sampling.recorder import StageRecord, Standing
from pellucid.sampling.waterfall import Waterfall
from pellucid.sampling_params import SamplingParams
from pellucid.tokenizer.vocabulary import BYTE
from pellucid.trace.events import Event

Float32Array = npt.NDArray[np.float32]


def _base64(data: bytes) -> str:
    return b64encode(data).decode("ascii")


def _answer(request: Request) -> dict[str, Any]:
    """Whose an event is: the request, and which of its answers where there are several."""
    which = {"index": request.sample_index} if request.params.n > 1 else {}
    return {"req": request.request_id, **which}


@dataclass(slots=True, eq=False)
class _OfOneRequest:
    """What concerns one request and nobody else."""

    request: Request

    @property
    def request_ids(self) -> Collection[str]:
        return (self.request.request_id,)


@dataclass(slots=True, eq=False)
class RequestRecord(_OfOneRequest):
    """A request that was asked for, and what the prefix cache had of its prompt."""

    level: int
    arrive_ns: int
    prompt: str | None
    template: str | None
    num_cached: int
    tokenizer: Any
    is_queued: Callable[[], bool] | None = None
    """Whether it still waits; None where it runs. One that waited is told by its later record alone."""

    @property
    def nbytes(self) -> int:
        return 8 * self.request.num_prompt_tokens + len(self.prompt or "")

    def events(self) -> Iterator[Event]:
        if self.is_queued is not None and not self.is_queued():
            return
        ids = self.request.prompt_token_ids
        rendered = self.prompt
        pieces = [self.tokenizer.token_bytes(token_id) for token_id in ids]
        if rendered is None:
            rendered = b"".join(pieces).decode("utf-8", "replace")
        spans = token_spans(rendered.encode("utf-8", "surrogatepass"), pieces)
        yield {
            "type": "request",
            "req": self.request.request_id,
            "level": self.level,
            **({} if self.is_queued is None else {"queued": True}),
            "arrive_ns": self.arrive_ns,
            "template": self.template,
            "rendered": rendered,
            "params": params_of(self.request.params, self.request.seed),
            "tokens": [
                {
                    "i": place,
                    "id": token_id,
                    "bytes_b64": _base64(piece),
                    "span": span,
                    "kind": kind_of(self.tokenizer, token_id, piece),
                    "pos": place,
                    "cached": place < self.num_cached,
                }
                for place, (token_id, piece, span) in enumerate(zip(ids, pieces, spans, strict=True))
            ],
        }


def params_of(params: SamplingParams, seed: int) -> dict[str, Any]:
    """All parameters with their values, and who chose them: the request, or the default."""
    found: dict[str, Any] = {}
    for one in fields(SamplingParams):
        value = getattr(params, one.name)
        default = one.default if one.default_factory is MISSING else one.default_factory()
        source = "default" if value == default else "request"
        if one.name == "seed" and value is None:
            value, source = seed, "engine"
        if not isinstance(value, (int, float, str, type(None))):
            value = str(value) if one.name == "structured_outputs" else _plain(value)
        found[one.name] = {"value": value, "source": source}
    return found


def _plain(value: Any) -> Any:
    if hasattr(value, "items"):
        return {str(key): item for key, item in value.items()}
    return list(value)


def kind_of(tokenizer: Any, token_id: int, piece: bytes) -> str:
    """normal, special (control tokens) or byte (a byte of its own, or a part of a character)."""
    if tokenizer.is_special(token_id):
        return "special"
    vocabulary = getattr(tokenizer, "vocabulary", None)
    if vocabulary is not None and vocabulary.kinds[token_id] == BYTE:
        return "byte"
    try:
        piece.decode("utf-8")
    except UnicodeDecodeError:
        return "byte"
    return "normal"


def token_spans(text: bytes, pieces: list[bytes]) -> list[list[int] | None]:
    """Where each token's bytes lie in the text, [begin, end) in bytes; None for those that are not in it (BOS).

    A space that the tokenizer put before a word that has none in the text is not counted.
    """
    spans: list[list[int] | None] = []
    at = 0
    for piece in pieces:
        found = next((p for p in (piece, piece.removeprefix(b" ")) if p and text.startswith(p, at)), None)
        if found is None:
            spans.append(None)
            continue
        spans.append([at, at + len(found)])
        at += len(found)
    return spans


@dataclass(slots=True, eq=False)
class StepRecord:
    """One step of the engine."""

    step: int
    times: StepTimes
    max_tokens: int
    is_cut: bool
    """Whether the time that a step may take left no room for more of the prompts."""
    seqs: Sequence[tuple[Request, int, int, int]]
    """(request, first position, rows, tokens its output had)."""
    waiting: Sequence[tuple[str, str]]
    """(request id, why)."""

    nbytes = 0

    @property
    def request_ids(self) -> Collection[str]:
        return {request.request_id for request, _, _, _ in self.seqs} | {name for name, _ in self.waiting}

    def events(self) -> Iterator[Event]:
        times = self.times
        yield {
            "type": "step",
            "step": self.step,
            "t0_ns": times.begin,
            "t1_ns": times.end,
            "token_budget": sum(n for _, _, n, _ in self.seqs) if self.is_cut else self.max_tokens,
            "limit": "time" if self.is_cut else "tokens",
            "max_tokens": self.max_tokens,
            "seqs": [{**_answer(request), "tok0": tok0, "n_tok": n} for request, tok0, n, _ in self.seqs],
            "ns": {
                "sched": times.scheduled - times.begin,
                "forward": times.forward,
                "sample": times.sample,
                "detok": times.detok,
                "emit": times.rest,
                "tracing": times.all_tracing,
            },
            "waiting": [{"req": name, "reason": reason} for name, reason in self.waiting],
        }


@dataclass(slots=True, eq=False)
class SampleRecord(_OfOneRequest):
    """One token drawn."""

    step: int
    position: int
    drawn: Waterfall
    token_bytes: bytes

    nbytes = 4096

    def events(self) -> Iterator[Event]:
        drawn = self.drawn
        yield {
            "type": "sample",
            **_answer(self.request),
            "step": self.step,
            "i": self.position,
            "id": drawn.token_id,
            "bytes_b64": _base64(self.token_bytes),
            "logprob_raw": drawn.logprob_raw,
            "logprob_final": drawn.logprob_final,
            "top2_gap": drawn.top2_gap,
            "stages": [_stage(record) for record in drawn.records],
            "rng": {"seed": drawn.seed, "counter": list(drawn.counter), "u": drawn.u},
        }


def _stage(record: StageRecord) -> dict[str, Any]:
    parameter = record.parameter
    if not isinstance(parameter, (int, float, str, type(None))):
        parameter = _named(parameter)
    return {
        "name": record.name,
        "param": parameter,
        "alive": record.alive,
        "entropy": record.entropy,
        "mass_removed": record.mass_removed,
        "top": [[one.token_id, one.logit, one.probability] for one in record.top],
        "chosen": None if record.chosen is None else _standing(record.chosen),
    }


def _named(parameter: Any) -> Any:
    if hasattr(parameter, "items"):
        return {str(key): value for key, value in parameter.items()}
    return [getattr(one, "__name__", type(one).__name__) if callable(one) else one for one in parameter]


def _standing(standing: Standing) -> dict[str, Any]:
    return {"logit": standing.logit, "p": standing.probability, "rank": standing.rank}


@dataclass(slots=True, eq=False)
class EmitRecord(_OfOneRequest):
    """Text that was given out, or held back."""

    t_ns: int
    token_range: tuple[int, int]
    text: str
    held_bytes: int
    held_reason: str | None

    nbytes = 128

    def events(self) -> Iterator[Event]:
        yield {
            "type": "emit",
            **_answer(self.request),
            "t_ns": self.t_ns,
            "token_range": list(self.token_range),
            "bytes_b64": _base64(self.text.encode("utf-8", "surrogatepass")),
            "held_bytes": self.held_bytes,
            "held_reason": self.held_reason,
        }


@dataclass(slots=True, eq=False)
class SpecRecord(_OfOneRequest):
    """Drafts that were verified for one request."""

    step: int
    proposer: str
    draft: list[int]
    accepted: int
    bonus_id: int

    nbytes = 128

    def events(self) -> Iterator[Event]:
        yield {
            "type": "spec",
            **_answer(self.request),
            "step": self.step,
            "proposer": self.proposer,
            "draft": self.draft,
            "accepted": self.accepted,
            "bonus_id": self.bonus_id,
        }


@dataclass(slots=True, eq=False)
class MemRecord:
    """The process's memory at one moment."""

    t_ns: int
    weights_bytes: int
    kv_reserved_bytes: int
    kv_used_bytes: int
    activations_bytes: int
    rss_bytes: int

    nbytes = 0
    request_ids = None

    def events(self) -> Iterator[Event]:
        yield {"type": "mem", **{f.name: getattr(self, f.name) for f in fields(self)}}


@dataclass(slots=True, eq=False)
class FinishRecord(_OfOneRequest):
    """The end of one answer."""

    completion: CompletionOutput
    stop_id: int | None
    ttft_ns: int | None
    ttft_parts: dict[str, int] | None
    token_times: list[int]

    nbytes = 512

    def events(self) -> Iterator[Event]:
        times = self.token_times
        between = [later - earlier for earlier, later in pairwise(times)]
        stop = self.completion.stop_reason
        yield {
            "type": "finish",
            **_answer(self.request),
            "reason": self.completion.finish_reason,
            "stop_id": self.stop_id,
            "stop_str": stop if isinstance(stop, str) else None,
            "error": self.completion.error,
            "n_prompt": self.request.num_prompt_tokens,
            "n_output": len(self.request.output_token_ids),
            "preemptions": self.request.num_preemptions,
            "ttft_ns": self.ttft_ns,
            "tpot_ns": (times[-1] - times[0]) / (len(times) - 1) if between else None,
            "itl_ns": between,
            "ttft_parts": self.ttft_parts,
        }


@dataclass(slots=True, eq=False)
class LayerRecord(_OfOneRequest):
    """Some rows of one request in one step, through all L layers: R rows, A of them with attention, Q with a lens."""

    step: int
    positions: npt.NDArray[np.int64]
    """[R]"""
    norms: Float32Array
    """[L, R, 4]: root mean squares of the residual, of what attention added and of what the MLP added; absmax."""
    nonfinite: npt.NDArray[np.int64]
    """[L, R] numbers of the residual that are not finite."""
    attention: dict[int, tuple[npt.NDArray[np.int64], Float32Array, Float32Array]]
    """By place in `positions`: keys [L, H, k], weights [L, H, k], the other weights' sum [L, H]."""
    lens: dict[int, tuple[npt.NDArray[np.int64], Float32Array, Float32Array]]
    """By place in `positions`: ids [L, t], probabilities [L, t], entropy [L]."""
    experts: dict[int, tuple[npt.NDArray[np.int64], Float32Array, Float32Array]]
    """By layer: ids [R, k], weights [R, k], the router's entropy [R]."""

    @property
    def nbytes(self) -> int:
        groups = (*self.attention.values(), *self.lens.values(), *self.experts.values())
        return self.norms.nbytes + self.nonfinite.nbytes + sum(array.nbytes for group in groups for array in group)

    def events(self) -> Iterator[Event]:
        whose = {"type": "layer", **_answer(self.request), "step": self.step}
        for place, position in enumerate(self.positions.tolist()):
            for layer in range(len(self.norms)):
                resid, attn, mlp, absmax = self.norms[layer, place].tolist()
                yield {
                    **whose,
                    "i": position,
                    "layer": layer,
                    "resid_rms": resid,
                    "attn_rms": attn,
                    "mlp_rms": mlp,
                    "absmax": absmax,
                    "nonfinite": int(self.nonfinite[layer, place]),
                    "attn": self._attention(place, layer),
                    "lens": self._lens(place, layer),
                    "moe": self._experts(place, layer),
                }

    def _attention(self, place: int, layer: int) -> list[dict[str, Any]] | None:
        if place not in self.attention:
            return None
        keys, weights, other = self.attention[place]
        heads = zip(keys[layer].tolist(), weights[layer].tolist(), other[layer].tolist(), strict=True)
        return [
            {
                "head": head,
                "idx": [k for k in idx if k >= 0],
                "w": [_short(x) for k, x in zip(idx, w, strict=True) if k >= 0],
                "other": _short(rest),
            }
            for head, (idx, w, rest) in enumerate(heads)
        ]

    def _lens(self, place: int, layer: int) -> dict[str, Any] | None:
        if place not in self.lens:
            return None
        ids, p, entropy = self.lens[place]
        return {
            "ids": ids[layer].tolist(),
            "p": [_short(x) for x in p[layer].tolist()],
            "entropy": _short(float(entropy[layer])),
        }

    def _experts(self, place: int, layer: int) -> dict[str, Any] | None:
        if layer not in self.experts:
            return None
        ids, weights, entropy = self.experts[layer]
        return {
            "ids": ids[place].tolist(),
            "w": [_short(x) for x in weights[place].tolist()],
            "router_entropy": _short(float(entropy[place])),
        }


def _short(value: float) -> float:
    """Seven decimals: what a float32 below 1 holds, without its long tail."""
    return round(value, 7)

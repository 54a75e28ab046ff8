"""The values of the guided tour (docs/journey.md), taken from the engine while it answers.

    python tools/journey_values.py            print them
    python tools/journey_values.py --write    put them into docs/journey.md and docs/journey.zh-CN.md

The last digits depend on the instruction set, so a document is up to date when its numbers agree within
`TOLERANCE` (`differences`; tests/docs/test_examples.py asks it).
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pellucid import LLM, EngineArgs, RequestOutput, SamplingParams
from pellucid.engine.loading import load_parts
from pellucid.forward_batch import Float32Array, ForwardBatch, ForwardOutput
from pellucid.kernels.kv_codes import gather
from pellucid.kernels.reference import rms_norm, rotate, softmax
from pellucid.kv_cache.storage import KVCacheStorage
from pellucid.models.decoder import Decoder
from pellucid.models.rotary import RotaryTable
from pellucid.sampling.draw import draw_counter, uniform
from pellucid.sampling.recorder import StageRecord, StageRecorder
from pellucid.sampling.sampler import Sampler
from pellucid.sampling.state import SamplingState
from pellucid.tokenizer.detokenizer import IncrementalDetokenizer
from pellucid.tokenizer.tokenizer import Tokenizer
from pellucid.trace.probe import Probe, Recorder

DOCUMENTS = ("docs/journey.md", "docs/journey.zh-CN.md")
TOLERANCE = 0.02
"""Relative, and absolute for numbers below 1: 16-bit activations on another instruction set stay far inside it."""

QUESTION = {"role": "user", "content": "What is the capital of France?"}
BEGUN = {"role": "assistant", "content": "The capital of France is"}
PARAMS = SamplingParams(
    repetition_penalty=1.1, temperature=1.5, min_p=0.001, top_k=20, top_p=0.95, seed=2025, max_tokens=32
)
OTHER_SEED = 4
"""Its u falls on a less likely candidate."""
SPLIT_TEXT = "你好 🦙"
HEAD = 4
LAYER = 23
"""A head that looks at the country; found by trying them all."""


@dataclass
class Pass:
    """One forward pass: its batch, every tensor the model shows, the logits of the rows that drew."""

    batch: ForwardBatch
    tensors: dict[str, Float32Array]
    logits: Float32Array | None = None


@dataclass
class WatchedModel:
    """Stands between the engine and the model and keeps what passes; it changes nothing."""

    model: Decoder
    passes: list[Pass] = field(default_factory=list)

    @property
    def config(self) -> Any:
        return self.model.config

    def forward(self, batch: ForwardBatch, kv: KVCacheStorage, probe: Probe | None = None) -> ForwardOutput:
        recorder = Recorder()
        output = self.model.forward(batch, kv, recorder)
        # The arrays are the runner's own and overwritten by the next step.
        arrays = {name: getattr(batch, name) for name in ForwardBatch.__slots__}
        copy = ForwardBatch(**{name: None if array is None else array.copy() for name, array in arrays.items()})
        self.passes.append(Pass(copy, recorder.tensors))
        return output

    def compute_logits(self, hidden: Float32Array) -> Float32Array:
        logits = self.model.compute_logits(hidden)
        self.passes[-1].logits = logits.copy()
        return logits


class Journey:
    """The run that the tour follows: a question, the beginning of its answer, and the token that comes next."""

    def __init__(self) -> None:
        model, tokenizer = load_parts(EngineArgs())
        assert isinstance(model, Decoder)
        assert isinstance(tokenizer, Tokenizer)
        self.model, self.tokenizer = model, tokenizer
        self.config = model.config
        self.llm, self.watched = self.engine()
        self.deltas = list(self.llm.stream([QUESTION, BEGUN], PARAMS, continue_final_message=True))
        self.output = self.deltas[0]
        self.ids = self.output.prompt_token_ids
        self.first = self.watched.passes[0]
        self.row = len(self.ids) - 1
        self.chosen = self.output.outputs[0].token_ids[0]

    def engine(self, **args: Any) -> tuple[LLM, WatchedModel]:
        """An engine of its own over the one model."""
        watched = WatchedModel(self.model)
        return LLM.from_parts(watched, self.tokenizer, EngineArgs(**args)), watched

    def text(self, token_id: int) -> str:
        return repr(self.tokenizer.token_bytes(token_id).decode("utf-8", "backslashreplace"))

    def tensor(self, name: str) -> Float32Array:
        """The followed row of a tensor."""
        row: Float32Array = self.first.tensors[name][self.row]
        return row

    @cached_property
    def logits(self) -> Float32Array:
        assert self.first.logits is not None
        logits: Float32Array = self.first.logits[0]
        return logits


def rms(x: npt.NDArray[Any]) -> float:
    """Root of the mean square: how large the numbers of a vector are."""
    return float(np.sqrt(np.mean(np.square(x, dtype=np.float64))))


def numbers(x: npt.NDArray[Any], count: int = 6) -> str:
    shown = "  ".join(f"{value:+.4f}" for value in x[:count].astype(np.float64))
    return f"{shown}  …  ({len(x)} numbers, RMS {rms(x):.4f})"


def prompt(j: Journey) -> Iterator[str]:
    yield from str(j.output.prompt).split("\n")


def ids(j: Journey) -> Iterator[str]:
    for start in range(0, len(j.ids), 4):
        row = (f"{i:>2}: {j.ids[i]:>5} {j.text(j.ids[i])}" for i in range(start, min(start + 4, len(j.ids))))
        yield "  ".join(f"{cell:<23}" for cell in row).rstrip()
    yield ""
    last = j.ids[j.row]
    yield f"the token we follow: position {j.row}, id {last}, bytes {j.tokenizer.token_bytes(last).hex(' ')}"


def request(j: Journey) -> Iterator[str]:
    yield f"request_id        {j.output.request_id}"
    yield f"prompt_token_ids  {len(j.ids)} ids"
    yield f"end_token_ids     {sorted(j.tokenizer.eos_ids)}"
    room = j.llm.max_model_len - len(j.ids)
    limit = min(PARAMS.max_tokens or room, room)
    yield f"max_output_tokens {limit}  (the context has room for {j.llm.max_model_len} − {len(j.ids)} = {room})"
    yield f"seed              {j.output.outputs[0].seed}"


def batch(j: Journey) -> Iterator[str]:
    b = j.first.batch
    blocks = -(-len(j.ids) // j.llm.args.block_size)
    yield f"token_ids        {_ends(b.token_ids)}"
    yield f"positions        {_ends(b.positions)}"
    yield f"slot_mapping     {_ends(b.slot_mapping)}"
    yield f"query_start_loc  {b.query_start_loc.tolist()}"
    yield f"seq_lens         {b.seq_lens.tolist()}"
    yield f"block_table      [{b.block_table[0, :blocks].tolist()}]"


def _ends(values: npt.NDArray[Any]) -> str:
    return f"[{', '.join(map(str, values[:3]))}, … {', '.join(map(str, values[-2:]))}]  ({len(values)})"


def embedding(j: Journey) -> Iterator[str]:
    yield f"embedding  {numbers(j.tensor('embedding'))}"


def attention_input(j: Journey) -> Iterator[str]:
    norm = j.model.weights.layers[0].attention_norm
    assert norm is not None
    yield f"norm(x)    {numbers(rms_norm(j.tensor('embedding'), norm.weight, j.config.norm_eps))}"
    cosine, sine = RotaryTable(j.config.rope).rows(np.array([j.row], dtype=np.int32))
    for name, heads in (("q", j.config.num_heads), ("k", j.config.num_kv_heads)):
        turned = j.tensor(f"layers.0.attn.{name}").reshape(1, heads, j.config.head_dim)
        plain = rotate(turned, cosine, -sine)
        yield f"{name}, head 0  {numbers(plain[0, 0], 4)}"
        yield f"   rotated {numbers(turned[0, 0], 4)}"
        if name == "q":
            yield from _pair_zero(plain[0, 0], turned[0, 0], float(cosine[0, 0]), float(sine[0, 0]))
    yield f"v, head 0  {numbers(j.tensor('layers.0.attn.v')[: j.config.head_dim], 4)}"
    pairs = j.config.rope.dim // 2
    angles = " · ".join(f"pair {i}: {_angle(j, i):.4f}" for i in (0, 1, pairs - 1))
    yield f"angles at position {j.row}, in radians: {angles}"


def _pair_zero(plain: Float32Array, turned: Float32Array, c: float, s: float) -> Iterator[str]:
    """The arithmetic of one rotation."""
    half = len(plain) // 2
    (a, b), (x, y) = ((float(v[0]), float(v[half])) for v in (plain, turned))
    yield f"   pair 0: (q[0], q[{half}]) = ({a:+.4f}, {b:+.4f}), cos = {c:+.4f}, sin = {s:+.4f}"
    yield f"   new q[0]  = q[0] · cos − q[{half}] · sin = {x:+.4f}"
    yield f"   new q[{half}] = q[{half}] · cos + q[0] · sin = {y:+.4f}"


def _angle(j: Journey, pair: int) -> float:
    return float(j.row * j.config.rope.theta ** (-2 * pair / j.config.rope.dim))


def cache(j: Journey) -> Iterator[str]:
    size = j.llm.args.block_size
    slot = int(j.first.batch.slot_mapping[j.row])
    layer = j.llm.engine.storage.layers[0]
    codes = layer.keys[slot // size, 0, :, slot % size].reshape(-1)
    assert layer.scales is not None
    scale = layer.scales[slot // size, 0, 0, slot % size]
    yield f"position {j.row} → logical block {j.row // size}, offset {j.row % size}"
    yield f"block_table[{j.row // size}] = {slot // size} → slot {slot // size} · {size} + {slot % size} = {slot}"
    yield f"codes      {'  '.join(str(code) for code in codes[:4])}  …  ({len(codes)} codes, scale {scale:.4e})"
    yield f"key read   {numbers(codes * scale, 4)}"
    yield f"one token takes {j.config.kv_bytes_per_token(j.llm.args.kv_cache_dtype)} bytes in all layers"


def attention(j: Journey) -> Iterator[str]:
    for layer, head in ((0, 0), (LAYER, HEAD)):
        weights = _attention_weights(j, layer, head)
        order = np.argsort(-weights, kind="stable")[:5]
        shown = ", ".join(f"{j.text(j.ids[i])}@{i} {weights[i]:.3f}" for i in order)
        others = f"the other {len(weights) - 5} together {1 - weights[order].sum(dtype=np.float64):.3f}"
        yield f"layer {layer:>2}, head {head}: {shown}, {others}"
    yield f"out        {numbers(j.tensor('layers.0.attn.out'))}"


def _attention_weights(j: Journey, layer: int, head: int) -> Float32Array:
    """softmax(scale · q · K) of the followed row: recomputed from q and the cached keys, as the kernel keeps none."""
    config = j.config
    q = j.tensor(f"layers.{layer}.attn.q").reshape(config.num_heads, config.head_dim)[head]
    table = j.first.batch.block_table[0, : -(-len(j.ids) // j.llm.args.block_size)]
    kv_head = head // (config.num_heads // config.num_kv_heads)
    keys, _ = gather(j.llm.engine.storage.layers[layer], table, j.row + 1)
    return softmax(np.float32(config.attention_scale) * (keys[kv_head] @ q))


def mlp(j: Journey) -> Iterator[str]:
    yield f"gated      {numbers(j.tensor('layers.0.mlp.gated'))}"
    yield f"residual   {numbers(j.tensor('layers.0.residual'))}"


def layers(j: Journey) -> Iterator[str]:
    yield f"embedding  RMS {rms(j.tensor('embedding')):6.3f}"
    values = [rms(j.tensor(f"layers.{i}.residual")) for i in range(j.config.num_layers)]
    for start in range(0, len(values), 10):
        row = values[start : start + 10]
        yield f"layers {start:>2}–{start + len(row) - 1:<2} " + " ".join(f"{value:6.2f}" for value in row)
    yield f"final_norm {numbers(j.tensor('final_norm'))}"


def logits(j: Journey) -> Iterator[str]:
    shifted = j.logits - j.logits.max()
    normaliser = float(j.logits.max()) + math.log(float(np.exp(shifted).sum(dtype=np.float64)))
    yield f"{len(j.logits)} logits; the five largest:"
    for token_id in np.argsort(-j.logits, kind="stable")[:5].tolist():
        logprob = float(j.logits[token_id]) - normaliser
        logit, share = j.logits[token_id], math.exp(logprob)
        yield f"{token_id:>6} {j.text(token_id):<10} logit {logit:7.3f}   logprob {logprob:7.3f}   {share:8.3%}"


def stages(j: Journey) -> Iterator[str]:
    yield f"{'stage':<19} {'value':>5} {'alive':>6} {'entropy':>8} {'removed':>8}   most probable"
    for record in _stage_records(j, PARAMS):
        value = "" if record.parameter is None else f"{record.parameter}"
        top = "  ".join(f"{j.text(s.token_id)} {s.probability:.3f}" for s in record.top[:3])
        yield (
            f"{record.name:<19} {value:>5} {record.alive:>6} {record.entropy:>8.3f} {record.mass_removed:>8.2%}   {top}"
        )


def _stage_records(j: Journey, params: SamplingParams) -> list[StageRecord]:
    recorder = StageRecorder(num_top=4)
    _sampled(j, params, recorder)
    return recorder.records


def _sampled(j: Journey, params: SamplingParams, recorder: StageRecorder | None = None) -> int:
    state = SamplingState(params, seed=params.seed or 0, prompt_token_ids=j.ids)
    return Sampler(j.config.vocab_size).sample(j.logits, state, recorder).token_id


def draw(j: Journey) -> Iterator[str]:
    position = len(j.ids)
    yield f"position {position}, sample index 0 → counter {draw_counter(0, position)}"
    total, line = 0.0, []
    for standing in _stage_records(j, PARAMS)[-1].top:
        total += standing.probability
        line.append(f"{j.text(standing.token_id)} to {total:.4f}")
    yield f"cumulative: {', '.join(line)}, …"
    for params in (PARAMS, replace(PARAMS, seed=OTHER_SEED)):
        u, token_id = uniform(params.seed or 0, 0, position), _sampled(j, params)
        yield f"seed {params.seed}: u = {u:.6f} → id {token_id}, {j.text(token_id)}"
    assert _sampled(j, PARAMS) == j.chosen


def text(j: Journey) -> Iterator[str]:
    detokenizer = IncrementalDetokenizer(j.tokenizer)
    yield f"{'id':>6}  {'bytes':<11}  {'delta':<6}  held back"
    for token_id in j.tokenizer.encode(SPLIT_TEXT, add_special_tokens=False):
        delta = detokenizer.push(token_id)
        data = j.tokenizer.token_bytes(token_id).hex(" ")
        held = detokenizer.num_held_bytes
        yield f"{token_id:>6}  {data:<11}  {delta!r:<6}  {held} {'byte' if held == 1 else 'bytes'}"


def steps(j: Journey) -> Iterator[str]:
    yield f"{'step':<5} {'rows':<15} {'known':>5} {'drawn':>6}  {'text':<10} finish_reason"
    for number, (done, delta) in enumerate(zip(j.watched.passes, j.deltas, strict=True), start=1):
        answer = delta.outputs[0]
        where = _span(done.batch.positions)
        token_id = answer.token_ids[0]
        known = int(done.batch.seq_lens[0])
        reason = answer.finish_reason or ""
        yield f"{number:<5} {where:<15} {known:>5} {token_id:>6}  {answer.text!r:<10} {reason}".rstrip()


def _span(positions: npt.NDArray[Any]) -> str:
    first, last = int(positions[0]), int(positions[-1])
    return f"position {first}" if first == last else f"positions {first}–{last}"


def chunks(j: Journey) -> Iterator[str]:
    """The same prompt with a budget of 16 tokens a step, beside a request that is answering already."""
    _, watched = _crowded(j)
    yield f"{'step':<5} {'neighbour':<12} {'our rows':<16} {'our block_table':<16} slots"
    size = j.llm.args.block_size
    for number, done in enumerate(watched.passes, start=1):
        b = done.batch
        spans = [slice(int(b.query_start_loc[s]), int(b.query_start_loc[s + 1])) for s in range(len(b.seq_lens))]
        neighbour = _span(b.positions[spans[0]]).removeprefix("positions ").removeprefix("position ")
        if len(spans) == 1:
            yield f"{number:<5} {neighbour:<12} –"
            continue
        table = b.block_table[1, : -(-int(b.seq_lens[1]) // size)].tolist()
        ours = _span(b.positions[spans[1]]).removeprefix("positions ").removeprefix("position ")
        slots = b.slot_mapping[spans[1]]
        yield f"{number:<5} {neighbour:<12} {ours:<16} {table!s:<16} {_runs(slots)}"


def _runs(slots: npt.NDArray[Any]) -> str:
    """Consecutive slots as spans."""
    cuts = [0, *(np.flatnonzero(np.diff(slots) != 1) + 1).tolist(), len(slots)]
    pairs = [(int(slots[a]), int(slots[b - 1])) for a, b in pairwise(cuts)]
    return ", ".join(f"{a}" if a == b else f"{a}–{b}" for a, b in pairs)


def _crowded(j: Journey) -> tuple[RequestOutput, WatchedModel]:
    llm, watched = j.engine(max_num_batched_tokens=16)
    neighbour = llm.stream("Once upon a time", SamplingParams(seed=1, max_tokens=len(j.ids) + 20, ignore_eos=True))
    next(neighbour)
    next(neighbour)
    ours = llm.stream([QUESTION, BEGUN], PARAMS, continue_final_message=True)
    first = next(ours)
    ours.close()
    neighbour.close()
    return first, watched


def one_answer(j: Journey) -> Iterator[str]:
    """The followed row's logits in three runs: given as a prompt, written by the model itself, and in a crowd."""
    own, own_watched = j.engine()
    chat = own.chat([QUESTION], SamplingParams(temperature=0, max_tokens=len(j.ids)))[0]
    yield f"chat, temperature 0: {chat.outputs[0].text!r}"
    given = own.tokenizer.decode(j.ids[len(chat.prompt_token_ids) :])
    known = [*chat.prompt_token_ids, *chat.outputs[0].token_ids]
    written = [p for p in own_watched.passes if p.batch.seq_lens[0] == len(j.ids)]
    runs = {"given in the prompt, one step": j.logits}
    if known[: len(j.ids)] == j.ids and written:
        runs["written by the model, one row"] = _last_logits(written[0])
    _, crowded = _crowded(j)
    runs["in chunks, beside a neighbour"] = _last_logits(crowded.passes[-1])
    for name, row in runs.items():
        same = "the same bits" if row.tobytes() == j.logits.tobytes() else "DIFFERENT"
        yield f"{name}: logit of {j.text(j.chosen)} {row[j.chosen]:.4f}, all {len(row)} logits {same}"
    if len(runs) == 2:
        yield f"the model itself did not write {given!r} here, so there is no third run to compare"


def _last_logits(done: Pass) -> Float32Array:
    assert done.logits is not None
    row: Float32Array = done.logits[-1]
    return row


Section = Callable[[Journey], Iterator[str]]
SECTIONS: dict[str, Section] = {
    f.__name__: f
    for f in (
        prompt, ids, request, batch, embedding, attention_input, cache, attention, mlp, layers, logits, stages, draw,
        text, steps, chunks, one_answer,
    )
}  # fmt: skip
"""In the order of the tour."""

_BLOCK = re.compile(r"(<!-- values: (?P<name>\w+) -->\n```text\n)(?P<body>.*?)(```\n<!-- /values -->)", re.DOTALL)
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")


def values() -> dict[str, str]:
    """Every section's text, by name."""
    journey = Journey()
    return {name: "".join(f"{line}\n" for line in section(journey)) for name, section in SECTIONS.items()}


def written(document: str, sections: dict[str, str]) -> str:
    """The document with its blocks replaced. Raises KeyError for a block that is no section."""
    return _BLOCK.sub(lambda m: m[1] + sections[m["name"]] + m[4], document)


def differences(document: str, sections: dict[str, str]) -> list[str]:
    """Names of sections that are missing in the document, or differ by more than rounding."""
    blocks = {m["name"]: m["body"] for m in _BLOCK.finditer(document)}
    return [name for name, body in sections.items() if name not in blocks or not agree(blocks[name], body)]


def agree(one: str, other: str) -> bool:
    """Whether two texts are the same but for white space and the rounding of numbers."""
    one, other = (" ".join(side.split()) for side in (one, other))  # a number one digit longer moves its column
    if _NUMBER.sub("#", one) != _NUMBER.sub("#", other):
        return False
    pairs = zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=TOLERANCE, abs_tol=TOLERANCE) for a, b in pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the values into the documents")
    arguments = parser.parse_args()
    sections = values()
    if not arguments.write:
        for name, body in sections.items():
            print(f"== {name}\n{body}")
        return 0
    for name in DOCUMENTS:
        path = Path(__file__).parent.parent / name
        path.write_text(written(path.read_text(encoding="utf-8"), sections), encoding="utf-8")
        print(f"{name}: {len(sections)} sections", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

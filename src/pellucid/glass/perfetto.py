"""The timeline of a trace as Chrome's trace events, which ui.perfetto.dev and chrome://tracing open.

One process: a track for the engine's steps with their parts, one for each request with prefill, decode and waiting, and
counters of the token budget and of KV blocks (Google, "Trace Event Format", 2016).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pellucid.glass.pieces import decoded, piece_text
from pellucid.trace.events import Event

_PROCESS, _ENGINE = 1, 1
_PARTS = ("sched", "forward", "sample", "detok", "emit", "tracing")


def chrome_trace(events: Iterable[Event]) -> dict[str, Any]:
    """{"traceEvents": […]} of one trace; times in microseconds from its first moment."""
    listed = list(events)
    steps = [event for event in listed if event["type"] == "step"]
    requests = {event["req"]: event for event in listed if event["type"] == "request"}
    moments = [e["t0_ns"] for e in steps] + [e["arrive_ns"] for e in requests.values()]
    start = min(moments, default=0)
    maker = _Maker(start)
    maker.name(_ENGINE, "engine steps")
    for step in steps:
        maker.step(step, requests)
    for request in requests.values():
        maker.request(request, steps, listed)
    maker.blocks([event for event in listed if event["type"] == "kv"])
    return {"displayTimeUnit": "ms", "traceEvents": maker.events}


class _Maker:
    def __init__(self, start_ns: int) -> None:
        self.events: list[dict[str, Any]] = []
        self._start = start_ns
        self._tracks: dict[str, int] = {}

    def name(self, track: int, name: str) -> None:
        self._add("M", track, "thread_name", args={"name": name})

    def step(self, step: Event, requests: dict[str, Event]) -> None:
        """A slice with its parts below, and the counters."""
        rows = sum(seq["n_tok"] for seq in step["seqs"])
        label = f"step {step['step']}: {rows} tokens of {len(step['seqs'])}"
        args = {"rows": rows, "token_budget": step["token_budget"], "waiting": len(step["waiting"])}
        self._slice(_ENGINE, label, step["t0_ns"], step["t1_ns"], args)
        at = step["t0_ns"]
        for part in _PARTS:
            took = max(0, step["ns"].get(part, 0))
            if took:
                self._slice(_ENGINE, part, at, at + took, {})
                at += took
        self._counter("tokens in a step", step["t0_ns"], {"tokens": rows})
        for seq in step["seqs"]:
            known = requests.get(seq["req"])
            prompt = len(known["tokens"]) if known is not None else None
            kind = "decode" if prompt is not None and seq["tok0"] >= prompt else "prefill"
            if prompt is None:
                kind = "prefill" if seq["n_tok"] > 1 else "decode"
            name = f"{kind} {seq['tok0']}" if seq["n_tok"] == 1 else f"{kind} {seq['tok0']}-{_last(seq)}"
            track = self._track(_key(seq))
            self._slice(track, name, step["t0_ns"], step["t1_ns"], {"step": step["step"], "tokens": seq["n_tok"]})

    def request(self, request: Event, steps: list[Event], listed: list[Event]) -> None:
        """Arrival, waiting and the end."""
        name = request["req"]
        track = self._track(name)
        first = next((s["t0_ns"] for s in steps if any(seq["req"] == name for seq in s["seqs"])), None)
        if first is not None and first > request["arrive_ns"]:
            self._slice(track, "waiting", request["arrive_ns"], first, {"prompt_tokens": len(request["tokens"])})
        last = max((s["t1_ns"] for s in steps if any(seq["req"] == name for seq in s["seqs"])), default=None)
        for event in listed:
            if event.get("req") != name:
                continue
            if event["type"] == "emit" and event["bytes_b64"]:
                self._instant(track, piece_text(decoded(event["bytes_b64"])) or "text", event["t_ns"])
            elif event["type"] == "finish" and last is not None:
                self._instant(track, f"finish: {event['reason']}", last, event["ttft_parts"] or {})

    def blocks(self, operations: list[Event]) -> None:
        """KV blocks in use over time, by what the operations tell."""
        holders: dict[int, int] = {}
        for event in operations:
            change = {"alloc": 1, "hit": 1, "free": -1, "preempt": -1}.get(event["op"], 0)
            if change:
                holders[event["block"]] = holders.get(event["block"], 0) + change
                used = sum(count > 0 for count in holders.values())
                self._counter("KV blocks in use", event["t_ns"], {"blocks": used})

    def _track(self, name: str) -> int:
        if name not in self._tracks:
            self._tracks[name] = _ENGINE + 1 + len(self._tracks)
            self.name(self._tracks[name], name)
        return self._tracks[name]

    def _slice(self, track: int, name: str, begin: int, end: int, args: dict[str, Any]) -> None:
        self._add("X", track, name, ts=self._us(begin), dur=(end - begin) / 1000, args=args)

    def _instant(self, track: int, name: str, at: int, args: dict[str, Any] | None = None) -> None:
        self._add("i", track, name, ts=self._us(at), s="t", args=args or {})

    def _counter(self, name: str, at: int, values: dict[str, Any]) -> None:
        self._add("C", _ENGINE, name, ts=self._us(at), args=values)

    def _us(self, at: int) -> float:
        return (at - self._start) / 1000

    def _add(self, phase: str, track: int, name: str, **fields: Any) -> None:
        self.events.append({"ph": phase, "pid": _PROCESS, "tid": track, "name": name, "cat": "pellucid", **fields})


def _key(seq: Event) -> str:
    return str(seq["req"]) if "index" not in seq else f"{seq['req']} #{seq['index']}"


def _last(seq: Event) -> int:
    return int(seq["tok0"] + seq["n_tok"] - 1)

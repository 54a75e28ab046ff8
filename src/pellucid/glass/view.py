"""A trace of one answer, put in order: what every other file here reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from pellucid.errors import TraceFileError
from pellucid.glass.pieces import decoded, piece_text
from pellucid.trace.events import Event


@dataclass
class TraceView:
    """The events of one answer, and those of everybody around it."""

    header: Event
    request: Event
    samples: list[Event] = field(default_factory=list)
    """In the order in which they were drawn."""
    layers: dict[int, dict[int, Event]] = field(default_factory=dict)
    """By position, then layer."""
    emits: list[Event] = field(default_factory=list)
    specs: list[Event] = field(default_factory=list)
    finish: Event | None = None
    steps: list[Event] = field(default_factory=list)
    """Those it took part in."""
    all_steps: list[Event] = field(default_factory=list)
    kv: list[Event] = field(default_factory=list)
    mem: list[Event] = field(default_factory=list)
    end: Event | None = None
    num_dropped: int = 0
    """Records that were lost, as far as the trace goes."""
    pieces: dict[int, bytes] = field(default_factory=dict)
    _by_position: dict[int, Event] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The request's id."""
        return str(self.request["req"])

    @property
    def num_prompt(self) -> int:
        return len(self.request["tokens"])

    @property
    def num_tokens(self) -> int:
        """Prompt and answer."""
        if not self.samples:
            return self.num_prompt
        return max(self.num_prompt, int(self.samples[-1]["i"]) + 1)

    def sample_at(self, position: int) -> Event | None:
        """How the token at a position was drawn; None where the trace does not tell."""
        return self._by_position.get(position)

    def token_id(self, position: int) -> int:
        """The id at a position of prompt and answer; −1 where it was lost."""
        if position < self.num_prompt:
            return int(self.request["tokens"][position]["id"])
        sample = self.sample_at(position)
        return -1 if sample is None else int(sample["id"])

    def token_bytes(self, position: int) -> bytes:
        """Its bytes."""
        if position < self.num_prompt:
            return decoded(self.request["tokens"][position]["bytes_b64"])
        sample = self.sample_at(position)
        return b"" if sample is None else decoded(sample["bytes_b64"])

    def text_at(self, position: int) -> str:
        """Its text, safe to show; `#` and the position where the trace does not have it."""
        is_told = 0 <= position < self.num_prompt or self.sample_at(position) is not None
        return piece_text(self.token_bytes(position)) if is_told else f"#{position}"

    def text_of(self, token_id: int) -> str:
        """The text of an id; `#id` where the trace does not have its bytes."""
        data = self.pieces.get(token_id)
        return f"#{token_id}" if data is None else piece_text(data)

    @property
    def answer(self) -> str:
        """The text that was given out."""
        return b"".join(decoded(emit["bytes_b64"]) for emit in self.emits).decode("utf-8", "replace")

    def layers_at(self, position: int) -> list[Event]:
        """What every layer did to a row; empty where the trace does not tell."""
        found = self.layers.get(position, {})
        return [found[layer] for layer in sorted(found)]


def answers_of(events: Iterable[Event]) -> list[TraceView]:
    """A view of every answer in a trace, in the order in which they were asked for.

    Raises `TraceFileError` where there is none.
    """
    listed = list(events)
    header = next((event for event in listed if event["type"] == "header"), None)
    # one that was told while it waited is told again when it runs
    requests = list({event["req"]: event for event in listed if event["type"] == "request"}.values())
    if header is None or not requests:
        if any(event["type"] == "dropped" or event.get("dropped") for event in listed):
            raise TraceFileError("the trace has no request in it: its beginning was lost before it was read")
        raise TraceFileError("the trace has no request in it")
    pieces = _pieces(listed)
    around = TraceView(header, requests[0])
    own: dict[str, list[Event]] = {}
    steps: dict[str, list[Event]] = {}
    for event in listed:
        _note(around, event)
        if event["type"] == "step":
            for name in dict.fromkeys(seq["req"] for seq in event["seqs"]):
                steps.setdefault(name, []).append(event)
        elif event["type"] != "request" and "req" in event:
            own.setdefault(event["req"], []).append(event)
    views: list[TraceView] = []
    for request in requests:
        name = request["req"]
        concerned = own.get(name, [])
        indices = sorted({event["index"] for event in concerned if "index" in event}) or [None]
        for index in indices:
            view = replace(around, request=request, samples=[], layers={}, emits=[], specs=[], pieces=pieces)
            _fill(view, concerned, steps.get(name, []), index)
            views.append(view)
    return views


def _note(around: TraceView, event: Event) -> None:
    """What concerns everybody."""
    kind = event["type"]
    if kind == "step":
        around.all_steps.append(event)
    elif kind == "kv":
        around.kv.append(event)
    elif kind == "mem":
        around.mem.append(event)
    elif kind == "end":
        around.end = event
        around.num_dropped = event["dropped"]
    elif kind == "dropped":
        around.num_dropped += event["records"]


def _fill(view: TraceView, own: list[Event], steps: list[Event], index: int | None) -> None:
    """What concerns one answer of a request."""
    lists = {"sample": view.samples, "emit": view.emits, "spec": view.specs}
    for event in own:
        if index is not None and event.get("index", index) != index:
            continue
        kind = event["type"]
        if kind in lists:
            lists[kind].append(event)
        elif kind == "layer":
            view.layers.setdefault(event["i"], {})[event["layer"]] = event
        elif kind == "finish":
            view.finish = event
    view.samples.sort(key=lambda sample: int(sample["i"]))
    view._by_position.update((int(sample["i"]), sample) for sample in view.samples)
    name = view.request["req"]
    view.steps = [
        step for step in steps if any(seq["req"] == name and seq.get("index", index) == index for seq in step["seqs"])
    ]


def _pieces(events: Iterable[Event]) -> dict[int, bytes]:
    """Bytes by id, wherever the trace tells them."""
    found: dict[int, bytes] = {}
    for event in events:
        kind = event["type"]
        if kind == "pieces":
            found |= {int(token_id): decoded(data) for token_id, data in event["bytes_b64"].items()}
        elif kind == "request":
            found |= {token["id"]: decoded(token["bytes_b64"]) for token in event["tokens"]}
        elif kind == "sample":
            found[event["id"]] = decoded(event["bytes_b64"])
    return found

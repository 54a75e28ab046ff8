"""A sweep by hand: two prompts, three settings, hostile texts, parts of characters, a failure."""

from __future__ import annotations

from pellucid.glass.sweep.grid import make_grid
from pellucid.glass.sweep.results import Cell, Sweep, SweepPrompt
from pellucid.outputs import FinishReason

END = b"<|im_end|>"
PROMPTS = ["Say <b>hello</b> \u202eto\x00 me", "你好，世界"]
PIECES: dict[tuple[int, int], list[bytes]] = {
    (0, 0): [b" one", b" two", b" three", b" four", b" five", b" six"],
    (0, 1): [b" one", b" two", b"</script><img src=x onerror=alert(1)>", b" three", b" four", b" five", END],
    (0, 2): ["\u202eevil".encode(), b"\x1b[2J", "👩".encode()[:2], "👩".encode()[2:], b" one", b" two"],
    (1, 0): ["你".encode(), "好".encode(), "你".encode(), "好".encode(), "你".encode(), "好".encode()],
    (1, 1): [],
    (1, 2): [b" loop"] * 12,
}


def hostile_sweep(*, interrupted: bool = False) -> Sweep:
    grid = make_grid([], {"temperature": (0, 1.0), "seed": (1, 2)}, {"max_tokens": 12})
    prompts = [SweepPrompt(text, None, 6) for text in PROMPTS]
    cells = [_cell(prompt, setting, pieces) for (prompt, setting), pieces in PIECES.items()]
    machine = {"backend": "native", "isa": "avx2", "threads": 2}
    return Sweep("<i>a model</i>", grid, prompts, cells, 1.5, machine, interrupted)


def _cell(prompt: int, setting: int, pieces: list[bytes]) -> Cell:
    has_ended = pieces[-1:] == [END]
    reason: FinishReason = "error" if not pieces else "stop" if has_ended else "length"
    kept = pieces[: len(pieces) - has_ended]
    cell = Cell(
        prompt=prompt,
        setting=setting,
        text=b"".join(kept).decode(),
        token_ids=[sum(piece) % 997 + 100 * len(piece) for piece in pieces],
        pieces=pieces,
        finish_reason=reason,
        stop_reason=None,
        error=None if pieces else "the request failed",
        seed=setting,
        num_cached_tokens=0,
        logprobs=[-0.25 * (k + 1) - setting for k in range(len(pieces))],
        entropies=[0.5 * (k % 5) + setting for k in range(len(pieces))],
        seconds=0.1 + 0.2 * setting + prompt,
    )
    cell.measure(len(kept))
    return cell

"""The sections of an explanation, in the order of the journey."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from pellucid.errors import InvalidParameterError
from pellucid.glass.compare import Difference
from pellucid.glass.explain.drawing import ACCENT, CHOSEN, SOFT, heading
from pellucid.glass.explain.engine_section import memory_section, output_section, time_section
from pellucid.glass.explain.layer_section import layer_section
from pellucid.glass.explain.sampling_section import sampling_section
from pellucid.glass.explain.text_section import position_section, text_section
from pellucid.glass.pieces import plain_text
from pellucid.glass.view import TraceView


def explain(
    view: TraceView, width: int, *, token: int | None = None, layer: int | None = None, waterfalls: bool = False
) -> Iterator[RenderableType]:
    """One answer, section by section, for a terminal of `width` cells.

    token: the position of a token to look at more closely. waterfalls: how every new token was drawn, not
    one. Raises `InvalidParameterError` for a position that is not there.
    """
    if token is not None and not 0 <= token < view.num_tokens:
        raise InvalidParameterError(
            "token", f"token is {token}, but prompt and answer have the positions 0 to {view.num_tokens - 1}"
        )
    layers = view.header["model"]["n_layers"]
    if layer is not None and not 0 <= layer < layers:
        raise InvalidParameterError("layer", f"layer is {layer}, but the model has the layers 0 to {layers - 1}")
    yield title(view)
    if view.end is None:
        yield Text("The trace has no end: it was cut off, or is still being written.", "bold yellow")
    yield from text_section(view, width, token)
    yield from position_section(view)
    yield from layer_section(view, width, _row(view, token), layer)
    yield from sampling_section(view, width, token, waterfalls)
    yield from output_section(view, width)
    yield from time_section(view, width)
    yield from memory_section(view, width)


def title(view: TraceView) -> Text:
    """The model and the engine, in one line."""
    model, engine = view.header["model"], view.header["engine"]
    heads = f"{model['n_heads']} heads"
    if model["n_kv_heads"] != model["n_heads"]:
        heads += f" on {model['n_kv_heads']}"
    parts = [
        f"{model['arch']}, {model['n_layers']} layers of {model['d_model']}, {heads}",
        f"{model['vocab']:,} tokens",
        model["quant"],
        " ".join(filter(None, (engine.get("backend"), engine.get("isa")))),
    ]
    shown = " · ".join(plain_text(str(part)) for part in parts if part)
    return Text.assemble((plain_text(str(model["id"])), ACCENT), (f"  {shown}", SOFT))


def _row(view: TraceView, token: int | None) -> int:
    """The row whose layers are shown: of the token asked for, that which drew it; else the prompt's last."""
    if token is None:
        return view.num_prompt - 1
    return token if token < view.num_prompt else token - 1


def comparison(found: Difference | None, names: tuple[str, str]) -> Iterator[RenderableType]:
    """The first difference of two traces, in words."""
    yield heading("↔", "Compared", " with ".join(map(plain_text, names)))
    if found is None:
        yield Text("  No difference: prompt, parameters, layers, stages and tokens are the same.", CHOSEN)
        return
    yield Text(f"  The first difference is {plain_text(found.what)}:")
    for name, value in zip(names, (found.ours, found.theirs), strict=True):
        yield Padding(Text.assemble((f"{plain_text(name)}  ", SOFT), (plain_text(str(value)), ACCENT)), (0, 0, 0, 4))

"""Standard output and error: JSON, colours, and the line of figures after an answer.

Answers and JSON go to stdout, everything said about them to stderr, so that pipes carry only what was asked for.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from pellucid.errors import InvalidParameterError
from pellucid.outputs import LOGPROB_FLOOR, RequestMetrics

if TYPE_CHECKING:
    from rich.console import Console

    from pellucid.model_store.progress import Progress

PIPE_WIDTH = 200

_CONTROLS = {code: 0x2400 + code for code in range(32)} | {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
del _CONTROLS[ord("\n")], _CONTROLS[ord("\t")]

DIM, BOLD, RESET = "\x1b[2m", "\x1b[1m", "\x1b[0m"


def colours(stream: TextIO) -> bool:
    """Whether colours may be written: a terminal that is not dumb, and no NO_COLOR (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def styled(text: str, style: str, stream: TextIO) -> str:
    """The text in a style where the stream shows colours."""
    return f"{style}{text}{RESET}" if colours(stream) else text


def harmless(text: str) -> str:
    """The text with pictures for control characters: a model's words or a file's names must not steer a terminal."""
    return text.translate(_CONTROLS)


def write(text: str, style: str = "") -> None:
    """Write a piece of an answer so that it is seen now; at a terminal without control characters of its own."""
    if sys.stdout.isatty():
        text = harmless(text)
    sys.stdout.write(styled(text, style, sys.stdout) if style else text)
    sys.stdout.flush()


def warn(sentence: str) -> None:
    """Say on stderr what is allowed but probably not meant."""
    with contextlib.suppress(OSError, ValueError):
        print("warning: " + harmless(sentence).replace("\n", " "), file=sys.stderr, flush=True)


def complain(sentence: str) -> None:
    """Say what went wrong, in one line; where nobody can be told, only the exit code does."""
    with contextlib.suppress(OSError, ValueError):
        line = harmless(sentence).replace("\n", " ")
        print(f"error: {line}", file=sys.stderr, flush=True)
        return
    discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Python flushes its streams once more at exit: give what is left somewhere to go."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def say(text: str) -> None:
    """Tell the person at the terminal something about the answer."""
    print(styled(text, DIM, sys.stderr), file=sys.stderr, flush=True)


def write_json(value: Any, *, indent: int | None = None) -> None:
    """One JSON value and a newline on stdout: raw UTF-8, or escapes where stdout is not UTF-8; finite numbers only."""
    is_unicode = (sys.stdout.encoding or "utf-8").lower().replace("-", "").startswith("utf")
    sys.stdout.write(json.dumps(finite(value), ensure_ascii=not is_unicode, allow_nan=False, indent=indent) + "\n")
    sys.stdout.flush()


def finite(value: Any) -> Any:
    """Dataclasses → dicts, paths → text, infinities → the floor, all the way down."""
    if is_dataclass(value) and not isinstance(value, type):
        return finite(asdict(value))
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [finite(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, bytes):
        return list(value)
    if hasattr(value, "tolist"):  # NumPy's scalars and arrays
        return finite(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else math.copysign(-LOGPROB_FLOOR, value)
    return value


def print_rich(*renderables: Any, width: int | None = None) -> None:
    """Print tables and styled text on stdout, without the spaces that rich fills lines with.

    width: cells of a line; the terminal's, or PIPE_WIDTH where there is none, when unset.
    """
    out = _rich_console(width)
    with out.capture() as captured:
        for renderable in renderables:
            out.print(renderable)
    sys.stdout.write("".join(f"{line.rstrip(' ')}\n" for line in captured.get().splitlines()))


def text_width(most: int = 120) -> int:
    """Cells of a line for what is read, not processed: the terminal's or $COLUMNS, at most `most`."""
    import shutil

    return max(40, min(most, shutil.get_terminal_size((most, 24)).columns))


def _rich_console(width: int | None = None) -> Console:
    from rich.console import Console

    # tables that go to a file or pipe are not squeezed into 80 columns
    return Console(highlight=False, width=width or (None if sys.stdout.isatty() else PIPE_WIDTH))


def progress() -> Progress:
    """A bar on a terminal, plain lines otherwise."""
    from pellucid.cli.progress_bar import ProgressBar
    from pellucid.model_store.progress import LineProgress

    return ProgressBar() if sys.stderr.isatty() and os.environ.get("TERM") != "dumb" else LineProgress()


def read_text(argument: str | None, what: str) -> str:
    """The argument, or standard input when it is `-` or missing and something is piped in.

    One newline at the end of what is piped in is dropped, as a shell's `$(…)` does: echo and editors add it.
    Raises `InvalidParameterError` when there is neither, or when it is not UTF-8.
    """
    if argument is not None and argument != "-":
        try:
            argument.encode("utf-8")
        except UnicodeEncodeError:
            raise InvalidParameterError(what, f"the {what} is not valid UTF-8") from None
        return argument
    if argument is None and sys.stdin.isatty():
        raise InvalidParameterError(what, f"there is no {what}: give it as an argument, or pipe it in")
    try:
        text = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidParameterError(
            what, f"the {what} on standard input is not valid UTF-8 at byte {error.start}"
        ) from None
    return text.removesuffix("\n").removesuffix("\r")


def figures(metrics: RequestMetrics, num_tokens: int, seed: int | None = None) -> str:
    """`128 tokens · first after 41 ms · 82.1 tokens/s`: what one answer took."""
    parts = [plural(num_tokens, "token")]
    if metrics.ttft is not None:
        parts.append(f"TTFT {metrics.ttft * 1000:.0f} ms")
    rate = decode_rate(metrics, num_tokens)
    if rate is not None:
        parts.append(f"{rate:.1f} tok/s")
    if seed is not None:
        parts.append(f"seed {seed}")
    return " · ".join(parts)


def plural(count: int, noun: str) -> str:
    """`1 token`, `2 tokens`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def visible(data: bytes) -> str:
    """A token's bytes so that spaces and line ends can be seen; parts of characters as \\xNN."""
    text = data.decode("utf-8", "backslashreplace").replace(" ", "·")
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return "".join(named.get(c, c if c.isprintable() else f"\\u{ord(c):04x}") for c in text)


def decode_rate(metrics: RequestMetrics, num_tokens: int) -> float | None:
    """Tokens per second after the first one; None when there is no second one."""
    if metrics.first_token_time is None or metrics.last_token_time is None or num_tokens < 2:
        return None
    seconds = metrics.last_token_time - metrics.first_token_time
    return (num_tokens - 1) / seconds if seconds > 0 else None

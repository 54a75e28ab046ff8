"""What a chat template may use up: steps, CPU time, the size of one text, and text altogether.

Templates come with model files, so they are untrusted code. One `Budget` belongs to one rendering; the checks below
run before an operation that would enlarge its arguments, so that memory is never taken first and refused later.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from jinja2.exceptions import SecurityError, TemplateError

MAX_SOURCE_CHARS = 128 * 1024
MAX_NODES = 20_000
MAX_NODE_DEPTH = 200
MAX_STEPS = 1_000_000
MAX_CPU_SECONDS = 1.0
MAX_TEXT_CHARS = 8 * 1024 * 1024
MAX_TOTAL_CHARS = 128 * 1024 * 1024
MAX_INT_BITS = 4096

# What one element of a list counts for, in characters: its pointer and usually an object behind it.
_ELEMENT_CHARS = 32
# The clock is read once in so many steps, because reading it costs more than a step.
_STEPS_PER_CLOCK = 8


class LimitError(TemplateError):
    """A template ran past a limit."""


class Budget:
    """Counts what one rendering uses."""

    __slots__ = ("_chars", "_deadline", "_next_clock", "_steps")

    def __init__(self) -> None:
        self._steps = 0
        self._chars = 0
        self._next_clock = _STEPS_PER_CLOCK
        # CPU time of this thread, not the clock on the wall: a busy machine must not make a template fail.
        self._deadline = time.thread_time() + MAX_CPU_SECONDS

    def spend(self, steps: int = 1, chars: int = 0) -> None:
        """Count steps taken and characters made; LimitError when the budget is used up."""
        self._steps += steps
        self._chars += chars
        if self._steps > MAX_STEPS:
            raise LimitError(f"it took more than {MAX_STEPS} steps")
        if self._chars > MAX_TOTAL_CHARS:
            raise LimitError(f"it made more than {MAX_TOTAL_CHARS} characters of text")
        if self._steps >= self._next_clock:
            self._next_clock = self._steps + _STEPS_PER_CLOCK
            if time.thread_time() > self._deadline:
                raise LimitError(f"it ran for more than {MAX_CPU_SECONDS:g} s")


_budget: ContextVar[Budget | None] = ContextVar("template_budget", default=None)


@contextmanager
def budget() -> Iterator[None]:
    """Everything a template does inside shares one budget."""
    token = _budget.set(Budget())
    try:
        yield
    finally:
        _budget.reset(token)


def spend(steps: int = 1, chars: int = 0) -> None:
    """Charge the budget of the rendering that runs now."""
    current = _budget.get()
    if current is not None:
        current.spend(steps, chars)


def allow(*lengths: int) -> None:
    """Charge for a text of the sum of `lengths` that is about to be made; LimitError for one that is too long."""
    total = sum(lengths)
    if total > MAX_TEXT_CHARS:
        raise LimitError(f"it made a text of {total} characters; at most {MAX_TEXT_CHARS} are allowed")
    spend(1, total)


def allow_elements(count: int) -> None:
    """Charge for a list of `count` elements that is about to be made."""
    allow(count * _ELEMENT_CHARS)


def allow_bits(bits: int) -> None:
    """LimitError for integers longer than MAX_INT_BITS."""
    if bits > MAX_INT_BITS:
        raise LimitError(f"it made a number of more than {MAX_INT_BITS} bits")


def measured(value: Any) -> Any:
    """`value`, after its own length was charged."""
    if isinstance(value, (str, bytes)):
        allow(len(value))
    elif isinstance(value, (list, tuple, dict)):
        allow_elements(len(value))
    elif isinstance(value, int):
        allow_bits(value.bit_length())
    return value


def deep_chars(value: Any) -> int:
    """Characters of `value` written out, counting what it contains as often as it is contained.

    Lists can hold one list many times, level upon level, and then be astronomically long once written, compared or
    hashed; walking them costs steps, so that the walk itself ends.
    """
    if isinstance(value, str):
        return len(value)
    if not isinstance(value, (list, tuple, dict)):
        return _ELEMENT_CHARS
    total, visited = 0, 0
    stack: list[Any] = [value]
    while stack:
        item = stack.pop()
        visited += 1
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, dict):
            stack.extend(item.keys())
            stack.extend(item.values())
        elif isinstance(item, (list, tuple)):
            stack.extend(item)
        total += 2
        if visited % 64 == 0:
            spend(1, 0)
        if total > MAX_TEXT_CHARS:
            allow(total)
    return total


def guarded(value: Any) -> Any:
    """`value`, which is about to be written, compared or hashed."""
    if isinstance(value, (list, tuple, dict)):
        allow(deep_chars(value))
    return value


def metered(values: Iterator[Any]) -> Iterator[Any]:
    """The items of a lazy filter, each a step: a chain of such filters works only when something reads its end."""
    for value in values:
        spend()
        yield value


def items_of(values: Iterable[Any]) -> list[Any]:
    """The items of an iterable, charged one by one."""
    found = []
    for value in values:
        spend(1, _ELEMENT_CHARS)
        found.append(value)
    return found


def check_call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Charge for a method of a text or number before it runs; the arguments, iterators made into lists."""
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if isinstance(owner, (str, bytes)):
        check = _TEXT_METHODS.get(name)
        if check is not None:
            if name == "join" and args and not isinstance(args[0], (str, list, tuple, dict)):
                args = (items_of(args[0]), *args[1:])
            check(owner, args, kwargs)
        spend(1, len(owner))
    elif isinstance(owner, int):
        for value in (*args, *kwargs.values()):
            if isinstance(value, int):
                allow(abs(value))
    return args


def _widths(owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    numbers = [abs(value) for value in (*args, *kwargs.values()) if isinstance(value, int)]
    allow(len(owner), *numbers)


def _expandtabs(owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    numbers = [abs(value) for value in (*args, *kwargs.values(), 8) if isinstance(value, int)]
    tab = "\t" if isinstance(owner, str) else b"\t"
    allow(len(owner), owner.count(tab) * max(numbers))


def check_replace(owner: Any, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    """Charge for `owner.replace(old, new)`."""
    if len(args) >= 2 and isinstance(args[0], (str, bytes)) and isinstance(args[1], (str, bytes)):
        count = owner.count(args[0]) if args[0] else len(owner) + 1
        allow(len(owner), count * len(args[1]))


def check_join(owner: Any, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    """Charge for `owner.join(items)`."""
    if args:
        spend(len(args[0]) // 64)
        allow(len(owner) * len(args[0]), *(deep_chars(item) for item in args[0]))


def _split(owner: Any, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    separator = args[0] if args and isinstance(args[0], (str, bytes)) and args[0] else None
    allow_elements(owner.count(separator) + 1 if separator is not None else len(owner) // 2 + 1)


def check_format(owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Charge for `owner.format(...)`: every field may show every argument, at any width written in it."""
    pattern = str(owner)
    if re.search(r"\{[^{}]*:[^{}]*\{", pattern):
        raise SecurityError("nested fields in a format string are not available in chat templates")
    fields = pattern.count("{") + 1
    shown = max((deep_chars(value) for value in (*args, *kwargs.values())), default=0)
    allow(len(pattern), fields * shown, *_numbers(pattern))


def check_percent(pattern: str, values: Any) -> None:
    """Charge for `pattern % values`."""
    if re.search(r"%[-+ #0-9.]*\*", pattern):
        raise SecurityError("widths taken from arguments are not available in chat templates")
    allow(len(pattern), (pattern.count("%") + 1) * deep_chars(values), *_numbers(pattern))


def _numbers(pattern: str) -> list[int]:
    return [int(digits[:12]) for digits in re.findall(r"\d+", pattern)]


def _refuse(_owner: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    raise SecurityError("this method is not available in chat templates")


_TEXT_METHODS: dict[str, Callable[[Any, tuple[Any, ...], dict[str, Any]], None]] = {
    "ljust": _widths,
    "rjust": _widths,
    "center": _widths,
    "zfill": _widths,
    "expandtabs": _expandtabs,
    "replace": check_replace,
    "join": check_join,
    "split": _split,
    "rsplit": _split,
    "splitlines": _split,
    "format": check_format,
    "format_map": check_format,
    # Longer texts for single characters, and regular expressions of quadratic cost.
    "translate": _refuse,
    "striptags": _refuse,
}

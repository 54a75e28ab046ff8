"""The sandbox that chat templates run in, and its limits.

Templates come with model files, so they are untrusted code: jinja2's immutable sandbox keeps them away from Python's
internals, and a budget of steps, time and sizes stops those that would run on or fill the memory. The environment is
that of Hugging Face's `apply_chat_template`: trim_blocks, lstrip_blocks, loop controls, `raise_exception`,
`strftime_now`, `tojson` without HTML or ASCII escapes, and the `generation` tag.

The budget is spent where templates can repeat or enlarge things: a step for each turn of a loop, each call of a
macro, each call and each filter; text is charged by its length. jinja2 has no hooks for all of these, so the parsed
template is rewritten before it is compiled: `tick` and `join` below are reached through the environment, which a
template cannot overwrite.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import lru_cache, wraps
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_SOURCE_CHARS = 256 * 1024
MAX_TEXT_CHARS = 16 * 1024 * 1024
MAX_STEPS = 1_000_000
MAX_CPU_SECONDS = 1.0
MAX_DEPTH = 60
MAX_INT_BITS = 4096
_CHARS_PER_STEP = 4096
_TIME_CHECK_STEPS = 32


class LimitError(TemplateError):
    """A template ran past one of the limits above."""


class RaisedByTemplate(TemplateError):
    """The template itself refused its input with `raise_exception`."""


class _Budget:
    def __init__(self) -> None:
        self.steps = 0
        self.deadline = time.thread_time() + MAX_CPU_SECONDS
        self.next_check = _TIME_CHECK_STEPS

    def spend(self, steps: int) -> None:
        self.steps += steps
        if self.steps > MAX_STEPS:
            raise LimitError(f"the template took more than {MAX_STEPS} steps")
        if self.steps >= self.next_check:
            self.next_check = self.steps + _TIME_CHECK_STEPS
            if time.thread_time() > self.deadline:
                raise LimitError(f"the template ran for more than {MAX_CPU_SECONDS:g} s")


_budget: ContextVar[_Budget | None] = ContextVar("template_budget", default=None)


@contextmanager
def budget() -> Iterator[None]:
    """Everything a template does inside shares one budget."""
    token = _budget.set(_Budget())
    try:
        yield
    finally:
        _budget.reset(token)


def _spend(steps: int = 1) -> None:
    current = _budget.get()
    if current is not None:
        current.spend(steps)


def _too_long(length: int) -> LimitError:
    return LimitError(f"the template made a text or list of {length} elements, more than {MAX_TEXT_CHARS}")


def _measured(value: Any) -> Any:
    """`value`, after its length was checked and charged."""
    if isinstance(value, (str, list, tuple, dict, bytes)):
        length = len(value)
        if length > MAX_TEXT_CHARS:
            raise _too_long(length)
        if length >= _CHARS_PER_STEP:
            _spend(length // _CHARS_PER_STEP)
    elif isinstance(value, int) and value.bit_length() > MAX_INT_BITS:
        raise LimitError(f"the template made a number of more than {MAX_INT_BITS} bits")
    return value


def _check_arguments(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse calls whose result would be far longer than their arguments."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) > MAX_TEXT_CHARS:
            if isinstance(getattr(function, "__self__", None), (str, bytes, int)) or function in _WIDTH_FILTERS:
                raise _too_long(abs(value))
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if isinstance(owner, str):
        if name == "replace" and len(args) >= 2:
            _check_replace(owner, *args[:2])
        elif name == "join" and args and isinstance(args[0], (list, tuple, str)):
            _measured_sum(len(owner) * len(args[0]), sum(len(item) for item in args[0] if isinstance(item, str)))
        elif name in ("format", "format_map"):
            _check_widths(owner, args)
        elif name == "translate":
            raise SecurityError("str.translate is not available in chat templates")
        elif name == "expandtabs" and args and isinstance(args[0], int):
            _measured_sum(owner.count("\t") * abs(args[0]), len(owner))


def _measured_sum(*lengths: int) -> None:
    total = sum(lengths)
    if total > MAX_TEXT_CHARS:
        raise _too_long(total)
    _spend(total // _CHARS_PER_STEP)


def _check_replace(text: Any, old: Any, new: Any) -> None:
    text, old, new = str(text), str(old), str(new)
    occurrences = text.count(old) if old else len(text) + 1
    _measured_sum(len(text), occurrences * len(new))


def _check_widths(pattern: str, args: Any) -> None:
    """Widths and precisions written into a format string; `*` takes them from the arguments."""
    widths = [int(digits[:12]) for digits in re.findall(r"\d+", pattern)]
    items = args if isinstance(args, tuple) else (args,)
    if "*" in pattern or "{" in pattern:
        widths += [abs(item) for item in items if isinstance(item, int)]
    lengths = [len(item) for item in items if isinstance(item, (str, list, dict))]
    if "{" in pattern:
        lengths = [length * (pattern.count("{") + 1) for length in lengths]
    _measured_sum(len(pattern), *widths, *lengths)


_WIDTH_FILTERS: set[Any] = set()


def _guard_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that is charged for, with arguments and results inside the limits."""
    if name in ("center", "indent", "batch", "slice", "wordwrap", "truncate", "tojson", "round", "sum"):
        _WIDTH_FILTERS.add(function)

    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        _spend()
        _check_arguments(function, args, kwargs)
        for value in args:
            _measured(value)
        if name == "replace" and len(args) >= 4:
            _check_replace(*args[1:4])
        elif name == "format":
            _check_widths(str(args[0]), args[1:])
        elif name in ("batch", "slice", "indent", "center", "wordwrap", "tojson"):
            _measured_sum(*(abs(v) for v in (*args, *kwargs.values()) if isinstance(v, int)))
            if name == "indent" and isinstance(args[0], str):
                width = args[1] if len(args) > 1 else kwargs.get("width", 4)
                _measured_sum((args[0].count("\n") + 1) * (width if isinstance(width, int) else len(str(width))))
        elif name == "join" and len(args) >= 3 and isinstance(args[1], (list, tuple, str)):
            _measured_sum(len(args[1]) * len(str(args[2])))
        return _measured(function(*args, **kwargs))

    return guarded


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's words for training; here it is its content."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _TemplateNamespace(Namespace):
    """jinja2's `namespace` without underscore names, through which its internals could be replaced."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # noqa: N805 - `namespace(self=...)` must work
        self, rest = args[0], args[1:]
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _check_namespace_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_namespace_name(name)
        super().__setitem__(name, value)


def _check_namespace_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold the underscore name {name!r}")


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(["+", "*", "**", "%", "//", "-"])

    def tick(self) -> str:
        """One turn of a loop or one call of a macro; `call` has charged it already."""
        return ""

    def join(self, *values: Any) -> str:
        """The `~` operator."""
        texts = [str(value) for value in values]
        _measured_sum(*map(len, texts))
        return "".join(texts)

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: D102 - jinja2's hook
        _spend()
        if args or kwargs:
            _check_arguments(obj, args, kwargs)
        return _measured(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:  # noqa: D102 - jinja2's hook
        _spend()
        if operator == "+" and isinstance(left, (str, list, tuple)) and isinstance(right, (str, list, tuple)):
            _measured_sum(len(left), len(right))
        elif operator == "*":
            for sequence, times in ((left, right), (right, left)):
                if isinstance(sequence, (str, list, tuple)) and isinstance(times, int):
                    _measured_sum(len(sequence) * max(times, 0))
            if isinstance(left, int) and isinstance(right, int):
                _check_bits(left.bit_length() + right.bit_length())
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * abs(right))
        elif operator == "%" and isinstance(left, str):
            _check_widths(left, right)
        return _measured(super().call_binop(context, operator, left, right))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:  # noqa: D102 - jinja2's hook
        return not attr.startswith("_") and super().is_safe_attribute(obj, attr, value)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _check_depth(tree)
        return _instrument(tree)


def _check_bits(bits: int) -> None:
    if bits > MAX_INT_BITS:
        raise LimitError(f"the template made a number of more than {MAX_INT_BITS} bits")


def _check_depth(tree: nodes.Node) -> None:
    level: list[nodes.Node] = [tree]
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH * 4:
            raise LimitError("the template is nested too deeply")
        level = [child for node in level for child in node.iter_child_nodes()]


def _instrument(tree: nodes.Template) -> nodes.Template:
    """Put a tick into every loop and macro and route `~` through `join`."""
    for loop in list(tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock))):
        tick = nodes.Call(nodes.EnvironmentAttribute("tick"), [], [], None, None)
        loop.body.insert(0, nodes.ExprStmt(tick).set_lineno(loop.lineno))
    _Concatenations().visit(tree)
    return tree.set_environment(tree.environment) if tree.environment is not None else tree


class _Concatenations(jinja2.visitor.NodeTransformer):
    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - jinja2's naming
        self.generic_visit(node)
        call = nodes.Call(nodes.EnvironmentAttribute("join"), node.nodes, [], None, None)
        return call.set_lineno(node.lineno)


def _now() -> datetime:
    return datetime.now()


def _strftime_now(pattern: str) -> str:
    if len(pattern) > 1000:
        raise LimitError("strftime_now takes at most 1000 characters")
    return _now().strftime(pattern)


def _raise_exception(message: Any) -> None:
    raise RaisedByTemplate(str(message))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if isinstance(indent, int) and indent > 64:
        raise LimitError("tojson takes an indent of at most 64")
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    if ensure_ascii:
        # The marks of shielding.py must survive; they are private-use characters, which are no part of any language.
        text = re.sub(r"\\u(d[b-f][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})", _restore_private_use, text)
        text = re.sub(r"\\u(e[0-9a-f]{3}|f[0-8][0-9a-f]{2})", lambda match: chr(int(match[1], 16)), text)
    return text


def _restore_private_use(match: re.Match[str]) -> str:
    code = 0x10000 + ((int(match[1], 16) - 0xD800) << 10) + int(match[2], 16) - 0xDC00
    return chr(code) if code >= 0xF0000 else match[0]


def _new_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


@lru_cache(maxsize=1)
def _environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[loopcontrols, _GenerationTag]
    )
    for name in ("urlize", "pprint", "random", "xmlattr"):
        del environment.filters[name]
    environment.filters["tojson"] = _tojson
    environment.filters.update({name: _guard_filter(name, f) for name, f in environment.filters.items()})
    del environment.globals["lipsum"]
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["dict"] = _new_dict
    environment.globals["namespace"] = _TemplateNamespace
    return environment


@lru_cache(maxsize=16)
def compile_template(source: str) -> jinja2.Template:
    """The compiled template; jinja2's errors and LimitError for sources past the limits."""
    if len(source) > MAX_SOURCE_CHARS:
        raise LimitError(f"the template has {len(source)} characters, more than {MAX_SOURCE_CHARS}")
    with budget():
        return _environment().from_string(source)


def render(template: jinja2.Template, variables: dict[str, Any]) -> str:
    """The template's output, within the budget."""
    parts: list[str] = []
    length = 0
    with budget():
        for part in template.generate(variables):
            length += len(part)
            if length > MAX_TEXT_CHARS:
                raise _too_long(length)
            parts.append(part)
    return "".join(parts)

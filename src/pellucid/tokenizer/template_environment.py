"""The sandbox that chat templates run in.

It is that of Hugging Face's `apply_chat_template` (jinja2's immutable sandbox, trim_blocks, lstrip_blocks, loop
controls, `raise_exception`, `strftime_now`, `tojson` without HTML or ASCII escapes, the `generation` tag) with limits
on what a template may use up (template_limits.py). jinja2 has no hooks for all the places where a template can repeat
or enlarge something, so the parsed template is rewritten before it is compiled: instruments are put in, filters whose
names no template can write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sized
from datetime import datetime
from functools import lru_cache, wraps
from typing import Any, ClassVar

import jinja2
from jinja2 import meta, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from pellucid.tokenizer import template_limits as limits

# Filters of no use to a prompt whose cost cannot be bounded beforehand.
_REMOVED_FILTERS = ("striptags", "urlize", "wordwrap", "xmlattr", "pprint", "random")
# Filters that look at their arguments' elements one by one at most, so deep arguments are no danger.
_SHALLOW_FILTERS = frozenset(
    "list length count first last map select reject selectattr rejectattr items reverse default d".split()  # noqa: SIM905
)
_WORD_FILTERS = frozenset(["title", "wordcount"])
_WIDTH_FILTERS = frozenset(["center", "indent", "truncate", "batch", "slice", "round"])


class RaisedInTemplateError(TemplateError):
    """The template itself refused its input with `raise_exception`."""


def _tick(chars: int) -> None:
    """One turn of a loop or one run of a macro or block, whose own text has `chars` characters."""
    limits.spend(1, chars)


def _joined(*values: Any) -> str:
    """The `~` operator."""
    limits.allow(*map(limits.deep_chars, values))
    return "".join(map(str, values))


def _guarded(value: Any) -> Any:
    """A value about to be written, compared or hashed."""
    limits.spend()
    return limits.guarded(value)


# Names that no template can write.
_INSTRUMENTS = {"(tick)": _tick, "(joined)": _joined, "(guarded)": _guarded, "(measured)": limits.measured}


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - jinja2's signature
        """Every call in a template comes through here."""
        limits.spend()
        if args or kwargs or isinstance(getattr(__obj, "__self__", None), (str, bytes)):
            args = limits.check_call(__obj, args, kwargs)
        result = super().call(__context, __obj, *args, **kwargs)
        return limits.guarded(result) if __obj is _new_dict else limits.measured(result)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """The intercepted operators come through here."""
        if operator == "+" and isinstance(left, (str, list, tuple)) and isinstance(right, (str, list, tuple)):
            add = limits.allow if isinstance(left, str) else limits.allow_elements
            add(len(left) + len(right))
            return left + right  # type: ignore[operator]
        if operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(value, (str, list, tuple)) and isinstance(times, int):
                    repeat = limits.allow if isinstance(value, str) else limits.allow_elements
                    repeat(len(value) * max(times, 0))
            if isinstance(left, int) and isinstance(right, int):
                limits.allow_bits(left.bit_length() + right.bit_length())
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            limits.allow_bits(left.bit_length() * abs(right))
        elif operator == "%" and isinstance(left, str):
            limits.check_percent(left, right)
        limits.spend()
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format`, which the sandbox replaces by its own."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def checked(*args: Any, **kwargs: Any) -> str:
            limits.check_format(value.__self__, args, kwargs)
            return str(wrapped(*args, **kwargs))

        return checked

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """No underscore names at all."""
        return not attr.startswith("_") and super().is_safe_attribute(obj, attr, value)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _check_size(tree)
        _Instrumentation().visit(tree)
        tree.set_environment(self)
        return tree


def _check_size(tree: nodes.Node) -> None:
    level: list[nodes.Node] = [tree]
    total = depth = 0
    while level:
        depth, total = depth + 1, total + len(level)
        if depth > limits.MAX_NODE_DEPTH or total > limits.MAX_NODES:
            raise limits.LimitError("it is nested too deeply" if depth > limits.MAX_NODE_DEPTH else "it is too long")
        level = [child for node in level for child in node.iter_child_nodes()]


def _instrument(name: str, value: nodes.Expr, *args: nodes.Expr) -> nodes.Filter:
    # A filter is called directly, a function would go through the sandbox's checks every time.
    return nodes.Filter(value, name, list(args), [], None, None)


class _Instrumentation(NodeTransformer):
    """Puts the instruments into a parsed template."""

    def _with_tick(self, node: Any) -> nodes.Node:
        chars = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        tick = nodes.ExprStmt(_instrument("(tick)", nodes.Const(chars)))
        node.body.insert(0, tick.set_lineno(node.lineno))
        return node  # type: ignore[no-any-return]

    visit_For = visit_Macro = visit_CallBlock = visit_Block = _with_tick  # noqa: N815 - jinja2's naming

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _instrument("(joined)", *node.nodes).set_lineno(node.lineno)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _instrument("(guarded)", node.expr)
        for operand in node.ops:
            operand.expr = _instrument("(guarded)", operand.expr)
        return node.set_lineno(node.lineno)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice) and node.ctx == "load":
            return _instrument("(measured)", node).set_lineno(node.lineno)
        return node

    def _container(self, node: nodes.List | nodes.Tuple | nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        if isinstance(node, nodes.Tuple) and node.ctx != "load":
            return node
        return _instrument("(guarded)", node).set_lineno(node.lineno)

    visit_List = visit_Tuple = visit_Dict = _container  # noqa: N815

    def visit_Name(self, node: nodes.Name) -> nodes.Node:  # noqa: N802
        # The names under which a macro finds arguments that it did not declare.
        if node.ctx == "load" and node.name in ("varargs", "kwargs"):
            return _instrument("(guarded)", node).set_lineno(node.lineno)
        return node


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's words for training; here it is its content."""

    tags: ClassVar[set[str]] = {"generation"}  # type: ignore[misc]

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _TemplateNamespace(Namespace):
    """jinja2's `namespace` without underscore names, through which its internals could be replaced."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # No named parameter, so that `namespace(self=...)` works.
        attributes = dict(*args[1:], **kwargs)
        for name in attributes:
            _check_namespace_name(name)
        Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_namespace_name(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<Namespace>"


def _check_namespace_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold the underscore name {name!r}")


def _guard_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose arguments are checked before it runs and whose result is charged."""

    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        # jinja2 puts the context or environment first for filters that ask for it.
        skipped = 1 if hasattr(function, "jinja_pass_arg") else 0
        passed, values = args[:skipped], args[skipped:]
        limits.spend()
        values = _check_filter(name, values, kwargs)
        result = function(*passed, *values, **kwargs)
        return limits.metered(result) if isinstance(result, Iterator) else limits.measured(result)

    return guarded


def _check_filter(name: str, values: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    subject = values[0] if values else None
    if isinstance(subject, str):
        # A filter that takes words apart one by one goes through a long text without a look at the clock.
        limits.spend(len(subject) if name in _WORD_FILTERS else 1 + len(subject) // 1024, len(subject))
        if name in ("list", "sort", "unique", "batch", "slice", "groupby"):
            limits.allow_elements(len(subject))
    elif isinstance(subject, Sized):
        limits.spend(len(subject) // 64)
    if name not in _SHALLOW_FILTERS:
        for value in (*values, *kwargs.values()):
            limits.guarded(value)
    numbers = [abs(v) for v in (*values[1:], *kwargs.values()) if isinstance(v, int)]
    if name in _WIDTH_FILTERS and numbers:
        limits.allow(*numbers)
    if name == "indent" and isinstance(subject, str):
        width = values[1] if len(values) > 1 else kwargs.get("width", 4)
        limits.allow((subject.count("\n") + 1) * (len(width) if isinstance(width, str) else abs(int(width))))
    elif name == "replace" and len(values) >= 3:
        limits.check_replace(str(subject), tuple(map(str, values[1:3])), {})
    elif name == "format":
        limits.check_percent(str(subject), [*values[1:], *kwargs.values()])
    elif name == "join":
        if not isinstance(subject, (str, list, tuple, dict)):
            values = (limits.items_of(subject), *values[1:])  # type: ignore[arg-type]
        separator = str(values[1] if len(values) > 1 else kwargs.get("d", ""))
        limits.check_join(separator, (values[0],), {})
    elif name == "sum" and not isinstance(kwargs.get("start", values[2] if len(values) > 2 else 0), (int, float)):
        raise SecurityError("sum adds numbers only in chat templates")
    return values


def _written(value: Any) -> Any:
    """What `{{ … }}` is about to write."""
    if isinstance(value, str):
        limits.spend(1, len(value))
        return value
    limits.spend()
    return limits.guarded(value)


def _now() -> datetime:
    return datetime.now()


def _strftime_now(pattern: str) -> str:
    if len(pattern) > 1000:
        raise limits.LimitError("strftime_now takes at most 1000 characters")
    return _now().strftime(pattern)


def _raise_exception(message: Any) -> None:
    raise RaisedInTemplateError(str(limits.guarded(message)))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    width = indent if isinstance(indent, int) else len(indent or "")
    if width > 64:
        raise limits.LimitError("tojson takes an indent of at most 64")
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    if ensure_ascii:
        # The marks of shielding.py must survive; they are private-use characters, which are no part of any language.
        text = re.sub(r"\\u(db[89a-f][0-9a-f])\\u(d[c-f][0-9a-f]{2})", _private_use_pair, text)
        text = re.sub(r"\\u(e[0-9a-f]{3}|f[0-8][0-9a-f]{2})", lambda match: chr(int(match[1], 16)), text)
    return text


def _private_use_pair(match: re.Match[str]) -> str:
    return chr(0x10000 + ((int(match[1], 16) - 0xD800) << 10) + int(match[2], 16) - 0xDC00)


def _new_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


@lru_cache(maxsize=1)
def _environment() -> _Environment:
    # Without the optimizer nothing is computed while a template is compiled.
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        optimized=False,
        finalize=_written,
        extensions=[loopcontrols, _GenerationTag],
    )
    for name in _REMOVED_FILTERS:
        environment.filters.pop(name, None)
    environment.filters["tojson"] = _tojson
    environment.filters.update({name: _guard_filter(name, f) for name, f in environment.filters.items()})
    environment.filters.update(_INSTRUMENTS)
    del environment.globals["lipsum"]
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["dict"] = _new_dict
    environment.globals["namespace"] = _TemplateNamespace
    return environment


@lru_cache(maxsize=16)
def compile_template(source: str) -> jinja2.Template:
    """The compiled template; jinja2's errors and LimitError for sources past the limits."""
    if len(source) > limits.MAX_SOURCE_CHARS:
        raise limits.LimitError(f"it has {len(source)} characters; at most {limits.MAX_SOURCE_CHARS} are allowed")
    return _environment().from_string(source)


@lru_cache(maxsize=16)
def free_variables(source: str) -> frozenset[str]:
    """The names a template takes from outside; none where it is not valid."""
    if len(source) > limits.MAX_SOURCE_CHARS:
        return frozenset()
    try:
        return frozenset(meta.find_undeclared_variables(_environment().parse(source)))
    except (jinja2.TemplateError, limits.LimitError, RecursionError):
        return frozenset()


def render(template: jinja2.Template, variables: dict[str, Any]) -> str:
    """The template's output, within one budget."""
    parts: list[str] = []
    length = 0
    with limits.budget():
        for part in template.generate(variables):
            length += len(part)
            if length > limits.MAX_TEXT_CHARS:
                limits.allow(length)
            parts.append(part)
    return "".join(parts)

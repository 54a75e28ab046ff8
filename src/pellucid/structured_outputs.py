"""What shape an answer must have: the one place for these fields, their defaults and what is allowed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from pellucid.errors import InvalidParameterError, shown

NAME = "structured_outputs"
KINDS = ("json", "json_object", "regex", "choice", "grammar")

MAX_SCHEMA_CHARS = 128 * 1024
MAX_REGEX_CHARS = 8 * 1024
MAX_GRAMMAR_CHARS = 32 * 1024
MAX_CHOICES = 4096
MAX_WHITESPACE_CHARS = 256
DEFAULT_WHITESPACE = r" |\r?\n[ \t]{0,40}"
"""One space, or a new line with its indentation: what JSON printers write, and never an endless run."""


def _help(text: str) -> dict[str, Any]:
    return {"help": text}


@dataclass(frozen=True, slots=True)
class StructuredOutputsParams:
    """The shape that an answer must have: exactly one of `json`, `json_object`, `regex`, `choice` and `grammar`.

    Names follow vLLM. Raises `InvalidParameterError` for a value of another kind or above its size; whether a schema,
    an expression or a grammar can be enforced shows when it is compiled, before the request is queued.
    """

    json: str | Mapping[str, Any] | bool | None = field(
        default=None, metadata=_help("A JSON Schema, as text or as a dict; it is kept as text.")
    )
    json_object: bool = field(default=False, metadata=_help("Any JSON object."))
    regex: str | None = field(
        default=None, metadata=_help("A regular expression that the whole answer matches (the syntax of Rust's regex).")
    )
    choice: tuple[str, ...] | None = field(default=None, metadata=_help("The answer is one of these strings."))
    grammar: str | None = field(default=None, metadata=_help("A context-free grammar in Lark's notation."))
    whitespace_pattern: str | None = field(
        default=None,
        metadata=_help(
            "With json and json_object: a regular expression for each place where JSON allows whitespace. When unset, "
            "a space, or a new line and up to 40 spaces or tabs."
        ),
    )
    disable_any_whitespace: bool = field(
        default=False, metadata=_help("With json and json_object: no whitespace between tokens of JSON at all.")
    )

    def __post_init__(self) -> None:
        if self.json is not None:
            object.__setattr__(self, "json", _schema_text(self.json))
        for name in ("json_object", "disable_any_whitespace"):
            if not isinstance(getattr(self, name), bool):
                raise refusal(name, f"is {shown(getattr(self, name))}, but must be true or false")
        for name, most in (
            ("regex", MAX_REGEX_CHARS),
            ("grammar", MAX_GRAMMAR_CHARS),
            ("whitespace_pattern", MAX_WHITESPACE_CHARS),
        ):
            if getattr(self, name) is not None:
                check_text(name, getattr(self, name), most)
        if self.choice is not None:
            object.__setattr__(self, "choice", _choices(self.choice))
        self._check_together()

    def _check_together(self) -> None:
        given = [name for name in KINDS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            has = f"has {' and '.join(given)}" if given else "has none of them"
            raise InvalidParameterError(NAME, f"{NAME} must have exactly one of {', '.join(KINDS)}, but {has}")
        is_json = given[0] in ("json", "json_object")
        if not is_json and (self.whitespace_pattern is not None or self.disable_any_whitespace):
            raise InvalidParameterError(NAME, f"{NAME} has whitespace options, but they go with json and json_object")
        if self.disable_any_whitespace and self.whitespace_pattern is not None:
            raise refusal("whitespace_pattern", "and disable_any_whitespace exclude each other")

    @property
    def kind(self) -> str:
        """Which of the five it is."""
        return next(name for name in KINDS if getattr(self, name) not in (None, False))

    @classmethod
    def from_mapping(cls, value: Any) -> StructuredOutputsParams:
        """From a JSON object; a name that is not a field is refused, null is not given."""
        if not isinstance(value, Mapping):
            raise InvalidParameterError(
                NAME, f"{NAME} is {shown(value)}, but must be an object with {', '.join(KINDS)}"
            )
        known = [f.name for f in fields(cls)]
        for name in value:
            if name not in known:
                raise InvalidParameterError(NAME, f"{NAME} has {shown(name)}, but knows only {', '.join(known)}")
        return cls(**{name: item for name, item in value.items() if item is not None})


def refusal(name: str, rest: str) -> InvalidParameterError:
    """`structured_outputs.NAME …`"""
    return InvalidParameterError(NAME, f"{NAME}.{name} {rest}")


def check_text(name: str, value: Any, most: int) -> None:
    """Refuse what is no text, half a character, empty or too long."""
    if not isinstance(value, str) or not value or any("\ud800" <= c <= "\udfff" for c in value):
        raise refusal(name, f"is {shown(value)}, but must be text that is not empty")
    if len(value) > most:
        raise refusal(name, f"has {len(value)} characters, more than {most}")


def _schema_text(value: Any) -> str:
    """The schema as JSON text. Order matters: properties are written in the order the schema has them."""
    if isinstance(value, str):
        check_text("json", value, MAX_SCHEMA_CHARS)
        return value
    if not isinstance(value, (Mapping, bool)):
        raise refusal("json", f"is {shown(value)}, but must be a JSON Schema: an object, or its text")
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise refusal("json", f"cannot be written as JSON: {error}") from None
    check_text("json", text, MAX_SCHEMA_CHARS)
    return text


def _choices(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, (list, tuple)) or not value:
        raise refusal("choice", f"is {shown(value)}, but must be a list of strings")
    if len(value) > MAX_CHOICES:
        raise refusal("choice", f"has {len(value)} strings, more than {MAX_CHOICES}")
    for text in value:
        check_text("choice", text, MAX_GRAMMAR_CHARS)
    if sum(map(len, value)) > MAX_GRAMMAR_CHARS:
        raise refusal("choice", f"has more than {MAX_GRAMMAR_CHARS} characters in all")
    return tuple(value)


def schema_number(text: str) -> float:
    """For `json.loads`: a number of a schema that float64 can hold."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:40]} is too large")
    return number

"""One call, read character by character while the model writes it, in each of the forms that models use.

`JsonCallReader`   {"name": "f", "arguments": {"x": 1}}
`NamedCallReader`  f[ARGS]{"x": 1}   or   f{"x": 1}
`SeparatedCallReader`  f<｜tool▁sep｜>{"x": 1}   or   function<｜tool▁sep｜>f and a Markdown block with the arguments
`XmlCallReader`    <function=f><parameter=x>1</parameter></function>
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

SPACE = " \t\r\n"
_NAME_CHARACTER = re.compile(r"[\w.:/-]")


class NotACallError(Exception):
    """What is being read is no call after all."""


class CallReader:
    """Common to all. `name` and `arguments` (JSON) grow as characters are fed.

    `feed` raises `NotACallError` before the call is certain (`has_begun`), never afterwards.
    """

    def __init__(self) -> None:
        self.raw = ""
        """Everything taken."""
        self.name: str | None = None
        self.arguments = ""
        self.is_complete = False
        self.is_broken = False
        """The arguments are no JSON, and nobody can tell where they end: what follows counts to them."""

    @property
    def has_begun(self) -> bool:
        """Whether this is certainly a call: it has a name, and its arguments have begun."""
        return self.name is not None and (bool(self.arguments) or self.is_complete)

    def feed(self, char: str) -> bool:
        """Take the next character; False: the call had ended before it."""
        if self.is_broken:
            self.arguments += char
        elif not self._take(char):
            return False
        self.raw += char
        return True

    def _take(self, char: str) -> bool:
        raise NotImplementedError


class ValueReader:
    """Finds the end of one JSON value. Strings and brackets are followed; what stands between them is not judged."""

    def __init__(self) -> None:
        self.text = ""
        self.is_complete = False
        self._closers: list[str] = []
        self._in_string = self._is_escaped = False

    def feed(self, char: str) -> bool:
        """Take a character; False: the value (a number or a word) ended before it. Raises `NotACallError`."""
        if not self.text and char not in '{["-tfn0123456789':
            raise NotACallError
        if self._in_string:
            self._feed_string(char)
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self._closers.append("}" if char == "{" else "]")
        elif char in "}]" and self._closers:
            if self._closers.pop() != char:
                raise NotACallError
            self.is_complete = not self._closers
        elif not self._closers and char in f"{SPACE},}}]":
            self.is_complete = True
            return False
        self.text += char
        return True

    def _feed_string(self, char: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif char == "\\":
            self._is_escaped = True
        elif char == '"':
            self._in_string = False
            self.is_complete = not self._closers


class JsonCallReader(CallReader):
    """Keys in any order; arguments that come before the name wait for it."""

    NAME_KEYS = ("name",)
    ARGUMENT_KEYS = ("arguments", "parameters")

    def __init__(self) -> None:
        super().__init__()
        self._state = "start"
        self._key: str | None = None
        self._value: ValueReader | None = None
        self._seen: set[str] = set()

    @property
    def _in_arguments(self) -> bool:
        return self._state == "value" and self._key in self.ARGUMENT_KEYS

    def _take(self, char: str) -> bool:
        try:
            self._step(char)
        except NotACallError:
            if not self.has_begun:
                raise
            if self._value is None or not self._in_arguments:
                self.is_complete = True
                return False
            self.is_broken = True
            self.arguments += char
        return True

    def _step(self, char: str) -> None:
        if self._value is not None:
            self._feed_value(char)
        elif char in SPACE:
            pass
        elif self._state == "start" and char == "{":
            self._state = "key"
        elif self._state in ("key", "comma") and char == "}":
            self._end_object()
        elif self._state == "comma" and char == ",":
            self._state = "key"
        elif self._state == "colon" and char == ":":
            self._state = "value"
        elif self._state == "value" or (self._state == "key" and char == '"'):
            self._value = ValueReader()
            self._feed_value(char)
        else:
            raise NotACallError

    def _end_object(self) -> None:
        if self.name is None:
            raise NotACallError
        self.arguments = self.arguments or "{}"
        self.is_complete = True

    def _feed_value(self, char: str) -> None:
        value = self._value
        assert value is not None
        was_taken = value.feed(char)
        if was_taken and self._in_arguments and value.text[0] in "{[":
            self.arguments += char
        if value.is_complete:
            self._value = None
            self._end_value(value.text)
            if not was_taken:
                self._step(char)

    def _end_value(self, text: str) -> None:
        if self._state == "key":
            self._key, self._state = _string(text), "colon"
            kind = "arguments" if self._key in self.ARGUMENT_KEYS else self._key
            if kind in self._seen:
                raise NotACallError
            self._seen.add(kind)
            return
        if self._key in self.NAME_KEYS:
            self.name = _string(text)
            if not self.name:
                raise NotACallError
        elif self._in_arguments and text[0] not in "{[":
            # some models write the JSON as a string
            self.arguments = "{}" if text == "null" else _string(text) or "{}"
        self._state = "comma"


class NamedCallReader(CallReader):
    """The name, then perhaps tags in brackets (`[CALL_ID]…` and `[ARGS]`), then the arguments."""

    def __init__(self) -> None:
        super().__init__()
        self._state = "name"
        self._text = ""
        self._value = ValueReader()

    def _take(self, char: str) -> bool:
        if self._state == "value":
            try:
                self._value.feed(char)
                self.is_complete = self._value.is_complete
            except NotACallError:
                self.is_broken = True
            self.arguments += char
        elif self._state == "tag":
            self._text += char
            if char == "]":
                if self._text not in ("[CALL_ID]", "[ARGS]"):
                    raise NotACallError
                self._state, self._text = "id" if self._text == "[CALL_ID]" else "arguments", ""
        else:
            self._before_value(char)
        return True

    def _before_value(self, char: str) -> None:
        if char in "[{" and self._state == "name":
            self.name = self._text.strip()
            if not self.name:
                raise NotACallError
        if char == "{":
            self._state = "value"
            self._value.feed(char)
            self.arguments = char
        elif char == "[" and self._state != "arguments":
            self._state, self._text = "tag", char
        elif self._state == "name" and (char in SPACE or self._goes_on_with(char)):
            self._text += char
        elif char not in SPACE and (self._state != "id" or not char.isalnum()):
            raise NotACallError

    def _goes_on_with(self, char: str) -> bool:
        return bool(_NAME_CHARACTER.match(char)) and self._text[-1:] not in (*SPACE,)


class SeparatedCallReader(CallReader):
    """DeepSeek's two: a name and its arguments, or a type, a name and its arguments in a Markdown block of JSON."""

    SEPARATOR = "<｜tool▁sep｜>"
    _FENCE = "```json"

    def __init__(self) -> None:
        super().__init__()
        self._state = "first"
        self._names = {"first": "", "second": ""}
        self._text = ""
        self._value = ValueReader()

    def _take(self, char: str) -> bool:
        if self._state == "value":
            self._feed_value(char)
        elif self._state == "foot":
            self.is_complete = char not in f"{SPACE}`"
            return not self.is_complete
        elif self._state == "separator":
            self._text += char
            if not self.SEPARATOR.startswith(self._text):
                raise NotACallError
            if self._text == self.SEPARATOR:
                self._state, self._text = "second", ""
        else:
            self._before_value(char)
        return True

    def _before_value(self, char: str) -> None:
        if char == "{" and self._state != "first":
            self.name = self._names["second"] or self._names["first"]
            self._state = "value"
            self._feed_value(char)
        elif self._state != "fence" and _NAME_CHARACTER.match(char):
            self._names[self._state] += char
        elif self._state == "first":
            if char != "<":
                raise NotACallError
            self._state, self._text = "separator", char
        else:
            if self._names["second"] or char not in SPACE:
                self._state = "fence"
            self._text += "" if char in SPACE else char
            if not self._FENCE.startswith(self._text):
                raise NotACallError

    def _feed_value(self, char: str) -> None:
        try:
            self._value.feed(char)
        except NotACallError:
            self.is_broken = True
        self.arguments += char
        if self._value.is_complete:
            self.is_complete = not self._text
            self._state = "foot"


class XmlCallReader(CallReader):
    """Values are text; what type they have is what the tool's schema says.

    schemas: by tool, its parameters' JSON schema.
    """

    _HEAD, _PARAMETER, _END, _END_PARAMETER = "<function=", "<parameter=", "</function>", "</parameter>"

    def __init__(self, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__()
        self._schemas = schemas
        self._state = "head"
        self._text = ""
        self._parameter = ""

    def _take(self, char: str) -> bool:
        self._text += char
        if self._state == "value":
            if self._text.endswith(self._END_PARAMETER):
                self._end_parameter(self._text.removesuffix(self._END_PARAMETER))
            return True
        tag = self._text = self._text.lstrip()
        if not tag:
            return True
        heads = (self._HEAD,) if self._state == "head" else (self._PARAMETER, self._END)
        head = next((one for one in heads if tag.startswith(one) or one.startswith(tag)), None)
        if head is None:
            if not self.has_begun:
                raise NotACallError
            self.arguments += "}"
            self.is_complete = True
            return False
        if char == ">":
            self._end_tag(head, tag.removeprefix(head)[:-1].strip())
        return True

    def _end_tag(self, head: str, name: str) -> None:
        self._text = ""
        if head == self._HEAD:
            if not name:
                raise NotACallError
            self.name, self.arguments, self._state = name, "{", "body"
        elif head == self._PARAMETER:
            self._parameter, self._state = name, "value"
        else:
            self.arguments += "}"
            self.is_complete = True

    def _end_parameter(self, text: str) -> None:
        value = text.removeprefix("\n").removesuffix("\n")
        comma = "" if self.arguments == "{" else ", "
        key = json.dumps(self._parameter, ensure_ascii=False)
        self.arguments += f"{comma}{key}: {_typed(value, self._schema())}"
        self._text, self._state = "", "body"

    def _schema(self) -> Any:
        properties = self._schemas.get(self.name or "", {}).get("properties")
        return properties.get(self._parameter) if isinstance(properties, Mapping) else None


def _typed(text: str, schema: Any) -> str:
    """The JSON of a value that stands as text: a string where the schema says so, or where it is nothing else."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if kind != "string":
        word = {"true": "true", "false": "false", "null": "null", "none": "null"}.get(text.strip().lower())
        if word is not None:
            return word
        try:
            json.loads(text, parse_constant=_no_constant)
            return text.strip()
        except ValueError:
            pass
    return json.dumps(text, ensure_ascii=False)


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _string(text: str) -> str:
    try:
        value = json.loads(text)
    except ValueError:
        raise NotACallError from None
    if not isinstance(value, str):
        raise NotACallError
    return value

"""What an answer must be, as a grammar: reasoning first, then calls, or text with calls in it, or a shape.

Calls are written in the form of the model's family, so that it writes what it was made for and its parser reads it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pellucid.errors import InvalidParameterError
from pellucid.sampling.constraints.grammar_text import expression, json_expression, literal
from pellucid.server.checks import refused
from pellucid.server.output.families import CallForm, ToolFamily
from pellucid.server.output.reasoning import ReasoningMarks
from pellucid.server.tools import ToolUse
from pellucid.structured_outputs import MAX_GRAMMAR_CHARS, NAME, StructuredOutputsParams

TEXT = "/(.|\\n)*/"
_SPACE = "/[ \\n]{0,4}/"
_TEXT_OF_NO_CALL = "/[^{ \\n](.|\\n)*/"
"""In families whose calls have no mark: text that does not begin as one."""
_LINE = "\n"
_END_PARAMETER = "\n</parameter>"
_STRING_NOTES = frozenset(("type", "enum", "title", "description", "default", "examples"))
"""What a schema of a string may have where it stands as plain text: nothing else could be enforced there."""


class AnswerGrammar:
    """Rules of one grammar. controls: ids of control tokens by their text, which no text can match."""

    def __init__(self, controls: Mapping[str, int]) -> None:
        self._controls = dict(sorted(controls.items(), key=lambda item: -len(item[0])))
        self._rules: list[str] = []

    def text(self) -> str:
        """The grammar in Lark's notation. Raises `ApiError` where it is too large."""
        text = "\n".join(reversed(self._rules))
        if len(text) > MAX_GRAMMAR_CHARS:
            raise refused(
                "tools",
                f"the tools' schemas make a grammar of {len(text)} characters, more than {MAX_GRAMMAR_CHARS}: "
                "name one of them, or let the model decide",
            )
        return text

    def add(self, name: str, body: str, attributes: str = "") -> str:
        """A rule; gives its name back."""
        self._rules.append(f"{name}{attributes}: {body}")
        return name

    def written(self, text: str) -> str:
        """Text as part of a rule, control tokens by their ids."""
        pieces = re.split(f"({'|'.join(map(re.escape, self._controls))})", text) if self._controls else [text]
        tokens = (f"<[{self._controls[p]}]>" if p in self._controls else literal(p) for p in pieces if p)
        return " ".join(tokens)

    def up_to(self, name: str, mark: str) -> str:
        """A rule for any text that ends with its first mark."""
        if mark in self._controls:
            return self.add(name, f"{TEXT} {self.written(mark)}")
        return self.add(name, TEXT, f"[suffix={literal(mark)}]")

    def after_reasoning(self, marks: ReasoningMarks | None, is_open: bool, answer: str) -> str:
        """An answer that the model may reason before, or goes on reasoning before."""
        if marks is None:
            return answer
        inside = self.up_to("reasoning", marks.close)
        opened = self.written(marks.open)
        head = f"{opened}? {inside}" if is_open else f"({opened} {inside})?"
        return f"{head} {self.add('space', _SPACE)} {answer}"

    def calls(self, use: ToolUse, family: ToolFamily, names: tuple[str, ...], *, is_strict: bool) -> str:
        """One call of the tools named or, where there may be more, several. is_strict: not only strict tools'
        arguments follow their schemas."""
        return self._list(self._call(use, family, names, is_strict), use, family.form)

    def _list(self, call: str, use: ToolUse, form: CallForm, begun: str = "") -> str:
        more = f"({self.written(form.between)} {call})*" if use.parallel else ""
        parts = (self.written(form.head.removeprefix(begun)), call, more, self.written(form.foot))
        return self.add("calls", " ".join(filter(None, parts)))

    def text_with_calls(self, use: ToolUse, family: ToolFamily) -> str:
        """Any text; what begins as a call is one."""
        names = tuple(use.schemas)
        if family.marks.may_lack:
            calls = self.calls(use, family, names, is_strict=False)
            return f'{calls} | {self.add("text", _TEXT_OF_NO_CALL)} | ""'
        mark = family.marks.opens[0]
        call = self._call(use, family, names, False, mark)
        if family.form.head:
            call = self._list(call, use, family.form, mark)
        before, rest = self.up_to("before", mark), self.add("rest", TEXT)
        return f"({before} {call})* {rest}" if use.parallel else f"{before} {call} | {rest}"

    def _call(self, use: ToolUse, family: ToolFamily, names: tuple[str, ...], is_strict: bool, begun: str = "") -> str:
        """One call, without the mark that has been written already (`begun`)."""
        one_of = []
        for index, tool in enumerate(use.tools):
            function = tool["function"]
            if function["name"] in names:
                is_enforced = is_strict or bool(function.get("strict"))
                schema = function.get("parameters") or {} if is_enforced else {}
                write = self._xml if family.writes_xml else self._json
                one_of.append(self.add(f"call_{index}", write(index, function, schema, family)))
        before, after = family.form.before.removeprefix(begun), family.form.after
        parts = (self.written(before), f"({' | '.join(one_of)})", self.written(after))
        return self.add("call", " ".join(filter(None, parts)))

    def _json(self, tool: int, function: Mapping[str, Any], schema: Mapping[str, Any], family: ToolFamily) -> str:
        head, foot = f'{{"name": {json.dumps(function["name"])}, "{family.arguments_key}": ', "}"
        if family.around_arguments is not None:
            head, foot = (part.replace("{name}", function["name"]) for part in family.around_arguments)
        arguments = self.add(f"arguments_{tool}", _json_rule({"type": "object", **schema}, tool))
        return " ".join(filter(None, (self.written(head), arguments, self.written(foot))))

    def _xml(self, tool: int, function: Mapping[str, Any], schema: Mapping[str, Any], _: ToolFamily) -> str:
        parts = [literal(f"<function={function['name']}>\n")]
        if not schema:
            value = self.add(f"value_{tool}", TEXT, f"[suffix={literal('</parameter>')}]")
            parts.append(f'("<parameter=" /[^<>\\n]{{1,64}}/ ">" {value} "\\n")*')
        for index, (key, value) in enumerate((schema.get("properties") or {}).items()):
            rule = self._xml_value(f"value_{tool}_{index}", tool, value, schema, bool(function.get("strict")))
            part = f"{literal(f'<parameter={key}>{_LINE}')} {rule} {literal(_LINE)}"
            parts.append(part if key in (schema.get("required") or ()) else f"({part})?")
        return " ".join([*parts, literal("</function>")])

    def _xml_value(self, rule: str, tool: int, value: Any, schema: Mapping[str, Any], is_strict: bool) -> str:
        """A parameter's value with the mark that ends it."""
        value = value if isinstance(value, dict) else {}
        if value.get("type") != "string":
            inner = {**value, **{name: schema[name] for name in ("$defs", "definitions") if name in schema}}
            return f"{self.add(rule, _json_rule(inner, tool))} {literal(_END_PARAMETER)}"
        if value.get("enum"):
            return f"({' | '.join(literal(str(one)) for one in value['enum'])}) {literal(_END_PARAMETER)}"
        if is_strict and set(value) - _STRING_NOTES:
            place = f"tools[{tool}].function.parameters"
            unlike = ", ".join(sorted(set(value) - _STRING_NOTES))
            raise refused(place, f"{place} has a string with {unlike}: this model writes strings as text, without it")
        return self.add(rule, TEXT, f"[suffix={literal(_END_PARAMETER)}]")


def answer_grammar(
    controls: Mapping[str, int],
    marks: ReasoningMarks | None,
    is_open: bool,
    family: ToolFamily | None,
    use: ToolUse | None,
    shape: StructuredOutputsParams | None,
) -> StructuredOutputsParams | None:
    """The structured outputs of a request; None where any text will do.

    Raises `ApiError` for tools and `InvalidParameterError` for a shape that cannot be enforced.

    marks, is_open: of the reasoning, and whether the prompt ends inside it. family, use: of the tools. shape: what the
    request says the answer must be, where it is no call.
    """
    grammar = AnswerGrammar(controls)
    if use is None or family is None:
        if shape is None or (marks is None and not is_open):
            return shape
        answer = shape_rule(grammar, shape, is_open)
        if answer is None:
            return shape
    elif use.required is not None:
        answer = grammar.calls(use, family, use.required, is_strict=True)
    elif shape is not None:
        answer = shape_rule(grammar, shape, True) or ""
        answer = f"({grammar.calls(use, family, tuple(use.schemas), is_strict=True)} | {answer})"
    elif use.strict:
        grammar.add("start", grammar.text_with_calls(use, family))
        return StructuredOutputsParams(grammar=grammar.text())
    else:
        return None
    grammar.add("start", grammar.after_reasoning(marks, is_open, answer))
    return StructuredOutputsParams(grammar=grammar.text())


def shape_rule(grammar: AnswerGrammar, shape: StructuredOutputsParams, must: bool) -> str | None:
    """The rule of a shape; a grammar of its own cannot be part of another."""
    if shape.grammar is not None:
        if must:
            raise InvalidParameterError(NAME, f"{NAME}.grammar leaves no room for tool calls and reasoning")
        return None
    return grammar.add("shape", expression(shape))


def _json_rule(schema: Mapping[str, Any], tool: int) -> str:
    """Refusals name the tool."""
    place = f"tools[{tool}].function.parameters"
    try:
        return json_expression(json.dumps(schema, ensure_ascii=False))
    except InvalidParameterError as error:
        raise refused(place, str(error).replace(f"{NAME}.json", place, 1)) from None

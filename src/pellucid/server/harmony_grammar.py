"""What an answer in the harmony format must be, as a grammar: messages of reasoning, then calls, a shape or text."""

from __future__ import annotations

from collections.abc import Mapping

from pellucid.server.answer_grammar import TEXT, AnswerGrammar, shape_rule
from pellucid.server.output.families import ToolFamily
from pellucid.server.output.harmony import ASSISTANT, CHANNEL, END, MESSAGE, HarmonyParser
from pellucid.server.tools import ToolUse
from pellucid.structured_outputs import StructuredOutputsParams


def harmony_grammar(
    controls: Mapping[str, int],
    parser: HarmonyParser,
    family: ToolFamily | None,
    use: ToolUse | None,
    shape: StructuredOutputsParams | None,
) -> StructuredOutputsParams | None:
    """The structured outputs of a request; None where any text will do. Raises as `answer_grammar` does.

    parser: as it is after the prompt. family, use: of the tools. shape: what the answer must be where it is no call.
    """
    grammar = AnswerGrammar(controls)
    required = None if use is None else use.required
    if required is None and shape is not None and parser.is_in_text and not parser.is_reasoning:
        return shape  # the answer goes on inside
    if shape is None and required is None and (use is None or not use.strict):
        return None
    answer = _answer(grammar, family, use, shape)
    if answer is None:
        return shape
    grammar.add("start", _after_messages(grammar, parser, answer, with_preambles=shape is None or required is not None))
    return StructuredOutputsParams(grammar=grammar.text())


def _answer(
    grammar: AnswerGrammar, family: ToolFamily | None, use: ToolUse | None, shape: StructuredOutputsParams | None
) -> str | None:
    """The last messages; None: only the shape itself can be enforced, without a head."""
    choices = []
    required = None if use is None else use.required
    if use is not None and family is not None:
        names = tuple(use.schemas) if required is None else required
        is_strict = required is not None or shape is not None
        choices.append(grammar.calls(use, family, names, is_strict=is_strict))
    if required is None:
        inside: str | None = TEXT
        if shape is not None:
            inside = shape_rule(grammar, shape, use is not None)
            if inside is None:
                return None
        choices.append(f"{grammar.written(f'{CHANNEL}final{MESSAGE}')} {inside}")
    return f"({' | '.join(choices)})"


def _after_messages(grammar: AnswerGrammar, parser: HarmonyParser, answer: str, *, with_preambles: bool) -> str:
    """The answer with messages of reasoning before it; with_preambles: and with messages to the user."""
    end, head = grammar.up_to("text", END), grammar.written(ASSISTANT)
    channels = ("analysis", "commentary") if with_preambles else ("analysis",)
    heads = " | ".join(grammar.written(f"{CHANNEL}{channel}{MESSAGE}") for channel in channels)
    message = grammar.add("message", f"({heads}) {end} {head}")
    begun = f"{end} {head} " if parser.is_in_text else "" if parser.has_role else f"{head} "
    return f"{begun}{message}* {answer}"

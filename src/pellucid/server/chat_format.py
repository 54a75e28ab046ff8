"""What a model's chat template can do, and how the model's answers are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pellucid.server.answer_grammar import answer_grammar
from pellucid.server.harmony_grammar import harmony_grammar
from pellucid.server.output.choice import ChoiceParser
from pellucid.server.output.families import ToolFamily, tool_family
from pellucid.server.output.harmony import HarmonyParser, num_reasoning_pieces, writes_harmony
from pellucid.server.output.reasoning import ReasoningMarks, ReasoningParser, reasoning_marks
from pellucid.server.tools import ToolUse
from pellucid.structured_outputs import StructuredOutputsParams
from pellucid.tokenizer.chat_template import template_variables
from pellucid.tokenizer.detokenizer import IncrementalDetokenizer


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """Made once per model (`chat_format`)."""

    maps_developer: bool
    """The template does not know the role `developer`: it becomes `system`."""
    knows_tools: bool
    """The template has a place for tools; otherwise they go into the system message (tool_prompt.py)."""
    variables: frozenset[str]
    """What else it takes: `enable_thinking`, `reasoning_effort`, …"""
    tools: ToolFamily | None
    """How calls are written; None: the template's way is not known."""
    reasoning: ReasoningMarks | None
    writes_harmony: bool
    """The template writes the history in the harmony format (harmony_history.py)."""
    control_marks: frozenset[str]
    """Marks that are control tokens, which texts leave out unless skip_special_tokens is false."""

    def reads_control_tokens(self, use: ToolUse | None) -> bool:
        """Whether an answer's text has to show control tokens so that it can be read."""
        marks: set[str] = set()
        if use is not None and self.tools is not None:
            marks |= {*self.tools.marks.opens, self.tools.marks.close or ""}
        if self.reasoning is not None:
            marks |= {self.reasoning.open, self.reasoning.close}
        return bool(marks & self.control_marks)

    def parser(self, use: ToolUse | None, prompt: str, going_on: str) -> ChoiceParser:
        """A parser for one answer. prompt, going_on: as `ReasoningParser` takes them."""
        calls = None if use is None or self.tools is None else self.tools.parser(use.schemas)
        parallel = use is None or use.parallel
        harmony = self._harmony_parser(use, prompt)
        if harmony is not None:
            return ChoiceParser(harmony, None if isinstance(calls, HarmonyParser) else calls, parallel=parallel)
        reasoning = None if self.reasoning is None else ReasoningParser(self.reasoning, prompt, going_on)
        return ChoiceParser(reasoning, calls, parallel=parallel)

    def _harmony_parser(self, use: ToolUse | None, prompt: str) -> HarmonyParser | None:
        """For answers in the harmony format; None: they are in another."""
        splits = self.reasoning is not None and self.reasoning.is_harmony
        calls = use is not None and self.tools is not None and self.tools.is_harmony
        if not (splits or calls):
            return None
        return HarmonyParser(use.schemas if use and calls else None, splits_reasoning=splits, prompt=prompt)

    def shape(
        self,
        use: ToolUse | None,
        shape: StructuredOutputsParams | None,
        prompt: str,
        going_on: str,
        controls: Mapping[str, int],
    ) -> StructuredOutputsParams | None:
        """What an answer must be (answer_grammar.py). prompt, going_on: as in `parser`."""
        harmony = self._harmony_parser(use, prompt)
        if harmony is not None:
            return harmony_grammar(controls, harmony, self.tools, use, shape)
        is_open = self.reasoning is not None and ReasoningParser(self.reasoning, prompt, going_on).is_open
        return answer_grammar(controls, self.reasoning, is_open, self.tools, use, shape)

    def num_reasoning_tokens(
        self, token_ids: Sequence[int], prompt: str, going_on: str, tokenizer: Any, *, skip_special_tokens: bool
    ) -> int:
        """How many tokens of an answer are reasoning, with the marks around it. prompt, going_on: as in `parser`."""
        if self.reasoning is None:
            return 0
        detokenizer = IncrementalDetokenizer(
            tokenizer, skip_special_tokens=skip_special_tokens, strip_prefix_space=False
        )
        if self.reasoning.is_harmony:
            return num_reasoning_pieces(map(detokenizer.push, token_ids), prompt)
        parser = ReasoningParser(self.reasoning, prompt, going_on)
        for count, token_id in enumerate(token_ids):
            if parser.is_over:
                return count if parser.has_reasoned else 0
            parser.push(detokenizer.push(token_id))
        return len(token_ids) if parser.has_reasoned else 0


def chat_format(tokenizer: Any, tool_parser: str, reasoning_parser: str) -> ChatFormat:
    """The format of a tokenizer's templates; parsers by name, or "auto"."""
    templates = tokenizer.chat_templates
    template = tokenizer.chat_template or ""
    controls = frozenset(tokenizer.special_tokens)
    return _chat_format(template, templates.get("tool_use"), controls, tool_parser, reasoning_parser)


@lru_cache(maxsize=16)
def _chat_format(
    template: str, tool_template: str | None, controls: frozenset[str], tool_parser: str, reasoning_parser: str
) -> ChatFormat:
    source = tool_template or template
    knows_tools = "tools" in template_variables(source)
    return ChatFormat(
        maps_developer="developer" not in template,
        knows_tools=knows_tools,
        variables=template_variables(template),
        tools=tool_family(tool_parser, (source, template), knows_tools),
        reasoning=reasoning_marks(reasoning_parser, template),
        writes_harmony=writes_harmony(template),
        control_marks=controls,
    )

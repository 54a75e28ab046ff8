"""Messages to a prompt, by the template that comes with the model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pellucid.errors import ChatTemplateError, InvalidParameterError, one_line, shown
from pellucid.tokenizer.shielding import ControlStrings, Shield

if TYPE_CHECKING:
    from pellucid.tokenizer.tokenizer import Tokenizer

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A template's output. protected: (begin, end) character spans in which control strings are text."""

    text: str
    protected: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A prompt ready for the engine: what the model reads, and its ids."""

    text: str
    token_ids: list[int]


class ChatTemplate:
    """One Jinja chat template.

    source: the template, as in `tokenizer.chat_template`. bos_token, eos_token: what those names stand for in it.
    control_strings: the tokenizer's special tokens; inside messages they stay text (shielding.py).
    """

    def __init__(
        self, source: str, bos_token: str = "", eos_token: str = "", control_strings: ControlStrings | None = None
    ) -> None:
        if not isinstance(source, str):
            raise InvalidParameterError("chat_template", f"chat_template is {shown(source)}, but must be a string")
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._control_strings = control_strings if control_strings is not None else ControlStrings({})

    def render(
        self,
        messages: Sequence[Message],
        /,
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> RenderedPrompt:
        """The prompt for `messages`.

        add_generation_prompt: end with the opening of an assistant turn; by default unless continue_final_message.
        continue_final_message: leave the last message open, so that the model goes on with it.
        tools, documents, variables: handed to the template.

        Raises InvalidParameterError for messages that are not well formed and ChatTemplateError where the template
        refuses them, is no valid template, or runs past its limits.
        """
        _check_flag("continue_final_message", continue_final_message)
        if add_generation_prompt is not None:
            _check_flag("add_generation_prompt", add_generation_prompt)
        if continue_final_message and add_generation_prompt:
            raise InvalidParameterError(
                "continue_final_message",
                "continue_final_message and add_generation_prompt exclude each other: the first leaves the last "
                "message open, the second opens a new one",
            )
        data = {
            **{name: _plain(value, name) for name, value in variables.items()},
            "messages": _as_template_takes(check_messages(messages), self.source),
            "tools": _check_tools(tools),
            "documents": _plain(documents, "documents"),
        }
        shield = Shield(self._control_strings, self.source, data)
        data = shield.protect(data)
        if continue_final_message:
            _mark_final_message(data["messages"], shield.tail)
            add_generation_prompt = False
        generate = True if add_generation_prompt is None else add_generation_prompt
        rendered = self._run({**self._tokens, **data, "add_generation_prompt": generate})
        if continue_final_message:
            rendered = _cut_at_tail(rendered, shield.tail)
        text, spans = shield.reveal(rendered)
        return RenderedPrompt(text, tuple(spans))

    def _run(self, data: dict[str, Any]) -> str:
        import jinja2

        from pellucid.tokenizer.template_environment import RaisedInTemplateError, compile_template, render
        from pellucid.tokenizer.template_limits import LimitError

        try:
            return render(compile_template(self.source), data)
        except RaisedInTemplateError as error:
            raise ChatTemplateError(one_line(str(error))) from None
        except LimitError as error:
            raise ChatTemplateError(f"the chat template was stopped: {error}") from None
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(
                f"the chat template is not valid: line {error.lineno}: {one_line(str(error.message))}"
            ) from None
        except jinja2.exceptions.SecurityError as error:
            raise ChatTemplateError(
                f"the chat template did something that is not allowed: {one_line(str(error))}"
            ) from None
        except RecursionError:
            raise ChatTemplateError("the chat template was stopped: it is nested or calls itself too deeply") from None
        except Exception as error:  # Untrusted code can fail in any way; the caller gets one kind of error.
            raise ChatTemplateError(f"the chat template failed: {one_line(str(error))}") from None


def encode_chat(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    /,
    *,
    chat_template: str | None = None,
    add_generation_prompt: bool | None = None,
    continue_final_message: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    **variables: Any,
) -> ChatPrompt:
    """Render `messages` with the model's template (or `chat_template`) and encode the result.

    Control strings in messages, tools, documents and variables stay text. Where the model wants BOS there is exactly
    one, whether the template writes it or not; EOS is never added. Errors as ChatTemplate.render.
    """
    prompt = render_chat(
        tokenizer,
        messages,
        chat_template=chat_template,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        tools=tools,
        documents=documents,
        **variables,
    )
    return encode_rendered(tokenizer, prompt)


def render_chat(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    /,
    *,
    chat_template: str | None = None,
    add_generation_prompt: bool | None = None,
    continue_final_message: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    **variables: Any,
) -> RenderedPrompt:
    """The first half of `encode_chat`: messages to text."""
    source = chat_template if chat_template is not None else _template_of(tokenizer, bool(tools))
    template = ChatTemplate(
        source,
        bos_token=_spelling(tokenizer, tokenizer.bos_id),
        eos_token=_spelling(tokenizer, tokenizer.eos_id),
        control_strings=tokenizer.control_strings,
    )
    return template.render(
        messages,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        tools=tools,
        documents=documents,
        **variables,
    )


def encode_rendered(tokenizer: Tokenizer, prompt: RenderedPrompt) -> ChatPrompt:
    """The second half of `encode_chat`: text to ids."""
    ids = tokenizer.encode_with_protected(prompt.text, prompt.protected, add_special_tokens=False)
    if tokenizer.add_bos and tokenizer.bos_id is not None and ids[:1] != [tokenizer.bos_id]:
        ids.insert(0, tokenizer.bos_id)
    return ChatPrompt(prompt.text, ids)


def template_variables(source: str) -> frozenset[str]:
    """The names that a chat template takes from outside, such as `tools`; none where it is no valid template."""
    from pellucid.tokenizer.template_environment import free_variables

    return free_variables(source)


def _template_of(tokenizer: Tokenizer, with_tools: bool) -> str:
    if with_tools and "tool_use" in tokenizer.chat_templates:
        return tokenizer.chat_templates["tool_use"]
    if tokenizer.chat_template is None:
        raise ChatTemplateError(
            "the model has no chat template (a base model usually has none): use generate with a plain prompt, or pass "
            "chat_template=..."
        )
    return tokenizer.chat_template


def _spelling(tokenizer: Tokenizer, token_id: int | None) -> str:
    return "" if token_id is None else tokenizer.token_text(token_id)


def check_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Plain copies of the messages: content is text, absent fields are left out, tool arguments are objects.

    Raises InvalidParameterError naming the place, such as `messages[3].content`.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise InvalidParameterError("messages", "messages must be a list of {role, content} objects")
    if not messages:
        raise InvalidParameterError("messages", "messages is empty; at least one message is needed")
    return [_check_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _check_message(message: Any, place: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidParameterError(place, f"{place} must be an object with role and content, not {_kind(message)}")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidParameterError(f"{place}.role", f"{place}.role must be a non-empty string, not {_kind(role)}")
    plain = {key: _plain(value, f"{place}.{key}") for key, value in message.items() if value is not None}
    content = message.get("content")
    if content is not None or not message.get("tool_calls"):
        plain["content"] = _check_content(content, f"{place}.content")
    calls = plain.get("tool_calls") or []
    if not isinstance(calls, list):
        raise InvalidParameterError(f"{place}.tool_calls", f"{place}.tool_calls must be a list, not {_kind(calls)}")
    for call in calls:
        _parse_arguments(call)
    return plain


def _check_tools(tools: Any) -> Any:
    plain = _plain(tools, "tools")
    if plain is not None and not (isinstance(plain, list) and all(isinstance(tool, dict) for tool in plain)):
        raise InvalidParameterError("tools", f"tools is {shown(tools)}, but must be a list of objects")
    return plain


def _check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise InvalidParameterError(name, f"{name} is {shown(value)}, but must be true or false")


def _check_content(content: Any, place: str) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence) and not isinstance(content, bytes):
        return "".join(_check_part(part, f"{place}[{index}]") for index, part in enumerate(content))
    raise InvalidParameterError(place, f"{place} must be a string or a list of text parts, not {_kind(content)}")


def _check_part(part: Any, place: str) -> str:
    if not isinstance(part, Mapping) or part.get("type") != "text":
        kind = part.get("type") if isinstance(part, Mapping) else _kind(part)
        raise InvalidParameterError(
            f"{place}.type", f'{place} must be a text part {{"type": "text", "text": ...}}; got {shown(kind)}'
        )
    if not isinstance(part.get("text"), str):
        raise InvalidParameterError(f"{place}.text", f"{place}.text must be a string, not {_kind(part.get('text'))}")
    for name, value in part.items():
        if name not in ("type", "text") and value not in (None, [], ""):
            known = "a text part has type and text"
            raise InvalidParameterError(f"{place}.{name}", f"{place} has {shown(name)}, which is not known; {known}")
    return str(part["text"])


def _parse_arguments(call: Any) -> None:
    """Templates expect a tool call's arguments as an object; OpenAI's API carries them as JSON text."""
    function = call.get("function") if isinstance(call, dict) else None
    if isinstance(function, dict) and isinstance(function.get("arguments"), str):
        try:
            arguments = json.loads(function["arguments"])
        except ValueError:
            return
        if isinstance(arguments, dict):
            function["arguments"] = arguments


_JOINS_ARGUMENTS = re.compile(r"\+\s*[\w.\[\]'\"]*arguments['\"]?\]?\s*(?:\+|-?\}\})")
_ASKS_FOR_NONE = re.compile(r"content['\"]?\]?\s+is\s+(?:not\s+)?none")


@lru_cache(maxsize=16)
def _ways(source: str) -> tuple[bool, bool]:
    """Whether a template joins arguments to texts, and whether it asks if content is none."""
    return bool(_JOINS_ARGUMENTS.search(source)), bool(_ASKS_FOR_NONE.search(source))


def _as_template_takes(messages: list[dict[str, Any]], source: str) -> list[dict[str, Any]]:
    """Some templates (DeepSeek's) join a call's arguments to texts as they came, and ask whether content is none."""
    joins, asks = _ways(source)
    for message in messages if joins or asks else ():
        if asks and message.get("tool_calls"):
            message.setdefault("content", None)
        for call in message.get("tool_calls") or () if joins else ():
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict) and isinstance(function.get("arguments"), dict):
                function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
    return messages


def _plain(value: Any, place: str, depth: int = 0) -> Any:
    """JSON data only: other objects would bring their methods into the sandbox."""
    if depth > 64:
        place = place if len(place) <= 80 else f"{place[:77]}..."
        raise InvalidParameterError(place, f"{place} is nested more than 64 levels deep")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return {_plain(key, place, depth + 1): _plain(item, f"{place}.{key}", depth + 1) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [_plain(item, f"{place}[{index}]", depth + 1) for index, item in enumerate(value)]
    raise InvalidParameterError(place, f"{place} must be JSON data, not {_kind(value)}")


def _kind(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__


def _mark_final_message(messages: list[dict[str, Any]], tail: str) -> None:
    # The space after the mark shows afterwards whether the template trims contents.
    messages[-1]["content"] = messages[-1].get("content", "") + tail + " "


def _cut_at_tail(rendered: str, tail: str) -> str:
    """Everything before the last message's end; a template that trims contents loses the space around it too."""
    at = rendered.rfind(tail)
    if at < 0:
        raise ChatTemplateError(
            "continue_final_message cannot work with this chat template: it does not show the last message's content"
        )
    kept = rendered[:at]
    return kept if rendered[at + 1 : at + 2] == " " else kept.rstrip()

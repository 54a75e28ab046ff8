"""Messages to prompts: checks, variables, helpers, continuing a message, one BOS."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest
from small_tokenizers import byte_level, byte_level_metadata, sentencepiece

from pellucid.errors import ChatTemplateError, InvalidParameterError
from pellucid.tokenizer import template_environment
from pellucid.tokenizer.chat_template import ChatTemplate, encode_chat
from pellucid.tokenizer.shielding import ControlStrings
from pellucid.tokenizer.tokenizer import Tokenizer

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TRIMMING = "{% for m in messages %}[{{ m.role }}] {{ m.content | trim }}{{ eos_token }}{% endfor %}"
HELLO: list[dict[str, Any]] = [{"role": "user", "content": "Hello"}]


def render(source: str, messages: list[dict[str, Any]] | None = None, **options: Any) -> str:
    return ChatTemplate(source, "<s>", "</s>").render(messages or HELLO, **options).text


class TestMessages:
    @pytest.mark.parametrize(
        ("messages", "field"),
        [
            ([], "messages"),
            ("hello", "messages"),
            ({"role": "user", "content": "x"}, "messages"),
            (["hello"], "messages[0]"),
            ([{"content": "x"}], "messages[0].role"),
            ([{"role": 3, "content": "x"}], "messages[0].role"),
            ([{"role": "", "content": "x"}], "messages[0].role"),
            ([*HELLO, *HELLO, *HELLO, {"role": "user"}], "messages[3].content"),
            ([{"role": "user", "content": None}], "messages[0].content"),
            ([{"role": "user", "content": 5}], "messages[0].content"),
            ([{"role": "user", "content": b"x"}], "messages[0].content"),
            ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0].type"),
            ([{"role": "user", "content": ["x"]}], "messages[0].content[0].type"),
            ([{"role": "user", "content": [{"type": "text", "text": 1}]}], "messages[0].content[0].text"),
            ([{"role": "user", "content": "x", "extra": {1, 2}}], "messages[0].extra"),
            ([{"role": "user", "content": "x", "extra": {"a": [object()]}}], "messages[0].extra.a[0]"),
        ],
    )
    def test_what_is_wrong_is_named(self, messages: Any, field: str) -> None:
        with pytest.raises(InvalidParameterError) as caught:
            ChatTemplate(CHATML).render(messages)
        assert caught.value.field == field
        assert field.split("[")[0] in str(caught.value)

    def test_text_parts_are_joined(self) -> None:
        parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
        assert render("{{ messages[0].content }}", [{"role": "user", "content": parts}]) == "Hello"

    def test_roles_are_the_templates_business(self) -> None:
        assert render("{{ messages[0].role }}", [{"role": "critic", "content": ""}]) == "critic"

    def test_arguments_are_text_where_they_are_joined_to_text(self) -> None:
        call = {"type": "function", "function": {"name": "f", "arguments": '{"x": "é"}'}}
        messages = [{"role": "assistant", "tool_calls": [call]}]
        for source, expected in (
            ("{{ 'a' + messages[0]['tool_calls'][0]['function']['arguments'] + 'b' }}", 'a{"x": "é"}b'),
            ("{{ 'a' + messages[0].tool_calls[0].function.arguments }}", 'a{"x": "é"}'),
            ("{{ 'a' + messages[0].tool_calls[0].function.arguments | tojson }}", 'a{"x": "é"}'),
            ("{{ messages[0]['content'] is none }}", "True"),
            ("{% if messages[0].content is not none %}a{% endif %}b", "b"),
        ):
            assert ChatTemplate(source).render(messages).text == expected

    def test_a_tool_call_needs_no_content_and_its_arguments_are_an_object(self) -> None:
        call = {"type": "function", "function": {"name": "f", "arguments": '{"x": [1, "é"]}'}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        source = "{% set f = messages[0].tool_calls[0].function %}{{ f.arguments.x[1] }}{{ 'content' in messages[0] }}"
        assert render(source, [message]) == "éFalse"
        assert call["function"] == {"name": "f", "arguments": '{"x": [1, "é"]}'}

    def test_the_callers_messages_are_left_alone(self) -> None:
        messages = [{"role": "user", "content": "<s>"}, {"role": "assistant", "content": "x"}]
        before = json.dumps(messages)
        ChatTemplate(CHATML, control_strings=ControlStrings({"<s>": 1})).render(messages, continue_final_message=True)
        assert json.dumps(messages) == before

    def test_nesting_is_bounded(self) -> None:
        deep: Any = "x"
        for _ in range(500):
            deep = [deep]
        with pytest.raises(InvalidParameterError, match="64 levels"):
            render("x", [{"role": "user", "content": "x", "extra": deep}])


class TestHelpers:
    def test_the_templates_own_message_is_the_error(self) -> None:
        source = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}ok"
        with pytest.raises(ChatTemplateError, match=r"^System role not supported$"):
            render(source, [{"role": "system", "content": "x"}])
        assert render(source) == "ok"

    def test_strftime_now(self, monkeypatch: pytest.MonkeyPatch) -> None:
        moment = datetime(2025, 3, 4, 17, 6, 7, 89)
        monkeypatch.setattr(template_environment, "_now", lambda: moment)
        fields = "%d %b %Y %H:%M:%S %A %a %B %m %y %I %p %f %j %U %W %w %% %x %X %c é"
        assert render(f"{{{{ strftime_now('{fields}') }}}}") == moment.strftime(fields)
        assert render("{% if strftime_now is defined %}yes{% endif %}") == "yes"

    def test_tojson_keeps_text_and_order(self) -> None:
        tool = {"z": "é中🦙<b>&'", "a": [1, 2.5, None, True]}
        assert render("{{ tools[0] | tojson }}", tools=[tool]) == json.dumps(tool, ensure_ascii=False)
        assert render("{{ tools[0] | tojson(indent=2) }}", tools=[tool]) == json.dumps(
            tool, ensure_ascii=False, indent=2
        )
        assert render("{{ tools[0] | tojson(ensure_ascii=True, sort_keys=True) }}", tools=[tool]) == json.dumps(
            tool, sort_keys=True
        )
        assert render("{{ tools[0] | tojson(separators=(',', ':')) }}", tools=[tool]) == json.dumps(
            tool, ensure_ascii=False, separators=(",", ":")
        )

    def test_white_space_as_hugging_face(self) -> None:
        source = "  {% for m in messages %}\n    {{ m.content }}\n  {%- endfor %}\n{# note #}\nend"
        assert render(source) == "    Helloend"

    def test_loop_controls_and_the_generation_tag(self) -> None:
        source = "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}"
        assert render(source + "{{ i }}{% endfor %}{% generation %}g{{ messages[0].content }}{% endgeneration %}") == (
            "013gHello"
        )

    def test_namespace_macros_blocks_and_slices(self) -> None:
        source = (
            "{% set ns = namespace(n=0, self=1) %}{% macro wrap(x, y='!') %}<{{ x }}{{ y }}>{% endmacro %}"
            "{% for m in messages[::-1] %}{% set ns.n = ns.n + 1 %}{{ wrap(m.content ~ ns.n) }}{% endfor %}"
            "{% set text %}{{ messages | length }}{% endset %}{{ text | int * 2 }}{{ dict(a=1).a }}"
            "{{ '%s-%d' % ('a', 3) }}"
            "{{ '{} {n}'.format('x', n=5) }}{{ messages | map(attribute='role') | join(',') }}"
        )
        assert render(source, HELLO * 2) == "<Hello1!><Hello2!>41a-3x 5user,user"

    def test_variables(self) -> None:
        source = "{{ bos_token }}{{ eos_token }}{{ enable_thinking }}{{ documents[0].title }}{{ tools }}{{ missing }}"
        text = render(source, enable_thinking=False, documents=[{"title": "T"}])
        assert text == "<s></s>FalseTNone"


class TestGenerationPrompt:
    def test_is_added_by_default(self) -> None:
        assert render(CHATML).endswith("<|im_start|>assistant\n")
        assert render(CHATML, add_generation_prompt=False).endswith("Hello<|im_end|>\n")

    def test_the_last_message_goes_on(self) -> None:
        messages = [*HELLO, {"role": "assistant", "content": "The answer is "}]
        assert render(CHATML, messages, continue_final_message=True).endswith("assistant\nThe answer is ")
        # A template that trims contents loses the space, as with Hugging Face.
        assert render(TRIMMING, messages, continue_final_message=True) == "[user] Hello</s>[assistant] The answer is"

    def test_both_at_once_are_refused(self) -> None:
        with pytest.raises(InvalidParameterError, match="exclude each other") as caught:
            render(CHATML, continue_final_message=True, add_generation_prompt=True)
        assert caught.value.field == "continue_final_message"

    def test_a_template_that_hides_the_last_message(self) -> None:
        with pytest.raises(ChatTemplateError, match="continue_final_message"):
            render("{{ messages[0].content }}", [*HELLO, *HELLO], continue_final_message=True)


class TestEncodeChat:
    @pytest.mark.parametrize("source", [CHATML, "{{ bos_token }}" + CHATML])
    @pytest.mark.parametrize("make", [byte_level, sentencepiece])
    def test_exactly_one_bos(self, make: Any, source: str) -> None:
        tokenizer: Tokenizer = make(add_bos_token=True)
        ids = encode_chat(tokenizer, HELLO, chat_template=source).token_ids
        assert ids[0] == tokenizer.bos_id
        assert ids.count(ids[0]) == 1

    def test_no_bos_where_the_model_wants_none_and_never_an_eos(self) -> None:
        ids = encode_chat(byte_level(add_eos_token=True), HELLO, chat_template=CHATML).token_ids
        assert ids[0] == 1
        assert ids[-1] != 3

    def test_no_template(self, gemma3: Tokenizer) -> None:
        with pytest.raises(ChatTemplateError, match=r"no chat template.*generate.*chat_template="):
            encode_chat(gemma3, HELLO)
        prompt = encode_chat(gemma3, HELLO, chat_template="{{ bos_token }}<start_of_turn>{{ messages[0].content }}")
        assert prompt.token_ids[:2] == [2, 105]

    def test_the_template_for_tools(self) -> None:
        tokenizer = byte_level()
        tokenizer.chat_templates["default"] = tokenizer.chat_template = "plain"
        tokenizer.chat_templates["tool_use"] = "with tools"
        assert encode_chat(tokenizer, HELLO).text == "plain"
        assert encode_chat(tokenizer, HELLO, tools=[{"name": "f"}]).text == "with tools"

    def test_named_templates_are_read(self) -> None:
        metadata_key = "tokenizer.chat_template"

        metadata = byte_level_metadata() | {
            metadata_key: "a",
            f"{metadata_key}.tool_use": "b",
            f"{metadata_key}s": ["x"],
        }
        assert Tokenizer.from_gguf(metadata).chat_templates == {"default": "a", "tool_use": "b"}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% if %}", "not valid: line 1"),
        ("a\n{{ b\n", "not valid: line"),
        ("{{ nothing.at.all }}", "failed: 'nothing' is undefined"),
        ("{{ 1 / 0 }}", "failed: division by zero"),
        ("{{ messages[0].content + 1 }}", "failed"),
        ("{% include 'x' %}", "failed: no loader"),
    ],
)
def test_broken_templates(source: str, message: str) -> None:
    with pytest.raises(ChatTemplateError, match=message):
        render(source)

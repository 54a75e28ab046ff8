"""--json-schema, --json-object, --regex, --choice and --grammar."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest


def test_flags_become_structured_outputs(verbs: Any, tmp_path: Path) -> None:
    schema, grammar = tmp_path / "schema.json", tmp_path / "rules.lark"
    schema.write_text('{"type": "integer"}', encoding="utf-8")
    grammar.write_text('start: "é"', encoding="utf-8")
    for arguments, field, value in (
        (["--json-schema", str(schema)], "json", '{"type": "integer"}'),
        (["--json-object"], "json_object", True),
        (["--regex", "a|b"], "regex", "a|b"),
        (["--choice", "a, b", "--choice", "c"], "choice", ["a, b", "c"]),
        (["--grammar", str(grammar)], "grammar", 'start: "é"'),
    ):
        result = verbs("generate", "Once", "--json", "--max-tokens", "1", *arguments)
        assert result.code == 0, result
        assert json.loads(result.out)["sampling_params"]["structured_outputs"][field] == value


def test_a_chat_keeps_to_the_shape(verbs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hello\nagain\n")))
    result = verbs("chat", "--choice", "yes", "--quiet")
    assert result.code == 0, result
    assert result.out.split() == ["yes", "yes"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--regex", "a", "--choice", "b"], "exactly one"),
        (["--json-schema", "no-such-file"], "json_schema no-such-file cannot be read"),
        (["--regex", ""], "structured_outputs.regex"),
        (["--choice", "a", "--ignore-eos"], "ignore_eos"),
    ],
)
def test_bad_shapes_are_refused(verbs: Any, arguments: list[str], words: str) -> None:
    result = verbs("generate", "Once", *arguments)
    assert (result.code, result.out) == (2, "")
    assert words in result.err

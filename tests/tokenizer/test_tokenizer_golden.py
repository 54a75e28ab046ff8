"""Ids equal those of transformers, and of llama.cpp except where it departs from the model's own tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pellucid.tokenizer.chat_template import encode_chat
from pellucid.tokenizer.pre_tokenizers import PRE_TOKENIZERS
from pellucid.tokenizer.tokenizer import Tokenizer

Golden = Callable[[str], dict[str, Any]]

# Where llama.cpp differs from the published tokenizer, by model and mode: the corpus text's beginning, and why.
LLAMA_CPP_DIFFERS = {
    ("smollm2", "plain"): {},
    ("smollm2", "special"): {},
    ("gemma3", "plain"): {
        "<s>[INST]": "llama.cpp takes the HTML tag </s>, a token of its own here, for an end-of-text token",
        "<table>": "the same",
        "▁under": "llama.cpp does not join written ▁ marks to the tokens for runs of spaces",
    },
    ("gemma3", "special"): {"▁under": "the same"},
}


@pytest.mark.parametrize("mode", ["plain", "special"])
@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_real_models(model: str, mode: str, golden: Golden, corpus: list[str], request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(model)
    expected = golden(model)
    for text, ids in zip(corpus, expected[mode], strict=True):
        ours = tokenizer.encode(text, add_special_tokens=False, parse_special=mode == "special")
        assert " ".join(map(str, ours)) == ids, text
    differing = [corpus[int(index)] for index in expected[f"{mode}_llama_cpp_differs"]]
    reasons = LLAMA_CPP_DIFFERS[model, mode]
    assert len(differing) == len(reasons)
    assert all(any(text.startswith(start) for start in reasons) for text in differing)


def test_chat_ids_of_the_default_model(smollm2: Tokenizer, golden: Golden) -> None:
    for chat in golden("smollm2")["chat"]:
        prompt = encode_chat(
            smollm2, chat["messages"], continue_final_message=chat.get("continue_final_message", False)
        )
        assert prompt.text == chat["text"]
        assert " ".join(map(str, prompt.token_ids)) == chat["ids"]


def _rows(content: dict[str, Any]) -> dict[str, list[str | None]]:
    return {name: row.get("hugging_face", row["llama_cpp"]) for name, row in content["pre"].items()}


def test_every_rule_for_cutting_words(golden: Golden, corpus: list[str]) -> None:
    content = golden("pre_tokenizers")
    for name, rows in _rows(content).items():
        tokenizer = Tokenizer.from_gguf(
            {
                "tokenizer.ggml.model": "gpt2",
                "tokenizer.ggml.pre": name,
                "tokenizer.ggml.tokens": content["tokens"],
                "tokenizer.ggml.merges": content["merges"],
            }
        )
        for index, ids in zip(content["texts"], rows, strict=True):
            if ids is not None:
                ours = tokenizer.encode(corpus[index], add_special_tokens=False)
                assert " ".join(map(str, ours)) == ids, (name, corpus[index])


def test_golden_rules_cover_the_whole_table(golden: Golden) -> None:
    # Falcon's rules look for digits in the bytes as they are spelled, which real Falcon merges know and the small
    # vocabulary does not; llama.cpp does not either. test_tokenizer.py has a case of its own for them.
    covered = {_signature(name) for name in golden("pre_tokenizers")["pre"]} | {_signature("falcon")}
    assert {_signature(name) for name in PRE_TOKENIZERS} == covered


def _signature(name: str) -> tuple[Any, ...]:
    row = PRE_TOKENIZERS[name]
    return row.steps, row.nfc, row.ignore_merges


def test_rules_really_differ(golden: Golden) -> None:
    # A table whose rows all did the same would pass only if the golden rows were all the same.
    rows = [tuple(row) for row in _rows(golden("pre_tokenizers")).values()]
    assert len(set(rows)) >= 14


def test_llama_cpp_departs_from_transformers_only_as_known(golden: Golden, corpus: list[str]) -> None:
    content = golden("pre_tokenizers")
    for name, row in content["pre"].items():
        if "hugging_face" not in row:
            continue
        differing = [corpus[i] for i, ids in zip(content["texts"], row["llama_cpp"], strict=True) if ids is not None]
        if PRE_TOKENIZERS[name].nfc:
            # llama.cpp skips the normal form that these tokenizers ask for.
            assert len(differing) == 4
        elif name in ("gpt-4o", "tekken"):
            # llama.cpp approximates \p{Lu}, \p{M}, … by [A-Z]: words with combining marks come out cut.
            assert len(differing) == 10
        else:
            assert differing == [], name

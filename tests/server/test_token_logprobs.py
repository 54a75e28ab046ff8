"""Which tokens a piece of text was made of: one answer whether streamed or whole, however many tokens come at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from http_server import RunningServer
from hypothesis import given
from hypothesis import strategies as st
from scripted import THINKING, say, scripted_engine

from pellucid.outputs import CompletionOutput, Logprob
from pellucid.server.output.token_logprobs import PieceLogprobs

LINE = "The quick brown fox jumps over the lazy dog, héé. "
PATH = "/v1/chat/completions"


class Pieces:
    """A tokenizer of given pieces; the last is a control token."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = [*pieces, b"<end>"]

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces[token_id]

    def is_special(self, token_id: int) -> bool:
        return token_id == len(self.pieces) - 1


def delta(token_ids: list[int]) -> CompletionOutput:
    logprobs = [{token_id: Logprob(-1.0, 1, str(token_id))} for token_id in token_ids]
    return CompletionOutput(0, "", token_ids, 0, logprobs=logprobs)


def names(entries: list[dict[str, Any]]) -> list[int]:
    return [int(entry["token"]) for entry in entries]


def test_a_token_that_a_piece_cuts_is_in_it_once() -> None:
    pieces = PieceLogprobs(Pieces([b"Hello", b" wor", b"ld!", b"STOP"]), True, 0)
    pieces.take(delta([0, 1, 2, 3, 4]))
    assert names(pieces.of(0, "Hello w")) == [0, 1]
    assert names(pieces.of(7, "orld")) == [2]
    assert names(pieces.of(11, "")) == []


def test_all_bytes_of_a_character_are_in_its_piece() -> None:
    pieces = PieceLogprobs(Pieces([b"a", b"\xf0\x9f", b"\xa6", b"\x99 b", b"c"]), True, 0)
    pieces.take(delta([0, 1, 2]))
    assert names(pieces.of(0, "a")) == [0]
    pieces.take(delta([3, 4, 5]))
    assert names(pieces.of(1, "🦙 bc")) == [1, 2, 3, 4]


def test_what_is_left_out_before_a_piece_is_left_out() -> None:
    pieces = PieceLogprobs(Pieces([b"<think>", b"hm", b"</think>", b"\n\nYes", b"."]), True, 0)
    pieces.take(delta([0, 1, 2, 3, 4, 5]))
    assert names(pieces.of(7, "hm")) == [1]
    assert names(pieces.of(19, "Yes.")) == [3, 4]


@given(st.data())
def test_pieces_and_deltas_change_nothing(data: st.DataObject) -> None:
    parts = data.draw(st.lists(st.binary(max_size=5) | st.text(min_size=1, max_size=3).map(str.encode), max_size=12))
    tokenizer = Pieces(parts)
    ids = [i for i in range(len(parts)) if data.draw(st.booleans())] + [len(parts)]
    text = b"".join(tokenizer.pieces[i] for i in ids[:-1]).decode("utf-8", "replace")
    shown = text[: data.draw(st.integers(0, len(text)))]

    whole = PieceLogprobs(tokenizer, True, 0)
    whole.take(delta(ids))
    expected = names(whole.of(0, shown))
    assert ids[-1] not in expected  # the end is no part of the text
    before = b"".join(tokenizer.pieces[i] for i in expected[:-1]).decode("utf-8", "replace")
    assert len(before) <= len(shown) + 1  # the last one alone reaches past the text

    streamed = PieceLogprobs(tokenizer, True, 0)
    found: list[int] = []
    at = 0
    for end in [*sorted(data.draw(st.lists(st.integers(0, len(shown)), max_size=4))), len(shown)]:
        while ids and (end == len(shown) or data.draw(st.booleans())):
            streamed.take(delta([ids.pop(0)]))
        if ids and end > at:  # a text comes with its tokens or after them
            streamed.take(delta(ids))
            ids = []
        found += names(streamed.of(at, shown[at:end]))
        at = end
    assert found == expected


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with RunningServer(scripted_engine()) as running:
        yield running


def streamed(server: RunningServer, body: dict[str, Any]) -> list[Any]:
    return list(server.client().chat.completions.create(model="scripted", stream=True, **body))


def test_guesses_that_come_true_with_the_end(server: RunningServer) -> None:
    """Text and end token in one delta: the end is no part of the text."""
    body: dict[str, Any] = {"messages": [{"role": "user", "content": say(LINE * 8)}], "logprobs": True, "seed": 1}
    whole = server.client().chat.completions.create(model="scripted", **body)
    chunks = [choice for chunk in streamed(server, body) for choice in chunk.choices]
    assert max(len(c.logprobs.content) for c in chunks if c.logprobs) > 1  # several tokens came at once
    for c in chunks:
        if c.logprobs:
            shown = "".join(t.token for t in c.logprobs.content)
            assert "�" in shown or shown.replace("�", "") == (c.delta.content or "")
    entries = [t for c in chunks if c.logprobs for t in c.logprobs.content]
    assert entries == whole.choices[0].logprobs.content
    assert bytes(b for t in entries for b in t.bytes).decode() == LINE * 8 == whole.choices[0].message.content
    responses = server.post(
        "/v1/responses", {"input": say(LINE * 8), "include": ["message.output_text.logprobs"], "seed": 1}
    ).json()
    [part] = responses["output"][0]["content"]
    assert [t["bytes"] for t in part["logprobs"]] == [t.bytes for t in entries]
    legacy = server.post("/v1/completions", {"prompt": f"<s>{say(LINE)}<s>assistant:", "logprobs": 0, "max_tokens": 99})
    logprobs = legacy.json()["choices"][0]["logprobs"]
    assert logprobs["text_offset"][-1] == len(legacy.json()["choices"][0]["text"])  # the end token is told here


@pytest.mark.parametrize("stop", ["lazy", "y dog, h", "é"])
def test_a_stop_string_is_in_no_logprobs(server: RunningServer, stop: str) -> None:
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": say(LINE)}],
        "logprobs": True,
        "seed": 1,
        "stop": stop,
    }
    whole = server.client().chat.completions.create(model="scripted", **body).choices[0]
    entries = [t for chunk in streamed(server, body) for c in chunk.choices if c.logprobs for t in c.logprobs.content]
    assert entries == whole.logprobs.content
    assert bytes(b for t in entries for b in t.bytes).decode() == whole.message.content == LINE.partition(stop)[0]


def test_reasoning_has_its_own() -> None:
    with RunningServer(scripted_engine(THINKING)) as running:
        text = "I think.\n</think>\n\nYes. "
        body: dict[str, Any] = {"messages": [{"role": "user", "content": say(text)}], "logprobs": True, "seed": 1}
        [choice] = running.post(PATH, body).json()["choices"]
        shown = {
            name: "".join(t["token"] for t in choice["logprobs"][name]) for name in ("content", "reasoning_content")
        }
        assert shown["content"] == choice["message"]["content"]
        assert shown["reasoning_content"] == choice["message"]["reasoning_content"] == "I think."
        found: dict[str, list[Any]] = {"content": [], "reasoning_content": []}
        for chunk in streamed(running, body):
            for one in chunk.choices:
                for name in found:
                    found[name] += (
                        [t["token"] for t in (one.logprobs.model_dump().get(name) or [])] if one.logprobs else []
                    )
        assert {name: "".join(tokens) for name, tokens in found.items()} == shown

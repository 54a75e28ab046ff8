"""What a structure forces is guessed: the same bits in fewer steps, and nothing is asked where nothing is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_driver import PROMPT, drain
from mock_model import make_engine
from tokenizer.small_tokenizers import sentencepiece

from pellucid.engine.llm import LLM
from pellucid.engine.llm_engine import LLMEngine
from pellucid.engine.speculation import forced
from pellucid.engine.speculation.drafts import Draft
from pellucid.formats.gguf import GGUFFile
from pellucid.outputs import RequestOutput
from pellucid.sampling.constraints import compiler
from pellucid.sampling.constraints.constraint import Constraint
from pellucid.sampling_params import SamplingParams
from pellucid.structured_outputs import StructuredOutputsParams
from pellucid.tokenizer.tokenizer import Tokenizer

KEYS = {
    name: {"type": "integer", "maximum": 99, "minimum": 0} for name in ("number_of_customers", "year_of_foundation")
}
SCHEMA = {"type": "object", "properties": KEYS, "required": list(KEYS), "additionalProperties": False}
SHAPES = (
    StructuredOutputsParams(json=SCHEMA),
    StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=True),
    StructuredOutputsParams(regex="number: [0-9]{1,3}, and that is (all|enough) for today"),
    StructuredOutputsParams(choice=("the first of them", "the second of them", "thus none")),
    StructuredOutputsParams(grammar='start: "begin " /[a-c]{2}/ " middle " start? "end"'),
)


def asked(engine: LLMEngine, shape: StructuredOutputsParams, **params: Any) -> RequestOutput:
    fields: dict[str, Any] = {"seed": 5, "max_tokens": 150, "logprobs": 2, "structured_outputs": shape, **params}
    engine.add_request("one", PROMPT, SamplingParams(**fields))
    output = drain(engine)["one"]
    engine.check_integrity()
    return output


def bits(output: RequestOutput) -> Any:
    return [(a.token_ids, a.text, a.finish_reason, a.logprobs, a.error) for a in output.outputs]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: str(shape.kind))
def test_no_bit_depends_on_it(shape: StructuredOutputsParams) -> None:
    for seed in range(3):
        for more in (
            {"temperature": 0},
            {"temperature": 0.7, "top_p": 0.9},
            {"temperature": 1.3, "n": 2},
            {"max_tokens": 9},
        ):
            plain, guessing = make_engine(), make_engine(speculative_method="auto")
            assert bits(asked(guessing, shape, seed=seed, **more)) == bits(asked(plain, shape, seed=seed, **more))


def test_forced_bytes_take_no_steps_of_their_own() -> None:
    plain, guessing = make_engine(), make_engine(speculative_method="auto")
    assert guessing.speculator is not None
    guessing.speculator.costs.observe = lambda num_rows, seconds: None  # type: ignore[method-assign]
    shape = StructuredOutputsParams(regex="abcdefghijklmnopqrstuvwxyz[0-9]")
    output = asked(guessing, shape)
    assert bits(output) == bits(asked(plain, shape))
    metrics = output.metrics
    assert metrics is not None
    assert metrics.num_accepted_tokens >= 20
    assert guessing.stats.num_steps <= plain.stats.num_steps - 20


def test_it_is_seldom_asked_where_nothing_is_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Constraint] = []
    original = Constraint.look_ahead
    monkeypatch.setattr(Constraint, "look_ahead", lambda self: looks.append(self) or original(self))
    asked(make_engine(speculative_method="auto"), StructuredOutputsParams(regex="[a-g]{200}"), max_tokens=190)
    assert 0 < len(looks) <= forced.IN_VAIN + 190 // forced.THEN_EVERY + 1
    looks.clear()
    for method in ("off", "ngram"):
        asked(make_engine(speculative_method=method), SHAPES[0])  # type: ignore[arg-type]
    assert not looks


def test_looking_ahead_does_not_count_against_the_answers_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that just fits, or does not, does so with speculation too."""
    shape = StructuredOutputsParams(regex="start(.|\n)*a(.|\n){50}c(.|\n)*")
    monkeypatch.setitem(compiler.LIMITS, "max_lexer_states", 300)
    plain, guessing = asked(make_engine(), shape), asked(make_engine(speculative_method="auto"), shape)
    assert plain.outputs[0].finish_reason == "error"
    assert bits(guessing) == bits(plain)


def test_a_choice_is_guessed_as_it_was_made_before() -> None:
    """Between two things nothing forces one; the second time it is likely to be as the first."""
    plain, guessing = make_engine(), make_engine(speculative_method="auto")
    assert guessing.speculator is not None
    guessing.speculator.lookup = Nothing()
    guessing.speculator.costs.observe = lambda num_rows, seconds: None  # type: ignore[method-assign]
    shape = StructuredOutputsParams(regex="(abcd(x|y)){30}")
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 150, "logit_bias": {ord("x"): 100}}
    output = asked(guessing, shape, **options)
    assert bits(output) == bits(asked(plain, shape, **options))
    assert output.metrics is not None
    assert output.metrics.num_accepted_tokens > 150 * 4 // 5, "more than what is forced"


class Nothing:
    """A proposer without a guess."""

    name = "nothing"

    def propose(self, wanted: Any) -> list[Draft]:
        return [Draft() for _ in wanted]

    def learn(self, *_: Any) -> None: ...

    def table_changed(self, key: int) -> None: ...

    def forget(self, key: int) -> None: ...


def test_real_answers(smollm2_path: Path) -> None:
    answers = []
    params = [
        SamplingParams(temperature=temperature, seed=seed, max_tokens=60, logprobs=1, structured_outputs=SHAPES[seed])
        for temperature in (0.0, 1.0)
        for seed in (0, 2)
    ]
    for method in ("off", "auto"):
        settings: dict[str, Any] = {"kv_cache_memory_bytes": 32 * 1024**2, "max_model_len": 256}
        with LLM(str(smollm2_path), speculative_method=method, **settings) as llm:  # type: ignore[arg-type]
            answers.append([bits(output) for output in llm.generate(["As JSON: "] * len(params), params)])
    assert answers[0] == answers[1]


@pytest.fixture(scope="module")
def tokenizer(smollm2_path: Path) -> Any:
    with GGUFFile.open(smollm2_path) as file:
        return Tokenizer.from_gguf(file.metadata)


NAMES = {"number_of_customers": {"type": "integer"}, "chance_of_rain_percent": {"type": "integer"}}
NAMED = {"type": "object", "properties": NAMES, "required": list(NAMES), "additionalProperties": False}


@pytest.mark.parametrize(
    ("text", "guess"),
    [
        ('{"number', "_|of|_|custom|ers"),
        ('{"number_of_custom', 'ers|":'),
        ('{"number_of_customers": 5, "', "ch|ance|_|of|_|rain"),
    ],
)
def test_names_are_spelled_as_the_tokenizer_does(tokenizer: Any, text: str, guess: str) -> None:
    """The longest tokens would be `customer` and `s`."""
    compiler_ = compiler.GrammarCompiler(tokenizer, tokenizer.vocab_size)
    constraint = compiler_.compile(StructuredOutputsParams(json=NAMED)).start()
    ids = tokenizer.encode(text)
    for token_id in ids:
        constraint.advance(token_id)
    assert constraint.error is None
    places = forced.ForcedProposer(tokenizer)._places(forced._Answer(), constraint, ids[-1], 16)
    guessed = [tokenizer.token_text(place.guess) for place in places if place.guess is not None]
    assert "|".join(guessed).startswith(guess)


PIECES = {"ab": -1, "cd": -1, "abcd": -2, "▁abcd": -2, "ef": -3, "gh": -3, "efgh": -4}
RARE = dict.fromkeys(("abcdef", "cdef", "gha"), -50.0)


@pytest.mark.parametrize(
    ("behind", "drawn", "guesses"),
    [
        ("", None, "abcd|efgh|abcd"),
        ("", "ab", "ab|cd|efgh|abcd"),
        ("", "abcdef", "abcdef|gh|abcd"),
        ("abcd", "ef", "abcd|ef|gh|abcd"),
    ],
)
def test_neither_the_longest_token_nor_a_space_before_the_text(behind: str, drawn: str | None, guesses: str) -> None:
    """What was drawn before in place of the spelling's token is guessed, and what follows it is spelled anew."""
    small = sentencepiece(pieces=dict.fromkeys("▁abcdefgh", -99.0) | PIECES | RARE)
    shape = StructuredOutputsParams(regex="abcdefghabcd[0-9]")
    grammar = compiler.GrammarCompiler(small, small.vocab_size).compile(shape)
    answer, ids = forced._Answer(), {small.token_text(i): i for i in range(small.vocab_size)}
    if drawn is not None:
        place = grammar.start()
        if behind:
            place.advance(ids[behind])
        allowed = place.few_allowed()
        assert allowed is not None
        answer.drawn[None, allowed] = ids[drawn]
    places = forced.ForcedProposer(small)._places(answer, grammar.start(), 0, 16)
    assert "|".join(small.token_text(place.guess) for place in places if place.guess is not None) == guesses


def test_what_was_drawn_is_learned_up_to_the_first_wrong_guess() -> None:
    """What stands behind a wrong guess was expected behind another token."""
    answer = forced._Answer(num_known=1)
    kinds = (forced.Kind.SPELLED, forced.Kind.LONGEST, forced.Kind.SPELLED_ON)
    answer.places = [forced._Place((i, i + 1), i, kind) for i, kind in zip((5, 7, 9), kinds, strict=True)]
    answer.learn([1, 5, 8, 9])
    assert answer.drawn == {(None, (5, 6)): 5, (1, (5, 6)): 5, (None, (7, 8)): 8, (5, (7, 8)): 8}
    changes = [answer.acceptance.probability(kind) - forced.PRIORS[kind] for kind in kinds]
    assert changes[0] > 0 > changes[1]
    assert changes[2] == 0
    assert (answer.num_known, answer.places) == (4, [])


def test_another_place_of_the_same_choice() -> None:
    answer = forced._Answer(drawn={(None, (5, 6)): 6, (1, (5, 6)): 5})
    for previous, is_forced, guess, kind in (
        (1, True, 5, forced.Kind.AGAIN),
        (1, False, 5, forced.Kind.CHOSEN_AGAIN),
        (2, True, 6, forced.Kind.AGAIN_ELSEWHERE),
        (2, False, None, forced.Kind.CHOSEN_AGAIN),
    ):
        place = forced._Place((5, 6))
        answer.guess_known(place, previous, is_forced=is_forced)
        assert (place.guess, place.kind) == (guess, kind)

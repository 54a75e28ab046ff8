"""Masks against what the vocabulary and `re`, `json`, `jsonschema` and `lark` say; refusals of what is not enforced."""

from __future__ import annotations

import gc
import json
import random
import re
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from lark import Lark

from pellucid.errors import InvalidParameterError
from pellucid.formats.gguf import GGUFFile
from pellucid.sampling.constraints.compiler import MAX_KEPT, GrammarCompiler
from pellucid.sampling.constraints.constraint import Constraint
from pellucid.structured_outputs import StructuredOutputsParams
from pellucid.tokenizer.tokenizer import Tokenizer

EOS, CONTROL = 256, 257


class Bytes:
    """Bytes are tokens; two control tokens follow, one of which ends."""

    eos_ids = frozenset((EOS,))

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = False) -> list[int]:
        return list(text.encode())

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < EOS else f"<control{token_id}>".encode()

    def is_special(self, token_id: int) -> bool:
        return token_id >= EOS


COMPILER = GrammarCompiler(Bytes(), 258)


def start(**fields: Any) -> Constraint:
    return COMPILER.compile(StructuredOutputsParams(**fields)).start()


def allowed(constraint: Constraint, vocab_size: int = 258) -> set[int]:
    constraint.fill_mask()
    logits = np.zeros(vocab_size, dtype=np.float32)
    constraint.apply(logits)
    return set(np.flatnonzero(logits == 0).tolist())


def takes(constraint: Constraint, text: str) -> bool:
    """Whether the masks let the text through, byte by byte, to a place where the answer may end."""
    for byte in text.encode():
        if constraint.is_complete or byte not in allowed(constraint):
            return False
        constraint.advance(byte)
    return constraint.may_end


def walk(constraint: Constraint, rng: random.Random, *, most: int = 4000) -> str:
    """A random answer; what closes something is preferred, so that it ends."""
    out = bytearray()
    while not constraint.is_complete:
        assert len(out) < most, f"no end in sight: {bytes(out[:200])!r}"
        ids = sorted(allowed(constraint))
        closing = [i for i in (EOS, *b'"]}') if i in ids]
        token_id = rng.choice(closing) if closing and rng.random() < 0.4 else rng.choice(ids)
        if token_id == EOS:
            assert constraint.may_end
            break
        constraint.advance(token_id)
        out.append(token_id)
    return out.decode()


@pytest.fixture(scope="module", params=["smollm2", "gemma3"])
def tokenizer(request: pytest.FixtureRequest) -> Iterator[Tokenizer]:
    path: Path = request.getfixturevalue(f"{request.param}_path")
    with GGUFFile.open(path) as file:
        yield Tokenizer.from_gguf(file.metadata)


def test_the_mask_is_exact_over_a_real_vocabulary(tokenizer: Tokenizer) -> None:
    """Every token whose bytes can go on, in whatever spelling, and no other; end tokens where the text may end."""
    compiled = GrammarCompiler(tokenizer, tokenizer.vocab_size).compile(
        StructuredOutputsParams(regex=r"[a-z 水火]{2,7}")
    )
    texts = [None if tokenizer.is_special(i) else tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]

    def expected(room: int) -> set[int]:
        whole = re.compile(f"[a-z 水火]{{1,{room}}}")
        partial = {"水火"[n].encode()[:k] for n in (0, 1) for k in (1, 2)}
        found = set()
        for token_id, data in enumerate(texts):
            if not data:
                continue
            for cut in range(3 if data[-1] >= 0x80 else 1):
                text, tail = data[: len(data) - cut], data[len(data) - cut :]
                if tail and tail not in partial:
                    continue
                try:
                    decoded = text.decode()
                except UnicodeDecodeError:
                    continue
                length = len(decoded) + bool(tail)
                if length <= room and (not decoded or whole.fullmatch(decoded)):
                    found.add(token_id)
        return found

    constraint = compiled.start()
    assert allowed(constraint, tokenizer.vocab_size) == expected(7)
    for token_id in tokenizer.encode("abc", add_special_tokens=False):
        constraint.advance(token_id)
    assert constraint.may_end
    assert not constraint.is_complete
    assert allowed(constraint, tokenizer.vocab_size) == expected(4) | tokenizer.eos_ids


def test_masks_are_those_of_the_tokens_read_alone() -> None:
    """Answers with one grammar share nothing, and tokens taken back leave no trace."""
    params = {"json": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}}
    text = b'{"name": "abc", "x": [1, 2]}'
    masks = []
    alone = start(**params)
    for byte in text:
        alone.fill_mask()
        masks.append(alone.mask.copy())
        alone.advance(byte)
    rng = random.Random(0)
    others = [start(**params) for _ in range(3)]
    places = [0, 0, 0]
    while any(place < len(text) for place in places):
        which = rng.choice([n for n in range(3) if places[n] < len(text)])
        other, place = others[which], places[which]
        if place and rng.random() < 0.3:
            back = rng.randint(1, min(place, 3))
            other.rollback(back)
            places[which] -= back
            continue
        if rng.random() < 0.3:
            ahead = other.look_ahead()
            for token_id in ahead.few_allowed() or ():
                ahead.advance(token_id)
                break
            ahead.forced_bytes()
        other.fill_mask()
        assert (other.mask == masks[place]).all()
        other.advance(text[place])
        places[which] += 1


@pytest.mark.parametrize(
    ("regex", "good", "bad"),
    [
        (r"\d{3}", ["123"], ["12", "1234", "a23"]),
        (r"^[A-Z]+$", ["AB"], ["", "Ab"]),
        (r"yes|no", ["yes", "no"], ["yesno", "y"]),
        (r"(a/b)+\n", ["a/ba/b\n"], ["a/b"]),
        (r"[水火]+é?", ["水水é"], ["é"]),
        ("a\nb", ["a\nb"], ["ab"]),
    ],
)
def test_regexes_match_the_whole_answer(regex: str, good: list[str], bad: list[str]) -> None:
    for text in [*good, *bad]:
        assert takes(start(regex=regex), text) == (re.fullmatch(regex, text) is not None) == (text in good)


@given(st.integers(0, 2**32))
def test_answers_match_their_regex(seed: int) -> None:
    rng = random.Random(seed)
    regex = rng.choice(
        (
            r"[a-c]{0,5}x",
            r"(ab|cd)*e",
            r"\d{1,3}(\.\d{1,3}){3}",
            r"[^a-y\s\x1c-\x1f]{1,3}",  # control characters that are white space to Python alone
            r"é*[水火]{2}",
            r"[A-Za-zé_-]{2,4}@[a-z]+\.(com|org)",
        )
    )
    text = walk(start(regex=regex), rng)
    assert re.fullmatch(regex, text), text


@given(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=6), st.integers(0, 2**32))
def test_an_answer_is_one_of_the_choices(choices: list[str], seed: int) -> None:
    assert walk(start(choice=choices), random.Random(seed)) in choices
    assert all(takes(start(choice=choices), choice) for choice in choices)


def test_many_choices_are_no_burden() -> None:
    choices = [f"c {n}" for n in range(4000)]
    assert walk(start(choice=choices), random.Random(1)) in choices


ARITHMETIC = """
start: sum
sum: product (("+" | "-") product)*
product: atom (("*" | "/") atom)*
atom: NUMBER | "(" sum ")"
NUMBER: /[0-9]{1,3}/
"""


@settings(max_examples=25)
@given(st.integers(0, 2**32))
def test_answers_parse_by_their_grammar(seed: int) -> None:
    rng, constraint = random.Random(seed), start(grammar=ARITHMETIC)
    out = bytearray()
    while True:
        ids = allowed(constraint)
        if EOS in ids and (len(out) > 30 or rng.random() < 0.2):
            break
        pool = sorted(ids - {EOS, ord("(")}) if len(out) > 20 and ids - {EOS, ord("(")} else sorted(ids - {EOS})
        token_id = ord(")") if len(out) > 25 and ord(")") in ids else rng.choice(pool)
        constraint.advance(token_id)
        out.append(token_id)
    Lark(ARITHMETIC).parse(out.decode())


# JSON Schema

NAMES = st.sampled_from(["a", "b", "name", "é", 'q"', "$ref"])


def leaves() -> st.SearchStrategy[dict[str, Any]]:
    number = st.integers(-50, 50)
    return st.one_of(
        st.just({"type": "null"}),
        st.just({"type": "boolean"}),
        st.builds(
            lambda low, width: {"type": "integer", "minimum": low, "maximum": low + width}, number, st.integers(0, 99)
        ),
        st.builds(lambda low: {"type": "number", "exclusiveMinimum": low, "maximum": low + 7}, number),
        st.builds(lambda step: {"type": "integer", "multipleOf": step}, st.integers(1, 40)),
        st.builds(
            lambda a, b: {"type": "string", "minLength": min(a, b), "maxLength": max(a, b)}, *[st.integers(0, 5)] * 2
        ),
        st.sampled_from(
            [{"type": "string", "pattern": p, "maxLength": 12} for p in ("^[a-c]+$", "x.z", r"^\d\d?-\w$")]
        ),
        st.sampled_from([{"type": "string", "format": f} for f in ("date", "uuid", "ipv4")]),
        st.builds(
            lambda values: {"enum": values},
            st.lists(st.one_of(st.text(max_size=4), number, st.none()), min_size=1, max_size=4),
        ),
        st.builds(lambda value: {"const": value}, st.one_of(st.text(max_size=4), number, st.just({"k": [1, None]}))),
        st.just({"$ref": "#/$defs/colour"}),
    )


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    def an_object(properties: dict[str, Any], mask: int, extra: Any) -> dict[str, Any]:
        required = [name for place, name in enumerate(properties) if mask >> place & 1]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": extra}

    return st.one_of(
        st.builds(
            an_object, st.dictionaries(NAMES, inner, max_size=3), st.integers(0, 7), st.one_of(st.just(False), leaves())
        ),
        st.builds(
            lambda items, least, more: {"type": "array", "items": items, "minItems": least, "maxItems": least + more},
            inner,
            st.integers(0, 2),
            st.integers(0, 2),
        ),
        st.builds(
            lambda items: {"type": "array", "prefixItems": items, "items": False},
            st.lists(inner, min_size=1, max_size=2),
        ),
        st.builds(lambda one: {"anyOf": [one, {"type": "null"}]}, inner),
        st.builds(lambda one: {"oneOf": [{"type": "array", "items": one, "maxItems": 2}, {"type": "boolean"}]}, inner),
    )


SCHEMAS = st.recursive(leaves(), nested, max_leaves=5)


@settings(max_examples=120)
@given(SCHEMAS, st.integers(0, 2**32))
def test_answers_are_json_and_satisfy_their_schema(part: dict[str, Any], seed: int) -> None:
    schema = {"$defs": {"colour": {"enum": ["red", "green"]}}, **part}
    text = walk(start(json=schema), random.Random(seed))
    value = json.loads(text)
    Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(value)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"$defs": {"c": {"enum": ["r", "g"]}}, "$ref": "#/$defs/c"}, ['"r"', '"g"'], ['"b"', "null"]),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, ['"x"', "null"], ["1", "nul"]),
        ({"type": ["integer", "null"]}, ["1", "null"], ['"x"']),
        ({"oneOf": [{"const": "a"}, {"type": "integer"}]}, ['"a"', "7"], ['"b"']),
        (True, ["1", "{}", '[{"a": null}]'], ["x"]),
        ({"type": "integer", "minimum": 1, "exclusiveMinimum": 1}, ["2"], ["1"]),
        (
            {
                "type": "object",
                "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
                "required": ["next"],
            },
            ['{"next": {"next": null}}'],
            ['{"next": {}}'],
        ),
    ],
)
def test_j77_references_alternatives_and_null_are_enforced(schema: Any, good: list[str], bad: list[str]) -> None:
    assert [text for text in [*good, *bad] if takes(start(json=schema), text)] == good


@pytest.mark.parametrize(
    "schema",
    [
        {"not": {"type": "string"}},
        {"if": {"type": "string"}, "then": {"const": "a"}},
        {"type": "array", "uniqueItems": True},
        {"type": "array", "contains": {"const": 1}},
        {"type": "object", "propertyNames": {"pattern": "^a"}},
        {"type": "object", "unevaluatedProperties": False},
        {"type": "object", "dependentRequired": {"a": ["b"]}},
        {"oneOf": [{"type": "number"}, {"type": "integer"}]},
        {"oneOf": [{"type": "string", "maxLength": 3}, {"type": "string", "minLength": 2}]},
        {"type": "string", "format": "no-such-format"},
        {"type": "string", "pattern": "(?=a)b"},
        {"type": "string", "pattern": "("},
        {"$ref": "#/$defs/missing"},
        {"$ref": "https://example.com/schema.json"},
        {"type": "colour"},
        {"type": "integer", "minimum": 5, "maximum": 3},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        {"$ref": "#"},
        {"enum": []},
        {"type": "object", "minProperties": 2, "additionalProperties": {"type": "integer"}},
        {"properties": {"a": {"disallow": "string"}}},
        {"properties": {"a": {"x-guidance": {"lenient": True}, "not": {}}}},
        {"x-guidance": {"whitespace_flexible": True}, "type": "object"},
        {"type": "integer", "multipleOf": 1_000_003},
        {"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]},
        {"type": "integer", "multipleOf": 0},
        {"properties": {f"p{i}": {"type": "integer"} for i in range(3000)}, "type": "object"},
        {"anyOf": [{"type": "object", "properties": {"a": {"type": "string"}, f"b{i}": {}}} for i in range(500)]},
        {"properties": {"a": {"items": {"type": "object", "properties": {f"p{i}": {} for i in range(600)}}}}},
        {"$ref": "#/$defs/w", "$defs": {"w": {"type": "object", "properties": {f"p{i}": {} for i in range(600)}}}},
        False,
        "{",
        "[]",
        '{"const": NaN}',
        '{"maximum": 1e999}',
        '{"items":' * 5000 + "{}" + "}" * 5000,
    ],
)
def test_j76_a_schema_that_cannot_be_enforced_is_refused(schema: Any) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        start(json=schema)
    assert caught.value.field == "structured_outputs"
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "fields",
    [
        {"regex": "(a"},
        {"regex": "(?=a)b"},
        {"regex": r"[^\s\S]"},
        {"grammar": "start: missing"},
        {"grammar": 'rule: "a"'},
        {"grammar": "start: start"},
        {"grammar": "start: x\nx[temperature=0.5]: /.*/"},
        {"grammar": 'start: x "b"\nx[stop="y"]: /.*/'},
        {"grammar": 'start: %json {"x-guidance": {"lenient": true}, "not": {"type": "string"}}'},
        {"grammar": f"start: %json {json.dumps({'properties': {f'p{i}': {} for i in range(600)}})}"},
        {"grammar": "start: " + "(" * 9000 + '"a"' + ")" * 9000},
        {"regex": "(" * 4000 + "a" + ")" * 4000},
        {"json": {}, "whitespace_pattern": "("},
    ],
)
def test_a_grammar_that_cannot_be_enforced_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        start(**fields)
    assert caught.value.field == "structured_outputs"
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(490)}},
        {"anyOf": [{"type": "object", "properties": {"kind": {"const": i}}, "required": ["kind"]} for i in range(400)]},
        {"anyOf": [{"type": "string", "const": str(i)} for i in range(1000)]},
        {"anyOf": [{"type": "object", "properties": {f"p{i}": {}}, "required": [f"p{i}"]} for i in range(300)]},
        {"type": "object", "properties": {f"p{i}": {} for i in range(600)}, "required": [f"p{i}" for i in range(590)]},
    ],
)
def test_much_that_is_read_one_way_is_taken(schema: Any) -> None:
    constraint = start(json={"type": "object", "properties": {"a": schema}, "required": ["a"]})
    for byte in b'{"a":':
        assert byte in allowed(constraint)
        constraint.advance(byte)
    opening = b'"' if schema.get("anyOf", [{}])[0].get("type") == "string" else b"{"
    constraint.advance(opening[0])
    assert allowed(constraint)


def test_the_line_of_a_grammar_is_named() -> None:
    with pytest.raises(InvalidParameterError, match=r"2\(6\).*missing"):
        start(grammar='start: "a" b\nb  : missing')


@pytest.mark.parametrize(
    ("options", "good", "bad"),
    [
        (
            {},
            ['{"a":1}', '{ "a" : 1 }', '{\n    "a": 1\n}', '{"a":\n' + " " * 40 + "1}"],
            ['{  "a":1}', '{"a":\n\n1}', '{"a":\n' + " " * 41 + "1}"],
        ),
        ({"disable_any_whitespace": True}, ['{"a":1}'], ['{"a": 1}']),
        ({"whitespace_pattern": "[ ]{1,3}"}, ['{   "a":1}'], ['{    "a":1}', '{\n"a":1}']),
    ],
)
def test_j79_whitespace_is_capped(options: dict[str, Any], good: list[str], bad: list[str]) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert [text for text in [*good, *bad] if takes(start(json=schema, **options), text)] == good


@pytest.mark.parametrize("kind", [{"json_object": True}, {"json": {"type": "array"}}, {"json": True}])
def test_j79_no_run_of_whitespace_is_endless(kind: dict[str, Any]) -> None:
    """An answer that takes whitespace wherever it may is forced on."""
    constraint, run, longest, in_string = start(**kind), 0, 0, False
    for _ in range(600):
        ids = allowed(constraint)
        blank = None if in_string else next((i for i in b"\n\t \r" if i in ids), None)
        run = 0 if blank is None else run + 1
        longest = max(longest, run)
        token_id = blank if blank is not None else next(i for i in (*b',[{"1', min(ids)) if i in ids)
        in_string ^= token_id == ord('"')
        constraint.advance(token_id)
        if constraint.is_complete:
            break
    assert longest > 20, "whitespace was tried"
    assert longest <= 42


def test_control_tokens_come_only_where_a_grammar_names_them() -> None:
    any_bytes = start(grammar="start: A\nA: ~/(?s:.*)zzz(?s:.*)/")
    assert CONTROL not in allowed(any_bytes)
    assert EOS in allowed(any_bytes)
    named = start(grammar='start: <control257> "a"')
    assert allowed(named) == {CONTROL}


def test_text_that_is_certain_is_offered_to_speculation() -> None:
    constraint = start(choice=["abcd", "abce"])
    ahead = constraint.look_ahead()
    assert ahead.forced_bytes() == b"abc"
    for token_id in b"abc":
        assert ahead.few_allowed() == (token_id,)
        ahead.advance(token_id)
    assert ahead.few_allowed() == tuple(b"de")
    assert ahead.forced_bytes() == b""
    assert allowed(constraint) == {ord("a")}
    assert start(regex="[a-z0-9]{9}").few_allowed() is None, "too many to guess one"


def test_grammars_are_kept_and_the_oldest_given_up() -> None:
    compiler = GrammarCompiler(Bytes(), 258)
    first = compiler.compile(StructuredOutputsParams(choice=("a",)))
    assert compiler.compile(StructuredOutputsParams(choice=["a"])) is first
    for n in range(MAX_KEPT):
        compiler.compile(StructuredOutputsParams(choice=(f"b{n}",)))
    assert compiler.compile(StructuredOutputsParams(choice=("a",))) is not first


def test_a_vocabulary_without_end_tokens_can_be_constrained() -> None:
    class Endless(Bytes):
        eos_ids: frozenset[int] = frozenset()

    constraint = GrammarCompiler(Endless(), 258).compile(StructuredOutputsParams(choice=("ab",))).start()
    assert takes(constraint, "ab")
    assert constraint.is_complete


HOSTILE = {
    "a chain of rules": "start: r0\n" + "\n".join(f"r{i}:r{i + 1}" for i in range(2400)) + '\nr2400: "z"',
    "a chain of terminals": "start: T0\n" + "\n".join(f'T{i}:"a" T{i + 1}' for i in range(1900)) + '\nT1900: "z"',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_deep_grammars_do_not_end_the_process(name: str) -> None:
    """On the stack of an ordinary thread the compiler would overflow at twice the depth."""
    assert not start(grammar=HOSTILE[name]).is_complete


def test_a_deep_schema_does_not_end_the_process() -> None:
    """A stack overflow cannot be caught, so another process tries."""
    program = """
import json
from pellucid.sampling.constraints.compiler import GrammarCompiler
from pellucid.structured_outputs import MAX_SCHEMA_CHARS, StructuredOutputsParams
class Bytes:
    eos_ids = frozenset((256,))
    def encode(self, text, **options): return list(text.encode())
    def token_bytes(self, i): return bytes([i]) if i < 256 else b"<end>"
    def is_special(self, i): return i == 256
size = 1900
names = {f"{i}": {"type": "object", "properties": {"": {"$ref": f"#/$defs/{i + 1}"}}} for i in range(size)}
schema = json.dumps({"$defs": {**names, f"{size}": {}}, "$ref": "#/$defs/0"}, separators=(",", ":"))
assert 100_000 < len(schema) < MAX_SCHEMA_CHARS
constraint = GrammarCompiler(Bytes(), 257).compile(StructuredOutputsParams(json=schema)).start()
constraint.fill_mask()
print(constraint.error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr[-500:]


def _params(**fields: Any) -> Callable[[], StructuredOutputsParams]:
    return lambda: StructuredOutputsParams(**fields)


@pytest.mark.parametrize(
    "make",
    [
        _params(),
        _params(regex="a", choice=("b",)),
        _params(regex=""),
        _params(regex="a" * 9000),
        _params(regex=5),
        _params(choice=()),
        _params(choice="ab"),
        _params(choice=("a", "")),
        _params(choice=("\ud800",)),
        _params(choice=["x"] * 5000),
        _params(json=5),
        _params(json={"a": {1, 2}}),
        _params(json={"const": float("nan")}),
        _params(json="x" * 200_000),
        _params(json_object=1),
        _params(json_object=False),
        _params(grammar="x" * 40_000),
        _params(regex="a", whitespace_pattern=" "),
        _params(regex="a", disable_any_whitespace=True),
        _params(json={}, whitespace_pattern=" ", disable_any_whitespace=True),
        lambda: StructuredOutputsParams.from_mapping({"regexp": "a"}),
        lambda: StructuredOutputsParams.from_mapping([]),
    ],
)
def test_bad_values_are_refused_by_name(make: Callable[[], StructuredOutputsParams]) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        make()
    assert caught.value.field == "structured_outputs"
    assert len(str(caught.value)) < 500


def test_what_llguidance_keeps_does_not_keep_the_tokenizer() -> None:
    """The collector does not see into its objects: an engine that its tokenizer leads to would never be freed."""
    tokenizer = Bytes()
    alive = weakref.ref(tokenizer)
    compiled = GrammarCompiler(tokenizer, 258).compile(StructuredOutputsParams(choice=("ab",)))
    del tokenizer
    gc.collect()
    assert alive() is None
    assert compiled.start().error is None

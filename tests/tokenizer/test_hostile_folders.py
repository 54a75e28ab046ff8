"""A folder's small files as an attacker would write them: each is read, or refused in one sentence that names it."""

from __future__ import annotations

import copy
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from formats.hostile_files import HOSTILE, STATES, changed, places
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer.test_folders import KINDS, SPECIAL
from tokenizers import AddedToken, processors

from pellucid.errors import InvalidParameterError, ModelFileError, PellucidError
from pellucid.tokenizer.tokenizer import Tokenizer

Files = dict[str, Any]
SETTINGS: Files = {
    "tokenizer_config.json": {
        "bos_token": "<s>",
        "eos_token": {"content": "</s>"},
        "add_bos_token": True,
        "chat_template": "{{ messages[0].content }}",
        "added_tokens_decoder": {"1": {"content": "<s>", "special": True}},
        "tokenizer_class": "X",
    },
    "special_tokens_map.json": {"pad_token": "<unk>"},
    "generation_config.json": {"eos_token_id": [2], "bos_token_id": 1},
    "config.json": {"eos_token_id": 2},
    "added_tokens.json": {"<more>": 500},
}


def written(folder: Path, kind: str) -> Files:
    """The files of a sound tokenizer of the kind."""
    engine = KINDS[kind]()
    engine.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    engine.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("</tool>", normalized=True)])
    engine.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    files = {"tokenizer.json": json.loads(engine.to_str())} | copy.deepcopy(SETTINGS)
    for name, values in files.items():
        (folder / name).write_text(json.dumps(values))
    return files


@pytest.fixture(scope="module", params=KINDS)
def sound(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Files]:
    folder = tmp_path_factory.mktemp("sound")
    return folder, written(folder, request.param)


def used(folder: Path) -> None:
    """Read, and used on a text."""
    tokenizer = Tokenizer.from_folder(folder)
    ids = tokenizer.encode("Hello <s> world <tool> x é東", parse_special=True)
    assert all(type(i) is int and 0 <= i < tokenizer.vocab_size for i in ids)
    tokenizer.decode(ids)


@settings(deadline=None)
@given(st.data())
def test_any_field_of_any_kind(sound: tuple[Path, Files], data: st.DataObject) -> None:
    check_a_field(*sound, data)


@pytest.mark.slow
@settings(deadline=None, max_examples=1000)
@given(st.data())
def test_many_fields_of_any_kind(sound: tuple[Path, Files], data: st.DataObject) -> None:
    check_a_field(*sound, data)


def check_a_field(folder: Path, files: Files, data: st.DataObject) -> None:
    """One field has a hostile value: the folder is used as it is, or refused in one sentence."""
    name = data.draw(st.sampled_from(["tokenizer.json", "tokenizer.json", *files]))
    path = data.draw(st.sampled_from(list(places(files[name]))))
    hostile = data.draw(st.sampled_from([*HOSTILE, *([changed] if path else [])]))
    (folder / name).write_text(json.dumps(changed(files[name], path, hostile)))
    said = ""
    try:
        used(folder)
    except InvalidParameterError as error:
        said = f"of the text: tokenizer.json {error}"
    except PellucidError as error:
        said = str(error)
    finally:
        (folder / name).write_text(json.dumps(files[name]))
    assert "\n" not in said
    assert len(said) < 600
    assert said == "" or any(file in said for file in files), said


def nested(depth: int) -> str:
    return '{"type": "Sequence", "normalizers": [' * depth + "]}" * depth


BAD: list[tuple[str, Any, str]] = [
    ("model.merges", ["h e", "e \U0001f999"], "model.merges joins 'e' and '\U0001f999', but '\U0001f999' is no piece"),
    ("model.continuing_subword_prefix", "##", "model.merges joins .* does not begin so"),
    ("model.unk_token", ["<unk>"], "model.unk_token is .* but must be a text"),
    ("model.byte_fallback", "yes", "model.byte_fallback is 'yes', but must be true or false"),
    ("model.vocab.h", -1, "the piece 'h' has the id -1"),
    ("model.vocab.h", 1 << 20, "ids go up to 1048576, but there are"),
    ("added_tokens", [{"id": 1 << 20, "content": "x"}], "ids go up to 1048576, but there are"),
    ("added_tokens", [{"id": 3, "content": "x", "lstrip": "no"}], "lstrip must be true or false"),
    ("normalizer", json.loads(nested(100)), "its components lie in each other more than 32 deep"),
    ("normalizer", {"type": "Lower"}, "tokenizer.json: normalizer cannot be used"),
    ("pre_tokenizer", {"type": "Split", "pattern": {"Regex": "("}}, "tokenizer.json: pre_tokenizer cannot be used"),
]


@pytest.mark.parametrize(("place", "value", "said"), BAD)
def test_each_is_one_sentence(tmp_path: Path, place: str, value: Any, said: str) -> None:
    files = written(tmp_path, "byte_level")
    whole = changed(files["tokenizer.json"], tuple(place.split(".")), value)
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole))
    size = (tmp_path / "tokenizer.json").stat().st_size
    tracemalloc.start()
    with pytest.raises(PellucidError, match=said):
        used(tmp_path)
    assert tracemalloc.get_traced_memory()[1] < 30 * size + 1_000_000
    tracemalloc.stop()


def test_a_piece_that_stands_twice_is_named(tmp_path: Path) -> None:
    written(tmp_path, "byte_level")
    text = (tmp_path / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(text.replace('"vocab": {', '"vocab": {"h": 290, ', 1))
    with pytest.raises(ModelFileError, match=r"tokenizer\.json: 'h' stands in it twice"):
        used(tmp_path)


@pytest.mark.parametrize("merge", ["ab", "a  b", "h zz", "zz h", "q q"])
def test_merges_txt_is_held_against_vocab_json(tmp_path: Path, merge: str) -> None:
    KINDS["byte_level"]().model.save(str(tmp_path))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    used(tmp_path)
    with (tmp_path / "merges.txt").open("a") as file:
        file.write(merge + "\n")
    with pytest.raises(ModelFileError, match=f"merges.txt: '{merge}' does not join two pieces"):
        used(tmp_path)


JSON_FILES = ["tokenizer.json", *SETTINGS]
STATES_OF_TEXT = ["folder", "pipe", "link to nothing", "link to itself", "device", "UTF-16", "huge"]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", JSON_FILES)
def test_what_is_no_json_file(tmp_path: Path, name: str, state: str) -> None:
    written(tmp_path, "byte_level")
    refused(tmp_path, name, state)


@pytest.mark.parametrize("state", STATES_OF_TEXT)
@pytest.mark.parametrize("name", ["chat_template.jinja", "vocab.txt", "vocab.json", "merges.txt", "tokenizer.model"])
def test_what_is_no_text_file(tmp_path: Path, name: str, state: str) -> None:
    if name == "chat_template.jinja":
        written(tmp_path, "byte_level")
        (tmp_path / name).write_text("x")
    elif name in ("vocab.json", "merges.txt"):
        KINDS["byte_level"]().model.save(str(tmp_path))
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    refused(tmp_path, name, state)


def refused(folder: Path, name: str, state: str) -> None:
    (folder / name).unlink(missing_ok=True)
    STATES[state](folder / name)
    tracemalloc.start()
    with pytest.raises(ModelFileError, match=name.replace(".", r"\.")) as caught:
        used(folder)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "\n" not in str(caught.value)
    assert peak < 5_000_000

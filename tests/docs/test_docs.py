"""What the documents say is so: links, names, commands, flags, generated parts."""

from __future__ import annotations

import importlib
import inspect
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from documents import DOCUMENTS, ROOT, commands, fences, named, tool

from pellucid.cli.arguments import flag_names
from pellucid.cli.main import main
from pellucid.cli.verbs import SUBVERBS, VERBS, Verb

READMES = (ROOT / "README.md", ROOT / "README.zh-CN.md")
GUIDES = [path for path in DOCUMENTS if "decisions" not in path.parts]
SETUP_COMMANDS = ['pip install . && pellucid generate "The capital of France is"', "pip install '.[test]' && pytest"]
_BENCHMARK_FLAGS = """budget check costs draft-layers draft-quantization floats lookup method models peers repeats
rounds runs scenarios seconds tasks times types version write url"""
OTHER_PROGRAMS_FLAGS = {f"--{name}" for name in _BENCHMARK_FLAGS.split()}

_LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
_ABSOLUTE_PATH = re.compile(r"(?<![\w/.~$})\]:*-])/(?!v1/)[\w.-]+/[\w.-]")

each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=named)


def prose(document: Path) -> str:
    """The text without its fenced blocks."""
    text = document.read_text(encoding="utf-8")
    for begin, end, _, _ in reversed(fences(document)):
        text = text[:begin] + text[end:]
    return text


def links(document: Path) -> Iterator[tuple[str, str, str]]:
    """(text, path, anchor) of every link to a file of the project."""
    for match in _LINK.finditer(prose(document)):
        if not re.match(r"[a-z]+:", match["target"]):
            path, _, anchor = match["target"].partition("#")
            yield match["text"], path, anchor


def anchors(document: Path) -> set[str]:
    """The headings as GitHub spells them in links."""
    headings = re.findall(r"^#+ (.+)$", prose(document), re.MULTILINE)
    kept = (c for heading in headings for c in (*heading.replace("`", "").lower(), "\n"))
    text = "".join(c for c in kept if c in "\n -_" or unicodedata.category(c)[0] in "LN")
    return set(text.replace(" ", "-").split("\n"))


def all_verbs() -> Iterator[Verb]:
    for name, verb in VERBS.items():
        yield from SUBVERBS[name].values() if name in SUBVERBS else [verb]


def test_there_are_documents() -> None:
    assert {"README.md", "README.zh-CN.md", "CHANGELOG.md", "docs/journey.md"} <= {named(path) for path in DOCUMENTS}


@each_document
def test_links_lead_somewhere(document: Path) -> None:
    for _, path, anchor in links(document):
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), path
        assert target.is_relative_to(ROOT), path
        if anchor:
            assert anchor in anchors(target), f"{path}#{anchor}"


def test_every_document_is_in_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / path).resolve() for _, path, _ in links(index)}
    here = [*index.parent.glob("*.md"), *index.parent.glob("decisions/*.md")]
    assert [named(path) for path in here if path.resolve() not in linked | {index.resolve()}] == []


@each_document
def test_names_in_links_are_in_the_files_they_lead_to(document: Path) -> None:
    for text, path, _ in links(document):
        name = text.strip("`")
        if not text.startswith("`") or not path.endswith((".py", ".h", ".cpp")) or "/" in name or "." in name[-4:]:
            continue
        source = (document.parent / path).read_text(encoding="utf-8")
        for part in name.split("."):
            pattern = rf"^\s*(def|class|struct) {re.escape(part)}\b|^{re.escape(part)}\b.*="
            assert re.search(pattern, source, re.MULTILINE), f"{name} is not in {path}"


@each_document
def test_files_that_are_named_exist(document: Path) -> None:
    homes = (ROOT, ROOT / "src", ROOT / "src" / "pellucid", document.parent)
    for name in re.findall(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|h|cpp|inl|md|toml))`", prose(document)):
        assert any((home / name).exists() for home in homes), name


@each_document
def test_no_path_of_one_machine(document: Path) -> None:
    assert _ABSOLUTE_PATH.findall(document.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("document", GUIDES, ids=named)
def test_commands_parse(document: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in commands(document):
        if not arguments or arguments[0].startswith("-"):
            continue
        place = 2 if arguments[0] in SUBVERBS else 1
        code = main([*arguments[:place], "--help", *arguments[place:]])
        assert code == 0, capsys.readouterr().err


@pytest.mark.parametrize("document", GUIDES, ids=named)
def test_flags_that_are_named_exist(document: Path) -> None:
    known = {"--help"} | OTHER_PROGRAMS_FLAGS
    for verb in all_verbs():
        known |= set(flag_names(getattr(importlib.import_module(verb.module), verb.function)))
    spans = re.findall(r"`[^`\n]+`", prose(document))
    mentioned = {flag for span in spans for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*", span)}
    assert mentioned <= known


@each_document
def test_tables_with_a_column_of_fast_prompts_name_their_price(document: Path) -> None:
    for line in prose(document).splitlines():
        if line.startswith("|") and re.search(r"\|[^|]*--precision fast[^|]*\|", line):
            assert re.search(r"KL|\de-\d", line), line


@pytest.mark.parametrize("readme", READMES, ids=named)
def test_the_readme_has_exactly_two_set_up_commands(readme: Path) -> None:
    assert [body.strip() for _, _, language, body in fences(readme) if language == "bash"] == SETUP_COMMANDS
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert all(command.split(" && ")[1] in ci for command in SETUP_COMMANDS)


def test_the_two_readmes_show_the_same_programs() -> None:
    programs = [
        [re.sub(r"#.*", "", body) for _, _, language, body in fences(readme) if language in ("python", "text")]
        for readme in READMES
    ]
    assert programs[0] == programs[1]


def test_reference_pages_are_up_to_date() -> None:
    maker = tool("make_reference_docs")
    for name in maker.DOCUMENTS:
        committed = (ROOT / name).read_text(encoding="utf-8")
        assert maker.generated(committed) == committed, f"{name}: run python tools/make_reference_docs.py"


def test_every_public_name_is_in_the_python_reference() -> None:
    import pellucid

    page = (ROOT / "docs" / "python-api.md").read_text(encoding="utf-8")
    names = [name for name in pellucid.__all__ if inspect.isclass(getattr(pellucid, name))]
    assert [name for name in names if name not in page] == []

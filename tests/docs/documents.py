"""What the tests of the documents share: where they are, and the examples in them."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Example(NamedTuple):
    """A Python block and the text block that follows it, if one does."""

    document: Path
    line: int
    source: str
    output: str | None


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def fences(document: Path) -> list[tuple[int, int, str, str]]:
    """(begin, end, language, body) of every fenced block."""
    text = document.read_text(encoding="utf-8")
    return [(m.start(), m.end(), m[1], m[2]) for m in _FENCE.finditer(text)]


def python_examples(document: Path) -> Iterator[Example]:
    """The Python blocks that are whole programs: those that import something."""
    text = document.read_text(encoding="utf-8")
    blocks = fences(document)
    for (begin, end, language, body), after in zip(blocks, [*blocks[1:], None], strict=True):
        if language != "python" or "import " not in body:
            continue
        follows = after is not None and after[2] == "text" and not text[end : after[0]].strip()
        yield Example(document, text.count("\n", 0, begin) + 1, body, after[3] if after and follows else None)


def commands(document: Path) -> Iterator[list[str]]:
    """The arguments of every `pellucid …` command in shell blocks, pipes and chains taken apart."""
    for _, _, language, body in fences(document):
        if language not in ("console", "bash", "sh"):
            continue
        for line in body.splitlines():
            text = line.removeprefix("$ ")
            if language == "console" and text == line:
                continue  # output
            for words in _split(shlex.split(text, comments=True)):
                if words[:1] == ["pellucid"]:
                    yield words[1:]


def _split(words: list[str]) -> Iterator[list[str]]:
    part: list[str] = []
    for word in words:
        if word in ("|", "&&", ";", "||"):
            yield part
            part = []
        else:
            part.append(word)
    yield part


def tool(name: str) -> ModuleType:
    """A script of tools/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module

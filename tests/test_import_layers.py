"""A file imports only from its own layer or a lower one, without cycles, and nothing inside imports the top package."""

from __future__ import annotations

import ast
from pathlib import Path

import pellucid

ROOT = Path(pellucid.__file__).parent

PLAIN_DATA = """config rope_scaling sampling_params beam_search_params pooling_params structured_outputs outputs request
errors forward_batch trace"""

LAYERS: dict[str, int] = {
    **dict.fromkeys(PLAIN_DATA.split(), 0),
    **dict.fromkeys(("formats", "model_store", "tokenizer", "kernels", "kv_cache"), 1),
    **dict.fromkeys(("models", "sampling"), 2),
    "engine": 3,
    **dict.fromkeys(("cli", "glass", "server", "__main__"), 4),
}


def imports() -> dict[str, set[str]]:
    """module → pellucid modules it imports, at any depth of the file."""
    known = {".".join(("pellucid", *p.relative_to(ROOT).with_suffix("").parts)) for p in ROOT.rglob("*.py")}
    known |= {name.removesuffix(".__init__") for name in known}
    graph: dict[str, set[str]] = {}
    for path in ROOT.rglob("*.py"):
        module = ".".join(("pellucid", *path.relative_to(ROOT).with_suffix("").parts))
        found: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{module}: relative import"
                base = node.module or ""
                found |= {f"{base}.{a.name}" if f"{base}.{a.name}" in known else base for a in node.names}
        graph[module] = {name for name in found if name.split(".")[0] == "pellucid"}
    return graph


def layer(module: str) -> int:
    return LAYERS[module.split(".")[1]]


def test_no_file_imports_from_a_higher_layer() -> None:
    graph = imports()
    assert len(graph) > 40
    bad = [
        f"{module} imports {target}"
        for module, targets in graph.items()
        if module != "pellucid.__init__"
        for target in targets
        if target == "pellucid" or layer(target) > layer(module)
    ]
    assert bad == []


def test_there_are_no_cycles() -> None:
    graph = {m: {t for t in targets if t != m} for m, targets in imports().items() if m != "pellucid.__init__"}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " → ".join((*path, module))
        if module in done:
            return
        for target in graph.get(module, ()):
            visit(target, (*path, module))
        done.add(module)

    for module in graph:
        visit(module, ())


def test_packages_of_one_layer_do_not_import_each_other_in_a_circle() -> None:
    edges = {
        (module.split(".")[1], target.split(".")[1])
        for module, targets in imports().items()
        if module != "pellucid.__init__"
        for target in targets
    }
    assert [pair for pair in edges if pair[0] < pair[1] and pair[::-1] in edges] == []


def test_only_the_native_backend_knows_the_compiled_module() -> None:
    users = {p.relative_to(ROOT).as_posix() for p in ROOT.rglob("*.py") if "_native" in p.read_text(encoding="utf-8")}
    assert users == {"kernels/native.py"}

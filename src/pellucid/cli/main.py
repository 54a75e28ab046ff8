"""Arguments → verb. Every expected failure leaves as one sentence on stderr and exit code 2, never as a traceback.

`PELLUCID_DEBUG=1` shows the traceback too.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from pellucid.cli.arguments import HELP_FLAGS, UsageError, nearest, parameters_of, read_arguments
from pellucid.cli.exit_codes import EXIT_BAD_INPUT, EXIT_BROKEN_PIPE, EXIT_INTERRUPTED
from pellucid.cli.verbs import EXAMPLES, PROGRAM_HELP, SUBVERBS, VERBS, Verb
from pellucid.errors import PellucidError, PellucidWarning


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit code."""
    try:
        _prepare_streams()
        _plain_warnings()
        # NumPy's threads would turn on a core for 0.1 s before they sleep, while weights are packed there
        os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
        code = _run(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return EXIT_BROKEN_PIPE
    except Exception as error:
        sentence = _sentence(error)
        if sentence is None:
            raise
        if os.environ.get("PELLUCID_DEBUG"):
            import traceback

            traceback.print_exc()
        if isinstance(error, OSError):
            _discard_output()
        from pellucid.cli.console import complain

        complain(sentence)
        return EXIT_BAD_INPUT


def _run(arguments: list[str]) -> int:
    first = arguments[0] if arguments else "--help"
    if first == "help":
        return _run([*arguments[1:], "--help"])
    if first in HELP_FLAGS:
        return _show_list(PROGRAM_HELP, VERBS, "pellucid", EXAMPLES)
    if first in ("--version", "-V"):
        print(f"pellucid {version()}")
        return 0
    if first.startswith("-"):
        raise UsageError(f"unknown flag {first}{nearest(first, [*HELP_FLAGS, '--version'])}; see `pellucid --help`")
    verb, rest = _find("pellucid", VERBS, first), arguments[1:]
    program = f"pellucid {first}"
    if first in SUBVERBS:
        below = SUBVERBS[first]
        if not rest or rest[0] in HELP_FLAGS:
            return _show_list(verb.help, below, program)
        verb, program, rest = _find(program, below, rest[0]), f"{program} {rest[0]}", rest[1:]
    return _invoke(verb, program, rest)


def _find(program: str, verbs: dict[str, Verb], name: str) -> Verb:
    if name not in verbs:
        raise UsageError(f"unknown command {name!r}{nearest(name, verbs)}; see `{program} --help`")
    return verbs[name]


def _invoke(verb: Verb, program: str, arguments: list[str]) -> int:
    """Import the verb's module, read its arguments, and run it."""
    import importlib

    function: Callable[..., Any] = getattr(importlib.import_module(verb.module), verb.function)
    try:
        values = read_arguments(parameters_of(function), arguments)
    except UsageError as error:
        if program == "pellucid chat" and "unexpected extra argument" in str(error):
            raise UsageError(
                "chat takes no message as an argument: start `pellucid chat` and type it, or pipe it in"
            ) from None
        raise UsageError(f"{error}; see `{program} --help`") from None
    if values is None:
        from pellucid.cli.help import verb_help

        print(verb_help(program, verb.help, function))
        return 0
    return _carry_out(function, values)


def _carry_out(function: Callable[..., Any], values: dict[str, Any]) -> int:
    """Run a verb, and then close what it has loaded, however it ended."""
    try:
        return int(function(**values) or 0)
    finally:
        loading = sys.modules.get("pellucid.cli.loading")
        if loading is not None:
            loading.close_all()


def _sentence(error: Exception) -> str | None:
    """What to tell the user, or None for a mistake of ours, which deserves its traceback."""
    if isinstance(error, PellucidError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("pellucid"):
        return f"the Python package {error.name} is missing: install Pellucid again with `pip install .`"
    if isinstance(error, MemoryError):
        return "there is not enough memory: choose a smaller model, --max-model-len or --kv-cache-memory-bytes"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower() + (f": {error.filename}" if error.filename else " while reading or writing")
    return None


def _discard_output() -> None:
    from pellucid.cli.console import discard

    discard(sys.stdout)


def _show_list(text: str, verbs: dict[str, Verb], program: str, examples: Sequence[str] = ()) -> int:
    """The list of verbs, without importing any of them."""
    import shutil
    import textwrap

    width = max(40, min(100, shutil.get_terminal_size().columns))
    print(f"Usage: {program} COMMAND [FLAGS]\n\n  {text}\n\nCommands:")
    indent = max(len(name) for name in verbs) + 4
    for name, verb in verbs.items():
        body = textwrap.fill(verb.help, width, initial_indent=" " * indent, subsequent_indent=" " * indent)
        print(f"  {name}{body[len(name) + 2 :]}")
    print(f"\nFlags of a command: {program} COMMAND --help")
    if program == "pellucid":
        print("Version: pellucid --version")
    if examples:
        print("\nExamples:\n" + "\n".join(f"  {line}" for line in examples))
    return 0


def version() -> str:
    """The installed package's version."""
    import importlib.metadata

    try:
        return importlib.metadata.version("pellucid")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def _plain_warnings() -> None:
    """Our own warnings as one line each, without the place in our source."""
    as_python_does = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *rest: Any, **named: Any) -> None:
        if not issubclass(category, PellucidWarning):
            as_python_does(message, category, *rest, **named)
            return
        from pellucid.cli.console import warn

        warn(str(message))

    warnings.showwarning = show


def _prepare_streams() -> None:
    """A terminal that cannot show a character gets a replacement, not a traceback, and there are always three streams.

    The first file opened would take the number of a closed stream, and be written to in its place.
    """
    had_output = sys.stdout is not None
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - for the process's life
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")
    if not had_output:
        raise UsageError("standard output is closed, so there is nowhere to put an answer")

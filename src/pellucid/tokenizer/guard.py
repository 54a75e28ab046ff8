"""What the `tokenizers` library raises, as our errors: bare Exceptions, and panics of its Rust, which are none."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pellucid.errors import InvalidParameterError, ModelFileError, UnsupportedModelError, one_line

T = TypeVar("T")


def guarded(build: Callable[[], T], what: str) -> T:
    """What `build` gives. Raises `ModelFileError`, which begins with `what`, where the library does not take it."""
    try:
        return build()
    except (ModelFileError, UnsupportedModelError):
        raise
    except BaseException as error:
        raise ModelFileError(f"{what} cannot be used: {_reason(error)}") from None


def applied(use: Callable[[], T]) -> T:
    """What `use` makes of a text. Raises `InvalidParameterError` where the library fails on it: a pattern of a
    tokenizer.json that goes astray gives up after ten million steps."""
    try:
        return use()
    except BaseException as error:
        raise InvalidParameterError(
            "prompt", f"the rules of the model's tokenizer cannot cut this text: {_reason(error)}"
        ) from None


def _reason(error: BaseException) -> str:
    """What the library said; anything that is not its own goes on."""
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        raise error
    return one_line(str(error))[:300]

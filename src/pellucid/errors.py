"""Every error a caller can meet, each one sentence that names the field or file and what is allowed.

All of them derive from `PellucidError`, so one `except` is enough; the command line prints the
message alone and exits with code 2, the server turns it into an OpenAI-shaped body.
"""

from __future__ import annotations

from typing import Any

_MAX_SHOWN = 80
_MAX_QUOTED = 300


def shown(value: Any) -> str:
    """A value as an error's sentence can hold it, in one short line: a hostile one may be megabytes long."""
    try:
        text = repr(value).replace("\n", " ")
    except Exception:  # a whole number of more digits than Python prints, a list that nests too deeply, …
        return "a number too long to show" if isinstance(value, int) else f"a {type(value).__name__}"
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."


def one_line(text: str) -> str:
    """Words of others (a template, a user's function) as part of a sentence: one line, printable, not endless."""
    words = " ".join(text[: 4 * _MAX_QUOTED].split())
    plain = "".join(c if c.isprintable() else "\ufffd" for c in words)
    return plain if len(plain) <= _MAX_QUOTED else f"{plain[: _MAX_QUOTED - 3]}..."


def _tokens(count: int) -> str:
    return f"{count} token" if count == 1 else f"{count} tokens"


class PellucidError(Exception):
    """Base of all errors that are the caller's, the file's or the machine's, never a bug of ours."""

    code: str = "error"


class InvalidParameterError(PellucidError, ValueError):
    """A parameter has a value outside its range.

    `field` is the parameter's public name, so that front ends can point at it.
    """

    code = "invalid_parameter"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class ContextLengthExceededError(InvalidParameterError):
    """The prompt, or the prompt and the tokens asked for, do not fit into `max_model_len`."""

    code = "context_length_exceeded"

    def __init__(
        self, num_prompt_tokens: int, max_model_len: int, max_tokens: int | None = None, *, is_least: bool = False
    ) -> None:
        """max_tokens: None: one at least, 0: no answer is asked for.

        is_least: the prompt was not counted, but is known to have `num_prompt_tokens` or more.
        """
        has = "has at least" if is_least else "has"
        if max_tokens == 0:
            message = (
                f"prompt {has} {_tokens(num_prompt_tokens)}, but max_model_len is {max_model_len}: "
                f"shorten it to {_tokens(max_model_len)} or fewer"
            )
        elif max_tokens is None:
            message = (
                f"prompt {has} {_tokens(num_prompt_tokens)}, but max_model_len is {max_model_len} and at least "
                f"one place is needed for the answer: shorten the prompt to {_tokens(max_model_len - 1)} or fewer"
            )
        else:
            message = (
                f"prompt has {_tokens(num_prompt_tokens)} and max_tokens is {max_tokens}, together "
                f"{num_prompt_tokens + max_tokens}, but max_model_len is {max_model_len}"
            )
        super().__init__("max_tokens" if max_tokens else "prompt", message)
        self.num_prompt_tokens = num_prompt_tokens
        self.max_model_len = max_model_len
        self.max_tokens = max_tokens


class ModelFileError(PellucidError):
    """A model file is missing, cut, or not what it says it is; the file and the key or tensor are named."""

    code = "model_file"


class UnsupportedModelError(PellucidError):
    """The file is sound, but holds an architecture, tokenizer or tensor type that Pellucid does not know."""

    code = "unsupported_model"


class ModelStoreError(PellucidError):
    """A model could not be found, fetched or kept: unknown name, no network, unwritable folder, full disk."""

    code = "model_store"


class KVCacheFileError(PellucidError):
    """A saved KV cache cannot be used: damaged, made with other settings, or the disk does not let us."""

    code = "kv_cache_file"


class ChatTemplateError(PellucidError):
    """The chat template is missing, refused the messages, or ran past its caps."""

    code = "chat_template"


class BackendError(PellucidError):
    """The kernels asked for are not available on this machine."""

    code = "backend"


class NotEnoughMemoryError(PellucidError):
    """The weights need more memory than this process may have or than is free; both numbers are named."""

    code = "memory"


class NonFiniteError(PellucidError):
    """A request's activations or logits became NaN or infinite; only that request fails."""

    code = "non_finite"


class QueueFullError(PellucidError):
    """As many requests wait as may; trying again later can succeed."""

    code = "queue_full"

    def __init__(self, num_waiting: int, num_running: int) -> None:
        super().__init__(f"the queue is full: {num_running} sequences run and {num_waiting} wait; try again later")


class ShuttingDownError(PellucidError):
    """The engine is closing and takes no new requests."""

    code = "shutting_down"

    def __init__(self) -> None:
        super().__init__("the engine is shutting down and takes no new requests")


class EngineDeadError(PellucidError):
    """The engine's thread has ended with an error; the process must be started again."""

    code = "engine_dead"


class PellucidWarning(UserWarning):
    """Something allowed that is probably not meant; the command line shows it as one line on stderr."""


class TraceFileError(PellucidError):
    """A file is not a trace, or one that cannot be read."""

    code = "trace_file"

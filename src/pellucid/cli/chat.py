"""`pellucid chat`: a conversation that is remembered, at a terminal or from a script, one line a turn."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from pellucid.cli import console
from pellucid.cli.arguments import Option
from pellucid.cli.exit_codes import EXIT_REQUEST_FAILED
from pellucid.cli.flags import with_flags
from pellucid.cli.loading import PRESET_HELP, load_llm, sampling_params
from pellucid.cli.streaming import Streamed
from pellucid.cli.structured import ChoiceFlag, GrammarFlag, JsonObjectFlag, JsonSchemaFlag, RegexFlag, with_shape
from pellucid.errors import ChatTemplateError, ContextLengthExceededError, InvalidParameterError, PellucidError
from pellucid.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pellucid.engine.llm import LLM

Message = dict[str, str]
PROMPT = ">>> "
HELP = """\
/clear        forget the conversation
/system TEXT  set the system prompt and start again; without TEXT, remove it
/help         this list
/exit         leave (so does Ctrl-D)
Ctrl-C stops an answer. A line that must begin with / can begin with a space instead."""


@with_flags(sampling=True, skip=("n", "logprobs", "prompt_logprobs"))
def chat(
    system: Annotated[str | None, Option("--system", metavar="TEXT", help="System prompt.")] = None,
    preset: Annotated[str | None, Option("--preset", metavar="NAME", help=PRESET_HELP)] = None,
    quiet: Annotated[bool, Option("--quiet", "-q", help="No figures after an answer.")] = False,
    json_schema: JsonSchemaFlag = None,
    json_object: JsonObjectFlag = False,
    regex: RegexFlag = None,
    choice: ChoiceFlag = None,
    grammar: GrammarFlag = None,
    *,
    sampling: dict[str, Any],
    engine: dict[str, Any],
) -> int:
    """Ctrl-C stops the answer, Ctrl-D or /exit ends the program, /help shows what else there is.
    When standard input is not a terminal, each line of it is one turn.
    """
    sampling = with_shape(
        sampling, json_schema=json_schema, json_object=json_object, regex=regex, choice=choice, grammar=grammar
    )
    params = sampling_params(preset, sampling)
    llm = load_llm(engine)
    if llm.tokenizer.chat_template is None:
        raise ChatTemplateError(f"{llm.args.model} has no chat template, so it cannot chat: use `pellucid generate`")
    conversation = Conversation(llm, params, system)
    if sys.stdin.isatty() and sys.stdout.isatty():
        return _interactive(conversation, quiet)
    return _scripted(conversation, quiet)


@dataclass
class Conversation:
    """The messages so far. A question that failed is not kept; an answer that was stopped is, as far as it went."""

    llm: LLM
    params: SamplingParams
    system: str | None = None
    messages: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Back to the system prompt alone."""
        self.messages = [] if self.system is None else [{"role": "system", "content": self.system}]

    def ask(self, text: str) -> Streamed:
        """Stream the answer to stdout and remember both."""
        asked = [*self.messages, {"role": "user", "content": text}]
        answer = Streamed(self.llm.stream(asked, self.params))
        answer.show()
        self.messages = [*asked, {"role": "assistant", "content": answer.text}]
        return answer


def _scripted(conversation: Conversation, quiet: bool) -> int:
    """Each line is a turn; the first failure ends the script with its sentence."""
    code = 0
    sys.stdin.reconfigure(encoding="utf-8", errors="strict")  # type: ignore[union-attr]
    try:
        for line in sys.stdin:
            text = line.rstrip("\r\n")
            if text and not _command(conversation, text):
                answer = conversation.ask(text)
                _after(conversation, answer, quiet or not sys.stderr.isatty())
                if answer.interrupted:
                    raise KeyboardInterrupt
                if answer.finish_reason == "error":
                    code = EXIT_REQUEST_FAILED
    except UnicodeDecodeError:
        raise InvalidParameterError("messages", "a line on standard input is not valid UTF-8") from None
    except ContextLengthExceededError as error:
        raise PellucidError(_full(error)) from error
    except EOFError:
        pass
    return code


def _interactive(conversation: Conversation, quiet: bool) -> int:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (line editing and history for input())
    console.say(f"{conversation.llm.args.model} · /help for commands, Ctrl-C stops an answer, Ctrl-D leaves")
    while True:
        try:
            text = input(PROMPT)
            text.encode("utf-8")  # bytes that are no UTF-8 arrive as half surrogate pairs
        except EOFError:
            print()
            return 0
        except KeyboardInterrupt:
            print()
            continue
        except UnicodeError:
            console.complain("that line is not valid UTF-8")
            continue
        try:
            if text.strip() and not _command(conversation, text):
                _after(conversation, conversation.ask(text), quiet)
        except EOFError:
            return 0
        except KeyboardInterrupt:
            print()
        except ContextLengthExceededError as error:
            console.complain(_full(error))
        except PellucidError as error:
            console.complain(str(error))


def _after(conversation: Conversation, answer: Streamed, quiet: bool) -> None:
    """The figures, and why an answer ended early."""
    if answer.last is not None and not quiet:
        cached = f" · {answer.last.num_cached_tokens} cached" if answer.last.num_cached_tokens else ""
        stopped = " · stopped" if answer.interrupted else ""
        seed = None if conversation.params.temperature == 0 else answer.last.outputs[0].seed
        console.say(console.figures(answer.last.metrics, answer.num_tokens, seed) + cached + stopped)
    if answer.finish_reason == "error" and answer.last is not None:
        console.complain(answer.last.outputs[0].error or "the request failed")
    elif answer.finish_reason == "length" and answer.num_tokens != conversation.params.max_tokens:
        length = conversation.llm.max_model_len
        console.complain(
            f"the answer was cut: the context of {length} tokens is full; /clear starts a new conversation"
        )


def _command(conversation: Conversation, line: str) -> bool:
    """Do what a line that begins with / asks for. Returns False if it is an ordinary turn; /exit raises EOFError."""
    if not line.startswith("/"):
        return False
    name, _, rest = line.strip().partition(" ")
    if name in ("/exit", "/quit", "/bye"):
        raise EOFError
    if name == "/clear":
        conversation.clear()
        console.say("the conversation is forgotten")
    elif name == "/system":
        conversation.system = rest.strip() or None
        conversation.clear()
        console.say("the system prompt is set" if conversation.system else "there is no system prompt now")
    elif name == "/help":
        console.say(HELP)
    else:
        raise InvalidParameterError("messages", f"unknown command {name}; /help shows those there are")
    return True


def _full(error: ContextLengthExceededError) -> str:
    if error.max_tokens is not None:
        return f"{error}; /clear starts a new conversation"
    return (
        f"the conversation has {error.num_prompt_tokens} tokens with this message, but the context holds "
        f"{error.max_model_len}; /clear starts a new one"
    )

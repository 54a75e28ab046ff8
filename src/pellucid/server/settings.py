"""What an operator may choose about the server; `EngineArgs` has what concerns the engine."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from pellucid.engine.async_llm import DEFAULT_MAX_QUEUE
from pellucid.errors import InvalidParameterError
from pellucid.server.output.families import TOOL_FAMILIES, check_tool_parser
from pellucid.server.output.reasoning import REASONING_PARSERS, check_reasoning_parser
from pellucid.trace.events import LEVEL_HELP, MAX_LEVEL, OFF, SAMPLING

API_KEY_VARIABLE = "PELLUCID_API_KEY"

LOG_FORMATS = ("json", "text")
LOG_LEVELS = ("debug", "info", "warning", "error")
_WHOLE_NUMBERS = (
    ("port", 0, 65535),
    ("max_queue", 0, 2**31),
    ("max_body_bytes", 1, 2**31),
    ("max_websockets", 0, 2**31),
    ("model_memory_bytes", 1, 2**63 - 1),
    ("trace_level", 0, MAX_LEVEL),
)
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Checked on construction; raises `InvalidParameterError`."""

    host: str = field(default="127.0.0.1", metadata={"help": "Address to listen on; 0.0.0.0 is every IPv4 one."})
    port: int = field(default=8000, metadata={"help": "Port to listen on; 0 takes a free one."})
    api_key: tuple[str, ...] = field(
        default=(),
        metadata={"help": f"A key that clients must send; may be repeated. ${API_KEY_VARIABLE} when not given."},
    )
    served_model_name: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "Name of the model in the API, once for each model in their order; the names they were loaded by "
            "when unset."
        },
    )
    model_memory_bytes: int | None = field(
        default=None,
        metadata={
            "help": "What all loaded models may take together, weights and KV caches; the one unused for longest is "
            "closed for another. 0.8 of the machine's memory when unset."
        },
    )
    max_queue: int = field(
        default=DEFAULT_MAX_QUEUE,
        metadata={"help": "Sequences that may wait beside the --max-num-seqs that run; more get status 429."},
    )
    max_body_bytes: int = field(
        default=4 * 1024**2,
        metadata={
            "help": "Largest request body, or message of a WebSocket; a larger one gets status 413, or close code 1009."
        },
    )
    max_websockets: int = field(
        default=256, metadata={"help": "WebSockets that may be open at once; more are closed with code 1013."}
    )
    cors_origin: tuple[str, ...] = field(
        default=(), metadata={"help": "A web origin whose pages may call the API, or *; may be repeated."}
    )
    tool_call_parser: str = field(
        default="auto",
        metadata={"help": f"How the models write tool calls: auto (by the chat template), {', '.join(TOOL_FAMILIES)}."},
    )
    reasoning_parser: str = field(
        default="auto",
        metadata={
            "help": "How the models mark their reasoning: auto (by the chat template), none, "
            f"{', '.join(REASONING_PARSERS)}."
        },
    )
    access_log: bool = field(default=True, metadata={"help": "A line on stderr for each request."})
    log_format: str = field(default="json", metadata={"help": f"Form of the log's lines: {' or '.join(LOG_FORMATS)}."})
    log_level: str = field(default="info", metadata={"help": f"Least level of a line: {', '.join(LOG_LEVELS)}."})
    log_prompts: bool = field(default=False, metadata={"help": "Prompts in the access log too."})
    trace_level: int | None = field(
        default=None,
        metadata={
            "help": f"Most that a request's `trace` may ask for: {LEVEL_HELP}. When unset, 2 on a loopback address, "
            "else 0."
        },
    )
    playground_all: bool = field(
        default=False,
        metadata={"help": "The playground shows every traced request, not only those of the page itself."},
    )
    otlp_endpoint: str | None = field(
        default=None,
        metadata={
            "help": "Address of an OpenTelemetry collector (OTLP over HTTP), to which a span of each request is sent; "
            "needs the extra `otel`."
        },
    )
    shutdown_timeout: float = field(
        default=30.0, metadata={"help": "At the end, how long running requests may take to finish."}
    )

    def __post_init__(self) -> None:
        check_tool_parser(self.tool_call_parser)
        check_reasoning_parser(self.reasoning_parser)
        for name, low, high in _WHOLE_NUMBERS:
            value = getattr(self, name)
            if value is None and name in ("model_memory_bytes", "trace_level"):
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise InvalidParameterError(
                    name, f"{name} is {value!r}, but must be a whole number from {low} to {high}"
                )
        if not 0 <= self.shutdown_timeout <= 86400:
            raise InvalidParameterError(
                "shutdown_timeout",
                f"shutdown_timeout is {self.shutdown_timeout!r}, but must be a number from 0 to 86400",
            )
        for name, known in (("log_format", LOG_FORMATS), ("log_level", LOG_LEVELS)):
            if getattr(self, name) not in known:
                raise InvalidParameterError(
                    name, f"{name} is {getattr(self, name)!r}, but must be one of {', '.join(known)}"
                )
        if self.otlp_endpoint is not None and not self.otlp_endpoint.startswith(("http://", "https://")):
            raise InvalidParameterError(
                "otlp_endpoint", f"otlp_endpoint is {self.otlp_endpoint!r}, but must begin with http:// or https://"
            )
        if any(not key or not key.isascii() or key != key.strip() for key in self.api_key):
            raise InvalidParameterError("api_key", "an api_key is empty, or has spaces around it or is not ASCII")
        for name, values in (("host", (self.host,)), ("served_model_name", self.served_model_name)):
            if "" in values:
                raise InvalidParameterError(name, f"{name} is empty, but must be a name")

    @property
    def most_trace_level(self) -> int:
        """The level that a request may ask for at most."""
        if self.trace_level is None:
            return SAMPLING if self.host in LOOPBACK else OFF
        return self.trace_level


HELP = {f.name: str(f.metadata["help"]) for f in fields(ServerSettings)}
DEFAULTS = ServerSettings()

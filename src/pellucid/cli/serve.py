"""`pellucid serve`: an OpenAI-compatible HTTP server over one model or several."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

from pellucid.cli import console
from pellucid.cli.arguments import Argument, Option
from pellucid.cli.flags import with_flags
from pellucid.config import EngineArgs
from pellucid.errors import InvalidParameterError
from pellucid.server.settings import API_KEY_VARIABLE, DEFAULTS, HELP, LOOPBACK, ServerSettings

if TYPE_CHECKING:
    from pellucid.engine.async_llm import AsyncLLM
    from pellucid.server.models import ModelPool

MEMORY_SHARE = 0.8
"""Of the machine's memory, what loaded models may take when nobody says."""


@with_flags()
def serve(
    names: Annotated[
        list[str] | None,
        Argument(
            metavar="MODEL",
            help="The same as -m. Several may be named: the first is loaded at once and answers requests that name "
            "none, the others are loaded when they are asked for.",
        ),
    ] = None,
    host: Annotated[str, Option("--host", help=HELP["host"])] = DEFAULTS.host,
    port: Annotated[int, Option("--port", metavar="N", help=HELP["port"])] = DEFAULTS.port,
    api_key: Annotated[list[str] | None, Option("--api-key", metavar="KEY", help=HELP["api_key"])] = None,
    served_model_name: Annotated[
        list[str] | None,
        Option("--served-model-name", metavar="NAME", help=HELP["served_model_name"]),
    ] = None,
    model_memory_bytes: Annotated[
        int | None,
        Option("--model-memory-bytes", metavar="N", help=HELP["model_memory_bytes"]),
    ] = None,
    max_queue: Annotated[int, Option("--max-queue", metavar="N", help=HELP["max_queue"])] = DEFAULTS.max_queue,
    max_body_bytes: Annotated[
        int, Option("--max-body-bytes", metavar="N", help=HELP["max_body_bytes"])
    ] = DEFAULTS.max_body_bytes,
    max_websockets: Annotated[
        int, Option("--max-websockets", metavar="N", help=HELP["max_websockets"])
    ] = DEFAULTS.max_websockets,
    cors_origin: Annotated[
        list[str] | None, Option("--cors-origin", metavar="ORIGIN", help=HELP["cors_origin"])
    ] = None,
    tool_call_parser: Annotated[
        str, Option("--tool-call-parser", metavar="NAME", help=HELP["tool_call_parser"])
    ] = DEFAULTS.tool_call_parser,
    reasoning_parser: Annotated[
        str, Option("--reasoning-parser", metavar="NAME", help=HELP["reasoning_parser"])
    ] = DEFAULTS.reasoning_parser,
    access_log: Annotated[bool, Option("--access-log/--no-access-log", help=HELP["access_log"])] = DEFAULTS.access_log,
    log_format: Annotated[str, Option("--log-format", metavar="FORM", help=HELP["log_format"])] = DEFAULTS.log_format,
    log_level: Annotated[str, Option("--log-level", metavar="LEVEL", help=HELP["log_level"])] = DEFAULTS.log_level,
    log_prompts: Annotated[bool, Option("--log-prompts", help=HELP["log_prompts"])] = DEFAULTS.log_prompts,
    trace_level: Annotated[int | None, Option("--trace-level", metavar="N", help=HELP["trace_level"])] = None,
    playground_all: Annotated[bool, Option("--playground-all", help=HELP["playground_all"])] = DEFAULTS.playground_all,
    otlp_endpoint: Annotated[str | None, Option("--otlp-endpoint", metavar="URL", help=HELP["otlp_endpoint"])] = None,
    shutdown_timeout: Annotated[
        float, Option("--shutdown-timeout", metavar="SECONDS", help=HELP["shutdown_timeout"])
    ] = DEFAULTS.shutdown_timeout,
    *,
    engine: dict[str, Any],
) -> int:
    """Ctrl-C lets running requests finish (--shutdown-timeout), a second Ctrl-C does not. Without --api-key anybody who
    reaches the port may use it.
    """
    if names and "model" in engine:
        raise InvalidParameterError(
            "model", f"two models are named, {names[0]!r} and {engine['model']!r} with -m: name all without -m"
        )
    variable = os.environ.get(API_KEY_VARIABLE)
    settings = ServerSettings(
        host=host,
        port=port,
        api_key=tuple(api_key or ([variable] if variable else [])),
        served_model_name=tuple(served_model_name or ()),
        model_memory_bytes=model_memory_bytes,
        max_queue=max_queue,
        max_body_bytes=max_body_bytes,
        max_websockets=max_websockets,
        cors_origin=tuple(cors_origin or ()),
        tool_call_parser=tool_call_parser,
        reasoning_parser=reasoning_parser,
        access_log=access_log,
        log_format=log_format,
        log_level=log_level,
        log_prompts=log_prompts,
        trace_level=trace_level,
        playground_all=playground_all,
        otlp_endpoint=otlp_endpoint,
        shutdown_timeout=shutdown_timeout,
    )
    every = [EngineArgs(**{**engine, "model": name}) for name in names or ()] or [EngineArgs(**engine)]
    return _serve(settings, every)


def _serve(settings: ServerSettings, every: list[EngineArgs]) -> int:
    from pellucid.cli.main import version
    from pellucid.server.running import address_of, bind, run

    names = served_names(settings, every)
    if len(every) > 1 and every[0].kv_cache_save is not None:
        raise InvalidParameterError("kv_cache_save", "kv_cache_save holds one model's cache, but several are served")
    bound = bind(settings.host, settings.port)  # before the model is loaded: a port in use is said at once
    if not settings.api_key and settings.host not in LOOPBACK:
        print(f"warning: {settings.host} can be reached from outside and there is no --api-key", file=sys.stderr)
    tracing = None
    if settings.otlp_endpoint is not None:
        from pellucid.server.tracing import Tracing

        tracing = Tracing.to_endpoint(settings.otlp_endpoint, version=version())
    pool = model_pool(settings, names, every)
    first = pool.preload()
    line = f"Pellucid serves {', '.join(names)} on http://{address_of(bound)}/v1 · {room(first)}"
    run(pool, settings, bound, version=version(), tracing=tracing, on_ready=lambda: print(line, flush=True))
    if first.closing_note is not None:
        print(f"warning: {first.closing_note}", file=sys.stderr)
    return 0


def served_names(settings: ServerSettings, every: list[EngineArgs]) -> list[str]:
    """The models' names in the API. Raises `InvalidParameterError` when they are not as many, or one comes twice."""
    names = list(settings.served_model_name) or [args.model for args in every]
    if len(names) != len(every):
        raise InvalidParameterError(
            "served_model_name",
            f"served_model_name is given {len(names)} times, but there are {len(every)} models: give one for each",
        )
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InvalidParameterError("served_model_name", f"two models have the name {twice[0]!r}: give each its own")
    return names


def model_pool(settings: ServerSettings, names: list[str], every: list[EngineArgs]) -> ModelPool:
    """The models, none of them loaded. They share the cores: a step of one, then a step of another."""
    from pellucid.engine.async_llm import AsyncLLM
    from pellucid.engine.llm_engine import LLMEngine
    from pellucid.engine.loading import needed_bytes
    from pellucid.engine.turns import Turns
    from pellucid.kv_cache.memory import total_memory
    from pellucid.server.models import Model, ModelPool

    turns = Turns() if len(every) > 1 else None

    def model(name: str, args: EngineArgs) -> Model:
        def load() -> AsyncLLM:
            engine = LLMEngine.from_args(args, progress=console.progress())
            llm = AsyncLLM(engine, max_queue=settings.max_queue, turns=turns)
            if llm.opening_note is not None:
                print(f"warning: {llm.opening_note}", file=sys.stderr)
            return llm

        return Model(name, load, lambda: needed_bytes(args, console.progress()))

    limit = settings.model_memory_bytes or int(MEMORY_SHARE * total_memory())
    return ModelPool([model(name, args) for name, args in zip(names, every, strict=True)], limit)


def room(llm: AsyncLLM) -> str:
    """What the KV cache has room for: in all, for one request, and for how many of the longest."""
    from pellucid.model_store.progress import format_bytes

    num_blocks, size, longest = llm.stats.kv_blocks_total, llm.args.block_size, llm.max_model_len
    trained = llm.config.context_length
    limit = "the model's limit"
    if llm.args.max_model_len is not None:
        limit = f"--max-model-len; the model {'was trained for' if longest > trained else 'has'} {trained}"
    return (
        f"KV cache {format_bytes(llm.kv_cache_bytes)}: {num_blocks} blocks of {size}, {num_blocks * size} tokens; "
        f"at most {longest} a request ({limit}), {num_blocks // -(-longest // size)} of that length at once"
    )

"""`pellucid serve`: an OpenAI-compatible HTTP server over one model."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pellucid.cli import console
from pellucid.cli.flags import with_flags
from pellucid.config import EngineArgs
from pellucid.errors import InvalidParameterError
from pellucid.server.settings import API_KEY_VARIABLE, DEFAULTS, HELP, ServerSettings

if TYPE_CHECKING:
    from pellucid.engine.llm_engine import LLMEngine

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@with_flags()
def serve(
    name: Annotated[str | None, typer.Argument(metavar="MODEL", help="The same as -m.", show_default=False)] = None,
    host: Annotated[str, typer.Option("--host", help=HELP["host"])] = DEFAULTS.host,
    port: Annotated[int, typer.Option("--port", metavar="N", help=HELP["port"])] = DEFAULTS.port,
    api_key: Annotated[
        list[str] | None, typer.Option("--api-key", metavar="KEY", help=HELP["api_key"], show_default=False)
    ] = None,
    served_model_name: Annotated[
        str | None, typer.Option("--served-model-name", metavar="NAME", help=HELP["served_model_name"])
    ] = None,
    max_queue: Annotated[int, typer.Option("--max-queue", metavar="N", help=HELP["max_queue"])] = DEFAULTS.max_queue,
    max_body_bytes: Annotated[
        int, typer.Option("--max-body-bytes", metavar="N", help=HELP["max_body_bytes"])
    ] = DEFAULTS.max_body_bytes,
    cors_origin: Annotated[
        list[str] | None, typer.Option("--cors-origin", metavar="ORIGIN", help=HELP["cors_origin"], show_default=False)
    ] = None,
    access_log: Annotated[
        bool, typer.Option("--access-log/--no-access-log", help=HELP["access_log"])
    ] = DEFAULTS.access_log,
    log_prompts: Annotated[bool, typer.Option("--log-prompts", help=HELP["log_prompts"])] = DEFAULTS.log_prompts,
    drain_seconds: Annotated[
        float, typer.Option("--drain-seconds", metavar="SECONDS", help=HELP["drain_seconds"])
    ] = DEFAULTS.drain_seconds,
    *,
    engine: dict[str, Any],
) -> int:
    """Ctrl-C lets running requests finish (--drain-seconds), a second Ctrl-C does not. Without --api-key anybody who
    reaches the port may use it.
    """
    if name is not None and "model" in engine:
        raise InvalidParameterError("model", f"two models are named, {name!r} and {engine['model']!r}: give one")
    variable = os.environ.get(API_KEY_VARIABLE)
    settings = ServerSettings(
        host=host,
        port=port,
        api_key=tuple(api_key or ([variable] if variable else [])),
        served_model_name=served_model_name,
        max_queue=max_queue,
        max_body_bytes=max_body_bytes,
        cors_origin=tuple(cors_origin or ()),
        access_log=access_log,
        log_prompts=log_prompts,
        drain_seconds=drain_seconds,
    )
    return _serve(settings, EngineArgs(**engine if name is None else {**engine, "model": name}))


def _serve(settings: ServerSettings, args: EngineArgs) -> int:
    from pellucid.cli.main import version
    from pellucid.engine.async_llm import AsyncLLM
    from pellucid.engine.llm_engine import LLMEngine
    from pellucid.server.running import address_of, bind, run

    bound = bind(settings.host, settings.port)  # before the model is loaded: a port in use is said at once
    if not settings.api_key and settings.host not in LOOPBACK:
        print(f"warning: {settings.host} can be reached from outside and there is no --api-key", file=sys.stderr)
    engine = LLMEngine.from_args(args, progress=console.progress())
    line = (
        f"Pellucid serves {settings.served_model_name or args.model} on http://{address_of(bound)}/v1 · {room(engine)}"
    )
    async_llm = AsyncLLM(engine, max_queue=settings.max_queue)
    run(async_llm, settings, bound, version=version(), on_ready=lambda: print(line, flush=True))
    return 0


def room(engine: LLMEngine) -> str:
    """What the KV cache has room for."""
    from pellucid.model_store.progress import format_bytes

    num_tokens = engine.stats.kv_blocks_total * engine.args.block_size
    return (
        f"KV cache for {num_tokens} tokens ({format_bytes(engine.storage.nbytes)}), "
        f"at most {engine.max_model_len} a request"
    )

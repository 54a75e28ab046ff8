"""POST /v1/embeddings: a vector for each text."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import Response

from pellucid.errors import PellucidError
from pellucid.pooling_params import POOLINGS, EmbeddingOutput, PoolingParams
from pellucid.sampling_params import SamplingParams
from pellucid.server.api_errors import api_error
from pellucid.server.checks import check_names, refused, shown
from pellucid.server.delivery import CLIENT_GONE, Watch
from pellucid.server.fields import COMMON, COMPLETIONS, Endpoint
from pellucid.server.gate import FOLLOWED, NOTES
from pellucid.server.metrics import Metrics
from pellucid.server.models import ModelPool
from pellucid.server.openai_fields import labels
from pellucid.server.parsing import check_unserved
from pellucid.server.settings import ServerSettings
from pellucid.server.wire import dump, read_object

MAX_INPUTS = 2048
"""Texts of one request at most: OpenAI's limit."""
ENCODING_FORMATS = ("float", "base64")

EMBEDDINGS = Endpoint(
    own={
        "model": COMMON["model"],
        "input": {
            **COMPLETIONS.own["prompt"],
            "description": f"A text or its token ids, or a list of up to {MAX_INPUTS} of either.",
        },
        "encoding_format": {
            "enum": [*ENCODING_FORMATS, None],
            "description": "float: numbers; base64: their float32 values, little-endian.",
        },
        "dimensions": {
            "type": ["integer", "null"],
            "minimum": 1,
            "description": "Only the first so many numbers, for models that were trained for it.",
        },
        "pooling": {"enum": [*POOLINGS, None], "description": "How a text's tokens become one vector; ours."},
        "normalize": {"type": ["boolean", "null"], "description": "Whether vectors get the length 1; ours."},
    },
    labels=labels("user"),
    unserved={},
    required=("input",),
    renamed={"prompt": "input", "prompts": "input"},
    without=frozenset(f.name for f in fields(SamplingParams)),
)


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """A body that was understood."""

    inputs: list[Any]
    """Texts, or lists of token ids."""
    params: PoolingParams
    is_base64: bool


def parse_embeddings(body: Mapping[str, Any]) -> EmbeddingRequest:
    """Raises `ApiError`."""
    check_names(body, EMBEDDINGS.known, EMBEDDINGS.required)
    check_unserved(body, EMBEDDINGS)
    form = "float" if body.get("encoding_format") is None else body["encoding_format"]
    if form not in ENCODING_FORMATS:
        raise refused(
            "encoding_format", f"encoding_format is {shown(form)}, but must be {' or '.join(ENCODING_FORMATS)}"
        )
    given = {name: body[name] for name in ("pooling", "normalize", "dimensions") if body.get(name) is not None}
    try:
        params = PoolingParams(**given)
    except PellucidError as error:
        raise api_error(error) from None
    return EmbeddingRequest(_inputs(body["input"]), params, form == "base64")


def _inputs(value: Any) -> list[Any]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if all(type(item) is int for item in value):
            return [value]
        if len(value) > MAX_INPUTS:
            raise refused("input", f"input has {len(value)} texts, but a request may have at most {MAX_INPUTS}")
        if all(isinstance(item, str) for item in value) or all(isinstance(item, list) for item in value):
            return value
    raise refused(
        "input", "input must be a string, a list of strings, a list of token ids, or a list of lists of token ids"
    )


class _Work:
    """A task that ends when the client leaves."""

    def __init__(self, task: asyncio.Task[list[EmbeddingOutput]]) -> None:
        self.task = task

    def abort(self) -> None:
        self.task.cancel()


@dataclass(frozen=True, slots=True)
class EmbeddingRoutes:
    """The handler, with what it needs."""

    models: ModelPool
    settings: ServerSettings
    metrics: Metrics

    def router(self) -> APIRouter:
        """The endpoint."""
        router = APIRouter()
        body = {"requestBody": {"required": True, "content": {"application/json": {"schema": EMBEDDINGS.schema()}}}}
        summary = "A vector for each text"
        router.add_api_route("/v1/embeddings", self.embeddings, methods=["POST"], summary=summary, openapi_extra=body)
        return router

    async def embeddings(self, request: Request) -> Response:
        """As OpenAI's."""
        body = await read_object(request, self.settings.max_body_bytes)
        parsed = parse_embeddings(body)
        notes = request.scope[NOTES]
        notes["user"], notes["inputs"] = body.get("user"), len(parsed.inputs)
        if self.settings.log_prompts:
            notes["input"] = parsed.inputs
        used = await self.models.acquire(request.scope, body.get("model"))
        notes["model"] = used.name
        work = _Work(asyncio.create_task(used.llm.embed(parsed.inputs, parsed.params)))
        async with Watch(request.receive, work) as watch:
            try:
                outputs = await asyncio.shield(work.task)
            except PellucidError as error:
                raise api_error(error, EMBEDDINGS.renamed) from None
            except asyncio.CancelledError:
                if not watch.is_gone:
                    raise
        if watch.is_gone:
            notes["client_gone"] = True
            return Response(status_code=CLIENT_GONE)
        num_tokens = sum(len(output.prompt_token_ids) for output in outputs)
        notes["prompt_tokens"] = num_tokens
        content = await asyncio.to_thread(_content, outputs, used.name, num_tokens, parsed.is_base64)
        arrival_time = request.scope[FOLLOWED].arrival_time
        self.metrics.count_embeddings(used.name, len(outputs), num_tokens, time.monotonic() - arrival_time)
        return Response(content, media_type="application/json")


def _content(outputs: Sequence[EmbeddingOutput], model: str, num_tokens: int, is_base64: bool) -> bytes:
    """The body: in a thread, because a million numbers take a second to write."""
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": _base64(output.embedding) if is_base64 else _numbers(output.embedding),
        }
        for index, output in enumerate(outputs)
    ]
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    return dump({"object": "list", "data": data, "model": model, "usage": usage})


def _numbers(vector: np.ndarray[Any, np.dtype[np.float32]]) -> list[float]:
    """As the shortest decimals that are the float32 again."""
    return [float(text) for text in vector.astype(str)]


def _base64(vector: np.ndarray[Any, np.dtype[np.float32]]) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()

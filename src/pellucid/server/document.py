"""The OpenAPI document: what FastAPI knows of the routes, with every answer and error, and an example of each body."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from pellucid.server.fields import Schema

_STRING: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_LIST: Schema = {"type": "array"}


def _object(**properties: Schema) -> Schema:
    """An object that has these, and may have more."""
    return {"type": "object", "properties": properties, "required": list(properties)}


_ERROR = _object(
    error=_object(
        message=_STRING,
        type=_STRING,
        param={"type": ["string", "null"], "description": "The field at fault."},
        code={"type": ["string", "null"]},
    )
)
_USAGE = _object(
    prompt_tokens=_COUNT,
    completion_tokens=_COUNT,
    total_tokens=_COUNT,
    prompt_tokens_details=_object(cached_tokens=_COUNT),
)
_FINISH: Schema = {"enum": ["stop", "length", "tool_calls"]}
_MESSAGE = _object(role={"const": "assistant"}, content={"type": ["string", "null"]})
_CHOICE = _object(index=_COUNT, message=_MESSAGE, finish_reason=_FINISH)
_ADDITIONS = _object(seed={"type": "integer", "description": "Repeats the answer."})
_HEAD: dict[str, Schema] = {"id": _STRING, "created": _COUNT, "model": _STRING}
_MODEL = _object(id=_STRING, object={"const": "model"}, created=_COUNT, owned_by=_STRING)
_STATE = _object(status={"enum": ["ok", "unavailable"]})

SCHEMAS: dict[str, Schema] = {
    "Error": _ERROR,
    "ChatCompletion": _object(
        **_HEAD,
        object={"const": "chat.completion"},
        choices={"type": "array", "items": _CHOICE},
        usage=_USAGE,
        pellucid=_ADDITIONS,
    ),
    "Completion": _object(
        **_HEAD,
        object={"const": "text_completion"},
        choices={"type": "array", "items": _object(index=_COUNT, text=_STRING, finish_reason=_FINISH)},
        usage=_USAGE,
        pellucid=_ADDITIONS,
    ),
    "Response": _object(
        id=_STRING,
        object={"const": "response"},
        created_at=_COUNT,
        model=_STRING,
        status={"enum": ["completed", "incomplete"]},
        output={
            "type": "array",
            "items": _object(id=_STRING, type={"enum": ["message", "reasoning", "function_call"]}),
        },
        usage=_object(input_tokens=_COUNT, output_tokens=_COUNT, total_tokens=_COUNT),
    ),
    "Embeddings": _object(
        object={"const": "list"},
        data={
            "type": "array",
            "items": _object(
                object={"const": "embedding"},
                index=_COUNT,
                embedding={
                    "anyOf": [{"type": "array", "items": {"type": "number"}}, _STRING],
                    "description": "Numbers, or in base64 their float32 values, little-endian.",
                },
            ),
        },
        model=_STRING,
        usage=_object(prompt_tokens=_COUNT, total_tokens=_COUNT),
    ),
    "Tokens": _object(count=_COUNT, max_model_len=_COUNT, tokens={"type": "array", "items": {"type": "integer"}}),
    "Prefill": _object(object={"const": "prefill"}, model=_STRING, prompt_tokens=_COUNT),
    "Text": _object(prompt=_STRING),
    "Models": _object(object={"const": "list"}, data={"type": "array", "items": _MODEL}),
    "Model": _MODEL,
    "State": _STATE,
    "Version": _object(version=_STRING),
}
ANSWERS: dict[str, str] = {
    "/v1/chat/completions": "ChatCompletion",
    "/v1/completions": "Completion",
    "/v1/responses": "Response",
    "/v1/embeddings": "Embeddings",
    "/v1/prefill": "Prefill",
    "/tokenize": "Tokens",
    "/detokenize": "Text",
    "/v1/models": "Models",
    "/v1/models/{model}": "Model",
    "/health": "State",
    "/ready": "State",
    "/version": "Version",
}
"""The body of status 200, by path."""
OTHER_TYPES = {"/v1/traces/{name}": "application/x-ndjson", "/v1/traces/live": "text/event-stream"}
"""What is neither JSON nor plain text."""
STREAMS = frozenset(("/v1/chat/completions", "/v1/completions", "/v1/responses"))
EXAMPLES: dict[str, Any] = {
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0,
        "max_tokens": 32,
    },
    "/v1/completions": {"prompt": "2, 4, 6,", "temperature": 0, "max_tokens": 6},
    "/v1/responses": {"input": "What is the capital of France?", "temperature": 0, "max_output_tokens": 32},
    "/v1/embeddings": {"input": ["The cat sits outside", "The new film is great"]},
    "/v1/prefill": {"prompt": "2, 4, 6,"},
    "/tokenize": {"prompt": "Hello, world"},
    "/detokenize": {"tokens": [28, 905]},
}
_REFUSALS = {
    "400": "A field is unknown, out of range or not served, or the body is no strict JSON.",
    "404": "There is no such model.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "415": "The Content-Type is not application/json.",
    "429": "The queue is full; Retry-After says when to try again.",
    "500": "The request failed while it ran, or the server made a mistake.",
    "503": "The server is shutting down, the engine has failed, or the model finds no room.",
}
_UNAUTHORIZED = "The API key is missing or wrong."


def describe(app: FastAPI, open_paths: frozenset[str]) -> dict[str, Any]:
    """The document. open_paths: those that want no API key."""
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    components: dict[str, Any] = document.setdefault("components", {})
    components["schemas"] = SCHEMAS
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer", "description": "With --api-key."}}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            operation["responses"] = _responses(path, method, path in open_paths)
            if path not in open_paths:
                operation["security"] = [{"key": []}, {}]
            if path in EXAMPLES:
                operation["requestBody"]["content"]["application/json"]["example"] = EXAMPLES[path]
    return document


def _responses(path: str, method: str, is_open: bool) -> dict[str, Any]:
    answer = _json(ANSWERS[path]) if path in ANSWERS else {OTHER_TYPES.get(path, "text/plain"): {"schema": _STRING}}
    if path in STREAMS:
        answer = {**answer, "text/event-stream": {"schema": _STRING}}
    responses: dict[str, Any] = {"200": {"description": "OK", "content": answer}}
    if not is_open:
        responses["401"] = {"description": _UNAUTHORIZED, "content": _json("Error")}
    if method == "post":
        refusals = _REFUSALS
    else:
        refusals = {"404": _REFUSALS["404"]} if "{" in path else {}
    for status, description in refusals.items():
        responses[status] = {"description": description, "content": _json("Error")}
    if path in ("/health", "/ready"):
        responses["503"] = {"description": "Not so.", "content": _json("State")}
    return dict(sorted(responses.items()))


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}

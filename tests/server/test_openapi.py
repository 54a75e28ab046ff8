"""The OpenAPI document, and the server held to it: schemathesis makes requests of it, good ones and bad."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from http_server import RunningServer, mock_engine, mock_model
from hypothesis import HealthCheck, given, settings

from pellucid.server.document import ANSWERS, EXAMPLES, OTHER_TYPES, STREAMS
from pellucid.server.fields import CHAT, COMPLETIONS
from pellucid.server.responses.fields import RESPONSES

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    schemathesis: Any = pytest.importorskip("schemathesis")
    rules: Any = importlib.import_module("schemathesis.specs.openapi.checks")

ENDPOINTS = {"/v1/completions": COMPLETIONS, "/v1/chat/completions": CHAT, "/v1/responses": RESPONSES}


@pytest.fixture(scope="module")
def small_server() -> Iterator[RunningServer]:
    """A short context, so that no answer lasts, and no token at which the mock model fails on purpose."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("NAN_TOKEN", "INF_TOKEN"):
            patch.setattr(mock_model, name, -1)
        with RunningServer(mock_engine(context=64)) as running:
            yield running


CHECKS = [
    importlib.import_module("schemathesis.checks").not_a_server_error,
    rules.status_code_conformance,
    rules.content_type_conformance,
    rules.response_schema_conformance,
    rules.negative_data_rejection,
]


@pytest.mark.parametrize("mode", ["POSITIVE", "NEGATIVE"])
@pytest.mark.parametrize("path", sorted(ANSWERS))
def test_what_schemathesis_makes_of_it(small_server: RunningServer, path: str, mode: str) -> None:
    document = schemathesis.openapi.from_dict(small_server.get("/openapi.json").json())
    document.config.update(base_url=small_server.url)
    operation = document[path]["POST" if path in EXAMPLES else "GET"]
    generation_mode = schemathesis.GenerationMode[mode]
    if mode == "NEGATIVE" and path not in EXAMPLES:
        pytest.skip("nothing in the request can be wrong")

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(case=operation.as_strategy(generation_mode=generation_mode))
    def ask(case: Any) -> None:
        if mode == "POSITIVE" and isinstance(case.body, dict):
            case.body.pop("model", None)  # else nearly all would be 404
        case.call_and_validate(checks=CHECKS, session=session)

    with requests.Session() as session:
        ask()


def test_every_path_is_described(small_server: RunningServer) -> None:
    paths = small_server.get("/openapi.json").json()["paths"]
    assert paths.keys() - {"/metrics", *OTHER_TYPES} == ANSWERS.keys()
    posts = {path for path, operations in paths.items() if "post" in operations}
    assert posts == EXAMPLES.keys()
    for path in posts:
        responses = paths[path]["post"]["responses"]
        assert {"200", "400", "401", "404", "413", "415", "429", "500", "503"} <= responses.keys()
        assert ("text/event-stream" in responses["200"]["content"]) == (path in STREAMS)


def test_the_examples_work(small_server: RunningServer) -> None:
    for path, body in EXAMPLES.items():
        if path == "/detokenize":
            body = {"tokens": [104, 105]}
        response = small_server.post(path, body)
        assert response.status_code in (200, 400), response.text
        if response.status_code == 400:  # a context of 64 holds little
            assert response.json()["error"]["code"] == "context_length_exceeded"


def test_bodies_are_described_field_by_field(small_server: RunningServer) -> None:
    paths = small_server.get("/openapi.json").json()["paths"]
    for path, endpoint in ENDPOINTS.items():
        schema = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert schema["properties"].keys() == endpoint.known
        undescribed = [name for name in endpoint.own if not schema["properties"][name].get("description")]
        assert undescribed == []

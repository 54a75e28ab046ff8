"""The real default model behind the server."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import openai
import pytest
from http_server import RunningServer

from pellucid.engine.llm import LLM
from pellucid.sampling_params import SamplingParams

MESSAGES: Any = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def llm(real_server: RunningServer) -> LLM:
    """A second engine over the weights that are loaded already."""
    engine = real_server.engine
    return LLM.from_parts(engine.model, engine.tokenizer, engine.args)


def test_the_capital_of_france(real_server: RunningServer) -> None:
    client = real_server.client()
    answer = client.chat.completions.create(model="smollm2:135m", messages=MESSAGES, temperature=0)
    assert answer.choices[0].message.content == "The capital of France is Paris."
    assert answer.choices[0].finish_reason == "stop"
    stream = client.chat.completions.create(model="smollm2:135m", messages=MESSAGES, temperature=0, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == "The capital of France is Paris."


def test_eight_at_once_have_the_bits_of_their_solo_runs(real_server: RunningServer, llm: LLM) -> None:
    prompts = [f"Story number {i}:" for i in range(8)]
    params = [SamplingParams(seed=i, max_tokens=12, logprobs=2) for i in range(8)]
    wholes = llm.generate(prompts, params)

    async def ask() -> list[Any]:
        async with real_server.async_client() as client:
            return await asyncio.gather(
                *(
                    client.completions.create(model="smollm2:135m", prompt=p, seed=i, max_tokens=12, logprobs=2)
                    for i, p in enumerate(prompts)
                )
            )

    for answer, whole in zip(asyncio.run(ask()), wholes, strict=True):
        [choice], [output] = answer.choices, whole.outputs
        assert choice.text == output.text
        expected = [row[t].logprob for row, t in zip(output.logprobs or (), output.token_ids, strict=True)]
        assert choice.logprobs.token_logprobs == expected


def test_a52_an_empty_prompt_is_400_and_the_server_stays(real_server: RunningServer) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        real_server.client().completions.create(model="smollm2:135m", prompt="")
    assert caught.value.param == "prompt"
    assert real_server.get("/health").status_code == 200


def test_control_strings_in_prompts_are_text(real_server: RunningServer) -> None:
    control = real_server.engine.tokenizer.special_tokens["<|im_end|>"]  # type: ignore[attr-defined]
    tokens = real_server.post("/tokenize", {"prompt": "a<|im_end|>"}).json()["tokens"]
    assert control not in tokens
    assert real_server.post("/detokenize", {"tokens": tokens}).json()["prompt"] == "a<|im_end|>"
    chat = {"messages": [{"role": "user", "content": "<|im_end|>"}]}
    one = real_server.post("/tokenize", {"messages": [{"role": "user", "content": "x"}]}).json()["tokens"]
    assert real_server.post("/tokenize", chat).json()["tokens"].count(control) == one.count(control)


def test_half_a_surrogate_pair_is_400(real_server: RunningServer) -> None:
    import httpx

    headers = {"Content-Type": "application/json"}
    for path, content in (
        ("/v1/completions", rb'{"prompt": "\ud800"}'),
        ("/v1/chat/completions", rb'{"messages": [{"role": "user", "content": "\ud800"}]}'),
        ("/tokenize", rb'{"prompt": "\ud800"}'),
    ):
        response = httpx.post(real_server.url + path, content=content, headers=headers)
        assert response.status_code == 400, response.text


def test_the_example_of_the_page(real_server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    """docs/serving.md: the programs, run one after the other against this server, print what stands below them."""
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    examples = re.findall(r"```python\n([^`]*)```\n\n```text\n([^`]*)```", page)
    assert len(examples) == 2
    names: dict[str, Any] = {}
    for source, shown in examples:
        exec(source.replace("http://127.0.0.1:8000/v1", real_server.base_url), names)
        assert capsys.readouterr().out == shown


def test_the_file_is_the_model(smollm2_path: Path, real_server: RunningServer) -> None:
    assert smollm2_path.exists()
    [model] = real_server.get("/v1/models").json()["data"]
    assert (model["id"], model["max_model_len"]) == ("smollm2:135m", 1024)

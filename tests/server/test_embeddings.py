"""Embeddings beside streams, and POST /v1/embeddings: what comes out, what is refused, who waits for whom."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from http_server import RunningServer, mock_engine, mock_model, wait_for
from parity.families import BY_NAME, write_folder
from test_async_llm import FOREVER, solo, total, with_llm
from tiny_model import write_tiny_model

from pellucid.config import EngineArgs
from pellucid.engine.async_llm import AsyncLLM
from pellucid.engine.llm import LLM
from pellucid.engine.llm_engine import LLMEngine
from pellucid.engine.overflow import FittedPrompt
from pellucid.errors import (
    ContextLengthExceededError,
    InvalidParameterError,
    NonFiniteError,
    QueueFullError,
    ShuttingDownError,
)
from pellucid.forward_batch import ForwardBatch
from pellucid.pooling_params import PoolingParams
from pellucid.sampling_params import SamplingParams

TEXTS = ["The cat sits outside", "abc", "Une élève naïve", "x" * 300]
PLAIN = PoolingParams(normalize=False)


def hashes(texts: list[str]) -> np.ndarray:
    """The mock model's vectors of texts: a hash of all their tokens."""
    return np.stack([o.embedding for o in LLM.from_engine(mock_engine()).embed(texts, PLAIN)])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="module")
def tiny_server(tiny: Path) -> Iterator[RunningServer]:
    with RunningServer(LLMEngine.from_args(EngineArgs(model=str(tiny))), served_model_name=("tiny",)) as running:
        yield running


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small BERT with a vocabulary of letters."""
    folder = write_folder(BY_NAME["bert"], tmp_path_factory.mktemp("bert"))
    letters = [*"abcdefghijklmnopqrstuvwxyz0123456789.,"]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    pieces += [f"word{i}" for i in range(96 - len(pieces))]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    return folder


@pytest.fixture(scope="module")
def encoder_server(encoder: Path) -> Iterator[RunningServer]:
    with RunningServer(LLMEngine.from_args(EngineArgs(model=str(encoder))), served_model_name=("bert",)) as running:
        yield running


def test_the_vectors_are_those_of_the_sync_api_whatever_streams_beside() -> None:
    async def test(llm: AsyncLLM) -> None:
        params = SamplingParams(max_tokens=60, seed=1)
        streams = [asyncio.create_task(total(llm, f"prompt {i}", params)) for i in range(4)]
        several = await asyncio.gather(*(llm.embed(TEXTS, PLAIN) for _ in range(3)))
        for outputs in several:
            np.testing.assert_array_equal([o.embedding for o in outputs], hashes(TEXTS))
            assert outputs[1].prompt_token_ids == list(b"abc")
        for i, whole in enumerate(await asyncio.gather(*streams)):
            assert [output.token_ids for output in whole.outputs] == solo(f"prompt {i}", params)
        assert await llm.embed([]) == []
        assert llm.num_unfinished == 0

    with_llm(test).check_integrity()


def test_a_stream_goes_on_between_the_passes() -> None:
    """Never two passes over texts without a token of the stream between them, and none as large as a whole step."""
    rows: list[tuple[int, bool]] = []
    engine = mock_engine(enable_prefix_caching=False)
    model: Any = engine.model

    def note(batch: ForwardBatch) -> None:
        rows.append((len(batch.token_ids), bool((batch.token_ids == ord("x")).any())))

    async def test() -> None:
        llm = AsyncLLM(engine)
        stream = await llm.submit([FittedPrompt(list(b"abc"))], [FOREVER])
        for _ in range(3):
            await anext(stream)
        model.on_forward = note
        await llm.embed(["x" * 2000, "x" * 500], PLAIN)
        stream.abort()
        await llm.close()

    asyncio.run(asyncio.wait_for(test(), 20))
    passes = [place for place, (_, is_text) in enumerate(rows) if is_text]
    assert len(passes) >= 2500 // 256
    assert all(after - before >= 2 for before, after in itertools.pairwise(passes))
    assert max(count for count, is_text in rows if is_text) <= 256


def test_a_request_gets_the_blocks_that_texts_hold() -> None:
    """A pool for one request of the longest kind: a text in the midst of it gives way, and is computed afterwards."""
    context, block = 512, 16
    pool = context // block * mock_model.BLOCK_BYTES

    async def test(llm: AsyncLLM) -> None:
        embedding = asyncio.create_task(llm.embed(["x" * 512, "y" * 512], PLAIN))
        params = SamplingParams(max_tokens=32, temperature=0, ignore_eos=True)
        whole = await total(llm, "z" * 480, params)
        assert [output.token_ids for output in whole.outputs] == solo("z" * 480, params)
        outputs = await embedding
        np.testing.assert_array_equal([o.embedding for o in outputs], hashes(["x" * 512, "y" * 512]))

    options = {"context": context, "kv_cache_memory_bytes": pool, "max_num_batched_tokens": 64}
    with_llm(test, step_seconds=0.001, **options).check_integrity()


def test_leaving_ends_the_work() -> None:
    engine = mock_engine(step_seconds=0.005, max_num_batched_tokens=16)
    model: Any = engine.model

    async def test() -> None:
        llm = AsyncLLM(engine)
        task = asyncio.create_task(llm.embed(["x" * 2000] * 20))
        while model.num_forwards < 3:
            await asyncio.sleep(0.002)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while llm.num_unfinished:
            await asyncio.sleep(0.002)
        assert model.num_forwards < 100
        np.testing.assert_array_equal((await llm.embed("abc", PLAIN))[0].embedding, hashes(["abc"])[0])
        await llm.close()

    asyncio.run(asyncio.wait_for(test(), 20))
    engine.check_integrity()


def test_p37_a_text_that_fails_takes_nobody_with_it() -> None:
    async def test(llm: AsyncLLM) -> None:
        bad, good = await asyncio.gather(
            llm.embed(["abc", "a!c"], PLAIN), llm.embed(["abc", "xyz"], PLAIN), return_exceptions=True
        )
        assert isinstance(bad, NonFiniteError)
        assert "text 1" in str(bad)
        assert isinstance(good, list)
        np.testing.assert_array_equal([o.embedding for o in good], hashes(["abc", "xyz"]))

    with_llm(test).check_integrity()


def test_what_is_refused() -> None:
    async def test(llm: AsyncLLM) -> None:
        with pytest.raises(ContextLengthExceededError, match=r"prompt has 4097 tokens, but max_model_len is 4096: sho"):
            await llm.embed([1] * 4097)
        with pytest.raises(
            ContextLengthExceededError, match=r"prompts\[1\] has at least 5000 tokens|prompts\[1\] has 5"
        ):
            await llm.embed(["a", "b" * 5000])
        assert len((await llm.embed([1] * 4096))[0].prompt_token_ids) == 4096
        with pytest.raises(InvalidParameterError, match=r"prompts\[0\] is empty"):
            await llm.embed(["", "a"])
        with pytest.raises(InvalidParameterError, match="dimensions is 4, but the model's vectors have 3 numbers"):
            await llm.embed("a", PoolingParams(dimensions=4))
        with pytest.raises(InvalidParameterError, match="pooling_params is a dict, but must be PoolingParams"):
            await llm.embed("a", {"pooling": "mean"})  # type: ignore[arg-type]

    with_llm(test)


def test_the_queue_the_end_and_a_failure() -> None:
    async def full(llm: AsyncLLM) -> None:
        results = await asyncio.gather(*(llm.embed("x" * 400) for _ in range(5)), return_exceptions=True)
        assert sum(isinstance(result, QueueFullError) for result in results) == 2

    with_llm(full, max_queue=1, max_num_seqs=2, step_seconds=0.01, max_num_batched_tokens=16)

    async def closing(drain_seconds: float) -> Any:
        llm = AsyncLLM(mock_engine(step_seconds=0.005, max_num_batched_tokens=16))
        task = asyncio.create_task(llm.embed("x" * 400))
        while not llm.num_unfinished:
            await asyncio.sleep(0.002)
        await llm.close(drain_seconds)
        with pytest.raises(ShuttingDownError):
            await llm.embed("abc")
        return (await asyncio.gather(task, return_exceptions=True))[0]

    assert isinstance(asyncio.run(closing(0.0)), ShuttingDownError)
    assert isinstance(asyncio.run(closing(10.0)), list)


def test_a_pass_that_fails_ends_its_job_alone() -> None:
    async def test(llm: AsyncLLM) -> None:
        def fail(_: ForwardBatch) -> None:
            raise RuntimeError("kernel on fire")

        model: Any = llm._engine.model
        model.on_forward = fail
        with pytest.raises(RuntimeError, match="kernel on fire"):
            await llm.embed("abc")
        model.on_forward = None
        np.testing.assert_array_equal((await llm.embed("abc", PLAIN))[0].embedding, hashes(["abc"])[0])

    with_llm(test).check_integrity()


# Over HTTP


def test_every_form_of_input(server: RunningServer, client: openai.OpenAI) -> None:
    expected = hashes(["abc", "xyz"])
    for given in (["abc", "xyz"], [list(b"abc"), list(b"xyz")]):
        for form in ("float", "base64", None):  # without one the client asks for base64, and decodes it
            options: dict[str, Any] = {} if form is None else {"encoding_format": form}
            answer = client.embeddings.create(
                model="mock", input=given, extra_body={"normalize": False, "pooling": "last"}, **options
            )
            assert answer.object == "list"
            assert answer.model == "mock"
            assert [(item.object, item.index) for item in answer.data] == [("embedding", 0), ("embedding", 1)]
            got = [item.embedding for item in answer.data]
            if form == "base64":
                got = [np.frombuffer(base64.b64decode(item), dtype="<f4") for item in got]  # type: ignore[arg-type]
            np.testing.assert_array_equal(np.asarray(got, dtype=np.float32), expected)
            assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (6, 6)
    for one in ("abc", list(b"abc")):
        body = {"input": one, "normalize": False, "user": "somebody", "encoding_format": None, "dimensions": None}
        data = server.post("/v1/embeddings", body).json()["data"]
        assert [item["embedding"] for item in data] == [expected[0].tolist()]


def test_the_async_client_and_many_at_once(server: RunningServer) -> None:
    async def ask() -> list[Any]:
        async with server.async_client() as client:
            many = (client.embeddings.create(model="mock", input=[f"text {i}", "abc"]) for i in range(12))
            return list(await asyncio.gather(*many))

    for i, answer in enumerate(asyncio.run(ask())):
        vectors = hashes([f"text {i}", "abc"]).astype(np.float64)
        expected = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        np.testing.assert_allclose([item.embedding for item in answer.data], expected, rtol=1e-6)


@pytest.mark.parametrize("pooling", ["last", "mean", "cls"])
def test_a_decoder_pools_as_asked(tiny: Path, tiny_server: RunningServer, pooling: Any) -> None:
    answer = tiny_server.client().embeddings.create(
        model="tiny", input=["Hello", "Bye"], encoding_format="float", extra_body={"pooling": pooling}
    )
    with LLM(model=str(tiny)) as llm:
        expected = [o.embedding for o in llm.embed(["Hello", "Bye"], PoolingParams(pooling=pooling))]
    got = np.asarray([item.embedding for item in answer.data], dtype=np.float32)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("body", "param", "code", "said"),
    [
        ({}, "input", "missing_field", "input is missing"),
        ({"input": []}, "input", "invalid_parameter", "must be a string, a list of strings"),
        ({"input": ["a", 3]}, "input", "invalid_parameter", "must be a string, a list of strings"),
        ({"input": {"a": 1}}, "input", "invalid_parameter", "must be a string, a list of strings"),
        ({"input": ["a", ""]}, "input", "invalid_parameter", "input[1] is empty"),
        ({"input": [[1], [99999]]}, "input", "invalid_parameter", "input[1] has 99999 at position 0"),
        ({"input": [True]}, "input", "invalid_parameter", "must be a string"),
        ({"input": ["a"] * 2049}, "input", "invalid_parameter", "input has 2049 texts, but a request may have at most"),
        (
            {"input": [97] * 4097},
            "input",
            "context_length_exceeded",
            "input has 4097 tokens, but max_model_len is 4096",
        ),
        ({"input": ["a", "b" * 4097]}, "input", "context_length_exceeded", "input[1] has"),
        ({"input": "a", "dimensions": 2}, "dimensions", "invalid_parameter", "does not say that its vectors of 3"),
        ({"input": "a", "dimensions": 4}, "dimensions", "invalid_parameter", "vectors have 3 numbers"),
        ({"input": "a", "dimensions": 0}, "dimensions", "invalid_parameter", "at least 1"),
        ({"input": "a", "dimensions": True}, "dimensions", "invalid_parameter", "at least 1"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "invalid_parameter", "must be float or base64"),
        ({"input": "a", "pooling": "max"}, "pooling", "invalid_parameter", "must be one of last, mean, cls"),
        ({"input": "a", "normalize": 1}, "normalize", "invalid_parameter", "must be True or False"),
        ({"input": "a", "user": 5}, "user", "invalid_parameter", "user must be a string"),
        ({"input": "a", "inputs": "a"}, "inputs", "unknown_field", "did you mean input?"),
        ({"input": "a", "temperature": 0}, "temperature", "unknown_field", "unknown field"),
    ],
)
def test_refusals(server: RunningServer, body: Any, param: str, code: str, said: str) -> None:
    error = server.refused("/v1/embeddings", body)
    assert (error["param"], error["code"]) == (param, code)
    assert said in error["message"]


def test_other_refusals(server: RunningServer) -> None:
    assert server.refused("/v1/embeddings", {"input": "a", "model": "other"}, 404)["code"] == "model_not_found"
    error = server.refused("/v1/embeddings", {"input": ["abc", "a!c"]}, 500)
    assert error["code"] == "non_finite"


def test_an_encoder_alone(encoder: Path, encoder_server: RunningServer) -> None:
    client = encoder_server.client()
    answer = client.embeddings.create(model="bert", input=["The cat, outside.", "ÉLÈVE"])
    with LLM(model=str(encoder)) as llm:
        expected = llm.embed(["The cat, outside.", "ÉLÈVE"])
    np.testing.assert_array_equal(
        np.asarray([item.embedding for item in answer.data], dtype=np.float32), [o.embedding for o in expected]
    )
    pieces = encoder_server.post("/tokenize", {"prompt": "ÉLÈVE", "return_token_strs": True}).json()["token_strs"]
    assert pieces == ["[CLS]", " e", "l", "e", "v", "e", "[SEP]"], "t13: accents are dropped, letters stay"
    full = client.embeddings.create(model="bert", input=[[5] * 64])
    assert full.usage.prompt_tokens == 64
    error = encoder_server.refused("/v1/embeddings", {"input": "a" * 63})
    assert error["code"] == "context_length_exceeded"
    assert error["message"].startswith("input has 65 tokens, but max_model_len is 64")
    messages = [{"role": "user", "content": "Hi"}]
    for path, body in (
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/chat/completions", {"messages": messages}),
        ("/v1/responses", {"input": "Hi"}),
        ("/v1/prefill", {"prompt": "Hi"}),
    ):
        error = encoder_server.refused(path, body)
        assert error["param"] == "model", path
        assert "is an encoder (bert)" in error["message"]


def test_the_metrics_and_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    with RunningServer(mock_engine(), access_log=True) as server:
        server.post("/v1/embeddings", {"input": ["abc", "de"], "user": "me"})
        assert server.metric("pellucid_embedding_inputs_total") == 2
        assert server.metric("pellucid_embedding_tokens_total") == 5
        assert server.metric("pellucid_embedding_request_latency_seconds_count") == 1
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines() if line.startswith("{")]
    line = next(line for line in lines if line["path"] == "/v1/embeddings")
    assert (line["model"], line["inputs"], line["prompt_tokens"], line["user"]) == ("mock", 2, 5, "me")
    assert "input" not in line


def test_a53_a_client_that_leaves() -> None:
    engine = mock_engine(step_seconds=0.005, max_num_batched_tokens=16)
    model: Any = engine.model
    with RunningServer(engine) as server:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(
                f"{server.base_url}/embeddings", json={"input": ["x" * 4000] * 20}, timeout=httpx.Timeout(5, read=0.2)
            )
        wait_for(lambda: server.async_llm.num_unfinished == 0, 2)
        assert model.num_forwards < 1000
        assert server.post("/v1/embeddings", {"input": "abc"}).status_code == 200

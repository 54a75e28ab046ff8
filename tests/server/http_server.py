"""A server in a thread of this process, on a free port of the loopback, over the mock model or a real one."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import httpx
import openai
import uvicorn

from pellucid.config import EngineArgs
from pellucid.engine.async_llm import AsyncLLM
from pellucid.engine.llm_engine import LLMEngine
from pellucid.errors import InvalidParameterError
from pellucid.server.app import create_app
from pellucid.server.models import ModelPool
from pellucid.server.running import bind, uvicorn_config
from pellucid.server.settings import ServerSettings
from pellucid.tokenizer.shielding import ControlStrings
from pellucid.tokenizer.special_tokens import SpecialTokenScanner


def _mock_model() -> ModuleType:
    """tests/engine/mock_model.py, from beside this folder."""
    if "mock_model" not in sys.modules:
        path = Path(__file__).parent.parent / "engine" / "mock_model.py"
        spec = importlib.util.spec_from_file_location("mock_model", path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules["mock_model"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules["mock_model"]


mock_model: Any = _mock_model()
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' and m.content == 'no' %}"
    "{{ raise_exception('this model takes no such system prompt') }}{% endif %}"
    "<s>{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant:{% endif %}"
)


class ChatTokenizer(mock_model.ByteTokenizer):  # type: ignore[misc]
    """Bytes, four control tokens and a chat template."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.special_tokens = {text: i for i, text in mock_model.SPECIAL.items()}
        self.control_strings = ControlStrings(self.special_tokens)
        self.chat_template = TEMPLATE
        self.chat_templates = {"default": TEMPLATE}
        self._scanner = SpecialTokenScanner(self.special_tokens)

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = False) -> list[int]:
        if parse_special:
            return self.encode_with_protected(text, (), add_special_tokens=add_special_tokens)
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidParameterError("prompt", "the text has half a surrogate pair") from None
        ids: list[int] = super().encode(text, add_special_tokens=add_special_tokens)
        return ids

    def encode_with_protected(
        self, text: str, protected: Sequence[tuple[int, int]], *, add_special_tokens: bool = True
    ) -> list[int]:
        ids: list[int] = []
        at = 0
        for begin, end, token_id in self._scanner.matches(text):
            if not any(b < end and begin < e for b, e in protected):
                ids += [*text[at:begin].encode(), token_id]
                at = end
        return ids + list(text[at:].encode())


def mock_engine(*, step_seconds: float = 0.0, add_bos: bool = False, context: int = 4096, **options: Any) -> LLMEngine:
    """An engine over the mock model; `step_seconds` is what each step takes at least."""
    args = EngineArgs(**{"model": "mock", "max_num_seqs": 16, "max_num_batched_tokens": 256, "seed": 0, **options})
    model = mock_model.MockModel(context)
    if step_seconds:
        model.on_forward = lambda batch: time.sleep(step_seconds)
    return LLMEngine(model, ChatTokenizer(add_bos=add_bos), args)


class RunningServer:
    """Serves while entered; afterwards the engine must be whole and its KV cache empty.

    models: a pool of several, of which the first is `engine`'s.
    """

    def __init__(
        self, engine: LLMEngine, *, models: ModelPool | None = None, tracing: Any = None, **settings: Any
    ) -> None:
        self.engine = engine
        self.settings = ServerSettings(**{"port": 0, "access_log": False, **settings})
        if models is None:
            llm = AsyncLLM(engine, max_queue=self.settings.max_queue)
            models = ModelPool.of_one(llm, next(iter(self.settings.served_model_name), None))
        self.models = models
        self.async_llm = models.preload()
        socket = bind("127.0.0.1", 0)
        self.port: int = socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        app = create_app(self.models, self.settings, version="0", tracing=tracing)
        self._server = uvicorn.Server(uvicorn_config(app, self.settings))
        # making a client reads the machine's certificates, which takes longer than most requests here
        self._http = httpx.Client(timeout=30, verify=False)
        self._client: openai.OpenAI | None = None
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [socket]}, daemon=True)

    def __enter__(self) -> RunningServer:
        self._thread.start()
        wait_for(lambda: self._server.started)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()
        self._server.should_exit = True
        asyncio.run(self.models.close())
        self._thread.join(10)
        if self.async_llm.failure is None:
            self.engine.check_integrity()

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    def client(self) -> openai.OpenAI:
        if self._client is None:
            self._client = openai.OpenAI(base_url=self.base_url, api_key="none", max_retries=0, timeout=30)
        return self._client

    def async_client(self, **options: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self.base_url, api_key="none", max_retries=0, timeout=60, **options)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return self._http.post(self.url + path, json=body, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self._http.get(self.url + path, **options)

    def refused(self, path: str, body: Any, status: int = 400) -> dict[str, Any]:
        """The error object of a refusal in OpenAI's shape."""
        return error_of(self.post(path, body), status)

    def metric(self, name: str) -> float:
        """The value of a line of /metrics; the model's name need not be given."""
        keys = self.settings.api_key
        headers = {"Authorization": f"Bearer {keys[0]}"} if keys else {}
        for line in self.get("/metrics", headers=headers).text.splitlines():
            line = line.replace('{model_name="mock"}', "").replace(',model_name="mock"', "")
            if line.startswith(name + " "):
                return float(line.split()[-1])
        raise AssertionError(f"there is no metric {name}")


def error_of(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    return error


def wait_for(is_so: Any, seconds: float = 10.0) -> float:
    """Wait until it is so; gives back how long it took."""
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() - began < seconds, "it did not happen in time"
        time.sleep(0.005)
    return time.monotonic() - began

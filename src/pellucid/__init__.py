"""Pellucid: an LLM inference engine you can see through.

The journey from text to text, and the files that make it, in order:

    text      ──►  tokenizer/chat_template.py     messages to one prompt
              ──►  tokenizer/tokenizer.py         prompt to token ids
    ids       ──►  engine/scheduler.py            which ids are computed in this step
              ──►  engine/model_runner.py         the step as arrays (forward_batch.py)
    vectors   ──►  models/                        embedding, blocks, final norm: ids to hidden states
                   kernels/                       the mathematics of each operation
                   kv_cache/                      keys and values of the ids before
    logits    ──►  sampling/                      penalties, temperature, top-k/p, the draw: logits to the next id
    id        ──►  tokenizer/detokenizer.py       ids to text, character by whole character
              ──►  engine/output_processor.py     is that the end? then outputs.py; else the next step

Around it: config.py and sampling_params.py (every setting), model_store/ and formats/ (names to files to tensors),
trace/ (how to watch), cli/ (the command line).

    >>> from pellucid import LLM, SamplingParams
    >>> llm = LLM(model="smollm2:135m")
    >>> llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=8))[0].outputs[0].text
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pellucid.beam_search_params import BeamSearchOutput as BeamSearchOutput
    from pellucid.beam_search_params import BeamSearchParams as BeamSearchParams
    from pellucid.config import EngineArgs as EngineArgs
    from pellucid.config import ModelConfig as ModelConfig
    from pellucid.engine.async_llm import AsyncLLM as AsyncLLM
    from pellucid.engine.engine_stats import EngineStats as EngineStats
    from pellucid.engine.llm import LLM as LLM
    from pellucid.engine.llm_engine import LLMEngine as LLMEngine
    from pellucid.errors import BackendError as BackendError
    from pellucid.errors import ChatTemplateError as ChatTemplateError
    from pellucid.errors import ContextLengthExceededError as ContextLengthExceededError
    from pellucid.errors import InvalidParameterError as InvalidParameterError
    from pellucid.errors import ModelFileError as ModelFileError
    from pellucid.errors import ModelStoreError as ModelStoreError
    from pellucid.errors import NonFiniteError as NonFiniteError
    from pellucid.errors import NotEnoughMemoryError as NotEnoughMemoryError
    from pellucid.errors import PellucidError as PellucidError
    from pellucid.errors import UnsupportedModelError as UnsupportedModelError
    from pellucid.outputs import CompletionOutput as CompletionOutput
    from pellucid.outputs import Logprob as Logprob
    from pellucid.outputs import RequestMetrics as RequestMetrics
    from pellucid.outputs import RequestOutput as RequestOutput
    from pellucid.pooling_params import EmbeddingOutput as EmbeddingOutput
    from pellucid.pooling_params import PoolingParams as PoolingParams
    from pellucid.sampling_params import SamplingParams as SamplingParams
    from pellucid.structured_outputs import StructuredOutputsParams as StructuredOutputsParams
    from pellucid.tokenizer.tokenizer import Tokenizer as Tokenizer

__version__ = "0.1.0"

_HOME = {
    "AsyncLLM": "engine.async_llm",
    "BackendError": "errors",
    "BeamSearchOutput": "beam_search_params",
    "BeamSearchParams": "beam_search_params",
    "ChatTemplateError": "errors",
    "CompletionOutput": "outputs",
    "ContextLengthExceededError": "errors",
    "EmbeddingOutput": "pooling_params",
    "EngineArgs": "config",
    "EngineStats": "engine.engine_stats",
    "InvalidParameterError": "errors",
    "LLM": "engine.llm",
    "LLMEngine": "engine.llm_engine",
    "Logprob": "outputs",
    "ModelConfig": "config",
    "ModelFileError": "errors",
    "ModelStoreError": "errors",
    "NonFiniteError": "errors",
    "NotEnoughMemoryError": "errors",
    "PellucidError": "errors",
    "PoolingParams": "pooling_params",
    "RequestMetrics": "outputs",
    "RequestOutput": "outputs",
    "SamplingParams": "sampling_params",
    "StructuredOutputsParams": "structured_outputs",
    "Tokenizer": "tokenizer.tokenizer",
    "UnsupportedModelError": "errors",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])

"""transformers in bfloat16: forward passes over a growing KV cache, no generate() around them."""

from __future__ import annotations

import importlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers.dequantized import load_bfloat16
from benchmarks.peers.protocol import Emitted, serve

torch = importlib.import_module("torch")
transformers = importlib.import_module("transformers")


class TransformersEngine:
    """All prompts of a batch have the same length, so that no padding is needed."""

    def load(self, path: Path, threads: int, max_tokens: int, max_streams: int) -> dict[str, str]:
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self._model = load_bfloat16(path).eval()
        return {
            "version": transformers.__version__,
            "torch": torch.__version__,
            "attention": str(self._model.config._attn_implementation),
        }

    def prepare(self, streams: int, tokens: int) -> None:
        """Nothing: the cache grows as it is needed."""

    def generate(self, prompts: list[list[int]], num_tokens: int) -> Generator[Emitted]:
        cache = transformers.DynamicCache(config=self._model.config)
        ids = torch.tensor(prompts)
        for _ in range(num_tokens):
            output = self._model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            ids = output.logits[:, -1:].argmax(dim=-1)
            yield list(enumerate(ids[:, 0].tolist()))

    def logits(self, token_ids: list[int]) -> Iterator[Any]:
        cache = transformers.DynamicCache(config=self._model.config)
        for start in range(0, len(token_ids), 128):
            ids = torch.tensor([token_ids[start : start + 128]])
            output = self._model(input_ids=ids, past_key_values=cache, use_cache=True)
            yield output.logits[0].float().numpy()


if __name__ == "__main__":
    serve(TransformersEngine())

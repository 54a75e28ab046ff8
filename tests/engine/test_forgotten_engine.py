"""A program that never closes its engine ends quietly."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio
from pellucid import SamplingParams
from pellucid.config import EngineArgs
from pellucid.engine.async_llm import AsyncLLM
from pellucid.engine.llm_engine import LLMEngine

async def main():
    global llm
    llm = AsyncLLM(LLMEngine.from_args(EngineArgs(max_model_len=64)))
    async for delta in llm.generate("2, 4,", SamplingParams(temperature=0, max_tokens=2)):
        print(delta.outputs[0].token_ids)

asyncio.run(main())
"""


def test_nothing_is_said_at_the_end() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=300)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout

"""A sweep's cells are what their requests alone give, on a mock model and on real weights."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mock_model import EOS, ByteTokenizer, MockModel

from pellucid.config import EngineArgs
from pellucid.engine.llm import LLM
from pellucid.errors import ContextLengthExceededError
from pellucid.glass.sweep.grid import Grid, make_grid
from pellucid.glass.sweep.results import Cell, Sweep, as_json
from pellucid.glass.sweep.runner import run_sweep

PROMPTS = ["a long prompt with blocks to share: ", "short "]


def mock(**engine: Any) -> LLM:
    return LLM.from_parts(MockModel(), ByteTokenizer(), EngineArgs(model="mock", kv_cache_memory_bytes=2**18, **engine))


def grid_of(**values: Any) -> Grid:
    return make_grid([], {"seed": (0,), **values}, {"max_tokens": 12})


def bits(cell: Cell) -> tuple[Any, ...]:
    return cell.text, tuple(cell.token_ids), tuple(cell.logprobs), cell.finish_reason, cell.stop_reason, cell.seed


def alone(llm: LLM, prompt: Any, cell: Cell, grid: Grid) -> tuple[Any, ...]:
    params = replace(grid.settings[cell.setting].params, logprobs=0)
    if isinstance(prompt, str):
        [output] = llm.generate(prompt, params)
    else:
        [output] = llm.chat(prompt, params)
    [answer] = output.outputs
    logprobs = tuple(one[i].logprob for one, i in zip(answer.logprobs or [], answer.token_ids, strict=True))
    return answer.text, tuple(answer.token_ids), logprobs, answer.finish_reason, answer.stop_reason, answer.seed


@pytest.mark.parametrize(
    "engine", [{}, {"enable_prefix_caching": False}, {"max_num_seqs": 2, "max_num_batched_tokens": 8}]
)
def test_each_cell_is_its_request_alone(engine: dict[str, Any]) -> None:
    grid = grid_of(temperature=(0, 0.7, 1.0), top_k=(0, 3), seed=(1, 2), repetition_penalty=(1.0, 1.5))
    counts: list[tuple[int, int]] = []
    sweep = run_sweep(mock(**engine), PROMPTS, grid, lambda *now: counts.append(now))
    assert [(c.prompt, c.setting) for c in sweep.cells] == [(p, s) for p in range(2) for s in range(len(grid.settings))]
    for cell in sweep.cells:
        assert bits(cell) == alone(mock(), PROMPTS[cell.prompt], cell, grid)
    assert counts[-1] == (len(sweep.cells), sweep.num_output_tokens)
    assert sorted(counts) == counts


def test_a_prompt_is_read_once() -> None:
    sweep = run_sweep(mock(), PROMPTS, grid_of(temperature=(0.5, 0.7, 1.0)))
    num_tokens = sweep.prompts[0].num_tokens
    assert [cell.num_cached_tokens for cell in sweep.of_prompt(0)] == [0] + [(num_tokens - 1) // 16 * 16] * 2
    assert num_tokens > 17


def test_measures_are_of_the_text_without_its_end() -> None:
    sweep = run_sweep(mock(), PROMPTS, make_grid([], {"seed": tuple(range(12))}, {"max_tokens": 40}))
    ended = [cell for cell in sweep.cells if cell.finish_reason == "stop"]
    assert ended
    for cell in sweep.cells:
        assert cell.num_tokens == len(cell.token_ids) - (cell.finish_reason == "stop")
        assert cell.mean_logprob == pytest.approx(np.mean(cell.logprobs))
        assert cell.entropies is not None
        assert len(cell.entropies) == len(cell.token_ids)
    on = make_grid([], {"seed": tuple(range(6))}, {"max_tokens": 40, "ignore_eos": True})
    kept = run_sweep(mock(), PROMPTS[:1], on)
    assert all(cell.num_tokens == 40 for cell in kept.cells)
    assert any(EOS in cell.text_ids for cell in kept.cells)


def test_entropies_are_those_of_the_raw_distribution() -> None:
    seen: list[float] = []

    def note(ids: list[int], logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        x = logits.astype(np.float64)
        p = np.exp(x - x.max())
        p /= p.sum()
        seen.append(float(-(p * np.log(p)).sum()))
        return logits

    [cell] = run_sweep(mock(), PROMPTS[:1], grid_of(temperature=(0.5,), top_k=(3,))).cells
    params = make_grid([], {"temperature": (0.5,), "top_k": (3,), "seed": (0,)}, {"max_tokens": 12}).settings[0].params
    mock().generate(PROMPTS[0], params, logits_processors=[note])
    assert cell.entropies == pytest.approx(seen, rel=1e-5)
    assert cell.entropy == pytest.approx(np.mean(seen), rel=1e-5)


def test_a_prompt_that_does_not_fit_is_refused_before_work() -> None:
    llm = mock()
    with pytest.raises(ContextLengthExceededError):
        run_sweep(llm, ["fits ", "x" * 300], grid_of())
    assert llm.engine.model.num_forwards == 0
    assert not llm.engine.has_unfinished_requests()


def test_a_cell_that_fails_leaves_the_others() -> None:
    grid = make_grid([], {"temperature": (0.5, 1.0)}, {"max_tokens": 3})
    sweep = run_sweep(mock(), ["fine ", "bad #"], grid)
    assert [cell.finish_reason for cell in sweep.of_prompt(1)] == ["error", "error"]
    assert all(cell.error for cell in sweep.of_prompt(1))
    assert all(cell.error is None for cell in sweep.of_prompt(0))
    assert sweep.of_prompt(1)[0].mean_logprob is None


def test_interrupted_it_gives_what_is_there() -> None:
    def stop_at(cells: int, tokens: int) -> None:
        if tokens >= 9:
            raise KeyboardInterrupt

    llm = mock()
    sweep = run_sweep(llm, PROMPTS, make_grid([], {"seed": (1, 2, 3)}, {"max_tokens": 30, "ignore_eos": True}), stop_at)
    assert sweep.interrupted
    assert {cell.finish_reason for cell in sweep.cells} == {"abort"}
    assert sweep.num_output_tokens >= 9
    assert not llm.engine.has_unfinished_requests()
    assert as_json(sweep)["interrupted"] is True


def test_groups_put_seeds_and_prompts_together() -> None:
    sweep = run_sweep(mock(), PROMPTS, grid_of(temperature=(0, 1.0), seed=(1, 2)))
    greedy, drawn = sweep.groups()
    assert (greedy.values, greedy.num_cells, greedy.distinct_2_together) == ({"temperature": 0.0}, 2, None)
    assert (drawn.values, drawn.num_cells, drawn.settings) == ({"temperature": 1.0}, 4, [1, 2])
    lengths = [cell.num_tokens for cell in sweep.cells if cell.setting != 0]
    assert drawn.means["num_tokens"] == sum(lengths) / 4
    assert drawn.distinct_2_together is not None


def test_json_has_everything() -> None:
    sweep = run_sweep(mock(), PROMPTS, grid_of(temperature=(0.5, 1.0)))
    value = json.loads(json.dumps(as_json(sweep), allow_nan=False))
    assert value["schema"] == "pellucid-sweep/1"
    assert [setting["label"] for setting in value["settings"]] == ["temperature 0.5", "temperature 1"]
    assert value["settings"][0]["sampling_params"]["max_tokens"] == 12
    assert len(value["cells"]) == 4
    assert value["cells"][0]["text"] == sweep.cells[0].text
    assert math.isclose(value["cells"][0]["entropy"], sweep.cells[0].entropy or 0.0)


@pytest.fixture(scope="module")
def real_sweep(smollm2_path: Path) -> Any:
    grid = make_grid(["greedy", "creative"], {"seed": (1, 2)}, {"max_tokens": 10})
    prompts: list[Any] = [
        [{"role": "user", "content": "Name a river."}],
        "The capital of France is",
    ]
    with LLM(max_model_len=256) as llm:
        yield llm, prompts, grid, run_sweep(llm, prompts, grid)


def test_on_real_weights_too(real_sweep: tuple[LLM, list[Any], Grid, Sweep]) -> None:
    llm, prompts, grid, sweep = real_sweep
    assert len(sweep.cells) == 6
    for cell in sweep.cells:
        assert bits(cell) == alone(llm, prompts[cell.prompt], cell, grid)
    assert sweep.prompts[0].rendered is not None
    assert "<|im_start|>" in sweep.prompts[0].rendered
    assert sweep.prompts[1].rendered is None

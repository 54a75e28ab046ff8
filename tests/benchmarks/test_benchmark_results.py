"""Medians, ratios, tables and chart from made measurements; nothing is measured here."""

from __future__ import annotations

import xml.etree.ElementTree
from pathlib import Path

import pytest

from benchmarks import charts, tables
from benchmarks.results import BANDWIDTH, MACHINE, Measurement, Results
from pellucid.config import PRECISION_KL

MODEL = "tiny:1m"


def made() -> Results:
    """Two engines, decode and start, three rounds; the peer lacks the last round of decode."""
    values = {
        ("pellucid", "decode-1"): (100.0, 120.0, 80.0),
        ("llama-cpp-python", "decode-1"): (50.0, 80.0),
        ("pellucid", "first-token"): (0.5, 0.5, 0.5),
        ("llama-cpp-python", "first-token"): (0.25, 1.0, 0.25),
        ("llama-cpp-python", "mean-kl"): (0.4,),
        (MACHINE, BANDWIDTH): (10.0, 12.0, 10.0),
    }
    return Results(
        machine={
            "cpu": "A <CPU>",
            "family": "family 1",
            "usable_cores": 2,
            "cores": 4,
            "memory_gb": 8.0,
            "kernel": "Linux 6",
            "instruction_sets": ["avx2"],
            "commit": "abc",
        },
        limits={
            "bandwidth, 2 MiB pages": {"2": {"value": 12.0, "mean": 6.0, "unit": "GB/s"}},
            "amx_int8": {"2": {"skipped": "this CPU has no AMX"}},
        },
        settings={
            "threads": 2,
            "rounds": 3,
            "started": "today",
            "scenarios": {"decode-1": {"prompt_tokens": 128, "output_tokens": 128}},
        },
        models={
            MODEL: {
                "file": "tiny.gguf",
                "bytes_per_token": 40_000_000,
                "kv_bytes_per_token": 0,
                "operations_per_token": 1_000_000,
            }
        },
        engines={"pellucid": {"version": "1"}, "llama-cpp-python": {"version": "2"}},
        measurements=[
            Measurement(MODEL, engine, figure, round_, value)
            for (engine, figure), rounds in values.items()
            for round_, value in enumerate(rounds)
        ],
        not_measured=[
            {"engine": "vllm-cpu", "model": "", "scenario": "", "why": "not installed | here"},
        ],
    )


def test_median_and_spread() -> None:
    results = made()
    assert results.median(MODEL, "pellucid", "decode-1") == 100.0
    assert results.spread(MODEL, "pellucid", "decode-1") == pytest.approx(0.2)
    assert results.median(MODEL, "pellucid", "chat") is None
    assert results.spread(MODEL, "llama-cpp-python", "mean-kl") is None


def test_ratios_pair_the_rounds_and_above_one_is_ahead() -> None:
    results = made()
    assert results.ratio(MODEL, "llama-cpp-python", "decode-1") == pytest.approx((2.0 + 1.5) / 2)
    assert results.ratio(MODEL, "llama-cpp-python", "first-token") == 0.5
    assert results.ratio(MODEL, "llama-cpp-python", "mean-kl") is None


def test_a_peer_that_computes_something_else_is_not_the_best() -> None:
    results = made()
    assert results.best_peer(MODEL, "decode-1") is None
    results.measurements = [one for one in results.measurements if one.figure != "mean-kl"]
    assert results.best_peer(MODEL, "decode-1") == "llama-cpp-python"


def test_shares_use_the_bandwidth_of_the_same_round() -> None:
    assert tables.limit_shares(made(), MODEL) == {"decode-1": pytest.approx(100.0 * 40e6 / 10e9)}


def test_tables_say_what_was_found() -> None:
    text = tables.markdown(made())
    assert "| decode, 1 stream, tok/s | 100 ±20% | 65.0 ±23% · 1.75 × |" in text
    assert "| new process to first token, s | 0.50 ±0% | 0.25 ±150% · 0.50 × |" in text
    assert "llama-cpp-python †" in text
    assert "– (this CPU has no AMX)" in text
    assert "not installed \\| here" in text
    for table in (part for part in text.split("\n\n") if part.startswith("|")):
        bars = {line.replace("\\|", "").count("|") for line in table.strip().splitlines()}
        assert len(bars) == 1


def test_the_price_of_fast_prompts_stands_beside_their_speed() -> None:
    results = made()
    results.engines["pellucid-fast"] = {"version": "1"}
    results.measurements.append(Measurement(MODEL, "pellucid-fast", "prefill-512", 0, 150.0))
    head = f"pellucid --precision fast (mean KL {PRECISION_KL['fast']} on the default model) |"
    assert head in tables.markdown(results)
    assert results.summary()["precision_mean_kl"] == PRECISION_KL
    results.measurements.append(Measurement(MODEL, "pellucid-fast", "mean-kl", 0, 0.0017))
    assert "| pellucid --precision fast (mean KL 1.7e-03) |" in tables.markdown(results)


def test_the_chart_is_well_formed_and_names_the_ratios() -> None:
    root = xml.etree.ElementTree.fromstring(charts.svg(made()))
    words = [element.text for element in root.iter() if element.text]
    assert {"decode, 1 stream", "1.75 ×", "0.50 ×", "llama-cpp-python (†: other answers)", MODEL} <= set(words)
    assert any("A <CPU>" in text for text in words)


def test_an_empty_run_still_has_tables_and_a_chart() -> None:
    results = made()
    results.measurements, results.models, results.engines = [], {}, {}
    assert "Not measured" in tables.markdown(results)
    xml.etree.ElementTree.fromstring(charts.svg(results))


def test_results_are_read_back_as_they_were_saved(tmp_path: Path) -> None:
    results = made()
    results.save(tmp_path / "results.json")
    assert Results.load_file(tmp_path / "results.json") == results
    assert results.summary()["models"][MODEL]["decode-1"]["llama-cpp-python"] == {"median": 65.0, "ratio": 1.75}

"""Results → markdown: the machine, its limits, one table a model, what could not be measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.peers.registry import OURS, PEERS
from benchmarks.results import BANDWIDTH, FAR_KL, MACHINE, Results, price
from benchmarks.scenarios import FIGURES

RATE_TITLES = {
    "vnni_int8": "AVX-512 VNNI, 8 × 8 bits",
    "vnni_int16": "AVX-512 VNNI, 16 × 16 bits",
    "avx512_bf16": "AVX-512 bfloat16",
    "avx512_float32": "AVX-512 float32",
    "avx2_int16": "AVX2, 16 × 16 bits",
    "avx2_float32": "AVX2 float32",
    "amx_int8": "AMX, 8 × 8 bits",
    "amx_bf16": "AMX bfloat16",
}


def markdown(results: Results) -> str:
    """The whole report."""
    parts = [_machine(results), _limits(results)]
    for model in results.models:
        parts += [_figures(results, model), _limit_shares(results, model)]
    parts += [_engines(results), _not_measured(results)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _machine(results: Results) -> str:
    m, s, load = results.machine, results.settings, results.load
    cores = f"{m['usable_cores']} of {m['cores']} cores usable, {s['threads']} threads"
    kind = "quick run" if s.get("quick") else "full run"
    lines = [
        f"Measured {s['started']} on {m['cpu']} ({m['family']}), {cores}, {m['memory_gb']} GB, {m['kernel']}"
        + (", a virtual machine" if m.get("hypervisor") else "")
        + f"; {' '.join(m['instruction_sets'])}.",
        f"Commit {m['commit'] or 'unknown'}, {kind}, up to {s['rounds']} rounds in turn; load average "
        f"{load.get('load_average_before', '?')} before and {load.get('load_average_after', '?')} after.",
    ]
    return "\n".join(lines)


def _limits(results: Results) -> str:
    if not results.limits:
        return ""
    counts = sorted({int(count) for row in results.limits.values() for count in row})
    rows = []
    for name, row in results.limits.items():
        title = RATE_TITLES.get(name) or f"read {name}"
        rows.append([title, *(_limit_cell(row.get(str(count))) for count in counts)])
    threads = [f"{count} thread{'s' if count > 1 else ''}" for count in counts]
    return "### What the machine can do\n\n" + _table(["", *threads], rows)


def _limit_cell(result: dict[str, Any] | None) -> str:
    if result is None:
        return ""
    if "skipped" in result:
        return f"– ({result['skipped']})"
    mean = f" (mean {result['mean']:.3g})" if result["mean"] < 0.9 * result["value"] else ""
    return f"{result['value']:.3g} {result['unit']}{mean}"


def _figures(results: Results, model: str) -> str:
    engines = [
        name for name in results.engines if any(m.engine == name and m.model == model for m in results.measurements)
    ]
    rows = []
    for figure in results.figures(model):
        unit = f", {FIGURES[figure].unit}" if FIGURES[figure].unit else ""
        best = results.best_peer(model, figure)
        rows.append([FIGURES[figure].title + unit, *(_cell(results, model, name, figure, best) for name in engines)])
    note = (
        "Median of the rounds ± half their range; × is how many times as good pellucid is, from the rounds both have "
        "(below 1 × the peer is ahead). The best peer of a row is bold."
    )
    far = [name for name in engines if results.is_far(model, name)]
    if far:
        note += (
            f" † Its answers are not those of the model (mean KL above {FAR_KL} nats), so it is not counted as best."
        )
    file = results.models[model]["file"]
    labels = [
        PEERS[name].label + (" †" if name in far else "") + price(name, results.median(model, name, "mean-kl"))
        for name in engines
    ]
    return f"### {model} ({file})\n\n{note}\n\n" + _table(["", *labels], rows)


def _cell(results: Results, model: str, engine: str, figure: str, best: str | None) -> str:
    median = results.median(model, engine, figure)
    if median is None:
        return "–"
    text = _number(figure, median)
    spread = results.spread(model, engine, figure)
    if spread is not None and figure not in ("mean-kl", "agreement"):
        text += f" ±{spread:.0%}"
    ratio = results.ratio(model, engine, figure)
    if engine != OURS and ratio is not None and figure != "agreement":
        text += f" · {_significant(ratio)} ×"
    return f"**{text}**" if engine == best and figure != "agreement" else text


def _number(figure: str, value: float) -> str:
    if figure == "mean-kl":
        return f"{value:.1e}"
    if figure == "agreement":
        return f"{value:.1%}"
    return _significant(value)


def _significant(value: float) -> str:
    """Three digits, thousands with a comma."""
    if value >= 1000:
        return f"{round(value, -1):,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def limit_shares(results: Results, model: str) -> dict[str, float]:
    """Pellucid's figures as shares of what the machine could do, 0 to 1.

    Decode of one stream against bandwidth (2 MiB pages, all threads, measured in the same rounds) ÷ bytes a token
    reads; prefill against the 16-bit rate ÷ operations a token takes. Empty where a limit was not measured.
    """
    facts, threads = results.models[model], str(results.settings["threads"])
    shares: dict[str, float] = {}
    bandwidths = results.values(model, MACHINE, BANDWIDTH)
    speeds = results.values(model, OURS, "decode-1")
    sizes = results.settings["scenarios"].get("decode-1")
    rounds = [speeds[round_] / (bandwidths[round_] * 1e9) for round_ in speeds if bandwidths.get(round_)]
    if rounds and sizes:
        context = sizes["prompt_tokens"] + sizes["output_tokens"] / 2
        read = facts["bytes_per_token"] + facts["kv_bytes_per_token"] * context
        shares["decode-1"] = statistics.median(rounds) * read
    rates = (results.limits.get(name, {}).get(threads, {}).get("value") for name in ("vnni_int16", "avx2_int16"))
    rate = next((value for value in rates if value), None)
    for figure in results.figures(model):
        prefill = results.median(model, OURS, figure) if figure.startswith("prefill-") else None
        if rate and prefill:
            shares[figure] = prefill * facts["operations_per_token"] / (rate * 1e12)
    return shares


def _limit_shares(results: Results, model: str) -> str:
    shares = limit_shares(results, model)
    if not shares:
        return ""
    facts = results.models[model]
    words = []
    if "decode-1" in shares:
        words.append(
            f"one stream decodes at {shares.pop('decode-1'):.0%} of what the memory allows "
            f"({facts['bytes_per_token'] / 1e6:.1f} MB of weights a token, "
            f"{results.median(model, MACHINE, BANDWIDTH):.0f} GB/s in the same rounds)"
        )
    if shares:
        listed = ", ".join(f"{share:.0%} ({FIGURES[figure].title})" for figure, share in shares.items())
        words.append(
            f"prefill reaches, of the 16-bit rate at {facts['operations_per_token'] / 1e6:.0f} M operations a "
            f"token, attention not counted: {listed}"
        )
    return f"Pellucid against the machine: {'; '.join(words)}."


def _engines(results: Results) -> str:
    rows = []
    for name, details in results.engines.items():
        if not details:
            continue
        same = [
            f"{one['same']} of {one['of']} ({one['model']})" for one in results.first_tokens if one["engine"] == name
        ]
        described = ", ".join(f"{key} {value}" for key, value in details.items() if value)
        rows.append([PEERS[name].label, described, ", ".join(same)])
    if not rows:
        return ""
    return "### Engines\n\n" + _table(
        ["", "as it reports itself", "first tokens equal to pellucid's"], rows, numbers=False
    )


def _not_measured(results: Results) -> str:
    if not results.not_measured:
        return ""
    models: dict[tuple[str, str, str], list[str]] = {}
    for one in results.not_measured:
        models.setdefault((one["engine"], one["scenario"] or "all", one["why"]), []).append(one["model"] or "all")
    rows = [[engine, ", ".join(names), scenario, _one_line(why)] for (engine, scenario, why), names in models.items()]
    return "### Not measured\n\n" + _table(["engine", "model", "scenario", "why"], rows, numbers=False)


def _one_line(text: str) -> str:
    flat = " ".join(text.split()).replace("|", "\\|")
    return flat if len(flat) <= 240 else flat[:237] + "…"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: bool = True) -> str:
    lines = [header, ["---", *["---:" if numbers else "---"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

# ruff: noqa: E501
"""A small trace by hand: two requests with one beginning, hostile tokens, every type of event."""

from __future__ import annotations

import math
from base64 import b64encode
from typing import Any

Event = dict[str, Any]
LAYERS, HEADS = 6, 3
HOSTILE = [
    b"</script>",
    b"\x00",
    "\u202eevil".encode(),
    "👩‍🚀".encode()[:4],
    "👩‍🚀".encode()[4:9],
    b"<img src=x onerror=alert(1)>",
]
PROMPT = [b"<|im_start|>", b"user", b"\n", "你好".encode(), b", world", *HOSTILE, b"<|im_end|>", b"\n"]
ANSWER = [b"The", b" sky", b" is", b" blue", b"<|im_end|>"]
WORDS = [*PROMPT, *ANSWER, b" green", b" grey", b" red", b" A", b" It", b" far", b" clear", b" not", b" so"]
START = 1_000_000_000


def b64(data: bytes) -> str:
    return b64encode(data).decode()


def token_bytes(token_id: int) -> bytes:
    return WORDS[token_id - 100]


def sample_trace() -> list[Event]:
    """Events in the order of their times."""
    n = len(PROMPT)
    events: list[Event] = [_header()]
    for place, name in enumerate(("first", "second")):
        tokens = [
            {"i": i, "id": 100 + i if place == 0 or i < 8 else 100 + n + 4 + i - 8, "bytes_b64": "", "span": None,
             "kind": "special" if i in (0, n - 2) else "byte" if i in (8, 9) else "normal", "pos": i, "cached": place == 1 and i < 4}
            for i in range(n)
        ]  # fmt: skip
        for token in tokens:
            token["bytes_b64"] = b64(token_bytes(token["id"]))
        events.append(
            {"type": "request", "req": name, "level": 3, "arrive_ns": START + place * 3_000_000, "template": "{{ messages }}",
             "rendered": b"".join(PROMPT).decode("utf-8", "replace"), "tokens": tokens,
             "params": {"temperature": {"value": 0.8, "source": "request"}, "top_k": {"value": 8, "source": "request"}, "seed": {"value": 7, "source": "engine"}}}
        )  # fmt: skip
    events += _kv()
    now, step = START + 2_000_000, 0
    for req, first, rows in [("first", 0, 8), ("first", 8, n - 8), ("second", 4, n - 4)]:
        events.append(_step(step, now, [(req, first, rows)], [] if step else [("second", "step_full")]))
        events += [_layer(req, step, i, layer) for i in range(first, first + rows) for layer in range(LAYERS)]
        step, now = step + 1, now + 9_000_000
    for k, piece in enumerate(ANSWER):
        for req in ("first", "second"):
            events.append(_sample(req, step if k else 1 + (req == "second"), n + k, 100 + n + k, k))
            held = 2 if k == 2 else 0
            events.append({"type": "emit", "req": req, "t_ns": now + 2_900_000, "token_range": [k, k + 1], "bytes_b64": b64(piece if k < 4 else b""), "held_bytes": held, "held_reason": "possible stop string" if held else None})  # fmt: skip
        if k < len(ANSWER) - 1:
            events.append(_step(step, now, [("first", n + k, 1), ("second", n + k, 1 + 2 * (k == 1))], []))
            events += [_layer(req, step, n + k, layer) for req in ("first", "second") for layer in range(LAYERS)]
            if k == 1:
                events.append({"type": "spec", "req": "second", "step": step, "proposer": "lookup", "draft": [100 + n + 2, 100 + n + 8], "accepted": 1, "bonus_id": 100 + n + 3})  # fmt: skip
            step, now = step + 1, now + 3_000_000
    events.append({"type": "mem", "t_ns": now, "weights_bytes": 144_811_392, "kv_reserved_bytes": 755_000_000, "kv_used_bytes": 1_474_560, "activations_bytes": 9_000_000, "rss_bytes": 321_000_000})  # fmt: skip
    for req in ("first", "second"):
        parts = {"tokenize": 600_000, "queue": 1_400_000, "prefill_own": 16_500_000, "batch_others": 300_000, "sample": 700_000, "emit": 420_000, "tracing": 60_000, "unaccounted": 20_000}  # fmt: skip
        events.append({"type": "finish", "req": req, "reason": "stop", "stop_id": 100 + n + 4, "stop_str": None, "error": None, "n_prompt": n, "n_output": 5, "preemptions": 0, "ttft_ns": sum(parts.values()), "tpot_ns": 3_000_000.0, "itl_ns": [3_000_000] * 4, "ttft_parts": parts})  # fmt: skip
    events.append({"type": "finding", "rule": "near-tie", "severity": "warning", "req": "first", "evidence": {"i": n + 3}, "explain": "The first two tokens are 0.04 apart; another engine may answer differently.", "fix": "Compare logprobs rather than texts."})  # fmt: skip
    events.append({"type": "end", "dropped": 0, "events": len(events) + 1})
    return events


def _header() -> Event:
    inverse = [10_000 ** (-k / 16) for k in range(16)]
    return {
        "type": "header", "schema": "pellucid-trace/1", "level": 3, "redacted": False,
        "model": {"id": "sample", "arch": "llama", "n_layers": LAYERS, "d_model": 64, "n_heads": HEADS, "n_kv_heads": 1, "head_dim": 32, "vocab": 200, "dtype": "float32", "quant": "Q8_0", "kv_bytes_per_token": 768,
                  "rope": {"type": "default", "theta": 10000.0, "factor": None, "orig_ctx": 2048, "max_pos": 2048, "dim": 32, "inv_freq": inverse}},
        "tokenizer": {"sha256": "0" * 64, "add_bos": False, "bos_id": None, "eos_ids": [100 + len(PROMPT) + 4], "template_sha256": None},
        "engine": {"name": "pellucid", "max_model_len": 2048, "block_size": 4, "kv_cache_dtype": "int16"},
    }  # fmt: skip


def two_kinds_of_layers(events: list[Event]) -> list[Event]:
    """The same model with local and global layers, as Gemma 3 has them."""
    model = events[0]["model"]
    told = {"type": "default", "factor": None}
    model["rope"] |= {
        "theta": 1e6,
        "kinds": [
            {"layers": [0, 1, 2, 4], "window": 8, **told, "theta": 1e4, "inv_freq": [1e4 ** (-k / 16) for k in range(16)]},
            {"layers": [3], "window": None, **told, "theta": 1e6, "inv_freq": [1e6 ** (-k / 16) for k in range(16)]},
            {"layers": [5], "window": None, "type": "none", "factor": None, "theta": None, "inv_freq": None},
        ],
    }  # fmt: skip
    return events


def _kv() -> list[Event]:
    def one(op: str, block: int, req: str | None, ref: int, tok0: int | None, name: str | None, parent: str | None, after: int) -> Event:  # fmt: skip
        return {"type": "kv", "t_ns": START + after, "op": op, "block": block, "hash": name, "parent": parent, "req": req, "ref": ref, "tok0": tok0, "n": 4}  # fmt: skip

    return [
        one("alloc", 0, "first", 1, 0, None, None, 1), one("alloc", 1, "first", 1, 4, None, None, 2), one("cache", 0, "first", 1, 0, "a0", None, 3),
        one("cache", 1, "first", 1, 4, "a1", "a0", 4), one("evict", 5, None, 0, None, "zz", None, 5), one("hit", 0, "second", 2, 0, "a0", None, 6),
        one("alloc", 2, "first", 1, 8, None, None, 7), one("cache", 2, "first", 1, 8, "a2", "a1", 8), one("share", 1, "second", 2, 4, "a1", "a0", 9), one("alloc", 5, "second", 1, 8, None, None, 10), one("cache", 5, "second", 1, 8, "b2", "a1", 11),
    ]  # fmt: skip


def _step(step: int, now: int, seqs: list[tuple[str, int, int]], waiting: list[tuple[str, str]]) -> Event:
    took = 8_800_000 if seqs[0][2] > 1 else 2_800_000
    ns = {"sched": 100_000, "forward": took - 500_000, "sample": 300_000, "detok": 60_000, "emit": 40_000, "tracing": 0}
    return {"type": "step", "step": step, "t0_ns": now, "t1_ns": now + took, "token_budget": 16, "ns": ns, "seqs": [{"req": r, "tok0": t, "n_tok": n} for r, t, n in seqs], "waiting": [{"req": r, "reason": w} for r, w in waiting]}  # fmt: skip


def _layer(req: str, step: int, i: int, layer: int) -> Event:
    heads = []
    for head in range(HEADS):
        w = [math.exp(-((i - k) if head else k) / 2) for k in range(min(i + 1, 16))]
        heads.append({"head": head, "idx": list(range(len(w))), "w": [x / sum(w) * 0.95 for x in w], "other": 0.05})
    lens = [0.1 + 0.14 * layer, 0.08, 0.05, 0.03, 0.02]
    n = len(PROMPT)
    return {
        "type": "layer", "req": req, "step": step, "i": i, "layer": layer, "resid_rms": (1.0 + layer) * (40.0 if i == 0 else 1.0 + 0.1 * (i % 5)), "attn_rms": 0.3 + 0.05 * layer + 0.01 * i,
        "mlp_rms": 0.5 + 0.1 * layer, "absmax": 9.5 + layer, "nonfinite": 0, "attn": heads, "moe": None,
        "lens": {"ids": [100 + min(n + i - n + 1 if i >= n else n, n + 4), 100 + n + 5, 100 + n + 6, 100 + n + 7, 100 + n + 8], "p": lens, "entropy": 3.1 - 0.4 * layer},
    }  # fmt: skip


def _sample(req: str, step: int, i: int, token_id: int, k: int) -> Event:
    n = len(PROMPT)
    others = [one for one in range(100 + n, 100 + n + 14) if one != token_id]
    order = [token_id, *others[:9]] if k != 3 else [others[4], token_id, *[o for o in others[:9] if o != others[4]]]
    order = order[:10]
    logits = [12.0 - 0.9 * rank - (0.4 if rank else 0.0) for rank in range(len(order))]

    def stage(name: str, param: Any, temperature: float, keep: int, alive: int, removed: float) -> Event:
        e = [math.exp((x - logits[0]) / temperature) for x in logits[:keep]]
        total = sum(e) * (1.02 if alive > 10 else 1.0)
        p = [x / total for x in e]
        place = order.index(token_id)
        return {"name": name, "param": param, "alive": alive, "entropy": -sum(x * math.log(x) for x in p), "mass_removed": removed, "top": [[t, x / temperature, q] for t, x, q in zip(order, logits, p, strict=False)], "chosen": {"logit": logits[place] / temperature, "p": p[place], "rank": place + 1}}  # fmt: skip

    stages = [stage("raw", None, 1.0, 10, 200, 0.0), stage("temperature", 0.8, 0.8, 10, 200, 0.0), stage("top_k", 8, 0.8, 8, 8, 0.02), stage("top_p", 0.9, 0.8, 4, 4, 0.04)]  # fmt: skip
    last = stages[-1]["top"]
    place = order.index(token_id)
    before = sum(one[2] for one in last[:place])
    return {"type": "sample", "req": req, "step": step, "i": i, "id": token_id, "bytes_b64": b64(token_bytes(token_id)), "logprob_raw": math.log(stages[0]["chosen"]["p"]), "logprob_final": math.log(stages[-1]["chosen"]["p"]), "top2_gap": 1.3, "stages": stages, "rng": {"seed": 7, "counter": [i, 0, 0, 0], "u": before + 0.5 * last[place][2]}}  # fmt: skip

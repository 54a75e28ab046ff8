"""Every rule over models: a fault in a real file, and the file without it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planted import changed, metadata_of, model_verdict, opened, permuted_tokens, verdict_of

from pellucid.glass.doctor.finding import Verdict
from pellucid.glass.doctor.rules import RULES, examine
from pellucid.models.model_files import read_tokenizer

OF_MODELS = [rule.name for rule in RULES if rule.model is not None]


def only(verdict: Verdict, severity: str) -> dict[str, Any]:
    """The evidence of the only finding."""
    assert verdict.status == severity, verdict
    [finding] = verdict.findings
    assert finding.explain.endswith(".")
    assert finding.fix.endswith(".")
    json.dumps(finding.evidence)
    return finding.evidence


def test_a_healthy_chat_model(smollm2_path: Path) -> None:
    with opened(smollm2_path) as exam:
        examination = examine(exam)
    assert examination.findings == []
    assert {rule.name for rule, verdict in examination.verdicts if verdict.status == "ok"} == set(OF_MODELS)


def test_a_healthy_base_model(gemma3_path: Path) -> None:
    """Gemma 3 has residuals that float16 cannot hold at BOS: a fact worth a note, and no fault of the file."""
    with opened(gemma3_path) as exam:
        examination = examine(exam)
    assert examination.is_healthy
    assert [rule.name for rule, _ in examination.findings] == ["overflow"]


def test_two_bos(smollm2_path: Path, tmp_path: Path) -> None:
    template = metadata_of(smollm2_path)["tokenizer.chat_template"]
    path = changed(smollm2_path, tmp_path / "m.gguf", {"tokenizer.chat_template": "{{ bos_token }}" + template})
    assert only(model_verdict(path, "double-bos"), "warning")["times"] == 2


def test_no_bos_where_the_weights_want_one(gemma3_path: Path, tmp_path: Path) -> None:
    path = changed(gemma3_path, tmp_path / "m.gguf", {"tokenizer.ggml.add_bos_token": False})
    evidence = only(model_verdict(path, "missing-bos"), "warning")
    assert evidence["nats_without"] > evidence["nats_with"] + 2


@pytest.mark.slow
def test_a_bos_id_that_names_another_token(gemma3_path: Path, tmp_path: Path) -> None:
    path = changed(gemma3_path, tmp_path / "m.gguf", {"tokenizer.ggml.bos_token_id": 236_743})
    assert only(model_verdict(path, "missing-bos"), "warning")["other"] == "<bos>"


def test_ids_of_another_model(smollm2_path: Path, tmp_path: Path) -> None:
    path = changed(smollm2_path, tmp_path / "m.gguf", permuted_tokens(metadata_of(smollm2_path)))
    with opened(path, belongs=("the original", read_tokenizer(smollm2_path))) as exam:
        verdict = verdict_of(exam, "wrong-tokenizer")
    assert verdict.status == "error"
    by_fingerprint, by_likelihood = verdict.findings
    assert by_fingerprint.evidence["fingerprint"] != by_fingerprint.evidence["expected"]
    assert min(by_likelihood.evidence["nats"].values()) > by_likelihood.evidence["uniform_nats"]
    with opened(smollm2_path, belongs=("itself", read_tokenizer(smollm2_path))) as exam:
        assert verdict_of(exam, "wrong-tokenizer").status == "ok"


def test_more_tokens_than_rows(tiny_path: Path, tmp_path: Path) -> None:
    metadata = metadata_of(tiny_path)
    added = {"tokenizer.ggml.tokens": [*metadata["tokenizer.ggml.tokens"], "<|one_more|>"]}
    added["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"].tolist(), 3]
    verdict = model_verdict(changed(tiny_path, tmp_path / "m.gguf", added), "wrong-tokenizer")
    evidence = only(verdict, "error")
    assert evidence["tokens"] == evidence["rows"] + 1
    assert "cannot be loaded" in verdict.why


def test_no_rule_for_cutting_text(smollm2_path: Path, tmp_path: Path) -> None:
    path = changed(smollm2_path, tmp_path / "m.gguf", {"tokenizer.ggml.pre": None})
    assert only(model_verdict(path, "wrong-tokenizer"), "warning") == {"tokenizer.ggml.pre": None}


def test_text_that_does_not_come_back(smollm2_path: Path, tmp_path: Path) -> None:
    tokens = list(metadata_of(smollm2_path)["tokenizer.ggml.tokens"])
    tokens[tokens.index("e")] = "<gone>"
    path = changed(smollm2_path, tmp_path / "m.gguf", {"tokenizer.ggml.tokens": tokens})
    assert "'e'" in only(model_verdict(path, "wrong-tokenizer"), "error")["error"]


def test_a_tokenizer_that_cannot_be_used(tiny_path: Path, tmp_path: Path) -> None:
    path = changed(tiny_path, tmp_path / "m.gguf", {"tokenizer.ggml.eos_token_id": 99_999})
    with opened(path) as exam:
        examination = examine(exam)
    [(rule, finding)] = examination.findings
    assert (rule.name, finding.severity) == ("wrong-tokenizer", "error")
    assert "eos_token_id" in finding.explain
    assert {v.status for r, v in examination.verdicts if r.name in ("double-bos", "overflow")} == {"not_applicable"}


def test_an_end_of_turn_that_ends_nothing(turn_over_path: Path) -> None:
    evidence = only(model_verdict(turn_over_path, "never-stops"), "error")
    assert (evidence["token"], evidence["id"], evidence["end_ids"]) == ("<|turn_over|>", 2, [0])
    assert evidence["p_token"] > 0.5 > evidence["p_end_ids"]


def test_no_end_at_all(tiny_path: Path, tmp_path: Path) -> None:
    tokens = [text.replace("<|im_end|>", "<|a|>").replace("<|endoftext|>", "<|b|>") for text in
              metadata_of(tiny_path)["tokenizer.ggml.tokens"]]  # fmt: skip
    planted = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.eos_token_id": None}
    assert only(model_verdict(changed(tiny_path, tmp_path / "m.gguf", planted), "never-stops"), "error") == {
        "end_ids": []
    }


def test_a_scaling_that_the_weights_do_not_know(smollm2_path: Path, tmp_path: Path) -> None:
    planted = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    evidence = only(model_verdict(changed(smollm2_path, tmp_path / "m.gguf", planted), "positions"), "warning")
    assert evidence["nats_with"] > evidence["nats_without"] + 1


@pytest.mark.parametrize(
    ("planted", "words"),
    [
        ({"llama.rope.scaling.original_context_length": 128}, "no scaling is applied"),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 2.0,
                "llama.rope.scaling.original_context_length": 256,
            },
            "the factor is in it twice",
        ),
    ],
)
def test_declarations_that_contradict_each_other(
    planted: dict[str, Any], words: str, tiny_path: Path, tmp_path: Path
) -> None:
    verdict = model_verdict(changed(tiny_path, tmp_path / "m.gguf", planted), "positions")
    assert verdict.status == "warning"
    assert words in verdict.findings[0].explain
    sound = {**planted, "llama.rope.scaling.original_context_length": 512, "llama.rope.scaling.type": "yarn"}
    sound["llama.rope.scaling.factor"] = 2.0
    assert model_verdict(changed(tiny_path, tmp_path / "m.gguf", sound), "positions").status == "ok"


def test_more_positions_than_were_trained(tiny_path: Path) -> None:
    assert only(model_verdict(tiny_path, "positions", max_model_len=2000), "warning")["context_length"] == 1024
    assert model_verdict(tiny_path, "positions", max_model_len=1024).status == "ok"


def test_two_scalings_in_a_folder(tmp_path: Path) -> None:
    """LLaMA fine-tunes of the time of position interpolation write the scaled length into config.json."""
    from stored_folders import typed_weights, write_typed

    folder = write_typed(tmp_path, "llama", typed_weights("llama"))
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "rope_parameters": None,
        "rope_scaling": {"type": "linear", "factor": 4.0},
        "original_max_position_embeddings": 64,
    }
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 256}))
    verdict = model_verdict(folder, "positions")
    assert verdict.status == "warning"
    assert "scaled twice" in verdict.findings[0].explain
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 64}))
    assert model_verdict(folder, "positions").status in ("ok", "not_applicable")


def test_the_first_layer_that_overflows(overflowing_path: Path, smollm2_path: Path, tmp_path: Path) -> None:
    evidence = only(model_verdict(overflowing_path, "overflow"), "error")
    assert evidence["layer"] == 12
    with opened(overflowing_path) as exam:  # the others say why they cannot look, and do not fall
        assert verdict_of(exam, "missing-bos").status == "not_applicable"
    large = changed(smollm2_path, tmp_path / "m.gguf", tensors={"blk.5.ffn_norm.weight": lambda x: x * 300})
    evidence = only(model_verdict(large, "overflow"), "info")
    assert evidence["layer"] == 5
    assert evidence["absmax"] > float(np.finfo(np.float16).max)


def test_keys_that_the_cache_cannot_hold(smollm2_path: Path, tmp_path: Path) -> None:
    path = changed(smollm2_path, tmp_path / "m.gguf", tensors={"blk.3.attn_norm.weight": lambda x: x * 1e6})
    verdict = model_verdict(path, "overflow", kv_cache_dtype="float16")
    evidence = only(verdict, "error")
    assert evidence["layer"] == 3
    assert "float16 KV cache" in evidence["error"]


def test_a_context_that_does_not_fit(tiny_path: Path, tmp_path: Path) -> None:
    evidence = only(model_verdict(tiny_path, "kv-budget", kv_cache_memory_bytes=65_536), "error")
    assert evidence["needed_bytes"] > evidence["available_bytes"] == 65_536
    assert evidence["longest_context"] == 65_536 // evidence["bytes_per_token"] // 16 * 16
    fits = {"kv_cache_memory_bytes": 65_536, "max_model_len": evidence["longest_context"]}
    assert model_verdict(tiny_path, "kv-budget", **fits).status == "ok"
    assert model_verdict(tiny_path, "kv-budget", **fits | {"max_model_len": evidence["longest_context"] + 1}).findings
    huge = changed(tiny_path, tmp_path / "m.gguf", {"llama.context_length": 1 << 29})
    assert only(model_verdict(huge, "kv-budget"), "error")["max_model_len"] == 1 << 29


def test_an_encoder_is_not_asked_what_it_cannot_do(tiny_path: Path) -> None:
    with opened(tiny_path) as exam:
        exam.files = replace(exam.files, config=replace(exam.files.config, causal=False))
        statuses = {rule.name: verdict.status for rule, verdict in examine(exam).verdicts}
    assert {statuses[name] for name in ("missing-bos", "never-stops", "overflow", "kv-budget")} == {"not_applicable"}

"""Make a golden fixture: what transformers computes in float32 on a GGUF file's dequantised weights.

    python tools/make_golden_logits.py MODEL.gguf tests/golden/NAME.npz [--threads 2] [--float64]

Needs torch (CPU is enough), transformers, accelerate and gguf; nothing of Pellucid but the fixture's own format
(tests/golden/fidelity.py). The texts are tests/golden/text_*.txt. Before anything is computed, every parameter in
the transformers model is compared with the tensor that the `gguf` package dequantises, and every number of the
configuration with the file's metadata, so that the fixture cannot be golden for another model.

What the GGUF route of transformers 5.24 sets by itself and what is checked or corrected here:
- Llama: rows of q and k are stored in the file for the interleaved rotation and are put back into the half-split
  order; checked against an independent formula.
- SmolLM's tokenizer: `tokenizer.ggml.pre` is not read, so runs of white space before a digit are split wrongly
  ("\\n\\n1"). The digit-splitting step that the original tokenizer has is put in front here.
- Gemma 3: the file stores 1 + weight for norms, transformers adds the 1 itself. The window (512) comes from the
  file; the pattern (5 sliding layers, then 1 full), the sliding layers' rope base (10,000) and the attention scale
  (256 ** -0.5) are not in the file and come from the configuration class's defaults; all are checked.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from gguf import GGUFReader, dequantize
from tokenizers import pre_tokenizers

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from golden.fidelity import (  # noqa: E402
    GOLDEN_DIR,
    NUM_TOP,
    SHORT_DOCUMENT,
    TOP_STRIDE,
    Float32Array,
    GoldenDocument,
    StoredHidden,
    agreement,
    kl_divergence,
    logsumexp,
    row_chunks,
    save_golden,
)

MAX_ROUNDING_KL = 1e-8
"""Mean KL that storing the hidden states in 16 bits may cost, in nats."""
HEAD_ROWS = 64
"""Rows whose full logits are held at a time (256 MiB for a vocabulary of 262,144 in float32, four arrays)."""

LLAMA_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
GEMMA3_TENSORS = {
    **LLAMA_TENSORS,
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
TENSOR_NAMES = {"llama": LLAMA_TENSORS, "gemma3": GEMMA3_TENSORS}


def parameter_name(architecture: str, tensor: str) -> str:
    """The transformers parameter that holds a GGUF tensor."""
    outside = {"token_embd": "embed_tokens", "output_norm": "norm"}
    stem = tensor.removesuffix(".weight")
    if stem in outside:
        return f"model.{outside[stem]}.weight"
    _, layer, kind = stem.split(".")
    return f"model.layers.{layer}.{TENSOR_NAMES[architecture][kind]}.weight"


def to_half_split(weight: Float32Array, num_heads: int) -> Float32Array:
    """Rows of q or k from the interleaved rotation's order (0, d/2, 1, d/2 + 1, …) to the half-split one (0, 1, …)."""
    head_dim = len(weight) // num_heads
    order = np.concatenate([np.arange(0, head_dim, 2), np.arange(1, head_dim, 2)])
    rows = (np.arange(num_heads)[:, None] * head_dim + order).reshape(-1)
    return np.asarray(weight[rows])


def check_weights(reader: GGUFReader, architecture: str, model: Any) -> float:
    """Compare every parameter with the file's dequantised tensor; returns the largest error relative to its tensor.

    Matrices must be equal bit for bit; Gemma's norms, which go through w − 1 and + 1, to 1e-6.
    """
    parameters = dict(model.named_parameters())
    config = model.config
    worst = 0.0
    for tensor in reader.tensors:
        weight = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        ours = parameters.pop(parameter_name(architecture, tensor.name)).detach().numpy()
        if architecture == "llama" and ".attn_q." in tensor.name:
            weight = to_half_split(weight, config.num_attention_heads)
        if architecture == "llama" and ".attn_k." in tensor.name:
            weight = to_half_split(weight, config.num_key_value_heads)
        if architecture == "gemma3" and "norm" in tensor.name:
            ours = 1.0 + ours
        error = float(np.abs(ours - weight).max() / np.abs(weight).max())
        worst = max(worst, error)
        allowed = 1e-6 if "norm" in tensor.name else 0.0
        if ours.shape != weight.shape or error > allowed:
            raise SystemExit(f"{tensor.name}: transformers' weights differ from the file's by {error:.2e}")
    if parameters:
        raise SystemExit(f"parameters that the file does not give: {', '.join(parameters)}")
    return worst


def check_config(reader: GGUFReader, architecture: str, config: Any) -> None:
    """Compare the configuration that transformers derived with the file's metadata; exits at the first difference."""

    def meta(key: str) -> Any:
        return reader.fields[f"{architecture}.{key}"].contents()

    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    expected = {
        "layers": (config.num_hidden_layers, meta("block_count")),
        "width": (config.hidden_size, meta("embedding_length")),
        "MLP width": (config.intermediate_size, meta("feed_forward_length")),
        "heads": (config.num_attention_heads, meta("attention.head_count")),
        "KV heads": (config.num_key_value_heads, meta("attention.head_count_kv")),
        "norm epsilon": (config.rms_norm_eps, meta("attention.layer_norm_rms_epsilon")),
        "tied head": (config.tie_word_embeddings, True),
    }
    rope = config.rope_parameters
    if architecture == "llama":
        expected["rope base"] = (rope["rope_theta"], meta("rope.freq_base"))
        expected["rope kind"] = (rope["rope_type"], "default")
        expected["head width"] = (head_dim, meta("rope.dimension_count"))
        expected["activation"] = (config.hidden_act, "silu")
    else:
        pattern = ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(config.num_hidden_layers)]
        expected["head width"] = (head_dim, meta("attention.key_length"))
        expected["rope base"] = (rope["full_attention"]["rope_theta"], meta("rope.freq_base"))
        expected["sliding rope base"] = (rope["sliding_attention"]["rope_theta"], 10_000.0)
        expected["rope kinds"] = ({kind["rope_type"] for kind in rope.values()}, {"default"})
        expected["window"] = (config.sliding_window, meta("attention.sliding_window"))
        expected["pattern"] = (config.layer_types, pattern)
        expected["attention scale"] = (config.query_pre_attn_scalar, 256)
        expected["soft caps"] = ((config.final_logit_softcapping, config.attn_logit_softcapping), (None, None))
        expected["activation"] = (config.hidden_activation, "gelu_pytorch_tanh")
        expected["causal"] = (bool(config.use_bidirectional_attention), False)
    for name, (ours, file) in expected.items():
        print(f"  {name}: {ours}")
        if ours != file:
            raise SystemExit(f"{name}: transformers has {ours}, but the file says {file}")


def load_tokenizer(path: Path, reader: GGUFReader) -> Any:
    """transformers' tokenizer for the file, with the digit step that SmolLM's has (see the module's docstring)."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    if reader.fields["tokenizer.ggml.pre"].contents() == "smollm":
        backend = tokenizer.backend_tokenizer
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return tokenizer


def run_model(model: Any, token_ids: list[int], keep_layers: bool) -> tuple[Float32Array, dict[str, Float32Array]]:
    """The final norm's output [T, d] and, if asked, the embedding and every layer's output [T, d]."""
    layers: dict[str, Float32Array] = {}
    hooks = []

    def keep(name: str) -> Any:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            tensor = output[0] if isinstance(output, tuple) else output
            layers[name] = tensor.detach().reshape(-1, tensor.shape[-1]).to(torch.float32).numpy().copy()

        return hook

    if keep_layers:
        hooks.append(model.model.embed_tokens.register_forward_hook(keep("embedding")))
        for index, layer in enumerate(model.model.layers):
            hooks.append(layer.register_forward_hook(keep(f"layers.{index}.residual")))
    with torch.inference_mode():
        output = model.model(input_ids=torch.tensor([token_ids]), use_cache=False)
    for handle in hooks:
        handle.remove()
    return output.last_hidden_state[0].numpy(), layers


class DocumentRun:
    """One document's golden arrays, and what storing them costs."""

    def __init__(self, model: Any, name: str, token_ids: list[int]) -> None:
        hidden, layers = run_model(model, token_ids, keep_layers=name == SHORT_DOCUMENT)
        stored = StoredHidden.encode(hidden).decode()
        head = model.lm_head.weight.detach()
        top_ids, top_logits, sums, losses, rounding, agree = [], [], [], [], [], []
        next_ids = np.array([*token_ids[1:], -1])
        for rows in row_chunks(len(token_ids), HEAD_ROWS):
            with torch.inference_mode():
                logits = (torch.from_numpy(hidden[rows]) @ head.T).numpy()
                stored_logits = (torch.from_numpy(stored[rows]) @ head.T).numpy()
            kept = logits[::TOP_STRIDE]  # HEAD_ROWS is a multiple of the stride
            ids = np.argsort(-kept, axis=1, kind="stable")[:, :NUM_TOP]
            top_ids.append(ids.astype(np.int32))
            top_logits.append(np.take_along_axis(kept, ids, axis=1))
            sums.append(logsumexp(logits))
            rounding.append(kl_divergence(logits, stored_logits))
            agree.append(agreement(logits, stored_logits))
            known = np.flatnonzero(next_ids[rows] >= 0)
            losses.append(sums[-1][known] - logits[known, next_ids[rows][known]])
        self.rounding_kl = np.concatenate(rounding)
        self.rounding_agreement = np.concatenate(agree)
        self.losses = np.concatenate(losses)
        self.document = GoldenDocument(
            name=name,
            token_ids=np.array(token_ids, dtype=np.int32),
            hidden=hidden,
            top_ids=np.concatenate(top_ids),
            top_logits=np.concatenate(top_logits),
            logsumexp=np.concatenate(sums),
            layers=layers,
        )


def report_float64(model: Any, runs: list[DocumentRun]) -> None:
    """Print how far float32 itself is from float64 on every document (not stored)."""
    head = model.lm_head.weight.detach().clone()
    model.double()
    kl = []
    for run in runs:
        exact, _ = run_model(model, run.document.token_ids.tolist(), keep_layers=False)
        for rows in row_chunks(len(exact), HEAD_ROWS):
            ref = torch.from_numpy(exact[rows].astype(np.float32)) @ head.T
            ours = torch.from_numpy(run.document.hidden[rows]) @ head.T
            kl.append(kl_divergence(ref.numpy(), ours.numpy()))
    print(f"float64 against float32: mean KL {np.concatenate(kl).mean():.2e}, max {np.concatenate(kl).max():.2e}")


def main() -> None:
    """Load, check, run, print the figures, write the fixture."""
    parser = argparse.ArgumentParser(description="Make a golden fixture from transformers in float32.")
    parser.add_argument("model", type=Path, help="GGUF file")
    parser.add_argument("output", type=Path, help="fixture to write (.npz)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--float64", action="store_true", help="also print how far float32 is from float64")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    reader = GGUFReader(args.model)
    architecture = str(reader.fields["general.architecture"].contents())
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(args.model.parent), gguf_file=args.model.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    check_config(reader, architecture, model.config)
    print(f"weights equal the file's: largest relative error {check_weights(reader, architecture, model):.1e}")
    tokenizer = load_tokenizer(args.model, reader)

    runs = []
    losses: dict[str, float] = {}
    for path in sorted(GOLDEN_DIR.glob("text_*.txt"), key=lambda path: path.stat().st_size):
        name = path.stem.removeprefix("text_")
        run = DocumentRun(model, name, tokenizer(path.read_text(encoding="utf-8"))["input_ids"])
        runs.append(run)
        losses[name] = float(run.losses.mean())
        print(
            f"{name}: {len(run.document)} tokens, loss {losses[name]:.3f}, perplexity {np.exp(losses[name]):.2f}, "
            f"rounding KL mean {run.rounding_kl.mean():.2e} max {run.rounding_kl.max():.2e}"
        )
    rounding_kl = float(np.concatenate([run.rounding_kl for run in runs]).mean())
    rounding_agreement = float(np.concatenate([run.rounding_agreement for run in runs]).mean())
    if not rounding_kl < MAX_ROUNDING_KL:
        raise SystemExit(f"rounding costs {rounding_kl:.2e} nats, more than {MAX_ROUNDING_KL:.0e}: keep more bits")
    meta = {
        "model": args.model.name,
        "sha256": hashlib.sha256(args.model.read_bytes()).hexdigest(),
        "architecture": architecture,
        "transformers": transformers.__version__,
        "torch": str(torch.__version__),
        "rounding_mean_kl": rounding_kl,
        "loss": losses,
    }
    save_golden(args.output, meta, [run.document for run in runs])
    total_loss = float(np.concatenate([run.losses for run in runs]).mean())
    print(
        f"{args.output}: {sum(len(run.document) for run in runs)} tokens, {args.output.stat().st_size:,} bytes, "
        f"loss {total_loss:.3f}, perplexity {np.exp(total_loss):.2f}, rounding KL {rounding_kl:.2e}, "
        f"agreement {rounding_agreement:.4f}"
    )
    if args.float64:
        report_float64(model, runs)


if __name__ == "__main__":
    main()

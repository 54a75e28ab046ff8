"""Folders written as GGUF: the bits of every family, the ids of every tokenizer, or a refusal that says why."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from parity.families import BY_NAME, golden_description, write_folder
from parity.ours import hidden, load_ours, logits
from tokenizers import Regex, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Engine

from pellucid.config import EngineArgs
from pellucid.engine.loading import load_parts
from pellucid.errors import UnsupportedModelError
from pellucid.formats.block_types import F32
from pellucid.formats.gguf import GGUFFile
from pellucid.formats.gguf_writer import write_gguf
from pellucid.kernels.dispatch import make_backend
from pellucid.models.folder_tensors import FolderTensors
from pellucid.models.gguf_keys import gguf_form, gguf_keys
from pellucid.models.model_files import open_model
from pellucid.models.quantized_file import quantize_file
from pellucid.tokenizer.pre_tokenizers import EACH_DIGIT, GPT2_WORDS, LLAMA3, PRE_TOKENIZERS, QWEN2
from pellucid.tokenizer.tokenizer import Tokenizer

NOT_WRITTEN = {
    "llama-dynamic": "no key of llama says its rope",
    "qwen2-window": "no key of qwen2 says its sliding_window",
    "qwen3moe-dense-layer": "no key of qwen3moe says its experts",
    **dict.fromkeys(
        ("opt", "opt-post-norm", "gpt1", "xglm"),
        "is not written as GGUF: the folder itself can be served",
    ),
}
IDS = [5, 17, 40, 3, 77, 12]
TEXT = "Hello world, naïve Straße 1234 in 东京 🦙"


def written(folder: Path, out: Path) -> Path:
    """The folder's tensors in the folder's types."""
    with open_model(folder) as files:
        form = gguf_form(files.config)
        metadata, factors = gguf_keys(files.config, form)
        tensors: dict[str, Any] = {}
        for planned in FolderTensors(files.source, files.form, form, files.config, make_backend("reference")).planned():  # type: ignore[arg-type]
            tensor = planned.read()
            assert (tensor.shape, tensor.type) == (planned.shape, planned.kind)
            tensors[planned.name] = (tensor.shape, tensor.type, tensor.data)
        tensors |= {name: (values.shape, F32, values.view(np.uint8)) for name, values in factors.items()}
    write_gguf(out, {**metadata, "tokenizer.ggml.model": "none"}, tensors)
    return out


@pytest.mark.parametrize("name", sorted(set(BY_NAME) - set(NOT_WRITTEN)))
def test_the_file_is_the_folder(name: str, tmp_path: Path) -> None:
    small = BY_NAME[name]
    folder = write_folder(small, tmp_path / "hf")
    path = written(folder, tmp_path / "m.gguf")
    ids, answers = small.token_ids(), hidden if name == "bert" else logits
    ours = answers(load_ours(path, "reference", max_model_len=len(ids)), ids)
    whole = answers(load_ours(folder, "reference", max_model_len=len(ids)), ids)
    # Longrope's factors are kept in float32.
    assert np.abs(ours - whole).max() <= (3e-6 * np.abs(whole).max() if "phi3" in name else 0)


@pytest.mark.parametrize("name", NOT_WRITTEN)
def test_what_the_keys_cannot_say_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=NOT_WRITTEN[name]):
        written(write_folder(BY_NAME[name], tmp_path), tmp_path / "m.gguf")


def test_names_are_llama_cpps(tmp_path: Path) -> None:
    path = written(write_folder(BY_NAME["qwen3moe"], tmp_path / "hf"), tmp_path / "m.gguf")
    names = {tensor.name for tensor in gguf.GGUFReader(path).tensors}
    kind = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == "qwen3moe")
    known = {gguf.TENSOR_NAMES[t].format(bid=i) + ".weight" for t in gguf.MODEL_TENSORS[kind] for i in range(3)}
    assert names <= known


# With tokenizers


def byte_level_folder(place: Path, *steps: Any, **model: Any) -> Path:
    """The small Llama with an embedding for a byte-level tokenizer of 300 pieces, and padding."""
    description = json.loads(json.dumps(golden_description("llama")))
    description["config"]["vocab_size"] = 320
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        description["shapes"][name][0] = 320
    folder = write_folder(BY_NAME["llama"], place, description)
    engine = Engine(models.BPE(**model))
    steps = steps or (pre_tokenizers.ByteLevel(add_prefix_space=False),)
    engine.pre_tokenizer = pre_tokenizers.Sequence(list(steps)) if len(steps) > 1 else steps[0]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    engine.train_from_iterator([TEXT, "hello hello world world"] * 20, trainer)
    engine.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "bos_token": "<|endoftext|>", "chat_template": "{{ messages[0].content }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_a_folder_with_its_tokenizer(tmp_path: Path) -> None:
    folder, out = byte_level_folder(tmp_path / "hf"), tmp_path / "q.gguf"
    counts = quantize_file(folder, out, "q8_0")
    assert counts == {"Q8_0": 2 + 3 * 7, "F32": 1 + 3 * 2}
    from_folder, tokenizer = load_parts(EngineArgs(model=str(folder), quantization="q8_0"))
    from_file, other = load_parts(EngineArgs(model=str(out)))
    np.testing.assert_array_equal(logits(from_folder, IDS), logits(from_file, IDS))  # type: ignore[arg-type]
    assert isinstance(tokenizer, Tokenizer)
    assert isinstance(other, Tokenizer)
    assert other.encode(TEXT) == tokenizer.encode(TEXT)
    assert (other.eos_ids, other.chat_template) == (tokenizer.eos_ids, tokenizer.chat_template)
    reader = gguf.GGUFReader(out)
    assert reader.get_field("tokenizer.ggml.pre").contents() == "gpt-2"
    assert reader.get_field("general.file_type").contents() == 7
    assert len(reader.get_field("tokenizer.ggml.tokens").contents()) == len(tokenizer.vocabulary.tokens) < 320, (
        "rows without a token are left out"
    )


def test_only_phi3s_tokenizer_goes_by_its_name(tmp_path: Path) -> None:
    """llama.cpp refuses a file of that name without its tokens; Phi-4 mini is of the same type."""
    folder = byte_level_folder(tmp_path / "hf")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"_name_or_path": "Org/Phi-3-and-phi3"}))
    quantize_file(folder, tmp_path / "q.gguf", "q8_0")
    with GGUFFile.open(tmp_path / "q.gguf") as file:
        assert file.metadata["general.name"] == "Org/phi-and-phi"


def split(pattern: str) -> Any:
    return pre_tokenizers.Split(Regex(pattern), "isolated")


@pytest.mark.parametrize(
    ("name", "steps", "model"),
    [
        ("llama-bpe", (split(LLAMA3), pre_tokenizers.ByteLevel(False, use_regex=False)), {"ignore_merges": True}),
        ("dbrx", (split(LLAMA3), pre_tokenizers.ByteLevel(False, use_regex=False)), {}),
        ("kormo", (split(QWEN2), pre_tokenizers.ByteLevel(False, use_regex=False)), {}),
        ("smollm", (pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)), {}),
    ],
)
def test_the_rules_of_words_have_their_name(tmp_path: Path, name: str, steps: Any, model: Any) -> None:
    folder = byte_level_folder(tmp_path / "hf", *steps, **model)
    quantize_file(folder, tmp_path / "q.gguf", "q8_0")
    with GGUFFile.open(tmp_path / "q.gguf") as file:
        assert file.metadata["tokenizer.ggml.pre"] == name
    assert PRE_TOKENIZERS["smollm"].steps == (EACH_DIGIT, GPT2_WORDS)


def test_rules_without_a_name_are_refused(tmp_path: Path) -> None:
    folder = byte_level_folder(tmp_path / "hf", split("[a-z]+"), pre_tokenizers.ByteLevel(False, use_regex=False))
    with pytest.raises(UnsupportedModelError, match=r"words are cut by rules that no tokenizer.ggml.pre of GGUF names"):
        quantize_file(folder, tmp_path / "q.gguf", "q8_0")
    assert not (tmp_path / "q.gguf").exists()


@pytest.mark.parametrize(("lowercase", "accents"), [(True, None), (False, False), (True, False)])
def test_t13_an_encoder_keeps_its_case_and_accents(tmp_path: Path, lowercase: bool, accents: bool | None) -> None:
    folder, out = write_folder(BY_NAME["bert"], tmp_path / "hf"), tmp_path / "q.gguf"
    letters = [*"abcdefghijklmnopqrstuvwxyzéÉS"]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    pieces += [f"word{i}" for i in range(96 - len(pieces))]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    settings = {"do_lower_case": lowercase, "strip_accents": accents}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    quantize_file(folder, out, "q8_0")
    given, read = Tokenizer.from_folder(folder), load_parts(EngineArgs(model=str(out)))
    assert isinstance(read[1], Tokenizer)
    assert read[1].encode("Élève S") == given.encode("Élève S")
    strips = lowercase if accents is None else accents
    assert (given.vocabulary.index["##é"] in given.encode("caféé")) == (not strips)
    assert (read[0].config.pooling, read[0].config.causal) == ("mean", False)
    reader = gguf.GGUFReader(out)
    assert reader.get_field("tokenizer.ggml.tokens").contents()[5] == "▁a"
    assert reader.get_field("bert.pooling_type").contents() == gguf.PoolingType.MEAN.value


def test_one_tensor_is_in_memory_at_a_time(tmp_path: Path) -> None:
    folder = byte_level_folder(tmp_path / "hf")
    whole = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    quantize_file(folder, tmp_path / "warm.gguf", "q8_0")
    tracemalloc.start()
    with open_model(folder) as files:
        form = gguf_form(files.config)
        planned = FolderTensors(files.source, files.form, form, files.config, make_backend("reference")).planned()  # type: ignore[arg-type]
        for tensor in planned:
            tensor.read()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < whole / 2, (peak, whole)

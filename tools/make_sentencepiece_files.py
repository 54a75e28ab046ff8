"""Write tests/tokenizer/golden/sentencepiece_files.json: small tokenizer.model files and ids by `sentencepiece` itself.

Not needed to build, install or test Pellucid. It needs the sentencepiece package.

    python tools/make_sentencepiece_files.py
"""

from __future__ import annotations

import base64
import io
import json
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import sentencepiece

ROOT = Path(__file__).resolve().parent.parent
CORPUS: list[str] = json.loads((ROOT / "tests/tokenizer/corpus.json").read_text(encoding="utf-8"))
KINDS: dict[str, dict[str, Any]] = {
    "unigram": {"model_type": "unigram", "vocab_size": 900},
    "unigram_bytes": {"model_type": "unigram", "vocab_size": 900, "byte_fallback": True},
    "unigram_plain": {
        "model_type": "unigram",
        "vocab_size": 900,
        "normalization_rule_tsv": "",
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "add_dummy_prefix": False,
    },
    "bpe": {"model_type": "bpe", "vocab_size": 900, "byte_fallback": True, "split_digits": True},
    "bpe_llama": {
        "model_type": "bpe",
        "vocab_size": 900,
        "byte_fallback": True,
        "normalization_rule_tsv": "",
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
    },
}
# A few of NFKC's rules, as hexadecimal code points: the whole table would be a quarter of a megabyte in each file.
RULES = "".join(
    f"{source}\t{target}\n"
    for source, target in [
        *((f"{0xFF21 + i:X}", f"{0x41 + i:X}") for i in range(26)),
        ("9", "20"), ("A", "20"), ("D", "20"), ("A0", "20"), ("3000", "20"), ("FB01", "66 69"), ("65 301", "E9"),
        ("2026", "2E 2E 2E"), ("200B", ""),
    ]
)  # fmt: skip


def main() -> None:
    rules = Path(tempfile.mkdtemp()) / "rules.tsv"
    rules.write_text(RULES, encoding="utf-8")
    content: dict[str, Any] = {"made_with": {"sentencepiece": version("sentencepiece")}}
    for name, options in KINDS.items():
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(CORPUS * 3),
            model_writer=model,
            hard_vocab_limit=False,
            user_defined_symbols=["<tool>"],
            character_coverage=0.98,
            minloglevel=2,
            **({"normalization_rule_tsv": str(rules)} | options),
        )
        processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        content[name] = {
            "model": base64.b64encode(model.getvalue()).decode(),
            "ids": [" ".join(map(str, processor.encode(text))) for text in CORPUS],
        }
    path = ROOT / "tests/tokenizer/golden/sentencepiece_files.json"
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()

"""One number for a vocabulary: what proves that a deployment's tokenizer is the one it was tested with."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict

from pellucid.tokenizer.vocabulary import Vocabulary


def fingerprint(vocabulary: Vocabulary) -> str:
    """sha256, as hexadecimal digits, over everything that decides which ids a text gets."""
    digest = hashlib.sha256()

    def add(name: str, data: bytes) -> None:
        digest.update(f"{name} {len(data)}\n".encode())
        digest.update(data)

    def add_texts(name: str, texts: list[str]) -> None:
        add(name, "\n".join(texts).encode("utf-8", "surrogateescape"))
        add(name + " lengths", " ".join(map(str, map(len, texts))).encode())

    add_texts("tokens", vocabulary.tokens)
    add("kinds", bytes(vocabulary.kinds))
    if vocabulary.scores is not None:
        add("scores", vocabulary.scores.astype("<f8").tobytes())
    if vocabulary.merges is not None:
        add_texts("merges", vocabulary.merges)
    rest = {
        "spelling": vocabulary.spelling,
        "pre": vocabulary.pre_tokenizer.name,
        "rules": None if vocabulary.rules is None else asdict(vocabulary.rules),
        "unk": vocabulary.unk_id,
        "prefix": vocabulary.prefix_ids,
        "suffix": vocabulary.suffix_ids,
        "space": vocabulary.add_space_prefix,
        "matching": {i: asdict(m) for i, m in sorted((vocabulary.matching | vocabulary.normalized).items())},
    }
    add("rules", json.dumps(rest, sort_keys=True, ensure_ascii=True).encode())
    return digest.hexdigest()

"""A model on disk, whatever its form: what it says about itself, its tokenizer, its weights.

A GGUF file (or the first of several parts), or a folder with config.json, safetensors and tokenizer files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pellucid.config import ModelConfig, Quantization
from pellucid.errors import ModelFileError, UnsupportedModelError
from pellucid.formats.gguf import GGUFFile
from pellucid.formats.gguf_split import open_gguf
from pellucid.models.loading import pack_model, read_config, read_folder_config
from pellucid.models.pooling_files import read_pooling
from pellucid.models.sources import TensorSource, gguf_source
from pellucid.rope_scaling import checked_rope_scaling

if TYPE_CHECKING:
    from pellucid.kernels.backend import Backend
    from pellucid.models.architectures.base import GGUFForm, HFForm
    from pellucid.models.decoder import Decoder
    from pellucid.tokenizer.tokenizer import Tokenizer
    from pellucid.tokenizer.vocabulary import Vocabulary


@dataclass
class ModelFiles:
    """An opened model; no weights are read until `load`."""

    path: Path
    kind: str
    """GGUF v3, safetensors …"""
    form: GGUFForm | HFForm
    config: ModelConfig
    source: TensorSource
    file_bytes: int
    metadata: dict[str, Any]
    """Of a GGUF file; empty for a folder."""
    _read_vocabulary: Callable[[], Vocabulary]

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Raises `ModelFileError` or `UnsupportedModelError`."""
        return self._read_vocabulary()

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Raises `ModelFileError` or `UnsupportedModelError`."""
        from pellucid.tokenizer.tokenizer import Tokenizer

        return Tokenizer(self.vocabulary)

    def without_padding(self) -> ModelFiles:
        """The same with the embedding cut to the tokenizer's size, so that no id without a token can be drawn.

        Raises `ModelFileError` where the tokenizer has more tokens than the embedding has rows, and where a GGUF
        file, which lists a token for every row, has another number of them.
        """
        tokens, rows = len(self.vocabulary.tokens), self.config.vocab_size
        if tokens == rows:
            return self
        if tokens > rows or self.metadata:
            raise ModelFileError(
                f"{self.path.name}: the tokenizer has {tokens} tokens, but the embedding has {rows} rows: the two do "
                "not belong together"
            )
        names = self.form.tensors
        source = self.source.with_rows(
            (names.embedding + ".weight", names.head + ".weight", names.head + ".bias"), tokens
        )
        config = dataclasses.replace(self.config, vocab_size=tokens)
        return dataclasses.replace(self, source=source, config=config)

    def with_rope(self, rope_scaling: str | Mapping[str, Any] | None, rope_theta: float | None) -> ModelFiles:
        """The same with other rotary positions, as `EngineArgs` has them.

        Raises `InvalidParameterError` where they do not go with the model.
        """
        if rope_scaling is None and rope_theta is None:
            return self
        from pellucid.models.rope_override import with_rope

        scaling = None if rope_scaling is None else checked_rope_scaling(rope_scaling)
        return dataclasses.replace(self, config=with_rope(self.config, scaling, rope_theta))

    def quantized_bytes(self, quantization: Quantization | None) -> int:
        """Bytes of the weights once they are loaded so."""
        if quantization is None:
            return self.config.weight_bytes
        from pellucid.models.quantization import Quantizer

        return Quantizer(quantization, self.form.tensors).num_bytes(self.source)

    def load(
        self, backend: Backend, max_model_len: int | None = None, quantization: Quantization | None = None
    ) -> Decoder:
        """Pack the weights. Raises `ModelFileError` or `UnsupportedModelError`, naming the tensor."""
        config = dataclasses.replace(self.config, weight_bytes=self.quantized_bytes(quantization))
        return pack_model(self.form, config, self.source, backend, max_model_len, quantization)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Forget the tensors; the mappings go with the last view of them."""
        self.source = TensorSource(self.source.label, {})


def open_model(path: str | Path) -> ModelFiles:
    """Open a GGUF file or a folder, by its path. Raises `ModelFileError` or `UnsupportedModelError`."""
    where = Path(path)
    return _open_folder(where) if where.is_dir() else _open_gguf(where)


def read_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a GGUF file or a folder alone; a folder needs no weights and no config.json for it."""
    from pellucid.tokenizer.tokenizer import Tokenizer

    if Path(path).is_dir():
        return Tokenizer.from_folder(path)
    with open_gguf(path) as file:
        return Tokenizer.from_gguf(file.metadata)


def _open_gguf(path: Path) -> ModelFiles:
    file: GGUFFile = open_gguf(path)
    if file.metadata.get("general.type") == "adapter":
        raise UnsupportedModelError(
            f"{path.name} is an adapter, not a model, and adapters are not applied: merge it into its model first"
        )
    form, config = read_config(file)

    def vocabulary() -> Vocabulary:
        from pellucid.tokenizer.vocabulary import read_vocabulary

        return read_vocabulary(file.metadata)

    source = gguf_source(file)
    return ModelFiles(path, f"GGUF v{file.version}", form, config, source, file.file_size, file.metadata, vocabulary)


def _open_folder(folder: Path) -> ModelFiles:
    form, config, source = read_folder_config(folder)
    config = read_pooling(folder, config)

    def vocabulary() -> Vocabulary:
        from pellucid.tokenizer.folder import read_folder_vocabulary

        return read_folder_vocabulary(folder)

    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return ModelFiles(folder, "safetensors", form, config, source, size, {}, vocabulary)

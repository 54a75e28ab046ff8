"""A model as the rules read it: its files, its tokenizer, and short forward passes on it, each made once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pellucid.config import EngineArgs, ModelConfig
from pellucid.errors import PellucidError
from pellucid.glass.doctor.finding import NotApplicableError
from pellucid.glass.doctor.texts import NEUTRAL, PROSE
from pellucid.kv_cache.memory import free_memory
from pellucid.sampling_params import SamplingParams
from pellucid.trace.events import LAYERS, Event

if TYPE_CHECKING:
    from pellucid.engine.llm import LLM
    from pellucid.models.decoder import Decoder
    from pellucid.models.model_files import ModelFiles
    from pellucid.tokenizer.tokenizer import Tokenizer

TRIAL_CONTEXT = 512
"""Room for the texts that are run."""
_SCORING = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class Likelihood:
    """How likely the neutral texts are: mean nats a token over all of them, their first tokens not counted."""

    nats: float
    by_text: dict[str, float]
    """The same of each text."""

    @property
    def best(self) -> float:
        """Of the text that the model knows best."""
        return min(self.by_text.values())


class ModelExam:
    """A model on disk, opened; weights are loaded when a rule asks for them."""

    def __init__(
        self, name: str, path: Path, files: ModelFiles, args: EngineArgs, belongs: tuple[str, Tokenizer] | None = None
    ) -> None:
        """belongs: name and tokenizer of what the model should have."""
        self.name = name
        self.path = path
        self.files = files
        self.args = args
        self.belongs = belongs
        self.free_bytes = free_memory()
        """Before anything was loaded."""

    @classmethod
    def open(cls, name: str, path: Path, args: EngineArgs, belongs: tuple[str, Tokenizer] | None = None) -> ModelExam:
        """Raises `ModelFileError` or `UnsupportedModelError` for a file that no rule could look at, and
        `InvalidParameterError` for positions that do not go with the model."""
        from pellucid.models.model_files import open_model

        files = open_model(path).with_rope(args.rope_scaling, args.rope_theta)
        return cls(name, path, files, args, belongs)

    @property
    def config(self) -> ModelConfig:
        return self.files.config

    @property
    def reach(self) -> int:
        """The longest request that an engine would take, prompt and answer together."""
        return self.args.max_model_len or self.config.context_length

    @cached_property
    def _tokenizer(self) -> Tokenizer | str:
        try:
            tokenizer = self.files.tokenizer
            tokenizer.encode("a")  # engines of the library are built on first use
        except PellucidError as error:
            return str(error)
        return tokenizer

    @property
    def tokenizer_error(self) -> str | None:
        """Why there is no tokenizer."""
        return self._tokenizer if isinstance(self._tokenizer, str) else None

    @property
    def tokenizer(self) -> Tokenizer:
        """Raises `NotApplicableError` where it cannot be used."""
        if isinstance(self._tokenizer, str):
            raise NotApplicableError(f"the tokenizer cannot be used: {self._tokenizer}")
        return self._tokenizer

    @cached_property
    def _loaded(self) -> tuple[LLM, Decoder] | PellucidError:
        from pellucid.engine.llm import LLM
        from pellucid.kernels.dispatch import make_backend

        args = self.args
        try:
            tokenizer = self.tokenizer
            backend = make_backend(args.backend, args.threads)
            model = self.files.without_padding().load(backend, self.reach, args.quantization)
            return LLM.from_parts(model, tokenizer, self._trial_args()), model
        except PellucidError as error:
            return error

    @property
    def llm(self) -> LLM:
        """Raises `NotApplicableError` where the weights cannot be loaded."""
        if isinstance(self._loaded, PellucidError):
            raise NotApplicableError(f"the weights cannot be loaded: {self._loaded}")
        return self._loaded[0]

    def _trial_args(self) -> EngineArgs:
        """Settings of the engine that runs the texts: those that change no number are left out."""
        return EngineArgs(
            max_model_len=min(self.config.context_length, TRIAL_CONTEXT),
            kv_cache_dtype=self.args.kv_cache_dtype,
            backend=self.args.backend,
            threads=self.args.threads,
            precision=self.args.precision,
            speculative_method="off",
        )

    def check_generates(self) -> None:
        """Raise `NotApplicableError` for an encoder, which predicts no next token."""
        if not self.config.causal:
            raise NotApplicableError(f"{self.config.architecture} is an encoder: it predicts no next token")

    def logprobs(self, prompts: Sequence[Sequence[int]], llm: LLM | None = None) -> list[list[float]]:
        """Of each token of the prompts but the first, under the raw logits.

        Raises `NotApplicableError` where the forward pass gives numbers that are not finite.
        """
        self.check_generates()
        outputs = (llm or self.llm).generate([list(ids) for ids in prompts], _SCORING)
        found = []
        for output in outputs:
            error = output.outputs[0].error
            if error is not None:
                raise NotApplicableError(f"the forward pass fails: {error}")
            rows = zip(output.prompt_token_ids[1:], (output.prompt_logprobs or [])[1:], strict=True)
            found.append([row[token_id].logprob for token_id, row in rows if row is not None])
        return found

    @cached_property
    def texts(self) -> dict[str, list[int]]:
        """Ids of the neutral texts, without special tokens; those that the vocabulary cannot spell are left out."""
        found: dict[str, list[int]] = {}
        for name, text in NEUTRAL.items():
            with suppress(PellucidError):
                ids = self.tokenizer.encode(text, add_special_tokens=False)
                found[name] = ids[: self.llm.max_model_len - 8]
        if not any(len(ids) > 2 for ids in found.values()):
            raise NotApplicableError("the vocabulary spells none of the neutral texts")
        return {name: ids for name, ids in found.items() if len(ids) > 2}

    def likelihood(self, prefix: Sequence[int], llm: LLM | None = None) -> Likelihood:
        """Of the neutral texts, each after the ids of `prefix`."""
        names = list(self.texts)
        rows = self.logprobs([[*prefix, *self.texts[name]] for name in names], llm)
        # the tokens after each text's first, which every prefix leaves the same
        kept = {name: row[len(prefix) :] for name, row in zip(names, rows, strict=True)}
        total = sum(-sum(row) for row in kept.values())
        by_text = {name: -sum(row) / len(row) for name, row in kept.items()}
        return Likelihood(total / sum(map(len, kept.values())), by_text)

    @cached_property
    def with_bos(self) -> Likelihood:
        """Of the texts after BOS. Raises `NotApplicableError` for a model without one."""
        bos_id = self.tokenizer.bos_id
        if bos_id is None:
            raise NotApplicableError("the model has no BOS token")
        return self.likelihood([bos_id])

    @cached_property
    def without_bos(self) -> Likelihood:
        """Of the texts alone."""
        return self.likelihood([])

    @property
    def as_served(self) -> Likelihood:
        """Of the texts as the engine would run them."""
        return self.with_bos if self.tokenizer.add_bos else self.without_bos

    def rescaled(self, config: ModelConfig) -> LLM:
        """The same weights with other positions."""
        from pellucid.engine.llm import LLM
        from pellucid.models.decoder import Decoder

        if isinstance(self._loaded, PellucidError):
            raise NotApplicableError(f"the weights cannot be loaded: {self._loaded}")
        model = self._loaded[1]
        other = Decoder(config, model.weights, model.backend, self.reach)
        return LLM.from_parts(other, self.tokenizer, self._trial_args())

    def probability_after(self, prefix: Sequence[int], token_ids: Sequence[int]) -> dict[int, float]:
        """Probability of each id as the next one after `prefix`."""
        rows = self.logprobs([[*prefix, token_id] for token_id in token_ids])
        return {token_id: math.exp(row[-1]) for token_id, row in zip(token_ids, rows, strict=True)}

    @cached_property
    def trial(self) -> list[Event]:
        """Events of a request at level 3: a neutral text as a prompt, and one token."""
        self.check_generates()
        llm = self.llm
        ids = self.tokenizer.encode(PROSE)[: llm.max_model_len - 8]
        reader = llm.trace_reader(from_start=False)
        # a salt of its own: what the cache has is not computed, and so not seen
        llm.generate([ids], replace(_SCORING, prompt_logprobs=None), trace_level=LAYERS, cache_salt="trial")
        return [*reader.read(), reader.end()]

    def metadata(self, key: str) -> Any:
        """A key of a GGUF file, after its architecture's name; None where the file has none, or is no GGUF file."""
        return self.files.metadata.get(f"{self.config.architecture}.{key}")

    def close(self) -> None:
        """Let go of files and weights."""
        loaded = self.__dict__.pop("_loaded", None)
        if isinstance(loaded, tuple):
            loaded[0].close()
        self.files.__exit__(None, None, None)

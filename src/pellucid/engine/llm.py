"""LLM: the Python API. Whole answers with `generate` and `chat`, deltas with `stream`."""

from __future__ import annotations

import time
import warnings
from collections.abc import Collection, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from pellucid.config import DEFAULT_MODEL, EngineArgs, ModelConfig, engine_arg_names
from pellucid.engine.engine_stats import EngineStats
from pellucid.engine.llm_arguments import (
    Message,
    Prompt,
    RequestOptions,
    chat_options,
    encoded_prompts,
    is_listed_conversations,
    is_messages,
    listed_params,
    listed_prompts,
)
from pellucid.engine.llm_engine import LLMEngine
from pellucid.engine.model_runner import Model
from pellucid.engine.overflow import SCORING, FittedPrompt, Fitting, given_logprobs
from pellucid.engine.progress import Progress
from pellucid.engine.prompts import chat_fitting, prompt_fitting
from pellucid.engine.request_stream import RequestStream
from pellucid.engine.shared_engine import SharedEngine
from pellucid.engine.validation import check_generates
from pellucid.errors import InvalidParameterError, PellucidError, PellucidWarning
from pellucid.outputs import PrefillOutput, RequestOutput
from pellucid.request import LogitsProcessor
from pellucid.sampling_params import SamplingParams

if TYPE_CHECKING:
    from typing import Self

    from pellucid.beam_search_params import BeamSearchOutput, BeamSearchParams
    from pellucid.pooling_params import EmbeddingOutput, PoolingParams
    from pellucid.trace.reader import TraceReader


class LLM:
    """A model that answers; as a context manager it closes itself.

    Several threads may use one: their requests share the steps, which are made by one thread at a time. A forked
    process may not; it needs an LLM of its own.

    >>> with LLM(model="smollm2:135m") as llm:
    ...     print(llm.chat([{"role": "user", "content": "Hello"}])[0].outputs[0].text)
    """

    def __init__(self, model: str = DEFAULT_MODEL, **engine_args: Any) -> None:
        """Load a model: an alias, a GGUF file or folder, or a Hugging Face repository id.

        The other arguments are the fields of `EngineArgs`. Raises `InvalidParameterError` for a name that is not
        one of them, `ModelStoreError`, `ModelFileError` or `UnsupportedModelError` where the model cannot be had.
        """
        unknown = sorted(set(engine_args) - set(engine_arg_names()))
        if unknown:
            known = ", ".join(engine_arg_names())
            raise InvalidParameterError(
                unknown[0], f"LLM does not know {', '.join(unknown)}; its arguments are {known}"
            )
        self._attach(LLMEngine.from_args(EngineArgs(model=model, **engine_args)))

    @classmethod
    def from_engine(cls, engine: LLMEngine) -> Self:
        """The same API over an engine that exists already."""
        llm = cls.__new__(cls)
        llm._attach(engine)
        return llm

    @classmethod
    def from_parts(cls, model: Model, tokenizer: Any, args: EngineArgs | None = None) -> Self:
        """An LLM from a model and a tokenizer in memory."""
        return cls.from_engine(LLMEngine(model, tokenizer, args))

    def _attach(self, engine: LLMEngine) -> None:
        self._shared = SharedEngine(engine)
        if engine.saved_cache is not None and engine.saved_cache.note is not None:
            warnings.warn(engine.saved_cache.note, PellucidWarning, stacklevel=4)
        self.tokenizer: Any = engine.tokenizer
        self.config: ModelConfig = engine.config
        self.args: EngineArgs = engine.args
        self.max_model_len: int = engine.max_model_len

    @property
    def engine(self) -> LLMEngine:
        """The engine underneath. Raises `PellucidError` after `close`."""
        return self._shared.engine

    @property
    def stats(self) -> EngineStats:
        """Queues, KV blocks and counters of the engine now."""
        return self.engine.stats

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool | Progress = False,
        cache_salt: str = "",
        logits_processors: Sequence[LogitsProcessor] = (),
        trace_level: int = 0,
    ) -> list[RequestOutput]:
        """Complete one or several raw prompts; results in the order of the prompts.

        A prompt is text or a list of token ids. `sampling_params` is one for all or one for each. `progress`
        shows a bar on stderr, or is called with (finished, total). Cached prefixes are shared only under the same
        `cache_salt`. All prompts are checked before any runs. `trace_level` 1 to 3 traces the requests: `trace_reader`.

        Raises `InvalidParameterError`, or `ContextLengthExceededError` for a prompt that does not fit. A request that
        fails later ends with finish_reason "error", and the others go on.
        """
        arrival_time = time.monotonic()
        listed = listed_prompts(prompts)
        params = listed_params(sampling_params, len(listed))
        fitted = [self._fitted_prompt(prompt, one, cache_salt) for prompt, one in zip(listed, params, strict=True)]
        request_options = RequestOptions(cache_salt, logits_processors, trace_level)
        return self._shared.run(fitted, params, arrival_time, progress, request_options)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        progress: bool | Progress = False,
        cache_salt: str = "",
        logits_processors: Sequence[LogitsProcessor] = (),
        trace_level: int = 0,
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of several, through the model's chat template.

        `continue_final_message` goes on with the last message instead of opening an answer. `chat_template` replaces
        the model's own (Jinja source); `chat_template_kwargs` are further variables for it. `progress` and
        `cache_salt` and `trace_level` are as in `generate`.

        Raises `ChatTemplateError` where the template refuses the messages, and what `generate` raises.
        """
        arrival_time = time.monotonic()
        conversations = messages if is_listed_conversations(messages) else [messages]
        options = chat_options(
            add_generation_prompt, continue_final_message, chat_template, tools, chat_template_kwargs
        )
        params = listed_params(sampling_params, len(conversations))
        fitted = [
            self._fitted_chat(conversation, options, one, cache_salt)
            for conversation, one in zip(conversations, params, strict=True)
        ]
        request_options = RequestOptions(cache_salt, logits_processors, trace_level, self._template(chat_template))
        return self._shared.run(fitted, params, arrival_time, progress, request_options)

    def stream(
        self,
        prompt: Prompt | Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        cache_salt: str = "",
        logits_processors: Sequence[LogitsProcessor] = (),
        trace_level: int = 0,
    ) -> RequestStream:
        """Deltas of one answer as they come: from a raw prompt (text or ids), or from chat messages.

        The request is checked and queued here. Closing the stream early, or dropping it, aborts the request and
        frees its KV blocks. Several streams may be read in turns. Raises what `generate` and `chat` raise.
        """
        arrival_time = time.monotonic()
        params = SamplingParams() if sampling_params is None else sampling_params
        template: str | None = None
        if is_messages(prompt):
            template = self._template(chat_template)
            chat = chat_options(
                add_generation_prompt, continue_final_message, chat_template, tools, chat_template_kwargs
            )
            fitted = self._fitted_chat(prompt, chat, params, cache_salt)
        else:
            fitted = self._fitted_prompt(prompt, params, cache_salt)
        stream = RequestStream(self._shared)
        self._shared.submit(
            fitted,
            params,
            arrival_time,
            stream.inbox,
            stream.queued,
            RequestOptions(cache_salt, logits_processors, trace_level, template),
            request_id,
        )
        return stream

    def trace_reader(self, request_ids: Collection[str] | None = None, *, from_start: bool = True) -> TraceReader:
        """What was noted of traced requests, the oldest that is kept first: of all, or of those with these names.

        `read` gives the events since the last call, `lines` the trace as JSON lines. from_start: what is there already,
        too. May be used by any thread.
        """
        return self.engine.tracer.reader(request_ids, from_start=from_start)

    def _template(self, chat_template: str | None) -> str | None:
        return getattr(self.tokenizer, "chat_template", None) if chat_template is None else chat_template

    def beam_search(self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams) -> list[BeamSearchOutput]:
        """The sequences of highest probability after each raw prompt, by beam search; results in the order of prompts.

        One prompt at a time; requests of other threads wait meanwhile. Raises `InvalidParameterError`, also where the
        KV cache has no room for so many beams, and `ContextLengthExceededError` where prompt and max_tokens do not fit.
        """
        from pellucid.engine.beam_search import beam_search

        check_generates(self.config)
        outputs: list[BeamSearchOutput] = []
        for ids in encoded_prompts(
            prompts, self.tokenizer, self.config.vocab_size, self.max_model_len, params.max_tokens
        ):
            with self._shared.alone() as engine:
                outputs.append(beam_search(engine, ids, params))
        return outputs

    def prefill(
        self, prompt: Prompt | Sequence[Message], *, cache_salt: str = "", **template_options: Any
    ) -> PrefillOutput:
        """Fill the prefix cache with a prompt that will be asked for: the request that follows starts at once.

        A prompt is text, ids, or messages; those are rendered as `chat` does (`template_options` are its arguments,
        such as `continue_final_message=True`, which leaves the last message open for more). Requests of other threads
        go first. Raises what `generate` and `chat` raise.
        """
        params = SamplingParams(max_tokens=1)
        if is_messages(prompt):
            ids = self._fitted_chat(prompt, template_options, params, cache_salt).token_ids
        else:
            ids = self._fitted_prompt(prompt, params, cache_salt).token_ids
        return self._shared.prefill(ids, cache_salt)

    def embed(
        self, prompts: Prompt | Sequence[Prompt], pooling_params: PoolingParams | None = None
    ) -> list[EmbeddingOutput]:
        """One vector for each text, from an encoder (BERT) or a decoder; results in the order of the prompts.

        Raises `InvalidParameterError`, and `ContextLengthExceededError` for a text longer than max_model_len: nothing
        is cut off silently.
        """
        from pellucid.engine.embedding import embed
        from pellucid.pooling_params import checked_pooling_params

        ids = encoded_prompts(prompts, self.tokenizer, self.config.vocab_size, self.max_model_len, 0)
        with self._shared.alone() as engine:
            return embed(engine, ids, checked_pooling_params(pooling_params))

    def abort(self, request_id: str) -> None:
        """End a request; its stream gives one last output with finish_reason "abort". Unknown ids are no error."""
        self._shared.abort(request_id)

    def close(self) -> None:
        """Abort what runs, save the prefix cache where `kv_cache_save` is set, let go of the model and the KV cache.

        Raises `KVCacheFileError` where it cannot be saved; the LLM is closed then too.
        """
        self._shared.close()

    def save_kv_cache(self) -> int | None:
        """Write the prefix cache to the file of `kv_cache_save` now; gives back the number of blocks.

        None without such a file. Raises `KVCacheFileError` where it cannot be written.
        """
        with self._shared.alone() as engine:
            return engine.save_kv_cache()

    def __reduce__(self) -> NoReturn:
        raise PellucidError("an LLM cannot be copied or pickled: make one in each process that needs it")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _fitted_prompt(self, prompt: Any, params: SamplingParams, cache_salt: str) -> FittedPrompt:
        vocab_size = self.config.vocab_size
        return self._carry_out(
            prompt_fitting(prompt, params, self.tokenizer, vocab_size, self.max_model_len), cache_salt
        )

    def _fitted_chat(
        self, messages: Any, options: Mapping[str, Any], params: SamplingParams, cache_salt: str
    ) -> FittedPrompt:
        check_generates(self.config)
        return self._carry_out(chat_fitting(messages, options, params, self.tokenizer, self.max_model_len), cache_salt)

    def _carry_out(self, fitting: Fitting, cache_salt: str) -> FittedPrompt:
        """Score what a fitting asks for."""
        try:
            windows = next(fitting)
            while True:
                prompts = [FittedPrompt(ids) for ids in windows]
                params = [SCORING] * len(windows)
                outputs = self._shared.run(prompts, params, time.monotonic(), False, RequestOptions(cache_salt))
                windows = fitting.send([given_logprobs(output) for output in outputs])
        except StopIteration as done:
            fitted: FittedPrompt = done.value
            return fitted

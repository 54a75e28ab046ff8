"""What Prometheus reads. The tables say what there is; docs/serving.md is made from them.

Names are vLLM's behind `pellucid_` where vLLM has one, so that a dashboard needs a new prefix and little else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from pellucid.engine.engine_stats import EngineStats
from pellucid.engine.engine_thread import Observer
from pellucid.outputs import RequestOutput
from pellucid.server.models import Model, ModelPool

MODEL = "model_name"


class Metric(NamedTuple):
    """One metric: kind is gauge, counter or histogram."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = (MODEL,)
    buckets: tuple[float, ...] = ()


_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_LONG = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)

Reader = Callable[[EngineStats], float]

FROM_STATS: dict[Metric, Reader] = {
    Metric(
        "pellucid_num_requests_running", "gauge", "Sequences that take part in steps; n answers are n sequences."
    ): lambda stats: stats.num_running,
    Metric("pellucid_num_requests_waiting", "gauge", "Sequences that wait for a place."): lambda stats: (
        stats.num_waiting
    ),
    Metric(
        "pellucid_kv_cache_usage_perc", "gauge", "Share of the KV blocks in use by requests, 1 is all."
    ): lambda stats: stats.kv_blocks_used / stats.kv_blocks_total,
    Metric("pellucid_kv_blocks_used", "gauge", "KV blocks that unfinished requests hold."): lambda stats: (
        stats.kv_blocks_used
    ),
    Metric(
        "pellucid_kv_blocks_cached", "gauge", "Further KV blocks, kept for prompts to come until others need the room."
    ): lambda stats: stats.kv_blocks_cached,
    Metric("pellucid_kv_blocks", "gauge", "KV blocks there are."): lambda stats: stats.kv_blocks_total,
    Metric(
        "pellucid_prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache."
    ): lambda stats: stats.prefix_cache_queried_tokens,
    Metric(
        "pellucid_prefix_cache_hits_total", "counter", "Prompt tokens found there, and not computed."
    ): lambda stats: stats.prefix_cache_hit_tokens,
    Metric(
        "pellucid_prefix_cache_evicted_blocks_total",
        "counter",
        "Cached blocks given up because others needed the room.",
    ): lambda stats: stats.prefix_cache_evicted_blocks,
    Metric(
        "pellucid_num_preemptions_total", "counter", "Sequences that gave up their KV blocks to be computed again."
    ): lambda stats: stats.num_preemptions,
    Metric(
        "pellucid_spec_decode_num_draft_tokens_total", "counter", "Guesses at tokens that were verified."
    ): lambda stats: stats.spec_draft_tokens,
    Metric(
        "pellucid_spec_decode_num_accepted_tokens_total",
        "counter",
        "Guesses that came true: tokens that took no step of their own.",
    ): lambda stats: stats.spec_accepted_tokens,
    Metric("pellucid_engine_steps_total", "counter", "Forward passes of the engine."): lambda stats: stats.num_steps,
    Metric(
        "pellucid_computed_tokens_total",
        "counter",
        "Rows of all steps: prompt and output tokens, recomputed ones again.",
    ): lambda stats: stats.num_tokens_computed,
    Metric(
        "pellucid_kv_integrity_faults_total",
        "counter",
        "Checks of the idle engine that found KV blocks miscounted and emptied the cache; each is a bug to report.",
    ): lambda stats: stats.kv_integrity_faults,
}
"""Read from the engine when the page is asked for; they begin again at 0 when a model is loaded again."""

LOADED = Metric("pellucid_model_loaded", "gauge", "1 while the model is loaded.")
MEMORY = Metric(
    "pellucid_model_memory_bytes", "gauge", "What the model takes: weights, and the KV cache when it is full."
)
LOADS = Metric("pellucid_model_loads_total", "counter", "How often the model was loaded.")
EVICTIONS = Metric("pellucid_model_evictions_total", "counter", "How often it was closed to make room for another.")
FROM_POOL: dict[Metric, Callable[[Model], float]] = {
    LOADED: lambda model: model.llm is not None,
    MEMORY: lambda model: model.nbytes,
    LOADS: lambda model: model.num_loads,
    EVICTIONS: lambda model: model.num_evictions,
}

SUCCESS = Metric(
    "pellucid_request_success_total",
    "counter",
    "Answers that ended, by finish_reason: stop, length, abort (the client left, or the server ended), error.",
    (MODEL, "finished_reason"),
)
FAILURES = Metric(
    "pellucid_request_failures_total",
    "counter",
    "HTTP requests that got no answer or only a part of it, and errors told over WebSockets, by reason: the `code` of "
    "the error, or client_gone.",
    ("reason",),
)
REQUESTS = Metric("pellucid_requests_finished_total", "counter", "Requests of which all answers ended.")
PROMPT_TOKENS = Metric("pellucid_prompt_tokens_total", "counter", "Prompt tokens of requests that gave a token.")
OUTPUT_TOKENS = Metric("pellucid_generation_tokens_total", "counter", "Tokens drawn.")
HTTP = Metric("pellucid_http_requests_total", "counter", "HTTP requests answered.", ("route", "status"))
TTFT = Metric(
    "pellucid_time_to_first_token_seconds",
    "histogram",
    "TTFT: arrival at the engine to the first token; one for each finished request that gave a token.",
    buckets=_LONG,
)
TPOT = Metric(
    "pellucid_request_time_per_output_token_seconds",
    "histogram",
    "TPOT: mean time per token after the first, of the first answer; requests with two tokens or more.",
    buckets=_SHORT,
)
ITL = Metric(
    "pellucid_inter_token_latency_seconds",
    "histogram",
    "ITL: time between two neighbouring tokens of the first answer of a finished request.",
    buckets=_SHORT,
)
E2E = Metric(
    "pellucid_e2e_request_latency_seconds",
    "histogram",
    "Arrival at the engine to the last token; one for each finished request that gave a token.",
    buckets=_LONG,
)
QUEUE = Metric(
    "pellucid_request_queue_time_seconds",
    "histogram",
    "Arrival at the engine to the first step; one for each finished request that gave a token.",
    buckets=_LONG,
)
PREFILL = Metric(
    "pellucid_request_prefill_time_seconds", "histogram", "The first step to the first token; the same.", buckets=_LONG
)
DECODE = Metric(
    "pellucid_request_decode_time_seconds", "histogram", "The first token to the last one; the same.", buckets=_LONG
)
PROMPT_LENGTH = Metric("pellucid_request_prompt_tokens", "histogram", "Tokens of a prompt; the same.", buckets=_TOKENS)
OUTPUT_LENGTH = Metric(
    "pellucid_request_generation_tokens", "histogram", "Tokens of the first answer; the same.", buckets=_TOKENS
)
EMBEDDED = Metric("pellucid_embedding_inputs_total", "counter", "Texts that /v1/embeddings has given vectors of.")
EMBEDDED_TOKENS = Metric("pellucid_embedding_tokens_total", "counter", "Tokens of these texts.")
EMBEDDING_TIME = Metric(
    "pellucid_embedding_request_latency_seconds",
    "histogram",
    "Arrival of a request for embeddings to its answer; one for each that got one.",
    buckets=_LONG,
)
PREFILLED = Metric(
    "pellucid_prefilled_ahead_tokens_total", "counter", "Prompt tokens computed ahead, for /v1/prefill and type-ahead."
)
SOCKETS = Metric("pellucid_websocket_connections", "gauge", "WebSockets that are open.", ("route",))
SOCKET_MESSAGES = Metric(
    "pellucid_websocket_messages_total", "counter", "Messages that came over WebSockets.", ("route",)
)
SOCKET_CLOSES = Metric(
    "pellucid_websocket_closes_total",
    "counter",
    "WebSockets that ended, by close code (RFC 6455); 1006: the connection broke off.",
    ("route", "code"),
)
COUNTED = (
    SUCCESS, FAILURES, REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS, HTTP, TTFT, TPOT, ITL, E2E, QUEUE, PREFILL, DECODE,
    PROMPT_LENGTH, OUTPUT_LENGTH, EMBEDDED, EMBEDDED_TOKENS, EMBEDDING_TIME, PREFILLED, SOCKETS, SOCKET_MESSAGES,
    SOCKET_CLOSES,
)  # fmt: skip
METRICS = (*FROM_STATS, *FROM_POOL, *COUNTED)


@dataclass(slots=True)
class _Tally:
    """A count that goes into its counter when the page is asked for."""

    count: int = 0
    """Changed by the engine's thread alone."""
    num_told: int = 0
    """What is in the counter already; of the page alone."""


class Metrics:
    """A registry of its own, so that several servers in one process do not meet."""

    def __init__(self, models: ModelPool) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

        self._models = models
        self.registry = CollectorRegistry()
        self._made: dict[Metric, Any] = {}
        self._drawn: dict[str, _Tally] = {}
        """Tokens by model, counted at every step: a counter of the registry would take a lock and five calls."""
        for metric in COUNTED:
            if metric.kind != "histogram":
                simple = Counter if metric.kind == "counter" else Gauge
                made: Any = simple(metric.name, metric.help, metric.labels, registry=self.registry)
            else:
                made = Histogram(
                    metric.name, metric.help, metric.labels, buckets=metric.buckets, registry=self.registry
                )
            self._made[metric] = made
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        models.observe_with(self._observer)

    def _observer(self, model_name: str) -> Observer:
        for metric in COUNTED:  # 0 is a value too: a rate over a series that is not there is nothing
            if metric.labels == (MODEL,):
                self._made[metric].labels(model_name)
        return partial(self._observe, model_name, self._drawn.setdefault(model_name, _Tally()))

    def _observe(self, model_name: str, drawn: _Tally, output: RequestOutput) -> None:
        """Count a delta; called in the engine's thread, between two steps."""
        for completion in output.outputs:
            drawn.count += len(completion.token_ids)
            if completion.finish_reason is not None:
                self._made[SUCCESS].labels(model_name, completion.finish_reason).inc()
        if output.finished:
            self._observe_end(model_name, output)

    def _observe_end(self, model_name: str, output: RequestOutput) -> None:
        metrics = output.metrics
        self._made[REQUESTS].labels(model_name).inc()
        first, last = metrics.first_token_time, metrics.last_token_time
        if metrics.ttft is None or first is None or last is None:
            return
        began = metrics.first_scheduled_time or metrics.arrival_time
        self._made[PROMPT_TOKENS].labels(model_name).inc(len(output.prompt_token_ids))
        times = metrics.token_times
        for metric, value in (
            (TTFT, metrics.ttft),
            (E2E, last - metrics.arrival_time),
            (QUEUE, began - metrics.arrival_time),
            (PREFILL, first - began),
            (DECODE, last - first),
            (PROMPT_LENGTH, len(output.prompt_token_ids)),
            (OUTPUT_LENGTH, len(times)),
        ):
            self._made[metric].labels(model_name).observe(value)
        itl = self._made[ITL].labels(model_name)
        for before, after in pairwise(times):
            itl.observe(after - before)
        if len(times) > 1:
            self._made[TPOT].labels(model_name).observe((times[-1] - times[0]) / (len(times) - 1))

    def count_embeddings(self, model_name: str, num_inputs: int, num_tokens: int, seconds: float) -> None:
        """Count a request for embeddings that was answered."""
        self._made[EMBEDDED].labels(model_name).inc(num_inputs)
        self._made[EMBEDDED_TOKENS].labels(model_name).inc(num_tokens)
        self._made[EMBEDDING_TIME].labels(model_name).observe(seconds)

    def count_http(self, route: str, status: int) -> None:
        """Count an HTTP request; `route` is the pattern, not what the client wrote."""
        self._made[HTTP].labels(route, str(status)).inc()

    def count_failure(self, reason: str) -> None:
        """Count a request that failed; `reason` is one of our own words."""
        self._made[FAILURES].labels(reason).inc()

    def count_prefill(self, model_name: str, num_tokens: int) -> None:
        """Count tokens computed ahead of a request."""
        self._made[PREFILLED].labels(model_name).inc(num_tokens)

    def count_socket(self, route: str, change: int) -> None:
        """A WebSocket was opened (+1) or has ended (-1)."""
        self._made[SOCKETS].labels(route).inc(change)

    def count_socket_message(self, route: str) -> None:
        """Count a message that came over a WebSocket."""
        self._made[SOCKET_MESSAGES].labels(route).inc()

    def count_socket_close(self, route: str, code: int) -> None:
        """Count a WebSocket that ended."""
        self._made[SOCKET_CLOSES].labels(route, str(code)).inc()

    def collect(self) -> Iterator[Any]:
        """For the registry: what engines and pool know themselves, read when it is asked for."""
        loaded = [(model.name, llm.stats) for model, llm in self._models.loaded()]
        for metric, read in FROM_STATS.items():
            yield _family(metric, [(name, read(stats)) for name, stats in loaded])
        for metric, tell in FROM_POOL.items():
            yield _family(metric, [(model.name, tell(model)) for model in self._models.models])

    def page(self) -> tuple[bytes, str]:
        """The text and its content type."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        for model_name, drawn in list(self._drawn.items()):
            count = drawn.count
            self._made[OUTPUT_TOKENS].labels(model_name).inc(count - drawn.num_told)
            drawn.num_told = count
        return generate_latest(self.registry), CONTENT_TYPE_LATEST


def _family(metric: Metric, values: list[tuple[str, float]]) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    kind = GaugeMetricFamily if metric.kind == "gauge" else CounterMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels)
    for name, value in values:
        family.add_metric([name], float(value))
    return family

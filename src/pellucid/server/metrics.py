"""What Prometheus reads. The table says what there is; docs/serving.md is made from it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from pellucid.engine.async_llm import AsyncLLM
from pellucid.outputs import RequestOutput


class Metric(NamedTuple):
    """One metric: kind is gauge, counter or histogram."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_LONG = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)

RUNNING = Metric("pellucid_sequences_running", "gauge", "Sequences in the running set.")
WAITING = Metric("pellucid_sequences_waiting", "gauge", "Sequences that wait for a place.")
KV_USED = Metric("pellucid_kv_blocks_used", "gauge", "KV blocks in use.")
KV_TOTAL = Metric("pellucid_kv_blocks", "gauge", "KV blocks there are.")
KV_RATIO = Metric("pellucid_kv_cache_usage_ratio", "gauge", "KV blocks in use, divided by those there are.")
STEPS = Metric("pellucid_engine_steps_total", "counter", "Steps of the engine.")
PREEMPTIONS = Metric("pellucid_preemptions_total", "counter", "Sequences that gave up their KV blocks for others.")
FINISHED = Metric(
    "pellucid_answers_total",
    "counter",
    "Answers that ended, by finish_reason: stop, length, abort, error.",
    ("reason",),
)
REQUESTS = Metric("pellucid_requests_finished_total", "counter", "Requests of which all answers ended.")
PROMPT_TOKENS = Metric("pellucid_prompt_tokens_total", "counter", "Prompt tokens of requests that gave a token.")
OUTPUT_TOKENS = Metric("pellucid_output_tokens_total", "counter", "Tokens drawn.")
HTTP = Metric("pellucid_http_requests_total", "counter", "HTTP requests answered.", ("route", "status"))
TTFT = Metric(
    "pellucid_time_to_first_token_seconds",
    "histogram",
    "TTFT: arrival at the engine to the first token; one for each finished request that gave a token.",
    buckets=_LONG,
)
TPOT = Metric(
    "pellucid_time_per_output_token_seconds",
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
    "pellucid_request_seconds",
    "histogram",
    "Arrival at the engine to the last token; one for each finished request that gave a token.",
    buckets=_LONG,
)
GAUGES = (RUNNING, WAITING, KV_USED, KV_TOTAL, KV_RATIO)
FROM_STATS = (*GAUGES, STEPS, PREEMPTIONS)
COUNTED = (FINISHED, REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS, HTTP, TTFT, TPOT, ITL, E2E)
METRICS = (*FROM_STATS, *COUNTED)


class Metrics:
    """A registry of its own, so that several servers in one process do not meet."""

    def __init__(self, async_llm: AsyncLLM) -> None:
        from prometheus_client import CollectorRegistry, Counter, Histogram

        self._async_llm = async_llm
        self.registry = CollectorRegistry()
        self._made: dict[str, Any] = {}
        for metric in COUNTED:
            if metric.kind == "counter":
                made: Any = Counter(metric.name, metric.help, metric.labels, registry=self.registry)
            else:
                made = Histogram(metric.name, metric.help, buckets=metric.buckets, registry=self.registry)
            self._made[metric.name] = made
        self.registry.register(self)
        async_llm.observer = self.observe

    def observe(self, output: RequestOutput) -> None:
        """Count a delta; called in the engine's thread."""
        num_tokens = sum(len(completion.token_ids) for completion in output.outputs)
        if num_tokens:
            self._made[OUTPUT_TOKENS.name].inc(num_tokens)
        for completion in output.outputs:
            if completion.finish_reason is not None:
                self._made[FINISHED.name].labels(completion.finish_reason).inc()
        if output.finished:
            self._observe_end(output)

    def _observe_end(self, output: RequestOutput) -> None:
        metrics, made = output.metrics, self._made
        made[REQUESTS.name].inc()
        if metrics.ttft is None or metrics.last_token_time is None:
            return
        made[PROMPT_TOKENS.name].inc(len(output.prompt_token_ids))
        made[TTFT.name].observe(metrics.ttft)
        made[E2E.name].observe(metrics.last_token_time - metrics.arrival_time)
        times = metrics.token_times
        for before, after in pairwise(times):
            made[ITL.name].observe(after - before)
        if len(times) > 1:
            made[TPOT.name].observe((times[-1] - times[0]) / (len(times) - 1))

    def count_http(self, route: str, status: int) -> None:
        """Count an HTTP request; `route` is the pattern, not what the client wrote."""
        self._made[HTTP.name].labels(route, str(status)).inc()

    def collect(self) -> Iterator[Any]:
        """For the registry: what the engine knows itself, read when it is asked for."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        stats = self._async_llm.stats
        values = {
            RUNNING: stats.num_running,
            WAITING: stats.num_waiting,
            KV_USED: stats.kv_blocks_used,
            KV_TOTAL: stats.kv_blocks_total,
            KV_RATIO: stats.kv_blocks_used / stats.kv_blocks_total,
            STEPS: stats.num_steps,
            PREEMPTIONS: stats.num_preemptions,
        }
        for metric, value in values.items():
            family = GaugeMetricFamily if metric.kind == "gauge" else CounterMetricFamily
            yield family(metric.name, metric.help, value=value)

    def page(self) -> tuple[bytes, str]:
        """The text and its content type."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return generate_latest(self.registry), CONTENT_TYPE_LATEST

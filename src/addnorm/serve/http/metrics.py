"""Metrics for Prometheus, with vLLM's names after the prefix `addnorm_`."""

from collections.abc import Callable
from time import monotonic

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from addnorm.serve.supervisor import Supervisor

FIRST = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)
BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 1.0, 2.5)
WHOLE = (0.05, 0.1, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""The bounds of the histograms, in seconds."""

MODEL = ("model_name",)


class Metrics:
    """The metrics of a server; all labels have fixed sets of values."""

    def __init__(self) -> None:
        disable_created_metrics()
        self._registry = registry = CollectorRegistry()

        def gauge(name: str, meaning: str) -> Gauge:
            return Gauge(f"addnorm_{name}", meaning, MODEL, registry=registry)

        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(f"addnorm_{name}", meaning, (*MODEL, *labels), registry=registry)

        def histogram(name: str, meaning: str, bounds: tuple[float, ...]) -> Histogram:
            return Histogram(f"addnorm_{name}", meaning, MODEL, registry=registry, buckets=bounds)

        self._running = gauge("num_requests_running", "Sequences in the present step.")
        self._waiting = gauge("num_requests_waiting", "Requests that wait.")
        self._cache = gauge("kv_cache_usage_perc", "The share of the pages in use; 1 is all.")
        self._set_aside = gauge("num_preemptions", "Sequences set aside for lack of pages.")
        self._near_ties = gauge("num_near_ties", "Greedy choices of two logits within 1e-4.")
        self._drafted = gauge("spec_decode_num_draft_tokens", "Tokens drafted and verified.")
        self._accepted = gauge("spec_decode_num_accepted_tokens", "Those that were right.")
        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts.")
        self.cached_tokens = counter("prompt_tokens_cached", "Those found in the prefix cache.")
        self.generation_tokens = counter("generation_tokens", "Tokens generated.")
        self.finished = counter("request_success", "Answers by their end.", "finished_reason")
        self.rejected = counter("requests_rejected", "Requests refused, by reason.", "reason")
        self.first_token = histogram("time_to_first_token_seconds", "Until the first token.", FIRST)
        self.between = histogram("inter_token_latency_seconds", "Between two tokens.", BETWEEN)
        self.whole = histogram("e2e_request_latency_seconds", "Whole requests.", WHOLE)

    def watch(self, model: str, supervisor: Supervisor) -> None:
        """Export the load of an engine."""

        def read(figure: str) -> Callable[[], float]:
            return lambda: 0.0 if supervisor.stats is None else getattr(supervisor.stats, figure)

        def usage() -> float:
            stats = supervisor.stats
            return 0.0 if stats is None else stats.pages / max(stats.pages_in_all, 1)

        self._running.labels(model).set_function(read("running"))
        self._waiting.labels(model).set_function(read("waiting"))
        self._cache.labels(model).set_function(usage)
        self._set_aside.labels(model).set_function(read("set_aside"))
        self._near_ties.labels(model).set_function(read("near_ties"))
        self._drafted.labels(model).set_function(read("drafted"))
        self._accepted.labels(model).set_function(read("accepted"))

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class Clock:
    """Measures the times of one request."""

    def __init__(self, metrics: Metrics, model: str) -> None:
        self._metrics, self._model = metrics, model
        self._start = monotonic()
        self._last: dict[int, float] = {}

    def tokens(self, index: int, n: int) -> None:
        """Count the new tokens of an answer."""
        now = monotonic()
        if not self._last:
            self._metrics.first_token.labels(self._model).observe(now - self._start)
        elif index in self._last and n:
            self._metrics.between.labels(self._model).observe((now - self._last[index]) / n)
        self._last[index] = now
        self._metrics.generation_tokens.labels(self._model).inc(n)

    def end(self) -> None:
        """Record the end of the request."""
        self._metrics.whole.labels(self._model).observe(monotonic() - self._start)

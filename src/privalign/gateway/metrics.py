"""Prometheus metrics in a registry of their own.

They count what clients saw, by model, and show the accounts as the ledger states them: all of it is covered by the guarantee
of the accounts. Why a request failed is not told apart, since a scorer may fail depending on the protected data; nothing
is labelled with what a client sent.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from privalign.ledger import Account
from privalign.types import Release

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Metrics:
    """What has happened since this process started, and the accounts as they stand."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._responses = self._counter("responses", "HTTP responses by route and class of status.", "route", "status")
        self._answers = self._counter("requests", "Requests for answers by model and what became of them.", "model", "outcome")
        self._candidates = self._counter("candidates", "Candidates drawn for released answers.", "model")
        self._tokens = self._counter("tokens", "Tokens of released answers, all candidates included, as reported.", "model", "kind")
        self._seconds = Histogram(
            "privalign_request_seconds", "Time of requests for answers.", ["model"], registry=self._registry, buckets=_SECONDS
        )
        self._under_way = self._gauge("under_way", "Requests for answers under way.")
        self._epsilon = self._gauge("account_epsilon", "ε of an account's guarantee.", "account", "kind")
        self._queries = self._gauge("account_queries", "Queries of an account.", "account", "state")

    def responded(self, route: str, status: int) -> None:
        """Counts a response; of its status only the class."""
        self._responses.labels(route, f"{status // 100}xx").inc()

    def answered(self, model: str, outcome: str, seconds: float, releases: Iterable[Release] = ()) -> None:
        """Counts a request for answers of a served model, and what its releases took."""
        self._answers.labels(model, outcome).inc()
        self._seconds.labels(model).observe(seconds)
        for release in releases:
            self._candidates.labels(model).inc(release.drawn)
            if release.usage is not None:
                self._tokens.labels(model, "prompt").inc(release.usage.prompt_tokens)
                self._tokens.labels(model, "completion").inc(release.usage.completion_tokens)

    def exposition(self, accounts: Iterable[Account], under_way: int) -> bytes:
        """Everything, in Prometheus's text format."""
        self._under_way.set(under_way)
        for account in accounts:
            values = {"total": account.rule.epsilon, "spent": account.spent[0], "remaining": account.remaining[0]}
            for kind, value in values.items():
                self._epsilon.labels(account.name, kind).set(value)
            counts = {"settled": account.settled_queries, "open": account.open_queries, "refused": account.refused_queries}
            for state, count in counts.items():
                self._queries.labels(account.name, state).set(count)
        return generate_latest(self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"privalign_{name}", text, labels, registry=self._registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"privalign_{name}", text, labels, registry=self._registry)

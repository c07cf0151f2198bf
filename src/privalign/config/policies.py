"""`[policies.*]` tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from privalign.config.tables import Table, resolve_proxy, resolve_secret
from privalign.policies.protocol import Policy


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A `[policies.*]` table: `make` builds the policy, reading its secrets."""

    name: str
    kind: str
    make: Callable[[], Policy]


def read_policy(name: str, table: Table) -> PolicySpec:
    if table.flag("independent_of_accounts") is not True:
        raise table.wrong(
            "independent_of_accounts",
            "must be true: confirm that the policy was not tuned, prompted or cached on protected data; if it was, there is no guarantee",
        )
    kind = table.choice("kind", tuple(_KINDS))
    make = _KINDS[kind](table)
    table.close()
    return PolicySpec(name, kind, table.located(make))


def _openai(table: Table) -> Callable[[], Policy]:
    url, model, key, proxy = table.text("base_url"), table.text("model"), table.secret("api_key"), table.proxy()
    options = {
        "parameters": table.mapping("parameters", {}),
        "timeout": table.duration("timeout", 600.0),
        "retries": table.whole("retries", 3),
        "concurrency": table.whole("concurrency", 64),
    }

    def make() -> Policy:
        from privalign.policies.openai import OpenAIPolicy

        return OpenAIPolicy(url, model, api_key=resolve_secret(key), proxy=resolve_proxy(proxy), **options)

    return make


def _transformers(table: Table) -> Callable[[], Policy]:
    model = table.text("model")
    options = {
        "device": table.text("device", None),
        "dtype": table.text("dtype", "auto"),
        "batch": table.whole("batch", 16),
        "parameters": table.mapping("parameters", {}),
    }

    def make() -> Policy:
        from privalign.policies.transformers import TransformersPolicy

        return TransformersPolicy(model, **options)

    return make


def _llamacpp(table: Table) -> Callable[[], Policy]:
    from privalign.policies.llamacpp import check_slots

    model = table.path("model", None)
    options = {
        "slots": table.whole("slots", 16),
        "context": table.whole("context", 2048),
        "parameters": table.mapping("parameters", {}),
    }
    with table.naming():
        check_slots(options["slots"], options["context"])

    def make() -> Policy:
        from privalign.policies.llamacpp_chat import LlamaCppChatPolicy

        return LlamaCppChatPolicy(model, **options)

    return make


def _recorded(table: Table) -> Callable[[], Policy]:
    file, order = table.path("file"), table.choice("draw", ("first", "without", "with"), "first")

    def make() -> Policy:
        from privalign.policies.recorded import DrawOrder, RecordedFilePolicy

        assert file is not None
        return RecordedFilePolicy(file, DrawOrder(order))

    return make


_KINDS: dict[str, Callable[[Table], Callable[[], Policy]]] = {
    "openai": _openai,
    "transformers": _transformers,
    "llamacpp": _llamacpp,
    "recorded": _recorded,
}

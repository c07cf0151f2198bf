"""`[policies.*]` tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from privalign.deployment.tables import Table, resolve_proxy, resolve_secret
from privalign.errors import InvalidFile
from privalign.policies.protocol import Policy


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A `[policies.*]` table: `make` builds the policy, reading its secrets; `hint` is what to try where it does not answer."""

    name: str
    kind: str
    make: Callable[[], Policy]
    hint: str = ""


def read_policy(name: str, table: Table) -> PolicySpec:
    table.confirm(
        "independent_of_accounts",
        "the policy was not tuned, prompted or cached on protected data; if it was, there is no guarantee",
    )
    kind = table.choice("kind", tuple(_KINDS))
    make = _KINDS[kind](table)
    table.close()
    return PolicySpec(name, kind, table.located(make), _hint(table.text("base_url")) if kind == "openai" else "")


def _hint(url: str) -> str:
    """Servers of this API answer under `/v1`, and elsewhere with a bare 404."""
    bare = url.rstrip("/")
    return "" if bare.endswith("/v1") else f"base_url does not end with /v1, under which most servers answer: is it {bare}/v1?"


def _openai(table: Table) -> Callable[[], Policy]:
    url, model, key, proxy = table.text("base_url"), table.text("model"), table.secret("api_key"), table.proxy()
    options = {
        "parameters": table.mapping("parameters", {}),
        "timeout": table.duration("timeout", 600.0),
        "retries": table.index("retries", 3),
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
    template = table.path("chat_template", None)

    def make() -> Policy:
        from privalign.policies.transformers import TransformersPolicy

        return TransformersPolicy(model, **options, chat_template=None if template is None else _read(template))

    return make


def _read(template: Path) -> str:
    try:
        return template.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise InvalidFile(str(template), None, "the chat template cannot be read; give a Jinja file") from None


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

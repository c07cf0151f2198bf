"""The OpenAPI document against what is served: schemathesis makes requests from it, good and bad, and finds no 5xx."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from privalign.accounting.rules import Fsrc

schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis; get it with: pip install schemathesis")
checks = pytest.importorskip("schemathesis.specs.openapi.checks")
PATHS = {"/v1/chat/completions", "/v1/models", "/v1/models/{model}", "/healthz", "/readyz", "/metrics"}


@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_schemathesis_finds_nothing(gateway: Callable[..., Any], mode: str) -> None:
    running = gateway(rule=Fsrc(1e6, 1e-2, 1e-6), burst=10**6)
    schema = schemathesis.openapi.from_url(f"{running.url}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    assert {operation.path for operation in operations} == PATHS
    for operation in operations:
        key = running.officer if operation.path == "/metrics" else running.key
        headers = {"Authorization": f"Bearer {key}"}
        if mode == "negative" and operation.path != "/v1/chat/completions":
            continue  # the others have nothing that could be wrong

        def check(case: Any, headers: dict[str, str] = headers) -> None:
            if isinstance(case.body, dict) and case.body.get("model") and mode == "positive":
                case.body["model"] = "aligned"  # by itself it never finds the name
                case.headers.pop("Idempotency-Key", None)  # it uses one for several bodies, which is refused rightly
            response = case.call(headers=headers)
            assert response.status_code < 500, response.text
            # it takes 5.0 for an integer, as JSON Schema does and no sampling parameter should
            case.validate_response(response, excluded_checks=[checks.positive_data_acceptance])

        strategy = operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode))
        phases = settings(
            max_examples=40,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        phases(given(case=strategy)(_one(check)))()


def _one(check: Callable[[Any], None]) -> Callable[[Any], None]:
    def one(case: Any) -> None:
        check(case)

    return one

"""What a set of settings costs, from Python; the golden values are those of the command line."""

from __future__ import annotations

from typing import Any

import pytest

from privalign.calculators import calibrated, priced
from privalign.errors import InvalidInput
from privalign.settings import parse

PRIVITP = {"mechanism": "privitp", "sigma_x": 1.0, "sigma_z": 1.0}


def test_the_cost_of_an_outcome_is_at_most_that_of_its_threshold_and_that_at_most_the_worst() -> None:
    worst = priced(parse(PRIVITP))
    known = priced(parse(PRIVITP | {"threshold": 0.5}))
    outcome = priced(parse(PRIVITP | {"threshold": 0.5, "halt": 2}))
    assert (worst["phase2"], known["phase2"]) == (None, None)
    assert outcome["phase2"] <= outcome["phase2_max"] == known["phase2_max"] <= worst["phase2_max"]
    assert outcome["kappa"] == known["kappa"] <= worst["kappa"]
    assert known["accept"] == outcome["accept"]
    for facts in (worst, known, outcome):
        phase2 = facts["phase2_max"] if facts["phase2"] is None else facts["phase2"]
        assert facts["epsilon"] == pytest.approx(facts["phase1"]["exact"] + phase2 + facts["slack"])


@pytest.mark.parametrize("mechanism", ["privbon", "privbon-gaussian", "privitp"])
def test_calibrated_noise_costs_at_most_what_was_asked(mechanism: str) -> None:
    facts = calibrated(parse({"mechanism": mechanism, "n": 4, "epsilon": 0.75}))
    noise = {name: facts[name] for name in ("scale", "sigma_x", "sigma_z") if name in facts}
    assert facts["epsilon"] <= 0.75
    assert priced(parse({"mechanism": mechanism, "n": 4, **noise}))["epsilon"] == facts["epsilon"]


@pytest.mark.parametrize(
    ("calculator", "given", "field"),
    [
        (priced, PRIVITP | {"threshold": 2.0}, "threshold"),
        (priced, PRIVITP | {"threshold": 0.5, "queries": 3, "total_delta": 1e-6}, "queries"),
        (calibrated, {"mechanism": "privbon"}, "epsilon"),
        (calibrated, {"mechanism": "privbon", "epsilon": 1.0, "queries": 3, "total_delta": 1e-6}, "queries"),
    ],
)
def test_a_fault_names_the_setting(calculator: Any, given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as fault:
        calculator(parse(given))
    fault.value.spell(str)
    assert fault.value.field == field

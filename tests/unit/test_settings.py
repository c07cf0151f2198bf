"""Sets of options: what a mechanism takes, and how a setting is called where it was written."""

from __future__ import annotations

from typing import Any

import pytest

from privalign.cli.spelling import spell_as_options
from privalign.errors import InvalidInput
from privalign.settings import MECHANISM_SETTINGS, MECHANISMS, TAKERS, parse

VALUES: dict[str, Any] = {
    "n": 3,
    "n2": 3,
    "scale": 1.0,
    "epsilon": 1.0,
    "beta": 0.1,
    "sigma_x": 1.0,
    "sigma_z": 1.0,
    "tail": 3.0,
    "delta": 1e-7,
    "threshold": 0.5,
    "halt": 1,
    "orders": [2.0],
}
NOISE: dict[str, dict[str, Any]] = {
    "privbon": {"scale": 1.0},
    "privbon-gaussian": {"scale": 1.0},
    "privitp": {"sigma_x": 1.0, "sigma_z": 1.0},
}
COMMON = sorted(set(VALUES) - set(TAKERS))


def test_every_setting_is_common_or_has_its_takers() -> None:
    assert COMMON == ["beta", "delta", "n", "n2", "tail"]
    assert set(MECHANISM_SETTINGS) <= set(VALUES)
    assert all(set(takers) < set(MECHANISMS) for takers in TAKERS.values())


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("name", VALUES)
def test_noise_and_outcomes_are_taken_or_refused_and_never_ignored(mechanism: str, name: str) -> None:
    noise = {} if name == "epsilon" else NOISE.get(mechanism, {})
    given = {"mechanism": mechanism, **noise, name: VALUES[name]}
    if name == "halt" and mechanism == "privitp":
        given["threshold"] = 0.5
    if name in COMMON or mechanism in TAKERS[name]:
        parse(given).build()
        return
    with pytest.raises(InvalidInput) as error:
        parse(given)
    assert error.value.field == name
    assert mechanism in str(error.value)
    assert all(taker in str(error.value) for taker in TAKERS[name])


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"n": 0}, "n"),
    ({"n2": 2**63, "mechanism": "itp"}, "n2"),
    ({"scale": float("nan")}, "scale"),
    ({}, "scale"),
    ({"scale": 1.0, "epsilon": 1.0}, "epsilon"),
    ({"scale": 1.0, "sigma_x": 1.0}, "sigma_x"),
    ({"delta": 1.0}, "delta"),
    ({"queries": 3}, "queries"),
    ({"mechanism": "privitp", "halt": 3}, "halt"),
    ({"mechanism": "privitp", "threshold": 0.1, "halt": 0}, "halt"),
    ({"mechanism": "privitp", "threshold": 0.1, "halt": "x"}, "halt"),
    ({"mechanism": "privitp", "orders": [1.0]}, "orders"),
    ({"mechanism": "privitp", "orders": "x"}, "orders"),
    ({"mechanism": "privitp", "sigma_x": 1.0}, "sigma_z"),
    ({"mechanism": "privitp", "sigma_x": 1.0, "epsilon": 1.0}, "epsilon"),
    ({"range": "0"}, "range"),
    ({"sensitivity": "x"}, "sensitivity"),
    ({"sensitivity": 0.1, "certificate": "c.json"}, "sensitivity"),
    ({"certificate": 3}, "certificate"),
]


@pytest.mark.parametrize(("given", "name"), WRONG, ids=range(len(WRONG)))
def test_the_edge_decides_how_a_setting_is_called(given: dict[str, Any], name: str) -> None:
    """As options they have dashes; as keys of a file neither the field nor the message has any."""
    given = {"mechanism": "privbon", **given}
    with pytest.raises(InvalidInput) as caught:
        parse(given).build()
    assert caught.value.field == name
    assert "--" not in str(caught.value)
    spell_as_options(caught.value, MECHANISM_SETTINGS)
    assert caught.value.field == "--" + name.replace("_", "-")

"""Names of columns and numbers: losses are rounded up, errors decide how many digits there are."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privalign.report import wording


@given(st.floats(1e-9, 1e9), st.sampled_from(["epsilon", "epsilon_mean", "privitp_exact", "rho", "stream_delta", "phase2_realised_mean"]))
def test_a_loss_is_never_shown_smaller_than_it_is(loss: float, key: str) -> None:
    assert loss <= float(wording.number(loss, key)) <= 1.0011 * loss


@given(st.floats(-1e300, 1e300))
def test_other_numbers_are_close(value: float) -> None:
    assert float(wording.number(value).replace("−", "-")) == pytest.approx(value, rel=5.1e-4)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (4096, "4096"),
        (-1.5, "−1.5"),
        (12345.6, "12346"),
        (1e16, "1e16"),
        (2.5e-7, "2.5e-7"),
        (math.inf, "∞"),
        (math.nan, "–"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert wording.number(value) == text


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [(12.3456, 0.8, "12.35 ± 0.80"), (-4.2, 12.0, "−4 ± 12"), (0.61234, 0.00123, "0.6123 ± 0.0012"), (3.0, 0.0, "3 ± 0")],
)
def test_digits_follow_the_error(value: float, error: float, text: str) -> None:
    assert wording.with_error(value, error) == text


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("lift_pp", "lift (points)"),
        ("fallback_percent", "fallback (%)"),
        ("sigma_over_range", "σ over range"),
        ("privitp_exact", "PrivITP exact"),
        ("phase1_true_delta", "phase 1 true δ"),
        ("something_new", "something new"),
    ],
)
def test_headings(key: str, text: str) -> None:
    assert wording.heading(key) == text


def test_cells() -> None:
    assert wording.cell("mechanism", "privbon-gaussian") == "PrivBoN (Gaussian)"
    assert wording.cell("rule", "privbon") == "privbon"
    assert wording.cell("selected", True) == "yes"
    assert wording.cell("order", None) == "–"
    assert wording.cell("range", [0, 1]) == "[0, 1]"


def test_the_terms_of_a_study_are_said_and_rounded_safely() -> None:
    settings = {"protocol": "faithful", "draw": "with", "range": [-0.25, 0.36], "prompts": 200, "sensitivity": 0.0060001, "delta": 1e-6}
    said = wording.terms(settings | {"sensitivity_source": "declared"})
    assert said == (
        "protocol faithful; draws with replacement: the pool is the policy; rewards clipped to −0.25 … 0.36, "
        "σ and β in their units; 200 prompts; "
        "Δ = 0.006001 (declared); δ = 1e-6"
    )
    assert wording.terms({"protocol": "authors", "range": [0, 1]}) == "protocol authors; rewards and σ as z-scores"
    assert "δ" not in wording.terms({"sensitivity": 1.0, "delta": 1e-6, "total_delta": 1e-5})


@pytest.mark.parametrize("value", [None, "x", [], {}, [1], [1, "x"], True])
def test_settings_of_any_kind_are_no_error(value: object) -> None:
    keys = ("protocol", "draw", "range", "prompts", "sensitivity", "delta")
    assert isinstance(wording.terms(dict.fromkeys(keys, value)), str)

"""From rows to lines: which rows make a line, which are drawn apart, which are levels."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from privalign.report.lines import described, facets, lines
from privalign.report.plans import PLANS
from privalign.studies.panels import LIFT, SERIES, Axis, Panel, Wide

PLAIN = Panel("p", "P", Axis("x", "x"), Axis("y", "y"))


def row(mechanism: str, x: Any, y: Any, **more: Any) -> dict[str, Any]:
    return {"mechanism": mechanism, "x": x, "y": y, **more}


def test_a_line_a_mechanism_in_the_order_of_x() -> None:
    drawn = lines(PLAIN, [row("bon", 4, 2.0), row("privitp", 2, 3.0), row("bon", 2, 1.0)])
    assert [line.label for line in drawn] == ["BoN", "PrivITP"]
    assert [(point.x, point.y) for point in drawn[0].points] == [(2.0, 1.0), (4.0, 2.0)]


def test_settings_that_vary_tell_lines_apart_and_share_the_hue() -> None:
    drawn = lines(PLAIN, [row("itp", 2, 9.0), *(row("privitp", 2, y, sigma=sigma) for sigma, y in ((0.1, 8.0), (0.5, 7.0)))])
    assert [line.label for line in drawn] == ["ITP", "PrivITP, σ = 0.1", "PrivITP, σ = 0.5"]
    looks = [line.look for line in drawn[1:]]
    assert looks[0].colour != looks[1].colour
    assert looks[0].marker != looks[1].marker
    assert looks[1].colour == lines(PLAIN, [row("privitp", 2, 1.0)])[0].look.colour


def test_further_settings_are_figures_of_their_own() -> None:
    rows = [row("privbon", 2, 1.0, sigma=sigma, task=task) for sigma in (0.1, 0.2) for task in ("gsm8k", "math500")]
    parts = facets(PLAIN, rows)
    assert [name for name, _ in parts] == ["task = gsm8k", "task = math500"]
    assert all(len(lines(PLAIN, part)) == 2 for _, part in parts)


def test_a_setting_that_follows_x_is_neither() -> None:
    rows = [row("privbon", x, 1.0, scale=1 / x) for x in (1, 2, 4)]
    assert [name for name, _ in facets(PLAIN, rows)] == [""]
    assert len(lines(PLAIN, rows)) == 1


def test_what_cannot_be_drawn_is_left_out() -> None:
    logarithmic = Panel("p", "P", Axis("x", "x", log=2), Axis("y", "y"))
    bad = [None, math.nan, math.inf, "three", True, 0, -1]
    assert lines(logarithmic, [row("bon", x, 1.0) for x in bad]) == []
    assert lines(PLAIN, [row("bon", 1, y) for y in bad[:5]]) == []
    assert lines(PLAIN, []) == []
    assert lines(PLAIN, [{}]) == []


def test_an_error_bar_that_cannot_be_drawn_is_left_out() -> None:
    panel = Panel("p", "P", Axis("x", "x"), Axis("y", "y"), "e")
    rows = [row("bon", x, 1.0, e=error) for x, error in enumerate([0.5, -0.5, math.nan, None])]
    (line,) = lines(panel, rows)
    assert [point.error for point in line.points] == [0.5, None, None, None]


def test_a_rule_that_answers_nothing_stays_in_the_figure() -> None:
    (basic,) = lines(PLANS["composition"][0], [{"rule": "basic", "sigma": 0.1, "answered_mean": 0.0, "answered_sd": 0.0}])
    assert basic.points[0].y == 0


def test_rows_without_x_are_levels_in_every_figure() -> None:
    panel = PLANS["matched"][0]
    shown = {"epsilon_target": None, "queries": None, "lift_pp": 12.0}
    rows = [{"mechanism": "itp", **shown}, {"mechanism": "bon", **shown}]
    rows += [{"mechanism": "privbon", "epsilon_target": 1.0, "queries": queries, "lift_pp": 3.0} for queries in (1, 100)]
    parts = facets(panel, rows)
    assert [name for name, _ in parts] == ["queries = 1", "queries = 100"]
    for _, part in parts:
        drawn = lines(panel, part)
        assert [line.points[0].is_level for line in drawn] == [True, True, False]
    assert "ITP: 12 throughout" in described(panel, lines(panel, parts[0][1]))


def test_the_base_policy_is_a_level_where_it_has_one_row() -> None:
    rows = [{"mechanism": "base", "n": 1, "lift_pp": 0.0}, *({"mechanism": "bon", "n": n, "lift_pp": 1.0} for n in (2, 4))]
    base, bon = lines(LIFT, rows)
    assert base.points[0].is_level
    assert [point.x for point in bon.points] == [2, 4]


def test_columns_as_lines() -> None:
    panel = Panel(
        "p",
        "P",
        Axis("n", "n"),
        Axis("seconds", "s"),
        by=("mechanism", SERIES),
        wide=(Wide("a", "privitp", "charged", error="a_se"), Wide("b", "privitp", "published")),
    )
    rows = [{"n": n, "a": 1.0 * n, "a_se": 0.5, "b": 2.0 * n} for n in (1, 2)]
    ((name, part),) = facets(panel, rows)
    drawn = lines(panel, part)
    assert name == ""
    assert [line.label for line in drawn] == ["PrivITP, charged", "PrivITP, published"]
    assert [point.error for point in drawn[0].points] == [0.5, 0.5]
    assert drawn[1].points[1].y == 4.0


def test_a_loss_is_rounded_up_in_words_too() -> None:
    panel = Panel("p", "P", Axis("n", "n"), Axis("epsilon", "ε"))
    assert "1.001 at 2" in described(panel, lines(panel, [{"mechanism": "privbon", "n": 2, "epsilon": 1.00001}]))


def test_words_name_ends_and_top() -> None:
    drawn = lines(PLAIN, [row("bon", 1, 0.0), row("bon", 2, 5.0), row("bon", 3, 1.0)])
    assert described(PLAIN, drawn) == "y against x. BoN: 0 at 1, 1 at 3, highest 5 at 2."


ANYTHING = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)
KEYS = (
    "mechanism",
    "rule",
    "n",
    "sigma",
    "beta",
    "lift_pp",
    "lift_se_pp",
    "proxy_mean",
    "epsilon_target",
    "queries",
    "model",
    "bound",
    "regret",
)


@given(st.lists(st.dictionaries(st.sampled_from(KEYS), ANYTHING), max_size=6), st.sampled_from(sorted(PLANS)))
def test_no_rows_are_an_error(rows: list[dict[str, Any]], kind: str) -> None:
    for panel in PLANS[kind]:
        for _, part in facets(panel, rows):
            for line in lines(panel, part):
                assert line.points
                assert all(math.isfinite(point.y) for point in line.points)

"""Figures: one look per mechanism, told apart without colour; the notice on each; figures of known kinds, none of others."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from privalign.report import figures, style
from privalign.report.plans import PLANS
from privalign.settings import MECHANISMS
from privalign.studies.study import NOTICE, Study

RULES = ("basic", "fsrc", "two-counter", "renyi")
PNG = b"\x89PNG\r\n\x1a\n"


def luminance(colour: str) -> float:
    """WCAG's relative luminance."""
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("names", [MECHANISMS, RULES])
def test_every_name_has_a_look_that_is_told_apart_without_colour(names: tuple[str, ...]) -> None:
    looks = [style.look(name) for name in names]
    assert len({look.marker for look in looks}) == len(looks)
    assert len({look.colour for look in looks}) == len(looks)


def test_no_rule_looks_like_a_mechanism() -> None:
    assert not {style.look(name).colour for name in RULES} & {style.look(name).colour for name in MECHANISMS}


@pytest.mark.parametrize("name", [*MECHANISMS, *RULES])
def test_colours_stand_out_from_white(name: str) -> None:
    assert 1.05 / (luminance(style.look(name).colour) + 0.05) >= 2.95  # the reddish purple of Okabe and Ito has 2.98


def test_variants_of_a_mechanism_differ_in_marker() -> None:
    looks = [style.look("privitp", variant, 5) for variant in range(5)]
    assert len({look.marker for look in looks}) == len({look.colour for look in looks}) == 5


def test_unknown_names_have_looks_too() -> None:
    looks = [style.look(f"new-{place}", place=place) for place in range(5)]
    assert len({look.colour for look in looks}) == 5


def rows(**more: Any) -> list[dict[str, Any]]:
    values = {"lift_pp": 1.0, "lift_se_pp": 0.1, "true_mean": 0.5, "proxy_mean": 0.6, "gold_win_rate": 0.6} | more
    return [{"mechanism": name, "n": n, **values} for name, n in itertools.product(("bon", "privitp"), (2, 4))]


@pytest.mark.slow
def test_a_comparison_has_its_four_figures() -> None:
    study = Study("comparison", "T", {}, rows(), 1.0)
    drawn = list(figures.drawings(study, "01-comparison", NOTICE))
    assert [drawing.name for drawing in drawn] == [f"01-comparison-{part}" for part in ("lift", "proxy", "gap", "gold-win-rate")]
    lift = drawn[0]
    assert lift.png.startswith(PNG)
    assert "± 1 standard error" in lift.caption
    assert "BoN: 1 at 2, 1 at 4." in lift.description
    assert ET.fromstring(lift.svg).tag.endswith("svg")
    assert drawn[1].caption == ""


def test_figures_without_their_columns_are_left_out() -> None:
    study = Study("comparison", "T", {}, rows(gold_win_rate=None, lift_pp=None), 1.0)
    assert [drawing.name for drawing in figures.drawings(study, "x", NOTICE)] == ["x-proxy", "x-gap"]
    assert not figures.can_compare(study)


@pytest.mark.parametrize("kind", ["new", *PLANS])
def test_no_rows_no_figures(kind: str) -> None:
    assert list(figures.drawings(Study(kind, "T", {}, [], 1.0), "x", NOTICE)) == []


@pytest.mark.slow
def test_rings_levels_theory_and_the_diagonal() -> None:
    ablation = [{"mechanism": "privbon", "sigma": s, "lift_pp": 1.0, "selected": s == 0.1} for s in (0.1, 0.2)]
    (lift,) = figures.drawings(Study("ablation-sigma", "T", {}, ablation, 1.0), "x", NOTICE)
    assert lift.caption == "ring: chosen on the tuning prompts"
    gap = [{"mechanism": "bon", "n": n, "gap": 0.1 * n, "gap_se": 0.01, "asymptotic": 0.2 * n} for n in (2, 4)]
    (drawn,) = figures.drawings(Study("hacking-gap", "T", {}, gap, 1.0), "x", NOTICE)
    assert "theory, n → ∞" in drawn.svg
    regret = [{"mechanism": "privbon", "bound": b, "regret": 0.1, "unmet": "n is small", "model": "gaussian"} for b in (1.0, 1e16)]
    (drawn,) = figures.drawings(Study("regret", "T", {}, regret, 1.0), "x", NOTICE)
    assert "regret = bound" in drawn.svg
    assert "not met" in drawn.caption
    assert "1 rows off the axes are not drawn" in drawn.caption  # a bound of 1e16 would press all others together


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"protocol": "authors"}, {"range": [-0.25, 0.36]}])
def test_no_gap_between_numbers_of_different_units(settings: dict[str, Any]) -> None:
    for range_ in ([0, 1], [0.0, 1.0]):
        study = Study("comparison", "T", {"range": range_, **settings}, rows(), 1.0)
        assert "x-gap" not in [drawing.name for drawing in figures.drawings(study, "x", NOTICE)]
    study = Study("comparison", "T", {"protocol": "faithful", "range": [0.0, 1.0]}, rows(), 1.0)
    assert "x-gap" in [drawing.name for drawing in figures.drawings(study, "x", NOTICE)]


def test_both_ends_of_a_logarithmic_axis_are_named() -> None:
    ablation = [{"mechanism": "privbon", "sigma": s, "lift_pp": 1.0} for s in (1.0, 5.0, 8.0, 10.0)]
    (lift,) = figures.drawings(Study("ablation-sigma", "T", {}, ablation, 1.0), "x", NOTICE)
    ticks = lift.svg.split('id="matplotlib.axis_2"')[0]
    assert [value for value in (1, 5, 8, 10) if f"<!-- {value} -->" in ticks] == [1, 5, 10]


def test_the_notice_is_on_every_figure() -> None:
    study = Study("comparison", "T", {}, rows(), 1.0)
    for drawing in [*figures.drawings(study, "x", NOTICE), figures.comparison_grid([study, study], "g", NOTICE)]:
        assert NOTICE in " ".join(drawing.svg.split())


def test_extremes_are_drawn_or_left_out() -> None:
    extremes = (1e199, -1e199, 1e308, 1e-320, 1e-199, 0.0, 10.0**300)
    regret = [{"mechanism": "privbon", "bound": value, "regret": value, "regret_se": value} for value in extremes]
    (drawn,) = figures.drawings(Study("regret", "T", {}, regret, 1.0), "x", NOTICE)
    assert drawn.png.startswith(PNG)
    lift = [{"mechanism": "bon", "n": n, "lift_pp": value, "lift_se_pp": 1e-320} for n, value in enumerate(extremes)]
    assert list(figures.drawings(Study("comparison", "T", {}, lift, 1.0), "x", NOTICE))


def test_levels_alone_are_no_error() -> None:
    alone = [{"mechanism": "base", "n": 1, "lift_pp": 0.0, "proxy_mean": 0.5}, {"mechanism": "bon", "n": 2, "lift_pp": None}]
    study = Study("comparison", "T", {}, alone, 1.0)
    assert [drawing.name for drawing in figures.drawings(study, "x", NOTICE)] == ["x-lift", "x-proxy"]


def test_many_lines_with_long_names_make_a_taller_figure() -> None:
    many = [{"mechanism": f"mechanism {'of a long name ' * 9}{i}", "n": n, "lift_pp": i} for i in range(30) for n in (2, 4)]
    (drawn,) = figures.drawings(Study("comparison", "word " * 400, {}, many, 1.0), "x", NOTICE)
    assert "…" in drawn.description
    height = float(drawn.svg.split('height="')[1].split("pt")[0])
    assert height > 72 * figures.SIZE[1] + 100


def test_names_from_files_are_neither_mathematics_nor_markup() -> None:
    study = Study("comparison", "<b>$x_1$</b> & \u6f22", {}, rows(), 1.0)
    grid = figures.comparison_grid([study], "g", NOTICE)
    assert ET.fromstring(grid.svg) is not None
    assert "<b>" not in grid.svg.split("<desc>")[1].split("</desc>")[0]


def test_an_inline_figure_has_ids_of_its_own_and_the_colours_of_the_page() -> None:
    (drawing, *_) = figures.drawings(Study("comparison", "T", {}, rows(), 1.0), "x", NOTICE)
    element = style.inline(drawing.svg, "f1", 'a "label" & more')
    tree = ET.fromstring(element)
    ids = [node.get("id") for node in tree.iter() if node.get("id")]
    assert ids
    assert all(str(name).startswith("f1-") for name in ids)
    assert tree.get("aria-label") == 'a "label" & more'
    assert tree.get("width") is None
    assert style.INK not in element
    for reference in (part.split(")")[0] for part in element.split("url(#")[1:]):
        assert reference in ids
    for node in tree.iter():
        target = node.get("{http://www.w3.org/1999/xlink}href")
        assert target is None or target.removeprefix("#") in ids

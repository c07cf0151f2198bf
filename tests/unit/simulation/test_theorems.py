"""The studies' parts against other ways to the same number: known constants, the core's laws, brute force."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from privalign.acceptance import default_tail
from privalign.evaluation import expectations
from privalign.mechanisms.itp import ITP
from privalign.mechanisms.privbon import PrivBoN
from privalign.mechanisms.privitp import PrivITP
from privalign.simulation import theorems
from privalign.simulation.simulate import Model, Simulation
from privalign.studies.study import Study, read_study


def test_largest_of_few_normals() -> None:
    assert theorems.largest_normal(1) == pytest.approx(0, abs=1e-12)
    assert theorems.largest_normal(2) == pytest.approx(1 / math.sqrt(math.pi), abs=1e-12)
    assert theorems.largest_normal(3) == pytest.approx(1.5 / math.sqrt(math.pi), abs=1e-12)
    assert theorems.largest_normal(4096) < math.sqrt(2 * math.log(4096))


def test_rounds_on_a_population_of_two() -> None:
    """Three rounds by hand: accepted at p = 0.4 and 0.1, else a base draw."""
    population = theorems.Population(np.array([0.25, 0.75]), np.array([0.9, 0.2]), np.array([1.0, 0.5]))
    truth, proxy = population.after_rounds(np.array([[0.4, 0.1], [0.0, 0.0]]), 3)
    total = 0.25 * 0.4 + 0.75 * 0.1
    any_accepted = 1 - (1 - total) ** 3
    assert truth[0] == pytest.approx(any_accepted * (0.1 * 1.0 + 0.075 * 0.5) / total + (1 - any_accepted) * 0.625)
    assert proxy[0] == pytest.approx(any_accepted * (0.1 * 0.9 + 0.075 * 0.2) / total + (1 - any_accepted) * 0.375)
    assert (truth[1], proxy[1]) == (pytest.approx(0.625), pytest.approx(0.375))


def test_tilted_gaussian_without_much_clipping() -> None:
    """π₀·exp(r̂/σ) of N(½, s²) is N(½ + s²/σ, s²); E[r*] moves by τ²/σ. Midpoints of cells cost about h²/12σ."""
    truth, proxy = theorems.Population.of(Simulation(Model.GAUSSIAN, 0.05, 0.05)).tilted(0.1)
    assert truth == pytest.approx(0.525, abs=1e-5)
    assert proxy == pytest.approx(0.55, abs=1e-5)


def test_choosers_of_one_pool_are_the_core_laws() -> None:
    truth, proxy = Simulation(Model.GAUSSIAN).draw(np.random.default_rng(0), (3, 8))
    chosen, scored = theorems.privbon(0.1)(truth, proxy)
    best, highest = theorems.bon(truth, proxy)
    for pool in range(3):
        law = expectations.privbon(PrivBoN(8, 0.1), proxy[pool])
        assert chosen[pool] == pytest.approx(law @ truth[pool])
        assert scored[pool] == pytest.approx(law @ proxy[pool])
        assert best[pool] == truth[pool, proxy[pool].argmax()]
        assert highest[pool] == proxy[pool].max()


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("model", [Model.HEAVY, Model.SATURATING])
def test_rounds_on_fresh_candidates_are_the_core_laws(model: Model) -> None:
    """Phase 2 in closed form against the core's law on 800 recorded pools, paired by phase 1: 5 standard errors, 6e-7 each of 8."""
    law, n, pools = Simulation(model, 0.1, 0.1), 6, 800
    truth, proxy = law.draw(np.random.default_rng(3), (pools, 2 * n + 1))
    proxy = np.clip(proxy, 0.0, 1.0)
    population = theorems.Population.of(law)
    mechanism = PrivITP(n, n, 0.1, 0.05, 0.08, default_tail(n))
    pairs = [
        (theorems.privitp(population, 0.1, 0.05, 0.08), [expectations.privitp(mechanism, pool, 1.0) for pool in proxy]),
        (theorems.itp(population, 0.1), [expectations.itp(ITP(n, n, 0.1), pool, 1.0) for pool in proxy]),
    ]
    for choose, laws in pairs:
        for expected, values in zip(choose(truth[:, :n], proxy[:, :n]), (truth, proxy), strict=True):
            difference = (np.array(laws) * values).sum(axis=1) - expected
            assert abs(difference.mean()) < 5 * difference.std() / math.sqrt(pools)


def test_crossover_is_where_the_lead_stays() -> None:
    def study(*leads: float) -> Study:
        rows = [
            {"model": "m", "mechanism": "x", "scale": None, "n": 2**place, "lead": lead, "lead_se": 0.01}
            for place, lead in enumerate(leads)
        ]
        rows.append({"model": "m", "mechanism": "bon", "scale": None, "n": 1, "lead": 0.0, "lead_se": 0.0})
        return Study("rise-and-fall", "", {}, rows, 0.0)

    key = ("m", "x", None)
    assert theorems.crossovers(study(0.1, -0.1, 0.1, 0.2)) == {key: 4}
    assert theorems.crossovers(study(0.1, 0.1)) == {key: 1}
    assert theorems.crossovers(study(-0.1, 0.04)) == {key: None}  # within chance
    assert theorems.crossovers(study(0.1, -0.1)) == {key: None}


def test_constants_are_fitted_where_conditions_hold() -> None:
    rows = [
        {"mechanism": "x", "ratio": 0.2, "unmet": ""},
        {"mechanism": "x", "ratio": 0.3, "unmet": ""},
        {"mechanism": "x", "ratio": 0.9, "unmet": "n is too small"},
    ]
    assert theorems.fitted_constants(Study("regret", "", {}, rows, 0.0)) == {"x": 0.3}


def test_documents_and_markdown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    small = theorems.hacking_gap(pools=20, sizes=(2, 4))
    for name in ("hacking_gap", "win_rate", "rise_and_fall", "regret"):
        kind = name.replace("_", "-")
        monkeypatch.setattr(theorems, name, lambda kind=kind: Study(kind, kind, small.settings, [{"n": None, "x": 0.123456}], 0.0))
    monkeypatch.setattr(theorems, "crossovers", lambda _: {("m", "privbon", 0.1): 8})
    monkeypatch.setattr(theorems, "fitted_constants", lambda _: {"privitp": 0.25})
    monkeypatch.setattr(sys, "argv", ["theorems", "--out", str(tmp_path / "studies")])
    theorems.main()
    printed = capsys.readouterr().out
    assert "not a private release" in printed
    assert "| – | 0.1235 |" in printed
    assert "- m, privbon at σ = 0.1: n* = 8" in printed
    assert "- privitp: fitted constant 0.25" in printed
    for kind in ("hacking-gap", "win-rate", "rise-and-fall", "regret"):
        assert read_study(tmp_path / "studies" / f"{kind}.json").kind == kind


def test_every_row_of_a_study_has_the_same_keys_and_is_strict_json() -> None:
    for study in (theorems.hacking_gap(pools=20, sizes=(2, 4)), theorems.win_rate(pools=20, sizes=(2, 4))):
        assert len({tuple(row) for row in study.rows}) == 1
        json.dumps(study.to_json(), allow_nan=False)

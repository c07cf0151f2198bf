"""Every reference value, in log space, to a relative 1e-12; zeros exactly.

`golden.json` was computed with 70-digit arithmetic; its inputs are decimal strings.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privalign.acceptance import AcceptanceCurve, acceptance_ratio, kappa, log_accept, log_reject
from privalign.accounting import gaussian, gumbel, rejection, theory
from privalign.accounting.gaussian_max import privbon_gaussian_epsilon
from privalign.events import FALLBACK, RejectionRounds
from privalign.intervals import round_down, sharp, upper
from privalign.mechanisms.normaliser import normaliser
from privalign.sensitivity import RewardRange, Sensitivity

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "golden.json").read_text())
RTOL = 1e-12


def close(value: float, reference: float) -> bool:
    """Equal to a relative 1e-12; a reference of 0 asks for exactly 0."""
    return value == 0 if reference == 0 else math.isclose(value, reference, rel_tol=RTOL, abs_tol=0)


def log_close(log_value: float, reference: float) -> bool:
    """A logarithm that agrees with the log of the reference to 1e-12·max(1, |log|); a reference of 0 has underflowed."""
    if reference == 0:
        return log_value < math.log(5e-324)
    return abs(log_value - math.log(reference)) <= RTOL * max(1.0, abs(math.log(reference)))


def cases(name: str) -> list[Any]:
    return [pytest.param(entry, id=f"{name}-{number}") for number, entry in enumerate(GOLDEN[name])]


def numbers(entry: dict[str, Any], *names: str) -> list[float]:
    return [float(entry[name]) for name in names]


@pytest.mark.parametrize("entry", cases("privitp"))
def test_privitp(entry: dict[str, Any]) -> None:
    width, delta, beta, sigma_x, sigma_z, tail, threshold = numbers(entry, "R", "Delta", "beta", "sigma_X", "sigma_Z", "L", "lambda_tilde")
    rounds = RejectionRounds(Sensitivity(delta, RewardRange(0, width)), beta, sigma_z, tail, entry["n"])
    curve = AcceptanceCurve(threshold, width, sigma_z, tail)
    assert close(kappa(curve, delta), entry["kappa"])
    assert close(acceptance_ratio(curve, delta), entry["b"])
    assert close((width + sigma_z * tail - threshold) / beta, entry["M"])
    for share, probability in entry["p_acc"].items():
        reward = float(share) * width
        assert log_close(float(log_accept(reward, threshold, width, sigma_z, tail)), probability)
        assert round_down(sharp(lambda reward=reward: curve.enclose_accept(reward))) == pytest.approx(probability, rel=RTOL, abs=0)
    for share, probability in entry["p_rej"].items():
        reward = float(share) * width
        assert log_close(float(log_reject(reward, threshold, width, sigma_z, tail)), probability)
        assert close(upper(lambda reward=reward: curve.enclose_reject(reward)), probability)
    for time, cost in entry["eps2_post"].items():
        assert close(rejection.ex_post_epsilon(rounds, threshold, int(time)), cost)
    assert close(rejection.ex_post_epsilon(rounds, threshold, FALLBACK), entry["fallback"])
    assert close(rejection.worst_halt_epsilon(rounds, threshold), entry["eps2_max"])
    assert close(kappa(AcceptanceCurve(-beta, width, sigma_z, tail), delta), entry["kappa_at_minus_beta"])
    assert close(acceptance_ratio(AcceptanceCurve(width - beta, width, sigma_z, tail), delta), entry["b_at_R_minus_beta"])
    assert close(rejection.interval_epsilon(rounds), entry["eps2_max_loose_sup_over_clamped_lambda"])
    for delta_1, values in entry["eps1"].items():
        mu = delta / sigma_x
        assert close(gaussian.published_gaussian_epsilon(mu, float(delta_1)), values["classical"])
        assert close(gaussian.analytic_gaussian_epsilon(mu, float(delta_1)), values["analytic"])
        assert close(gaussian.pdp_gaussian_epsilon(mu, float(delta_1)), values["pdp"])
        assert close(gaussian.gaussian_delta(values["classical"], mu), values["true_delta_at_classical"])
    assert close((delta / sigma_x) ** 2 / 2, entry["zcdp_phase1"])
    for order, divergence in entry.get("rdp_phase2_exact", {}).items():
        assert close(rejection.renyi_at(rounds, threshold, float(order)), divergence)


@pytest.mark.parametrize("entry", cases("privbon_gumbel_eps"))
def test_privbon(entry: dict[str, Any]) -> None:
    width, delta, scale = numbers(entry, "R", "Delta", "sigma")
    n = entry["n"]
    assert close(gumbel.privbon_epsilon(delta, width, scale, n), entry["eps_exact"])
    assert close(gumbel.privbon_epsilon_bound(delta, scale), entry["eps_bound"])
    assert close(gumbel.bounded_range(delta, width, scale, n), entry["bounded_range_eta"])
    assert close(gumbel.privbon_rho(delta, width, scale, n), entry["rho_zcdp"])


@pytest.mark.parametrize("entry", cases("privbon_gaussian_eps_eq26"))
def test_privbon_gaussian(entry: dict[str, Any]) -> None:
    width, delta, scale = numbers(entry, "R", "Delta", "sigma")
    assert close(privbon_gaussian_epsilon(delta, width, scale, entry["n"]), entry["eps"])


@pytest.mark.parametrize("entry", cases("analytic_gaussian"))
def test_analytic_gaussian(entry: dict[str, Any]) -> None:
    mu, delta = numbers(entry, "mu", "delta")
    assert close(gaussian.analytic_gaussian_epsilon(mu, delta), entry["eps"])
    assert close(gaussian.pdp_gaussian_epsilon(mu, delta), entry["pdp_eps"])


@pytest.mark.parametrize("entry", cases("itp_lambda"))
def test_normaliser(entry: dict[str, Any]) -> None:
    rewards = np.array([float(reward) for reward in entry["rewards"]])
    value, reference = normaliser(rewards, float(entry["beta"])), entry["lambda"]
    # the inputs' own rounding is worth a few units in the last place of the largest number involved
    scale = max(np.abs(rewards).max(), float(entry["beta"]))
    assert abs(value - reference) <= RTOL * max(abs(reference), 1e-3 * scale)


@pytest.mark.parametrize("entry", cases("phase2_halting"))
def test_halting_law(entry: dict[str, Any]) -> None:
    width, sigma_z, tail, threshold = numbers(entry, "R", "sigma_Z", "L", "lambda_tilde")
    log_survival = 0.0
    for reward, probability in zip(entry["q"], entry["halting_probs"], strict=True):
        accept = float(log_accept(float(reward), threshold, width, sigma_z, tail))
        assert log_close(log_survival + accept, probability)
        log_survival += float(log_reject(float(reward), threshold, width, sigma_z, tail))
    assert log_close(log_survival, entry["fallback"])


def test_theory() -> None:
    misc = GOLDEN["misc"]
    assert close(theory.free_privacy_epsilon(0.1, 0.35, 2.0), misc["eps_star_0.35_0.1_2"])
    ratio = gaussian.published_gaussian_epsilon(1.0, 1e-5) / gaussian.published_gaussian_epsilon(1.0, 1e-2)
    assert close(ratio, misc["delta_ratio_1e-5_over_1e-2"])
    for entry in misc["winrate_limit"]:
        deviation, scale = float(entry["sigma_r"]), float(entry["sigma"])
        assert close(theory.privbon_win_rate(deviation, scale), entry["value"])
        assert close(theory.privbon_hacking_gap(deviation, scale), entry["hack_gap"])
    for scale, published in zip(misc["table6_sigma_over_R"], (7.8, 0.78), strict=True):
        assert close(gumbel.privbon_epsilon_bound(1.0, scale), published)

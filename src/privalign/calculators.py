"""What a set of settings costs, and the noise that a cost needs: facts, from public settings only. Every bound is rounded up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from privalign import statements
from privalign.acceptance import acceptance_ratio, kappa
from privalign.accounting import costs, gaussian, gumbel, rejection
from privalign.accounting.composition import compose
from privalign.accounting.gaussian_max import privbon_gaussian_epsilon
from privalign.accounting.renyi import DEFAULT_ORDERS
from privalign.errors import InvalidInput, setting
from privalign.events import Composed, RejectionRounds
from privalign.settings import NOISE_OPTIONS, Settings


def priced(settings: Settings) -> dict[str, Any]:
    """What one query, or many, cost: the document of `epsilon`.

    Raises:
        InvalidInput: a setting is missing or out of range.
    """
    mechanism = settings.build()
    release = settings.sensitivity.release
    if release is not None:
        free = {"epsilon": 0.0, "slack": 0.0, "guarantee": f"free: {statements.of_release(release)}"}
        return {"mechanism": settings.mechanism, **settings.sensitivity.stated(), **free}
    facts: dict[str, Any] = {"mechanism": settings.mechanism, **settings.sensitivity.stated()}
    event = mechanism.event(settings.sensitivity)
    if settings.mechanism == "base":
        facts |= {"epsilon": 0.0, "slack": 0.0}
    elif settings.mechanism not in NOISE_OPTIONS:
        facts |= {"n": settings.n, "epsilon": None, "guarantee": statements.NO_GUARANTEE}
    elif settings.mechanism == "privitp":
        event, part = _privitp(settings, mechanism)
        facts |= part
    else:
        facts |= _noisy_max(settings, mechanism, costs.epsilon(event, settings.delta))
    if settings.queries is not None and settings.total_delta is not None:
        if settings.threshold is not None:
            raise InvalidInput("queries", f"a stream is priced before any threshold exists; leave out {setting('threshold')}")
        composed = compose(event, settings.queries, settings.total_delta)
        facts["queries"], facts["total_delta"] = settings.queries, settings.total_delta
        facts["composed"] = {
            "basic": composed.basic,
            "pld": composed.pld,
            "renyi": composed.renyi,
            "zcdp": composed.zcdp,
            "best": composed.best,
        }
    return facts


def calibrated(settings: Settings) -> dict[str, Any]:
    """The least noise at which one query costs at most ε: the document of `calibrate`.

    Raises:
        InvalidInput: a setting is missing, out of range, or not one of calibration.
    """
    for name in ("scale", "sigma_x", "sigma_z", "threshold", "halt", "orders", "queries", "total_delta"):
        if getattr(settings, name) is not None:
            raise InvalidInput(setting(name), "not an option of calibrate; leave it out")
    if settings.epsilon is None:
        raise InvalidInput("epsilon", "missing; give the ε that one query may cost")
    if settings.sensitivity.release is not None:
        raise InvalidInput("certificate", f"nothing to calibrate: {statements.of_release(settings.sensitivity.release)}")
    settings.with_noise(settings.sensitivity.width)  # refuses what cannot be calibrated before any search
    scale = settings.calibrated(settings.epsilon)
    achieved = costs.epsilon(settings.with_noise(scale).event(settings.sensitivity), settings.delta)
    noise = {name: scale for name in NOISE_OPTIONS[settings.mechanism]}
    facts = {"mechanism": settings.mechanism, "n": settings.n, **noise, "epsilon": achieved, **settings.sensitivity.stated()}
    if settings.mechanism == "privitp":
        facts |= {"n2": settings.n2, "beta": settings.beta, "tail": settings.tail, "delta": settings.delta}
    return facts


def _noisy_max(settings: Settings, mechanism: Any, charged: float) -> dict[str, Any]:
    s, scale = settings.sensitivity, mechanism.scale
    if settings.mechanism == "privbon-gaussian":
        exact = privbon_gaussian_epsilon(s.delta, s.width, scale, settings.n)
        return {"n": settings.n, "scale": scale, "epsilon": charged, "slack": max(0.0, charged - exact)}
    exact = gumbel.privbon_epsilon(s.delta, s.width, scale, settings.n)
    return {
        "n": settings.n,
        "scale": scale,
        "epsilon": charged,
        "epsilon_bound": gumbel.privbon_epsilon_bound(s.charged, scale),
        "bounded_range": gumbel.bounded_range(s.charged, s.width, scale, settings.n),
        "zcdp_rho": gumbel.privbon_rho(s.charged, s.width, scale, settings.n),
        "slack": max(0.0, charged - exact),
    }


def _privitp(settings: Settings, mechanism: Any) -> tuple[Any, dict[str, Any]]:
    release, rounds = mechanism.event(settings.sensitivity).events
    rounds, phase2 = _phase2(settings, rounds)
    outcome, worst = phase2["phase2"], phase2["phase2_max"]
    delta = settings.delta
    event = Composed((release, rounds))
    orders = settings.orders or DEFAULT_ORDERS
    ratio = settings.sensitivity.delta / mechanism.sigma_x
    exact = gaussian.analytic_gaussian_epsilon(ratio, delta)
    charged = costs.epsilon(event, delta)
    return event, {
        "n": settings.n,
        "n2": settings.n2,
        "beta": settings.beta,
        "sigma_x": mechanism.sigma_x,
        "sigma_z": mechanism.sigma_z,
        "tail": settings.tail,
        "threshold": settings.threshold,
        "kappa": phase2["kappa"],
        "accept": phase2["accept"],
        "phase1": {
            "exact": exact,
            "pdp": gaussian.pdp_gaussian_epsilon(ratio, delta),
            "classical": gaussian.classical_gaussian_epsilon(ratio, delta),
        },
        "phase2": outcome,
        "phase2_max": worst,
        "renyi": {"orders": list(orders), "cost": list(costs.renyi(event, orders))},
        "epsilon": charged,
        "slack": max(0.0, charged - exact - (worst if outcome is None else outcome)),
        "delta": delta,
    }


def _phase2(settings: Settings, rounds: RejectionRounds) -> tuple[RejectionRounds, dict[str, Any]]:
    """The rounds at what is known of λ̃ and t, and what they cost."""
    s, threshold, halt = settings.sensitivity, settings.threshold, settings.halt
    if threshold is None:
        worst, accept = rejection.worst_ingredients(rounds)
        return rounds, {"kappa": worst, "accept": accept, "phase2": None, "phase2_max": rejection.worst_case_epsilon(rounds)}
    low, high = -settings.beta, s.width - settings.beta
    if not low <= threshold <= high:
        raise InvalidInput("threshold", f"{threshold:g} is not in [−β, R − β] = [{low:g}, {high:g}]")
    realised = replace(rounds, threshold=threshold, halt=halt)
    curve = rejection.curve_at(realised, threshold)
    return realised, {
        "kappa": kappa(curve, s.charged),
        "accept": acceptance_ratio(curve, s.charged),
        "phase2": None if halt is None else rejection.ex_post_epsilon(realised, threshold, halt),
        "phase2_max": rejection.worst_halt_epsilon(realised, threshold),
    }

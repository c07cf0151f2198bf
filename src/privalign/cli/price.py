"""`epsilon` and `calibrate`: the calculators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from privalign.cli import options
from privalign.cli.output import print_facts, print_json, to_json, working
from privalign.cli.spelling import spell_as_options
from privalign.errors import InvalidFile, InvalidInput, setting
from privalign.settings import NOISE_OPTIONS, Settings, parse, read_lines


def epsilon(
    mechanism: options.Mechanism,
    n: options.N = None,
    n2: options.N2 = None,
    range: options.Range = None,
    sensitivity: options.SensitivityOption = None,
    certificate: options.Certificate = None,
    scale: options.Scale = None,
    epsilon: options.Epsilon = None,
    beta: options.Beta = None,
    sigma_x: options.SigmaX = None,
    sigma_z: options.SigmaZ = None,
    tail: options.Tail = None,
    delta: options.Delta = None,
    threshold: Annotated[
        float | None, typer.Option(help="Realised λ̃ of privitp, in units shifted to [0, R].  [required with --halt]", show_default=False)
    ] = None,
    halt: Annotated[
        str | None, typer.Option(help="Realised halting time, or 'fallback'.", metavar="T|fallback", show_default=False)
    ] = None,
    orders: Annotated[str | None, typer.Option(help="Rényi orders, comma-separated.", show_default=False)] = None,
    queries: Annotated[
        int | None, typer.Option(help="Compose this many identical queries.  [required with --total-delta]", show_default=False)
    ] = None,
    total_delta: Annotated[float | None, typer.Option(help="δ of the whole stream.  [required with --queries]", show_default=False)] = None,
    from_file: options.From = None,
    json: options.Json = False,
) -> None:
    """What one query, or many, cost: exact ε, Rényi, zCDP, composition. Every bound is rounded up."""
    raw = {name: value for name, value in locals().items() if name not in ("from_file", "json")}
    _run(raw, from_file, json, priced, f"ε of {mechanism}")


def calibrate(
    mechanism: options.Mechanism,
    epsilon: Annotated[
        float | None,
        typer.Option("--epsilon", help="ε that one query may cost.  [required, here or in every line of --from]", show_default=False),
    ] = None,
    n: options.N = None,
    n2: options.N2 = None,
    range: options.Range = None,
    sensitivity: options.SensitivityOption = None,
    certificate: options.Certificate = None,
    beta: options.Beta = None,
    tail: options.Tail = None,
    delta: options.Delta = None,
    from_file: options.From = None,
    json: options.Json = False,
) -> None:
    """The least noise at which one query costs at most ε, worst case. Never above the target."""
    raw = {name: value for name, value in locals().items() if name not in ("from_file", "json")}
    _run(raw, from_file, json, calibrated, f"noise of {mechanism}")


def priced(settings: Settings) -> dict[str, Any]:
    """The document of `epsilon`."""
    from privalign import statements
    from privalign.accounting import costs
    from privalign.accounting.composition import compose

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
            raise InvalidInput("--queries", "a stream is priced before any threshold exists; leave out --threshold")
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
    """The document of `calibrate`."""
    from privalign import statements
    from privalign.accounting import costs

    for name in ("scale", "sigma_x", "sigma_z", "threshold", "halt", "orders", "queries", "total_delta"):
        if getattr(settings, name) is not None:
            raise InvalidInput(setting(name), "not an option of calibrate; leave it out")
    if settings.epsilon is None:
        raise InvalidInput("--epsilon", "missing; give the ε that one query may cost")
    if settings.sensitivity.release is not None:
        raise InvalidInput("--certificate", f"nothing to calibrate: {statements.of_release(settings.sensitivity.release)}")
    settings.with_noise(settings.sensitivity.width)  # refuses what cannot be calibrated before any search
    scale = settings.calibrated(settings.epsilon)
    achieved = costs.epsilon(settings.with_noise(scale).event(settings.sensitivity), settings.delta)
    noise = {name: scale for name in NOISE_OPTIONS[settings.mechanism]}
    facts = {"mechanism": settings.mechanism, "n": settings.n, **noise, "epsilon": achieved, **settings.sensitivity.stated()}
    if settings.mechanism == "privitp":
        facts |= {"n2": settings.n2, "beta": settings.beta, "tail": settings.tail, "delta": settings.delta}
    return facts


def _noisy_max(settings: Settings, mechanism: Any, charged: float) -> dict[str, Any]:
    from privalign.accounting import gumbel
    from privalign.accounting.gaussian_max import privbon_gaussian_epsilon

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
    from privalign.acceptance import acceptance_ratio, kappa
    from privalign.accounting import costs, gaussian, rejection
    from privalign.accounting.renyi import DEFAULT_ORDERS
    from privalign.events import Composed

    release, rounds = mechanism.event(settings.sensitivity).events
    s, delta = settings.sensitivity, settings.delta
    if settings.threshold is None:
        kappa_value, accept = rejection.worst_ingredients(rounds)
        worst = rejection.worst_case_epsilon(rounds)
        outcome = None
    else:
        if not -settings.beta <= settings.threshold <= s.width - settings.beta:
            raise InvalidInput(
                "--threshold", f"{settings.threshold:g} is not in [−β, R − β] = [{-settings.beta:g}, {s.width - settings.beta:g}]"
            )
        rounds = rounds.at(settings.threshold, settings.halt)
        curve = rejection.curve_at(rounds, settings.threshold)
        kappa_value, accept = kappa(curve, s.charged), acceptance_ratio(curve, s.charged)
        worst = rejection.worst_halt_epsilon(rounds, settings.threshold)
        outcome = None if settings.halt is None else rejection.ex_post_epsilon(rounds, settings.threshold, settings.halt)
    event = Composed((release, rounds))
    orders = settings.orders or DEFAULT_ORDERS
    ratio = s.delta / mechanism.sigma_x
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
        "kappa": kappa_value,
        "accept": accept,
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


def _run(raw: Mapping[str, Any], file: Path | None, as_json: bool, document: Callable[[Settings], dict[str, Any]], title: str) -> None:
    """One set of options, or every line of a file; nothing is printed unless all of them are good."""
    if file is None:
        with working("pricing"):
            facts = document(parse(raw))
        if as_json:
            print_json(facts)
        else:
            print_facts(title, facts)
        return
    lines = []
    with working("pricing"):
        for number, line in read_lines(file, raw):
            try:
                lines.append(to_json(document(parse(line))))
            except InvalidInput as error:
                spell_as_options(error, line.keys() | raw.keys())
                raise InvalidFile(str(file), number, str(error)) from None
    typer.echo("\n".join(lines))

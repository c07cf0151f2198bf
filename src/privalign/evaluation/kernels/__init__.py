"""Compiled loops of `evaluate`, over prompts: vectorised twins of the mechanisms, by kinds of mechanism. What they read: `common`."""

from privalign.evaluation.kernels.common import (
    COST,
    FALLBACK,
    GOLD,
    GOLD_WIN,
    HALTING,
    PAYOFFS,
    PROXY,
    VARIANCE,
    WIN,
    Counts,
    Floats,
    Places,
)
from privalign.evaluation.kernels.noisy_max import best_of, gaussian_without, noisy_best_with, softmax_without
from privalign.evaluation.kernels.pools import prepare
from privalign.evaluation.kernels.published import Singles, authors_comparison
from privalign.evaluation.kernels.rejection import itp_with, privitp_with, threshold_of, thresholds
from privalign.evaluation.kernels.sequential import Four, reuse, rounds_without
from privalign.evaluation.kernels.streams import draws_with, draws_without, queries_without, stream

__all__ = [
    "COST",
    "FALLBACK",
    "GOLD",
    "GOLD_WIN",
    "HALTING",
    "PAYOFFS",
    "PROXY",
    "VARIANCE",
    "WIN",
    "Counts",
    "Floats",
    "Four",
    "Places",
    "Singles",
    "authors_comparison",
    "best_of",
    "draws_with",
    "draws_without",
    "gaussian_without",
    "itp_with",
    "noisy_best_with",
    "prepare",
    "privitp_with",
    "queries_without",
    "reuse",
    "rounds_without",
    "softmax_without",
    "stream",
    "threshold_of",
    "thresholds",
]

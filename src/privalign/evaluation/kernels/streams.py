"""Counter-based random streams, and the draws that kernels read."""

from __future__ import annotations

import numpy as np

from privalign.evaluation.kernels.common import GOLDEN, Counts, Places, compiled

_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31, _S11 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(11)


@compiled
def mixed(z: np.uint64) -> np.uint64:
    """The output function of SplitMix64 (Steele, Lea & Flood 2014)."""
    z = (z ^ (z >> _S30)) * _MIX_1
    z = (z ^ (z >> _S27)) * _MIX_2
    return z ^ (z >> _S31)


@compiled
def stream(seed: int, prompt: int, replicate: int) -> np.uint64:
    """The state from which the draws of one replicate on one prompt start."""
    state = mixed(np.uint64(seed) + GOLDEN)
    state = mixed(state ^ (np.uint64(prompt) * _MIX_1 + GOLDEN))
    return mixed(state ^ (np.uint64(replicate) * _MIX_2 + GOLDEN))


@compiled
def uniform_of(state: np.uint64) -> float:
    """A float in [0, 1) of 53 bits; the next one is at `state + GOLDEN`."""
    return float(np.int64(mixed(state) >> _S11)) * 2.0**-53  # signed: one instruction


@compiled
def draws_with(offsets: Counts, length: int, replicates: int, seed: int, numbers: Counts) -> Places:
    """Positions of candidates within their pools, drawn with replacement; (P, B, length)."""
    out = np.empty((offsets.size - 1, replicates, length), np.int32)
    for p in range(offsets.size - 1):
        size = offsets[p + 1] - offsets[p]
        for b in range(replicates):
            state = stream(seed, numbers[p], b)
            for i in range(length):
                state += GOLDEN
                out[p, b, i] = np.int32(uniform_of(state) * size)
    return out


@compiled
def draw_without(state: np.uint64, pool: Places, drawn: Places) -> None:
    """Positions without replacement, in random order (Fisher–Yates); `pool` is scratch of the size of the pool."""
    size = pool.size
    for i in range(size):
        pool[i] = i
    for i in range(drawn.size):
        state += GOLDEN
        j = i + int(uniform_of(state) * (size - i))
        drawn[i] = pool[j]
        pool[j] = pool[i]


@compiled
def draws_without(offsets: Counts, length: int, replicates: int, seed: int, numbers: Counts) -> Places:
    """The first candidates of a random order of each pool; (P, B, length). Beyond the size of a pool: 0, which is no draw."""
    out = np.empty((offsets.size - 1, replicates, length), np.int32)
    for p in range(offsets.size - 1):
        pool = np.empty(offsets[p + 1] - offsets[p], np.int32)
        for b in range(replicates):
            draw_without(stream(seed, numbers[p], b), pool, out[p, b, : min(pool.size, length)])
            out[p, b, pool.size :] = 0
    return out


@compiled
def queries_without(offsets: Counts, prompts: Counts, count: int, seed: int) -> Places:
    """The first candidates of a fresh random order for each query, a prompt's number each; (Q, count)."""
    out = np.empty((prompts.size, count), np.int32)
    for query in range(prompts.size):
        pool = np.empty(offsets[prompts[query] + 1] - offsets[prompts[query]], np.int32)
        draw_without(stream(seed, prompts[query], query), pool, out[query])
    return out

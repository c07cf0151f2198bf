"""The authors' protocol."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from privalign.evaluation.kernels.common import (
    FALLBACK,
    GOLD,
    GOLDEN,
    HALTING,
    PAYOFFS,
    VARIANCE,
    Counts,
    Floats,
    Places,
    compiled,
    vectorised,
)
from privalign.evaluation.kernels.noisy_max import finished
from privalign.evaluation.kernels.rejection import threshold_of
from privalign.evaluation.kernels.streams import draw_without, mixed, stream, uniform_of

Singles = NDArray[np.float32]
_NOUGHT, _ONE = np.float32(0), np.float32(1)


@compiled
def authors_comparison(
    offsets: Counts,
    z: Floats,
    payoffs: Floats,
    base: Floats,
    ns: Counts,
    scale: float,
    beta: float,
    sigma_phase: float,
    normals: Singles,
    noise_draws: int,
    replicates: int,
    seed: int,
    numbers: Counts,
) -> Floats:
    """PrivBoN, ITP and PrivITP on one pool, as the authors' code compares them; (3, J, P, 8). Not private mechanisms.

    `z` are rewards as z-scores, `payoffs` (C, 4) as elsewhere, `base` (4,) what a fallback earns. Samples are nested over the
    ascending `ns`. Noise is read from the table `normals` of independent N(0, 1), from a random place on for each replicate and
    n: within a replicate it is independent, and the table is read many times faster than fresh normals are made.
    """
    out = np.zeros((3, ns.size, offsets.size - 1, 8))
    drawn, values, accept = np.empty(ns[-1], np.int32), np.empty(ns[-1]), np.empty(ns[-1])
    highest, shift = np.empty(noise_draws, np.float32), np.empty(noise_draws, np.float32)
    for p in range(offsets.size - 1):
        start, end = offsets[p], offsets[p + 1]
        pool = np.empty(end - start, np.int32)
        for b in range(replicates):
            state = stream(seed, numbers[p], b)
            draw_without(state, pool, drawn)
            state = mixed(state)
            for i in range(drawn.size):
                values[i] = z[start + drawn[i]]
            threshold = np.inf
            for j in range(ns.size):
                n = ns[j]
                batch = values[:n]
                threshold = threshold_of(batch, beta, threshold)
                top = batch.max()
                total = 0.0
                for i in range(n):
                    accept[i] = math.exp((batch[i] - top) / scale)
                    total += accept[i]
                gold = 0.0
                for i in range(n):
                    for c in range(PAYOFFS):
                        out[0, j, p, c] += accept[i] / total * payoffs[start + drawn[i], c]
                    gold += accept[i] / total * payoffs[start + drawn[i], GOLD]
                out[0, j, p, VARIANCE] += gold * gold
                most = max((top - threshold) / beta, 1e-8)
                for i in range(n):
                    accept[i] = min(max((batch[i] - threshold) / beta, 0.0) / most, 1.0)
                _earn(out[1, j, p], payoffs, start, drawn, accept, n, base)
                state += GOLDEN
                place = int(uniform_of(state) * (normals.size - (n + 1) * noise_draws))
                _noisy_acceptance(batch, threshold, beta, sigma_phase, normals[place:], highest, shift, accept)
                _earn(out[2, j, p], payoffs, start, drawn, accept, n, base)
    for kind in range(3):
        finished(out[kind], replicates)
    return out


@vectorised
def _noisy_acceptance(
    batch: Floats, threshold: float, beta: float, sigma: float, normals: Singles, highest: Singles, shift: Singles, accept: Floats
) -> None:
    """mean_s min(relu(r_{s,i} − λ_s)/max(max_k r_{s,k} − λ_s, 1e-8 β), 1) into `accept`; the noise of (i, s) lies at (i + 1) S + s.

    In single precision, relative to λ: an error of 1e-6, under noise drawn 150 times. Comparisons instead of min and max:
    the compiler turns only these into vector instructions.
    """
    draws, spread, floor = highest.size, np.float32(sigma), np.float32(1e-8 * beta)
    for s in range(draws):
        shift[s] = spread * normals[s]
        highest[s] = floor
    for i in range(batch.size):
        reward, row = np.float32(batch[i] - threshold), normals[(i + 1) * draws : (i + 2) * draws]
        for s in range(draws):
            above = reward + spread * row[s] - shift[s]
            highest[s] = above if above > highest[s] else highest[s]
    for s in range(draws):
        highest[s] = _ONE / highest[s]
    for i in range(batch.size):
        reward, row = np.float32(batch[i] - threshold), normals[(i + 1) * draws : (i + 2) * draws]
        total = _NOUGHT
        for s in range(draws):
            above = reward + spread * row[s] - shift[s]
            total += (above if above > _NOUGHT else _NOUGHT) * highest[s]
        accept[i] = min(float(total) / draws, 1.0)  # no term is above 1, but by rounding: `highest` is at least each of them


@compiled
def _earn(out: Floats, payoffs: Floats, start: int, drawn: Places, accept: Floats, n: int, base: Floats) -> None:
    """Adds the payoffs of sequential rounds over the first n drawn candidates, else the fallback's."""
    alive, gold = 1.0, 0.0
    for i in range(n):
        chance = alive * accept[i]
        for c in range(PAYOFFS):
            out[c] += chance * payoffs[start + drawn[i], c]
        gold += chance * payoffs[start + drawn[i], GOLD]
        out[HALTING] += alive
        alive -= chance
    for c in range(PAYOFFS):
        out[c] += alive * base[c]
    out[FALLBACK] += alive
    out[VARIANCE] += (gold + alive * base[GOLD]) ** 2

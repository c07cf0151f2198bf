"""How the paper sets PrivITP in its studies."""

from __future__ import annotations

from privalign.acceptance import default_tail
from privalign.mechanisms.privitp import PrivITP


def privitp(n: int, beta: float, sigma: float) -> PrivITP:
    """One σ in reward units, half of it for each phase; as many candidates in both."""
    return PrivITP(n, n, beta, sigma / 2, sigma / 2, default_tail(n))

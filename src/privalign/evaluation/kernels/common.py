"""Compiled loops of `evaluate`, over prompts. Each is a vectorised twin of a mechanism; the formulas are in docs/evaluate.md.

Every kernel reads a block of prompts: `offsets` (P + 1,), `q` (C,) rewards in units shifted to [0, R], ascending within a
prompt, and `payoffs` (C, 4), what each candidate is worth if it is released: gold, proxy, P[proxy beats a base draw], P[gold
beats a base draw]. Draws are taken from counter-based streams, one for each (seed, prompt, replicate): a kernel that draws more
candidates draws the same first ones (common random numbers), and no result depends on the order in which prompts are done.
Draws are made once (`draws_with`, `draws_without`: (P, B, length)) and read by all kernels. Without replacement a kernel leaves a
result at 0 where a pool has fewer candidates than one query draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from privalign.errors import MissingDependency

try:
    import numba
except ImportError:
    raise MissingDependency("evaluating needs numba; get it with: pip install 'privalign[experiments]'") from None


Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Places = NDArray[np.int32]
PAYOFFS: Final = 4
GOLD, PROXY, WIN, GOLD_WIN, FALLBACK, HALTING, COST, VARIANCE = range(8)  # columns of the results; variance is of the mean gold
_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])
NORMAL_REACH = 8.5
PER_UNIT = 64  # rows of a table of a function of a normal deviate
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
ROOT_HALF = math.sqrt(0.5)
ROOT_2PI = math.sqrt(2 * math.pi)


def compiled(function: _Kernel) -> _Kernel:
    """Compiled on first use, cached on disk across runs, without the interpreter's lock."""
    return cast(_Kernel, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def vectorised(function: _Kernel) -> _Kernel:
    """The same, and sums may be taken in any order; only where no value is infinite or NaN in what is returned."""
    return cast(_Kernel, numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz", "arcp"})(function))

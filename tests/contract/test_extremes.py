"""Every mechanism at the ends of floats: what `event` takes runs without a warning for all scores; an error leads to no score."""

from __future__ import annotations

import array
import collections
import gc
import math
import warnings
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from privalign.errors import InvalidInput, InvalidRewards
from privalign.mechanisms.bon import BoN
from privalign.mechanisms.driver import select_from_pool
from privalign.mechanisms.itp import ITP
from privalign.mechanisms.itp_reuse import ITPReuse
from privalign.mechanisms.privbon import PrivBoN
from privalign.mechanisms.privbon_gaussian import PrivBoNGaussian
from privalign.mechanisms.privitp import PrivITP
from privalign.mechanisms.protocol import Mechanism, admit, read_scores
from privalign.randomness import SecureRandomness, SeededRandomness
from privalign.sensitivity import RewardRange, Sensitivity

N, N2 = 4, 5
Make = Callable[[float, float, float, float], Mechanism]
MAKES: dict[str, Make] = {
    "bon": lambda a, b, c, t: BoN(N),
    "privbon": lambda a, b, c, t: PrivBoN(N, a),
    "privbon-gaussian": lambda a, b, c, t: PrivBoNGaussian(N, a),
    "itp": lambda a, b, c, t: ITP(N, N2, a),
    "itp-reuse": lambda a, b, c, t: ITPReuse(N, a),
    "privitp": lambda a, b, c, t: PrivITP(N, N2, a, b, c, t),
}

wide = st.floats(-1070, 1020).map(lambda e: 2.0**e)
mild = st.floats(-60, 60).map(lambda e: 2.0**e)
scale = mild | wide
share = st.sampled_from([0.0, 1.0, 0.5, 0.5 + 2.0**-53, 2.0**-53, 5e-324, 1e-300]) | st.floats(0, 1)


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
@given(st.floats(-600, 53).map(lambda e: 2.0**e), scale, scale, scale, scale, st.lists(share, min_size=N + N2 + 1, max_size=N + N2 + 1))
@example(2.0**53, 2.0**400, 1.0, 1.0, 3.0, [0.0] * (N + N2 + 1))
@example(1.0, 2.0**-390, 2.0**-390, 2.0**-390, 3.0, [0.5] * (N + N2 + 1))
@example(1.0, 1e-100, 1e-100, 1e-100, 3.0, [1.0] * (N + N2 + 1))
@settings(max_examples=300, deadline=None)
def test_whatever_an_event_takes_runs_without_a_warning(
    make: Make, width: float, a: float, b: float, c: float, tail: float, shares: list[float]
) -> None:
    sensitivity = Sensitivity(width, RewardRange(0.0, width))
    mechanism = make(a, b, c, tail)
    try:
        mechanism.event(sensitivity)
    except InvalidInput:
        return
    pools = (np.array(shares) * width, np.zeros(N + N2 + 1), np.full(N + N2 + 1, width), np.linspace(-1, 2, N + N2 + 1) * width)
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        for noise in (SecureRandomness(), SeededRandomness(1)):
            for rewards in pools:
                selection = select_from_pool(mechanism, sensitivity, noise, rewards)
                assert 0 <= selection.index < mechanism.pool_size


# --- what is a score ---------------------------------------------------------------------------------------------------


def pandas_series(values: list[float]) -> Any:
    return pytest.importorskip("pandas").Series(values)


TAKEN: dict[str, Any] = {
    "list": [0.5, 1, 2.0],
    "tuple": (0.5, 1.0, 2.0),
    "deque": collections.deque([0.5, 1, 2.0]),
    "array": array.array("d", [0.5, 1, 2]),
    "numpy scalars": [np.float32(0.5), np.int8(1), np.uint64(2)],
    "float16": np.array([0.5, 1, 2], np.float16),
    "big endian": np.array([0.5, 1, 2], ">f8"),
    "strided": np.array([0.5, 9, 1, 9, 2, 9])[::2],
}
REFUSED: dict[str, Any] = {
    "long doubles": np.array([0.5, 1, 2], np.longdouble),
    "long double in a list": [np.longdouble(0.5), 1.0, 2.0],
    "masked": np.ma.masked_array([0.5, 1, 2], [False, True, False]),
    "masked in a list": [0.5, np.ma.masked, 2.0],
    "booleans": np.array([True, False, True]),
    "boolean among floats": [0.5, True, 2.0],
    "boolean among floats of a deque": collections.deque([0.5, True, 2.0]),
    "numpy boolean": [0.5, np.True_, 2.0],
    "objects": np.array([0.5, 1, 2], object),
    "huge numbers as objects": np.array([2**80, 1, 2], object),
    "0-d in a list": [np.array(0.5), 1.0, 2.0],
    "0-d": np.array(0.5),
    "text": "abc",
    "bytes as text": ["0.5", "1", "2"],
    "complex": [0.5, 1j, 2.0],
    "nested": [[0.5], [1.0], [2.0]],
    "dates": np.array(["2020", "2021", "2022"], "datetime64[Y]"),
    "set": {0.5, 1.0, 2.0},
    "dictionary": {0.5: 1, 1.0: 2, 2.0: 3},
    "infinite": [0.5, math.inf, 2.0],
    "infinite float16": np.array([0.5, np.inf, 2], np.float16),
    "not a number": [0.5, math.nan, 2.0],
    "too few": [0.5, 1.0],
    "too many": [0.5, 1.0, 2.0, 3.0],
    "none": None,
}


@pytest.mark.parametrize("scores", TAKEN.values(), ids=TAKEN)
def test_numbers_are_read(scores: Any) -> None:
    assert read_scores(scores, 3).tolist() == [0.5, 1.0, 2.0]


def test_a_series_is_read_by_its_type() -> None:
    assert read_scores(pandas_series([0.5, 1.0, 2.0]), 3).tolist() == [0.5, 1.0, 2.0]
    with pytest.raises(InvalidRewards):
        read_scores(pandas_series([0.5, True, 2.0]), 3)


@pytest.mark.parametrize("scores", REFUSED.values(), ids=REFUSED)
def test_everything_else_is_refused_without_a_word_of_it(scores: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InvalidRewards) as refusal:
            read_scores(scores, 3)
    assert "0.5" not in str(refusal.value)


@pytest.mark.parametrize("huge", [2**53 + 1, 2**64, 10**300, -(10**300)])
@pytest.mark.parametrize("others", [[], [0.5]])
def test_huge_whole_numbers_come_no_further_apart(huge: int, others: list[float]) -> None:
    sensitivity = Sensitivity(1.0, RewardRange(-(2.0**53), 2.0**53))
    one, other = (admit([huge + step, *others], sensitivity, 1 + len(others)) for step in (0, 1))
    assert abs(one - other).max() <= 1.0
    assert np.isfinite(one).all()


# --- errors after the noise ----------------------------------------------------------------------------------------------

SECRET = 0.728173645


def reaches(error: BaseException) -> bool:
    """Whether a score can be reached from an error: its frames, but for those of this test, its causes and contexts."""
    seen: set[int] = set()

    def holds(thing: Any, depth: int = 0) -> bool:
        if id(thing) in seen or depth > 12:
            return False
        seen.add(id(thing))
        if isinstance(thing, float | np.floating):
            return math.isclose(float(thing), SECRET, rel_tol=1e-6)
        if isinstance(thing, str):
            return "0.7281" in thing
        if isinstance(thing, np.ndarray):
            return bool(thing.dtype.kind == "f" and np.isclose(thing, SECRET, rtol=1e-6).any())
        if isinstance(thing, TracebackType):
            return holds(thing.tb_frame, depth + 1) or holds(thing.tb_next, depth + 1)
        if isinstance(thing, FrameType):
            return thing.f_code.co_filename != __file__ and holds(dict(thing.f_locals), depth + 1)
        if isinstance(thing, dict):
            return any(holds(value, depth + 1) for value in thing.values())
        if isinstance(thing, BaseException):
            return any(
                holds(part, depth + 1) for part in (thing.args, thing.__traceback__, thing.__cause__, thing.__context__, vars(thing))
            )
        if isinstance(thing, list | tuple | set | frozenset) or type(thing).__name__ == "generator":
            return any(holds(part, depth + 1) for part in gc.get_referents(thing))
        return False

    return holds(error)


class Failing(SeededRandomness):
    """Fails after it drew, with the scores in its hands; as noise that may charge an account would."""

    private = True

    def __init__(self, error: BaseException) -> None:
        super().__init__(0)
        self._error = error

    def gumbel_argmax(self, scores: Any, scale: float) -> int:
        super().gumbel_argmax(scores, scale)
        try:
            raise KeyError(scores[0])
        except KeyError:
            raise self._error  # noqa: B904  # with the score in its context

    gaussian_argmax = gumbel_argmax

    def gaussian_cell(self, value: float, scale: float, edges: Any) -> int:
        return self.gumbel_argmax(np.array([value]), scale)


@pytest.mark.parametrize("name", ["privbon", "privbon-gaussian", "privitp"])
@pytest.mark.parametrize(
    ("raised", "seen"),
    [
        (lambda: ValueError(f"could not divide {SECRET}"), RuntimeError),
        (lambda: FloatingPointError(SECRET), ArithmeticError),
        (lambda: MemoryError(), RuntimeError),
        (lambda: InvalidInput("scale", "no"), InvalidInput),
        (lambda: KeyboardInterrupt(), KeyboardInterrupt),
        (lambda: SystemExit(3), SystemExit),
    ],
)
def test_an_error_after_the_noise_leads_to_no_score(name: str, raised: Any, seen: type[BaseException]) -> None:
    sensitivity, pool = Sensitivity(1.0, RewardRange(0.0, 1.0)), [SECRET] * (N + N2 + 1)
    with pytest.raises(seen) as failure:
        select_from_pool(MAKES[name](0.1, 0.1, 0.1, 3.0), sensitivity, Failing(raised()), pool)
    assert failure.value.__cause__ is failure.value.__context__ is None
    assert not reaches(failure.value)


def test_the_walker_finds_what_is_there() -> None:
    def scored(rewards: list[float]) -> None:
        raise ValueError

    with pytest.raises(ValueError) as failure:
        scored([SECRET])
    scored.__code__ = scored.__code__.replace(co_filename="elsewhere")
    with pytest.raises(ValueError) as failure:
        scored([SECRET])
    assert reaches(failure.value)
    assert reaches(KeyError(SECRET))

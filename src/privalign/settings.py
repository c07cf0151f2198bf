"""From settings, typed as options or read from a file, to mechanisms and sensitivities."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privalign.errors import InvalidFile, InvalidInput, setting

if TYPE_CHECKING:
    from privalign.events import Halt
    from privalign.mechanisms.protocol import Mechanism
    from privalign.sensitivity import Sensitivity

MECHANISMS = ("bon", "privbon", "privbon-gaussian", "itp", "itp-reuse", "privitp", "base")
NOISE_OPTIONS = {
    "privbon": ("scale",),
    "privbon-gaussian": ("scale",),
    "privitp": ("sigma_x", "sigma_z"),
}
# which mechanisms take which setting of noise or outcome; the others are common to all: scripts give the same n2, β, L and δ to every
# mechanism that they compare
TAKERS: dict[str, tuple[str, ...]] = {
    "scale": ("privbon", "privbon-gaussian"),
    "epsilon": tuple(NOISE_OPTIONS),
    **dict.fromkeys(("sigma_x", "sigma_z", "threshold", "halt", "orders"), ("privitp",)),
}
MECHANISM_SETTINGS = ("n", "n2", "scale", "epsilon", "beta", "sigma_x", "sigma_z", "tail", "delta")  # those that `build` needs
_WHOLE = ("n", "n2", "queries")
_REAL = ("scale", "epsilon", "beta", "sigma_x", "sigma_z", "tail", "delta", "total_delta", "threshold")
_LARGEST = 2**62  # of whole numbers: far beyond every use, and still a float
_OTHER = ("mechanism", "range", "sensitivity", "certificate", "halt", "orders")


@dataclass(frozen=True, slots=True)
class Settings:
    """One set of options, checked for type and presence; what is out of range is refused where it is used."""

    mechanism: str
    sensitivity: Sensitivity
    n: int
    n2: int
    beta: float
    tail: float
    delta: float
    scale: float | None = None
    sigma_x: float | None = None
    sigma_z: float | None = None
    epsilon: float | None = None
    total_delta: float | None = None
    queries: int | None = None
    threshold: float | None = None
    halt: Halt | None = None
    orders: tuple[float, ...] | None = None

    def with_noise(self, scale: float) -> Mechanism:
        """The mechanism at this noise scale (σ; σ_X = σ_Z for privitp)."""
        from privalign.mechanisms.privbon import PrivBoN
        from privalign.mechanisms.privbon_gaussian import PrivBoNGaussian
        from privalign.mechanisms.privitp import PrivITP

        if self.mechanism == "privbon":
            return PrivBoN(self.n, scale)
        if self.mechanism == "privbon-gaussian":
            return PrivBoNGaussian(self.n, scale)
        if self.mechanism == "privitp":
            return PrivITP(self.n, self.n2, self.beta, scale, scale, self.tail)
        raise InvalidInput(
            "mechanism", f"{self.mechanism} adds no noise and has no privacy to calibrate; choose privbon, privbon-gaussian or privitp"
        )

    def build(self) -> Mechanism:
        """The mechanism with the noise that was given, or calibrated to `epsilon` where that was given instead.

        Raises:
            InvalidInput: neither or both were given, or a setting is out of range.
        """
        from privalign.mechanisms.base import Base
        from privalign.mechanisms.bon import BoN
        from privalign.mechanisms.itp import ITP
        from privalign.mechanisms.itp_reuse import ITPReuse
        from privalign.mechanisms.privitp import PrivITP

        if self.mechanism not in NOISE_OPTIONS:
            quiet: dict[str, Mechanism] = {
                "base": Base(),
                "bon": BoN(self.n),
                "itp": ITP(self.n, self.n2, self.beta),
                "itp-reuse": ITPReuse(self.n, self.beta),
            }
            return quiet[self.mechanism]
        wanted = NOISE_OPTIONS[self.mechanism]
        given = [getattr(self, name) for name in wanted]
        if self.epsilon is not None:
            if any(value is not None for value in given):
                raise InvalidInput(setting("epsilon"), f"give either it or {' and '.join(setting(w) for w in wanted)}, not both")
            return self.with_noise(self.calibrated(self.epsilon))
        for name, value in zip(wanted, given, strict=True):
            if value is None:
                raise InvalidInput(setting(name), f"missing, and it has no default; give it, or {setting('epsilon')} to calibrate it")
        if self.mechanism == "privitp":
            assert self.sigma_x is not None
            assert self.sigma_z is not None
            return PrivITP(self.n, self.n2, self.beta, self.sigma_x, self.sigma_z, self.tail)
        assert self.scale is not None
        return self.with_noise(self.scale)

    def calibrated(self, epsilon: float) -> float:
        """The least noise scale at which one query costs at most `epsilon`."""
        from privalign.accounting.calibration import calibrate

        return calibrate(lambda scale: self.with_noise(scale).event(self.sensitivity), epsilon, self.delta, self.sensitivity)


def parse(raw: Mapping[str, Any], sensitivity: Sensitivity | None = None) -> Settings:
    """Checks the types of a set of options and fills in the defaults of the contract.

    Args:
        raw: keys as the options with `_`; None means not given. `range` a pair or "LO,HI"; `sensitivity` a number or
            "range"; `orders` a list or a comma-separated string; `halt` a whole number or "fallback".
        sensitivity: what is known of the reward already; None reads it from the options.

    Raises:
        InvalidInput: an unknown key, a value of the wrong type, an option that the mechanism does not take, or options
            that exclude each other.
    """
    from privalign.acceptance import default_tail

    given = {key: value for key, value in raw.items() if value is not None}
    unknown = sorted(set(given) - {*_WHOLE, *_REAL, *_OTHER})
    if unknown:
        raise InvalidInput(unknown[0], "no such option")
    for name in _WHOLE:
        if name in given and (type(given[name]) is not int or given[name] < 1):
            raise InvalidInput(setting(name), f"{given[name]!r} is not a whole number of at least 1")
        if name in given and given[name] > _LARGEST:
            raise InvalidInput(setting(name), "a whole number that is too large to be meant; give a smaller one")
    for name in _REAL:
        if name in given and not _is_finite(given[name]):
            raise InvalidInput(setting(name), f"{_brief(given[name])} is not a finite number")
    mechanism = given.get("mechanism")
    if mechanism not in MECHANISMS:
        raise InvalidInput("mechanism", f"{mechanism!r} is not one of {', '.join(MECHANISMS)}")
    _refuse_foreign(mechanism, given)
    n = given.get("n", 16)
    n2 = given.get("n2", n)
    delta = float(given.get("delta", 1e-6))
    if not 0 < delta < 1:
        raise InvalidInput(setting("delta"), f"{delta:g} is not strictly between 0 and 1")
    total_delta, queries = given.get("total_delta"), given.get("queries")
    if (total_delta is None) != (queries is None):
        raise InvalidInput(setting("queries"), f"it and {setting('total_delta')} belong together; give both")
    threshold, halt = given.get("threshold"), _halt(given.get("halt"))
    if halt is not None and threshold is None:
        raise InvalidInput(setting("halt"), f"the cost of an outcome depends on the threshold; give {setting('threshold')} too")
    return Settings(
        mechanism=mechanism,
        sensitivity=_sensitivity(given) if sensitivity is None else sensitivity,
        n=n,
        n2=n2,
        beta=float(given.get("beta", 0.05)),
        tail=float(given.get("tail", default_tail(n2))),
        delta=delta,
        scale=_float(given, "scale"),
        sigma_x=_float(given, "sigma_x"),
        sigma_z=_float(given, "sigma_z"),
        epsilon=_float(given, "epsilon"),
        total_delta=total_delta,
        queries=queries,
        threshold=None if threshold is None else float(threshold),
        halt=halt,
        orders=_orders(given.get("orders")),
    )


def read_lines(path: Path, common: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The sets of options of a `--from` file, each laid over those given on the command line.

    Raises:
        InvalidFile: unreadable, or a line that is not a JSON object, or names another mechanism than the command line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidFile(str(path), None, f"cannot be read ({error.strerror}); give a JSONL file") from None
    except UnicodeDecodeError:
        raise InvalidFile(str(path), None, "not UTF-8 text; give a JSONL file") from None
    empty = True
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        empty = False
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise InvalidFile(str(path), number, "not a JSON object; give one set of options a line")
        if document.get("mechanism", common.get("mechanism")) != common.get("mechanism"):
            other = f"mechanism: {_brief(document['mechanism'])} where the command names {common['mechanism']}"
            raise InvalidFile(str(path), number, f"{other}; leave it out, or give these lines to a command of their own")
        yield number, {**common, **document}
    if empty:
        raise InvalidFile(str(path), None, "no options in it; give one JSON object a line")


def _refuse_foreign(mechanism: str, given: Mapping[str, Any]) -> None:
    """Noise that would be ignored is refused: whoever gives it believes in another release than this one."""
    for name, takers in TAKERS.items():
        if name in given and mechanism not in takers:
            quiet = mechanism not in NOISE_OPTIONS and name in ("scale", "epsilon", "sigma_x", "sigma_z")
            why = f"{mechanism} adds no noise" if quiet else f"not a setting of {mechanism}"
            raise InvalidInput(setting(name), f"{why}; leave it out, or choose {' or '.join(takers)}")


def _is_finite(value: Any) -> bool:
    """Whether a float can hold it; whole numbers of JSON have any number of digits."""
    try:
        return type(value) in (int, float) and math.isfinite(value)
    except OverflowError:
        return False


def _brief(value: Any) -> str:
    """The value as an error shows it."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _float(given: Mapping[str, Any], name: str) -> float | None:
    return float(given[name]) if name in given else None


def _sensitivity(given: Mapping[str, Any]) -> Sensitivity:
    from privalign.sensitivity import RewardRange, Sensitivity, load_certificate

    low, high = _pair(given.get("range", (0.0, 1.0)))
    reward_range = RewardRange(low, high)
    value = given.get("sensitivity", "range")
    certificate = given.get("certificate")
    if certificate is not None:
        from privalign.secret import existing_key

        if "sensitivity" in given:
            raise InvalidInput(setting("sensitivity"), f"give either it or {setting('certificate')}, not both")
        if not isinstance(certificate, str | Path):
            raise InvalidInput(setting("certificate"), f"{certificate!r} is not the name of a file")
        certified = load_certificate(Path(certificate), existing_key()).to_sensitivity()
        if certified.range != reward_range:
            right = f"{certified.range.low:g},{certified.range.high:g}"
            raise InvalidInput(
                setting("range"),
                f"{low:g},{high:g} is not the range of the certificate; give {setting('range')} {right}",
            )
        return certified
    if value == "range":
        return Sensitivity.of_range(reward_range)
    try:
        if isinstance(value, bool):
            raise ValueError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput(setting("sensitivity"), f"{_brief(value)} is neither a number nor 'range'") from None
    return Sensitivity(number, reward_range, source="declared")


def _pair(value: Any) -> tuple[float, float]:
    parts = value.split(",") if isinstance(value, str) else value
    try:
        low, high = parts
        if isinstance(low, bool) or isinstance(high, bool):
            raise ValueError
        return float(low), float(high)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput(setting("range"), f"{_brief(value)} is not a pair of numbers; give LO,HI") from None


def _halt(value: Any) -> Halt | None:
    from privalign.events import FALLBACK

    if value is None:
        return None
    if value == FALLBACK.value:
        return FALLBACK
    try:
        if isinstance(value, bool | float):
            raise ValueError
        time = int(value)
    except (TypeError, ValueError):
        raise InvalidInput(setting("halt"), f"{value!r} is neither a whole number of at least 1 nor 'fallback'") from None
    if time < 1:
        raise InvalidInput(setting("halt"), f"{value} is neither a whole number of at least 1 nor 'fallback'")
    return time


def _orders(value: Any) -> tuple[float, ...] | None:
    if value is None:
        return None
    parts = value.split(",") if isinstance(value, str) else value
    try:
        orders = tuple(float(part) for part in parts)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput(setting("orders"), f"{_brief(value)} is not a list of numbers") from None
    if not orders or not all(1 < order < math.inf for order in orders):
        raise InvalidInput(setting("orders"), f"{value!r} holds an order that is not a finite number above 1")
    return orders

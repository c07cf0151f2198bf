"""privalign: differentially private inference-time alignment.

Draw n answers from a language model, score them with a reward model that was trained on private preferences, and
release one so that nobody can tell whether a given preference was in the training data.

The names below are the public interface; each is imported when it is first used, so that `import privalign` is cheap.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privalign.accounting import costs as _costs
    from privalign.accounting.calibration import calibrate as calibrate
    from privalign.accounting.composition import Composition as Composition
    from privalign.accounting.composition import compose as compose
    from privalign.errors import BackendFailed as BackendFailed
    from privalign.errors import InvalidFile as InvalidFile
    from privalign.errors import InvalidInput as InvalidInput
    from privalign.errors import InvalidRewards as InvalidRewards
    from privalign.errors import MissingDependency as MissingDependency
    from privalign.errors import PrivalignError as PrivalignError
    from privalign.mechanisms.base import Base as Base
    from privalign.mechanisms.bon import BoN as BoN
    from privalign.mechanisms.driver import select_from_pool as select_from_pool
    from privalign.mechanisms.itp import ITP as ITP
    from privalign.mechanisms.itp_reuse import ITPReuse as ITPReuse
    from privalign.mechanisms.privbon import PrivBoN as PrivBoN
    from privalign.mechanisms.privbon_gaussian import PrivBoNGaussian as PrivBoNGaussian
    from privalign.mechanisms.privitp import PrivITP as PrivITP
    from privalign.mechanisms.protocol import Draw as Draw
    from privalign.mechanisms.protocol import Selection as Selection
    from privalign.randomness import SecureRandomness as SecureRandomness
    from privalign.randomness import SeededRandomness as SeededRandomness
    from privalign.sensitivity import Certificate as Certificate
    from privalign.sensitivity import Relation as Relation
    from privalign.sensitivity import RewardRange as RewardRange
    from privalign.sensitivity import Sensitivity as Sensitivity

    event_epsilon = _costs.epsilon  # an alias that is imported is not exported

_HOMES = {
    "Base": "mechanisms.base",
    "BackendFailed": "errors",
    "BoN": "mechanisms.bon",
    "Certificate": "sensitivity",
    "Composition": "accounting.composition",
    "Draw": "mechanisms.protocol",
    "ITP": "mechanisms.itp",
    "ITPReuse": "mechanisms.itp_reuse",
    "InvalidFile": "errors",
    "InvalidInput": "errors",
    "InvalidRewards": "errors",
    "MissingDependency": "errors",
    "PrivBoN": "mechanisms.privbon",
    "PrivBoNGaussian": "mechanisms.privbon_gaussian",
    "PrivITP": "mechanisms.privitp",
    "PrivalignError": "errors",
    "Relation": "sensitivity",
    "RewardRange": "sensitivity",
    "SecureRandomness": "randomness",
    "SeededRandomness": "randomness",
    "Selection": "mechanisms.protocol",
    "Sensitivity": "sensitivity",
    "calibrate": "accounting.calibration",
    "compose": "accounting.composition",
    "event_epsilon": "accounting.costs:epsilon",
    "select_from_pool": "mechanisms.driver",
}

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("privalign")
    if name not in _HOMES:
        raise AttributeError(f"module 'privalign' has no attribute '{name}'")
    home, _, original = _HOMES[name].partition(":")
    return getattr(import_module(f"privalign.{home}"), original or name)


def __dir__() -> list[str]:
    return __all__

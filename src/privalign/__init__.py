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
    from privalign.accounting.rules import Basic as Basic
    from privalign.accounting.rules import Fsrc as Fsrc
    from privalign.accounting.rules import Renyi as Renyi
    from privalign.accounting.rules import TwoCounter as TwoCounter
    from privalign.accounting.rules import make_rule as make_rule
    from privalign.aligner import Aligner as Aligner
    from privalign.aligner import ServedModel as ServedModel
    from privalign.candidates.scored import ScoredPrompts as ScoredPrompts
    from privalign.candidates.scored import read_scored as read_scored
    from privalign.deployment import load as load
    from privalign.errors import BackendFailed as BackendFailed
    from privalign.errors import BudgetExhausted as BudgetExhausted
    from privalign.errors import InvalidFile as InvalidFile
    from privalign.errors import InvalidInput as InvalidInput
    from privalign.errors import InvalidRewards as InvalidRewards
    from privalign.errors import MissingDependency as MissingDependency
    from privalign.errors import PrivalignError as PrivalignError
    from privalign.evaluation import outcomes as _outcomes
    from privalign.ledger import Account as Account
    from privalign.ledger import Ledger as Ledger
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
    from privalign.policies.callables import CallablePolicy as CallablePolicy
    from privalign.policies.llamacpp_chat import LlamaCppChatPolicy as LlamaCppChatPolicy
    from privalign.policies.openai import OpenAIPolicy as OpenAIPolicy
    from privalign.policies.protocol import Policy as Policy
    from privalign.policies.recorded import RecordedFilePolicy as RecordedFilePolicy
    from privalign.policies.transformers import TransformersPolicy as TransformersPolicy
    from privalign.preferences import bradley_terry as _bradley_terry
    from privalign.randomness import SecureRandomness as SecureRandomness
    from privalign.randomness import SeededRandomness as SeededRandomness
    from privalign.rewards.certified_head import CertifiedHeadReward as CertifiedHeadReward
    from privalign.rewards.ensemble import EnsembleReward as EnsembleReward
    from privalign.rewards.function import FunctionReward as FunctionReward
    from privalign.rewards.head import HeadReward as HeadReward
    from privalign.rewards.protocol import Reward as Reward
    from privalign.rewards.remote import RemoteReward as RemoteReward
    from privalign.rewards.sequence_classification import TransformersReward as TransformersReward
    from privalign.sensitivity import Certificate as Certificate
    from privalign.sensitivity import Relation as Relation
    from privalign.sensitivity import RewardRange as RewardRange
    from privalign.sensitivity import Sensitivity as Sensitivity
    from privalign.types import Candidate as Candidate
    from privalign.types import Message as Message
    from privalign.types import Release as Release
    from privalign.types import Request as Request

    # an alias that is imported is not exported
    event_epsilon = _costs.epsilon
    evaluate = _outcomes.measure
    fit = _bradley_terry.fit_head

_HOMES = {
    "Account": "ledger",
    "Aligner": "aligner",
    "BackendFailed": "errors",
    "Base": "mechanisms.base",
    "Basic": "accounting.rules",
    "BoN": "mechanisms.bon",
    "BudgetExhausted": "errors",
    "CallablePolicy": "policies.callables",
    "Candidate": "types",
    "Certificate": "sensitivity",
    "CertifiedHeadReward": "rewards.certified_head",
    "Composition": "accounting.composition",
    "Draw": "mechanisms.protocol",
    "EnsembleReward": "rewards.ensemble",
    "Fsrc": "accounting.rules",
    "FunctionReward": "rewards.function",
    "HeadReward": "rewards.head",
    "ITP": "mechanisms.itp",
    "ITPReuse": "mechanisms.itp_reuse",
    "InvalidFile": "errors",
    "InvalidInput": "errors",
    "InvalidRewards": "errors",
    "Ledger": "ledger",
    "LlamaCppChatPolicy": "policies.llamacpp_chat",
    "Message": "types",
    "MissingDependency": "errors",
    "OpenAIPolicy": "policies.openai",
    "Policy": "policies.protocol",
    "PrivBoN": "mechanisms.privbon",
    "PrivBoNGaussian": "mechanisms.privbon_gaussian",
    "PrivITP": "mechanisms.privitp",
    "PrivalignError": "errors",
    "RecordedFilePolicy": "policies.recorded",
    "Relation": "sensitivity",
    "Release": "types",
    "RemoteReward": "rewards.remote",
    "Renyi": "accounting.rules",
    "Request": "types",
    "Reward": "rewards.protocol",
    "RewardRange": "sensitivity",
    "ScoredPrompts": "candidates.scored",
    "SecureRandomness": "randomness",
    "SeededRandomness": "randomness",
    "Selection": "mechanisms.protocol",
    "Sensitivity": "sensitivity",
    "ServedModel": "aligner",
    "TransformersPolicy": "policies.transformers",
    "TransformersReward": "rewards.sequence_classification",
    "TwoCounter": "accounting.rules",
    "calibrate": "accounting.calibration",
    "compose": "accounting.composition",
    "evaluate": "evaluation.outcomes:measure",
    "event_epsilon": "accounting.costs:epsilon",
    "fit": "preferences.bradley_terry:fit_head",
    "load": "deployment",
    "make_rule": "accounting.rules",
    "read_scored": "candidates.scored",
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

"""What can be known of a deployment before it serves: whether its back-ends answer, what each model promises, what is left."""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privalign.accounting import costs
from privalign.accounting.rules import Debit
from privalign.aligner.clock import Clock, Deadline
from privalign.deployment.deployment import Deployment, ModelSpec
from privalign.errors import BackendFailed, CheckFailed, InvalidFile, PrivalignError, SeveralFaults
from privalign.ledger import Account
from privalign.mechanisms.protocol import event_of
from privalign.randomness import SecureRandomness
from privalign.statements import fitting, of_model, of_rule, pays


class Faults:
    """What a check has found wrong so far."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._messages: list[str] = []

    @contextlib.contextmanager
    def gathered(self) -> Iterator[None]:
        """Goes on after what is wrong in the block; only a file that cannot be read at all ends the check here."""
        try:
            yield
        except SeveralFaults as several:
            self._messages += [str(fault) for fault in several.faults]
        except PrivalignError as error:
            if isinstance(error, InvalidFile) and error.path == str(self._file):
                raise
            self._messages.append(str(error))

    def refuse(self) -> None:
        """Ends the check where anything was wrong."""
        if self._messages:
            raise CheckFailed(*dict.fromkeys(self._messages))


def back_ends(deployment: Deployment) -> Iterator[Coroutine[Any, Any, None]]:
    """The probe of every back-end that a model uses, each once; no account is touched."""
    models = deployment.models.values()
    yield from (_probe_policy(deployment, name) for name in dict.fromkeys(spec.policy for spec in models))
    yield from (_probe_reward(deployment, name) for name in dict.fromkeys(spec.reward for spec in models))


async def _probe_policy(deployment: Deployment, name: str) -> None:
    """A public prompt through the policy."""
    spec = deployment.policies[name]
    with _located(f"{deployment.file}: [policies.{name}]", spec.hint):
        await spec.make().probe()


async def _probe_reward(deployment: Deployment, name: str) -> None:
    """A public text through the reward."""
    with _located(f"{deployment.file}: [rewards.{name}]"):
        await deployment.rewards[name].make().probe()


def deadline_of(deployment: Deployment, spec: ModelSpec) -> Deadline:
    """The deadline of selection."""
    served = spec.served(deployment.policies[spec.policy].make(), deployment.rewards[spec.reward].make())
    return Clock(served, SecureRandomness()).deadline()


@contextlib.contextmanager
def _located(table: str, hint: str = "") -> Iterator[None]:
    """Says which back-end did not do its work, and what else to try."""
    try:
        yield
    except BackendFailed as error:
        raise CheckFailed(f"{table}: {error}" + (f"; {hint}" if hint else "")) from None


@dataclass(frozen=True, slots=True)
class Promise:
    """What one model promises; `answers` that its account pays for in all and `left` of them, None: any number."""

    spec: ModelSpec
    epsilon: float
    answers: int | None
    left: int | None
    stated: dict[str, Any]
    range_from: str
    guarantee: str

    @classmethod
    def of(cls, deployment: Deployment, spec: ModelSpec, account: Account | None) -> Promise:
        """`account` is the one in the ledger, None where it is still to be made as the file says.

        Raises:
            InvalidInput: the account cannot be charged for the model.
        """
        reward = deployment.rewards[spec.reward]
        sensitivity = reward.sensitivity
        terms = deployment.accounts[spec.account] if account is None else account
        event = event_of(spec.mechanism, sensitivity)
        deployment.check_paid(spec, account)
        epsilon, worst = costs.epsilon(event, spec.delta), terms.rule.charge(event)
        limit = terms.rule.limit if account is None else account.limit
        answers = fitting(limit, Debit(), worst)
        left = fitting(limit, Debit() if account is None else account.debited, worst)
        change = terms.relation.change(terms.records_per_person)
        guarantee = of_model(
            spec.mechanism.name,
            epsilon,
            sensitivity,
            reward.range_from,
            f"{terms.name}, against {change}",
            of_rule(terms.rule) if account is None else account.guarantee,
            pays(answers),
        )
        return cls(spec, epsilon, answers, left, sensitivity.stated(), reward.range_from, guarantee)

    @property
    def refused(self) -> bool:
        """Whether the account pays for no answer of it, and nothing else answers."""
        return self.left == 0 and self.spec.on_exhausted == "refuse"

    @property
    def remedy(self) -> str:
        """Why the account pays for no answer, and what to do."""
        if self.answers:
            return f"of {self.spec.account} too little is left for one more answer; raise it, name another one, or set on_exhausted"
        return f"{self.spec.account} cannot pay for a single answer: use more noise, a smaller Δ, or a larger ε of the account"

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "name": self.spec.name,
            "policy": self.spec.policy,
            "reward": self.spec.reward,
            "account": self.spec.account,
            "mechanism": self.spec.mechanism.name,
            "epsilon": self.epsilon,
            "answers": self.answers,
            "left": self.left,
            **self.stated,
            "range_from": self.range_from,
            "guarantee": self.guarantee,
        }

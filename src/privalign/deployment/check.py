"""What is wrong with a deployment file, and what each of its models promises. Writes nothing, no ledger either."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from privalign import statements
from privalign.accounting import costs
from privalign.accounting.rules import Debit
from privalign.aligner.clock import Clock, Deadline
from privalign.deployment.deployment import Deployment, ModelSpec, load
from privalign.deployment.doubts import doubts
from privalign.errors import BackendFailed, CheckFailed, InvalidFile, PrivalignError, SeveralFaults
from privalign.ledger import Account
from privalign.mechanisms.protocol import event_of
from privalign.randomness import SecureRandomness
from privalign.sensitivity import Sensitivity


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What one model promises.

    Attributes:
        epsilon: of one answer, worst case. answers, left: how many the account pays for in all, and how many more; None: they are free.
        spent: ε of the account so far; None where it is still to be made. deadline: of selection; None where nothing was probed.
    """

    name: str
    policy: str
    reward: str
    account: str
    mechanism: str
    epsilon: float
    answers: int | None
    left: int | None
    spent: float | None
    sensitivity: Sensitivity
    range_from: str
    guarantee: str
    deadline: Deadline | None = None

    @classmethod
    def of(cls, deployment: Deployment, spec: ModelSpec, account: Account | None) -> ModelFacts:
        """The facts of a model; `account` is the one in the ledger, None where it is still to be made as the file says.

        Raises:
            InvalidInput: a released head that the account did not pay for.
        """
        reward = deployment.rewards[spec.reward]
        terms = deployment.accounts[spec.account] if account is None else account
        event = event_of(spec.mechanism, reward.sensitivity)
        deployment.check_paid(spec, account)
        epsilon, cost = costs.epsilon(event, spec.delta), terms.rule.charge(event)
        limit, debited = (terms.rule.limit, Debit()) if account is None else (account.limit, account.debited)
        answers = statements.fitting(limit, Debit(), cost)
        guarantee = statements.of_model(
            spec.mechanism.name,
            epsilon,
            reward.sensitivity,
            reward.range_from,
            f"{terms.name}, against {terms.relation.change(terms.records_per_person)}",
            statements.of_rule(terms.rule) if account is None else account.guarantee,
            statements.pays(answers),
        )
        return cls(
            name=spec.name,
            policy=spec.policy,
            reward=spec.reward,
            account=spec.account,
            mechanism=spec.mechanism.name,
            epsilon=epsilon,
            answers=answers,
            left=statements.fitting(limit, debited, cost),
            spent=None if account is None else account.spent[0],
            sensitivity=reward.sensitivity,
            range_from=reward.range_from,
            guarantee=guarantee,
        )

    def to_json(self) -> dict[str, Any]:
        """The facts as JSON has them."""
        return {
            "name": self.name,
            "policy": self.policy,
            "reward": self.reward,
            "account": self.account,
            "mechanism": self.mechanism,
            "epsilon": self.epsilon,
            "answers": self.answers,
            "left": self.left,
            **self.sensitivity.stated(),
            "range_from": self.range_from,
            "guarantee": self.guarantee,
            "deadline": None if self.deadline is None else asdict(self.deadline),
        }


@dataclass(frozen=True, slots=True)
class Checked:
    """A deployment file in which nothing is wrong: what it promises, what is doubtful, what first use will make."""

    file: Path
    ledger_url: str
    probed: bool
    models: tuple[ModelFacts, ...]
    accounts_to_create: tuple[str, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The document of `config check`."""
        return {
            "file": str(self.file),
            "ledger": self.ledger_url,
            "probed": self.probed,
            "models": [model.to_json() for model in self.models],
            "accounts_to_create": list(self.accounts_to_create),
            "warnings": list(self.warnings),
        }


def check_deployment(file: Path, *, probe: bool = True) -> Checked:
    """Resolves everything in the file.

    Args:
        probe: ask every policy and score with every reward, on a public text, and measure the deadlines that are not stated.

    Raises:
        CheckFailed: all that is wrong, a line each. InvalidFile: the file cannot be read at all.
    """
    faults = _Faults(file)
    with faults.gathered():
        deployment = load(file)
        if not deployment.models:
            raise CheckFailed(f"{file}: no [models.*] table, so there is nothing to ask for; add one")
        accounts = deployment.accounts_found()
    faults.refuse()
    models: list[ModelFacts] = []
    for spec in deployment.models.values():
        with faults.gathered():
            models.append(ModelFacts.of(deployment, spec, accounts[spec.account]))
            if models[-1].left == 0 and spec.on_exhausted == "refuse":
                raise CheckFailed(f"{file}: [models.{spec.name}] account: {_unpayable(models[-1])}")
    if probe:
        for back_end in _back_ends(deployment):
            with faults.gathered():
                asyncio.run(back_end)
        faults.refuse()
        models = [replace(facts, deadline=_deadline(deployment, deployment.models[facts.name])) for facts in models]
    faults.refuse()
    missing = tuple(name for name, account in accounts.items() if account is None)
    return Checked(file, deployment.ledger_url, probe, tuple(models), missing, tuple(doubts(deployment)))


class _Faults:
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


def _back_ends(deployment: Deployment) -> Iterator[Coroutine[Any, Any, None]]:
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


def _deadline(deployment: Deployment, spec: ModelSpec) -> Deadline:
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


def _unpayable(facts: ModelFacts) -> str:
    """Why an account pays for no answer of a model, and what to do."""
    if facts.answers:
        return f"of {facts.account} too little is left for one more answer; raise it, name another one, or set on_exhausted"
    return f"{facts.account} cannot pay for a single answer: use more noise, a smaller Δ, or a larger ε of the account"

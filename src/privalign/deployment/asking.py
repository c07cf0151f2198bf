"""One private answer of a deployment file, for a process that begins anew every time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from privalign.deployment.deployment import Deployment
from privalign.ledger import Account, Ledger
from privalign.sensitivity import Sensitivity
from privalign.types import Release


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer with its price, and the account that paid as it stands now in the ledger."""

    release: Release
    sensitivity: Sensitivity
    account: Account
    ledger: Ledger

    def to_json(self) -> dict[str, Any]:
        """The document of `ask`."""
        release, remaining = self.release, self.account.remaining
        return {
            "text": release.text,
            "privacy": {
                "mechanism": release.mechanism,
                "epsilon": release.epsilon,
                "delta": release.delta,
                "account": self.account.name,
                "candidates": release.drawn,
                **self.sensitivity.stated(),
            },
            "remaining": {"epsilon": remaining[0], "delta": remaining[1]},
        }


def ask(deployment: Deployment, prompt: str, model: str | None = None) -> Answer:
    """One private answer of a model; without a name of the only one.

    Raises:
        InvalidInput: no such model, or an account of the ledger differs from the file. BudgetExhausted, BackendFailed: as
        `Aligner.answer`.
    """
    spec = deployment.model(model)
    ledger = deployment.ledger()
    release = deployment.serve(spec, ledger).ask(prompt)
    return Answer(release, deployment.rewards[spec.reward].sensitivity, ledger.account(spec.account), ledger)

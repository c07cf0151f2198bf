"""Opening the ledger that an option names, and showing an account: shared by the commands that need one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privalign.errors import InvalidInput

if TYPE_CHECKING:
    from privalign.ledger import Account, Ledger

DEFAULT_LEDGER = "sqlite:///privalign.db"
LedgerOption = Annotated[str, typer.Option("--ledger", help="URL of the ledger, or env:NAME or file:PATH that holds it.", metavar="URL")]
OwnLedger = Annotated[
    str | None,
    typer.Option("--ledger", help="URL of the ledger, or env:NAME or file:PATH that holds it.", metavar="URL", show_default=DEFAULT_LEDGER),
]
LedgerOfConfig = Annotated[
    Path | None, typer.Option("--config", help="Deployment file, for its ledger.", metavar="FILE", show_default=False)
]


def ledger_url(ledger: str | None, config: Path | None) -> str:
    """The URL that is given, else that of the deployment file, else the default."""
    if ledger is not None or config is None:
        return ledger or DEFAULT_LEDGER
    from privalign.deployment.deployment import load_ledger

    return load_ledger(config).url


def open_ledger(url: str, *, must_exist: bool = True) -> Ledger:
    """The ledger at a URL.

    Raises:
        InvalidInput: a SQLite file that should exist does not: a mistyped name must not make an empty ledger.
    """
    from privalign.ledger import Ledger

    if url.startswith(("env:", "file:")):
        from privalign.deployment.deployment import resolved_url

        url = resolved_url(url)
    scheme, _, rest = url.partition(":///")
    file = rest.partition("?")[0]
    if must_exist and scheme.partition("+")[0] == "sqlite" and file:
        if not Path(file).exists():
            raise InvalidInput("--ledger", f"{file} does not exist; make an account first, or name the right file")
        if Path(file).is_file() and Path(file).stat().st_size == 0:  # the database would take it for a new one
            raise InvalidInput("--ledger", f"{file} is empty, no ledger; make an account first, or name the right file")
    return Ledger(url)


def warn_unanchored(ledger: Ledger) -> None:
    """Says on stderr where this host keeps no anchors: whatever charges an account does."""
    if ledger.unanchored is not None:
        typer.echo(f"privalign: warning: {ledger.unanchored}, so no anchor is kept: a ledger that goes back is not found out", err=True)


def account_document(account: Account) -> dict[str, Any]:
    """The JSON document of `account show`."""
    import dataclasses

    from privalign.statements import SPENT, protects

    spent, remaining, together = account.spent, account.remaining, account.together
    rule = account.rule
    return {
        "name": account.name,
        "rule": rule.name,
        "epsilon": rule.epsilon,
        "delta": rule.delta,
        "order": getattr(rule, "order", None),
        "rho": getattr(rule, "rho", None),
        "delta_per_query": getattr(rule, "delta_per_query", None),
        "relation": account.relation.value,
        "records_per_person": account.records_per_person,
        "protects": protects(account.relation, account.records_per_person),
        "dataset": account.dataset,
        "also": [each.account for each in account.also],
        "sum": {"epsilon": together[0], "delta": together[1]},
        "spent": {"epsilon": spent[0], "delta": spent[1]},
        "spent_is": SPENT,
        "remaining": {"epsilon": remaining[0], "delta": remaining[1]},
        "queries": {"settled": account.settled_queries, "open": account.open_queries, "refused": account.refused_queries},
        "guarantee": account.guarantee,
        "raises": [
            {"time": rise.time.isoformat(), "before": rise.before, "after": rise.after, "reason": rise.reason} for rise in account.raises
        ],
        "raw": {
            "units": {"epsilon": 1e-12, "rho": 1e-12, "rdp": 1e-12, "delta": 1e-18},
            "limit": dataclasses.asdict(account.limit),
            "debited": dataclasses.asdict(account.debited),
            "open": dataclasses.asdict(account.open),
        },
        "created": account.created.isoformat(),
        "head": account.head,
        "length": account.length,
    }

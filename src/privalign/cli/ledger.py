"""`ledger`: care of the ledger itself."""

from __future__ import annotations

import typer

from privalign.cli import options
from privalign.cli.ledgers import LedgerOfConfig, OwnLedger, ledger_url, open_ledger
from privalign.cli.output import print_facts, print_json
from privalign.cli.spelling import Group

app = typer.Typer(cls=Group, help="The ledger that keeps accounts and keys.", no_args_is_help=False, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    pass


@app.command()
def moved(ledger: OwnLedger = None, config: LedgerOfConfig = None, json: options.Json = False) -> None:
    """Says that a SQLite ledger was moved to where it is now, and that no other copy of it is used. Kept in every journal."""
    move = open_ledger(ledger_url(ledger, config)).moved()
    before = None if move.before is None else move.before.to_json()
    facts = {"from": before, "to": move.now.to_json(), "accounts": list(move.accounts)}
    if json:
        print_json(facts)
    else:
        print_facts("moved", facts)

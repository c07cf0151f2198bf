"""`key`: API keys of the gateway, kept in the ledger."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privalign.cli import options
from privalign.cli.ledgers import DEFAULT_LEDGER, LedgerOption, open_ledger
from privalign.cli.output import print_facts, print_json, print_table
from privalign.errors import InvalidInput

if TYPE_CHECKING:
    from privalign.ledger import Key

app = typer.Typer(help="API keys: who may ask, and how much of a budget.", no_args_is_help=False, rich_markup_mode=None)


@app.command()
def create(
    role: Annotated[str, typer.Option("--role", help="client (asks) or officer (reads the ledger).")] = "client",
    models: Annotated[
        str | None, typer.Option("--models", help="Models it may ask, comma-separated. Default all.", show_default=False)
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option("--expires", help="Date or time, as 2027-01-31 or 2027-01-31T12:00:00Z. Default never.", show_default=False),
    ] = None,
    account: Annotated[
        str | None, typer.Option("--account", help="Account whose budget --share limits.  [required with --share]", show_default=False)
    ] = None,
    share: Annotated[
        float | None,
        typer.Option("--share", help="Part of the account that it may use up, 0 to 1.  [required with --account]", show_default=False),
    ] = None,
    queries: Annotated[int | None, typer.Option("--queries", help="How many queries it may make.", show_default=False)] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", help="Requests a minute. Default: the gateway's setting.", show_default=False)
    ] = None,
    ledger: LedgerOption = DEFAULT_LEDGER,
    json: options.Json = False,
) -> None:
    """Makes a key. Its secret is shown once and stored nowhere. Limits of keys are no separate privacy guarantee."""
    from privalign.ledger import Role
    from privalign.secret import make_installation_key

    try:
        kind = Role(role)
    except ValueError:
        raise InvalidInput("--role", f"{role!r} is neither client nor officer") from None
    names = None if models is None else [name.strip() for name in models.split(",")]
    if names is not None and not all(names):
        raise InvalidInput("--models", "holds an empty name; give names separated by commas, or leave it out for all models")
    if (share is None) != (account is None):
        raise InvalidInput("--share", "it and --account belong together; give both")
    make_installation_key()
    made = open_ledger(ledger, must_exist=False).create_key(
        kind, models=names, expires=_date(expires), account=account, share=share, queries=queries, rate=rate
    )
    facts = {"id": made.key.id, "key": made.secret, **_facts(made.key)}
    if json:
        print_json(facts)
    else:
        print_facts("keep the key: it is not shown again", _for_people(facts))


@app.command("list")
def list_keys(ledger: LedgerOption = DEFAULT_LEDGER, json: options.Json = False) -> None:
    """All keys, without their secrets."""
    keys = open_ledger(ledger).keys()
    documents = [{"id": key.id, **_facts(key)} for key in keys]
    if json:
        print_json({"keys": documents})
    else:
        print_table(tuple(documents[0]) if documents else ("id", "role"), (_for_people(document).values() for document in documents))


@app.command()
def revoke(
    identity: Annotated[str, typer.Argument(help="Id of the key.", metavar="ID", show_default=False)],
    ledger: LedgerOption = DEFAULT_LEDGER,
    json: options.Json = False,
) -> None:
    """Ends a key at once."""
    key = open_ledger(ledger).revoke_key(identity)
    facts = {"id": key.id, **_facts(key)}
    if json:
        print_json(facts)
    else:
        print_facts("revoked", _for_people(facts))


def _facts(key: Key) -> dict[str, Any]:
    return {
        "role": key.role.value,
        "models": None if key.models is None else list(key.models),
        "expires": None if key.expires is None else key.expires.isoformat(),
        "revoked": None if key.revoked is None else key.revoked.isoformat(),
        "account": key.account,
        "share": key.share,
        "query_limit": key.query_limit,
        "queries": key.queries,
        "rate": key.rate,
    }


def _for_people(facts: dict[str, Any]) -> dict[str, Any]:
    """What is not limited, in words."""
    return facts | {"models": facts["models"] or "all", "expires": facts["expires"] or "never"}


def _date(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise InvalidInput("--expires", f"{text!r} is not a date; write it as 2027-01-31 or 2027-01-31T12:00:00Z") from None

"""`key`: API keys of the gateway, kept in the ledger."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privalign.cli import options
from privalign.cli.deployment import DEFAULT_FILE
from privalign.cli.ledgers import LedgerOfConfig, OwnLedger, ledger_url, open_ledger
from privalign.cli.output import print_facts, print_json, print_table, printable
from privalign.cli.spelling import Group
from privalign.errors import InvalidInput, PrivalignError

if TYPE_CHECKING:
    from privalign.ledger import Key

app = typer.Typer(cls=Group, help="API keys: who may ask, and how much of a budget.", no_args_is_help=False, rich_markup_mode=None)


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
    ledger: OwnLedger = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="Deployment file, for its ledger and the names of its models.", metavar="FILE", show_default=False),
    ] = None,
    json: options.Json = False,
) -> None:
    """Makes a key. Its secret is shown once and stored nowhere. Limits of keys are no separate privacy guarantee."""
    from privalign.ledger import Role
    from privalign.secret import make_named_key

    try:
        kind = Role(role)
    except ValueError:
        raise InvalidInput("--role", f"{role!r} is neither client nor officer") from None
    names = None if models is None else [name.strip() for name in models.split(",")]
    if names is not None and not all(names):
        raise InvalidInput("--models", "holds an empty name; give names separated by commas, or leave it out for all models")
    if (share is None) != (account is None):
        raise InvalidInput("--share", "it and --account belong together; give both")
    if names is not None and config is not None:
        _check_models(names, account, config)
    elif names is not None and DEFAULT_FILE.is_file():  # may be another deployment's
        with contextlib.suppress(PrivalignError):
            _warn_of_models(names, DEFAULT_FILE)
    make_named_key()
    named = ledger is not None or config is not None or DEFAULT_FILE.is_file()  # else this may be another folder than was meant
    made = open_ledger(ledger_url(ledger, config), must_exist=not named).create_key(
        kind, models=names, expires=_date(expires), account=account, share=share, queries=queries, rate=rate
    )
    facts = {"id": made.key.id, "key": made.secret, **_facts(made.key)}
    if json:
        print_json(facts)
    else:
        print_facts("keep the key: it is not shown again", _for_people(facts))


@app.command("list")
def list_keys(ledger: OwnLedger = None, config: LedgerOfConfig = None, json: options.Json = False) -> None:
    """All keys, without their secrets."""
    keys = open_ledger(ledger_url(ledger, config)).keys()
    documents = [{"id": key.id, **_facts(key)} for key in keys]
    if json:
        print_json({"keys": documents})
    else:
        print_table(tuple(documents[0]) if documents else ("id", "role"), (_for_people(document).values() for document in documents))


@app.command()
def revoke(
    identity: Annotated[str, typer.Argument(help="Id of the key.", metavar="ID", show_default=False)],
    ledger: OwnLedger = None,
    config: LedgerOfConfig = None,
    json: options.Json = False,
) -> None:
    """Ends a key at once."""
    key = open_ledger(ledger_url(ledger, config)).revoke_key(identity)
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
    """What is not limited, in words. A key with a share of an account asks the models that this account pays for, no others."""
    models = "all" if facts["account"] is None else f"those of account {facts['account']}"
    return facts | {"models": facts["models"] or models, "expires": facts["expires"] or "never"}


def _check_models(names: list[str], account: str | None, config: Path) -> None:
    """Refuses a key for a model that the deployment does not serve, or that another account pays for: it would be refused everywhere.

    Raises:
        InvalidInput: naming the model.
    """
    from privalign.deployment.deployment import load_ledger

    served = load_ledger(config).models
    for name in names:
        if name not in served:
            raise InvalidInput("--models", f"'{name}' is not a model of {config}; known are {', '.join(served) or 'none'}")
        if account is not None and served[name] != account:
            raise InvalidInput("--models", f"'{name}' is paid by account {served[name]}, and this key is for {account} only; leave it out")


def _warn_of_models(names: list[str], file: Path) -> None:
    from privalign.deployment.deployment import load_ledger

    served = load_ledger(file).models
    for name in names:
        if name not in served:
            known = ", ".join(served) or "none"
            typer.echo(f"privalign: warning: '{printable(name)}' is not a model of {file}; known are {known}", err=True)


def _date(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise InvalidInput("--expires", f"{text!r} is not a date; write it as 2027-01-31 or 2027-01-31T12:00:00Z") from None

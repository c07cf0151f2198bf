"""`serve`: the gateway of a deployment file."""

from __future__ import annotations

import asyncio
import ipaddress
import shlex
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privalign.cli import options
from privalign.cli.deployment import DEFAULT_FILE, ConfigFile
from privalign.cli.ledgers import warn_unanchored
from privalign.cli.output import print_json
from privalign.errors import InvalidInput, MissingDependency

if TYPE_CHECKING:
    from privalign.deployment import Deployment
    from privalign.ledger import Key


def serve(
    config: ConfigFile = DEFAULT_FILE,
    host: Annotated[str, typer.Option("--host", help="Address to listen on; beyond this machine, put TLS before it.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port to listen on; 0 takes a free one.")] = 8080,
    allow_anonymous: Annotated[
        bool, typer.Option("--allow-anonymous", help="Answer clients without a key. Metrics and dashboard need an officer's all the same.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Serves the models of a deployment file behind the OpenAI API, until it is told to stop. Logs are JSON lines on stderr."""
    try:
        from privalign.gateway import server
    except ImportError:
        raise MissingDependency("the gateway is not installed; get it with: pip install 'privalign[gateway]'") from None
    from privalign.deployment import load

    deployment = load(config)
    if not deployment.models:
        raise InvalidInput(str(config), "has no [models.*] table, so there is nothing to serve; add one")
    accounts = deployment.accounts_found()
    for spec in deployment.models.values():
        deployment.check_paid(spec, accounts[spec.account])
    if not allow_anonymous:
        _require_a_key(deployment.keys_found(), config)
    with server.listen(host, port) as listening:
        if not _is_loopback(listening.getsockname()[0]):
            _warn_of_strangers(server.address_of(listening), allow_anonymous)
        _serve(deployment, listening, allow_anonymous, json)


def _serve(deployment: Deployment, listening: socket.socket, allow_anonymous: bool, json: bool) -> None:
    from privalign.gateway import logs, server
    from privalign.gateway.app import create_app
    from privalign.secret import installation_key

    key, back_ends = installation_key(), deployment.back_ends()
    ledger = deployment.ledger()  # only now, when all else is there: a start that is refused makes no account
    warn_unanchored(ledger)
    aligners = deployment.serve_all(ledger, back_ends)
    for aligner in aligners:
        aligner.warm_up()
    settings = replace(deployment.gateway, allow_anonymous=allow_anonymous)
    app = create_app(aligners, ledger, key, settings)
    logs.configure()

    def ready() -> None:
        url = server.address_of(listening)
        if json:
            print_json({"url": url, "models": list(deployment.models)})
        else:
            typer.echo(f"listening on {url}")

    interrupted = asyncio.run(server.serve_until_signal(app, listening, settings, ready))
    ledger.close()
    if interrupted:
        raise KeyboardInterrupt


def _require_a_key(keys: Sequence[Key], config: Path) -> None:
    """Without a key that is still good, nobody could ask, and who starts a gateway so may think that everybody may."""
    if not any(key.revoked is None for key in keys):
        make = f"privalign key create --config {shlex.quote(str(config))}"
        raise InvalidInput("--allow-anonymous", f"is needed to serve without keys, and the ledger of {config} has none; make one: {make}")


def _warn_of_strangers(address: str, allow_anonymous: bool) -> None:
    if allow_anonymous:
        typer.echo(f"privalign: warning: everybody who reaches {address} may use up the budgets", err=True)
    typer.echo(
        f"privalign: warning: {address} is plain http beyond this machine: keys and answers can be read; put TLS before it", err=True
    )


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback

"""`serve`: the gateway of a deployment file."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from privalign.cli import options
from privalign.cli.deployment import DEFAULT_FILE, ConfigFile
from privalign.cli.output import print_json
from privalign.errors import InvalidInput, MissingDependency

if TYPE_CHECKING:
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
        from privalign.gateway import logs, server
        from privalign.gateway.app import create_app
    except ImportError:
        raise MissingDependency("the gateway is not installed; get it with: pip install 'privalign[gateway]'") from None
    from privalign.config import load
    from privalign.secret import installation_key

    deployment = load(config)
    if not deployment.models:
        raise InvalidInput(str(config), "has no [models.*] table, so there is nothing to serve; add one")
    ledger = deployment.ledger()
    if not allow_anonymous:
        _require_a_key(ledger.keys(), str(config))
    listening = server.listen(host, port)
    settings = replace(deployment.gateway, allow_anonymous=allow_anonymous)
    if allow_anonymous and not _is_loopback(listening.getsockname()[0]):
        typer.echo(f"privalign: warning: everybody who reaches {server.address_of(listening)} may use up the budgets", err=True)
    if ledger.unanchored is not None:
        typer.echo(f"privalign: warning: {ledger.unanchored}, so no anchor is kept: a ledger that goes back is not found out", err=True)
    aligners = deployment.serve_all(ledger)
    for aligner in aligners:
        aligner.warm_up()
    app = create_app(aligners, ledger, installation_key(), settings)
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


def _require_a_key(keys: Sequence[Key], config: str) -> None:
    """Without a key that is still good, nobody could ask, and who starts a gateway so may think that everybody may."""
    if not any(key.revoked is None for key in keys):
        raise InvalidInput(
            "--allow-anonymous",
            f"is needed to serve without keys, and the ledger of {config} has none; make one with `privalign key create --ledger URL`",
        )


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback

"""`init`, `config check` and `ask`: a deployment file from its first draft to a private answer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from privalign.cli import options
from privalign.cli.ledgers import warn_unanchored
from privalign.cli.output import print_facts, print_json, printable, replacing
from privalign.cli.spelling import Group
from privalign.errors import InvalidInput

app = typer.Typer(cls=Group, help="The deployment file.", no_args_is_help=False, rich_markup_mode=None)

ConfigFile = Annotated[Path, typer.Option("--config", help="Deployment file.", metavar="FILE")]
DEFAULT_FILE = Path("privalign.toml")


def init(
    file: Annotated[Path, typer.Argument(help="File to write.", metavar="[FILE]", show_default=False)] = DEFAULT_FILE,
    independent: Annotated[
        bool, typer.Option("--independent", help="Confirm that the policy does not depend on the protected data.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Writes a commented deployment file that runs on the embedded model; an existing file is left alone."""
    from privalign.deployment.template import draft
    from privalign.secret import make_named_key

    if file.exists():
        raise InvalidInput("FILE", f"{file} exists already; name another one, or remove it")
    make_named_key()
    with replacing(file, field="FILE") as out:
        out.write(draft(independent=independent))
    if json:
        print_json({"file": str(file)})
    else:
        typer.echo(
            f"wrote {file}; next: privalign reward fit PREFERENCES --dataset prefs --lambda 1000 --out head.json, "
            f"then privalign config check {file}"
        )


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="Deployment file.", metavar="[FILE]")] = DEFAULT_FILE,
    probe: Annotated[bool, typer.Option(help="Ask every policy and score with every reward, on a public text.")] = True,
    json: options.Json = False,
) -> None:
    """Resolves everything, probes the back-ends with a public text, and states each model's guarantee in one sentence.

    And when selection leaves, as measured here where the file does not state it: see the page about time. All that is wrong is named,
    a line each.

    Writes nothing: accounts that the ledger lacks are named, and made when an answer is first asked for.
    """
    from privalign.deployment.check import check_deployment
    from privalign.intervals import shown

    checked = check_deployment(file, probe=probe)
    if json:
        print_json(checked.to_json())
        return
    for model in checked.models:
        typer.echo(f"{model.name}: {model.guarantee}")
        if model.spent is not None and model.left is not None:
            typer.echo(f"{model.name}: at least {model.left:,} answers are left, as ε = {shown(model.spent)} is spent already")
        if probe:
            typer.echo(f"{model.name}: selection leaves at {model.deadline}, whatever the scores")
    for warning in checked.warnings:
        typer.echo(f"warning: {warning}")
    missing, models = checked.accounts_to_create, len(checked.models)
    if missing:
        typer.echo(f"first use will create in the ledger: account{'s' if len(missing) != 1 else ''} {', '.join(missing)}")
    typer.echo(f"{file}: {models} model{'s' if models != 1 else ''}, all back-ends {'answered' if probe else 'not probed'}")


def ask(
    prompt: Annotated[str, typer.Argument(help="What to ask.", metavar="PROMPT", show_default=False)],
    config: ConfigFile = DEFAULT_FILE,
    model: Annotated[
        str | None, typer.Option("--model", help="Name of the model.  [required where the file has several]", show_default=False)
    ] = None,
    stream: Annotated[bool, typer.Option("--stream", help="Print the text word by word, as soon as it is released.")] = False,
    json: options.Json = False,
) -> None:
    """One private answer, its price, and what remains of the budget."""
    from privalign.deployment import load
    from privalign.deployment.asking import ask as asked
    from privalign.statements import delta_left

    answer = asked(load(config), prompt, model)
    account, document = answer.account, answer.to_json()
    warn_unanchored(answer.ledger)
    if json:
        print_json(document)
        return
    text = printable(answer.release.text)
    if stream:
        for word in text.split(" "):
            typer.echo(word + " ", nl=False)
        typer.echo()
    else:
        typer.echo(text)
    typer.echo()
    left = {"remaining ε": account.remaining[0], "remaining δ": delta_left(account.rule, account.spent[1], account.remaining[1])}
    print_facts("privacy", {**document["privacy"], **left})

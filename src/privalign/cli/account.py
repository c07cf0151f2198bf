"""`account`: budgets of protected preference data sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privalign.cli import options
from privalign.cli.ledgers import LedgerOfConfig, OwnLedger, account_document, ledger_url, open_ledger
from privalign.cli.output import print_facts, print_json, print_table, replacing
from privalign.cli.spelling import Group
from privalign.errors import InvalidInput

if TYPE_CHECKING:
    from privalign.events import Event
    from privalign.ledger import Account, Entry

app = typer.Typer(
    cls=Group, help="Privacy budgets: one account per protected preference data set.", no_args_is_help=False, rich_markup_mode=None
)

_SERVED = ("n", "n2", "range", "sensitivity", "certificate", "scale", "beta", "sigma_x", "sigma_z", "tail")  # settings of a mechanism

Name = Annotated[str, typer.Argument(help="Name of the account.", metavar="NAME", show_default=False)]


@app.command()
def create(
    name: Name,
    epsilon: Annotated[float, typer.Option("--epsilon", help="ε of all answers together.", show_default=False)],
    delta: Annotated[float, typer.Option("--delta", help="δ of all answers together.", show_default=False)],
    rule: Annotated[str, typer.Option("--rule", help="basic, fsrc, two-counter or renyi.")] = "renyi",
    order: Annotated[float | None, typer.Option("--order", help="Order α of renyi, fixed for good.", show_default=False)] = None,
    rho: Annotated[float | None, typer.Option("--rho", help="ρ of two-counter. Default: half of ε.", show_default=False)] = None,
    delta_per_query: Annotated[
        float | None, typer.Option("--delta-per-query", help="δ_q of basic and fsrc. Default δ/10⁴.", show_default=False)
    ] = None,
    relation: Annotated[str, typer.Option("--relation", help="add-remove, replace or flip.")] = "replace",
    records_per_person: Annotated[
        int, typer.Option("--records-per-person", help="Records of one person, by name, that are protected.", min=1)
    ] = 1,
    dataset: Annotated[
        str | None,
        typer.Option("--dataset", help="Data set that it protects. Default: of the account's name.", metavar="ID", show_default=False),
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option(
            "--also",
            help="Another account over the same data set: accepts that ε and δ of both add up. May be repeated.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    mechanism: Annotated[
        str | None,
        typer.Option(
            "--mechanism",
            help="Choose the order of renyi that answers most of its queries.  [required with its settings]",
            show_default=False,
        ),
    ] = None,
    for_model: Annotated[
        str | None,
        typer.Option("--for-model", help="The same for a model of a deployment file.  [required with --config]", show_default=False),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="Deployment file, for its ledger.  [required with --for-model]", metavar="FILE", show_default=False),
    ] = None,
    n: options.N = None,
    n2: options.N2 = None,
    range: options.Range = None,
    sensitivity: options.SensitivityOption = None,
    certificate: options.Certificate = None,
    scale: options.Scale = None,
    beta: options.Beta = None,
    sigma_x: options.SigmaX = None,
    sigma_z: options.SigmaZ = None,
    tail: options.Tail = None,
    ledger: OwnLedger = None,
    json: options.Json = False,
) -> None:
    """Makes an account. Its rule and budget never change; raising ε later needs a reason that is shown ever after."""
    served = {name: value for name, value in locals().items() if name in _SERVED}
    from privalign.accounting.rules import make_rule
    from privalign.sensitivity import Relation

    _check_choice(mechanism, for_model, config, chosen=order is not None or rule != "renyi", served=served)
    try:
        neighbours = Relation(relation)
    except ValueError:
        raise InvalidInput("--relation", f"{relation!r} is not one of {', '.join(item.value for item in Relation)}") from None
    event = None if mechanism is None else _event_of_mechanism(mechanism, served)
    if for_model is not None and config is not None:
        event = _event_of_model(config, for_model)
    made = make_rule(rule, epsilon, delta, order=order, rho=rho, delta_per_query=delta_per_query, event=event)
    if event is not None:
        made.charge(event)  # refuses what no account can pay for
    account = open_ledger(ledger_url(ledger, config), must_exist=False).create_account(
        name, made, relation=neighbours, records_per_person=records_per_person, dataset=dataset, also=also or ()
    )
    _show_account(account, json)


@app.command("list")
def list_accounts(ledger: OwnLedger = None, config: LedgerOfConfig = None, json: options.Json = False) -> None:
    """All accounts, with what is spent and what remains."""
    documents = [account_document(account) for account in open_ledger(ledger_url(ledger, config)).accounts()]
    if json:
        print_json({"accounts": documents})
        return
    print_table(
        ("account", "rule", "ε", "δ", "ε spent", "ε remaining", "queries"),
        (
            (d["name"], d["rule"], d["epsilon"], d["delta"], d["spent"]["epsilon"], d["remaining"]["epsilon"], d["queries"]["settled"])
            for d in documents
        ),
    )


@app.command()
def show(name: Name, ledger: OwnLedger = None, config: LedgerOfConfig = None, json: options.Json = False) -> None:
    """One account: guarantee, spent, remaining, raw counters."""
    _show_account(open_ledger(ledger_url(ledger, config)).account(name), json)


@app.command()
def journal(
    name: Name,
    after: Annotated[int, typer.Option("--after", help="Only rows after this number.", min=0)] = 0,
    ledger: OwnLedger = None,
    config: LedgerOfConfig = None,
    json: options.Json = False,
) -> None:
    """The append-only journal of an account, oldest first."""
    import dataclasses

    opened = open_ledger(ledger_url(ledger, config))
    account, entries = opened.account(name), opened.journal(name, after=after if json else 0)
    if json:
        rows = [
            {
                "seq": entry.seq,
                "time": entry.time.isoformat(),
                "kind": entry.kind,
                "reservation": entry.reservation,
                "debit": dataclasses.asdict(entry.debit),
                "queries": entry.queries,
                "note": dict(entry.note),
                "hash": entry.hash,
            }
            for entry in entries
        ]
        print_json({"account": name, "entries": rows})
        return
    print_table(("row", "time", "kind", "of", "queries", "key", "model", "ε spent", "hash"), _in_words(account, entries, after))


@app.command()
def verify(
    name: Name,
    expect_head: Annotated[
        str | None, typer.Option("--expect-head", help="A head that was written down elsewhere.", metavar="HASH", show_default=False)
    ] = None,
    ledger: OwnLedger = None,
    config: LedgerOfConfig = None,
    json: options.Json = False,
) -> None:
    """Re-adds the journal and checks its hash chain; exit 5 says which row is wrong. Write the printed head down elsewhere."""
    checked = open_ledger(ledger_url(ledger, config)).verify(name, expect_head=expect_head)
    spent = {"epsilon": checked.spent[0], "delta": checked.spent[1]}
    facts = {"account": checked.account, "verified": True, "rows": checked.length, "head": checked.head, "spent": spent}
    facts["anchored"] = checked.anchored
    _show(facts, json)


@app.command("raise")
def raise_budget(
    name: Name,
    epsilon: Annotated[float, typer.Option("--epsilon", help="The new ε, above the present one.", show_default=False)],
    reason: Annotated[str, typer.Option("--reason", help="Kept in the journal and shown ever after.", show_default=False)],
    ledger: OwnLedger = None,
    config: LedgerOfConfig = None,
    json: options.Json = False,
) -> None:
    """Raises ε. After answers were seen, the guarantee rests on the word that the raise did not depend on them."""
    raised = open_ledger(ledger_url(ledger, config)).raise_budget(name, epsilon, reason)
    _show_account(raised, json)
    if not json:
        typer.echo(
            f"\nNow write epsilon = {raised.rule.epsilon!r} under [accounts.{name}] of every deployment file: the old value is refused."
        )


@app.command()
def export(
    name: Name,
    out: Annotated[Path | None, typer.Option("--out", help="Write there instead of to stdout.", metavar="FILE", show_default=False)] = None,
    ledger: OwnLedger = None,
    config: LedgerOfConfig = None,
    json: options.Json = False,
) -> None:
    """The account and its whole journal as JSON lines, with hashes: for auditors and backups. `--json` counts or wraps them."""
    lines = open_ledger(ledger_url(ledger, config)).export(name)
    if out is None:
        if json:
            print_json({"account": name, "lines": list(lines)})
            return
        for line in lines:
            typer.echo(line)
        return
    count = 0
    with replacing(out, private=True) as file:
        for line in lines:
            file.write(line + "\n")
            count += 1
    if json:
        print_json({"account": name, "file": str(out), "lines": count})


def _check_choice(mechanism: str | None, for_model: str | None, config: Path | None, *, chosen: bool, served: Mapping[str, Any]) -> None:
    """Refuses a choice of the order by a query that contradicts itself; `chosen`: the order, or another rule, is typed already."""
    if mechanism is None and any(value is not None for value in served.values()):
        raise InvalidInput("--mechanism", "missing; the other settings of a mechanism mean nothing without it")
    if mechanism is not None and for_model is not None:
        raise InvalidInput("--for-model", "give either it or --mechanism, not both")
    if for_model is not None and config is None:
        raise InvalidInput("--config", "missing; it has the model that --for-model names")
    for given, value in (("--mechanism", mechanism), ("--for-model", for_model)):
        if value is not None and chosen:
            raise InvalidInput(given, "it chooses the order of rule renyi; leave out --order, and give --rule renyi")


def _event_of_mechanism(mechanism: str, served: Mapping[str, Any]) -> Event:
    """What one query of a mechanism with these settings costs."""
    from privalign.errors import setting
    from privalign.settings import NOISE_OPTIONS, parse

    settings = parse({"mechanism": mechanism, **served})
    for noise in NOISE_OPTIONS.get(mechanism, ()):
        if served[noise] is None:  # --epsilon, which calibrates elsewhere, is the account's here
            raise InvalidInput(setting(noise), f"missing; give the noise of {mechanism}, of which the order is chosen")
    return settings.build().event(settings.sensitivity)


def _event_of_model(config: Path, name: str) -> Event:
    """What one query of a model in a deployment file costs."""
    from privalign.deployment import load
    from privalign.mechanisms.protocol import event_of

    deployment = load(config)
    try:
        spec = deployment.model(name)
    except InvalidInput as error:
        error.rename("--for-model")
        raise
    return event_of(spec.mechanism, deployment.rewards[spec.reward].sensitivity)


def _in_words(account: Account, entries: Iterable[Entry], after: int) -> Iterator[tuple[object, ...]]:
    """Rows for people, those after `after`: whose and of which model, and the ε that everything debited up to there converts to."""
    from privalign.accounting.rules import Debit

    debited, whose = Debit(), dict[int | None, tuple[object, object]]()
    for entry in entries:
        debited += entry.debit
        if entry.kind == "reserve":
            whose[entry.seq] = entry.note.get("api_key", ""), entry.note.get("model", "")
        if entry.seq > after:
            key, model = whose.get(entry.seq if entry.reservation is None else entry.reservation, ("", ""))
            queries, spent = f"{entry.queries:+d}" if entry.queries else "", account.rule.spent(debited)[0]
            time = f"{entry.time:%Y-%m-%d %H:%M:%S}"
            yield entry.seq, time, entry.kind, entry.reservation or "", queries, key, model, spent, entry.hash[:12]
        whose.pop(entry.reservation, None)


def _show_account(account: Account, json: bool) -> None:
    facts = account_document(account)
    if not json:
        from privalign.statements import delta_left

        facts["remaining"] |= {"delta": delta_left(account.rule, account.spent[1], account.remaining[1])}
    _show(facts, json)


def _show(facts: dict[str, Any], json: bool) -> None:
    if json:
        print_json(facts)
    else:
        print_facts(str(facts.get("name") or facts["account"]), {name: value for name, value in facts.items() if name != "raw"})

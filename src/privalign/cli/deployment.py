"""`init`, `config check` and `ask`: a deployment file from its first draft to a private answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privalign.cli import options
from privalign.cli.ledgers import remaining_delta, warn_unanchored
from privalign.cli.output import print_facts, print_json, printable, replacing
from privalign.cli.spelling import Group
from privalign.errors import BackendFailed, CheckFailed, InvalidFile, InvalidInput, PrivalignError, SeveralFaults

if TYPE_CHECKING:
    from privalign.aligner.clock import Deadline
    from privalign.deployment import Deployment, ModelSpec
    from privalign.ledger import Account

app = typer.Typer(cls=Group, help="The deployment file.", no_args_is_help=False, rich_markup_mode=None)

ConfigFile = Annotated[Path, typer.Option("--config", help="Deployment file.", metavar="FILE")]
DEFAULT_FILE = Path("privalign.toml")

TEMPLATE = """\
# privalign deployment. `privalign config check` says what is wrong with it, `privalign ask` answers from it.
# Secrets stand here only by reference: api_key = "env:NAME" or "file:PATH".

[ledger]
url = "sqlite:///privalign.db"            # several gateways: "postgresql+psycopg://user@host/database"

[accounts.prefs]                          # one protected preference data set; its terms never change
epsilon = 8.0                             # of all answers together
delta = 1e-6
rule = "renyi"                            # renyi | two-counter | fsrc | basic
relation = "replace"                      # add-remove | replace | flip: how the records of one person, by name, may differ
records_per_person = 1
# dataset = "prefs"                       # its id, by default the account's name, as reward fit --dataset names it;
                                          # a second account over it says also = ["prefs"]

[policies.local]
independent_of_accounts = {confirmed}     # confirm: not tuned, prompted or cached on protected data
kind = "llamacpp"                         # openai | transformers | llamacpp | recorded
# llamacpp without a model is the embedded small one; with model = "model.gguf" any other
# kind = "openai": base_url = "http://127.0.0.1:8000/v1", model = "...", api_key = "env:OPENAI_API_KEY"
slots = 16                                # candidates decoded together
context = 512                             # tokens of one candidate, the prompt included
parameters = {{ max_tokens = 64, temperature = 1.0 }}

[rewards.learned]
kind = "head"                             # vllm-classify | vllm-score | vllm-pooling | sglang | tei | tei-rerank |
certificate = "head.json"                 # transformers | head | ensemble
# served rewards: base_url, model, range = [0.0, 1.0] (known without protected scores; or see `privalign reward range`) and
# sensitivity = "range" | {{ certificate = "c.json" }} | {{ declared = 0.01, reason = "..." }}

[models.aligned]                          # what is asked for by name
policy = "local"
reward = "learned"
account = "prefs"
mechanism = {{ kind = "privbon", n = 16, epsilon = 0.5 }}     # noise for this ε a query; or scale = ...
# mechanism = {{ kind = "privitp", n = 16, beta = 0.05, sigma_x = 0.5, sigma_z = 0.5 }}
max_tokens = 256                          # of one answer; requests for more are refused
on_exhausted = "refuse"                   # or "base": answer from the base policy, free, and say so

# [gateway]                               # of `privalign serve`
# requests_per_minute = 6000.0            # of one key
# show_budget = false                     # hide what remains from clients
# secure_cookies = true                   # where a TLS proxy stands in front
# trusted_proxies = ["127.0.0.1"]         # whose X-Forwarded-For names who tries to log in
"""


def init(
    file: Annotated[Path, typer.Argument(help="File to write.", metavar="[FILE]", show_default=False)] = DEFAULT_FILE,
    independent: Annotated[
        bool, typer.Option("--independent", help="Confirm that the policy does not depend on the protected data.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Writes a commented deployment file that runs on the embedded model; an existing file is left alone."""
    from privalign.secret import make_named_key

    if file.exists():
        raise InvalidInput("FILE", f"{file} exists already; name another one, or remove it")
    make_named_key()
    with replacing(file, field="FILE") as out:
        out.write(TEMPLATE.format(confirmed="true " if independent else "false"))
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
    from privalign.deployment import load
    from privalign.deployment.doubts import doubts
    from privalign.intervals import shown

    faults = _Faults(file)
    with faults.gathered():
        deployment = load(file)
        if not deployment.models:
            raise CheckFailed(f"{file}: no [models.*] table, so there is nothing to ask for; add one")
        accounts = deployment.accounts_found()
    faults.refuse()
    models = []
    for spec in deployment.models.values():
        with faults.gathered():
            facts = _model_facts(deployment, spec, accounts[spec.account])
            models.append(facts)
            if facts["left"] == 0 and spec.on_exhausted == "refuse":
                raise CheckFailed(f"{file}: [models.{spec.name}] account: {_unpayable(facts)}")
    if probe:
        for back_end in _back_ends(deployment):
            with faults.gathered():
                asyncio.run(back_end)
        faults.refuse()
        for spec, facts in zip(deployment.models.values(), models, strict=True):
            facts["deadline"] = _deadline(deployment, spec)
    faults.refuse()
    missing = [name for name, account in accounts.items() if account is None]
    warnings = doubts(deployment)
    if json:
        listed = [{**model, "deadline": asdict(model["deadline"])} if probe else model for model in models]
        found = {"file": str(file), "ledger": deployment.ledger_url, "probed": probe, "models": listed, "accounts_to_create": missing}
        print_json({**found, "warnings": warnings})
        return
    for model in models:
        typer.echo(f"{model['name']}: {model['guarantee']}")
        account = accounts[model["account"]]
        if account is not None and model["left"] is not None:
            typer.echo(f"{model['name']}: at least {model['left']:,} answers are left, as ε = {shown(account.spent[0])} is spent already")
        if probe:
            typer.echo(f"{model['name']}: selection leaves at {model['deadline']}, whatever the scores")
    for warning in warnings:
        typer.echo(f"warning: {warning}")
    if missing:
        typer.echo(f"first use will create in the ledger: account{'s' if len(missing) != 1 else ''} {', '.join(missing)}")
    typer.echo(f"{file}: {len(models)} model{'s' if len(models) != 1 else ''}, all back-ends {'answered' if probe else 'not probed'}")


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

    deployment = load(config)
    spec = deployment.model(model)
    ledger = deployment.ledger()
    release = deployment.serve(spec, ledger).ask(prompt)
    account = ledger.account(spec.account)
    warn_unanchored(ledger)
    epsilon, delta = account.remaining
    document: dict[str, Any] = {
        "text": release.text,
        "privacy": {
            "mechanism": release.mechanism,
            "epsilon": release.epsilon,
            "delta": release.delta,
            "account": spec.account,
            "candidates": release.drawn,
            **deployment.rewards[spec.reward].sensitivity.stated(),
        },
        "remaining": {"epsilon": epsilon, "delta": delta},
    }
    if json:
        print_json(document)
        return
    text = printable(release.text)
    if stream:
        for word in text.split(" "):
            typer.echo(word + " ", nl=False)
        typer.echo()
    else:
        typer.echo(text)
    typer.echo()
    print_facts("privacy", {**document["privacy"], "remaining ε": epsilon, "remaining δ": remaining_delta(account)})


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
    from privalign.aligner.clock import Clock
    from privalign.randomness import SecureRandomness

    served = spec.served(deployment.policies[spec.policy].make(), deployment.rewards[spec.reward].make())
    return Clock(served, SecureRandomness()).deadline()


@contextlib.contextmanager
def _located(table: str, hint: str = "") -> Iterator[None]:
    """Says which back-end did not do its work, and what else to try."""
    try:
        yield
    except BackendFailed as error:
        raise CheckFailed(f"{table}: {error}" + (f"; {hint}" if hint else "")) from None


def _unpayable(facts: dict[str, Any]) -> str:
    """Why an account pays for no answer of a model, and what to do."""
    if facts["answers"]:
        return f"of {facts['account']} too little is left for one more answer; raise it, name another one, or set on_exhausted"
    return f"{facts['account']} cannot pay for a single answer: use more noise, a smaller Δ, or a larger ε of the account"


def _model_facts(deployment: Deployment, spec: ModelSpec, account: Account | None) -> dict[str, Any]:
    """What one model promises; `account` is the one in the ledger, None where it is still to be made as the file says."""
    from privalign.accounting import costs
    from privalign.accounting.rules import Debit
    from privalign.intervals import shown
    from privalign.mechanisms.protocol import event_of
    from privalign.sensitivity import PERSON

    reward = deployment.rewards[spec.reward]
    sensitivity = reward.sensitivity
    terms = deployment.accounts[spec.account] if account is None else account
    event = event_of(spec.mechanism, sensitivity)
    deployment.check_paid(spec, account)
    epsilon = costs.epsilon(event, spec.delta)
    source = {
        "range": "the whole range, assuming nothing",
        "certificate": f"certified, data set {sensitivity.dataset or 'not stated'}",
        "declared": "declared by the operator",
    }
    whence = {
        "operator": "typed by the operator",
        "public": "from scores of a public reward model",
        "certificate": "of the certificate",
    }
    worst = terms.rule.charge(event)
    limit = terms.rule.limit if account is None else account.limit
    debited = Debit() if account is None else account.debited
    counters = [name for name in ("epsilon", "delta", "rho", "rdp") if getattr(worst, name)]
    answers = min((getattr(limit, name) // getattr(worst, name) for name in counters), default=None)
    left = min((max(0, getattr(limit, name) - getattr(debited, name)) // getattr(worst, name) for name in counters), default=None)
    promised = terms.rule.guarantee() if account is None else account.guarantee
    pays = "Its answers are free." if answers is None else f"It pays for at least {answers:,} answers in all."
    given = f"range {sensitivity.range.low!r},{sensitivity.range.high!r} {whence[reward.range_from]}"
    if sensitivity.release is not None:
        guarantee = (
            f"{spec.mechanism.name}, {given}; the head itself was {sensitivity.release.words}, of whose sum it is part. {pays} {PERSON}"
        )
    else:
        guarantee = (
            f"{spec.mechanism.name}, ε ≤ {shown(epsilon)} an answer, Δ = {shown(sensitivity.delta)} ({source[sensitivity.source]}), "
            f"{given}; account {terms.name}, against {terms.relation.change(terms.records_per_person)}. {promised} {pays} {PERSON}"
        )
    return {
        "name": spec.name,
        "policy": spec.policy,
        "reward": spec.reward,
        "account": spec.account,
        "mechanism": spec.mechanism.name,
        "epsilon": epsilon,
        "answers": answers,
        "left": left,
        **sensitivity.stated(),
        "range_from": reward.range_from,
        "guarantee": guarantee,
        "deadline": None,
    }

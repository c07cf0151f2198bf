"""The deployment file as frozen objects, and what they build."""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from privalign.accounting.rules import Debit, Rule, make_rule
from privalign.aligner import Aligner, Performance, ServedModel
from privalign.deployment.gateway import read_gateway
from privalign.deployment.policies import PolicySpec, read_policy
from privalign.deployment.rewards import RewardSpec, read_reward
from privalign.deployment.tables import Table, resolve_secret
from privalign.errors import InvalidFile, InvalidInput, SeveralFaults, setting
from privalign.events import Event
from privalign.gateway.settings import GatewaySettings
from privalign.ledger import Account, Key, Ledger, UnknownAccount
from privalign.ledger.accounts import check_name, check_sharing
from privalign.ledger.presence import is_made
from privalign.ledger.terms import Terms, check_paid
from privalign.mechanisms.privitp import PrivITP
from privalign.mechanisms.protocol import Mechanism, event_of
from privalign.policies.protocol import Policy
from privalign.rewards.protocol import Reward
from privalign.secret import installation_key
from privalign.sensitivity import Relation, Sensitivity
from privalign.settings import MECHANISM_SETTINGS, MECHANISMS, parse


@dataclass(frozen=True, slots=True)
class AccountTerms:
    """What an `[accounts.*]` table asks for; `written` names the parameters of the rule that stand in the file.

    The others took their defaults, which depend on ε: an account whose ε was raised keeps the ones it was made with. `dataset` is
    what it protects, `also` the other accounts over that: those that it names, and those that name it.
    """

    name: str
    rule: Rule
    relation: Relation
    records_per_person: int
    dataset: str
    also: frozenset[str] = frozenset()
    written: frozenset[str] = frozenset()

    @property
    def terms(self) -> Terms:
        """The terms as the ledger knows them."""
        return Terms(self.rule, self.relation, self.records_per_person, self.dataset)

    def charge(self, event: Event) -> Debit:
        """What a query would cost.

        Raises:
            InvalidInput: its sensitivity does not hold for these neighbours, or it has no guarantee.
        """
        return self.terms.charge((event,))


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A `[models.*]` table."""

    name: str
    policy: str
    reward: str
    account: str
    mechanism: Mechanism
    delta: float
    on_exhausted: str
    reuse_threshold: bool
    performance: Performance
    max_tokens: int | None = None

    def served(self, policy: Policy, reward: Reward) -> ServedModel:
        """The model, of these two as built."""
        return ServedModel(
            name=self.name,
            policy=policy,
            reward=reward,
            mechanism=self.mechanism,
            account=self.account,
            on_exhausted=self.on_exhausted,
            delta=self.delta,
            reuse_threshold=self.reuse_threshold,
            performance=self.performance,
            max_tokens=self.max_tokens,
        )


@dataclass(frozen=True, slots=True)
class BackEnds:
    """Policies and rewards by name, built."""

    policies: Mapping[str, Policy]
    rewards: Mapping[str, Reward]


@dataclass(frozen=True, slots=True)
class Deployment:
    """A deployment file, checked."""

    file: Path
    ledger_url: str
    accounts: Mapping[str, AccountTerms]
    policies: Mapping[str, PolicySpec]
    rewards: Mapping[str, RewardSpec]
    models: Mapping[str, ModelSpec]
    gateway: GatewaySettings

    def model(self, name: str | None) -> ModelSpec:
        """The model of that name; without a name the only one.

        Raises:
            InvalidInput: there is none of that name, or several and no name.
        """
        if name is None and len(self.models) == 1:
            return next(iter(self.models.values()))
        if name is None or name not in self.models:
            wanted = "missing" if name is None else f"'{name}' is not in {self.file}"
            raise InvalidInput(setting("model"), f"{wanted}; choose one of {', '.join(self.models) or 'those that you add as [models.*]'}")
        return self.models[name]

    def ledger(self) -> Ledger:
        """The ledger, with every `[accounts.*]` made that is missing.

        Raises:
            InvalidInput: an account there differs from the file.
        """
        ledger = Ledger(self._url)
        for terms in self.accounts.values():
            self._meet(ledger, terms)
        return ledger

    def accounts_found(self) -> dict[str, Account | None]:
        """The account of every `[accounts.*]` as it stands; None where `ledger` would make it. Makes nothing itself, no file either.

        Raises:
            InvalidInput: an account there differs from the file, or a name cannot be one. LedgerFailed: the ledger cannot be read.
        """
        faults: list[InvalidInput] = []
        for name in self.accounts:
            with _gathered(faults):
                check_name(name)
        there: dict[str, Account] = {}
        with contextlib.closing(Ledger(self._url)) as ledger:  # opens nothing yet
            if is_made(self._url):
                there = {account.name: account for account in ledger.accounts()}
        for terms in self.accounts.values():
            with _gathered(faults):
                if terms.name in there:
                    self._compare(there[terms.name], terms)
                else:
                    self._sharing(terms, there.values())
        _refuse(self.file, faults)
        return {name: there.get(name) for name in self.accounts}

    def keys_found(self) -> list[Key]:
        """The keys of the ledger, as it stands. Makes nothing itself.

        Raises:
            LedgerFailed: the ledger cannot be read.
        """
        with contextlib.closing(Ledger(self._url)) as ledger:
            return ledger.keys() if is_made(self._url) else []

    @property
    def _url(self) -> str:
        return resolved_url(self.ledger_url)

    def _meet(self, ledger: Ledger, terms: AccountTerms) -> None:
        account = _found(ledger, terms.name)
        if account is None:
            try:
                account = ledger.create_account(
                    terms.name,
                    terms.rule,
                    relation=terms.relation,
                    records_per_person=terms.records_per_person,
                    dataset=terms.dataset,
                    also=self._sharing(terms, ledger.accounts()),
                )
            except InvalidInput:
                account = _found(ledger, terms.name)  # another process made it a moment ago
                if account is None:
                    raise
        self._compare(account, terms)

    def _sharing(self, terms: AccountTerms, accounts: Iterable[Account]) -> set[str]:
        """Which of the ledger's accounts protect the data set of one that is to be made.

        Raises:
            InvalidInput: it does not name them, or names one that is neither there nor in the file.
        """
        others = {each.name: each.terms for each in accounts if each.dataset == terms.dataset}
        try:
            check_sharing(terms.terms, terms.also - (self.accounts.keys() - others.keys()), others)
        except InvalidInput as error:
            raise InvalidInput(f"{self.file}: [accounts.{terms.name}] {error.field}", error.message) from None
        return set(others)

    def _compare(self, account: Account, terms: AccountTerms) -> None:
        pairs = [
            ("rule", account.rule.name, terms.rule.name),
            ("relation", account.relation.value, terms.relation.value),
            ("records_per_person", account.records_per_person, terms.records_per_person),
            ("dataset", account.dataset, terms.dataset),
            *(
                (name, getattr(account.rule, name, None), getattr(terms.rule, name, None))
                for name in ("epsilon", "delta", *sorted(terms.written))
            ),
        ]
        for name, there, here in pairs:
            if there != here:
                raise InvalidInput(
                    f"{self.file}: [accounts.{terms.name}] {name}",
                    f"{here} here, {there} in the ledger; an account never changes: correct the file, raise it, or name a new one",
                )

    def serve(self, spec: ModelSpec, ledger: Ledger) -> Aligner:
        """Builds policy and reward of one model and joins them on the one path, for a process that begins anew every time."""
        return self._aligner(spec, ledger, self.policies[spec.policy].make(), self.rewards[spec.reward].make(), probe_first=True)

    def back_ends(self) -> BackEnds:
        """Builds what the models need: those that name the same policy or reward share it. Touches no ledger."""
        policies = {name: self.policies[name].make() for name in sorted({spec.policy for spec in self.models.values()})}
        rewards = {name: self.rewards[name].make() for name in sorted({spec.reward for spec in self.models.values()})}
        return BackEnds(policies, rewards)

    def serve_all(self, ledger: Ledger, built: BackEnds) -> list[Aligner]:
        """Every model, for one process that serves them all."""
        return [self._aligner(spec, ledger, built.policies[spec.policy], built.rewards[spec.reward]) for spec in self.models.values()]

    def check_paid(self, spec: ModelSpec, account: Account | None) -> None:
        """Refuses a released head that the account of the ledger did not pay for; None is one that is still to be made.

        Raises:
            InvalidInput: it did not.
        """
        event = event_of(spec.mechanism, self.rewards[spec.reward].sensitivity)
        terms = self.accounts[spec.account]
        try:
            check_paid(spec.account, terms.terms, Debit() if account is None else account.debited, (event,))
        except InvalidInput as error:
            raise InvalidInput(f"{self.file}: [models.{spec.name}] {error.field}", error.message) from None

    def _aligner(self, spec: ModelSpec, ledger: Ledger, policy: Policy, reward: Reward, *, probe_first: bool = False) -> Aligner:
        self.check_paid(spec, ledger.account(spec.account))
        served = spec.served(policy, reward)
        return Aligner(ledger, served, prompt_key=installation_key() if spec.reuse_threshold else b"", probe_first=probe_first)


def _found(ledger: Ledger, name: str) -> Account | None:
    try:
        return ledger.account(name)
    except UnknownAccount:
        return None


def load(file: Path) -> Deployment:
    """Reads and checks a deployment file.

    Raises:
        InvalidFile: unreadable or not TOML. InvalidInput: names the table, the key, the value and the remedy. SeveralFaults: more
        than one is wrong; one table can hide others of its own where what it lacks decides what is read next.
    """
    faults: list[InvalidInput] = []
    document = _document(file, faults)
    url, gateway = "", GatewaySettings()
    with _gathered(faults):
        url = _ledger(file, document)
    tables = {kind: dict(_tables(file, document, kind, faults)) for kind in ("accounts", "policies", "rewards", "models")}
    accounts = _accounts(tables["accounts"], faults)
    policies: dict[str, PolicySpec] = {}
    for name, table in tables["policies"].items():
        with _gathered(faults):
            policies[name] = read_policy(name, table)
    rewards: dict[str, RewardSpec] = {}
    for name, table in sorted(tables["rewards"].items(), key=lambda item: item[1].has("members")):  # members before ensembles
        if table.mentions("members", tables["rewards"].keys() - rewards.keys()):
            continue  # what is wrong with a member is said already
        with _gathered(faults):
            rewards[name] = read_reward(name, table, rewards)
    models: dict[str, ModelSpec] = {}
    for name, table in tables["models"].items():
        wrong = {key: tables[kind].keys() - good.keys() for key, kind, good in _chosen(accounts, policies, rewards)}
        if not any(table.mentions(key, names) for key, names in wrong.items()):
            with _gathered(faults):
                models[name] = _model(name, table, accounts, policies, rewards)
    with _gathered(faults):
        gateway = read_gateway(Table(file, "gateway", document.get("gateway", {}), faults))
    _refuse(file, faults)
    return Deployment(file, url, accounts, policies, rewards, models, gateway)


def _refuse(file: Path, faults: list[InvalidInput]) -> None:
    if len(faults) > 1:
        raise SeveralFaults(faults, f"`privalign config check {file}` names all")
    if faults:
        raise faults[0]


@contextlib.contextmanager
def _gathered(faults: list[InvalidInput]) -> Iterator[None]:
    """Puts what ends the reading of a table to the other faults, so that the next table is read all the same."""
    try:
        yield
    except InvalidInput as fault:
        faults.append(fault)


@dataclass(frozen=True, slots=True)
class LedgerTable:
    """What a deployment file says about its ledger, whatever else is wrong with it: the URL, and the account that pays for each model."""

    url: str
    models: Mapping[str, str]


def load_ledger(file: Path) -> LedgerTable:
    """Reads where the ledger of a deployment is, and which models it serves.

    Raises:
        InvalidFile: unreadable or not TOML. InvalidInput: the table of the ledger is wrong, or what its URL refers to.
    """
    document = _document(file)
    models = {name: table.text("account", "") for name, table in _tables(file, document, "models")}
    return LedgerTable(resolved_url(_ledger(file, document)), models)


def resolved_url(url: str) -> str:
    """The URL of a ledger, which may be a reference, `env:NAME` or `file:PATH`, as it may hold a password.

    Raises:
        InvalidInput: there is nothing behind the reference.
    """
    return (resolve_secret(url) or "") if url.startswith(("env:", "file:")) else url


def _document(file: Path, faults: list[InvalidInput] | None = None) -> dict[str, Any]:
    """The tables that a deployment file may have; others are refused, or put to the faults."""
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8-sig"))  # editors of some systems write a mark before the text
    except OSError as error:
        raise InvalidFile(str(file), None, f"cannot be read ({error.strerror}); write one with `privalign init`") from None
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, a number of thousands of digits, or too deep
        raise InvalidFile(str(file), None, f"not TOML that can be read here: {error}") from None
    known = ("ledger", "accounts", "policies", "rewards", "models", "gateway")
    for name, value in document.items():
        if name not in known or not isinstance(value, dict):
            fault = InvalidInput(f"{file}: [{name}]", f"no such table; known are {', '.join(known)}")
            if faults is None:
                raise fault
            faults.append(fault)
    return {name: value for name, value in document.items() if isinstance(value, dict)}


def _ledger(file: Path, document: Mapping[str, Any]) -> str:
    ledger = Table(file, "ledger", document.get("ledger", {}))
    url = _ledger_url(ledger)
    ledger.close()
    return url


def _tables(file: Path, document: Mapping[str, Any], kind: str, faults: list[InvalidInput] | None = None) -> Iterator[tuple[str, Table]]:
    for name, values in document.get(kind, {}).items():
        if isinstance(values, dict):
            yield name, Table(file, f"{kind}.{name}", values, faults)
            continue
        fault = InvalidInput(f"{file}: [{kind}] {name}", f"is not a table; write [{kind}.{name}]")  # it may be a secret
        if faults is None:
            raise fault
        faults.append(fault)


def _chosen(
    accounts: Mapping[str, AccountTerms], policies: Mapping[str, PolicySpec], rewards: Mapping[str, RewardSpec]
) -> tuple[tuple[str, str, Mapping[str, Any]], ...]:
    """What a model names: its key, the kind of table, and those that there are."""
    return (("policy", "policies", policies), ("reward", "rewards", rewards), ("account", "accounts", accounts))


def _ledger_url(table: Table) -> str:
    """The ledger's URL, a SQLite file relative to the deployment file; or a reference to it, where it holds a password.

    One deployment file means one ledger, from whatever folder it is used: two ledgers would be two budgets.
    """
    url: str = table.text("url", "sqlite:///privalign.db")
    if url.startswith(("env:", "file:")):
        return str(table.secret("url"))
    try:
        parts = make_url(url)
    except (ArgumentError, ValueError):
        raise table.wrong("url", "not a database URL; give sqlite:///FILE or postgresql+psycopg://USER@HOST/DATABASE") from None
    if parts.password or "password" in parts.query:
        raise table.wrong("url", "holds a password; keep the URL elsewhere and write env:NAME or file:PATH")
    if parts.get_backend_name() == "sqlite" and parts.database and parts.database != ":memory:":
        url = parts.set(database=str(table.file.parent / parts.database)).render_as_string()
    with table.naming("url"):
        Ledger(url)  # refuses what it cannot open, without opening anything
    return url


def _accounts(tables: Mapping[str, Table], faults: list[InvalidInput]) -> dict[str, AccountTerms]:
    """All accounts. Two over one data set are told apart by `also` in either table, so that their order does not matter."""
    accounts: dict[str, AccountTerms] = {}
    for name, table in tables.items():
        with _gathered(faults):
            accounts[name] = _account(table)
    for name, terms in accounts.items():
        naming = {other for other, its in accounts.items() if name in its.also}
        accounts[name] = replace(terms, also=terms.also | naming)
    for name, terms in accounts.items():
        others = {other: its.terms for other, its in accounts.items() if other != name and its.dataset == terms.dataset}
        with _gathered(faults), tables[name].naming("dataset"):
            check_sharing(terms.terms, terms.also & accounts.keys(), others)
    return accounts


def _account(table: Table) -> AccountTerms:
    rule = table.choice("rule", ("basic", "fsrc", "two-counter", "renyi"), "renyi")
    parameters = {name: table.number(name, None) for name in ("order", "rho", "delta_per_query")}
    epsilon, delta = table.number("epsilon"), table.number("delta")
    with table.naming("rule"):
        made = make_rule(rule, epsilon, delta, **parameters)
    relation = Relation(table.choice("relation", tuple(item.value for item in Relation), "replace"))
    records = table.whole("records_per_person", 1)
    name = table.name.removeprefix("accounts.")
    dataset = table.text("dataset", name)
    with table.naming("dataset"):
        check_name(dataset, "dataset")
    also = frozenset(table.names("also", ()))
    table.close()
    written = frozenset(name for name, value in parameters.items() if value is not None)
    return AccountTerms(name, made, relation, records, dataset, also, written)


def _model(
    name: str,
    table: Table,
    accounts: Mapping[str, AccountTerms],
    policies: Mapping[str, PolicySpec],
    rewards: Mapping[str, RewardSpec],
) -> ModelSpec:
    chosen: dict[str, str] = {}
    for key, kind, known in _chosen(accounts, policies, rewards):
        chosen[key] = table.text(key)
        if chosen[key] not in known:
            raise table.wrong(key, f"there is no [{kind}.{chosen[key]}]; known are {', '.join(known) or 'none'}")
    sensitivity = rewards[chosen["reward"]].sensitivity
    mechanism, delta = _mechanism(table, sensitivity)
    with table.naming("mechanism"):
        accounts[chosen["account"]].charge(event_of(mechanism, sensitivity))
    performance = Performance(
        chunk=table.whole("chunk", Performance().chunk),
        padding=table.duration("padding", None, least=0.0),
        lease=table.duration("lease", Performance().lease, least=1.0),
    )
    reuse = table.flag("reuse_threshold", False)
    if reuse and not isinstance(mechanism, PrivITP):
        raise table.wrong("reuse_threshold", f"{mechanism.name} has no threshold; leave it out, or choose privitp")
    spec = ModelSpec(
        name=name,
        policy=chosen["policy"],
        reward=chosen["reward"],
        account=chosen["account"],
        mechanism=mechanism,
        delta=delta,
        on_exhausted=table.choice("on_exhausted", ("refuse", "base"), "refuse"),
        reuse_threshold=reuse,
        performance=performance,
        max_tokens=table.whole("max_tokens", None),
    )
    table.close()
    return spec


def _mechanism(table: Table, sensitivity: Sensitivity) -> tuple[Mechanism, float]:
    """The mechanism and δ of its phase 1; the sensitivity is the reward's."""
    inner = table.table("mechanism")
    kind = inner.choice("kind", MECHANISMS)
    given = inner.unchecked(MECHANISM_SETTINGS)
    inner.close()
    with inner.naming():
        settings = parse({**given, "mechanism": kind}, sensitivity)
        return settings.build(), settings.delta

"""`reward`: certified heads from preference data, and what a certificate says; public ranges are in `ranges`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privalign.cli import options
from privalign.cli.ledgers import DEFAULT_LEDGER, LedgerOption, open_ledger, warn_unanchored
from privalign.cli.output import print_facts, print_json, refuse_ledger, to_json
from privalign.cli.ranges import choose_range
from privalign.cli.spelling import Group
from privalign.errors import InvalidInput, setting

if TYPE_CHECKING:
    from privalign.aligner.paid_release import PaidRelease
    from privalign.ledger import Account, Ledger
    from privalign.preferences.bradley_terry import Head, HeadSettings
    from privalign.preferences.differences import Differences, Owners
    from privalign.preferences.features import FeatureMap
    from privalign.sensitivity import Certificate, Relation

app = typer.Typer(cls=Group, help="Reward models with a certified sensitivity.", no_args_is_help=False, rich_markup_mode=None)

_NAMES = {"regularisation": "lambda", "feature_norm": "norm"}  # settings that the library calls otherwise
_DIAGNOSTICS_NOTICE = "not private: computed exactly from the protected preferences; for the operator only"


@app.command()
def fit(
    prefs: Annotated[
        Path,
        typer.Argument(help="Preferences: JSONL, plain or gzip, with prompt, chosen, rejected.", metavar="PREFS", show_default=False),
    ],
    out: Annotated[Path, typer.Option("--out", help="The certificate; weights go beside it.", metavar="HEAD.json", show_default=False)],
    relation: Annotated[str, typer.Option("--relation", help="add-remove, replace or flip.")] = "replace",
    records_per_person: Annotated[
        int,
        typer.Option("--records-per-person", help="Records of one person, by name; more are refused where annotators are named.", min=1),
    ] = 1,
    clip_records: Annotated[
        int | None,
        typer.Option("--clip-records", help="Keep only so many records of a person, and certify for that.", min=1, show_default=False),
    ] = None,
    features: Annotated[
        str, typer.Option("--features", help="hashed-ngrams, or a JSON object with the kind and its settings.", metavar="KIND|JSON")
    ] = "hashed-ngrams",
    regularisation: Annotated[
        float | None,
        typer.Option("--lambda", help="Λ: the sensitivity falls as 1/Λ.  [required, or --public]", metavar="Λ", show_default=False),
    ] = None,
    public: Annotated[
        Path | None, typer.Option("--public", help="Choose Λ on these public preferences instead.", metavar="FILE", show_default=False)
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            "--dataset",
            help="Data set that PREFS are, as its account names it. Default: that of --account, else of the file's name.",
            metavar="ID",
            show_default=False,
        ),
    ] = None,
    norm: Annotated[float, typer.Option("--norm", help="B: features are scaled down to this length.")] = 1.0,
    tolerance: Annotated[float, typer.Option("--tolerance", help="τ: the solve must reach a gradient this small.")] = 1e-3,
    range: Annotated[str, typer.Option("--range", help="Public range LO,HI of the scores.", metavar="LO,HI")] = "0,1",
    output: Annotated[str, typer.Option("--output", help="How w·φ gets into the range: sigmoid or clip.")] = "sigmoid",
    shards: Annotated[int, typer.Option("--shards", help="Heads on disjoint shards, whose scores are averaged.", min=1)] = 1,
    shard_by: Annotated[str, typer.Option("--shard-by", help="What decides a record's shard: pair or person.")] = "pair",
    release_epsilon: Annotated[
        float | None,
        typer.Option("--release-epsilon", help="Release the head itself with this ε.  [required with --account]", show_default=False),
    ] = None,
    release_delta: Annotated[
        float | None, typer.Option("--release-delta", help="… and this δ.  [required with it]", show_default=False)
    ] = None,
    account: Annotated[
        str | None,
        typer.Option(
            "--account", help="… paid once by this account.  [required with it, and with --ledger]", metavar="A", show_default=False
        ),
    ] = None,
    ledger: LedgerOption = DEFAULT_LEDGER,
    workers: Annotated[int, typer.Option("--workers", help="Processes that compute features.", min=1)] = 2,
    diagnostics: Annotated[
        Path | None, typer.Option("--diagnostics", help="Write facts that are not private there.", metavar="FILE", show_default=False)
    ] = None,
    json: options.Json = False,
) -> None:
    """Fits a head to preferences and certifies how far one person can move its scores.

    Prints the certificate, in which nothing is computed from the preferences. All settings must come from public knowledge.
    """
    if account is None and ledger != DEFAULT_LEDGER:
        raise InvalidInput("--account", "missing; without it nothing is charged, and --ledger means nothing")
    release = _release_options(release_epsilon, release_delta, account, shards)
    records = clip_records or records_per_person
    given = {"relation": relation, "records_per_person": records, "feature_norm": norm, "tolerance": tolerance}
    with _renamed(), _bars() as bar:
        _check_files(prefs, out, public, diagnostics)
        map_ = _features(features)
        chosen: dict[str, Any] = {}
        if (regularisation is None) == (public is None):
            raise InvalidInput("--lambda", "give either it, or --public to choose it on public preferences; never choose it on PREFS")
        if public is not None:
            regularisation, chosen = _choose(public, prefs, map_, given, bar)
        book = None if release is None else open_ledger(ledger)
        given |= {"range": range, "output": output, "shards": shards, "shard_by": shard_by}
        settings = _settings(map_, regularisation, given)
        settings = replace(settings, dataset=_dataset(dataset, prefs, None if book is None else book.account(str(account))))
        reading: dict[str, object] = {"clip": clip_records is not None, "most": records_per_person}
        paid = None if book is None or release is None else _paid(book, settings, release, prefs, reading, out)
        differences, owners, read = _read(prefs, settings, clip_records, records, workers, bar("reading"))
        head, certificate = _fitted(settings, differences, owners, paid, out, bar("solving"))
        if diagnostics is not None:
            _write_diagnostics(diagnostics, {"records_read": read, "records_kept": differences.records} | _accuracy(head, differences))
    document = certificate.to_json() | chosen
    if json:
        print_json(document)
    else:
        from privalign.statements import of_certificate

        print_facts(f"certified: {out}", document)
        typer.echo("\n".join(of_certificate(certificate)))


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="A certificate.", metavar="HEAD.json", show_default=False)], json: options.Json = False
) -> None:
    """Checks a certificate and its weights, and says in words what it promises and what that rests on."""
    from privalign.rewards.head import HeadReward
    from privalign.secret import existing_key
    from privalign.sensitivity import load_certificate
    from privalign.statements import of_certificate

    certificate = load_certificate(file, existing_key())
    if certificate.features is not None:
        HeadReward.load(file)  # refuses missing weights, which a certificate without a model behind it does not need
    words = of_certificate(certificate)
    if json:
        print_json(certificate.to_json() | {"explanation": words})
    else:
        print_facts(f"certificate {file}", certificate.to_json())
        typer.echo("\n".join(words))


app.command("range")(choose_range)


def _dataset(given: str | None, prefs: Path, account: Account | None) -> str:
    """What the data set is called: as typed, which must be as the account calls it; else as the account does, else as the file."""
    from privalign.ledger.accounts import check_name

    if account is not None and given not in (None, account.dataset):
        raise InvalidInput(
            "--dataset", f"{given} is not the data set of account {account.name}: {account.dataset}; give that, or leave it out"
        )
    if account is not None:
        return account.dataset
    if given is None:
        given = prefs.name.removesuffix(".gz").removesuffix(".jsonl")
    check_name(given, "--dataset")
    return given


def _features(text: str) -> FeatureMap:
    import json

    from privalign.preferences.features import feature_map

    try:
        return feature_map(json.loads(text) if text.lstrip().startswith("{") else {"kind": text})
    except ValueError as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput("--features", "neither a kind of features nor a JSON object") from None


def _settings(features: FeatureMap, regularisation: float | None, given: Mapping[str, Any]) -> HeadSettings:
    from privalign.preferences.bradley_terry import HeadSettings
    from privalign.preferences.persons import ShardBy
    from privalign.settings import parse

    assert regularisation is not None
    if given["shard_by"] not in list(ShardBy):
        raise InvalidInput("--shard-by", f"{given['shard_by']!r} is not one of {', '.join(ShardBy)}")
    words = {"relation": _relation(given["relation"]), "shard_by": ShardBy(given["shard_by"])}
    interval = parse({"mechanism": "base", "range": given["range"]}).sensitivity.range
    return HeadSettings(features, regularisation, **{**given, **words, "range": interval})


def _relation(name: str) -> Relation:
    from privalign.sensitivity import Relation

    if name not in list(Relation):
        raise InvalidInput("--relation", f"{name!r} is not one of {', '.join(Relation)}")
    return Relation(name)


def _release_options(epsilon: float | None, delta: float | None, account: str | None, shards: int) -> tuple[float, float, str] | None:
    if epsilon is None and delta is None and account is None:
        return None
    if epsilon is None or delta is None or account is None:
        raise InvalidInput("--release-epsilon", "it, --release-delta and --account belong together; give all three")
    if shards > 1:
        raise InvalidInput("--shards", "a released head is one head; leave the shards out")
    from privalign.preferences.release import release_scale

    with _renamed():
        release_scale(1.0, epsilon, delta)  # refuses what is out of range before a long fit
    return epsilon, delta, account


def _check_files(prefs: Path, out: Path, public: Path | None, diagnostics: Path | None) -> None:
    """Refuses, before anything is read, what could not be written in the end or would replace another file of the run."""
    from privalign.preferences.bradley_terry import check_place

    if out.suffix != ".json":
        raise InvalidInput("--out", f"{out} does not end in .json; the weights take the same name with .safetensors")
    weights = out.with_suffix(".safetensors")
    for option, path in (("--out", out), ("--out", weights), ("--diagnostics", diagnostics)):
        if path is not None and not path.parent.is_dir():
            raise InvalidInput(option, f"{path.parent} is not a folder; make it first")
        if path is not None and path.resolve() in {prefs.resolve(), None if public is None else public.resolve()}:
            raise InvalidInput(option, f"{path} is a file to read; give another name")
    if diagnostics is not None and diagnostics.resolve() in {out.resolve(), weights.resolve()}:
        raise InvalidInput("--diagnostics", f"{diagnostics} is where --out puts the head; give another name")
    if diagnostics is not None and diagnostics.is_dir():
        raise InvalidInput("--diagnostics", f"{diagnostics} is a folder; give the name of a file")
    if diagnostics is not None:
        refuse_ledger(diagnostics, "--diagnostics")
    check_place(out)


def _choose(
    public: Path, prefs: Path, features: FeatureMap, given: Mapping[str, Any], bar: Callable[[str], Callable[[float], None]]
) -> tuple[float, dict[str, Any]]:
    """Λ, and how it does on the public pairs it was chosen on: nothing of the private ones is in it."""
    import dataclasses

    from privalign.preferences.pairs import read_pairs
    from privalign.preferences.preparing import refuse_shared_pairs
    from privalign.preferences.tuning import choose_regularisation

    refuse_shared_pairs(prefs, public, bar("comparing"))
    pairs, progress = read_pairs(public), bar("choosing Λ on public pairs")
    tuned = choose_regularisation(pairs, features, progress=progress, **{**given, "relation": _relation(given["relation"])})
    return tuned.regularisation, {"public": {"pairs": len(pairs)} | dataclasses.asdict(tuned)}


def _read(
    prefs: Path, settings: HeadSettings, clip: int | None, records: int, workers: int, progress: Callable[[float], None]
) -> tuple[Differences, Owners, int]:
    from privalign.preferences.preparing import read_differences

    return read_differences(prefs, settings, most=records, clip=clip is not None, workers=workers, progress=progress)


def _fitted(
    settings: HeadSettings,
    differences: Differences,
    owners: Owners,
    paid: PaidRelease | None,
    out: Path,
    progress: Callable[[float], None],
) -> tuple[Head, Certificate]:
    """The head in its place, released where an account pays for that."""
    from privalign.preferences.bradley_terry import fit, minimisers

    if paid is None:
        head = fit(settings, differences, owners, progress)
        return head, head.save(out)
    made = paid.make(lambda: minimisers(settings, differences, progress=progress))
    warn_unanchored(paid.ledger)
    return made


def _paid(
    ledger: Ledger, settings: HeadSettings, release: tuple[float, float, str], prefs: Path, reading: dict[str, object], out: Path
) -> PaidRelease:
    """Refuses, before a long fit, what no account could pay for; what this one can pay is asked when it pays."""
    from privalign.aligner.paid_release import PaidRelease

    epsilon, delta, account = release
    return PaidRelease(ledger, account, settings, epsilon, delta, prefs, reading, out)


def _accuracy(head: Head, differences: Differences) -> dict[str, Any]:
    from privalign.preferences.tuning import pair_accuracy

    heads = head.weights.reshape(-1, differences.dimension)
    return {"training_accuracy": [pair_accuracy(weights, differences) for weights in heads]}


def _write_diagnostics(path: Path, facts: dict[str, Any]) -> None:
    import os
    import stat

    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # /dev/null stays everybody's
                os.fchmod(file.fileno(), 0o600)
            file.write(to_json({"notice": _DIAGNOSTICS_NOTICE} | facts) + "\n")
    except OSError as error:
        raise InvalidInput("--diagnostics", f"{path} cannot be written ({error.strerror}); give another file") from None


@contextlib.contextmanager
def _renamed() -> Iterator[None]:
    """Settings that have another name here are called by it."""
    try:
        yield
    except InvalidInput as error:
        if error.field in _NAMES:
            error.rename(setting(_NAMES[error.field]))
        raise


@contextlib.contextmanager
def _bars() -> Iterator[Callable[[str], Callable[[float], None]]]:
    """Bars on stderr where that is a terminal, by shares of the work and never by counts of records; nothing of them stays."""
    import sys

    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:

        def bar(title: str) -> Callable[[float], None]:
            task = progress.add_task(title, total=1.0, start=False)

            def update(share: float) -> None:
                progress.start_task(task)
                progress.update(task, completed=share)

            return update

        yield bar

"""`study`: each command prints a table or one document, writes it, and says that nothing of it is a private release."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from privalign.cli.simulate import simulate
from privalign.cli.studies import app
from privalign.errors import InvalidInput
from privalign.report.build import read_studies, stale_studies

RANGE = ("--range", "0,1")
COMMANDS = {
    "composition": ("--sigmas", "0.5", "--n", "4", "--seeds", "1", "--most", "10", "--order", "1.5"),
    "matched": ("--n", "4", "--epsilons", "2", "--streams", "", "--splits", "1", "--replicates", "5"),
    "ablation": ("--sigmas", "0.1,1", "--n", "4", "--replicates", "5"),
    "win-rate": ("--sigma", "0.2", "--n-grid", "2,4", "--replicates", "5"),
    "overhead": ("--sigma", "0.2", "--n-grid", "4", "--simulated", "50", "--timed", "1"),
    "budget": ("--n", "4", "--simulated", "50"),
}


@pytest.fixture
def scored(tmp_path: Path) -> Path:
    rng, file = np.random.default_rng(0), tmp_path / "scored.jsonl"
    with file.open("w") as lines:
        for prompt in range(4):
            responses = [{"text": str(i), "is_correct": float(gold > 0.5), "proxy_reward": gold} for i, gold in enumerate(rng.random(12))]
            lines.write(json.dumps({"prompt": str(prompt), "responses": responses}) + "\n")
    return file


@pytest.mark.parametrize("command", COMMANDS)
def test_document_and_table(command: str, scored: Path, tmp_path: Path) -> None:
    out = tmp_path / "study.json"
    result = CliRunner().invoke(
        app, [command, str(scored), *RANGE, *COMMANDS[command], "--json", "--out", str(out)], catch_exceptions=False
    )
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["study"].startswith(command)
    assert document["notice"].startswith("not a private release")
    assert document["rows"]
    assert json.loads(out.read_text()) == document
    table = CliRunner().invoke(app, [command, str(scored), *RANGE, *COMMANDS[command]], catch_exceptions=False)
    assert table.stdout.startswith("not a private release")
    assert document["title"] in " ".join(table.stdout.split())
    if command in ("matched", "win-rate", "budget"):  # what ε holds for stands beside it
        assert "ε for Δ = 1 (range)" in " ".join(table.stdout.split())
    if "sensitivity" in document["settings"]:
        assert {"relation", "records_per_person"} <= document["settings"].keys()


@pytest.mark.parametrize("command", COMMANDS)
def test_range_is_asked_for(command: str, scored: Path) -> None:
    result = CliRunner().invoke(app, [command, str(scored), *COMMANDS[command]])
    told = str(result.exception) if command == "composition" else result.stderr  # the published protocol needs none, and may be asked for
    assert "--range: missing" in told or "Missing option '--range'" in told


def test_all_studies_of_a_recipe(scored: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {"prompt_id": number, "prompt": record["prompt"], **response}
        for number, record in enumerate(map(json.loads, scored.read_text().splitlines()))
        for response in record["responses"]
    ]
    run, recipe = tmp_path / "run", tmp_path / "recipe.toml"
    recipe.write_text(
        '[evaluate.table-6]\nkind = "budget"\nrange = [0, 1]\nn = 4\nsimulated = 20\n'
        '[evaluate.comparison]\nrange = [0, 1]\nmechanisms = ["bon"]\nn_grid = [2]\n'
    )
    with pytest.raises(InvalidInput, match="holds no graded candidates"):
        CliRunner().invoke(app, ["all", "--recipe", str(recipe), "--run", str(run)], catch_exceptions=False)
    (run / "grade").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), run / "grade" / "part-00000.parquet")
    result = CliRunner().invoke(app, ["all", "--recipe", str(recipe), "--run", str(run), "--json"], catch_exceptions=False)
    assert [study["name"] for study in json.loads(result.stdout)["studies"]] == ["table-6", "comparison"]
    comparison, table_6 = run / "studies" / "comparison.json", run / "studies" / "table-6.json"
    assert json.loads(comparison.read_text())["study"] == "comparison"
    recipe.write_text(recipe.read_text().replace("n_grid = [2]", "n_grid = [2, 3]"))
    table_6.write_text(table_6.read_text()[:100])
    again = CliRunner().invoke(app, ["all", "--recipe", str(recipe), "--run", str(run), "--json"], catch_exceptions=False)
    assert json.loads(again.stdout)["resumed"] == 0  # another table, and a damaged document
    stamps = {path: path.stat().st_mtime_ns for path in (comparison, table_6)}
    again = CliRunner().invoke(app, ["all", "--recipe", str(recipe), "--run", str(run), "--json"], catch_exceptions=False)
    assert json.loads(again.stdout)["resumed"] == 2
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    pq.write_table(pa.Table.from_pylist(rows[:-4]), run / "grade" / "part-00000.parquet")
    again = CliRunner().invoke(app, ["all", "--recipe", str(recipe), "--run", str(run), "--json"], catch_exceptions=False)
    assert json.loads(again.stdout)["resumed"] == 0  # other candidates
    recipe.write_text(recipe.read_text().replace("[evaluate.table-6]", "[evaluate.table-7]"))  # renamed: table-6 is stale
    (run / "studies" / "by-hand.json").write_text(json.dumps({**json.loads(table_6.read_text()), "settings": {}}))
    again = CliRunner().invoke(app, ["all", "--recipe", str(recipe), "--run", str(run), "--json"], catch_exceptions=False)
    assert json.loads(again.stdout)["left_out"] == [str(table_6)] == [str(path) for path in stale_studies([run])]
    assert len(read_studies([run])) == 3
    assert len(read_studies([run, table_6])) == 4  # named, it is reported
    again = CliRunner().invoke(app, ["all", "--recipe", str(recipe), "--run", str(run)], catch_exceptions=False)
    assert again.stdout.count(f"left out, no longer of the run's recipe: {table_6}\n") == 1
    listed, good = (run / "studies.json").read_text(), recipe.read_text()
    recipe.write_text(good.replace('kind = "budget"', ""))  # table-7 is no kind
    with pytest.raises(InvalidInput, match="'table-7' is not one of"):
        CliRunner().invoke(app, ["all", "--recipe", str(recipe), "--run", str(run)], catch_exceptions=False)
    assert (run / "studies.json").read_text() == listed
    recipe.write_text("")
    with pytest.raises(InvalidInput, match="no study in it"):
        CliRunner().invoke(app, ["all", "--recipe", str(recipe), "--run", str(run)], catch_exceptions=False)


def graded(run: Path, rewards: list[float], prompts: int = 3) -> Path:
    pq, pa = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    rows = [
        {"prompt_id": number, "prompt": "p", "text": "t", "is_correct": float(i % 2), "proxy_reward": reward}
        for number in range(prompts)
        for i, reward in enumerate(rewards)
    ]
    (run / "grade").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), run / "grade" / "part-00000.parquet")
    return run


def all_of(recipe: Path, *arguments: object) -> Result:
    return CliRunner().invoke(app, ["all", "--recipe", str(recipe), *map(str, arguments)], catch_exceptions=False)


def test_a_study_that_fails_stops_no_other_one(tmp_path: Path) -> None:
    run, recipe = graded(tmp_path / "run", [0.1, 0.5, 0.9]), tmp_path / "recipe.toml"
    comparison = 'kind = "comparison"\nrange = [0, 1]\nmechanisms = ["bon"]\nn_grid = [{}]\n'
    tables = {"first": comparison.format(9), "second": comparison.format(2), "third": comparison.format(8)}
    recipe.write_text("".join(f"[evaluate.{name}]\n{table}" for name, table in tables.items()))
    with pytest.raises(InvalidInput, match=r"\[evaluate.third\] n_grid: no prompt has the 8 usable"):
        all_of(recipe, "--run", run)
    assert [path.name for path in (run / "studies").iterdir()] == ["second.json"]
    assert set(json.loads((run / "studies.json").read_text())["studies"]) == set(tables)
    printed = CliRunner().invoke(app, ["all", "--recipe", str(recipe), "--run", str(run), "--json"])
    assert isinstance(printed.exception, InvalidInput)  # the command's exit code
    assert (printed.stdout, len(printed.stderr.splitlines())) == ("", 1)
    assert "[evaluate.first] n_grid: no prompt has the 9 usable" in printed.stderr


def test_prompts_of_several_runs_pool(tmp_path: Path) -> None:
    """Also where both number their prompts alike; the document tells the candidates of both by their digests."""
    runs = [graded(tmp_path / name, rewards) for name, rewards in (("a", [0.1, 0.5, 0.9]), ("b", [50.0, 60.0, 70.0]))]
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('[evaluate.comparison]\nrange = [0, 1]\nmechanisms = ["bon"]\nn_grid = [2]\n')
    both = ("--run", runs[0], "--run", runs[1])
    with pytest.raises(InvalidInput, match="--out: missing; several runs pool"):
        all_of(recipe, *both)
    done = all_of(recipe, *both, "--out", tmp_path / "pooled", "--json")
    study = json.loads((tmp_path / "pooled" / "studies" / "comparison.json").read_text())
    assert study["settings"]["prompts"] == 6
    assert len({file["sha256"] for file in study["settings"]["files"]}) == 2
    assert study["settings"]["reward"] == "proxy_reward"
    assert "privalign" in study["settings"]["versions"]
    warning = "privalign: warning: [evaluate.comparison] range: 9 of 18 rewards lie outside 0 … 1 and count as its ends (0 below, 9 above;"
    assert done.stderr.startswith(warning)
    assert study["settings"]["warning"].startswith("range: 9 of 18")
    assert json.loads(all_of(recipe, *both, "--out", tmp_path / "pooled", "--json").stdout)["resumed"] == 1
    assert not (runs[0] / "studies").exists()


def test_tables_whose_files_are_one_on_some_disks_are_refused(tmp_path: Path) -> None:
    run, recipe = graded(tmp_path / "run", [0.1, 0.5, 0.9]), tmp_path / "recipe.toml"
    recipe.write_text("".join(f'[evaluate.{name}]\nkind = "budget"\nrange = [0, 1]\n' for name in "aA"))
    with pytest.raises(InvalidInput, match="share a file on some disks; rename one"):
        all_of(recipe, "--run", run)
    assert not (run / "studies").exists()


@pytest.mark.parametrize("command", [command for command in COMMANDS if command != "matched"])  # the same lines, and the slowest study
def test_studies_warn_of_a_range_that_cuts(command: str, scored: Path) -> None:
    done = CliRunner().invoke(app, [command, str(scored), "--range", "-2,-1", *COMMANDS[command], "--json"], catch_exceptions=False)
    settings = json.loads(done.stdout)["settings"]
    assert settings["clamped"] == {"below": 0, "above": 48, "of": 48}
    assert done.stderr == f"privalign: warning: --{settings['warning']}\n"
    assert settings["file"] == "scored.jsonl"
    assert settings["files"][0]["sha256"]
    assert settings["versions"]


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ('mechanisms = ["privbon"]\nn_grid = [2]', "scale: missing, and it has no default; give it, or epsilon"),
        ('mechanisms = ["privbon"]\nn_grid = [2]\nscale = 1\nepsilon = 1', "epsilon: give either it or scale"),
        ('mechanisms = ["bon"]\nn_grid = [2]\nsigma_x = 1', "sigma_x: none of bon takes it"),
        ('mechanisms = ["bon"]\nn_grid = [2]\nsensitivity = "much"', "sensitivity: 'much' is neither"),
        ('mechanisms = ["privitp"]\nn_grid = [2]\nsigma_x = 1', "sigma_z: missing"),
        ('mechanisms = ["bon"]', "n_grid: missing"),
        ('mechanisms = ["bon"]\nn_grid = [9]', "n_grid: no prompt has the 9 usable candidates"),
        ('mechanisms = ["bon"]\nn_grid = [2]\nmost = 3', "most: not an option of study comparison, which takes mechanisms, n_grid,"),
        ('mechanisms = ["bon"]\nn_grid = [2]\nreplicates = 1', "replicates: 1 is too few"),
        ('mechanisms = ["bon"]\nn_grid = [2]\ndraw = "some"', "draw: 'some' is not one of"),
        ('mechanisms = ["bon"]\nn_grid = [2]\nworkers = 0', "workers: 0 is not"),
        ('mechanisms = ["best"]\nn_grid = [2]', "mechanisms: 'best' is not one of"),
        ('mechanisms = ["bon"]\nn_grid = [2]\nprotocol = "mine"', "protocol: 'mine' is neither"),
        ('mechanisms = ["bon"]\nn_grid = [2]\nprotocol = "authors"\ndraw = "with"', "draw: protocol authors draws without"),
        ('mechanisms = ["bon"]\nn_grid = [2]\nprotocol = "authors"\ntail = 1', "tail: protocol authors has no such setting"),
        ('mechanisms = ["privbon"]\nn_grid = [2]\nprotocol = "authors"\nscale = -1', "scale: -1.0 is not a finite"),
        ('mechanisms = ["bon"]\nn_grid = [4, 2]\nprotocol = "authors"', "n_grid: 4, 2 does not rise"),
        ('kind = "ablation"\nparameter = "mood"', "parameter: 'mood' is not one of"),
        ('kind = "ablation"\nparameter = "sigma"\nsigmas = [1]\nn = 2\nheld_out = 2', "held_out: 2 is not strictly"),
        ('kind = "matched"\nn = 2\nmultiples = [0.5]', "multiples: 0.5 is below 1"),
        ('kind = "matched"\nn = 2\nsplits = [0]', "splits: 0.0 is not a finite"),
        ('kind = "budget"\nn = 2\ndelta = 2', "delta: 2"),
        ('kind = "composition"\nsigmas = [1]\nprotocol = "authors"\nmost = 3', "most: protocol authors has no such setting"),
    ],
)
def test_what_is_wrong_in_a_recipe_is_told_by_file_table_and_key(settings: str, key: str, scored: Path, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    pa = pytest.importorskip("pyarrow")
    run, recipe = tmp_path / "run", tmp_path / "recipe.toml"
    (run / "grade").mkdir(parents=True)
    row = {"prompt_id": 0, "prompt": "p", "text": "t", "is_correct": 1.0, "proxy_reward": 0.5}
    pq.write_table(pa.Table.from_pylist([row] * 4), run / "grade" / "part-00000.parquet")
    recipe.write_text(f"[evaluate.comparison]\nrange = [0, 1]\n{settings}\n")
    with pytest.raises(InvalidInput) as error:
        CliRunner().invoke(app, ["all", "--recipe", str(recipe), "--run", str(run)], catch_exceptions=False)
    assert str(error.value).startswith(f"{recipe}: [evaluate.comparison] {key}")
    assert "--" not in str(error.value)


@pytest.mark.parametrize("option", ["--total-delta", "--most", "--order"])
def test_the_authors_accounting_refuses_what_it_would_not_use(option: str, scored: Path) -> None:
    arguments = ["composition", str(scored), *RANGE, "--sigmas", "1", "--n", "4", "--protocol", "authors"]
    with pytest.raises(InvalidInput, match=f"{option}: protocol authors has no such setting"):
        CliRunner().invoke(app, [*arguments, option, "0.5" if option == "--total-delta" else "2"], catch_exceptions=False)


def test_candidates_cannot_be_simulated_into_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match=r"--out: \. is a folder"):
        simulate("gaussian", 1, 1, Path())
    assert not list(tmp_path.iterdir())


def test_the_authors_accounting_needs_no_range(scored: Path) -> None:
    arguments = ["composition", str(scored), "--protocol", "authors", "--sigmas", "0.5", "--n", "4", "--seeds", "1", "--json"]
    without, given = (CliRunner().invoke(app, [*arguments, *more], catch_exceptions=False) for more in ((), RANGE))
    assert json.loads(without.stdout)["rows"] == json.loads(given.stdout)["rows"]
    faithful = CliRunner().invoke(app, [word for word in arguments if word not in ("--protocol", "authors")])
    assert isinstance(faithful.exception, InvalidInput)
    assert str(faithful.exception).startswith("--range: missing")

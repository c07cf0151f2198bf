"""`privalign report` end to end, and its page in a real browser: narrow and wide, light and dark, to be seen and to be heard."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from privalign.studies.study import NOTICE, Study

Run = Callable[..., tuple[int, str, str]]

ROWS = [
    {"mechanism": name, "n": n, "lift_pp": lift * n, "lift_se_pp": 0.5, "proxy_mean": 0.5, "true_mean": 0.4, "epsilon": epsilon}
    for name, lift, epsilon in (("bon", 0.1, None), ("privbon", 0.2, 2.00001), ("itp", 0.4, None), ("privitp", 0.3, 7.1))
    for n in (2, 4, 8)
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run with two comparisons and a study of a kind that the report does not know."""
    studies = tmp_path / "run" / "studies"
    studies.mkdir(parents=True)
    for name, kind in (("armo", "comparison"), ("gemma", "comparison"), ("new", "brand-new")):
        study = Study(kind, f"Selection rules, {name}", {"seed": 0, "file": "scored.parquet"}, ROWS, 1.0)
        (studies / f"{name}.json").write_text(json.dumps(study.to_json()), encoding="utf-8")
    return tmp_path / "run"


def test_a_run_as_json(run: Run, folder: Path) -> None:
    code, out, err = run("report", folder, "--out", "report", "--json")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert document["notice"] == NOTICE
    assert document["page"] == document["files"][0] == "report/report.html"
    assert [study["study"] for study in document["studies"]] == ["comparison", "comparison", "brand-new"]
    assert all(Path(name).is_file() for name in document["files"])
    assert {Path(name).suffix for name in document["files"]} == {".html", ".png", ".svg", ".md", ".csv", ".tex"}


def test_a_file_for_people(run: Run, folder: Path) -> None:
    code, out, _ = run("report", folder / "studies" / "armo.json", "--out", "report")
    assert code == 0
    assert out.startswith(f"{NOTICE}\n1 study, ")
    assert out.rstrip().endswith("open report/report.html")


def test_what_is_no_longer_of_the_run_is_named_in_one_line(run: Run, folder: Path) -> None:
    armo = folder / "studies" / "armo.json"
    document = json.loads(armo.read_text())
    armo.write_text(json.dumps({**document, "settings": {"request": "of a table that is gone"}}), encoding="utf-8")
    (folder / "studies.json").write_text('{"studies": {"gemma": "b"}}', encoding="utf-8")
    code, out, _ = run("report", folder, "--out", "report")
    assert code == 0
    assert out.splitlines()[:2] == [NOTICE, f"left out, no longer of the run's recipe: {armo}"]
    _, out, _ = run("report", folder, "--out", "report", "--json")
    assert json.loads(out)["left_out"] == [str(armo)]
    assert len(json.loads(out)["studies"]) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["none.json", "--out", "report"], "none.json: cannot be read"),
        (["empty", "--out", "report"], "empty: no study's document in this folder"),
        (["other.json", "--out", "report"], "other.json: not a study's document"),
        (["run", "--out", "other.json/report"], "--out: other.json/report cannot be written to"),
        (["run"], "--out"),
        (["--out", "report"], "STUDY.json"),
    ],
)
def test_what_is_wrong_is_one_line(run: Run, folder: Path, arguments: list[str], said: str) -> None:
    Path("empty").mkdir()
    Path("other.json").write_text("{}", encoding="utf-8")
    code, out, err = run("report", *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert not Path("report").exists()


def test_the_page_in_a_browser(run: Run, folder: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("needs a browser: apt-get install chromium")
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import sync_playwright

    run("report", folder, "--out", "report", "--json")
    address = Path("report/report.html").absolute().as_uri()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for width, scheme in ((360, "light"), (1280, "dark")):
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
            said: list[str] = []
            page.on("console", lambda message, said=said: said.append(message.text))  # type: ignore[misc]
            page.on("request", lambda request, said=said: said.append(request.url))  # type: ignore[misc]
            page.goto(address)
            assert said == [address], "the page asks for nothing else and complains about nothing"
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.locator("figure svg").first.bounding_box()["width"] > 300  # type: ignore[index]
            page.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
            found = Axe().run(page)
            assert found.violations_count == 0, found.generate_report()
            page.close()
        browser.close()

"""The files of a report: always the same bytes, in a folder that holds one report, headed by the notice; the page stands alone."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from privalign.errors import InvalidFile, InvalidInput
from privalign.report import build
from privalign.studies.study import NOTICE, Study

ROWS = [
    {"mechanism": name, "n": n, "lift_pp": 1.0 * n, "lift_se_pp": 0.5, "proxy_mean": 0.5, "epsilon": epsilon}
    for name, epsilon in (("bon", None), ("privbon", 2.00001))
    for n in (2, 4)
]
COMPARISON = Study("comparison", "A comparison", {"seed": 0, "file": "scored.parquet"}, ROWS, 1.0)
ODD = Study("../New Kind", "</h2><script>alert(1)</script>", {"a": "</pre>"}, [{"<b>": "<i>x</i>", "y": {"z": 1}}], 1.0, "read with care")


def save(folder: Path, name: str, written: Study, /, **changes: Any) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(written.to_json() | changes), encoding="utf-8")
    return path


class Reading(HTMLParser):
    """What a browser would see of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return dict(build.report_files([COMPARISON, COMPARISON, ODD]))


@pytest.mark.slow
def test_the_same_studies_give_the_same_bytes(files: dict[str, bytes]) -> None:
    assert dict(build.report_files([COMPARISON, COMPARISON, ODD])) == files


@pytest.mark.slow
def test_names_do_not_depend_on_what_a_kind_says(files: dict[str, bytes]) -> None:
    assert all(re.fullmatch(r"[a-z0-9-]+\.(png|svg|md|csv|tex|html)", name) for name in files)
    assert {"03-new-kind.csv", "03-new-kind.md", "03-new-kind.tex"} == {name for name in files if name.startswith("03")}
    assert {"00-headline.md", "00-comparison-grid.svg", "01-comparison-lift.png", "report.html"} <= set(files)


def test_every_text_is_headed_by_the_notice(files: dict[str, bytes]) -> None:
    for name, content in files.items():
        if not name.endswith(".png"):
            assert "not a private release" in " ".join(content.decode().split()).lower(), name
    assert b"read with care" in files["03-new-kind.md"]


@pytest.mark.slow
def test_what_numbers_rest_on_stands_on_figures_tables_and_the_page() -> None:
    study = Study("comparison", "A comparison", {"protocol": "faithful", "draw": "with", "prompts": 200}, ROWS, 1.0)
    made = dict(build.report_files([study]))
    for name in ("01-comparison-lift.svg", "01-comparison.md", "01-comparison.tex", "01-comparison-by-mechanism.md", "report.html"):
        said = " ".join(made[name].decode().split())
        assert "protocol faithful" in said, name
        assert "200 prompts" in said, name
    for name, content in made.items():  # the headline and the grid of all comparisons too
        assert "pool is the policy" in " ".join(content.decode(errors="replace").split()) or name.endswith(".png"), name
    sampled = dict(build.report_files([Study(study.kind, study.title, {**study.settings, "draw": "without"}, ROWS, 1.0)]))
    assert not any(b"pool is the policy" in content for content in sampled.values())


def test_the_page_stands_alone(files: dict[str, bytes]) -> None:
    text = files["report.html"].decode()
    page = Reading(text)
    assert not {"script", "link", "img", "iframe", "object", "b", "i"} & set(page.tags)
    for name, value in page.attributes:
        if name in ("src", "href", "xlink:href"):
            assert value.startswith("#"), value
    assert "url(http" not in text
    assert "@import" not in text


def test_the_page_can_be_heard(files: dict[str, bytes]) -> None:
    page = Reading(files["report.html"].decode())
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(set(ids)) == len(ids)
    assert page.tags.count("caption") == page.tags.count("table") > 3
    assert page.tags.count("figcaption") == page.tags.count("figure") == page.tags.count("svg") == 2 * 2 + 1
    assert page.tags.count("h1") == 1
    assert all(value.removeprefix("#") in ids for name, value in page.attributes if name == "href")
    labels = [value for name, value in page.attributes if name == "aria-label"]
    assert any("BoN: 2 at 2, 4 at 4." in label for label in labels)


def test_a_loss_is_rounded_up_everywhere(files: dict[str, bytes]) -> None:
    for name in ("01-comparison.md", "01-comparison.tex", "report.html"):
        assert "2.001" in files[name].decode()
    assert "2.00001" in files["01-comparison.csv"].decode()


def test_protocol_authors_says_that_it_is_no_private_mechanism() -> None:
    study = Study("comparison", "T", {"private": "not a private mechanism: one pool"}, ROWS, 1.0)
    assert build.notice_of(study) == f"{NOTICE}; not a private mechanism: one pool"
    assert build.notice_of(study, COMPARISON, ODD) == f"{NOTICE}; not a private mechanism: one pool; read with care"


@pytest.mark.slow
def test_one_comparison_has_no_grid_on_the_page_and_none_no_overview() -> None:
    alone = dict(build.report_files([COMPARISON]))
    assert "00-comparison-grid.png" in alone
    assert b'class="wide"' not in alone["report.html"]
    assert not any(name.startswith("00") for name in dict(build.report_files([ODD])))


def test_nothing_to_report() -> None:
    with pytest.raises(InvalidInput, match="studies: none given"):
        list(build.report_files([]))


@pytest.mark.slow
def test_a_folder_holds_one_report(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("kept")
    build.write_report([COMPARISON, ODD], tmp_path)
    paths = build.write_report([ODD], tmp_path)
    assert paths[0] == tmp_path / "report.html"
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in paths} | {"mine.txt", "files.json"}


def test_a_list_of_files_deletes_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("kept")
    (tmp_path / "files.json").write_text(json.dumps({"files": ["mine.txt", "../x", 7, "01-gone.csv"]}))
    build.write_report([ODD], tmp_path)
    assert (tmp_path / "mine.txt").exists()


def test_nothing_half_written(tmp_path: Path) -> None:
    def broken(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build.write_report([ODD], tmp_path / "out", broken)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match=r"--out: .* cannot be written to"):
        build.write_report([ODD], tmp_path / "file" / "out")


def test_reading_a_run(tmp_path: Path) -> None:
    save(tmp_path, "studies/b.json", ODD)
    save(tmp_path, "studies/a.json", COMPARISON)
    (tmp_path / "manifest.json").write_text('{"stage": "collect"}')
    (tmp_path / "broken.json").write_text("{")
    assert [study.kind for study in build.read_studies([tmp_path])] == ["comparison", "../New Kind"]


def test_equal_titles_are_told_apart_by_their_files(tmp_path: Path) -> None:
    for run in ("gsm8k-phi3", "gsm8k-gemma2"):
        save(tmp_path, f"{run}/studies/comparison-armo.json", COMPARISON)
    titles = [study.title for study in build.read_studies([tmp_path])]
    assert titles == ["A comparison: gsm8k-gemma2/comparison-armo", "A comparison: gsm8k-phi3/comparison-armo"]


def test_text_that_no_document_can_hold_is_replaced(tmp_path: Path) -> None:
    save(
        tmp_path,
        "s.json",
        COMPARISON,
        title="a\ud800b\x1b",
        rows=[{"mechanism": "\ud800", "n": 2, "lift_pp": 1.0}],
        settings={"x\ud800": "\x00", "y": 10**400},
    )
    studies = build.read_studies([tmp_path / "s.json"])
    assert studies[0].title == "a\ufffdb\ufffd"
    assert dict(build.report_files(studies))["01-comparison.csv"].decode().endswith("\ufffd,2,1.0\n")


@pytest.mark.parametrize(
    "changes",
    [{"rows": [1]}, {"rows": {"a": 1}}, {"settings": []}, {"title": 7}, {"study": None}, {"notice": ["x"]}],
)
def test_no_study(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = save(tmp_path, "s.json", COMPARISON, **changes)
    with pytest.raises(InvalidFile, match=r"s\.json"):
        build.read_studies([path])


def test_folders_and_files_without_a_study(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="no study's document in this folder"):
        build.read_studies([tmp_path])
    with pytest.raises(InvalidFile, match="cannot be read"):
        build.read_studies([tmp_path / "none.json"])


@pytest.mark.parametrize("depth", [900, 100_000])
def test_a_document_nested_too_deep_is_one_line(tmp_path: Path, depth: int) -> None:
    file = tmp_path / "study.json"
    nested = "[" * depth + "]" * depth
    file.write_text(f'{{"study": "x", "title": "t", "notice": "n", "rows": [], "settings": {{"a": {nested}}}, "seconds": 1}}')
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)  # libraries that other tests load raise it
    try:
        with pytest.raises(InvalidFile, match=r"nested too deep|not a study"):
            build.read_studies([file])
    finally:
        sys.setrecursionlimit(before)

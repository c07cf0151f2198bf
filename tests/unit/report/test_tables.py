"""Tables as Markdown, CSV and LaTeX: escaped, headed by the notice, nothing lost."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privalign.report import tables
from privalign.studies.study import NOTICE, Study

ROWS = [
    {"mechanism": "bon", "n": 2, "lift_pp": 3.21, "lift_se_pp": 0.5, "true_mean": 0.61, "true_se": 0.01, "epsilon": None, "empty": None},
    {
        "mechanism": "privitp",
        "n": 2,
        "lift_pp": 2.5,
        "lift_se_pp": 0.25,
        "true_mean": 0.6,
        "true_se": 0.01,
        "epsilon": 2.00001,
        "empty": None,
    },
]


def study(rows: list[dict[str, Any]], kind: str = "comparison", title: str = "T") -> Study:
    return Study(kind, title, {}, rows, 1.0)


def test_means_carry_their_errors_and_empty_columns_go() -> None:
    table = tables.table_of(study(ROWS), "t")
    assert [column.heading for column in table.columns] == ["mechanism", "n", "lift (points) ± SE", "true reward ± SE", "ε, worst case"]
    assert table.cells[1] == ("PrivITP", "2", "2.50 ± 0.25", "0.600 ± 0.010", "2.001")
    assert [column.numeric for column in table.columns] == [False, True, True, True, True]


def test_standard_deviations_are_called_so() -> None:
    table = tables.table_of(study([{"rule": "fsrc", "answered_mean": 12.0, "answered_sd": 3.0, "answered_min": 9}]), "t")
    assert [column.heading for column in table.columns] == ["rule", "answered mean ± SD", "answered min"]
    assert table.cells == (("fsrc", "12.0 ± 3.0", "9"),)


def test_rows_of_different_shapes() -> None:
    table = tables.table_of(study([{"a": 1}, {"b": "x"}], kind="new"), "t")
    assert table.cells == (("1", "–"), ("–", "x"))


def test_csv_keeps_full_precision_under_the_notice() -> None:
    first, *rest = tables.to_csv(study(ROWS), NOTICE).splitlines()
    assert first == f"# {NOTICE}"
    records = list(csv.DictReader(io.StringIO("\n".join(rest))))
    assert records[1]["epsilon"] == "2.00001"
    assert records[0]["epsilon"] == ""
    assert records[0]["mechanism"] == "bon"


def test_markdown_is_escaped() -> None:
    table = tables.table_of(study([{"name": "a|b <i> *x*\n\\"}], kind="new", title="1 * 2"), "t")
    lines = tables.to_markdown(table, NOTICE).splitlines()
    assert lines[0] == r"**1 \* 2**"
    assert lines[2] == f"*{NOTICE}*"
    assert lines[-1] == r"| a\|b \<i\> \*x\* \\ |"


def unescaped(text: str) -> bool:
    """Whether a character that is special to LaTeX stands without an escape."""
    kept = re.sub(r"\\[{}$&#_%]", "", text)
    kept = re.sub(r"\\(textbackslash|textasciitilde|textasciicircum|textless|textgreater|textbar|textquotedbl|dots)\{\}", "", kept)
    kept = re.sub(r"\$(\\[A-Za-z]+|-|\^2|_[12])\$", "", kept)
    return re.search(r"[\\{}$&#_%~^<>|\"]", kept) is not None


@given(st.text(alphabet=st.sampled_from('ab \\{}$&#_%~^<>|"εδσβλρΔα±−∞×≤≥→²₁₂–…') | st.characters(min_codepoint=32, max_codepoint=126)))
def test_latex_is_escaped(text: str) -> None:
    assert not unescaped(tables.latex(text))


def test_latex_uses_booktabs() -> None:
    text = tables.to_latex(tables.table_of(study(ROWS, title="50 % & more"), "01-comparison"), NOTICE)
    assert text.startswith(f"% {NOTICE}\n% needs \\usepackage{{booktabs}}\n\\begin{{table}}")
    assert r"\caption{50 \% \& more (not a private release:" in text
    assert r"PrivITP & 2 & 2.50 $\pm$ 0.25 & 0.600 $\pm$ 0.010 & 2.001 \\" in text
    assert text.count(r"\toprule") == text.count(r"\midrule") == text.count(r"\bottomrule") == 1


def test_long_tables_break_over_pages_and_wide_ones_are_scaled() -> None:
    long = tables.to_latex(tables.table_of(study([{"n": n} for n in range(41)]), "t"), NOTICE)
    assert "longtable" in long
    assert r"\begin{table}" not in long
    wide = tables.to_latex(tables.table_of(study([{f"k{i}": i for i in range(9)}]), "t"), NOTICE)
    assert r"\resizebox{\linewidth}{!}{%" in wide
    assert "graphicx" in wide


def test_the_headline_is_at_the_largest_n_with_the_share_of_the_skyline() -> None:
    rows = [
        {"mechanism": m, "n": n, "lift_pp": lift * n, "lift_se_pp": 0.5} for m, lift in (("itp", 2.0), ("privitp", 1.5)) for n in (2, 4)
    ]
    rows.append({"mechanism": "base", "n": 1, "lift_pp": 0.0, "lift_se_pp": 0.0})
    table = tables.headline([study(rows, title="A"), study([{"mechanism": "bon", "n": 8, "lift_pp": 1.0}], title="B")], "h")
    assert table is not None
    assert [column.heading for column in table.columns] == ["study", "n", "BoN", "ITP", "PrivITP", "PrivITP / ITP (%)"]
    assert table.cells == (("A", "4", "–", "8.00 ± 0.50", "6.00 ± 0.50", "75.0"), ("B", "8", "1", "–", "–", "–"))
    rows[3] |= {"recovered_percent": 75.0, "recovered_se_percent": 4.2}
    rows.append({"mechanism": "bon", "n": 8, "lift_pp": 9.0, "lift_se_pp": 0.5})  # pools are too small for the others at 8
    table = tables.headline([study(rows, title="A")], "h")
    assert table is not None
    assert table.cells == (("A", "4", "8.00 ± 0.50", "6.00 ± 0.50", "75.0 ± 4.2"),)


def test_decimals_are_those_of_the_column_and_nothing_is_minus_nought() -> None:
    rows = [{"lift_pp": value, "lift_se_pp": error, "mc_se_pp": 0.1} for value, error in ((-0.001, 0.0), (12.3456, 2.3), (1.5, 0.21))]
    table = tables.table_of(study(rows), "t")
    assert [column.heading for column in table.columns] == ["lift (points) ± SE"]
    assert table.cells == (("0.00 ± 0.00",), ("12.35 ± 2.30",), ("1.50 ± 0.21",))


def test_latex_tables_with_wide_cells_are_scaled() -> None:
    wide = tables.to_latex(tables.table_of(study([{"a": "x" * 60, "b": "y" * 20}]), "t"), NOTICE)
    assert r"\resizebox{\linewidth}{!}{%" in wide


@pytest.mark.parametrize("skyline", [0.0, -1.0, None])
def test_there_is_no_share_of_a_skyline_that_is_no_lift(skyline: float | None) -> None:
    rows = [{"mechanism": "itp", "n": 2, "lift_pp": skyline}, {"mechanism": "privitp", "n": 2, "lift_pp": 1.0}]
    table = tables.headline([study(rows)], "h")
    assert table is not None
    assert table.cells[0][-1] in ("–", "1")


def test_no_comparison_no_headline() -> None:
    assert tables.headline([], "h") is None
    assert tables.headline([study([{"mechanism": "bon"}])], "h") is None
    assert tables.headline([study([{"mechanism": "base", "n": 1, "lift_pp": 0.0}])], "h") is None


def test_win_rates_by_mechanism() -> None:
    rows = [{"mechanism": m, "n": n, "gold_win_rate": 0.9, "gold_win_rate_se": 0.01} for n in (64, 512) for m in ("privitp", "bon")]
    table = tables.by_mechanism(study(rows, kind="win-rate"), "t")
    assert table is not None
    assert [column.heading for column in table.columns] == ["n", "BoN", "PrivITP"]
    assert table.cells == (("64", "0.900 ± 0.010", "0.900 ± 0.010"), ("512", "0.900 ± 0.010", "0.900 ± 0.010"))
    assert tables.by_mechanism(study(rows * 2, kind="win-rate"), "t") is None
    assert tables.by_mechanism(study(rows, kind="new"), "t") is None

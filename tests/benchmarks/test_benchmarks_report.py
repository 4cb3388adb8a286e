"""Tables of benchmarks that go into a file are whole, and Markdown."""

from __future__ import annotations

import pytest

from benchmarks.report import print_table


def test_a_table_in_a_file_is_markdown_with_each_figure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = {f"a rather long heading {number}": f"figure {number}" for number in range(12)}
    print_table("what was measured", [row, row])
    lines = [line.strip() for line in capsys.readouterr().err.splitlines() if "|" in line]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == [*row]
    assert set("".join(cells[1])) <= {"-", ":"}
    assert cells[2:] == [[*row.values()]] * 2


def test_of_a_rounded_figure_the_median_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("", [{"ms": {"median": 3.5, "low": 1.0}}])
    assert "| 3.5 |" in capsys.readouterr().err

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.cli.table_formats.registry import read_source
from torchx_cubicml.errors import RecordError

if TYPE_CHECKING:
    from pathlib import Path

ROWS = [["name", "tp", "speed"], ["a, b", "2", "1.5"], ["c", "4", "2.5"]]


@pytest.mark.parametrize("delimiter", [",", "\t", ";", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_any_delimiter_and_encoding_is_read(tmp_path: Path, delimiter: str, encoding: str) -> None:
    path = tmp_path / "jobs.txt"
    text = "\r\n".join(delimiter.join(f'"{cell}"' if "," in cell else cell for cell in row) for row in ROWS)
    path.write_bytes(text.encode(encoding))
    source = read_source(path)
    assert source.headings == ("name", "tp", "speed")
    assert [cells for _, cells in source.rows] == [("a, b", "2", "1.5"), ("c", "4", "2.5")]


def test_a_markdown_table_is_read(tmp_path: Path) -> None:
    path = tmp_path / "jobs.md"
    path.write_text("| tp | speed |\n|:---|---:|\n| 2 | 1.5 |\n| 4 | 2.5 |\n")
    source = read_source(path)
    assert source.headings == ("tp", "speed")
    assert source.cells("speed") == ["1.5", "2.5"]


def test_emphasis_and_links_of_markdown_are_no_part_of_a_cell(tmp_path: Path) -> None:
    path = tmp_path / "jobs.md"
    path.write_text("| **model** | `tp` |\n|---|---|\n| [7B](https://example.com/7b) | **4** |\n| a_b_c | 2* |\n")
    source = read_source(path)
    assert source.headings == ("model", "tp")
    assert list(source.records()) == [("3", {"model": "7B", "tp": "4"}), ("4", {"model": "a_b_c", "tp": "2*"})]


def test_lines_before_the_header_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("Table 3: throughput\n\ntp,speed\n2,1.5\n4,2.5\n")
    source = read_source(path)
    assert source.headings == ("tp", "speed")
    assert [label for label, _ in source.rows] == ["4", "5"]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["6907,01", "55.256,08"], [6907.01, 55256.08]),
        (["1,024", "2,048"], [1024, 2048]),
        (["1.5", "2"], [1.5, 2]),
        (["1.234,567", "9.876"], [1234.567, 9876]),
        (["0,125", "12,750"], [0.125, 12.75]),
    ],
)
def test_a_comma_is_a_decimal_sign_where_it_separates_no_thousands(
    tmp_path: Path, cells: list[str], expected: list[float]
) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("a;b\n" + "".join(f"x;{cell}\n" for cell in cells))
    source = read_source(path)
    assert [source.number(cell) for cell in source.cells("b")] == expected


def test_headings_are_distinct(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("tp,,tp\n1,2,3\n")
    assert read_source(path).headings == ("tp", "column 2", "tp (2)")


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xff\x00\xfe"])
def test_a_file_without_a_table_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "jobs.csv"
    path.write_bytes(data)
    with pytest.raises(RecordError, match="cannot read"):
        read_source(path)


@pytest.mark.parametrize(
    "text",
    [
        "tp|speed|peak\n2|1.5|\n4||\n8|2.5|9\n",
        "tp|speed|peak|\n2|1.5||\n4|||\n8|2.5|9|\n",
        "tp | speed | peak\n--- | --- | ---\n2 | 1.5 |\n4 | |\n8 | 2.5 | 9\n",
        "| tp | speed | peak |\n| --- | --- | --- |\n| 2 | 1.5 | |\n| 4 | | |\n| 8 | 2.5 | 9 |\n",
    ],
    ids=["plain", "bars-behind", "rule", "markdown"],
)
def test_an_empty_last_cell_between_bars_loses_no_row(tmp_path: Path, text: str) -> None:
    path = tmp_path / "jobs.txt"
    path.write_text(text)
    source = read_source(path)
    assert source.problems == ()
    assert [cells for _, cells in source.rows] == [("2", "1.5", ""), ("4", "", ""), ("8", "2.5", "9")]

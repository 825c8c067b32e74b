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


@pytest.mark.parametrize(
    ("text", "line", "work"),
    [
        # Places where a match can begin, times the length.
        ("a", "xaxa", 2 * 4),
        ("a", "xx", 0),
        ("a", "", 0),
        ("ab", "abxab", 2 * 5),
        ("aa", "aaaaa", 2 * 2 * 5),
        ("aba", "xababa", 3 * 6),
        ("abcab", "abcab", 5 * 5),
        (".", "abé", 3 * 3),
        (".", "", 1),
        (r"\d", "a1b2", 2 * 4),
        (r"\d", "abc", 3),
        (r"\D", "a1b2é", 3 * 5),
        (r"\w", "a_ é2", 4 * 5),
        (r"\W", "a_ -é", 3 * 5),
        (r"\s", "a b\tc", 2 * 5),
        (r"\S", "a b\t", 2 * 4),
        ("[ac-e]", "abcde", 4 * 5),
        ("[a-c]", "abcd", 3 * 4),
        ("[c-\x7f]", "bc\x7féé", 2 * 5),
        ("[c-\x80]", "bc\x80éé", 4 * 5),
        ("[c-é]", "bcéé", 3 * 4),
        ("[ä-é]", "aéé", 2 * 3),
        ("[éö]", "aéüü", 3 * 4),
        ("é+", "aéüü", 3 * 4),
        ("é", "aéüü", 1 * 4),
        ("[\x80]", "a\x80\x80", 2 * 3),
        ("[\x7f]", "\x7f\x7f\x80", 2 * 3),
        ("[^a]", "abcé", 3 * 4),
        ("[^ab]", "abcé", 2 * 4),
        ("[^é]", "abé", 3 * 3),
        ("[^a-y]", "abzé", 2 * 4),
        (r"[^\W]", "a-b", 2 * 3),
        (r"[\s\S]", "a b", 3 * 3),
        # A text that must begin at the start of the line is tried once.
        ("^a", "aaaa", 4),
        (r"\Aa", "aaaa", 4),
        ("^", "aaaa", 4),
        ("", "aaaa", 4),
        (r"\ba", "xaxa", 2 * 4),
        ("a^", "xaxa", 2 * 4),
        ("a$", "xaxa", 2 * 4),
        # Alternatives and optional parts multiply.
        ("[ab]|c1", "abcd", 3 * 2 * 4),
        ("(?:a1|b1|c1)x", "abcd", 3 * 3 * 4),
        ("(?:aa|bb)(?:cc|dd)", "abcd", 2 * 4 * 4),
        ("a?b", "abcd", 2 * 2 * 4),
        ("a?b?c", "abcd", 3 * 4 * 4),
        ("(?:a1|b1)?c", "abcd", 3 * 4 * 4),
        ("a{0,1}b", "abcd", 2 * 2 * 4),
        # A repeat that can also match what follows it is ended at each of those places.
        (r"a\d+b", "a1b1b", 5),
        (r"a.*b", "a1b1b", 2 * 5),
        (r"a.*?b", "a1b1b", 2 * 5),
        (r"a.+b", "a1b1b", 2 * 5),
        (r"a.{2,5}b", "a1b1b", 2 * 5),
        (r"a.{2}b", "a1b1b", 5),
        (r"a.*x", "a1b1b", 5),
        (r"a.*b.*1", "a1b1b", 2 * 2 * 5),
        (r"a.*[b1]", "a1b1b", 4 * 5),
        (r"a\d*\d", "a12b3", 3 * 5),
        (r"a(?:12)*b", "a12b3b", 2 * 6),
        (r"a(1)*b", "a11bb", 5),
        (r"a(?:12){2}b", "a1212b", 6),
        (r"a*b", "aabb", 4 * 4),
        (r"a+b", "aabb", 2 * 4),
        (r"a*ab", "aab", 1 * 2 * 3),
        (r"(a)+b", "aabb", 2 * 4),
        (r".*", "abc", 3 * 3),
        (r"a.*$", "aabc", 2 * 4),
    ],
)
def test_the_work_of_a_search_is_counted(text: str, line: str, work: int) -> None:
    assert BoundedPattern(text).work(line) == work


@pytest.mark.parametrize(
    ("legal", "refused", "rule"),
    [
        ("x" * 1000, "x" * 1001, "^at most 1000 characters are allowed$"),
        ("a?" * 8, "a?" * 9, "^too many optional parts and alternatives; use fewer$"),
        ("(?:a{2})+", "(?:a{2,3})+", "^a repeat or an alternative within a repeat could backtrack exponentially$"),
        ("((a{2}))+", "((a+))+", "^a repeat or an alternative within a repeat"),
        ("(?:ab)+", "(?:a1|b2)+", "^a repeat or an alternative within a repeat"),
        ("(?:ab)?", "(?:ab?)+", "^a repeat or an alternative within a repeat"),
        ("(?:a+)?", "(?:a+){2}", "^a repeat or an alternative within a repeat"),
        ("(a)", "(?s:a)", "^flags such as"),
        ("(?:a)", "(?-i:a)", "^flags such as"),
        ("[Aa]", "(?i)a", "^flags such as"),
    ],
)
def test_a_pattern_is_legal_up_to_its_limit(legal: str, refused: str, rule: str) -> None:
    assert BoundedPattern(legal).work("") <= 256
    with pytest.raises(ValueError, match=rule):
        BoundedPattern(refused)


def test_a_line_of_exactly_the_largest_work_is_searched() -> None:
    pattern, line = BoundedPattern(".(?:aa|bb|cc|dd|ee)"), "a" * 1000
    assert pattern.work(line) == MAX_WORK == 5_000_000
    assert pattern.search(line) is not None
    assert pattern.search(line + "a") is None


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

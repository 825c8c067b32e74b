from __future__ import annotations

import shlex
import subprocess
from string import Template

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.shell import join, quote, respell, split_line, word_of_argument

PIECES = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=6),
    st.sampled_from(["$", "$$", "${app_id}", "$app_id", "$(id)", "'", '"', "\\", " ", "\n", "#", "{a,b}", "~"]),
)
TEXT = st.lists(PIECES, max_size=4).map("".join)


def after_torchx(text: str) -> str:
    """Substitute macros as ``torchx.specs.macros.Values`` does."""
    return Template(text).safe_substitute(app_id="app-1")


@given(st.lists(TEXT, min_size=1))
def test_quoted_values_come_back_through_macros_and_shell_rules(values: list[str]) -> None:
    line = " ".join(["x", *map(quote, values)])
    assert shlex.split(after_torchx(line)) == ["x", *values]
    assert [word.value for word in split_line(line)] == ["x", *values]


@given(st.lists(TEXT))
def test_plain_arguments_keep_their_value_under_a_shell(values: list[str]) -> None:
    words = [word_of_argument(value) for value in values]
    assert shlex.split(after_torchx(join(words))) == [after_torchx(value) for value in values]


@given(st.text("ab \"'\\$\t;|&<>()#`*~{}\n", max_size=14))
def test_words_are_split_as_the_shell_splits_them(line: str) -> None:
    try:
        words = split_line(line)
    except LaunchError:
        return
    assert [word.value for word in words] == [word.replace("$$", "$") for word in shlex.split(line)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("cd /work && torchrun train.py", "not one plain command"),
        ("torchrun train.py > log", "not one plain command"),
        ("torchrun train.py; echo done", "not one plain command"),
        ("torchrun train.py\necho done", "not one plain command"),
        ("torchrun $(find train.py)", "not one plain command"),
        ("torchrun `which train.py`", "not one plain command"),
        ("torchrun 'train.py", "unclosed quote"),
        ("OMP_NUM_THREADS=1 torchrun train.py", "sets variables"),
        ("torchrun train.py # now", "comment"),
    ],
)
def test_more_than_a_plain_command_is_refused_with_the_reason(line: str, reason: str) -> None:
    with pytest.raises(LaunchError, match=reason):
        split_line(line)


def test_lines_broken_by_a_backslash_are_one_command() -> None:
    assert [word.value for word in split_line("torchrun \\\n  --nnodes 1 \\\n  train.py\n")] == [
        *("torchrun", "--nnodes", "1", "train.py")
    ]


@pytest.mark.parametrize("word", ["$HOME", '"$HOME"', "~/x", "*.py", "{a,b}", "x?"])
def test_words_that_a_shell_expands_are_known_as_such(word: str) -> None:
    assert not split_line(f"torchrun {word}")[1].literal


@pytest.mark.parametrize("word", ["'$HOME'", r"\$HOME", "'*'", '"a b"', "a~b", "x=1"])
def test_words_that_no_shell_expands_are_literal(word: str) -> None:
    assert split_line(f"torchrun {word}")[1].literal


def test_words_that_stay_keep_their_text() -> None:
    words = split_line("""--a "x y" --b $HOME --lr 1e-3""")
    assert respell(words, ["--a", "x y", "--b", "$HOME", "--lr", "a'b"], spell=quote) == [
        *("--a", '"x y"', "--b", "$HOME", "--lr", "'a'\"'\"'b'")
    ]


@settings(max_examples=25)
@given(st.lists(TEXT, min_size=1, max_size=4))
def test_a_real_shell_hands_over_every_value(values: list[str]) -> None:
    line = "printf '%s\\0' " + after_torchx(" ".join(map(quote, values)))
    out = subprocess.run(["bash", "-c", line], capture_output=True, check=True).stdout
    assert out.decode().split("\0")[:-1] == values

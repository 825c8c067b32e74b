"""Words of switches: read and rewritten as typed, where the program's parser takes them, and left alone elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch import Launch, read_config, write_config
from torchx_cubicml.records.standard_words import OFF_WORDS, ON_WORDS
from torchx_cubicml.space import Binding, BindingKind, Parameter, SearchSpace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torchx_cubicml.records.values import Scalar

PARSER = "import argparse\np = argparse.ArgumentParser()\n"
TAKES_WORD = f'{PARSER}p.add_argument("--fast-path", type=to_bool, nargs="?", const=True, default=False)\n'
TAKES_NONE = (
    'p.add_argument("--fast-path", "-f", action="store_true")',
    'p.add_argument("--fast_path", action=argparse.BooleanOptionalAction, default=False)',
    'group = p.add_argument_group("speed")\ngroup.add_argument("--fast-path", action="count")',
)
PAIRS = [*zip(ON_WORDS, OFF_WORDS, strict=True)]
CASES = (str.lower, str.upper, str.capitalize)
MIXED = ("tRuE", "oFF", "yES")


def space(*choices: Scalar, name: str = "--fast_path", **more: object) -> SearchSpace:
    place = Binding(kind=BindingKind.FLAG, name=name, **more)
    return SearchSpace(parameters=(Parameter(name="p", choices=choices or (False, True), binding=place),))


def value_of(args: tuple[str, ...], declared: SearchSpace | None = None) -> object:
    launch = Launch(program="t.py", script_args=args, world_size=1)
    return read_config(launch, declared or space())[1]["p"]


def rewritten(args: tuple[str, ...], value: Scalar, declared: SearchSpace | None = None) -> tuple[str, ...]:
    launch = Launch(program="t.py", script_args=args, world_size=1)
    return write_config(launch, declared or space(), {"p": value}).script_args


@pytest.fixture(params=["", TAKES_WORD], ids=["no source", "takes a word"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working folder of a program whose source is not here, or says that a word may follow the flag."""
    monkeypatch.chdir(tmp_path)
    if request.param:
        (tmp_path / "t.py").write_text(request.param)
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize(("on", "off"), PAIRS)
def test_each_word_is_read_and_rewritten_in_its_own_style(on: str, off: str, case: Callable[[str], str]) -> None:
    on, off = case(on), case(off)
    for typed, other, value in ((on, off, True), (off, on, False)):
        for before, after in (
            (("--fast_path", typed, "x"), ("--fast_path", other, "x")),
            ((f"--fast-path={typed}", "x"), (f"--fast-path={other}", "x")),
        ):
            assert value_of(before) is value
            assert rewritten(before, not value) == after
            assert rewritten(before, value) == before


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    word=st.sampled_from([*(case(word) for word in (*ON_WORDS, *OFF_WORDS) for case in CASES), *MIXED, None]),
    form=st.sampled_from(["separate", "joined", "bare", "negated"]),
    unknown=st.lists(st.sampled_from(["--other", "-v", "--lr=1", "train", "--fast_paths", "n2"]), max_size=4),
    wanted=st.booleans(),
)
@pytest.mark.usefixtures("folder")
def test_the_law_of_the_round_trip(word: str | None, form: str, unknown: list[str], wanted: bool) -> None:
    own = {
        "separate": ("--fast_path", word or "true"),
        "joined": (f"--fast_path={word or 'true'}",),
        "bare": ("--fast_path",),
        "negated": ("--no-fast_path",),
    }[form]
    args = (*unknown, *own, "--end", *unknown)
    value = value_of(args)
    assert isinstance(value, bool)
    assert rewritten(args, value) == args
    after = rewritten(args, wanted)
    assert value_of(after) is wanted
    assert after[: len(unknown)] == tuple(unknown)
    assert after[len(after) - after[::-1].index("--end") :] == tuple(unknown)


@pytest.mark.parametrize("declared", TAKES_NONE)
@pytest.mark.parametrize("word", ["n", "1", "off", "Yes", "train"])
def test_a_word_behind_a_plain_switch_is_no_value(
    declared: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.py").write_text(f"from options import p\n{PARSER}")
    (tmp_path / "options.py").write_text(f"{PARSER}{declared}\n")
    args = ("--fast_path", word, "x")
    assert value_of(args) is True
    assert rewritten(args, True) == args
    assert rewritten(args, False) == (word, "x")
    assert rewritten((word, "x"), True) == (word, "x", "--fast_path")


def test_a_word_that_the_source_takes_is_read_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert value_of(("--fast_path", "maybe")) is True  # without a source, the word is a positional argument
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here" / "t.py").write_text(TAKES_WORD)
    with pytest.raises(LaunchError, match=r"^--fast_path is 'maybe' in the command; choose from false, true$"):
        value_of(("--fast_path", "maybe"))


def test_a_flag_that_takes_a_word_is_added_with_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.py").write_text(f'{PARSER}p.add_argument("--fast_path", type=to_bool, default=False)\n')
    assert rewritten(("x",), True) == ("x", "--fast_path", "true")
    assert rewritten(("--lr=1",), True) == ("--lr=1", "--fast_path=true")


@pytest.mark.parametrize(("typed", "value", "other"), [("yes", "full", "no"), ("F", "none", "T"), ("0", "none", "1")])
def test_words_of_a_trainer_stand_for_all_spellings(typed: str, value: str, other: str) -> None:
    declared = space("none", "full", name="--ck", words=(("none", "False"), ("full", "True")), bare="full")
    assert value_of(("--ck", typed), declared) == value
    assert rewritten(("--ck", typed), value, declared) == ("--ck", typed)
    assert rewritten(("--ck", typed), "full" if value == "none" else "none", declared) == ("--ck", other)


def test_a_word_that_is_a_choice_of_its_own_is_no_switch() -> None:
    declared = space(0, 1, 2, name="--level", words=((0, "off"), (2, "on")))
    assert [value_of(("--level", word), declared) for word in ("off", "1", "on")] == [0, 1, 2]
    assert rewritten(("--level", "1"), 2, declared) == ("--level", "on")
    words = space("on", "off", "no", name="--level")
    assert rewritten(("--level", "on"), "no", words) == ("--level", "no")


def test_short_flags_in_one_word_are_no_value() -> None:
    assert value_of(("-ft",), space(name="-f")) is False  # -f -t, of which it is not known which is which
    assert value_of(("-f0",), space(name="-f")) is False
    assert value_of(("-fTrue",), space(name="-f")) is True
    assert rewritten(("-f1",), False, space(name="-f")) == ("-f0",)


def test_a_list_keeps_its_vocabulary() -> None:
    place = Binding(kind=BindingKind.FLAG, name="--each")
    declared = SearchSpace(parameters=(Parameter(name="p", choices=(False, True), binding=place, per_layer=2),))
    assert value_of(("--each", "Yes,No"), declared) == (True, False)
    assert rewritten(("--each", "Yes,No"), (False, True), declared) == ("--each", "No,Yes")
    assert value_of(("--each", "T", "F", "x"), declared) == (True, False)
    assert rewritten(("--each", "T", "F", "x"), (False, False), declared) == ("--each", "F", "F", "x")


@pytest.mark.parametrize("word", ["no", "n", "Off", "f", "'false'", '"true"'])
def test_a_key_takes_only_what_is_a_boolean_in_hydra(word: str) -> None:
    declared = space(name="a.fast=")
    assert [value_of((f"a.fast={text}",), declared) for text in ("true", "FALSE", "1")] == [True, False, True]
    with pytest.raises(LaunchError, match=r"^a.fast= of parameter p is .* in the command; write true or false$"):
        value_of((f"a.fast={word}",), declared)

from __future__ import annotations

import pytest

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.bindings.argv import (
    FlagForm,
    abbreviation_of,
    append,
    find_flag,
    flags_in,
    keys_in,
    looks_like_value,
    positionals,
    replace,
    set_flag,
    usual_form,
    write_value,
)
from torchx_cubicml.records.argument_words import negation


@pytest.mark.parametrize(
    ("args", "flag", "form", "texts"),
    [
        (["--lr", "0.1"], "--lr", FlagForm.SEPARATE, ("0.1",)),
        (["--lr=0.1"], "--lr", FlagForm.JOINED, ("0.1",)),
        (["--lr="], "--lr", FlagForm.JOINED, ("",)),
        (["-b", "4"], "-b", FlagForm.SEPARATE, ("4",)),
        (["-b4"], "-b", FlagForm.ATTACHED, ("4",)),
        (["-b=4"], "-b", FlagForm.JOINED, ("4",)),
        (["-lr", "4"], "-lr", FlagForm.SEPARATE, ("4",)),
        (["--shift", "-1"], "--shift", FlagForm.SEPARATE, ("-1",)),
        (["--compile", "--lr", "1"], "--compile", FlagForm.SWITCH, ()),
        (["--no-compile"], "--compile", FlagForm.NEGATED, ()),
        (["--no_compile"], "--compile", FlagForm.NEGATED, ()),
        (["--compile.no-enable"], "--compile.enable", FlagForm.NEGATED, ()),
        (["--compile.no_enable"], "--compile.enable", FlagForm.NEGATED, ()),
        (["--no-compile.enable"], "--compile.enable", FlagForm.NEGATED, ()),
        (["--compile.enable=true"], "--compile.enable", FlagForm.JOINED, ("true",)),
        (["model.width=4"], "model.width=", FlagForm.JOINED, ("4",)),
        (["--width==4"], "--width=", FlagForm.JOINED, ("=4",)),
        (["--hidden-size", "4"], "--hidden_size", FlagForm.SEPARATE, ("4",)),
        (["--hidden_size=4"], "--hidden-size", FlagForm.JOINED, ("4",)),
        (["--no-use-flash"], "--use_flash", FlagForm.NEGATED, ()),
        (["model.n-layer=4"], "model.n_layer=", FlagForm.JOINED, ("4",)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_every_form_is_found(args: list[str], flag: str, form: FlagForm, texts: tuple[str, ...]) -> None:
    (found,) = find_flag(["train", *args], flag, is_value=looks_like_value)
    assert (found.form, found.texts, found.start) == (form, texts, 1)


@pytest.mark.parametrize(
    ("word", "flag", "typed"),
    [
        ("--hidden-size", "--hidden_size", "--hidden-size"),
        ("--hidden_size=4", "--hidden-size", "--hidden_size"),
        ("--no-use-flash", "--use_flash", "--use-flash"),
        ("--no_use_flash", "--use-flash", "--use_flash"),
        ("--my-model.no-use_flash", "--my_model.use-flash", "--my-model.use_flash"),
        ("--no-my-model.flash", "--my_model.flash", "--my-model.flash"),
        ("--no-x.no-y", "--no_x.y", "--no-x.y"),
        ("model.n-layer=4", "model.n_layer=", "model.n-layer="),
    ],
)
def test_hyphens_and_underscores_in_a_flag_are_the_same(word: str, flag: str, typed: str) -> None:
    (found,) = find_flag([word], flag, is_value=looks_like_value)
    assert found.flag == typed
    assert set_flag([word], flag, "8")[0].startswith(typed)


def test_a_joined_value_is_not_found_apart() -> None:
    assert find_flag(["--lr", "1", "lr", "2", "xlr=3", "--no-lr"], "--lr=", is_value=looks_like_value) == []
    assert write_value("lr=", ["-1"], FlagForm.SEPARATE) == ("lr=-1",)


@pytest.mark.parametrize(
    "args", [["--lrx", "1"], ["--lr-decay=1"], ["x", "--", "--lr", "1"], ["lr", "1"]], ids=" ".join
)
def test_a_flag_is_found_where_argparse_finds_it(args: list[str]) -> None:
    assert find_flag(args, "--lr", is_value=looks_like_value) == []


def test_repeated_flags_are_all_found_in_order() -> None:
    found = find_flag(["--x", "1", "--x=2", "--x", "--y"], "--x", is_value=looks_like_value)
    assert [occurrence.texts for occurrence in found] == [("1",), ("2",), ()]


def test_a_list_of_words_stops_at_the_first_flag() -> None:
    (found,) = find_flag(["--s", "A", "B", "data.bin"], "--s", is_value={"A", "B"}.__contains__, most_values=4)
    assert (found.texts, found.stop) == (("A", "B"), 3)


def test_flags_are_added_before_the_positional_separator() -> None:
    assert append(["--a", "--", "x"], ["--b", "1"]) == ("--a", "--b", "1", "--", "x")


def test_replace_keeps_all_other_words() -> None:
    args = ["a b", "--x", "1", "$HOME"]
    (found,) = find_flag(args, "--x", is_value=looks_like_value)
    assert replace(args, found, ["--x", "2"]) == ("a b", "--x", "2", "$HOME")


def test_a_value_with_a_dash_is_joined_so_that_argparse_takes_it() -> None:
    assert write_value("--opt", ["-O3"], FlagForm.SEPARATE) == ("--opt=-O3",)
    assert write_value("--shift", ["-3"], FlagForm.SEPARATE) == ("--shift", "-3")
    assert write_value("-b", ["8"], FlagForm.ATTACHED) == ("-b8",)


def test_added_flags_look_like_the_others() -> None:
    assert usual_form(["--a=1", "--b"]) is FlagForm.JOINED
    assert usual_form(["--a", "1", "key=value"]) is FlagForm.SEPARATE


def test_set_flag_replaces_or_adds() -> None:
    assert set_flag(["--out", "a", "--lr", "1"], "--out", "b c") == ("--out", "b c", "--lr", "1")
    assert set_flag(["--lr=1"], "--out", "b") == ("--lr=1", "--out=b")


def test_names_of_flags_carry_no_values() -> None:
    assert flags_in(["--token=hunter2", "-v", "--lr", "1", "--lr", "2", "-1"]) == ["--token", "-v", "--lr"]


def test_an_abbreviation_is_seen() -> None:
    assert abbreviation_of(["--batch=4", "--b", "--other"], "--batch_size") == "--batch"
    assert abbreviation_of(["--batch_size=4", "--", "--batch"], "--batch_size") is None


def test_a_short_flag_has_no_negation() -> None:
    with pytest.raises(LaunchError, match="only a long flag"):
        negation("-c")


@pytest.mark.parametrize(
    ("args", "flag", "after"),
    [
        ("--out=a -v", "--out", "--out=b -v"),
        ("-oa -v", "-o", "-ob -v"),
        ("--out -v", "--out", "--out b -v"),
        ("--no-out x", "--out", "--out b x"),
        ("--out 1 --out=2 x", "--out", "--out 1 --out=b x"),
        ("out=1 x", "out=", "out=b x"),
        ("x -- --out 1", "--out", "x --out b -- --out 1"),
    ],
)
def test_a_flag_that_is_set_keeps_its_form(args: str, flag: str, after: str) -> None:
    assert set_flag(args.split(), flag, "b") == tuple(after.split())


@pytest.mark.parametrize(
    ("args", "flag", "most", "spans"),
    [
        ("--s A A A", "--s", 2, [(0, 3)]),
        ("--s A A A", "--s", 1, [(0, 2)]),
        ("--s A A", "--s", 9, [(0, 3)]),
        ("x --s", "--s", 9, [(1, 2)]),
        ("--s A --s A A x --s=A", "--s", 2, [(0, 2), (2, 5), (6, 7)]),
        ("--s -- A", "--s", 2, [(0, 1)]),
        ("-s A -sA -sB -s=A", "-s", 1, [(0, 2), (2, 3), (4, 5)]),
        ("-tsA -ts A --tsA", "-ts", 1, [(1, 3)]),
        ("-no-s --no-s -s", "-s", 1, [(2, 3)]),
        ("--no-s= --no_s=A", "--s=", 1, []),
        ("--no-a.s --a.no_s --a.no-s --no_a.s --a.no", "--a.s", 1, [(0, 1), (1, 2), (2, 3), (3, 4)]),
    ],
)
def test_an_occurrence_spans_the_flag_and_its_values(
    args: str, flag: str, most: int, spans: list[tuple[int, int]]
) -> None:
    found = find_flag(args.split(), flag, is_value="A".__eq__, most_values=most)
    assert [(occurrence.start, occurrence.stop) for occurrence in found] == spans


def test_the_value_of_a_flag_is_not_a_flag_itself() -> None:
    (found,) = find_flag(["--x", "--x", "--y"], "--x", is_value="--x".__eq__)
    assert (found.stop, found.texts) == (2, ("--x",))


@pytest.mark.parametrize(
    ("word", "is_value"),
    [("", True), ("x", True), ("-", True), ("-1", True), ("-1e3", True), ("-x", False), ("--", False), ("--x", False)],
)
def test_a_word_with_a_dash_is_a_value_if_it_is_a_number(word: str, is_value: bool) -> None:
    assert looks_like_value(word) is is_value


def test_a_value_is_written_in_each_form() -> None:
    assert write_value("--s", ["-a", "-b"], FlagForm.SEPARATE) == ("--s", "-a", "-b")
    assert write_value("--s", ["a"], FlagForm.SEPARATE) == ("--s", "a")
    assert write_value("--s", ["a"], FlagForm.JOINED) == ("--s=a",)
    assert write_value("--s=", ["a"], FlagForm.JOINED) == ("--s=a",)


def test_only_a_long_joined_flag_makes_the_form_usual() -> None:
    assert usual_form(["x", "--", "--a=1"]) is FlagForm.SEPARATE
    assert usual_form(["x", "-a=1", "--a"]) is FlagForm.SEPARATE
    assert usual_form(["x", "--a.b-c=", "y"]) is FlagForm.JOINED


def test_an_abbreviation_has_two_dashes_and_a_letter() -> None:
    assert abbreviation_of(["--b"], "--batch") == "--b"
    assert abbreviation_of(["-b", "--batch", "--batches", "--x"], "--batch") is None
    assert abbreviation_of(["-b"], "-batch") is None
    assert abbreviation_of(["--batc=1"], "--batch") == "--batc"


def test_words_are_added_at_the_end() -> None:
    assert append(["a", "--b"], ["--c", "1"]) == ("a", "--b", "--c", "1")
    assert append([], ["--c"]) == ("--c",)


def test_keys_and_positionals_are_told_from_flags() -> None:
    args = ["run.py", "a=1", "-v", "x", "b=2", "--n=4", "y", "a=3", "--z", "c=5", "--lr", "w"]
    assert keys_in(args) == ["a=", "b=", "c="]
    assert positionals(args) == ["run.py", "a=1", "b=2", "y", "a=3"]
    assert flags_in(args) == ["-v", "--n", "--z", "--lr"]


def test_the_negation_of_a_flag_in_sections() -> None:
    assert negation("--a.b.c") == "--a.b.no-c"

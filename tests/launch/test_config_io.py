from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_cubicml.errors import LaunchError, RecordError
from torchx_cubicml.launch import Launch, change_for_profiling, read_config, write_config
from torchx_cubicml.launch.config_io import present_command
from torchx_cubicml.space import Binding, BindingKind, Parameter, SearchSpace, TuneChanges, WorkloadFact
from torchx_cubicml.space.expression import parse_expression
from torchx_cubicml.space.spelling import same_value
from torchx_cubicml.space.toml import parse_space

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Scalar, Value

GOLDEN = sorted((Path(__file__).parents[1] / "data" / "argv").glob("*.json"))


def flag(name: str) -> Binding:
    return Binding(kind=BindingKind.FLAG, name=name)


def parameter(name: str, choices: tuple[Scalar, ...], place: str = "", **more: object) -> Parameter:
    return Parameter(name=name, choices=choices, binding=flag(place or f"--{name}"), **more)


def launch(*args: str, **env: str) -> Launch:
    return Launch(program="train.py", script_args=args, env=env, world_size=2)


def space(*parameters: Parameter, facts: tuple[WorkloadFact, ...] = ()) -> SearchSpace:
    return SearchSpace(parameters=parameters, workload=facts)


BATCH = space(parameter("batch_size", (1, 2, 4, 8)))
LAYERS = (WorkloadFact(name="n_layers", binding=flag("--n_layer")),)
SHARDING = space(parameter("sharding", ("FULL", "NONE"), per_layer="n_layers"), facts=LAYERS)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_launches(path: Path) -> None:
    case = json.loads(path.read_text())
    declared = parse_space(case["space"], where=path.name)
    before = Launch(program="train.py", script_args=tuple(case["argv"]), env=case.get("env", {}), world_size=2)
    _, config = read_config(before, declared)
    wanted = {name: tuple(value) if isinstance(value, list) else value for name, value in case["config"].items()}
    after = write_config(before, declared, wanted)
    assert {name: list(value) if isinstance(value, tuple) else value for name, value in config.items()} == case["read"]
    assert list(after.script_args) == case["expected"]
    assert after.env == case.get("expected_env", case.get("env", {}))


# What a person may write around the declared flags; it never looks like a value of theirs.
WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8)
UNKNOWN = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["--other", "--lr", "-v", "key=value"]), WORDS.map("u{}".format)),
        st.tuples(WORDS.map("--other={}".format)),
        st.tuples(WORDS.map("u{}".format)),
    ),
    max_size=3,
).map(lambda groups: [word for group in groups for word in group])
CHOICES: st.SearchStrategy[list[Scalar]] = st.one_of(
    st.lists(st.integers(-9, 10**6), min_size=2, max_size=4, unique=True),
    st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=4, unique=True),
    st.lists(WORDS.filter(lambda word: "," not in word and word[:1] != "u"), min_size=2, max_size=4, unique=True),
    st.just([True, False]),
)
NAMES = ("alpha", "beta", "gamma")


@st.composite
def commands(draw: st.DrawFn) -> tuple[Launch, SearchSpace, dict[str, Value], list[str]]:
    """Draw a command of declared flags between unknown words, its space, a config to write, and the unknown words."""
    unknown = draw(UNKNOWN)
    parameters, words, wanted = [], list(unknown), {}
    for name in draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True)):
        choices = tuple(draw(CHOICES))
        count = draw(st.sampled_from([None, None, 1, 3]))
        value = st.tuples(*[st.sampled_from(choices)] * count) if count else st.sampled_from(choices)
        declared = parameter(name, choices, per_layer=count, default=draw(st.one_of(st.none(), value)))
        between = draw(UNKNOWN)
        words += [*draw(st.sampled_from(typed_forms(declared, draw(value)))), *between]
        unknown += between
        parameters.append(declared)
        wanted[name] = draw(value)
    return launch(*words), space(*parameters), wanted, unknown


def typed_forms(declared: Parameter, value: Value) -> list[list[str]]:
    """Return every way to type ``value``, and none at all where that means something too."""
    name, is_switch = f"--{declared.name}", isinstance(value, bool)
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    forms = [[f"{name}={text}"]]
    if not text.startswith("-"):
        forms.append([name, text])
    if is_switch:
        forms += [[name] if value else [f"--no-{declared.name}"], [f"{name}={text.lower()}"]]
    if isinstance(value, tuple) and len(set(value)) == 1:
        forms.append([f"{name}={value[0]}"])
    if isinstance(value, tuple) and not any(str(entry).startswith("-") for entry in value):
        forms.append([name, *map(str, value)])
    if is_switch or declared.default is not None:
        forms.append([])
    return forms


@settings(max_examples=250)
@given(commands())
def test_writing_back_what_was_read_changes_nothing(
    case: tuple[Launch, SearchSpace, dict[str, Value], list[str]],
) -> None:
    before, declared, _, _ = case
    assert write_config(before, declared, read_config(before, declared)[1]) == before


@settings(max_examples=250)
@given(commands())
def test_written_values_are_read_back_and_others_stay(
    case: tuple[Launch, SearchSpace, dict[str, Value], list[str]],
) -> None:
    before, declared, wanted, unknown = case
    after = write_config(before, declared, wanted)
    config = read_config(after, declared)[1]
    assert all(same_value(config[name], value) for name, value in wanted.items())
    rest = iter(after.script_args)
    assert all(word in rest for word in unknown), "unknown words must stay, in their order"
    assert replace(after, script_args=before.script_args) == before


@pytest.mark.parametrize(
    ("args", "declared", "reason"),
    [
        (
            ["--lr", "1"],
            BATCH,
            r"flag --batch_size of parameter batch_size is not in the command .*; flags there: --lr",
        ),
        (["--batch", "4"], BATCH, "--batch in the command may be short for --batch_size .*; write it in full"),
        (["--batch_size"], BATCH, "--batch_size of parameter batch_size has no value"),
        (["--batch_size", "auto"], BATCH, "--batch_size is 'auto' in the command; it must be a number, such as 1, 2"),
        (["--n_layer", "3", "--sharding", "FULL,NONE"], SHARDING, "has 2 entries; it must have 1 or 3"),
        (["--n_layer", "x", "--sharding", "FULL"], SHARDING, "one value per n_layers, which must be a whole number"),
    ],
    ids=["absent", "abbreviated", "no value", "no number", "wrong count", "no layer count"],
)
def test_an_unreadable_command_names_flag_and_reason(args: list[str], declared: SearchSpace, reason: str) -> None:
    with pytest.raises(LaunchError, match=reason):
        read_config(launch(*args), declared)


def test_the_reason_for_an_absent_flag_shows_no_value() -> None:
    with pytest.raises(LaunchError) as raised:
        read_config(launch("--api_key=hunter2", "--password", "hunter2"), BATCH)
    assert "--password" in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_the_last_of_repeated_flags_counts_and_is_not_rewritten() -> None:
    before = launch("--batch_size", "2", "--batch_size=4")
    assert read_config(before, BATCH)[1] == {"batch_size": 4}
    with pytest.raises(LaunchError, match="occurs 2 times in the command"):
        write_config(before, BATCH, {"batch_size": 8})


def test_another_parameters_flag_is_no_abbreviation() -> None:
    declared = space(parameter("batch", (1, 2)), parameter("batch_size", (1, 2), default=1))
    assert read_config(launch("--batch", "2"), declared)[1] == {"batch": 2, "batch_size": 1}


def test_a_value_of_many_words_leaves_the_positional_behind_it() -> None:
    before = launch("--n_layer", "3", "--sharding", "FULL", "NONE", "FULL", "data.bin")
    after = write_config(before, SHARDING, {"sharding": ("NONE", "NONE", "FULL")})
    assert after.script_args[2:] == ("--sharding", "NONE", "NONE", "FULL", "data.bin")


def test_workload_is_read_with_the_facts_that_the_space_declares() -> None:
    facts = (*LAYERS, WorkloadFact(name="seq_len", value=64), WorkloadFact(name="d", binding=flag("-d"), value=8))
    workload, _ = read_config(launch("--n_layer=3"), space(facts=facts))
    assert workload == {"program": "train.py", "world_size": 2, "n_layers": 3, "seq_len": 64, "d": 8}


def test_environment_variables_are_read_and_written() -> None:
    place = Binding(kind=BindingKind.ENV, name="NCCL_PROTO")
    declared = space(Parameter(name="proto", choices=("LL", "Simple"), binding=place, default="LL"))
    assert read_config(launch(), declared)[1] == {"proto": "LL"}
    assert write_config(launch(A="1"), declared, {"proto": "LL"}).env == {"A": "1"}
    assert write_config(launch(A="1"), declared, {"proto": "Simple"}).env == {"A": "1", "NCCL_PROTO": "Simple"}


@pytest.mark.parametrize(("before", "after"), [("1", "0"), ("true", "false"), ("True", "False")])
def test_a_boolean_variable_keeps_its_style(before: str, after: str) -> None:
    place = Binding(kind=BindingKind.ENV, name="FLAG")
    declared = space(Parameter(name="on", choices=(True, False), binding=place))
    assert write_config(launch(FLAG=before), declared, {"on": False}).env == {"FLAG": after}


def test_an_absent_variable_names_those_that_are_there() -> None:
    place = Binding(kind=BindingKind.ENV, name="NCCL_PROTO")
    declared = space(Parameter(name="proto", choices=("LL", "Simple"), binding=place))
    with pytest.raises(
        LaunchError, match=r"variable NCCL_PROTO of parameter proto is not set .* variables there: A, B"
    ):
        read_config(launch(B="1", A="2"), declared)


def test_an_ambiguous_value_is_refused() -> None:
    declared = space(parameter("s", ("a", "b,c"), per_layer=2))
    with pytest.raises(LaunchError, match=r"entries|cannot be set to"):
        write_config(launch("--s", "a,a"), declared, {"s": ("a", "b,c")})


def test_a_profiling_launch_changes_what_the_space_says() -> None:
    changes = TuneChanges(args={"--out_dir": "{scratch}/{launch_id}"}, env={"WANDB_MODE": "disabled"})
    filled = {"scratch": "/tmp/s s", "launch_id": "launch-1"}
    after = change_for_profiling(launch("--out_dir", "out", "--x"), SearchSpace(parameters=(), tune=changes), filled)
    assert after.script_args == ("--out_dir", "/tmp/s s/launch-1", "--x")
    assert after.env == {"WANDB_MODE": "disabled"}


@pytest.mark.parametrize("text", ["9" * 300, "x" * 5000], ids=["number", "text"])
def test_an_unrecordable_value_is_reported(text: str) -> None:
    facts = (WorkloadFact(name="vocab", binding=flag("--vocab")),)
    with pytest.raises(RecordError, match=r"^workload\.vocab"):
        read_config(launch("--vocab", text), space(facts=facts))


def test_an_expression_may_read_the_number_of_nodes() -> None:
    text = '[parameters.workers]\nchoices = [1, 2]\nflag = "--workers"\n'
    constraint = '\n[[constraints]]\nrequire = "workers <= nproc_per_node"\n'
    command = replace(launch("--workers", "2"), world_size=8, nnodes=2, nproc_per_node=4)
    plain, asking = (read_config(command, parse_space(toml, where="s.toml"))[0] for toml in (text, text + constraint))
    assert plain == {"program": "train.py", "world_size": 8}
    assert asking == {**plain, "nproc_per_node": 4}


def test_a_command_without_a_program_says_why() -> None:
    with pytest.raises(LaunchError, match="starts no training: echo is neither torchrun nor python"):
        read_config(Launch(program="", why_not_rewritten="echo is neither torchrun nor python"), BATCH)


def test_a_list_in_a_variable_is_read_and_written() -> None:
    place = Binding(kind=BindingKind.ENV, name="SHARDING")
    declared = space(Parameter(name="sharding", choices=("F", "N"), per_layer=2, binding=place))
    assert read_config(launch(SHARDING="N"), declared)[1] == {"sharding": ("N", "N")}
    assert write_config(launch(SHARDING="N"), declared, {"sharding": ("F", "N")}).env == {"SHARDING": "F,N"}


@pytest.mark.parametrize("key", ["per_layer", "per_table"])
def test_one_default_stands_for_every_entry(key: str) -> None:
    declared = space(parameter("sharding", ("F", "N"), default="F", **{key: 3}))
    assert read_config(launch(), declared)[1] == {"sharding": ("F", "F", "F")}
    assert write_config(launch(), declared, {"sharding": ("F", "N", "F")}).script_args == ("--sharding", "F,N,F")


def test_an_unreadable_value_is_not_written() -> None:
    declared = space(parameter("a", ("x", "y"), "-a"))
    with pytest.raises(LaunchError, match="parameter a cannot be set to '9'"):
        write_config(launch("-a", "x"), declared, {"a": 9})


def spaced(text: str) -> SearchSpace:
    return parse_space(text, where="s.toml")


@pytest.mark.parametrize("key", ["per_layer", "per_table"])
def test_entries_are_bounded(key: str) -> None:
    declared = space(parameter("sharding", ("F", "N"), default="F", **{key: "n_layers"}), facts=LAYERS)
    with pytest.raises(LaunchError, match=r"must be a whole number from 1 to 4096 .* got 1000000000"):
        read_config(launch("--n_layer", "1000000000"), declared)


@pytest.mark.parametrize("spelling", ["--x_y=", "x.y=", "+x.y=", "++x.y="])
def test_a_joined_value_is_added_joined(spelling: str) -> None:
    declared = spaced(f'[parameters.p]\nchoices = [1, 2]\ndefault = 1\nflag = "{spelling.lstrip("+")}"\n')
    assert write_config(launch("a", "--b", "1"), declared, {"p": 2}).script_args == (
        "a",
        "--b",
        "1",
        f"{spelling.lstrip('+')}2",
    )
    assert write_config(launch(f"{spelling}1", "c"), declared, {"p": 2}).script_args == (f"{spelling}2", "c")


def test_a_key_is_neither_positional_nor_flag() -> None:
    declared = spaced('[parameters.p]\nchoices = [1, 2]\nflag = "p="\n')
    assert read_config(launch("p", "pp=3", "--p=4", "p=2"), declared)[1] == {"p": 2}
    with pytest.raises(LaunchError, match=r"flag p= of parameter p is not in the command .*; flags there: --p, q="):
        read_config(launch("--p=4", "q=2"), declared)


def test_a_missing_equals_sign_is_reported() -> None:
    declared = spaced('[parameters.p]\nchoices = [1, 2]\nflag = "--batch="\ndefault = 1\n')
    with pytest.raises(LaunchError, match="--batch in the command may be short for --batch="):
        read_config(launch("--batch", "2"), declared)


def test_a_list_after_a_key_stands_in_brackets() -> None:
    declared = spaced('[parameters.p]\nchoices = ["a", "b"]\nper_layer = 2\nflag = "p="\ndefault = "a"\n')
    assert write_config(launch(), declared, {"p": ("a", "b")}).script_args == ("p=[a,b]",)
    assert write_config(launch("p=[b]"), declared, {"p": ("a", "a")}).script_args == ("p=[a,a]",)


ALIASED = Binding(kind=BindingKind.FLAG, name="--batch_size", aliases=("--batch-size",))


def test_a_flag_of_two_spellings_keeps_the_one_that_was_typed() -> None:
    declared = space(Parameter(name="b", choices=(1, 2), binding=ALIASED, default=1))
    for typed in ("--batch_size", "--batch-size"):
        assert write_config(launch(typed, "2"), declared, {"b": 1}).script_args == (typed, "1")
    assert write_config(launch(), declared, {"b": 2}).script_args == ("--batch_size", "2")
    both = launch("--batch_size", "2", "--batch-size", "1")
    assert read_config(both, declared)[1] == {"b": 1}
    with pytest.raises(LaunchError, match="occurs 2 times"):
        write_config(both, declared, {"b": 2})


RECOMPUTE = Binding(
    kind=BindingKind.FLAG,
    name="--granularity",
    words=(("none", ""), ("whole", "full")),
    companions=(("whole", (("--method", "uniform"), ("--num", "1"))),),
)
WORDS_OF = space(Parameter(name="a", choices=("none", "part", "whole"), binding=RECOMPUTE, default="none"))


@pytest.mark.parametrize(
    ("typed", "value", "expected"),
    [
        ("-x", "whole", "-x --granularity full --method uniform --num 1"),
        ("--granularity full --method block --num 4 -x", "none", "-x"),
        ("--granularity full --method block -x", "part", "--granularity part -x"),
        ("--granularity part --method block", "whole", "--granularity full --method block --num 1"),
    ],
)
def test_words_absence_and_companions(typed: str, value: str, expected: str) -> None:
    assert write_config(launch(*typed.split()), WORDS_OF, {"a": value}).script_args == tuple(expected.split())


@pytest.mark.parametrize(
    ("typed", "value", "expected"),
    [
        ("", "full", "--ck"),
        ("--ck", "none", "--ck False"),
        ("--ck True -x", "none", "--ck False -x"),
        ("--ck False", "full", "--ck True"),
        ("--ck out.txt", "none", "--ck False out.txt"),
    ],
)
def test_a_switch_between_words(typed: str, value: str, expected: str) -> None:
    place = Binding(kind=BindingKind.FLAG, name="--ck", words=(("none", "False"), ("full", "True")), bare="full")
    declared = space(Parameter(name="ck", choices=("none", "full"), binding=place, default="none"))
    assert write_config(launch(*typed.split()), declared, {"ck": value}).script_args == tuple(expected.split())


def test_a_default_is_not_believed_beside_a_file_of_others() -> None:
    place = Binding(kind=BindingKind.FLAG, name="--n", unless=("--config", "*.py"))
    declared = space(
        Parameter(name="n", choices=(1, 2), binding=place, default=1),
        facts=(WorkloadFact(name="m", binding=replace(place, name="--m"), value=3, optional=True),),
    )
    assert read_config(launch("--data", "x.py"), declared) == (
        {"program": "train.py", "world_size": 2, "m": 3},
        {"n": 1},
    )
    assert read_config(launch("x.py", "--n=2"), declared)[1] == {"n": 2}
    assert "m" not in read_config(launch("x.py", "--n=2"), declared)[0]
    for args in (["--config=a.toml"], ["x.py"]):
        with pytest.raises(LaunchError, match=r"flag --n of parameter n .*, and (--config|x.py) may set it"):
            read_config(launch(*args), declared)


def test_an_unstated_optional_fact_is_left_out() -> None:
    facts = (WorkloadFact(name="n", binding=flag("--n"), optional=True),)
    env = (WorkloadFact(name="e", binding=Binding(kind=BindingKind.ENV, name="E"), optional=True),)
    declared = space(facts=(*facts, *env))
    assert read_config(launch(), declared)[0] == {"program": "train.py", "world_size": 2}
    assert read_config(launch("--n", "3", E="1"), declared)[0] == {
        "program": "train.py",
        "world_size": 2,
        "n": 3,
        "e": 1,
    }


def test_an_unbound_parameter_follows_from_the_others() -> None:
    derive = parse_expression("global_batch_size / (micro_batch_size * dp_degree)", where="x")
    declared = space(
        parameter("micro_batch_size", (1, 2, 4)),
        Parameter(name="gradient_accumulation_steps", derive=derive),
        facts=(WorkloadFact(name="global_batch_size", binding=flag("--global")),),
    )
    before = launch("--micro_batch_size", "2", "--global", "16")
    workload, config = read_config(before, declared)
    assert config == {"micro_batch_size": 2, "gradient_accumulation_steps": 4}
    bound = declared.bind(workload=workload, current=config)
    assert bound.facts["global_batch_size"] == 16
    after = write_config(before, declared, {"micro_batch_size": 4, "gradient_accumulation_steps": 2})
    assert after.script_args == ("--micro_batch_size", "4", "--global", "16")
    with pytest.raises(LaunchError, match=r"the command does not fit the space file: .* is not a whole number"):
        read_config(launch("--micro_batch_size", "2", "--global", "17"), declared)


@settings(max_examples=250)
@given(
    st.sampled_from(["--{}=", "{}=", "--a.{}", "--{}"]),
    st.lists(st.integers(0, 99), min_size=2, max_size=3, unique=True),
    UNKNOWN,
    UNKNOWN,
    st.data(),
)
def test_the_laws_hold_in_every_form(
    form: str, choices: list[int], first: list[str], last: list[str], data: st.DataObject
) -> None:
    declared = spaced(f'[parameters.p]\nchoices = {choices}\nflag = "{form.format("p")}"\ndefault = {choices[0]}\n')
    typed, wanted = (data.draw(st.sampled_from(choices)) for _ in range(2))
    joined = form if form.endswith("=") else f"{form}="
    word = data.draw(st.sampled_from([[f"{joined.format('p')}{typed}"], []]))
    before = launch(*first, *word, *last)
    assert write_config(before, declared, read_config(before, declared)[1]) == before
    after = write_config(before, declared, {"p": wanted})
    assert read_config(after, declared)[1] == {"p": wanted}
    rest = iter(after.script_args)
    assert all(item in rest for item in [*first, *last])


def test_a_flag_is_read_and_written_in_the_spelling_of_the_command() -> None:
    typed = launch("--batch-size", "2", "--lr", "1")
    assert read_config(typed, BATCH)[1] == {"batch_size": 2}
    assert write_config(typed, BATCH, {"batch_size": 1}).script_args == ("--batch-size", "1", "--lr", "1")
    twice = launch("--batch-size", "2", "--batch_size", "1")
    assert read_config(twice, BATCH)[1] == {"batch_size": 1}
    with pytest.raises(LaunchError, match="occurs 2 times"):
        write_config(twice, BATCH, {"batch_size": 2})


def test_recorded_arguments_are_read_as_those_of_the_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script tells that its switch takes no value, so that the word behind it is another argument."""
    monkeypatch.chdir(tmp_path)
    source = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--compile', action='store_true')\n"
    Path("train.py").write_text(f"{source}p.add_argument('fold')\n")
    typed, declared = launch("--compile", "0"), space(parameter("compile", (False, True)))
    assert read_config(typed, declared)[1] == {"compile": True}
    assert present_command(typed, declared).stated(typed.script_args, declared, {}) == {"compile": True}

from __future__ import annotations

from dataclasses import replace

import pytest

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.space import Binding, BindingKind, Parameter, SearchSpace, WorkloadFact
from torchx_cubicml.space.arithmetic import kind
from torchx_cubicml.space.expression import parse_expression
from torchx_cubicml.space.toml import parse_space
from torchx_cubicml.space.toml.schema import TomlTable
from torchx_cubicml.space.toml.trainer import (
    check_values,
    is_auto_accumulation,
    read_short_form,
    read_trainer,
    trainer_parameter,
    with_trainer,
)
from torchx_cubicml.space.trainers import TRAINERS, Trainer, TrainerFlag, TrainerRelease

ACCUMULATION = "gradient_accumulation_steps"
TOY = Trainer(
    name="toy",
    flags={
        "micro_batch_size": TrainerFlag(flag="--micro_batch", choices=(1, 2, 4), default=2),
        "global_batch_size": TrainerFlag(flag="--batch"),
        ACCUMULATION: TrainerFlag(flag="--accumulate", default=1),
        "tp_degree": TrainerFlag(flag="--tp", choices=(1, 2), default=1),
        "compile": TrainerFlag(flag="--compile", choices=(False, True), default=False, when="tp_degree > 1"),
        "stage": TrainerFlag(file="--c", key="zero.stage", choices=("a", "b"), default="x", file_default="b"),
        "precision": TrainerFlag(flag="--precision", words=(("bf16", "b"), ("fp16", "f"))),
        "width": TrainerFlag(flag="--width", default=7),
        "switch": TrainerFlag(flag="--switch", is_switch=True),
    },
    accumulation="per rank",
    release=TrainerRelease(version="1.0", checks=("toy.py: check",)),
    constraints=("width > tp_degree", "dp_degree > 1"),
    other_defaults=("*.py",),
)


def table(**content: object) -> TomlTable:
    return TomlTable(content, where="x.toml", name="parameters", legal=None)


def space_of(*names: str) -> SearchSpace:
    return SearchSpace(parameters=tuple(Parameter(name=name, choices=(1, 2)) for name in names))


def added(space: SearchSpace, trainer: Trainer = TOY, *, accumulates: bool = False) -> SearchSpace:
    return with_trainer(space, trainer, accumulates=accumulates)


def test_a_file_names_a_trainer() -> None:
    def named(**content: object) -> Trainer | None:
        return read_trainer(TomlTable(content, where="x.toml", legal=None))

    assert named(trainer="hf") is TRAINERS["hf"]
    assert named() is None
    with pytest.raises(SpaceError, match=r"x.toml: trainer: unknown trainer 'hff'; did you mean 'hf'\?"):
        named(trainer="hff")


def test_a_flag_of_a_trainer() -> None:
    found = trainer_parameter(TOY, "compile")
    assert found is not None
    assert (found.choices, found.default) == ((False, True), False)
    assert found.when == parse_expression("tp_degree > 1", where="trainer toy: compile")
    assert found.when is not None
    assert found.when.where == "trainer toy: compile"
    assert found.binding == Binding(kind=BindingKind.FLAG, name="--compile", unless=("*.py",))
    stage = trainer_parameter(TOY, "stage")
    assert stage is not None
    assert (stage.default, stage.when) == ("b", None)
    assert stage.binding == Binding(
        kind=BindingKind.FILE,
        name="zero.stage in --c",
        unless=("*.py",),
        file="--c",
        key=("zero", "stage"),
        file_default="b",
    )
    assert trainer_parameter(TOY, "other") is None
    assert trainer_parameter(None, "compile") is None


def test_accumulation_is_a_parameter_of_a_rank() -> None:
    assert trainer_parameter(TOY, ACCUMULATION) is not None
    for scope in ("whole job", "implied"):
        other = replace(TOY, accumulation=scope)
        assert trainer_parameter(other, ACCUMULATION) is None
        assert trainer_parameter(other, "tp_degree") is not None
    auto = table(**{ACCUMULATION: "auto", "tp_degree": "auto"})
    assert is_auto_accumulation(auto, ACCUMULATION, TOY)
    assert not is_auto_accumulation(auto, "tp_degree", TOY)
    assert not is_auto_accumulation(auto, ACCUMULATION, None)
    assert not is_auto_accumulation(table(**{ACCUMULATION: 4}), ACCUMULATION, TOY)


@pytest.mark.parametrize(
    ("value", "choices"), [("auto", (1, 2, 4)), (3, (3,)), ([1, 8], (1, 8))], ids=["auto", "one", "list"]
)
def test_short_forms(value: object, choices: tuple[int, ...]) -> None:
    found = read_short_form(table(micro_batch_size=value), "micro_batch_size", TOY)
    assert (found.name, found.choices, found.default) == ("micro_batch_size", choices, 2)
    assert found.binding is not None
    assert found.binding.name == "--micro_batch"


def test_a_short_form_keeps_the_condition() -> None:
    found = read_short_form(table(compile="auto"), "compile", TOY)
    assert found.when == parse_expression("tp_degree > 1", where="")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("tp_degre", "auto", "trainer 'toy' has no flag for it; did you mean 'tp_degree'?; write a table with choices"),
        ("width", "auto", "the trainer's table has no values for it; list them, as in [7, 14], got 'auto'"),
        ("precision", "auto", """the trainer's table has no values for it; list them, as in ["bf16", "fp16"], got"""),
        ("global_batch_size", "auto", "the trainer's table has no values for it; list them, as in [1, 2], got 'auto'"),
        ("switch", "auto", "the trainer's table has no values for it; list them, as in [false, true], got 'auto'"),
        ("switch", 1, "must be true or false for trainer 'toy', got 1"),
        ("tp_degree", "two", "must be a number for trainer 'toy', got 'two'"),
        ("width", True, "must be a number for trainer 'toy', got True"),
        ("stage", "c", "unknown value 'c' for trainer 'toy'; choose from a, b"),
        ("precision", "fp8", "unknown value 'fp8' for trainer 'toy'; choose from bf16, fp16"),
    ],
)
def test_short_forms_that_are_refused(name: str, value: object, message: str) -> None:
    with pytest.raises(SpaceError) as caught:
        read_short_form(table(**{name: value}), name, TOY)
    assert str(caught.value).startswith(f"x.toml: parameters.{name}: {message}")


def test_values_are_checked_where_the_trainer_has_words() -> None:
    check_values(table(choices=[]), "choices", ("bf16", "fp16"), TOY, name="precision")
    check_values(table(choices=[]), "choices", (3, 5.5), TOY, name="tp_degree")
    check_values(table(global_batch_size="x"), "global_batch_size", ("x", 1), TOY)  # nothing is known of it
    with pytest.raises(SpaceError, match=r"parameters.choices: must be a string for trainer 'toy', got \[\]"):
        check_values(table(choices=[]), "choices", ("bf16", 1), TOY, name="precision")


class TestAdditions:
    def test_accumulation_of_a_rank(self) -> None:
        found = added(space_of("micro_batch_size")).parameters[1]
        assert (found.name, found.default) == (ACCUMULATION, 1)
        assert found.derive == parse_expression("global_batch_size / (micro_batch_size * dp_degree)", where="")
        assert found.derive is not None
        assert found.derive.where == f"trainer toy: {ACCUMULATION}"
        assert found.binding == Binding(kind=BindingKind.FLAG, name="--accumulate", unless=("*.py",))

    def test_accumulation_of_the_job(self) -> None:
        of_job, share = added(space_of("tp_degree"), replace(TOY, accumulation="whole job")).parameters[1:]
        assert (of_job.name, of_job.default, share.name) == ("job_accumulation_steps", 1, ACCUMULATION)
        assert of_job.derive == parse_expression("global_batch_size / micro_batch_size", where="")
        assert share.derive == parse_expression("job_accumulation_steps / dp_degree", where="")
        assert of_job.binding is not None
        assert (of_job.binding.name, share.binding, share.default) == ("--accumulate", None, None)
        assert {of_job.derive.where, share.derive.where} == {f"trainer toy: {ACCUMULATION}"}

    def test_implied_accumulation(self) -> None:
        flags = {name: flag for name, flag in TOY.flags.items() if name != ACCUMULATION}
        implied = added(space_of("tp_degree"), replace(TOY, flags=flags, accumulation="implied"))
        assert [item.name for item in implied.parameters] == ["tp_degree", ACCUMULATION]
        assert implied.parameters[1].binding is None
        assert implied.parameters[1].derive is not None
        (batch,) = (item for item in implied.workload if item.name == "global_batch_size")
        assert not batch.optional
        without = added(space_of("tp_degree"), replace(TOY, flags=flags))
        assert [item.name for item in without.parameters] == ["tp_degree"]

    @pytest.mark.parametrize("name", ["micro_batch_size", "world_size", "tp_degree", "pp_degree", "cp_degree"])
    def test_accumulation_follows_what_changes_the_batch(self, name: str) -> None:
        assert [item.name for item in added(space_of(name)).parameters] == [name, ACCUMULATION]

    def test_accumulation_of_a_batch_that_stays(self) -> None:
        assert [item.name for item in added(space_of("compile")).parameters] == ["compile"]
        assert len(added(space_of("compile"), accumulates=True).parameters) == 2
        declared = replace(space_of("tp_degree"), workload=(WorkloadFact(name=ACCUMULATION, value=4),))
        assert len(added(declared).parameters) == 1
        assert len(added(space_of("tp_degree", ACCUMULATION)).parameters) == 2

    def test_rules_on_what_is_tuned(self) -> None:
        def rules(*names: str) -> list[str]:
            return [rule.source for rule in added(space_of(*names)).constraints]

        assert rules("tp_degree") == ["width > tp_degree", "dp_degree > 1"]
        assert rules("pp_degree") == ["dp_degree > 1"]
        assert rules("width") == ["width > tp_degree"]
        assert rules("compile") == []
        own = replace(space_of("width"), constraints=(parse_expression("width < 9", where="own"),))
        assert [rule.where for rule in added(own).constraints] == ["own", "trainer toy"]

    def test_facts_that_rules_need(self) -> None:
        found = {item.name: (item.value, item.optional) for item in added(space_of("tp_degree")).workload}
        assert found == {
            "micro_batch_size": (2, False),
            "global_batch_size": (None, True),  # it can be computed
            "width": (7, False),
        }

    def test_facts_that_nothing_needs_may_be_absent(self) -> None:
        found = {item.name: (item.value, item.optional) for item in added(space_of("compile")).workload}
        assert found == {
            "micro_batch_size": (2, True),
            "global_batch_size": (None, True),
            ACCUMULATION: (1, True),
            "tp_degree": (1, True),
        }

    def test_facts_of_conditions_and_layers(self) -> None:
        condition = parse_expression("stage == 'a'", where="when")
        layers = Parameter(name="layers", choices=("x", "y"), per_layer="width", when=condition)
        found = {item.name: item for item in added(SearchSpace(parameters=(layers,))).workload}
        assert (found["stage"].value, found["stage"].optional) == ("b", False)
        assert (found["width"].value, found["width"].optional) == (7, False)
        assert found["width"].binding == Binding(kind=BindingKind.FLAG, name="--width", unless=("*.py",))
        assert "compile" not in found

    def test_flags_with_another_use_are_no_facts(self) -> None:
        taken = Parameter(name="mine", choices=(1, 2), binding=Binding(kind=BindingKind.FLAG, name="--tp"))
        fact = WorkloadFact(name="other", binding=Binding(kind=BindingKind.FLAG, name="--batch"))
        space = SearchSpace(parameters=(taken,), workload=(fact,))
        space = replace(space, tune=replace(space.tune, args={"--accumulate": "1"}))
        assert [item.name for item in added(space).workload] == ["other", "micro_batch_size"]


@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_values_that_a_message_lists_are_legal(trainer: str) -> None:
    for name, flag in TRAINERS[trainer].flags.items():
        text = f"trainer = '{trainer}'\n[parameters.{name}]\nobserve = ''\n"
        is_derived = name == ACCUMULATION and TRAINERS[trainer].accumulation != "per rank"
        if flag.choices or is_derived:
            continue
        with pytest.raises(SpaceError, match=r"list them, as in \[.+\]") as caught:
            parse_space(text, where="x.toml")
        listed = str(caught.value).partition("as in ")[2]
        (parameter, *_) = parse_space(f"{text}choices = {listed}\n", where="x.toml").parameters
        assert {kind(value) for value in parameter.choices} == {kind(value) for value in flag.samples or (1,)}

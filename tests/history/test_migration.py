from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx_cubicml.advisor import best_known
from torchx_cubicml.history.history import History
from torchx_cubicml.history.migration import migrated_trials
from torchx_cubicml.launch import Launch
from torchx_cubicml.launch.config_io import present_command
from torchx_cubicml.records.arguments import digested_arguments, text_digest
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.space import SearchSpace
from torchx_cubicml.space.toml import parse_space

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.records.values import Config, Value, Workload

BATCH = "[parameters.batch]\nchoices = [1, 2, 4, 8]\nflag = '--batch'\n"
WORKERS = "[parameters.workers]\nchoices = [0, 2, 4]\nflag = '--workers'\ndefault = 2\n"
SHARDING = "[parameters.sharding_strategy]\nchoices = ['FULL_SHARD', 'NO_SHARD']\nflag = '--sharding'\n"
WORKLOAD: dict[str, Value] = {"program": "train.py", "world_size": 2}


def space_of(*tables: str) -> SearchSpace:
    return parse_space("\n".join(tables), where="space.toml")


def trial_of(config: Config, *, speed: float = 9.0, arguments: str | None = None, **observed: Value) -> Trial:
    trial = Trial.completed(workload=WORKLOAD, config=config, tokens_per_second=speed)
    return replace(
        trial, arguments=None if arguments is None else digested_arguments(arguments.split()), observed=observed
    )


def config_of(trial: Trial, space: SearchSpace, *, others: tuple[Trial, ...] = (), **current: Value) -> Config:
    return migrated([trial, *others], space, current=current)[0].config


def migrated(
    trials: list[Trial], space: SearchSpace, *, workload: Workload = WORKLOAD, current: Config, keys: Sequence[str] = ()
) -> list[Trial]:
    """Trials in the terms of a space, for a command of their program."""
    command = present_command(Launch(program=str(workload["program"])), space)
    given = {"workload": workload, "current": current, "command": command, "keys": tuple(keys)}
    return migrated_trials(History(space=space, trials=trials, **given))


@pytest.mark.parametrize(
    ("arguments", "workers"),
    [
        (None, 2),
        ("--batch 4", 2),
        ("--batch 4 --workers 0", 0),
        ("--workers=4 --batch 4", 4),
        ("--workers many", None),
        ("--workers ***", None),
    ],
    ids=["unknown: the default", "left out: the default", "stated", "joined", "no number", "masked"],
)
def test_an_added_parameter_has_the_value_of_its_time(arguments: str | None, workers: int | None) -> None:
    expected = {"batch": 4} if workers is None else {"batch": 4, "workers": workers}
    assert config_of(trial_of({"batch": 4}, arguments=arguments), space_of(BATCH, WORKERS)) == expected


def test_an_added_flag_without_default_may_stay_unknown() -> None:
    space = space_of(BATCH, WORKERS.replace("default = 2", ""))
    assert config_of(trial_of({"batch": 4}), space) == {"batch": 4}
    assert config_of(trial_of({"batch": 4}, arguments="--batch 4"), space) == {"batch": 4}
    assert config_of(trial_of({"batch": 4}, arguments="--workers 4"), space) == {"batch": 4, "workers": 4}


MESH = "[parameters.mesh]\nmesh = ['dp_shard', 'tp']\nflags = { dp_shard = '--shard', tp = '--tp' }\n"


@pytest.mark.parametrize(
    ("arguments", "mesh"),
    [
        ("--batch 4 --tp 2 --shard 1", {"tp_degree": 2, "dp_shard_degree": 1}),
        ("--batch 4 --tp 2 --shard -1", {"tp_degree": 2, "dp_shard_degree": 1}),
        ("--batch 4 --tp 1", {"tp_degree": 1, "dp_shard_degree": 2}),
        ("--batch 4 --shard -1", {}),
        ("--batch 4 --tp 3", {"tp_degree": 3}),
    ],
    ids=["stated", "the remaining ranks", "left out", "unknown", "of no mesh"],
)
def test_an_added_mesh_has_the_axes_of_its_time(arguments: str, mesh: Config) -> None:
    trial = trial_of({"batch": 4}, arguments=arguments)
    assert config_of(trial, space_of(BATCH, MESH)) == {"batch": 4, **mesh}


def test_an_axis_keeps_the_values_of_its_parameter() -> None:
    before = trial_of({"batch": 4, "tp_degree": 2}, arguments="--batch 4 --tp 2")
    assert config_of(before, space_of(BATCH, MESH)) == {"batch": 4, "tp_degree": 2, "dp_shard_degree": 1}


def test_a_default_that_a_file_may_change_is_not_assumed() -> None:
    batch, workers = space_of(BATCH, WORKERS).parameters
    assert workers.binding is not None
    workers = replace(workers, binding=replace(workers.binding, unless=("*.yaml",)))
    space = SearchSpace(parameters=(batch, workers))
    assert config_of(trial_of({"batch": 4}, arguments="--batch 4 a.yaml"), space) == {"batch": 4}
    assert config_of(trial_of({"batch": 4}, arguments="--batch 4 a.txt"), space) == {"batch": 4, "workers": 2}


@pytest.mark.parametrize(
    ("arguments", "workers"),
    [("--workers 0 --config a.yaml", 0), ("--config a.yaml", None), ("--batch 1", 2)],
    ids=["the flag", "unknown", "no file"],
)
def test_a_config_file_of_the_past_is_not_read(arguments: str, workers: int | None) -> None:
    batch, parameter = space_of(BATCH, WORKERS).parameters
    assert parameter.binding is not None
    binding = replace(parameter.binding, file="--config", key=("workers",))
    space = SearchSpace(parameters=(batch, replace(parameter, binding=binding)))
    assert config_of(trial_of({"batch": 4}, arguments=arguments), space).get("workers") == workers


KNOB = "[parameters.knob]\nchoices = [true, false]\nenv = 'NCCL_KNOB'\ndefault = true\n"
STAGE = "[parameters.stage]\nchoices = [1, 2, 3]\nfile = '--deepspeed'\nkey = 'zero.stage'\ndefault = 1\n"
KEYS = ("a" * 32, "b" * 32)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ({"$NCCL_KNOB": "0", "--deepspeed:zero.stage": "3"}, {"knob": False, "stage": 3}),
        ({"$NCCL_KNOB": "TRUE", "--deepspeed:zero.stage": "2.0"}, {"knob": True, "stage": 2}),
        ({"$NCCL_KNOB": "maybe", "--deepspeed:zero.stage": "4"}, {}),
        ({"program": "code", "--deepspeed:lr": "1"}, {"knob": True, "stage": 1}),
        ({"--deepspeed:*": "binary"}, {"knob": True}),
        ({"program:a": "1"}, {"knob": True}),
        (None, {}),
    ],
    ids=["stated", "spelled otherwise", "no choice", "left out", "a file of no format", "no file", "earlier release"],
)
def test_a_variable_and_a_key_of_a_file_have_the_value_of_their_time(
    texts: dict[str, str] | None, expected: Config
) -> None:
    for key in KEYS:
        digests = None if texts is None else {name: text_digest(text, key) for name, text in texts.items()}
        trial = replace(trial_of({"batch": 4}, arguments="--batch 4"), digests=digests)
        (found,) = migrated([trial], space_of(BATCH, KNOB, STAGE), current={}, keys=KEYS)
        assert found.config == {"batch": 4, **expected}


def test_a_variable_that_no_launch_looked_for_is_unknown() -> None:
    trial = replace(trial_of({"batch": 4}, arguments="--batch 4"), digests={})
    space = space_of(BATCH, KNOB.replace("NCCL_KNOB", "KNOB"))
    assert config_of(trial, space) == {"batch": 4}


def test_a_renamed_parameter_keeps_its_values() -> None:
    space = space_of(BATCH.replace(".batch", ".micro") + "was = ['bs', 'batch']\n")
    assert config_of(trial_of({"batch": 8}), space) == {"micro": 8}
    assert config_of(trial_of({"bs": 8}), space) == {"micro": 8}
    assert config_of(trial_of({"micro": 1, "bs": 8}), space) == {"micro": 1}


@pytest.mark.parametrize("was", ["'batch'", "['x', 'batch']"])
def test_a_former_name_may_not_be_in_use(was: str) -> None:
    with pytest.raises(Exception, match=r"space.toml: parameters.workers.was: 'batch' belongs to the parameter batch"):
        space_of(BATCH, WORKERS, f"was = {was}")


def test_a_former_name_must_be_a_name() -> None:
    with pytest.raises(Exception, match=r"was: must be a former name of this parameter, or a list of up to 32, got 3$"):
        space_of(BATCH, "was = 3")


@pytest.mark.parametrize("key", ["per_layer", "per_table"])
def test_one_choice_becomes_one_per_entry_and_back(key: str) -> None:
    layered = space_of(BATCH, SHARDING + f"{key} = 3\n")
    full, mixed = ("FULL_SHARD",) * 3, ("FULL_SHARD", "NO_SHARD", "NO_SHARD")
    assert config_of(trial_of({"batch": 1, "sharding_strategy": "FULL_SHARD"}), layered)["sharding_strategy"] == full
    single = space_of(BATCH, SHARDING)
    assert config_of(trial_of({"batch": 1, "sharding_strategy": full}), single)["sharding_strategy"] == "FULL_SHARD"
    assert config_of(trial_of({"batch": 1, "sharding_strategy": mixed}), single)["sharding_strategy"] == mixed


@pytest.mark.parametrize("key", ["per_layer", "per_table"])
def test_entries_are_counted_as_the_launch_had_them(key: str) -> None:
    space = space_of("[workload]\nn_layers = { flag = '--layers' }", SHARDING + f"{key} = 'n_layers'\n")
    trial = trial_of({}, arguments="--layers 4 --sharding NO_SHARD")
    (found,) = migrated([trial], space, workload={**WORKLOAD, "n_layers": 4}, current={})
    assert (found.workload, found.config) == ({**WORKLOAD, "n_layers": 4}, {"sharding_strategy": ("NO_SHARD",) * 4})


def test_a_stated_fact_holds_for_earlier_launches() -> None:
    space = space_of("[workload]\nn_layers = 4", BATCH)
    (found,) = migrated([trial_of({"batch": 1})], space, workload={**WORKLOAD, "n_layers": 4}, current={})
    assert found.workload["n_layers"] == 4


def test_a_fact_without_record_stays_unknown() -> None:
    space = space_of("[workload]\nn_layers = { flag = '--layers', default = 4 }", BATCH)
    (found,) = migrated([trial_of({"batch": 1})], space, workload={**WORKLOAD, "n_layers": 4}, current={})
    assert "n_layers" not in found.workload


def test_a_fact_that_is_tuned_now_was_a_value() -> None:
    trial = replace(trial_of({"batch": 1}), workload={**WORKLOAD, "workers": 4})
    assert config_of(trial, space_of(BATCH, WORKERS)) == {"batch": 1, "workers": 4}


def test_sizes_of_the_job_are_those_it_had() -> None:
    size = "[parameters.nproc_per_node]\nchoices = [1, 2, 4]\ntorchrun = 'nproc_per_node'\n"
    assert config_of(trial_of({"batch": 1}, nnodes=1), space_of(BATCH, size))["nproc_per_node"] == 2


def test_another_program_is_left_alone() -> None:
    other = replace(trial_of({"batch": 4}), workload={"program": "other.py"})
    assert config_of(other, space_of(BATCH, WORKERS)) == {"batch": 4}


MICRO = BATCH.replace(".batch", ".micro_batch_size")


@pytest.mark.parametrize(
    ("others", "current", "found"),
    [
        ((), {}, None),
        ((), {"micro_batch_size": 4}, 4),
        ((), {"micro_batch_size": 8}, None),
        ((trial_of({"micro_batch_size": 2}, micro_batch_size=2),), {}, 4),
        ((trial_of({"micro_batch_size": 2}, micro_batch_size=1),), {"micro_batch_size": 4}, None),
        (
            (
                trial_of({"micro_batch_size": 2}, micro_batch_size=2),
                trial_of({"micro_batch_size": 4}, micro_batch_size=2),
            ),
            {},
            None,
        ),
    ],
    ids=["never alike", "as typed now", "unlike the command", "alike once", "split over ranks", "split once"],
)
def test_an_observed_value_counts_if_it_is_what_was_asked_for(
    others: tuple[Trial, ...], current: Config, found: int | None
) -> None:
    config = config_of(trial_of({}, micro_batch_size=4), space_of(MICRO), others=others, **current)
    assert config == ({} if found is None else {"micro_batch_size": found})


@pytest.mark.parametrize(("observed", "current", "found"), [(4, 2, 4), (8, 8, 8), (8, 2, None), (None, 2, 4)], ids=str)
def test_a_default_is_not_assumed_against_what_was_observed(
    observed: int | None, current: int, found: int | None
) -> None:
    trial = trial_of({}, **({} if observed is None else {"micro_batch_size": observed}))
    config = config_of(trial, space_of(MICRO + "default = 4"), micro_batch_size=current)
    assert config == ({} if found is None else {"micro_batch_size": found})


def test_what_a_planner_chose_does_not_contradict_a_default_of_planner() -> None:
    table = "[parameters.embedding_sharding]\nchoices = ['planner', 'row_wise']\nper_table = 2\nhook = 'torchrec'\n"
    trial = trial_of({}, embedding_sharding=("table_wise", "row_wise"))
    assert config_of(trial, space_of(table)) == {"embedding_sharding": ("planner", "planner")}


@pytest.mark.parametrize(
    ("requested", "observed", "alike"),
    [
        ("NO_SHARD", ("NO_SHARD", "NO_SHARD"), True),
        (("NO_SHARD",), "NO_SHARD", True),
        (("NO_SHARD", "FULL_SHARD"), ("NO_SHARD", "FULL_SHARD"), True),
        (("NO_SHARD", "FULL_SHARD"), "NO_SHARD", False),
        ("NO_SHARD", ("FULL_SHARD", "FULL_SHARD"), False),
    ],
    ids=["word for layers", "one layer", "layers", "some of them", "others"],
)
def test_one_word_stands_for_equal_layers(requested: Value, observed: Value, alike: bool) -> None:
    space = space_of(SHARDING + "per_layer = 2\n")
    known = trial_of({"sharding_strategy": requested}, sharding_strategy=observed)
    found = config_of(trial_of({}, sharding_strategy=("FULL_SHARD",) * 2), space, others=(known,))
    assert found == ({"sharding_strategy": ("FULL_SHARD",) * 2} if alike else {})


def test_what_the_arguments_state_precedes_what_was_observed() -> None:
    trial = trial_of({}, arguments="--batch 8", micro_batch_size=4)
    assert config_of(trial, space_of(MICRO), micro_batch_size=4) == {"micro_batch_size": 8}


@st.composite
def changed_files(draw: st.DrawFn) -> tuple[str, Trial, Config]:
    """Return a space file, a trial recorded under an older one, and the config that it ran in the present terms."""
    tables, recorded, ran, words = [], {}, {}, []
    for number in range(draw(st.integers(1, 4))):
        name, choices = f"p{number}", draw(st.lists(st.integers(0, 99), min_size=2, max_size=4, unique=True))
        value, layers = draw(st.sampled_from(choices)), draw(st.sampled_from([None, 3]))
        table = f"[parameters.{name}]\nchoices = {choices}\nflag = '--{name}'\n"
        table += f"per_layer = {layers}\n" if layers else ""
        ran[name] = value if layers is None else (value,) * layers
        how = draw(st.sampled_from(["recorded", "default", "stated", "renamed", "single", "layered"]))
        if how == "default":
            table += f"default = {value}\n"
        elif how == "stated":
            words += [f"--{name}", str(value)]
            table += f"default = {draw(st.sampled_from(choices))}\n"
        elif how == "renamed":
            recorded[f"old{number}"] = ran[name]
            table += f"was = 'old{number}'\n"
        else:
            recorded[name] = {"recorded": ran[name], "single": value, "layered": (value,) * 3}[how]
        tables.append(table)
    states = bool(words) or draw(st.booleans())
    return "\n".join(tables), trial_of(recorded, arguments=" ".join(words) if states else None), ran


@given(changed_files())
def test_whatever_changed_in_the_file_the_config_is_the_one_that_ran(case: tuple[str, Trial, Config]) -> None:
    text, trial, ran = case
    space = space_of(text)
    assert config_of(trial, space) == ran
    again = migrated([trial], space, current={})
    assert migrated(again, space, current={}) == again


@pytest.mark.parametrize(
    "changed",
    [
        (BATCH, WORKERS),
        (BATCH, KNOB),
        (BATCH.replace("8]", "8, 16]"),),
        (BATCH.replace("[1, 2, 4, 8]", "[2, 8]"),),
        (BATCH.replace(".batch", ".micro_batch_size") + "was = 'batch'\n",),
        ("[workload]\nn_layers = 4", BATCH),
    ],
    ids=["a flag", "a variable", "a choice", "two choices fewer", "a name", "a fact"],
)
def test_a_space_file_that_changes_keeps_the_best_known_config(changed: tuple[str, ...]) -> None:
    trials = [trial_of({"batch": batch}, speed=100.0 * batch + n) for batch in (1, 2, 4, 8) for n in range(3)]
    space = space_of(*changed)
    trials = [replace(trial, arguments=(), digests={}) if "env" in changed[-1] else trial for trial in trials]
    own = {**config_of(replace(trials[0], config={"batch": 2}), space)}
    workload = {**WORKLOAD, **{fact.name: fact.value for fact in space.workload if fact.value is not None}}
    best = best_known(space, workload=workload, current=own, trials=trials)
    assert best is not None
    assert (best.n_trials, best.gain) == (12, pytest.approx(4.0, rel=0.1))
    assert 8 in best.config.values()

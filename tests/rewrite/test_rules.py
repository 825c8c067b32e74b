from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_cubicml.advisor import Suggestion
from torchx_cubicml.errors import LaunchError, SpaceError
from torchx_cubicml.history.same_training import (
    can_change_batch,
    changes_training,
    check_batch_size,
    is_same_training,
    not_permitted,
    with_fixed_batch,
)
from torchx_cubicml.launch import Launch
from torchx_cubicml.records.trial import Origin, State, Trial
from torchx_cubicml.rewrite.rules import (
    batch_change_reason,
    check_outputs,
    expected_device_hours,
    explored_device_hours,
    explores,
    held,
    measures_baseline,
    rejection_reason,
)
from torchx_cubicml.space import Binding, BindingKind, Parameter, RewriteRules, SearchSpace
from torchx_cubicml.space.fixed import with_fixed_values
from torchx_cubicml.space.toml import parse_space

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Config, Value

SPACE = parse_space(
    """
    [workload]
    n_layers = { flag = "--n_layer" }

    [parameters.micro_batch_size]
    choices = [1, 2, 4, 8]
    flag = "--batch_size"

    [parameters.tp_degree]
    choices = [1, 2]
    flag = "--tp"

    [parameters.gradient_accumulation_steps]
    derive = "global_batch_size / (micro_batch_size * dp_degree)"
    flag = "--accumulate"

    [parameters.sharding_strategy]
    choices = ["NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD"]
    per_layer = "n_layers"
    flag = "--sharding"
    """,
    where="space.toml",
)
WORKLOAD: dict[str, Value] = {"program": "train.py", "world_size": 4, "n_layers": 3}
CURRENT: dict[str, Value] = {
    "micro_batch_size": 2,
    "tp_degree": 1,
    "gradient_accumulation_steps": 4,
    "sharding_strategy": ("FULL_SHARD", "NO_SHARD", "NO_SHARD"),
}
NAMES = tuple(CURRENT)


def one(name: str, flag: str = "--knob", **more: object) -> Parameter:
    binding = Binding(kind=BindingKind.FLAG, name=flag)
    return Parameter(name=name, choices=(1, 2), binding=binding, **more)


@pytest.mark.parametrize(
    ("name", "flag", "expected"),
    [
        ("precision", "--precision", True),
        ("kind_of_number", "--dtype", True),
        ("width", "--model.hidden-size", True),
        ("learning_rate", "--lr", True),
        ("global_batch_size", "--gbs", True),
        ("micro_batch_size", "--batch_size", False),
        ("gradient_accumulation_steps", "--accumulate", False),
        ("tp_degree", "--tp", False),
        ("sharding_strategy", "--sharding", False),
        ("activation_checkpointing", "--gradient_checkpointing", False),
        ("compile", "--compile", False),
        ("num_workers", "--num_workers", False),
    ],
)
def test_training_parameters_are_known_by_name_or_flag(name: str, flag: str, expected: bool) -> None:
    assert changes_training(one(name, flag)) is expected


def test_another_spelling_of_a_flag_counts_too() -> None:
    binding = Binding(kind=BindingKind.FLAG, name="-p", aliases=("--dtype",))
    assert changes_training(Parameter(name="knob", choices=(1, 2), binding=binding))


def test_parameters_that_change_the_training_are_held() -> None:
    space = SearchSpace(
        parameters=(one("precision", "--a"), one("lr", "--b", changes_training=True), one("tp_degree", "--c")),
        rewrite=RewriteRules(freeze=("tp_degree",)),
    )
    assert not_permitted(space) == ("precision",)
    assert held(space) == ("precision", "tp_degree")


@settings(max_examples=60)
@given(frozen=st.sets(st.sampled_from(NAMES)), choice=st.integers(0, 10**6), seed=st.integers(0, 99))
def test_a_held_space_keeps_frozen_parameters(frozen: set[str], choice: int, seed: int) -> None:
    configs = list(SPACE.bind(workload=WORKLOAD, current=CURRENT).configs())
    current = configs[choice % len(configs)]
    bound = with_fixed_values(SPACE, current, frozen).bind(workload=WORKLOAD, current=current)
    for config in bound.sample(20, rng=np.random.default_rng(seed)):
        full = {**current, **config}
        assert {name: full[name] for name in frozen} == {name: current[name] for name in frozen}
        batch = [c["micro_batch_size"] * c["gradient_accumulation_steps"] / c["tp_degree"] for c in (full, current)]
        assert batch[0] == batch[1]


def test_a_frozen_parameter_is_not_made_idle() -> None:
    text = '[parameters.tp_degree]\nchoices = [1, 2]\nflag = "--tp"\n'
    text += '[parameters.overlap]\nchoices = [0, 1]\nflag = "--overlap"\ndefault = 0\nwhen = "tp_degree > 1"\n'
    space = parse_space(text, where="space.toml")
    current: Config = {"tp_degree": 2, "overlap": 1}
    bound = with_fixed_values(space, current, {"overlap"}).bind(workload=WORKLOAD, current=current)
    assert list(bound.configs()) == [current]


def test_a_frozen_value_outside_of_the_space_stays() -> None:
    current: Config = {**CURRENT, "tp_degree": 4, "gradient_accumulation_steps": 16}
    bound = with_fixed_values(SPACE, current, {"tp_degree"}).bind(workload=WORKLOAD, current=current)
    assert {config["gradient_accumulation_steps"] for config in bound.configs()} == {32, 16, 8, 4}


def test_frozen_values_can_leave_no_legal_config() -> None:
    current: Config = {**CURRENT, "gradient_accumulation_steps": 3}
    with pytest.raises(SpaceError, match="gradient_accumulation_steps keeps its value"):
        with_fixed_values(SPACE, current, {"gradient_accumulation_steps"}).bind(
            workload={**WORKLOAD, "global_batch_size": 32}, current=current
        )


def test_the_global_batch_size_is_kept_by_default() -> None:
    free = SearchSpace(parameters=(one("micro_batch_size"), one("tp_degree", "--tp")))
    current: Config = {"micro_batch_size": 1, "tp_degree": 1}
    assert can_change_batch(free, workload=WORKLOAD, current=current)
    bound = with_fixed_batch(free, workload=WORKLOAD, current=current).bind(workload=WORKLOAD, current=current)
    kept = list(bound.configs())
    assert kept == [current, {"micro_batch_size": 2, "tp_degree": 2}]
    for first, second in product((1, 2), repeat=2):
        config: Config = {"micro_batch_size": first, "tp_degree": second}
        assert (batch_change_reason(free, workload=WORKLOAD, current=current, config=config) == "") is (config in kept)


def test_a_batch_that_may_change_changes() -> None:
    free = SearchSpace(parameters=(one("micro_batch_size", changes_training=True),))
    assert not can_change_batch(free, workload=WORKLOAD, current={"micro_batch_size": 1})
    assert not batch_change_reason(
        free, workload=WORKLOAD, current={"micro_batch_size": 1}, config={"micro_batch_size": 2}
    )


def test_a_derived_accumulation_keeps_the_batch_by_itself() -> None:
    assert not can_change_batch(SPACE, workload=WORKLOAD, current=CURRENT)


def test_another_stated_batch_is_refused() -> None:
    check_batch_size(workload={**WORKLOAD, "global_batch_size": 32}, current=CURRENT)
    with pytest.raises(LaunchError, match="states a global batch size of 64, but the command has 32"):
        check_batch_size(workload={**WORKLOAD, "global_batch_size": 64}, current=CURRENT)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["output_dir=s3://bucket/run"], "s3:// (output_dir)"),
        (["+trainer.output_dir=gs://bucket/run"], "gs:// (+trainer.output_dir)"),
        (["--trainer.default_root_dir", "s3://bucket"], "s3:// (--trainer.default_root_dir)"),
        (["--out=s3://bucket/run"], "s3:// (--out)"),
        (["--checkpoint-dir", "hdfs://host/run"], "hdfs:// (--checkpoint-dir)"),
        (["--lr", "1", "--save", "s3://bucket"], "s3:// (--save)"),
        (["--work_dir", "s3://bucket/run"], "s3:// (--work_dir)"),
        (["--snapshot_path=gs://bucket/snapshot.pt"], "gs:// (--snapshot_path)"),
        (["--tensorboard_dir", "s3://bucket/tb"], "s3:// (--tensorboard_dir)"),
        (["--train-log-dir", "s3://bucket/logs"], "s3:// (--train-log-dir)"),
        (["--saveFolder", "s3://bucket/run"], "s3:// (--saveFolder)"),
        (["--experiment", "s3://bucket/run"], "s3:// (--experiment)"),
    ],
    ids=" ".join,
)
def test_a_remote_output_is_refused(words: list[str], named: str) -> None:
    with pytest.raises(LaunchError, match=re.escape(f"what it left in {named} could not be moved aside")):
        check_outputs(Launch(program="train.py", script_args=tuple(words)))


@pytest.mark.parametrize(
    "words",
    [
        ["--load-checkpoint", "s3://bucket/run"],
        ["--load-checkpoint=s3://bucket/run"],
        ["trainer.resume_from_checkpoint=s3://bucket/run"],
        ["--data-root", "s3://bucket/data"],
        ["--cache_dir", "s3://bucket/cache"],
        ["--train_dir", "s3://bucket/data"],
        ["--config_file", "s3://bucket/exp.yaml"],
        ["--log-model", "false", "s3://bucket/data"],
        ["--out", "runs/1"],
        ["--out=/data/runs/1"],
        ["output_dir=runs/1"],
        ["--out", "file:///data/runs/1"],
        ["--out", "runs/1", "s3://bucket/data"],  # a word without a flag
        ["s3://bucket/out=1"],
        ["--tracking-uri", "https://host/runs"],
        ["--log-host", "https://logs.host:9000"],
        ["--logging.endpoint=grpc://host:4317"],
        ["--save"],
        [],
    ],
    ids=lambda words: " ".join(words) or "nothing",
)
def test_inputs_and_local_outputs_are_not_refused(words: list[str]) -> None:
    check_outputs(Launch(program="train.py", script_args=tuple(words)))


@pytest.mark.parametrize(
    ("changes", "rules", "reason"),
    [
        ({}, RewriteRules(), ""),
        ({}, RewriteRules(min_gain=0.5), ""),
        ({}, RewriteRules(min_gain=0.51), "the best predicted gain, +50.0%, is below min_gain, 51.0%"),
        ({"gain_low": 1.0}, RewriteRules(min_gain=0.0), "the best predicted gain, +50.0%, is within the noise"),
        (
            {"probability_to_fit": 0.8},
            RewriteRules(),
            "fits in memory with a probability of only 80%, below min_fit, 90%",
        ),
        ({"probability_to_fit": 0.8}, RewriteRules(min_fit=0.8), ""),
        ({"gain": None, "gain_low": None}, RewriteRules(min_gain=9.0), ""),
    ],
    ids=["good", "just enough", "too little", "noise", "memory", "bold", "own out of memory"],
)
def test_a_suggestion_clears_the_rules_of_the_user(
    changes: dict[str, float | None], rules: RewriteRules, reason: str
) -> None:
    values = {"gain": 1.5, "gain_low": 1.4, "gain_high": 1.6, "probability_to_fit": 1.0, **changes}
    suggestion = Suggestion(config=CURRENT, throughput=1.0, low=0.9, high=1.1, reason="", n_trials=9, **values)
    assert rejection_reason(suggestion, rules).endswith(reason)
    assert bool(rejection_reason(suggestion, rules)) is bool(reason)


def test_one_launch_in_ten_explores_as_its_dry_run_shows() -> None:
    space = replace(SPACE, rewrite=RewriteRules(explore=0.1, explore_budget_device_hours=1.0))
    drawn = [explores(space, workload=WORKLOAD, n_trials=number) for number in range(2000)]
    assert drawn == [explores(space, workload=dict(WORKLOAD), n_trials=number) for number in range(2000)]
    assert 150 < sum(drawn) < 250  # 200 expected, standard deviation 13: false alarm once in 8000 workloads
    other = {**WORKLOAD, "world_size": 8}
    assert drawn != [explores(space, workload=other, n_trials=number) for number in range(2000)]
    assert not any(explores(SPACE, workload=WORKLOAD, n_trials=number) for number in range(100))


def explored(started: str, ended: str = "", **changes: object) -> Trial:
    trial = Trial(
        trial_id=f"{started}-{ended}",
        workload=WORKLOAD,
        config=CURRENT,
        state=State.COMPLETED if ended else State.RUNNING,
        origin=Origin.EXPLORE,
        started_at=started,
        ended_at=ended,
    )
    return replace(trial, **changes)


def test_the_budget_counts_exploring_launches_only() -> None:
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    ended = explored("2026-01-01T00:00:00+00:00", "2026-01-01T00:30:00+00:00")
    trials = [
        ended,
        replace(ended, origin=Origin.REWRITE, ended_at="2026-01-01T02:00:00+00:00"),
        replace(ended, workload={**WORKLOAD, "program": "other.py"}),
        explored("2026-01-01T11:45:00+00:00"),
        replace(ended, started_at="", ended_at=""),
    ]
    assert explored_device_hours(trials, workload={"program": "train.py"}, now=now) == pytest.approx(4 * (0.5 + 0.25))
    assert expected_device_hours(trials, WORKLOAD) == pytest.approx(4 * 2.0)
    assert expected_device_hours([], WORKLOAD) == 0.0


def test_a_lost_launch_costs_at_most_the_longest_one() -> None:
    now = datetime(2026, 6, 1, tzinfo=UTC)
    lost = explored("2026-01-01T00:00:00+00:00")
    ended = replace(explored("2026-01-01T00:00:00+00:00", "2026-01-01T01:00:00+00:00"), origin=Origin.USER)
    assert explored_device_hours([lost, ended], workload={"program": "train.py"}, now=now) == pytest.approx(4.0)
    assert explored_device_hours([lost], workload={"program": "train.py"}, now=now) > 1000


def test_a_launch_of_unknown_length_costs_nothing() -> None:
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    unknown = explored("", "2026-01-01T01:00:00+00:00")
    backwards = explored("2026-01-01T02:00:00+00:00", "2026-01-01T01:00:00+00:00")
    assert explored_device_hours([unknown, backwards], workload={"program": "train.py"}, now=now) == 0.0
    assert expected_device_hours([unknown, backwards], WORKLOAD) == 0.0


@pytest.mark.parametrize(("size", "devices"), [(1, 1), (2, 2), (0, 1), ("8", 1), (None, 1)])
def test_hours_count_for_each_device(size: Value | None, devices: int) -> None:
    workload = {name: value for name, value in {**WORKLOAD, "world_size": size}.items() if value is not None}
    trial = explored("2026-01-01T00:00:00+00:00", "2026-01-01T03:00:00+00:00", workload=workload)
    assert expected_device_hours([trial], workload) == 3.0 * devices


def test_an_ended_launch_without_an_end_lasts_until_now() -> None:
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    short = explored("2026-01-01T00:00:00+00:00", "2026-01-01T01:00:00+00:00", origin=Origin.USER)
    lost = explored("2026-01-01T00:00:00+00:00", state=State.USER_ERROR)
    assert explored_device_hours([short, lost], workload={"program": "train.py"}, now=now) == 4 * 12.0


@pytest.mark.parametrize(
    ("workload", "current", "refused"),
    [
        ({"global_batch_size": 32}, {}, False),
        ({}, {"global_batch_size": 32}, False),
        ({}, {"global_batch_size": 64}, True),
        ({"global_batch_size": 32}, {"global_batch_size": 64}, False),
        ({}, {}, False),
    ],
)
def test_a_batch_is_stated_by_the_workload_or_the_command(workload: Config, current: Config, refused: bool) -> None:
    stated = {"workload": {**WORKLOAD, **workload}, "current": {**CURRENT, **current}}
    if refused:
        with pytest.raises(LaunchError, match="states a global batch size of 64, but the command has 32"):
            check_batch_size(**stated)
    else:
        check_batch_size(**stated)


def test_a_stated_batch_without_a_computed_one_is_believed() -> None:
    check_batch_size(workload={"program": "t.py", "global_batch_size": 64}, current={})


@pytest.mark.parametrize("name", ["micro_batch_size", "gradient_accumulation_steps", "global_batch_size", "tp_degree"])
def test_permission_to_change_a_part_of_the_batch(name: str) -> None:
    parts = ("micro_batch_size", "gradient_accumulation_steps", "tp_degree")
    current: Config = dict.fromkeys((*parts, "global_batch_size"), 1)
    for permitted in (True, False):
        free = SearchSpace(
            parameters=tuple(
                one(each, f"--{each}", changes_training=permitted and each == name)
                for each in dict.fromkeys((*parts, name))
            )
        )
        reason = batch_change_reason(
            free, workload=WORKLOAD, current=current, config={**current, name: 2, "micro_batch_size": 2}
        )
        assert can_change_batch(free, workload=WORKLOAD, current=current)  # by the other parts
        bound = with_fixed_batch(free, workload=WORKLOAD, current=current).bind(workload=WORKLOAD, current=current)
        configs = [config for config in bound.configs() if config.get("global_batch_size", 1) == 1]
        products = {c["micro_batch_size"] * c["gradient_accumulation_steps"] / c["tp_degree"]: c for c in configs}
        assert (len(products) > 1) is (permitted and name != "global_batch_size")
        if name != "tp_degree":
            assert (reason == "") is permitted


def test_permission_to_change_another_parameter_is_none_for_the_batch() -> None:
    free = SearchSpace(parameters=(one("micro_batch_size"), one("lr", "--lr", changes_training=True)))
    current: Config = {"micro_batch_size": 1, "lr": 1}
    assert can_change_batch(free, workload=WORKLOAD, current=current)
    for config in ({"micro_batch_size": 2, "lr": 1}, {"micro_batch_size": 2, "lr": 2}):
        reason = batch_change_reason(free, workload=WORKLOAD, current=current, config=config)
        assert reason == (
            "the best known config changes the global batch size by a factor of 2; to keep it with a script that "
            "accumulates gradients, add [parameters.gradient_accumulation_steps] with its flag and "
            'derive = "global_batch_size / (micro_batch_size * dp_degree)"; '
            "to allow that, set changes_training = true on micro_batch_size"
        )
        whole = batch_change_reason(
            free,
            workload={**WORKLOAD, "gradient_accumulation_steps": 1},
            current=current,
            config=config,
        )
        assert whole.startswith("the best known config changes the global batch size from 4 to 8;")
    assert not batch_change_reason(free, workload=WORKLOAD, current=current, config={"micro_batch_size": 1, "lr": 2})


@pytest.mark.parametrize("value", [True, False])
def test_a_held_switch_with_a_condition_keeps_its_value(value: bool) -> None:
    text = '[parameters.a]\nchoices = [1, 2]\nflag = "--a"\n'
    text += '[parameters.b]\nchoices = [false, true]\nflag = "--b"\ndefault = false\nwhen = "a > 1"\n'
    space = parse_space(text, where="space.toml")
    current: Config = {"a": 2, "b": value}
    configs = list(with_fixed_values(space, current, {"b"}).bind(workload=WORKLOAD, current=current).configs())
    assert {config["b"] for config in configs} == {value}
    assert {config["a"] for config in configs} == ({2} if value else {1, 2})


def test_a_held_list_of_equal_entries_has_one_choice() -> None:
    for entries in (("FULL_SHARD",) * 3, ("NO_SHARD", "FULL_SHARD", "FULL_SHARD")):
        current: Config = {**CURRENT, "sharding_strategy": entries}
        configs = (
            with_fixed_values(SPACE, current, {"sharding_strategy"}).bind(workload=WORKLOAD, current=current).configs()
        )
        assert {config.get("sharding_strategy", entries) for config in configs} == {entries}


def test_a_flag_is_known_in_upper_case_and_in_a_section() -> None:
    assert changes_training(one("knob", "--Model.Hidden-Size="))
    assert not changes_training(one("knob", "--Xdtype"))
    assert not changes_training(Parameter(name="knob", choices=(1, 2)))
    in_file = Binding(kind=BindingKind.FILE, name="x in --c", file="--c", key=("train", "dtype"))
    assert changes_training(Parameter(name="knob", choices=(1, 2), binding=in_file))


@pytest.mark.parametrize(("hook", "expected"), [("fsdp_precision", True), ("fsdp", False), ("mesh.tp", False)])
def test_a_hook_that_changes_the_training_does_so_under_any_name(hook: str, expected: bool) -> None:
    binding = Binding(kind=BindingKind.HOOK, name=hook)
    assert changes_training(Parameter(name="knob", choices=(1, 2), binding=binding)) is expected
    assert changes_training(replace(one("knob"), observe="precision"))


@pytest.mark.parametrize(
    ("n_launched", "n_baseline", "low", "every", "expected"),
    [
        (3, 1, 1.1, 4, True),
        (4, 1, 1.1, 4, False),
        (7, 2, 1.1, 4, True),
        (7, 3, 1.1, 4, False),
        (7, 0, 1.1, 4, True),
        (7, 1, 1.25, 4, False),
        (7, 1, 1.24, 4, True),
        (7, 1, None, 4, False),
        (7, 1, 1.1, 0, False),
        (7, 1, 1.1, 2, True),
        (6, 1, 1.1, 2, False),
    ],
)
def test_one_launch_in_some_measures_the_own_config(
    n_launched: int, n_baseline: int, low: float | None, every: int, expected: bool
) -> None:
    suggestion = Suggestion(
        config={},
        throughput=1.0,
        low=1.0,
        high=1.0,
        probability_to_fit=1.0,
        reason="",
        n_trials=4,
        gain=None if low is None else 1.3,
        gain_low=low,
        n_baseline=n_baseline,
    )
    assert measures_baseline(suggestion, RewriteRules(baseline_every=every), n_launched=n_launched) is expected


def test_a_declared_data_parallel_degree_is_a_factor_of_the_batch() -> None:
    """The ranks outside it share their samples, as those of an axis without a standard name do."""
    text = '[parameters.dp_degree]\nchoices = [1, 2, 4]\nflag = "--dp"\n'
    text += '[parameters.micro_batch_size]\nchoices = [1, 2, 4]\nflag = "--micro"\n'
    space, current = parse_space(text, where="space.toml"), {"dp_degree": 2, "micro_batch_size": 2}
    case = {"workload": {"program": "train.py", "world_size": 4}, "current": current}
    assert can_change_batch(space, **case)
    kept = with_fixed_batch(space, **case).bind(**case)
    assert sorted((each["dp_degree"], each["micro_batch_size"]) for each in kept.configs()) == [(1, 4), (2, 2), (4, 1)]
    assert not is_same_training(space, config={"dp_degree": 4, "micro_batch_size": 2}, **case)
    assert is_same_training(space, config={"dp_degree": 4, "micro_batch_size": 1}, **case)
    check_batch_size(workload={**case["workload"], "global_batch_size": 4}, current=current)


@pytest.mark.parametrize(("rest", "is_kept"), [("micro_batch_size", False), ("(micro_batch_size * dp_degree)", True)])
def test_accumulation_keeps_the_batch_if_it_reads_a_declared_data_parallel_degree(rest: str, is_kept: bool) -> None:
    text = '[parameters.dp_degree]\nchoices = [1, 2, 4]\nflag = "--dp"\n'
    text += f'[parameters.gradient_accumulation_steps]\nflag = "--accum"\nderive = "global_batch_size / {rest}"\n'
    space = parse_space(f"[workload]\nmicro_batch_size = 2\n{text}", where="space.toml")
    assert space.derives_batch is is_kept


def test_a_training_that_goes_on_holds_what_touches_its_state() -> None:
    names = ("micro_batch_size", "tp_degree", "sharding_strategy", "activation_checkpointing", "prefetch_factor")
    parameters = tuple(Parameter(name=name, choices=(1, 2)) for name in names)
    held_of = [
        held(SearchSpace(parameters=parameters, rewrite=RewriteRules(resume=resume)), goes_on=True)
        for resume in ((), ("reshards",), ("micro_batch_size",))
    ]
    assert held_of == [names[:3], names[:1], names[1:3]]
    assert held(SearchSpace(parameters=parameters)) == ()

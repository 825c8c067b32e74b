from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from torchx_cubicml.advisor import Study
from torchx_cubicml.facts.hook_registry import CHANGED
from torchx_cubicml.history.hook_refusals import hook_refusals
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.space import Binding, Parameter, SearchSpace

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Value

STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")
HOOK = Binding(kind="hook", name="fsdp")
SPACE = SearchSpace(
    parameters=(
        Parameter(name="micro_batch_size", choices=(1, 2, 4)),
        Parameter(name="sharding_strategy", choices=STRATEGIES, per_layer=2, binding=HOOK, default="FULL_SHARD"),
    )
)
OWN = {"micro_batch_size": 1, "sharding_strategy": ("FULL_SHARD", "FULL_SHARD")}
WORKLOAD = {"program": "a.py", "world_size": 2}


def trial(batch: int, sharding: tuple[str, ...] = OWN["sharding_strategy"], **observed: Value) -> Trial:
    config = {"micro_batch_size": batch, "sharding_strategy": sharding}
    ended = Trial.completed(workload=WORKLOAD, config=config, tokens_per_second=100.0 * batch)
    return replace(ended, observed=observed)


def test_a_refused_hook_keeps_its_parameter_and_the_latest_launch_counts() -> None:
    refused, served = trial(1, fsdp_hook="refused: the program wraps no module in FSDP"), trial(2)
    later = [replace(each, started_at="2026-02-01T00:00:00+00:00") for each in (refused, served)]
    reason = {"sharding_strategy": "the program wraps no module in FSDP"}
    assert hook_refusals(SPACE, OWN, [refused]).parameters == reason
    assert hook_refusals(SPACE, OWN, [served, later[0]]).parameters == reason
    assert hook_refusals(SPACE, OWN, [refused, later[1]]).parameters == {}


def test_a_check_does_not_lift_what_only_a_change_finds() -> None:
    wrong = trial(1, fsdp_hook=f"refused: {CHANGED}the ranks train on other samples")
    served = replace(trial(2), started_at="2026-02-01T00:00:00+00:00")
    assert hook_refusals(SPACE, OWN, [wrong, served]).parameters == {
        "sharding_strategy": "after the change, the ranks train on other samples"
    }


def test_the_axes_of_one_hook_are_refused_together() -> None:
    bindings = {axis: Binding(kind="hook", name=f"mesh.{axis}") for axis in ("tp", "cp")}
    axes = [Parameter(name=f"{axis}_degree", choices=(1, 2), binding=each) for axis, each in bindings.items()]
    own = {"tp_degree": 2, "cp_degree": 1}
    refused = replace(trial(1, mesh_hook="refused: no mesh"), config=own)
    found = hook_refusals(SearchSpace(parameters=tuple(axes)), own, [refused])
    assert found.parameters == {"tp_degree": "no mesh", "cp_degree": "no mesh"}


def test_a_refusal_of_another_number_of_layers_does_not_count() -> None:
    three = trial(1, ("FULL_SHARD",) * 3, fsdp_hook="refused: 3 layers were requested, but the model repeats 2")
    assert hook_refusals(SPACE, OWN, [three]).parameters == {}


def test_illegal_values_are_no_longer_choices_but_the_own_one_is() -> None:
    told = trial(1, fsdp_hook_illegal=("NO_SHARD", "HYBRID_SHARD"))
    refusals = hook_refusals(SPACE, OWN, [told])
    assert refusals.values == {"sharding_strategy": ("NO_SHARD",)}
    assert refusals.without_values(SPACE).parameters[1].choices == STRATEGIES[:2]
    assert refusals.texts() == ["sharding_strategy is not set to NO_SHARD: the program does not allow it"]
    own = {**OWN, "sharding_strategy": ("NO_SHARD", "FULL_SHARD")}
    assert hook_refusals(SPACE, own, [told]).values == {}


def test_a_space_without_hooks_is_unchanged() -> None:
    space = SearchSpace(parameters=(Parameter(name="sharding_strategy", choices=STRATEGIES),))
    refusals = hook_refusals(space, OWN, [trial(1, fsdp_hook="refused: x", fsdp_hook_illegal=STRATEGIES)])
    assert refusals.texts() == []
    assert refusals.without_values(space) is space


@given(
    refused=st.booleans(),
    illegal=st.sets(st.sampled_from([*STRATEGIES, "HYBRID_SHARD"])),
    batches=st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=4),
)
def test_no_suggestion_sets_what_the_hook_cannot(refused: bool, illegal: set[str], batches: list[int]) -> None:
    facts: dict[str, Value] = {"fsdp_hook_illegal": tuple(sorted(illegal))} if illegal else {}
    facts |= {"fsdp_hook": "refused: the program wraps no module in FSDP"} if refused else {}
    study = Study.of(SPACE, workload=WORKLOAD, current=OWN, trials=[trial(each, **facts) for each in batches], seed=0)
    suggested = study.suggest(count=3)
    for each in suggested:
        values = set(each.config["sharding_strategy"])
        assert values == {"FULL_SHARD"} if refused else "FULL_SHARD" in illegal or not values & illegal
        assert not refused or "its hook cannot set it: the program wraps no module in FSDP" in each.reason

"""Plans that the TorchRec hooks change, with a stand-in for TorchRec."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from torch import nn

from tests.recorder.apply.torchrec_stand_in import Bags, ParameterConstraints, Ranks, Sequences, Sharder, stand_ins
from torchx_cubicml.recorder.apply.hooks import Hook, hook_facts, installed

MIXED = ("row_wise", "planner", "data_parallel")


@pytest.fixture
def planners(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the stand-in for TorchRec's module of planners."""
    modules = stand_ins()
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return modules["torchrec.distributed.planner.planners"]


def model(*extra: nn.Module, **rows: int) -> nn.Module:
    return nn.Sequential(Bags(**(rows or {"a": 2, "b": 3, "c": 4})), *extra)


def hooks(
    requested: dict[str, Any], checked: dict[str, Any] | None = None, ranks: Ranks | None = None
) -> dict[str, Hook]:
    return installed(requested, checked or {}, peers=ranks or Ranks(), guard=lambda call: call)


def kinds(plan: SimpleNamespace) -> list[tuple[str, str]]:
    return [(each.sharding_type, each.compute_kernel) for part in plan.plan.values() for each in part.values()]


def facts(made: dict[str, Hook]) -> dict[str, object]:
    for hook in made.values():
        hook.release()
    return {name: value for each, hook in made.items() for name, value in hook_facts(each, hook).items()}


ILLEGAL = {"torchrec_hook_illegal": ("column_wise", "table_row_wise", "table_column_wise", "grid_shard")}
KERNELS_ILLEGAL = {"torchrec_kernel_hook_illegal": ("fused_uvm", "fused_uvm_caching", "fused_triton", "key_value")}


@pytest.mark.parametrize("method", ["plan", "collective_plan"])
def test_the_plan_is_the_request(planners: ModuleType, method: str) -> None:
    ranks = Ranks()
    made = hooks({"torchrec": MIXED}, ranks=ranks)
    own = {"a": ParameterConstraints(["table_wise"], min_partition=8)}
    planner = planners.EmbeddingShardingPlanner(own)
    assert kinds(getattr(planner, method)(model(), [Sharder()])) == [
        ("row_wise", "fused"),
        ("table_wise", "fused"),
        ("data_parallel", "dense"),
    ]
    assert planner.planned == [
        {"a": ParameterConstraints(["row_wise"], min_partition=8), "c": ParameterConstraints(["data_parallel"])}
    ]
    assert own == {"a": ParameterConstraints(["table_wise"], min_partition=8)}
    assert planner._enumerator._last_stored_module is None
    assert [name for name, word in ranks.asked if word] == ["torchrec/0"]
    assert facts(made) == ILLEGAL


def test_the_hooks_are_one_change(planners: ModuleType) -> None:
    made = hooks({"torchrec": "row_wise", "torchrec_kernel": ("planner", "fused", "fused"), "torchrec_reserved": 0.5})
    planner = planners.EmbeddingShardingPlanner()
    before = planner._storage_reservation
    assert kinds(planner.collective_plan(model())) == [("row_wise", "fused")] * 3
    assert planner.planned == [
        {
            "a": ParameterConstraints(["row_wise"]),
            "b": ParameterConstraints(["row_wise"], ["fused"]),
            "c": ParameterConstraints(["row_wise"], ["fused"]),
        }
    ]
    assert planner.shares == [0.5]
    assert (before._percentage, planner._storage_reservation._percentage) == (0.15, 0.5)
    assert facts(made) == {**ILLEGAL, **KERNELS_ILLEGAL}


REFUSED = {
    "tables": ({"torchrec": ("row_wise", "row_wise")}, "refused: 2 tables were requested, but the model has 3"),
    "offer": (
        {"torchrec": ("row_wise", "row_wise", "grid_shard"), "torchrec_reserved": 0.5},
        "values refused: the sharder of the table c does not offer grid_shard on cpu",
    ),
    "kernel": (
        {"torchrec": "row_wise", "torchrec_kernel": "dense"},
        "values refused: the sharder of the table a does not offer the kernel dense with row_wise on cpu",
    ),
}


@pytest.mark.parametrize(("requested", "reason"), REFUSED.values(), ids=REFUSED)
def test_one_refused_value_refuses_all(planners: ModuleType, requested: dict[str, Any], reason: str) -> None:
    ranks = Ranks()
    made = hooks(requested, ranks=ranks)
    planner = planners.EmbeddingShardingPlanner()
    assert kinds(planner.collective_plan(model())) == [("table_wise", "fused")] * 3
    assert (planner.planned, planner.shares, ranks.asked) == ([{}], [0.15], [("torchrec/0", "")])
    found = facts(made)
    assert {name: found[f"{name}_hook"] for name in requested} == dict.fromkeys(requested, reason)


@pytest.mark.parametrize("method", ["plan", "collective_plan"])
def test_without_a_plan_the_programs_own_constraints_count(planners: ModuleType, method: str) -> None:
    made = hooks({"torchrec": "data_parallel", "torchrec_reserved": 0.5})
    own = {"big": ParameterConstraints(["row_wise"])}
    planner = planners.EmbeddingShardingPlanner(own)
    assert kinds(getattr(planner, method)(model(a=1, big=9), [Sharder()])) == [
        ("table_wise", "fused"),
        ("row_wise", "fused"),
    ]
    assert planner.planned[1:] == [own]
    assert planner.shares == [0.5, 0.15]
    assert planner._constraints is own
    reason = "values refused: TorchRec's planner finds no plan with these values: insufficient storage"
    assert facts(made) == {**ILLEGAL, "torchrec_hook": reason, "torchrec_reserved_hook": reason}


def test_a_failure_of_the_programs_own_constraints_is_its_own(planners: ModuleType) -> None:
    made = hooks({"torchrec": ("planner", "row_wise"), "torchrec_reserved": 0.5})
    planner = planners.EmbeddingShardingPlanner({"big": ParameterConstraints(["data_parallel"])})
    with pytest.raises(RuntimeError, match="insufficient storage"):
        planner.collective_plan(model(big=9, a=1))
    assert len(planner.planned) == 2
    assert facts(made)["torchrec_hook"].startswith("values refused: TorchRec's planner finds no plan")
    with pytest.raises(TypeError, match="module"):
        planner.plan()


def test_a_table_that_the_plan_leaves_out_refuses_the_values(planners: ModuleType) -> None:
    made = hooks({"torchrec": "row_wise"})
    sharders = [Sharder(), Sharder(Sequences)]
    plan = planners.EmbeddingShardingPlanner().plan(model(Sequences(s=5), a=1), sharders)
    assert kinds(plan) == [("table_wise", "fused")]
    assert facts(made)["torchrec_hook"] == "values refused: TorchRec's plan leaves out the table s"


def test_ranks_that_differ_change_nothing(planners: ModuleType) -> None:
    made = hooks({"torchrec": "row_wise"}, ranks=Ranks(False))
    assert kinds(planners.EmbeddingShardingPlanner().plan(model(), [Sharder()])) == [("table_wise", "fused")] * 3
    assert facts(made)["torchrec_hook"] == "refused: the ranks do not plan the same tables in the same way"


def test_the_vote_is_on_tables_and_values(planners: ModuleType) -> None:
    words = set()
    for value, rows in (("row_wise", 2), ("table_wise", 2), ("row_wise", 3)):
        ranks = Ranks()
        made = hooks({"torchrec": value}, ranks=ranks)
        planners.EmbeddingShardingPlanner().plan(model(a=rows), [Sharder()])
        facts(made)
        words |= {word for _, word in ranks.asked}
    assert len(words) == 3


def test_a_check_changes_nothing_and_tells_what_could_be_set(planners: ModuleType) -> None:
    own = {"torchrec": ("planner",) * 3, "torchrec_kernel": "planner", "torchrec_reserved": 0.15}
    made = hooks({}, own)
    planner = planners.EmbeddingShardingPlanner()
    planner.collective_plan(model())
    assert (planner.planned, planner.shares) == ([{}], [0.15])
    assert facts(made) == {**ILLEGAL, **KERNELS_ILLEGAL}


def test_a_reservation_without_a_share_hinders_its_own_hook_alone(planners: ModuleType) -> None:
    made = hooks({"torchrec": "row_wise"}, {"torchrec_reserved": 0.15})
    planner = planners.EmbeddingShardingPlanner()
    planner._storage_reservation = SimpleNamespace(_percentage=0.0, _hbm_reserved_bytes=9)
    assert kinds(planner.plan(model(), [Sharder()])) == [("row_wise", "fused")] * 3
    reason = "refused: the program's reservation SimpleNamespace keeps no share of the memory"
    assert facts(made) == {**ILLEGAL, "torchrec_reserved_hook": reason}
    made = hooks({"torchrec": "row_wise", "torchrec_reserved": 0.3})
    assert kinds(planner.plan(model(), [Sharder()])) == [("row_wise", "fused")] * 3  # as changed before
    assert facts(made) == {**ILLEGAL, "torchrec_hook": reason, "torchrec_reserved_hook": reason}


PLANNERS = {
    "a stored plan": ({"plan_loader": object()}, "the program's planner loads a stored plan"),
    "no enumerator": ({"_enumerator": None}, "the program's planner keeps no constraints that can be changed"),
    "another enumerator": (
        {"_enumerator": SimpleNamespace()},
        "the program's planner keeps no constraints that can be changed",
    ),
    "no dictionary": ({"_constraints": [1]}, "the constraints of the program's planner are not a dictionary"),
}


@pytest.mark.parametrize(("fields", "reason"), PLANNERS.values(), ids=PLANNERS)
def test_other_planners_are_left_alone(planners: ModuleType, fields: dict[str, object], reason: str) -> None:
    made = hooks({"torchrec": "row_wise"})
    planner = planners.EmbeddingShardingPlanner()
    planner.plan = lambda *_: None
    vars(planner).update(fields)
    planner.collective_plan(model())
    assert facts(made)["torchrec_hook"] == f"refused: {reason}"


def test_each_plan_of_a_planner_starts_from_the_programs_own_constraints(planners: ModuleType) -> None:
    hooks({"torchrec": ("row_wise", "planner", "planner")})
    planner = planners.EmbeddingShardingPlanner()
    for _ in range(2):
        planner.plan(model(), [Sharder()])
    planner.plan(model(d=1), [Sharder()])
    assert planner.planned == [{"a": ParameterConstraints(["row_wise"])}] * 2 + [{}]
    assert planner._constraints is None


def test_a_model_without_tables_after_the_plan_changes_no_verdict(planners: ModuleType) -> None:
    made = hooks({"torchrec": "row_wise"})
    planners.EmbeddingShardingPlanner().plan(model(), [Sharder()])
    planners.EmbeddingShardingPlanner().plan(nn.Linear(1, 1), [Sharder()])
    assert facts(made) == ILLEGAL
    made = hooks({"torchrec": "row_wise"})
    planners.EmbeddingShardingPlanner().plan(nn.Linear(1, 1), [Sharder()])
    assert facts(made)["torchrec_hook"] == (
        "refused: the model that the program plans has no embedding tables of TorchRec"
    )


def test_two_tables_of_one_name_have_one_value(planners: ModuleType) -> None:
    for values, is_set in ((("row_wise", "row_wise"), True), (("row_wise", "table_wise"), False)):
        made = hooks({"torchrec": values})
        planners.EmbeddingShardingPlanner().plan(model(Bags(a=5), a=1), [Sharder()])
        assert ("torchrec_hook" not in facts(made)) is is_set


def test_a_program_without_a_planner_is_told_apart(planners: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped = planners.EmbeddingShardingPlanner.plan
    made = hooks({"torchrec": "row_wise"})
    assert planners.EmbeddingShardingPlanner.plan is not wrapped
    assert facts(made)["torchrec_hook"] == "refused: the program shards its tables without TorchRec's planner"
    assert planners.EmbeddingShardingPlanner.plan is wrapped
    monkeypatch.delattr(planners, "EmbeddingShardingPlanner")
    assert facts(hooks({"torchrec": "row_wise"}))["torchrec_hook"] == (
        "refused: this TorchRec has no EmbeddingShardingPlanner"
    )
    monkeypatch.delitem(sys.modules, planners.__name__)
    assert facts(hooks({"torchrec": "row_wise"}))["torchrec_hook"] == "refused: the program does not import TorchRec"
    sys.meta_path.pop(0)  # the finder that waits for the import


def test_a_planner_that_names_its_first_parameter_otherwise_is_changed_likewise(
    planners: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = planners.EmbeddingShardingPlanner.plan

    def other(planner: Any, module: nn.Module, sharders: list[Sharder]) -> SimpleNamespace:
        return own(planner, module, sharders)

    monkeypatch.setattr(planners.EmbeddingShardingPlanner, "plan", other)
    made = hooks({"torchrec": MIXED})
    plan = planners.EmbeddingShardingPlanner().plan(model(), [Sharder()])
    assert kinds(plan)[0] == ("row_wise", "fused")
    for hook in made.values():
        hook.release()

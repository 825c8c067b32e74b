"""Plans that the sequence-parallel hook changes; ``test_mesh_hook_launches.py`` has a real launch."""

from __future__ import annotations

import pytest
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor import parallel as torch_parallel
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
)

from torchx_cubicml.recorder.apply.hooks import hook_facts
from torchx_cubicml.recorder.apply.sequence_parallel_hook import SequenceParallelHook

NOTHING = "the program has no sequence-parallel plan"


class Ranks:
    """The other ranks of a job, which all answer alike."""

    def __init__(self, *, agree: bool = True) -> None:
        self.answer = agree
        self.words: list[str] = []

    def agree(self, name: str, word: str, *, within_s: float) -> bool:
        assert (name, within_s) == ("sequence_parallel/0", 30.0)
        self.words.append(word)
        return self.answer and bool(word)


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return the plans that a stand-in for ``parallelize_module`` gets."""
    taken: list[object] = []

    def parallelize_module(module: nn.Module, device_mesh: object = None, parallelize_plan: object = None) -> nn.Module:
        taken.append(parallelize_plan)
        return module

    monkeypatch.setattr(torch_parallel, "parallelize_module", parallelize_module)
    return taken


def hooked(*, value: bool = False, ranks: Ranks | None = None, only_checks: bool = False) -> SequenceParallelHook:
    hook = SequenceParallelHook(value, peers=ranks or Ranks(), guard=lambda call: call, only_checks=only_checks)
    hook.install()
    return hook


def parallelize(plan: object, module: nn.Module | None = None) -> None:
    torch_parallel.parallelize_module(module or nn.Linear(1, 1), None, plan)


def llama() -> dict[str, ParallelStyle]:
    return {
        "norm": SequenceParallel(),
        "attention": PrepareModuleInput(input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1)),
    }


def test_activations_between_the_layers_are_replicated(plans: list[dict[str, ParallelStyle]]) -> None:
    original, ranks, own = torch_parallel.parallelize_module, Ranks(), llama()
    hook = hooked(ranks=ranks)
    parallelize(own)
    parallelize(llama())
    parallelize(SequenceParallel())
    parallelize({"w": ColwiseParallel()})
    plan = plans[0]
    assert plan["norm"].sequence_sharding == (Replicate(),)
    assert plan["attention"].input_layouts == (Replicate(), None)
    assert plan["up"].input_layouts == (Replicate(),)
    assert plan["down"].output_layouts == (Replicate(),)
    assert plan["down"].input_layouts == (Shard(-1),)
    assert plan["head"].output_layouts == (Shard(-1),)
    assert own["norm"].sequence_sharding == (Shard(1),)
    assert plans[2].sequence_sharding == (Replicate(),)
    assert ranks.words == ["replicate"]
    taken = torch_parallel.parallelize_module
    hook.release()
    taken(nn.Linear(1, 1), None, own)
    assert plans[-1] is own
    assert (hook.refusal(), hook.illegal_values()) == ("", ())
    assert torch_parallel.parallelize_module is original


class Own(ParallelStyle):
    def __init__(self) -> None:
        self.input_layouts = (Shard(1),)

    def _apply(self, module: nn.Module, _mesh: object) -> nn.Module:
        return module


@pytest.mark.parametrize(
    ("plan", "module", "why"),
    [
        ({"up": ColwiseParallel(), "down": RowwiseParallel()}, None, NOTHING),
        (None, None, NOTHING),
        (
            {"down": RowwiseParallel(output_layouts=Shard(1))},
            None,
            "a plan shards dimension 1, and no SequenceParallel",
        ),
        ({"norm": SequenceParallel(sequence_dim=0)}, None, "the sequence of the plan has another dimension than 1"),
        ({**llama(), "x": Own()}, None, "the plan has a style of its own, Own"),
        (
            {**llama(), "head": ColwiseParallel(output_layouts=Shard(1))},
            None,
            "the plan shards an output of columns along the sequence",
        ),
        (llama(), nn.Sequential(nn.Dropout(0.1)), "the model has dropout"),
    ],
    ids=["no-sequence", "no-plan", "unclear", "other-dimension", "own-style", "sharded-output", "dropout"],
)
@pytest.mark.parametrize("only_checks", [False, True])
def test_a_plan_that_may_not_be_changed_stays_as_it_is(
    plan: object, module: nn.Module | None, why: str, only_checks: bool, plans: list[object]
) -> None:
    hook = hooked(only_checks=only_checks)
    parallelize(plan, module)
    assert plans == [plan]
    assert hook.refusal().startswith(why)
    assert str(hook_facts("sequence_parallel", hook)["sequence_parallel_hook"]).startswith(f"refused: {why}")


def test_ranks_that_disagree_change_nothing(plans: list[object]) -> None:
    hook = hooked(ranks=Ranks(agree=False))
    parallelize(plan := llama())
    parallelize(plan)
    assert plans == [plan, plan]
    assert hook.refusal() == "the ranks do not make the same plan"


def test_a_later_plan_out_of_rule_is_told_with_what_was_changed(plans: list[object]) -> None:
    hook = hooked()
    parallelize(llama())
    parallelize(other := {"x": Own()})
    assert plans[1] is other
    assert hook.refusal() == "the plan has a style of its own, Own; 1 plans were changed before that was known"


def test_a_check_and_the_scripts_own_value_change_nothing(plans: list[object]) -> None:
    for hook in (hooked(only_checks=True), hooked(value=True)):
        parallelize(plan := llama())
        assert plans.pop() is plan
        hook.release()
        assert hook_facts("sequence_parallel", hook) == {}

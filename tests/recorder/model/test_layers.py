from __future__ import annotations

import gc
import subprocess
import sys
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from torchx_cubicml.recorder.model import layers
from torchx_cubicml.recorder.model.layers import (
    ancestors,
    contains_all,
    count_layers,
    layers_of_stage,
    live_modules,
    modules_around,
    networks_with,
    outermost,
    repeated_blocks,
    unwrap,
    user_class,
)


class Block(nn.Module):
    def __init__(self, n_experts: int = 0) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4))
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(n_experts))


class Model(nn.Module):
    def __init__(self, n_layers: int, n_experts: int = 0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 4)
        self.blocks = nn.ModuleList(Block(n_experts) for _ in range(n_layers))
        self.drop = nn.ModuleList(nn.Dropout() for _ in range(9))
        self.head = nn.Linear(4, 8)


def test_blocks_are_the_largest_list_of_one_class_from_outside() -> None:
    model = Model(3, n_experts=8)
    assert repeated_blocks(model) == list(model.blocks)


def test_blocks_are_found_within_wrappers() -> None:
    model = Model(3)
    blocks = list(model.blocks)
    model.blocks[1] = checkpoint_wrapper(blocks[1])
    model.blocks[2] = torch.compile(blocks[2], backend="eager")
    assert repeated_blocks(model) == blocks
    assert unwrap(model.blocks[1]) is blocks[1]
    assert unwrap(blocks[0]) is blocks[0]


def test_a_sequence_of_plain_layers_has_no_blocks() -> None:
    assert repeated_blocks(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))) == []
    nested = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4)) for _ in range(3)), nn.Linear(4, 2))
    assert repeated_blocks(nested) == list(nested)[:3]


def test_the_network_of_the_first_parameter_is_the_model() -> None:
    for collects in ((), (0,), (1,), (0, 1)):
        networks = []
        for number in range(2):
            networks.append(nn.Sequential(nn.Linear(2, 2)))
            if number in collects:
                gc.collect()
        for first, second in (networks, networks[::-1]):
            assert modules_around([*first.parameters(), *second.parameters()]) == [first[0], first]


def test_a_compiled_graph_is_not_the_model() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    graph = torch.fx.GraphModule({"weight": model[0].weight}, torch.fx.Graph())
    assert graph in live_modules()
    assert modules_around(model.parameters()) == [model[0], model]


def test_modules_around_a_parameter_lead_to_the_outermost() -> None:
    model = Model(2)
    wrapper, bystander = nn.Sequential(model), Model(2)
    around = modules_around([model.blocks[0].mlp[0].weight])
    assert around[0] is model.blocks[0].mlp[0]
    assert around[-1] is wrapper
    assert model in around
    assert bystander not in around


def test_parameters_in_no_module_lead_to_the_largest_model() -> None:
    large = nn.Sequential(nn.Linear(3000, 3000, bias=False))
    assert modules_around([torch.zeros(3)]) == [large[0], large]


def test_live_modules_call_no_object() -> None:
    class Lazy:
        @property
        def __class__(self) -> type:
            raise RuntimeError("this would load a library")

    lazy, module = Lazy(), nn.Linear(2, 2)
    assert any(each is module for each in live_modules())
    del lazy


def test_a_program_without_torch_has_no_modules() -> None:
    words = (
        "import sys\nfrom torchx_cubicml.recorder.model.layers import live_modules\n"
        "print(live_modules(), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.split() == ["[]", "False"]


@pytest.fixture
def frozen(thawed: None) -> None:
    gc.collect()
    gc.freeze()


@pytest.mark.usefixtures("frozen")
def test_a_module_under_construction_is_passed_over() -> None:
    begun, model = nn.Linear.__new__(nn.Linear), nn.Sequential(nn.Linear(2, 2))
    assert not hasattr(begun, "_modules")
    found = {*map(id, live_modules())}
    assert {id(model), id(model[0])} <= found
    assert id(begun) not in found
    assert modules_around([model[0].weight]) == [model[0], model]


class FullyShardedDataParallel(nn.Module):
    """A wrapper that keeps the user's module under one of the known names."""

    def __init__(self, name: str, module: nn.Module) -> None:
        super().__init__()
        self.add_module(name, module)


class DistributedDataParallel(FullyShardedDataParallel):
    """A wrapper that is known by its own name."""


def test_wrappers_are_known_by_their_attributes() -> None:
    inner = Block()
    for name in ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"):
        assert unwrap(FullyShardedDataParallel(name, FullyShardedDataParallel(name, inner))) is inner
    assert unwrap(DistributedDataParallel("module", inner)) is inner
    own = FullyShardedDataParallel("module", inner)  # of a user, as far as is known
    assert unwrap(own) is own


class Sharded:
    """As the class that ``fully_shard`` puts before the user's own."""

    def _get_fsdp_state(self) -> None:
        return None


class ShardedBlock(Sharded, Block):
    pass


def test_a_sharded_module_is_of_the_users_class() -> None:
    assert user_class(ShardedBlock()) is Block
    assert user_class(Block()) is Block
    mixed = nn.ModuleList([Block(), ShardedBlock(), nn.Linear(4, 4)])
    assert repeated_blocks(mixed) == list(mixed)[:2]


def test_one_layer_repeats_nothing() -> None:
    assert repeated_blocks(nn.ModuleList([Block()])) == []
    assert repeated_blocks(nn.ModuleDict({"one": Block(), "two": Block()})) != []
    assert repeated_blocks(nn.ModuleList([nn.ReLU(), nn.ReLU()])) == []  # none has parameters


def test_the_first_of_two_equal_lists_is_taken() -> None:
    model = nn.Module()
    model.encoder = nn.ModuleList(Block() for _ in range(2))
    model.decoder = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
    assert repeated_blocks(model) == list(model.encoder)
    model.decoder.append(nn.Linear(4, 4))
    assert repeated_blocks(model) == list(model.decoder)


def test_larger_lists_within_a_layer_do_not_count() -> None:
    model = nn.ModuleList(checkpoint_wrapper(Block(n_experts=5)) for _ in range(2))
    assert repeated_blocks(model) == [unwrap(each) for each in model]


@pytest.mark.parametrize(
    ("part", "n_layers"),
    [
        (nn.ModuleList([Block()]), 1),
        (nn.ModuleDict({"only": Block()}), 1),
        (nn.Sequential(Block()), 0),
        (nn.ModuleList([Block(), Block()]), 2),
        (nn.ModuleList([Block(), nn.Linear(4, 4)]), 1),
        (nn.ModuleList([nn.Linear(4, 4)]), 0),
        (nn.Sequential(nn.ModuleList([]), nn.ModuleList([Block()])), 1),
        (nn.ModuleDict({"layers": nn.ModuleList([Block()])}), 1),
    ],
    ids=["list", "dictionary", "sequence", "two", "one and a plain one", "plain", "within", "list in a dictionary"],
)
def test_a_part_of_a_model_may_have_one_layer(part: nn.Module, n_layers: int) -> None:
    layer = "Block 4 4 4 4" if n_layers else ""
    assert layers_of_stage(part) == {"n_layers": n_layers, "layer": layer}


def test_the_nearest_module_comes_first() -> None:
    inner = nn.Linear(2, 2)
    middle = nn.Sequential(inner)
    outer = nn.Sequential(middle)
    assert ancestors(inner) == [middle, outer]
    assert ancestors(outer) == []


def test_the_outermost_wrapper_is_found_among_others() -> None:
    inner = Block()
    wrapper = FullyShardedDataParallel("_orig_mod", inner)
    outer = DistributedDataParallel("module", wrapper)
    task = nn.Sequential(outer)
    assert outermost(inner) is outermost(wrapper) is outermost(outer) is outer
    assert outermost(task) is task
    assert outermost(inner, [wrapper]) is wrapper
    assert outermost(inner, []) is inner


def test_a_module_contains_parameters_of_its_own_only() -> None:
    model, other = nn.Sequential(nn.Linear(2, 2)), nn.Linear(2, 2)
    assert contains_all(model, model[0].parameters())
    assert contains_all(model, [])
    assert not contains_all(model, [model[0].weight, other.weight])


def test_a_ring_of_modules_ends() -> None:
    one, other = nn.Module(), nn.Module()
    one.other, other.one = other, one
    assert ancestors(one) == [other]
    del one.other


def test_without_a_holder_the_largest_trained_parameter_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large, frozen = nn.Linear(3, 3), nn.Linear(4, 4), nn.Linear(5, 5).requires_grad_(False)
    monkeypatch.setattr(layers, "live_modules", lambda: [small, large, frozen])
    assert modules_around([torch.zeros(2)]) == [large]
    monkeypatch.setattr(layers, "live_modules", lambda: [frozen])
    assert modules_around([torch.zeros(2)]) == []


def test_a_model_that_stays_on_meta_is_not_the_trained_one(monkeypatch: pytest.MonkeyPatch) -> None:
    small, template = nn.Linear(3, 3), nn.Linear(4, 4, device="meta")
    monkeypatch.setattr(layers, "live_modules", lambda: [small, template])
    assert modules_around([torch.zeros(2)]) == [small]
    assert modules_around([template.weight]) == [small]
    assert networks_with([template.weight]) == []


def stage(width: int, depth: int, wider: int = 0) -> nn.Sequential:
    widths = [width, *[wider or width] * depth]
    return nn.Sequential(*(Wide(n_in, n_out) for n_in, n_out in pairwise(widths)))


class Parts(nn.Module):
    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        for number, part in enumerate(parts):
            self.add_module(f"part{number}", part)


class Wide(nn.Module):
    def __init__(self, n_in: int, n_out: int, n_experts: int = 0) -> None:
        super().__init__()
        self.first = nn.Linear(n_in, n_out)
        self.experts = nn.ModuleList(nn.Linear(n_out, n_out) for _ in range(n_experts))


@pytest.mark.parametrize(
    ("model", "count"),
    [
        (Parts(nn.Embedding(99, 8), stage(8, 4), nn.Linear(8, 99)), 4),
        (Parts(stage(8, 2), stage(8, 2, 16), stage(16, 2, 32)), 0),
        (Parts(stage(8, 2), stage(16, 4), stage(8, 4)), 0),
        (Parts(stage(8, 6), stage(8, 6)), 0),
        (Parts(stage(8, 2), stage(16, 12)), 12),
        (nn.ModuleList([Wide(8, 16), Wide(16, 32), Wide(32, 64)]), 0),
        (nn.ModuleList([nn.Sequential(Wide(4, 4)), nn.Sequential(stage(4, 3)), nn.Sequential(stage(4, 5))]), 0),
        (nn.ModuleList([Wide(8, 8), Wide(8, 8, 4), Wide(8, 8), Wide(8, 8, 4)]), 4),
        (nn.ModuleList([Wide(8, 8), *(Wide(8, 8, 4) for _ in range(5))]), 6),
        (nn.Linear(8, 8), 0),
    ],
    ids=[
        "a transformer",
        "stages",
        "stages of which one is larger",
        "encoder and decoder",
        "a small encoder beside",
        "widths that grow",
        "unlike parts",
        "experts in each second layer",
        "experts in all but one",
        "no layers",
    ],
)
def test_layers_are_counted_where_one_stack_of_equal_ones_is_the_model(model: nn.Module, count: int) -> None:
    assert count_layers(model) == count


def test_a_shared_parameter_has_its_first_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2)
    second.weight = first.weight
    monkeypatch.setattr(layers, "live_modules", lambda: [first, second])
    assert modules_around([torch.zeros(2), first.weight, second.bias]) == [first]
    assert modules_around([second.bias, first.weight]) == [second]


def test_networks_with_parameters_are_the_smallest_that_hold_most() -> None:
    first, second, whole = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Linear(3, 3), nn.Linear(4, 4)
    around = nn.ModuleList([whole])
    plain = torch.zeros(1)
    assert networks_with([]) == []
    assert networks_with([plain]) == []
    assert networks_with([plain, *first.parameters(), second.bias, whole.weight]) == [first, second, whole]
    assert networks_with([first[1].weight]) == [first[1]]
    both = nn.ModuleList([first, second])
    assert networks_with([*first.parameters(), second.bias]) == [both]
    del around


@pytest.mark.filterwarnings("ignore:.*jit.script:DeprecationWarning")
def test_scripted_layers_are_blocks() -> None:
    layers = [torch.jit.script(nn.Sequential(nn.Linear(2, 2))) for _ in range(2)]
    assert repeated_blocks(nn.ModuleList(layers)) == layers

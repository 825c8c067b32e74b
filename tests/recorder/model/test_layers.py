from __future__ import annotations

import gc
import subprocess
import sys

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from torchx_cubicml.recorder.model.layers import live_modules, modules_around, repeated_blocks, unwrap


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

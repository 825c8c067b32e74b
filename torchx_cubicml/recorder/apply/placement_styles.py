"""Styles of ``parallelize_module`` that place the parameters of a linear layer or an embedding otherwise.

The inputs and outputs of the layer keep the layouts that the script's own style states, so that the code around it sees
no difference: torch redistributes them (GSPMD, arXiv 2105.04663). Sums may be taken in another order.
"""

from __future__ import annotations

from fnmatch import fnmatch
from functools import cache
from typing import TYPE_CHECKING, Any

from torchx_cubicml.recorder.apply.elementwise_flow import only_feeds
from torchx_cubicml.recorder.apply.tensor_plans import COLWISE, REPLICATED, ROWWISE, STYLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import nn

_LAYOUTS = ("input_layouts", "output_layouts")
_SHARDED_DIM = {("Linear", COLWISE): 0, ("Linear", ROWWISE): 1, ("Embedding", COLWISE): 1, ("Embedding", ROWWISE): 0}


def matched(module: nn.Module, path: str) -> list[nn.Module]:
    """Return the modules that the key of a plan names, as ``parallelize_module`` reads it; ``""`` is the module itself.

    >>> from torch import nn
    >>> matched(nn.Sequential(nn.ReLU(), nn.Sequential(nn.Tanh())), "*.0")
    [Tanh()]
    """
    found = [module]
    for token in path.split(".") if path else ():
        found = [child for each in found for name, child in each.named_children() if fnmatch(name, token)]
    return found


def own_placement(style: object) -> str:
    """Return the placement of one of torch's styles; empty for another style."""
    return STYLES.get(type(style).__name__, "") if type(style).__module__.startswith("torch.") else ""


def sharded_dim(module: nn.Module, placement: str) -> int | None:
    """Return the dimension of a layer's weight that a placement shards; ``None`` where it is replicated."""
    return _SHARDED_DIM.get((type(module).__name__, placement))


def shards_last(layouts: Any) -> bool:
    """Return whether the layout of an activation is a shard of its last dimension."""
    return len(layouts) == 1 and type(layouts[0]).__name__ == "Shard" and layouts[0].dim == -1


def problem(style: Any, module: nn.Module, n_uses: int) -> str:
    """Return the reason why the parameters of a module cannot be placed otherwise; empty if they can.

    Args:
        style: of the module in the script's plan.
        module: a module that the style applies to.
        n_uses: modules of the model that hold its weight.
    """
    from torch import nn

    if not own_placement(style):
        return f"its style is {type(style).__name__}, and neither ColwiseParallel nor RowwiseParallel"
    if type(module) not in {nn.Linear, nn.Embedding}:
        return f"it is a {type(module).__name__}, and neither Linear nor Embedding"
    layouts = [getattr(style, name) for name in _LAYOUTS]
    if any(len(each) != 1 or type(each[0]).__name__ not in {"Shard", "Replicate"} for each in layouts):
        return "its style has layouts besides Shard and Replicate"
    if n_uses > 1:
        return "its weight is shared with another module"
    return _problem_of_parameters(module)


def _problem_of_parameters(module: nn.Module) -> str:
    from torch import nn

    if any(parameter.is_meta for parameter in module.parameters()):
        return "its parameters have no values yet (device meta)"
    if any(hasattr(parameter, "device_mesh") for parameter in module.parameters()):
        return "its parameters are distributed already"
    is_special = isinstance(module, nn.Embedding) and (
        module.padding_idx is not None or module.max_norm is not None or module.scale_grad_by_freq or module.sparse
    )
    return "it is an Embedding with padding_idx, max_norm, scale_grad_by_freq or sparse" if is_special else ""


def illegal_placements(style: object, module: nn.Module, n_ranks: int) -> set[str]:
    """Return the placements, besides the script's own, whose shards would not be equal."""
    weight: Any = module.weight
    illegal = set()
    for placement in {COLWISE, ROWWISE, REPLICATED} - {own_placement(style)}:
        dim = sharded_dim(module, placement)
        if dim is not None and weight.shape[dim] % n_ranks:
            illegal.add(placement)
    return illegal


def placed(style: Any, placement: str, *, whole_input: bool = False, whole_output: bool = False) -> object:
    """Return a style of the same layouts with another placement of the parameters.

    Args:
        style: the script's own.
        placement: of the parameters.
        whole_input: whether the input is whole, whatever the style states.
        whole_output: whether the output stays whole, likewise.
    """
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    kinds = {COLWISE: ColwiseParallel, ROWWISE: RowwiseParallel, REPLICATED: _replicated_parallel()}
    return kinds[placement](
        input_layouts=Replicate() if whole_input else style.input_layouts[0],
        output_layouts=Replicate() if whole_output else style.output_layouts[0],
        use_local_output=style.use_local_output,
    )


@cache
def _replicated_parallel() -> Any:
    """Return the style that leaves the parameters whole on each rank; made here, as its base needs torch."""
    from torch import nn
    from torch.distributed.tensor import Replicate, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel

    class ReplicatedParallel(ColwiseParallel):
        """Style with a copy of the parameters on each rank, and whole inputs."""

        def _partition_linear_fn(self, name: str, module: nn.Module, device_mesh: Any) -> None:
            for each, parameter in list(module.named_parameters(recurse=False)):
                source = {"src_data_rank": self.src_data_rank} if hasattr(self, "src_data_rank") else {}
                copied = distribute_tensor(parameter, device_mesh, [Replicate()], **source)
                module.register_parameter(each, nn.Parameter(copied, requires_grad=parameter.requires_grad))

        _partition_embedding_fn = _partition_linear_fn

    return ReplicatedParallel


def changed_styles(
    module: nn.Module, plan: Mapping[str, Any], changes: Mapping[str, str], groups: Iterable[tuple[str, ...]]
) -> dict[str, object]:
    """Return the changed styles of a plan by their keys.

    Args:
        module: module that the plan is for.
        plan: the script's own.
        changes: key of the plan -> another placement.
        groups: keys of the modules that one parameter places.
    """
    whole = {
        key
        for group in groups
        for key in _whole_within(module, plan, [key for key in group if key in changes], changes)
    }
    return {
        key: placed(
            plan[key],
            placement,
            whole_input=key in whole and own_placement(plan[key]) == ROWWISE,
            whole_output=key in whole and own_placement(plan[key]) == COLWISE,
        )
        for key, placement in changes.items()
    }


def _whole_within(
    module: nn.Module, plan: Mapping[str, Any], group: Iterable[str], changes: Mapping[str, str]
) -> set[str]:
    """Return the modules of a group between which activations may stay whole.

    They are the column-wise modules of one parent, whose outputs only element-wise operations carry to the row-wise
    ones.
    """
    by_parent: dict[str, list[str]] = {}
    for key in group:
        if changes[key] == REPLICATED:
            by_parent.setdefault(key.rpartition(".")[0], []).append(key)
    whole: set[str] = set()
    for parent, keys in by_parent.items():
        sources = [key for key in keys if own_placement(plan[key]) == COLWISE and shards_last(plan[key].output_layouts)]
        sinks = [key for key in keys if own_placement(plan[key]) == ROWWISE and shards_last(plan[key].input_layouts)]
        names = [[key.rpartition(".")[2] for key in each] for each in (sources, sinks)]
        if sources and sinks and all(only_feeds(each, *names) for each in matched(module, parent)):
            whole |= {*sources, *sinks}
    return whole

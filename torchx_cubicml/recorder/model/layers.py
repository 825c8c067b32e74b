"""Layers of a live model: their wrappers, the repeated ones, and the modules around a parameter."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.model.embedding_modules import is_embedding_module, is_kernel
from torchx_cubicml.recorder.model.live_objects import live_instances

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch import nn

_SHARE_OF_STACKS = 0.9
_WIDTHS = ("in_features", "out_features", "in_channels", "out_channels", "input_size", "hidden_size", "num_embeddings")
_WRAPPER_ATTRIBUTES = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_dmp_wrapped_module")


def unwrap(module: nn.Module) -> nn.Module:
    """Return the user's own module inside of wrappers for compilation, sharding and checkpointing."""
    while (inner := _inner(module)) is not None:
        module = inner
    return module


def user_class(module: nn.Module) -> type:
    """Return the user's class of a module, which ``fully_shard`` replaces with a subclass."""
    kind = type(module)
    return kind.__bases__[-1] if hasattr(kind, "_get_fsdp_state") and kind.__bases__ else kind


def repeated_blocks(root: nn.Module) -> list[nn.Module]:
    """Return the repeated layers of a model in order, unwrapped; empty if no layer repeats.

    They are the largest set of children of one class in one list of modules. Lists inside such children do not count.
    """
    return max(_stacks(root), key=len, default=[])


def count_layers(root: nn.Module) -> int:
    """Return the number of repeated layers of a model that is one stack of equal ones; 0 of any other model.

    The stack holds nine tenths of the parameters in all stacks, and half of its layers or more have the same widths:
    neither stages of a convolutional network nor an encoder beside a decoder are such a stack.
    """
    blocks, sizes = repeated_blocks(root), [_size_of(each) for each in _stacks(root)]
    most = max(Counter(map(_widths, blocks)).values(), default=0)
    is_model = _size_of(blocks) >= _SHARE_OF_STACKS * sum(sizes) and 2 * most >= len(blocks)
    return len(blocks) if is_model else 0


def layers_of_stage(part: nn.Module) -> dict[str, int | str]:
    """Return ``n_layers`` of a part of a model and, as ``layer``, what is equal of them; empty of a part of other kind.

    A list of modules with exactly one layer counts, too. The model is one stack only if all parts have equal layers.
    """
    blocks = repeated_blocks(part)
    if blocks and not count_layers(part):
        return {}
    blocks = blocks or _single_block(part)
    kinds = Counter(f"{user_class(each).__name__} {' '.join(_widths(each))}" for each in blocks)
    return {"n_layers": len(blocks), "layer": max(kinds, key=lambda kind: kinds[kind], default="")}


def live_modules() -> list[nn.Module]:
    """Return every module of this process, which takes tens of milliseconds."""
    if "torch.nn" not in sys.modules:
        return []  # a program without torch has none, and importing torch takes seconds
    from torch.nn import Module

    modules = live_instances(Module)
    if gc.get_freeze_count():
        made = [each for each in modules if "_modules" in vars(each)]  # another one is still under construction
        modules = [*{id(module): module for outer in made for module in outer.modules()}.values()]
    return modules


def modules_around(parameters: Iterable[object]) -> list[nn.Module]:
    """Return the live module that holds the first parameter found in any module, and all modules around it.

    The order of live modules is arbitrary, but matters only if several hold that parameter. The parameters may belong
    to several networks, such as stages of a pipeline. If no module holds any of them, the holder of the largest live
    parameter is used. The first of the returned modules to be called is the model as the training loop calls it,
    in any wrapper.
    """
    modules = live_modules()
    holders = _holders(modules)
    holder = next((holders[id(parameter)] for parameter in parameters if id(parameter) in holders), None)
    holder = holder if holder is not None else _largest_holder(modules)
    if holder is None:
        return []
    return [holder, *_ancestors(holder, _parents(modules))]


def networks_with(parameters: Sequence[object]) -> list[nn.Module]:
    """Return live modules that together hold the parameters, in their outermost wrappers; each holds as many as it can.

    A parameter that no module holds does not count.
    """
    modules = live_modules() if parameters else []
    holders, parents, left = _holders(modules), _parents(modules), set(map(id, parameters))
    networks: list[nn.Module] = []
    for parameter in parameters:
        holder = holders.get(id(parameter))
        if holder is None or id(parameter) not in left:
            continue
        around = [holder, *_ancestors(holder, parents)]
        held = [left.intersection(map(id, module.parameters())) for module in around]
        most = max(held, key=len)
        left -= most
        networks.append(outermost(around[held.index(most)], around))
    return networks


def ancestors(module: nn.Module) -> list[nn.Module]:
    """Return all live modules around a module, nearest first."""
    return _ancestors(module, _parents(live_modules()))


def outermost(module: nn.Module, around: Iterable[nn.Module] | None = None) -> nn.Module:
    """Return the outermost wrapper of a module, or the module itself without a wrapper.

    Args:
        module: of the user, or one of its wrappers.
        around: modules around it, nearest first; by default they are found among all live modules.
    """
    inside = unwrap(module)
    wrappers = (each for each in (ancestors(module) if around is None else around) if unwrap(each) is inside)
    return [module, *wrappers][-1]


def contains_all(module: nn.Module, parameters: Iterable[object]) -> bool:
    """Return whether all of the parameters belong to a module or its submodules."""
    return set(map(id, parameters)) <= set(map(id, module.parameters()))


def _inner(module: nn.Module) -> nn.Module | None:
    parts = module._modules  # of a scripted module this is no dictionary, and has no ``get``
    for name in _WRAPPER_ATTRIBUTES:
        if name in parts and parts[name] is not None:
            return parts[name]
    return parts["module"] if type(module).__name__ == "DistributedDataParallel" and "module" in parts else None


def _blocks_of(container: nn.Module) -> list[nn.Module]:
    from torch.nn import ModuleDict, ModuleList, Sequential

    if not isinstance(container, ModuleDict | ModuleList | Sequential):
        return []
    children = [unwrap(child) for child in container.children()]
    if isinstance(container, Sequential):  # its layers without submodules are not blocks
        children = [child for child in children if any(True for _ in child.children())]
    children = [child for child in children if any(True for _ in child.parameters())]
    classes = Counter(map(user_class, children))
    if not classes:
        return []
    most, count = classes.most_common(1)[0]
    return [child for child in children if user_class(child) is most] if count > 1 else []


def _stacks(root: nn.Module) -> Iterator[list[nn.Module]]:
    """Yield the repeated layers of each list of modules, those within such layers left out."""
    pending = [root]
    while pending:
        module = pending.pop(0)
        blocks = _blocks_of(module)
        if blocks:
            yield blocks
        skipped = {id(block) for block in blocks}
        inner = [child for child in module.children() if id(unwrap(child)) not in skipped]
        pending += [child for child in inner if not is_embedding_module(child)]


def _single_block(part: nn.Module) -> list[nn.Module]:
    """Return the layer of the first list of modules with exactly one; empty without such a list."""
    from torch.nn import ModuleDict, ModuleList

    lists = [module for module in part.modules() if isinstance(module, ModuleDict | ModuleList)]
    layers = ([unwrap(child) for child in each.children() if any(child.children())] for each in lists)
    return next((each for each in layers if len(each) == 1 and each[0] not in lists), [])


def _size_of(blocks: Iterable[nn.Module]) -> int:
    from torch.nn.parameter import UninitializedParameter

    parameters = (parameter for block in blocks for parameter in block.parameters())
    return sum(0 if isinstance(each, UninitializedParameter) else each.numel() for each in parameters)


def _widths(block: nn.Module) -> tuple[str, ...]:
    """Return the widths of the layers within a block, which sharding leaves as they are."""
    return tuple(str(vars(each)[name]) for each in block.modules() for name in _WIDTHS if name in vars(each))


def _holders(modules: Iterable[nn.Module]) -> dict[int, nn.Module]:
    """Return the module that holds each parameter, by the parameter's id."""
    holders: dict[int, nn.Module] = {}
    for module in sorted(modules, key=_is_copy):
        for parameter in own_parameters(module):
            holders.setdefault(id(parameter), module)
    return holders


def _parents(modules: Iterable[nn.Module]) -> dict[int, list[nn.Module]]:
    """Return the modules directly around each module, by its id."""
    parents: dict[int, list[nn.Module]] = {}
    for parent in modules:
        for child in parent.__dict__.get("_modules", {}).values():
            parents.setdefault(id(child), []).append(parent)
    return parents


def _ancestors(module: nn.Module, parents: Mapping[int, list[nn.Module]]) -> list[nn.Module]:
    around, seen = [module], {id(module)}
    for inner in around:
        for parent in parents.get(id(inner), []):
            if id(parent) not in seen:
                seen.add(id(parent))
                around.append(parent)
    return around[1:]


def _is_copy(module: nn.Module) -> bool:
    """Return whether a module shares the parameters of a model: a graph that a compiler made of it, or a kernel."""
    return type(module).__module__.startswith("torch.fx.") or is_kernel(module)


def own_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of a module itself, without those of its submodules, which some wrappers list as well.

    One on ``meta`` has no values: a model that stays there, as a template for ``functional_call``, is not trained.
    """
    parameters = module.__dict__.get("_parameters") or {}
    return [parameter for parameter in parameters.values() if parameter is not None and not parameter.is_meta]


def _largest_holder(modules: Iterable[nn.Module]) -> nn.Module | None:
    sizes = [
        (parameter.numel(), module)
        for module in modules
        if not is_kernel(module)
        for parameter in own_parameters(module)
        if parameter.requires_grad
    ]
    return max(sizes, key=lambda size: size[0], default=(0, None))[1]

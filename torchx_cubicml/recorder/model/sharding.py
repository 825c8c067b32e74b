"""Sharding of a live model over ranks by DDP, FSDP1 and FSDP2, per repeated layer, with its full parameter count.

The facts come from private attributes of the wrappers. A fact whose attribute is missing is left out.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any

from torchx_cubicml.recorder.model.dense_layers import dense_layer_sizes
from torchx_cubicml.recorder.model.expert_placement import hidden_parameters
from torchx_cubicml.recorder.model.experts import find_expert_layers
from torchx_cubicml.recorder.model.fsdp_axes import fsdp_axes, fsdp_groups
from torchx_cubicml.recorder.model.layers import repeated_blocks, unwrap
from torchx_cubicml.recorder.model.megatron import count_megatron_parameters, megatron_facts
from torchx_cubicml.recorder.model.mesh import read_layout
from torchx_cubicml.recorder.model.mesh_axes import sizes_of
from torchx_cubicml.recorder.model.routing import routing_facts
from torchx_cubicml.recorder.model.size import count_parameters, short_format

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from torchx_cubicml.recorder.model.experts import ExpertLayer
    from torchx_cubicml.recorder.model.mesh import MeshLayout
    from torchx_cubicml.records.values import Value

# Libraries that shard a model in ways that are not read here.
_FOREIGN = ("deepspeed", "megatron", "colossalai")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """Sharding of a model over ranks.

    Args:
        strategy: per wrapped repeated layer, or one for the whole model; empty if unknown.
        root_strategy: of the outermost wrapper, for parameters in no inner one; empty without such wrappers.
        dp_degree: ranks, or groups of them, that consume batches of their own; ``None`` if unknown.
        dp_replicate_degree: copies of the model among these; ``None`` if unknown.
        dp_shard_degree: number of these that one copy is sharded over; ``None`` if unknown.
        layout: of the device meshes; ``None`` if another library lays out the ranks.
        n_params: of the whole model, not of this rank's shards; ``None`` if unknown.
        n_trainable_params: likewise.
        low_precision: number format of the forward by the wrapper's policy; empty without one.
        layer_formats: likewise of each repeated layer; empty without layers.
        policies: number formats and offloading of the wrappers; one value if all agree, else one for each.
        layer_n_params: parameters of each dense layer of a recommender; empty for other models.
        other_facts: of the routing to experts, and of another library's process groups, under their standard names.
    """

    strategy: str | tuple[str, ...] = ""
    root_strategy: str = ""
    dp_degree: int | None = None
    dp_replicate_degree: int | None = None
    dp_shard_degree: int | None = None
    layout: MeshLayout | None = None
    n_params: int | None = None
    n_trainable_params: int | None = None
    low_precision: str = ""
    layer_formats: tuple[str, ...] = ()
    policies: Mapping[str, Value] = field(default_factory=dict)
    layer_n_params: tuple[int, ...] = ()
    other_facts: Mapping[str, Value] = field(default_factory=dict)

    def facts(self) -> dict[str, Value]:
        """Return the known facts under their standard names."""
        known: dict[str, Value | None] = {
            "sharding_strategy": self.strategy or None,
            "root_sharding_strategy": self.root_strategy or None,
            "dp_degree": self.dp_degree,
            "dp_replicate_degree": self.dp_replicate_degree,
            "dp_shard_degree": self.dp_shard_degree,
            "n_params": self.n_params,
            "n_trainable_params": self.n_trainable_params,
            "layer_n_params": self.layer_n_params or None,
        }
        of_mesh = self.layout.facts() if self.layout is not None else {}
        known_facts = {name: value for name, value in known.items() if value is not None}
        return of_mesh | dict(self.policies) | dict(self.other_facts) | known_facts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unit:
    """Sharding unit: the parameters of one wrapper."""

    module: nn.Module  # unwrapped
    strategy: str
    replicas: int | None  # copies of the parameters
    shards: int | None  # ranks that one copy is sharded over
    mesh: object = None
    group: object = None  # of DDP and FSDP1
    low_precision: str = ""
    policies: Mapping[str, str | bool] = field(default_factory=dict)
    members: frozenset[int] = field(
        default_factory=frozenset
    )  # ids of the modules inside the wrapper, including itself

    @property
    def degree(self) -> int:
        """Number of ranks that average their gradients; 0 if unknown."""
        return (self.replicas or 0) * (self.shards or 0)

    @property
    def is_over_whole_mesh(self) -> bool:
        """Coverage of its mesh: true if all axes are for data parallelism."""
        return self.mesh is not None and prod(sizes_of(self.mesh)) == self.degree


def read_sharding(root: nn.Module, *, world_size: int, pp_degree: int = 1) -> Sharding:
    """Read the sharding of ``root`` over ``world_size`` ranks.

    A model without a wrapper is assumed to be data parallel, with gradients synchronised by the script. Each rank, or
    each group of ranks that shares a batch, then consumes batches of its own, which the throughput counts. If another
    library for parallelism is loaded, or a mesh is ambiguous, the degree stays unknown, and so does the throughput.

    Args:
        root: the model, or the part of it that a stage of a pipeline holds.
        world_size: of the job.
        pp_degree: ranks that a batch passes through.
    """
    units = [unit for module in root.modules() for unit in _units_of(module)]
    foreign = any(name in sys.modules for name in _FOREIGN)
    experts = find_expert_layers(root)
    layout = None if foreign else _layout(root, units, experts)
    n_params, n_trainable = (None, None) if foreign else _count_parameters(root, experts)
    known = Sharding(
        layout=layout,
        n_params=n_params,
        n_trainable_params=n_trainable,
        other_facts=routing_facts(experts),
    )
    sharding = _by_wrappers(root, units, known, world_size=world_size, pp_degree=pp_degree)
    of_megatron = megatron_facts(root) if foreign else {}
    if not of_megatron:
        return sharding
    degree = of_megatron.get("dp_degree")
    n_params, n_trainable = count_megatron_parameters(root, of_megatron)
    return replace(
        sharding,
        dp_degree=degree if isinstance(degree, int) else None,
        n_params=n_params,
        n_trainable_params=n_trainable,
        other_facts={**sharding.other_facts, **of_megatron},
    )


def _by_wrappers(
    root: nn.Module, units: Sequence[_Unit], known: Sharding, *, world_size: int, pp_degree: int
) -> Sharding:
    """Return the known sharding with strategy and degrees, by the wrappers of the model or by their absence."""
    layout = known.layout
    if not units:
        degree = layout.data_parallel(world_size, pp_degree=pp_degree) if layout is not None else None
        known = replace(known, dp_degree=degree, dp_replicate_degree=degree, dp_shard_degree=degree and 1)
        known = replace(known, layer_n_params=dense_layer_sizes(root, (), n_params=known.n_params))
        return known if layout is None else replace(known, strategy="NONE")
    around, inner = _split(units)
    replicas, shards = _degrees(units, layout, world_size // pp_degree)
    layers = _layers(root, inner)
    return replace(
        known,
        strategy=tuple(unit.strategy for unit in layers) or units[0].strategy,
        root_strategy=around.strategy if around is not None and inner else "",
        dp_degree=replicas * shards if replicas and shards else None,
        dp_replicate_degree=replicas,
        dp_shard_degree=shards,
        low_precision=next((unit.low_precision for unit in units if unit.low_precision), ""),
        layer_formats=_layer_formats(root, units),
        policies=_policies(units),
        layer_n_params=dense_layer_sizes(
            root,
            [unit.module for unit in layers],
            n_params=known.n_params,
            is_one=not inner and units[0].strategy != "DDP",
        ),
    )


def _layout(root: nn.Module, units: Sequence[_Unit], layers: Sequence[ExpertLayer]) -> MeshLayout:
    return read_layout(
        root,
        data_meshes=[unit.mesh for unit in units if unit.is_over_whole_mesh],
        other_meshes=[unit.mesh for unit in units if unit.mesh is not None and not unit.is_over_whole_mesh],
        data_axes=fsdp_axes(root),
        data_groups=[unit.group for unit in units if unit.group is not None],
        layers=layers,
    )


def _count_parameters(root: nn.Module, layers: Sequence[ExpertLayer]) -> tuple[int | None, int | None]:
    """Return the number of parameters and of trainable ones, with the experts that only other ranks hold."""
    total, trained = count_parameters(root)
    hidden, hidden_trained = hidden_parameters(layers)
    return (None, None) if total is None or trained is None else (total + hidden, trained + hidden_trained)


def _policies(units: Sequence[_Unit]) -> dict[str, Value]:
    """Return the number formats and offloading of the units; each only if it is known for all units."""
    facts: dict[str, Value] = {}
    for name in ("param_dtype", "reduce_dtype", "cpu_offload"):
        values = [unit.policies.get(name) for unit in units]
        known = tuple(value for value in values if value is not None)
        if known and len(known) == len(values):
            facts[name] = known[0] if len(set(known)) == 1 else known
    return facts


def _degrees(units: Sequence[_Unit], layout: MeshLayout | None, ranks: int) -> tuple[int | None, int | None]:
    """Return data-parallel replicas and shards of the wrapper over the most ranks; experts can have fewer."""
    widest = max(units, key=lambda unit: unit.degree)
    replicas, shards = widest.replicas, widest.shards
    # Parameters are usually also sharded over the ranks of context parallelism, which share one sequence and so consume
    # no batches of their own.
    if layout is not None and layout.tp_degree and widest.degree * layout.tp_degree == ranks:
        over_shards = shards is not None and shards % layout.cp_degree == 0
        shards = shards // layout.cp_degree if shards is not None and over_shards else shards
        replicas = replicas if over_shards or replicas is None else replicas // layout.cp_degree
    return replicas, shards


def _split(units: Sequence[_Unit]) -> tuple[_Unit | None, Sequence[_Unit]]:
    """Return the unit that contains all others, or ``None``, and the other units."""
    ids = {id(unit.module) for unit in units}
    first = units[0]
    return (first, units[1:]) if ids <= first.members else (None, units)


def _layers(root: nn.Module, units: Sequence[_Unit]) -> Sequence[_Unit]:
    """Return the units of the repeated layers, or all if no layer is a unit; empty if a strategy is unknown."""
    by_module = {id(unit.module): unit for unit in units}
    of_blocks = [by_module[id(block)] for block in repeated_blocks(root) if id(block) in by_module]
    layers = of_blocks or units
    return layers if all(unit.strategy for unit in layers) else ()


def _layer_formats(root: nn.Module, units: Sequence[_Unit]) -> tuple[str, ...]:
    """Return the number format of each repeated layer: of its own wrapper, else of that around it."""
    around, _ = _split(units)
    by_module = {id(unit.module): unit.low_precision for unit in units}
    return tuple(by_module.get(id(block), around.low_precision if around else "") for block in repeated_blocks(root))


def _units_of(module: nn.Module) -> list[_Unit]:
    if type(module).__name__ == "DistributedDataParallel":
        group = getattr(module, "process_group", None)
        return [_unit(module, "DDP", (_size(group), 1), group=group)]
    if type(module).__name__ == "FullyShardedDataParallel":
        return [_fsdp1_unit(module)]
    get_state = getattr(
        type(module), "_get_fsdp_state", None
    )  # looked up on the class: wrappers forward missing attributes
    return _fsdp2_units(module, get_state(module)) if get_state is not None else []


def _unit(
    module: nn.Module,
    strategy: str,
    spread: tuple[int | None, int | None],
    policies: Mapping[str, str | bool] | None = None,
    mesh: object = None,
    group: object = None,
) -> _Unit:
    return _Unit(
        module=unwrap(module),
        strategy=strategy,
        replicas=spread[0],
        shards=spread[1],
        mesh=mesh,
        group=group,
        low_precision=str((policies or {}).get("param_dtype", "")),
        policies=policies or {},
        members=frozenset(id(inner) for inner in module.modules()),
    )


def _fsdp1_unit(module: nn.Module) -> _Unit:
    strategy = getattr(getattr(module, "sharding_strategy", None), "name", "")
    group = getattr(module, "process_group", None)
    size = _size(group)
    spread: tuple[int | None, int | None] = (None, None)
    if "HYBRID" in strategy:
        spread = (_size(getattr(module, "_inter_node_pg", None)), size)
    elif strategy:
        spread = (size, 1) if strategy == "NO_SHARD" else (1, size)
    policies = _formats(getattr(module, "mixed_precision", None))
    offload = getattr(getattr(module, "cpu_offload", None), "offload_params", None)
    if offload is not None:
        policies["cpu_offload"] = bool(offload)
    return _unit(module, strategy, spread, policies, group=group)


def _formats(policy: object) -> dict[str, str | bool]:
    """Return the number formats of a mixed-precision policy; unset ones are left out, as they equal the stored ones."""
    formats = {name: getattr(policy, name, None) for name in ("param_dtype", "reduce_dtype")}
    return {name: short_format(str(value)) for name, value in formats.items() if value is not None}


def _fsdp2_units(module: nn.Module, state: object) -> list[_Unit]:
    return [_fsdp2_unit(module, group) for group in fsdp_groups(state)[:1]]


def _fsdp2_unit(module: nn.Module, group: object) -> _Unit:
    info = getattr(group, "mesh_info", None)
    policies = _formats(getattr(group, "mp_policy", None))
    offload = getattr(group, "offload_policy", None)
    if offload is not None:
        policies["cpu_offload"] = type(offload).__name__ == "CPUOffloadPolicy"
    mesh, shards = getattr(info, "mesh", None), getattr(info, "shard_mesh_size", None)
    replicas = getattr(info, "replicate_mesh_size", 1)
    if shards is None:  # `replicate` uses the same classes
        replicas = replicas if replicas > 1 else None
        return _unit(module, "DDP" if replicas else "", (replicas, 1), policies, mesh)
    after_forward = getattr(getattr(group, "post_forward_mesh_info", None), "shard_mesh_size", None)
    return _unit(module, _fsdp2_strategy(shards, replicas, after_forward), (replicas, shards), policies, mesh)


def _fsdp2_strategy(shards: int, replicas: int, shards_after_forward: int | None) -> str:
    """Return FSDP1's name for an FSDP2 strategy; resharding to a smaller group after forward adds its size."""
    if shards == 1:
        return "NO_SHARD"
    if replicas > 1:
        return "_HYBRID_SHARD_ZERO2" if shards_after_forward is None else "HYBRID_SHARD"
    if shards_after_forward is None:
        return "SHARD_GRAD_OP"
    return "FULL_SHARD" if shards_after_forward == shards else f"FULL_SHARD_{shards_after_forward}"


def _size(group: Any) -> int | None:
    return int(group.size()) if group is not None else None

"""Facts of the trained model and its optimizer, as recorded with a launch."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchx_cubicml.recorder.host.hardware import hardware_facts
from torchx_cubicml.recorder.model.compiled_autocast import compiled_autocast_type
from torchx_cubicml.recorder.model.deepspeed_engine import read_engine
from torchx_cubicml.recorder.model.embeddings import embedding_facts
from torchx_cubicml.recorder.model.heads import HEADS, compiled_attention_calls, head_counts
from torchx_cubicml.recorder.model.kernels import compile_facts, is_compiled, overlaps_tensor_parallelism
from torchx_cubicml.recorder.model.layers import count_layers, layers_of_stage, repeated_blocks, unwrap, user_class
from torchx_cubicml.recorder.model.sequence_parallel import sequence_parallel_facts
from torchx_cubicml.recorder.model.sharding import read_sharding
from torchx_cubicml.recorder.model.size import (
    count_float8_modules,
    device_kind,
    parameter_format,
    read_widths,
    short_format,
)
from torchx_cubicml.settings import ranks_of_node

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from torch import nn
    from torch.optim import Optimizer

    from torchx_cubicml.recorder.model.heads import Attention
    from torchx_cubicml.recorder.model.pipeline import Pipeline
    from torchx_cubicml.recorder.model.sharding import Sharding
    from torchx_cubicml.records.values import Value


def read_optimizer(optimizer: Optimizer) -> dict[str, Value]:
    """Return the class of an optimizer and its implementation: fused kernel, or lists of tensors (foreach).

    If the program leaves the choice to torch, torch's own function for it is called. The fact is left out if this torch
    has none.
    """
    facts: dict[str, Value] = {"optimizer": type(optimizer).__name__}
    group = next(iter(optimizer.param_groups), {})
    if "fused" in group:
        facts["optimizer_fused"] = bool(group["fused"])
    foreach = group.get("foreach")
    if foreach is None and "foreach" in group and not group.get("fused"):
        foreach = _default_foreach(group)
    if isinstance(foreach, bool):
        facts["optimizer_foreach"] = foreach
    return facts


def _default_foreach(group: dict[str, object]) -> bool | None:
    from torch import Tensor
    from torch.optim import optimizer as module

    choose = getattr(module, "_default_to_fused_or_foreach", None)
    if choose is None or isinstance(group.get("lr"), Tensor):
        return None
    try:
        _, foreach = choose(group["params"], bool(group.get("differentiable")), False)
    except (TypeError, ValueError):
        return None
    return bool(foreach)


@dataclass(frozen=True, slots=True, kw_only=True)
class HookObservations:
    """Observations of the hooks during one step.

    Args:
        forwards: training forwards of the step; ``None`` if no whole step was observed.
        samples: per forward of this process; ``None`` if unknown.
        seq_len: tokens per sample; ``None`` if unknown.
        autocast_type: number format that autocast was set to; empty if it was off.
        layer_autocast: likewise within each repeated layer; empty unless a probe saw all of them run.
        activation_checkpointing: read by a probe of the layers, one word or one per layer; empty without one.
        n_checkpointed: repeated layers that the probe saw recomputed, in whole or in part; ``None`` without one.
        attention_kernel: read from the autograd graph of a forward; empty if the graph does not show it.
        attention_calls: shapes that attention was called with, ``None`` for a call whose shapes do not fit together.
        clipping: facts of gradient clipping, such as its norm.
        per_layer: facts to read as one value per repeated layer.
    """

    forwards: int | None = None
    samples: int | None = None
    seq_len: int | None = None
    autocast_type: str = ""
    layer_autocast: tuple[str, ...] = ()
    activation_checkpointing: str | tuple[str, ...] = ""
    n_checkpointed: int | None = None
    attention_kernel: str = ""
    attention_calls: frozenset[Attention | None] = frozenset()
    clipping: Mapping[str, Value] = field(default_factory=dict)
    per_layer: Container[str] = ()


def observe(
    root: nn.Module,
    optimizer: Optimizer | None,
    seen: HookObservations,
    *,
    world_size: int,
    pipeline: Pipeline | None = None,
) -> dict[str, Value]:
    """Return the known facts of a model and its training, under their standard names.

    Args:
        root: the model as the training loop calls it.
        optimizer: that steps the model; ``None`` if none has.
        seen: observations of the hooks.
        world_size: of the job.
        pipeline: that ``root`` is a stage of; ``None`` without one.
    """
    pp_degree = pipeline.degree if pipeline is not None else 1
    sharding = read_sharding(root, world_size=world_size, pp_degree=pp_degree)
    engine = read_engine(root)
    sharding = engine.applied_to(sharding) if engine is not None else sharding
    facts: dict[str, Value] = {
        **software_facts(),
        **hardware_facts(device_kind(root), ranks=ranks_of_node(world_size)),
        **sharding.facts(),
        **(engine.facts() if engine is not None else {}),
        **compile_facts(root),
        **embedding_facts(root),
        **sequence_parallel_facts(root),
        **(read_optimizer(optimizer) if optimizer is not None else {}),
        **seen.clipping,
    }
    if seen.seq_len:
        facts.update(_read_widths(root, seen, sharding))
    if pipeline is not None:
        facts.update(pipeline.facts())
    elif sharding.layout is not None:
        facts["pp_degree"] = 1
    is_part = pipeline is None and facts.get("pp_degree", 1) != 1  # a stage of another library's pipeline
    n_layers = 0 if is_part else count_layers(root)
    recomputation = _activation_checkpointing(root, seen)
    # The probe does not see Megatron-Core's attention core, deep in a layer; the config names what is recomputed.
    is_told = recomputation == "none" and "selective_recompute" in facts
    known: dict[str, Value | None] = {
        "n_layers": n_layers or None,
        "precision": _precisions(root, seen, sharding) or None,
        "float8_modules": count_float8_modules(root),
        "activation_checkpointing": "selective" if is_told else recomputation or None,
        "selective_recompute": facts.get("selective_recompute") or _selective_recompute(root) or None,
        "checkpointed_modules": n_layers or None if is_told else _n_checkpointed(root, seen),
        "tp_overlap": facts.get("tp_overlap", overlaps_tensor_parallelism(root, facts.get("tp_degree"))),
        "attention_kernel": seen.attention_kernel or None,
        "device": _device_name(root) or None,
        "micro_batch_size": seen.samples,
        "seq_len": seen.seq_len if facts.get("cp_degree", 1) == 1 else None,  # a rank's share of it is unknown
        "gradient_accumulation_steps": seen.forwards,
    }
    if seen.samples and seen.forwards and sharding.dp_degree:
        known["global_batch_size"] = seen.samples * seen.forwards * sharding.dp_degree
    return facts | {name: value for name, value in known.items() if value is not None}


def _read_widths(root: nn.Module, seen: HookObservations, sharding: Sharding) -> dict[str, Value]:
    """Return the widths, with the heads that attention was called with; without heads if the modules disagree."""
    widths = read_widths(root)
    if not widths:
        return {}
    calls = seen.attention_calls or (compiled_attention_calls() if is_compiled(root) else frozenset())
    observed = head_counts(calls, tp_degree=sharding.layout.tp_degree if sharding.layout is not None else None)
    if any(widths.get(name, count) != count for name, count in observed.items()):
        return {name: value for name, value in widths.items() if name not in HEADS}
    return widths | observed


def software_facts() -> dict[str, Value]:
    """Return the version of torch, if it is loaded."""
    torch = sys.modules.get("torch")
    return {"torch_version": str(torch.__version__)} if torch is not None else {}


def _precision(root: nn.Module, seen: HookObservations, sharding: Sharding) -> str:
    if count_float8_modules(root):
        return "fp8"
    return short_format(_autocast_type(root, seen) or sharding.low_precision) or parameter_format(root)


def _autocast_type(root: nn.Module, seen: HookObservations) -> str:
    """Return autocast's number format as the hooks saw it around the model or a layer, else by compiled graphs."""
    return seen.autocast_type or compiled_autocast_type(root)


def _precisions(root: nn.Module, seen: HookObservations, sharding: Sharding) -> str | tuple[str, ...]:
    """Return the number format of the forward; of each repeated layer if the config has one per layer."""
    whole = _precision(root, seen, sharding)
    if "precision" not in seen.per_layer or not sharding.layer_formats or whole == "fp8":
        return whole
    stored, n_layers = parameter_format(root), len(sharding.layer_formats)
    has_each = len(seen.layer_autocast) == n_layers
    autocast = seen.layer_autocast if has_each else (_autocast_type(root, seen),) * n_layers
    formats = (cast or each or stored for cast, each in zip(autocast, sharding.layer_formats, strict=True))
    return tuple(map(short_format, formats))


def _n_checkpointed(root: nn.Module, seen: HookObservations) -> int | None:
    wrappers = len(_wrappers(root))
    return max(wrappers, seen.n_checkpointed) if seen.n_checkpointed is not None else wrappers or None


def _wrappers(root: nn.Module) -> list[nn.Module]:
    return [module for module in root.modules() if user_class(module).__name__ == "CheckpointWrapper"]


def _has_policy(wrapper: Any) -> bool:
    """Return whether a policy, passed as a context function, selects the operators to recompute."""
    return "context_fn" in getattr(wrapper.checkpoint_fn, "keywords", {})


def _selective_recompute(root: nn.Module) -> str:
    """Return ``op`` if a policy selects operations, ``n`` if each n-th layer is recomputed; empty if unknown.

    One layer alone is the n-th; the first one alone does not tell how many follow it.
    """
    wrappers = _wrappers(root)
    if any(map(_has_policy, wrappers)):
        return "op"
    wrapped, blocks = {id(unwrap(each)) for each in wrappers}, repeated_blocks(root)
    places = [place for place, block in enumerate(blocks) if id(unwrap(block)) in wrapped]
    if not places or len(places) == len(blocks):
        return ""
    every = places[1] - places[0] if len(places) > 1 else places[0] + 1
    return str(every) if places[0] < every and places == [*range(places[0], len(blocks), every)] else ""


def _activation_checkpointing(root: nn.Module, seen: HookObservations) -> str | tuple[str, ...]:
    """Return the probe's finding, else that from wrapper modules; empty without both: a checkpoint needs no wrapper."""
    wrappers = _wrappers(root)
    if any(map(_has_policy, wrappers)):
        return "selective"
    if seen.activation_checkpointing or not wrappers:
        return seen.activation_checkpointing
    return "selective" if len(wrappers) < len(repeated_blocks(root)) else "full"


def _device_name(root: nn.Module) -> str:
    kind = device_kind(root)
    if kind != "cuda":
        return kind
    from torch import cuda

    return cuda.get_device_name()


def observe_stage(stage: nn.Module, *, world_size: int, pp_degree: int) -> dict[str, Value]:
    """Return the facts that one stage of a pipeline adds to those of the whole model."""
    return {**read_sharding(stage, world_size=world_size, pp_degree=pp_degree).facts(), **layers_of_stage(stage)}

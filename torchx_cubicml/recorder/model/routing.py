"""Routing of tokens to experts: number of experts, experts per token (top-k), and capacity factor of a live model.

The router's weight tells the number of experts. The other two stand in attributes of the layer or of a config that it
holds. A number is left out if layers or attributes disagree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torchx_cubicml.recorder.model.experts import ExpertLayer
    from torchx_cubicml.records.values import Value

_TOP_K_NAMES = frozenset(
    {
        *("top_k", "topk", "k", "n_active_experts", "num_experts_per_tok", "num_experts_per_token", "moe_top_k"),
        *("moe_router_topk", "router_topk", "num_selected_experts", "n_activated_experts", "experts_per_token"),
    }
)
_CAPACITY_NAMES = frozenset(
    {
        *("capacity_factor", "expert_capacity_factor", "moe_capacity_factor", "moe_expert_capacity_factor"),
        *("moe_train_capacity_factor", "train_capacity_factor"),
    }
)
_CONFIGS = ("config", "cfg", "args", "params", "hparams")


def routing_facts(layers: Sequence[ExpertLayer]) -> dict[str, Value]:
    """Return the known facts of routing under their standard names; empty without layers of experts."""
    if not layers:
        return {}
    known: dict[str, Value | None] = {
        "n_experts": _agreed(layer.n_experts for layer in layers),
        "n_active_experts": _agreed(_top_k(layer) for layer in layers),
        "capacity_factor": _agreed(_capacity_factor(layer) for layer in layers),
    }
    return {name: value for name, value in known.items() if value is not None}


def _top_k(layer: ExpertLayer) -> int | None:
    found = {
        value
        for value in _stated(layer, _TOP_K_NAMES)
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= layer.n_experts
    }
    return found.pop() if len(found) == 1 else None


def _capacity_factor(layer: ExpertLayer) -> float | None:
    """Return the tokens that an expert accepts over its even share (GShard, https://arxiv.org/abs/2006.16668)."""
    found = {
        float(value)
        for value in _stated(layer, _CAPACITY_NAMES)
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    }
    return found.pop() if len(found) == 1 else None


def _stated(layer: ExpertLayer, names: frozenset[str]) -> Iterator[object]:
    for module in layer.holders():
        attributes = vars(module)
        yield from _named(attributes, names)
        for config in _CONFIGS:
            yield from _named(_attributes(attributes.get(config)), names)


def _named(attributes: Mapping[str, object], names: frozenset[str]) -> Iterator[object]:
    return (value for name, value in attributes.items() if name in names)


def _attributes(config: object) -> Mapping[str, object]:
    """Return the fields of a config without running its code."""
    if isinstance(config, dict):
        return {name: value for name, value in config.items() if isinstance(name, str)}
    try:
        attributes = object.__getattribute__(config, "__dict__")
    except AttributeError:
        return {}
    return attributes if isinstance(attributes, dict) else {}


def _agreed(values: Iterable[int | float | None]) -> int | float | None:
    """Return the value that all layers have; ``None`` if they differ or one is unknown."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None

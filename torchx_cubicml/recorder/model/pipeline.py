"""Pipeline of ``torch.distributed.pipelining``: this rank's stages, and the combined facts of all stages."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchx_cubicml.recorder.model.live_objects import live_instances_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from torchx_cubicml.records.values import Value

_SUMMED = ("n_params", "n_trainable_params", "n_layers")
_PER_LAYER, _LAYER = "sharding_strategy", "layer"
STAGE_FACTS = frozenset({*_SUMMED, _PER_LAYER, _LAYER})  # facts of which one stage has only a part


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Pipeline that this rank is part of.

    Args:
        degree: ranks that a batch passes through.
        n_stages: parts of the model, at least one for each of these ranks.
        stages: parts on this rank, by stage number.
        schedule: class of the schedule; empty if none is alive.
        n_microbatches: of one call of the schedule; ``None`` if unknown.
    """

    degree: int
    n_stages: int
    stages: Mapping[int, nn.Module] = field(default_factory=dict)
    schedule: str = ""
    n_microbatches: int | None = None

    def facts(self) -> dict[str, Value]:
        """Return the known facts under their standard names."""
        known: dict[str, Value | None] = {
            "pp_degree": self.degree,
            "pp_stages": self.n_stages,
            "pp_schedule": self.schedule or None,
            "pp_microbatches": self.n_microbatches,
        }
        return {name: value for name, value in known.items() if value is not None}


def read_pipeline() -> Pipeline | None:
    """Read the pipeline from the live stages of this process; return ``None`` without readable stages."""
    stages: list[Any] = live_instances_of("torch.distributed.pipelining.stage", "_PipelineStageBase")
    try:
        modules = {int(stage.stage_index): stage.submod for stage in stages}
        degree, n_stages = (int(stages[0].group_size), int(stages[0].num_stages)) if stages else (0, 0)
    except (AttributeError, TypeError):
        return None
    if not modules:
        return None
    schedules = live_instances_of("torch.distributed.pipelining.schedules", "_PipelineSchedule")
    schedule = schedules[0] if schedules else None
    n_microbatches = getattr(schedule, "_n_microbatches", None)
    return Pipeline(
        degree=degree,
        n_stages=n_stages,
        stages=modules,
        schedule=type(schedule).__name__ if schedule is not None else "",
        n_microbatches=n_microbatches if isinstance(n_microbatches, int) else None,
    )


def stage_groups() -> list[object]:
    """Return the process groups of this rank's live stages, one of each."""
    stages = live_instances_of("torch.distributed.pipelining.stage", "_PipelineStageBase")
    groups = [group for stage in stages if (group := getattr(stage, "group", None)) is not None]
    return [*{id(group): group for group in groups}.values()]


def encode_stage(facts: Mapping[str, Value]) -> str:
    """Encode the facts of one stage that are combined over all stages, to be sent to rank 0."""
    return json.dumps({name: value for name, value in facts.items() if name in STAGE_FACTS})


def combine_stages(encoded: Sequence[str]) -> dict[str, Value]:
    """Combine the encoded facts of all stages, in order, into those of the whole model; leave out unknown ones.

    >>> combine_stages(['{"n_params": 3, "sharding_strategy": "DDP"}', '{"n_params": 4, "sharding_strategy": "DDP"}'])
    {'n_params': 7, 'sharding_strategy': 'DDP'}
    """
    stages = [json.loads(text) for text in encoded]
    facts: dict[str, Value] = {}
    for name in _SUMMED:
        counts = [stage.get(name) for stage in stages]
        if counts and all(isinstance(count, int) for count in counts):
            facts[name] = sum(counts)
    if len({layer for stage in stages if (layer := stage.get(_LAYER))}) != 1:
        facts.pop("n_layers", None)  # the stages are no parts of one stack
    strategies = [stage.get(_PER_LAYER) for stage in stages]
    if strategies and all(isinstance(strategy, list) for strategy in strategies):
        facts[_PER_LAYER] = tuple(item for strategy in strategies for item in strategy)
    elif len({str(strategy) for strategy in strategies}) == 1 and isinstance(strategies[0], str):
        facts[_PER_LAYER] = strategies[0]
    return facts

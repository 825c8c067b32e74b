"""DeepSpeed's engine in this process: the parameters that it trains, its ZeRO stage, parallel degrees and clipping.

From stage 1 on, ZeRO hands flat partitions to the optimizer, which no module holds; at stage 3 the modules hold empty
parameters. The engine knows the model and its size. All is read from the engine's own attributes; a fact whose
attribute is missing is left out. DeepSpeed is never imported here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torchx_cubicml.recorder.model.live_objects import live_instances_of

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from torchx_cubicml.recorder.model.sharding import Sharding
    from torchx_cubicml.records.values import Value

_ENGINE = ("deepspeed.runtime.engine", "DeepSpeedEngine")
_DEGREES = {"tp_degree": "mp_world_size", "cp_degree": "sequence_parallel_size", "pp_degree": "num_stages"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLayout:
    """Layout of a model over ranks by a DeepSpeed engine.

    Args:
        zero_stage: 0 to 3; ``None`` if unknown.
        dp_degree: ranks, or groups of them, that consume batches of their own; ``None`` if unknown.
        degrees: of tensor, sequence and pipeline parallelism under their standard names, as far as they are known.
        n_params: of the whole model; ``None`` if unknown, as for a part of a model.
        n_trainable_params: likewise.
        max_grad_norm: limit of the norm of the gradients, which ZeRO applies without torch's functions; ``None`` where
            they are not clipped.
    """

    zero_stage: int | None = None
    dp_degree: int | None = None
    degrees: dict[str, int]
    n_params: int | None = None
    n_trainable_params: int | None = None
    max_grad_norm: float | None = None

    def applied_to(self, sharding: Sharding) -> Sharding:
        """Return the sharding with the degree and the counts of the engine."""
        return replace(
            sharding, dp_degree=self.dp_degree, n_params=self.n_params, n_trainable_params=self.n_trainable_params
        )

    def facts(self) -> dict[str, Value]:
        """Return the facts that no wrapper shows, under their standard names."""
        stage: dict[str, Value] = {"zero_stage": self.zero_stage} if self.zero_stage is not None else {}
        clipping: dict[str, Value] = {"max_grad_norm": self.max_grad_norm} if self.max_grad_norm is not None else {}
        return stage | self.degrees | clipping


def engine_parameters(optimizer: Optimizer | None) -> list[nn.Parameter]:
    """Return the model's parameters behind an optimizer of a DeepSpeed engine; empty for any other optimizer."""
    for engine in live_instances_of(*_ENGINE):
        if optimizer is not None and optimizer in (getattr(engine, "basic_optimizer", None), _inner(engine)):
            module = getattr(engine, "module", None)
            return list(module.parameters()) if module is not None else []
    return []


def read_engine(root: nn.Module) -> EngineLayout | None:
    """Read the engine that trains a model; ``None`` without one, or with several for the same model.

    Args:
        root: the model, the engine itself, or a module inside of it.
    """
    inside = {id(parameter) for parameter in root.parameters()}
    engines = [
        engine
        for engine in live_instances_of(*_ENGINE)
        if engine is root or any(id(each) in inside for each in _parameters(engine))
    ]
    return _layout(engines[0]) if len(engines) == 1 else None


def _layout(engine: Any) -> EngineLayout:
    degrees = {name: _count(getattr(engine, attribute, None)) for name, attribute in _DEGREES.items()}
    degrees["pp_degree"] = degrees["pp_degree"] or 1  # only a pipeline's engine has stages
    known = {name: degree for name, degree in degrees.items() if degree is not None}
    is_whole = known.get("tp_degree") == 1 == known["pp_degree"]
    sizes = [(_count(getattr(each, "ds_numel", each.numel())) or 0, each.requires_grad) for each in _parameters(engine)]
    return EngineLayout(
        zero_stage=_stage(engine),
        dp_degree=_count(getattr(engine, "dp_world_size", None)),
        degrees=known,
        n_params=sum(size for size, _ in sizes) if is_whole else None,
        n_trainable_params=sum(size for size, is_trained in sizes if is_trained) if is_whole else None,
        max_grad_norm=_max_grad_norm(engine),
    )


def _stage(engine: Any) -> int | None:
    ask = getattr(engine, "zero_optimization_stage", None)
    stage = ask() if callable(ask) else None
    return int(stage) if isinstance(stage, int) and 0 <= stage <= 3 else None


def _max_grad_norm(engine: Any) -> float | None:
    ask = getattr(engine, "gradient_clipping", None)
    limit = ask() if callable(ask) else None
    return float(limit) if isinstance(limit, int | float) and not isinstance(limit, bool) and limit > 0 else None


def _parameters(engine: Any) -> list[nn.Parameter]:
    module = getattr(engine, "module", None)
    return list(module.parameters()) if module is not None else []


def _inner(engine: Any) -> object:
    """Return the optimizer that the engine's own optimizer steps."""
    optimizer = getattr(engine, "optimizer", None)
    return getattr(optimizer, "optimizer", optimizer)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

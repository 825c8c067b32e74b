"""Simulated trainings whose knobs are plain: numbers, categories and flags, one value for the whole job.

Families of made-up models, each with constants of its own, where the best config is known from all of them:

- ``llm``: pretraining on 64 GPUs under the product's own names: parallel degrees, micro batch, checkpointing, kernels.
- ``vision``: eight GPUs fed by a loader; a step takes as long as the slower of loading and computing, and what is worth
  changing depends on which of them that is.
- ``variables``: environment variables and bucket sizes of a training bound by its network; most do nothing.
- ``renamed``: the models of ``llm`` with parameters called ``p1`` to ``p9``, so that no name says anything.
- ``batch``: one number alone, of which some values are faster than both their neighbours.

Where memory is involved, 10 to 40 % of the configs run out of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from lib import plain_physics
from lib.plain_physics import GLOBAL_BATCH, GPUS
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.space import Parameter, SearchSpace
from torchx_cubicml.space.expression import parse_expression

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lib.plain_physics import Column, Physics
    from torchx_cubicml.records.values import Config, Scalar

NOISE, PEAK_NOISE = 0.02, 0.005  # log standard deviations of one measurement and of one recorded peak
FAILING = (0.1, 0.4)  # share of all configs that run out of memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Knobs and the physics behind them.

    Args:
        choices: of each parameter.
        current: what a careful user would run.
        draw: makes a model from chance.
        fits_always: whether memory is not involved.
        constraint: which configs are legal, as an expression; empty for all.
    """

    choices: Mapping[str, tuple[Scalar, ...]]
    current: Config
    draw: Callable[[np.random.Generator], Physics]
    fits_always: bool = False
    constraint: str = ""


@dataclass(frozen=True, kw_only=True)
class PlainModel:
    """One made-up model; a ``search.Simulated``.

    Args:
        family: key of ``FAMILIES``.
        seed: of its constants.
        facts: whether peak memory is recorded.
    """

    family: str
    seed: int
    facts: bool = False

    @property
    def workload(self) -> dict[str, object]:
        """Its facts."""
        return {"program": f"plain-{self.family}-{self.seed}", "world_size": GPUS}

    @property
    def current(self) -> Config:
        """The user's own config."""
        return dict(FAMILIES[self.family].current)

    @cached_property
    def space(self) -> SearchSpace:
        """The search space, not bound."""
        family = FAMILIES[self.family]
        legal = (parse_expression(family.constraint, where="the batch"),) if family.constraint else ()
        return SearchSpace(
            parameters=tuple(Parameter(name=name, choices=each) for name, each in family.choices.items()),
            constraints=legal,
            objective="samples_per_second",
        )

    @cached_property
    def physics(self) -> Physics:
        """Throughput and memory."""
        order = [*FAMILIES].index("llm" if self.family == "renamed" else self.family)
        return FAMILIES[self.family].draw(np.random.default_rng([self.seed, order]))

    @cached_property
    def _all(self) -> tuple[Column, Column]:
        """Throughput and memory of all legal configs, whether or not they fit."""
        choices = FAMILIES[self.family].choices
        grid = np.meshgrid(*(np.arange(len(each)) for each in choices.values()), indexing="ij")
        columns = {name: np.array(each)[at.ravel()] for (name, each), at in zip(choices.items(), grid, strict=True)}
        speed, gib = self.physics(columns)
        return speed[speed > 0], gib[speed > 0]

    @cached_property
    def memory_gib(self) -> float:
        """Memory of a device: so much that a share of all configs within ``FAILING`` fails, and the user's own runs."""
        if FAMILIES[self.family].fits_always:
            return float("inf")
        share = np.random.default_rng([self.seed, 99]).uniform(*FAILING)
        return max(float(np.quantile(self._all[1], 1.0 - share)), 1.02 * self._of(self.current)[1])

    def optimum(self) -> float:
        """Return the highest throughput of all configs."""
        speed, gib = self._all
        return float(speed[gib <= self.memory_gib].max())

    def failing(self) -> float:
        """Return the share of all configs that run out of memory."""
        return float((self._all[1] > self.memory_gib).mean())

    def _of(self, config: Config) -> tuple[float, float]:
        speed, gib = self.physics({name: np.array([value]) for name, value in config.items()})
        return float(speed[0]), float(gib[0])

    def throughput(self, config: Config) -> float:
        """Return samples per second of the whole job without noise; 0.0 where memory runs out."""
        speed, gib = self._of(config)
        return speed if gib <= self.memory_gib else 0.0

    def references(self) -> list[Config]:
        """Return the user's own config, which a search is to beat."""
        return [self.current]

    def launch(self, config: Config, *, rng: np.random.Generator, number: int) -> Trial:
        """Return the trial of one launch."""
        speed, gib = self._of(config)
        if gib > self.memory_gib:
            return Trial(trial_id=f"t{number}", workload=self.workload, config=config, state=State.OUT_OF_MEMORY)
        return Trial.completed(
            workload=self.workload,
            config=config,
            samples_per_second=speed * float(np.exp(rng.normal(0.0, NOISE))),
            peak_memory_gib=gib * float(np.exp(rng.normal(0.0, PEAK_NOISE))) if self.facts else None,
        )


_LLM: Mapping[str, tuple[Scalar, ...]] = {
    "tp_degree": (1, 2, 4, 8),
    "pp_degree": (1, 2, 4),
    "micro_batch_size": (1, 2, 4, 8, 16),
    "activation_checkpointing": ("none", "selective", "full"),
    "attention_kernel": ("eager", "sdpa", "flash"),
    "sharding_strategy": ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"),
    "compile": (False, True),
    "precision": ("bf16", "fp8"),
    "bucket_mb": (10, 25, 50, 100, 200),
}
_LLM_CURRENT: Config = {
    "tp_degree": 4,
    "pp_degree": 1,
    "micro_batch_size": 2,
    "activation_checkpointing": "full",
    "attention_kernel": "sdpa",
    "sharding_strategy": "FULL_SHARD",
    "compile": False,
    "precision": "bf16",
    "bucket_mb": 25,
}
_NAMES = {f"p{place}": name for place, name in enumerate(_LLM, start=1)}

FAMILIES: dict[str, Family] = {
    "llm": Family(
        choices=_LLM,
        current=_LLM_CURRENT,
        draw=plain_physics.llm,
        constraint=f"{GPUS} // (tp_degree * pp_degree) * micro_batch_size <= {GLOBAL_BATCH}",
    ),
    "vision": Family(
        choices={
            "batch": (16, 32, 64, 128, 256, 512),
            "workers": (0, 1, 2, 4, 8, 16),
            "prefetch": (1, 2, 4, 8),
            "decode_threads": (1, 2, 4),
            "decoder": ("pil", "turbo", "gpu"),
            "pin_memory": (False, True),
            "amp": ("off", "bf16", "fp16"),
            "channels_last": (False, True),
            "compile_mode": ("off", "default", "max-autotune"),
            "cudnn_benchmark": (False, True),
        },
        current={
            "batch": 64,
            "workers": 4,
            "prefetch": 2,
            "decode_threads": 1,
            "decoder": "pil",
            "pin_memory": False,
            "amp": "off",
            "channels_last": False,
            "compile_mode": "off",
            "cudnn_benchmark": False,
        },
        draw=plain_physics.vision,
    ),
    "variables": Family(
        choices={
            "NCCL_ALGO": ("auto", "Ring", "Tree"),
            "NCCL_PROTO": ("auto", "LL", "LL128", "Simple"),
            "NCCL_MIN_NCHANNELS": (2, 4, 8, 16, 32),
            "NCCL_BUFFSIZE": (1 << 20, 1 << 21, 1 << 22, 1 << 23, 1 << 24),
            "OMP_NUM_THREADS": (1, 2, 4, 8, 16),
            "CUDA_DEVICE_MAX_CONNECTIONS": (1, 8, 32),
            "bucket_cap_mb": (1, 5, 25, 50, 100, 200, 400),
            "static_graph": (False, True),
            "gradient_as_bucket_view": (False, True),
            "TORCH_NCCL_AVOID_RECORD_STREAMS": (0, 1),
        },
        current={
            "NCCL_ALGO": "auto",
            "NCCL_PROTO": "auto",
            "NCCL_MIN_NCHANNELS": 4,
            "NCCL_BUFFSIZE": 1 << 22,
            "OMP_NUM_THREADS": 1,
            "CUDA_DEVICE_MAX_CONNECTIONS": 8,
            "bucket_cap_mb": 25,
            "static_graph": False,
            "gradient_as_bucket_view": False,
            "TORCH_NCCL_AVOID_RECORD_STREAMS": 0,
        },
        draw=plain_physics.variables,
        fits_always=True,
    ),
    "renamed": Family(
        choices={name: _LLM[other] for name, other in _NAMES.items()},
        current={name: _LLM_CURRENT[other] for name, other in _NAMES.items()},
        draw=plain_physics.called(plain_physics.llm, _NAMES),
        constraint=f"{GPUS} // (p1 * p2) * p3 <= {GLOBAL_BATCH}",
    ),
    "batch": Family(
        choices={"micro_batch_size": tuple(range(1, 65))}, current={"micro_batch_size": 5}, draw=plain_physics.batch
    ),
}

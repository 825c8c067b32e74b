"""Simulated trainings whose knobs are plain: numbers, categories and flags, one value for the whole job.

Four families of made-up models, each with constants of its own, where the best config is known from all of them:

- ``llm``: pretraining on 64 GPUs under the product's own names: parallel degrees, micro batch, checkpointing, kernels.
- ``vision``: eight GPUs fed by a loader; a step takes as long as the slower of loading and computing, and what is worth
  changing depends on which of them that is.
- ``variables``: environment variables and bucket sizes of a training bound by its network; most do nothing.
- ``renamed``: the models of ``llm`` with parameters called ``p1`` to ``p9``, so that no name says anything.

Where memory is involved, 10 to 40 % of the configs run out of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from torchx_cubicml.space import Parameter, SearchSpace
from torchx_cubicml.space.expression import parse_expression
from torchx_cubicml.trial import Config, State, Trial

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from torchx_cubicml.trial import Scalar

Column: TypeAlias = "NDArray[np.float64]"
Columns: TypeAlias = "Mapping[str, NDArray[np.generic]]"
Physics: TypeAlias = "Callable[[Columns], tuple[Column, Column]]"
"""Maps columns of values to throughput and to memory in GiB, ``[n]`` each."""

NOISE, PEAK_NOISE = 0.02, 0.005  # log standard deviations of one measurement and of one recorded peak
FAILING = (0.1, 0.4)  # share of all configs that run out of memory
GPUS, GLOBAL_BATCH = 64, 256  # of ``llm``


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
        """What a device has: so much that a share of all configs within ``FAILING`` fails, and the user's own runs."""
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


def _of_word(column: NDArray[np.generic], values: Mapping[str, float]) -> Column:
    """Return the value of each word of ``column``, ``[n]``."""
    words, places = np.unique(column, return_inverse=True)
    return np.array([values[str(word)] for word in words])[places]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """How a batch is split over ranks, and what is kept of it, ``[n]`` each."""

    tp: Column
    pp: Column
    dp: Column
    batch: Column
    micro: Column  # micro batches of a step
    again: NDArray[np.generic]
    sharded: NDArray[np.generic]

    @classmethod
    def of(cls, columns: Columns) -> _Split:
        tp, pp = columns["tp_degree"].astype(float), columns["pp_degree"].astype(float)
        dp, batch = GPUS / (tp * pp), columns["micro_batch_size"].astype(float)
        again, sharded = columns["activation_checkpointing"], columns["sharding_strategy"]
        return cls(tp=tp, pp=pp, dp=dp, batch=batch, micro=GLOBAL_BATCH / (dp * batch), again=again, sharded=sharded)

    def by_checkpointing(self, none: float, selective: Column | float, full: float) -> Column:
        return np.select([self.again == "none", self.again == "selective"], [none, selective], full)


def _llm(rng: np.random.Generator) -> Physics:
    size = rng.uniform(7.0, 40.0)  # billions of parameters
    step_s, gib = _llm_step(rng, size), _llm_memory(rng, size)

    def at(columns: Columns) -> tuple[Column, Column]:
        split = _Split.of(columns)
        return np.where(split.micro >= 1.0, GLOBAL_BATCH / step_s(columns, split), 0.0), gib(columns, split)

    return at


def _llm_step(rng: np.random.Generator, size: float) -> Callable[[Columns, _Split], Column]:
    u = rng.uniform
    work, tile, attention, launch = u(2.0, 6.0), u(0.1, 0.8), u(0.1, 0.4), u(0.01, 0.08)  # s of a sequence on one GPU
    kernels = {"eager": 1.0, "sdpa": u(0.5, 0.75), "flash": u(0.35, 0.7)}
    fused, fp8, cast, select = u(0.72, 0.95), u(0.6, 0.9), u(0.02, 0.2), u(0.03, 0.12)
    tp_link, dp_link, latency = u(0.01, 0.1), u(0.02, 0.12), u(0.1, 1.0)

    def at(columns: Columns, split: _Split) -> Column:
        tp, pp, batch, compiled = split.tp, split.pp, split.batch, columns["compile"].astype(float)
        full = (batch / tp) / (batch / tp + tile)  # how well a kernel fills the device
        in_attention = attention * _of_word(columns["attention_kernel"], kernels)
        faster = np.where(compiled > 0, fused, 1.0)
        eager = np.where(columns["attention_kernel"] == "eager", faster, 1.0)  # other kernels are fused already
        rest = (1.0 - attention) * np.where(columns["precision"] == "fp8", fp8 + cast * tp / batch, 1.0) * faster
        twice = split.by_checkpointing(1.0, 1.0 + select + 0.2 * in_attention, 1.33)
        compute = batch * work / (tp * pp) / full * (in_attention * eager + rest) * twice
        compute += launch * (1.0 - 0.5 * compiled) / pp + batch * tp_link * np.log2(tp) / pp
        own = size / (tp * pp)  # billions of parameters on a device, where nothing is sharded
        gathered = np.where(split.sharded == "FULL_SHARD", split.micro * own * dp_link * 0.7, 0.0)
        exposed = np.maximum(gathered - 0.7 * split.micro * compute, 0.2 * gathered)
        bucket = columns["bucket_mb"].astype(float)
        reduced = own * (dp_link * np.where(split.sharded == "NO_SHARD", 1.0, 1.15) + latency / bucket)
        hidden = 400.0 / (bucket + 400.0) * 0.66 * compute  # of the last micro batch; a large bucket waits longer
        exposed += np.maximum(reduced - hidden, 0.1 * reduced)
        return (split.micro + pp - 1.0) * compute + exposed + 0.02 * own

    return at


def _llm_memory(rng: np.random.Generator, size: float) -> Callable[[Columns, _Split], Column]:
    per_sequence, quadratic = rng.uniform(3.0, 9.0), rng.uniform(0.2, 1.0)  # GiB, and what eager attention adds

    def at(columns: Columns, split: _Split) -> Column:
        of_state = [split.sharded == "NO_SHARD", split.sharded == "FULL_SHARD"]
        states = np.select(of_state, [16.0, 16.0 / split.dp + 1.0], 2.0 + 14.0 / split.dp)
        eager = columns["attention_kernel"] == "eager"
        kept = split.by_checkpointing(1.0, 0.5, 0.12) + eager * quadratic * split.by_checkpointing(1.0, 0.15, 0.15)
        kept *= np.where(columns["compile"], 0.85, 1.0) * np.minimum(split.micro / split.pp, 1.0)
        buckets = 0.004 * columns["bucket_mb"].astype(float)
        return (
            0.93 * size / (split.tp * split.pp) * states + split.batch * per_sequence * kept / split.tp + 4.0 + buckets
        )

    return at


def _vision(rng: np.random.Generator) -> Physics:
    u = rng.uniform
    image, overhead, noise = u(0.4, 2.5), u(4.0, 20.0), u(4.0, 12.0)  # ms an image, ms a step, sharpness of the slower
    half, brain, first = u(0.4, 0.6), u(0.0, 0.12), u(0.78, 0.95)
    compiled = {"off": 1.0, "default": u(0.8, 0.95), "max-autotune": u(0.72, 0.97)}
    decoded = {"pil": u(4.0, 12.0), "turbo": u(2.0, 5.0), "gpu": u(0.4, 1.0)}
    on_gpu, copied, cores = u(0.05, 0.4), u(0.02, 0.2), u(5.0, 14.0)
    jitter, held, tuned = u(0.05, 0.6), u(0.05, 0.15), u(0.9, 1.0)

    def at(columns: Columns) -> tuple[Column, Column]:
        batch, workers = columns["batch"].astype(float), columns["workers"].astype(float)
        threads, ahead = columns["decode_threads"].astype(float), columns["prefetch"].astype(float)
        last, pinned = columns["channels_last"].astype(float), columns["pin_memory"].astype(float)
        amp, decoder = columns["amp"], columns["decoder"]
        precise = amp == "off"
        layout = np.where(last > 0, np.where(precise, 1.04, first), 1.0)
        narrow = np.select([precise, amp == "bf16"], [1.0, half], half * (1.0 - brain) + 0.05)
        searched = np.where(columns["cudnn_benchmark"].astype(float) > 0, tuned, 1.0)
        compute = batch * image * narrow * layout * searched * _of_word(columns["compile_mode"], compiled)
        compute += overhead * np.where(columns["compile_mode"] == "off", 1.0, 0.6)
        compute += batch * (copied * np.where(pinned > 0, 0.3, 1.0) + np.where(decoder == "gpu", on_gpu, 0.0))
        busy = np.maximum(workers, 1.0) * threads**0.6
        rate = np.minimum(busy, cores) / (1.0 + 0.03 * np.maximum(busy - cores, 0.0))
        load = batch * _of_word(decoder, decoded) / rate * (1.0 + jitter / (np.maximum(workers, 1.0) * ahead))
        beside = (compute**noise + load**noise) ** (1.0 / noise)
        step = np.where(workers > 0, beside, compute + load)
        kept = held * np.where(precise, 1.0, 0.58) * np.where(columns["compile_mode"] == "off", 1.0, 0.88)
        gib = 3.0 + batch * kept + np.where(decoder == "gpu", 1.5 + 0.02 * batch, 0.0)
        return 8e3 * batch / step, gib

    return at


def _variables(rng: np.random.Generator) -> Physics:
    u = rng.uniform
    compute, parameters, wire = u(0.1, 0.3), u(300.0, 3000.0), u(8.0, 20.0)  # s of a step, MiB to reduce, GiB/s at best
    launch = {name: u(*between) * 1e-3 for name, between in (("Ring", (0.3, 1.0)), ("Tree", (0.1, 0.4)))}
    width = {"Ring": 1.0, "Tree": u(0.6, 0.95)}
    quick = {"LL": 0.3, "LL128": 0.6, "Simple": 1.0}
    broad = {"LL": u(0.3, 0.5), "LL128": u(0.8, 1.0), "Simple": 1.0}
    launch["auto"], width["auto"] = launch["Ring"], width["Ring"] * 0.95
    quick["auto"], broad["auto"] = 0.8, u(0.8, 0.98)
    channels, stolen, host, cores = u(4.0, 16.0), u(0.0, 0.006), u(0.01, 0.15), u(4.0, 14.0)
    order, whole, little = u(-0.02, 0.05), u(0.0, 0.03), u(-0.005, 0.005)

    def at(columns: Columns) -> tuple[Column, Column]:
        algorithm, protocol = columns["NCCL_ALGO"], columns["NCCL_PROTO"]
        lanes, buffer = columns["NCCL_MIN_NCHANNELS"].astype(float), columns["NCCL_BUFFSIZE"].astype(float)
        threads, bucket = columns["OMP_NUM_THREADS"].astype(float), columns["bucket_cap_mb"].astype(float)
        single = columns["CUDA_DEVICE_MAX_CONNECTIONS"].astype(float) == 1
        static = columns["static_graph"].astype(float)
        rate = wire * 1024.0 * _of_word(algorithm, width) * _of_word(protocol, broad) * lanes / (lanes + channels / 4.0)
        rate *= buffer / (buffer + 4e5)
        starts = _of_word(algorithm, launch) * _of_word(protocol, quick)
        reduced = parameters / rate + np.ceil(parameters / bucket) * starts
        busy = compute * (1.0 + stolen * lanes) * (1.0 + order * single) * (1.0 - whole * static)
        backward = 0.6 * busy * (1.0 - np.minimum(bucket / parameters, 1.0))  # the last bucket waits for all gradients
        exposed = np.maximum(reduced - backward, np.minimum(bucket, parameters) / rate)
        on_host = host * 4.0 / np.minimum(threads, cores) * (1.0 + 0.05 * np.maximum(threads - cores, 0.0))
        step = np.hypot(busy + exposed, on_host) * (1.0 + little * columns["gradient_as_bucket_view"].astype(float))
        return 2048.0 / step, np.ones(len(step))

    return at


def _called(draw: Callable[[np.random.Generator], Physics], names: Mapping[str, str]) -> Callable[..., Physics]:
    """Return ``draw`` for columns that have other ``names``."""

    def drawn(rng: np.random.Generator) -> Physics:
        physics = draw(rng)
        return lambda columns: physics({names[name]: column for name, column in columns.items()})

    return drawn


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
        draw=_llm,
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
        draw=_vision,
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
        draw=_variables,
        fits_always=True,
    ),
    "renamed": Family(
        choices={name: _LLM[other] for name, other in _NAMES.items()},
        current={name: _LLM_CURRENT[other] for name, other in _NAMES.items()},
        draw=_called(_llm, _NAMES),
        constraint=f"{GPUS} // (p1 * p2) * p3 <= {GLOBAL_BATCH}",
    ),
}

"""The physics of simulated trainings with plain knobs; see ``plain_spaces``.

Each function draws a model's constants from chance and returns what maps values of its knobs to throughput and memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

Column: TypeAlias = "NDArray[np.float64]"
Columns: TypeAlias = "Mapping[str, NDArray[np.generic]]"
Physics: TypeAlias = "Callable[[Columns], tuple[Column, Column]]"
"""Maps columns of values to throughput and to memory in GiB, ``[n]`` each."""

GPUS, GLOBAL_BATCH = 64, 256  # of ``llm``


def _of_word(column: NDArray[np.generic], values: Mapping[str, float]) -> Column:
    """Return the value of each word of ``column``, ``[n]``."""
    words, places = np.unique(column, return_inverse=True)
    return np.array([values[str(word)] for word in words])[places]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """Split of a batch over ranks, and the part of it that is kept, ``[n]`` each."""

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


def llm(rng: np.random.Generator) -> Physics:
    """Return the physics of one: a pretraining on ``GPUS``."""
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


def vision(rng: np.random.Generator) -> Physics:
    """Return the physics of one: eight GPUs fed by a loader."""
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


def variables(rng: np.random.Generator) -> Physics:
    """Return the physics of one: a training bound by its network."""
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


def batch(rng: np.random.Generator) -> Physics:
    """Return the physics of one: a micro batch, of which kernels compute whole tiles, or which they like aligned."""
    fixed, per_sample, tile = rng.uniform(2.0, 8.0), rng.uniform(0.9, 2.5), int(rng.choice([4, 8, 16]))
    whole, aligned = rng.random() < 0.5, rng.uniform(0.85, 1.0)

    def at(columns: Columns) -> tuple[Column, Column]:
        size = columns["micro_batch_size"].astype(float)
        computed = np.ceil(size / tile) * tile if whole else size / np.where(size % tile == 0, 1.0, aligned)
        return 1000.0 * size / (fixed + computed), 3.0 + per_sample * size

    return at


def called(draw: Callable[[np.random.Generator], Physics], names: Mapping[str, str]) -> Callable[..., Physics]:
    """Return ``draw`` for columns that have other ``names``."""

    def drawn(rng: np.random.Generator) -> Physics:
        physics = draw(rng)
        return lambda columns: physics({names[name]: column for name, column in columns.items()})

    return drawn

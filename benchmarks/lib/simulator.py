"""A step-time simulator of layer-wise FSDP, for measuring searchers where the best config is known.

In kind the experiment of arXiv 2409.04585: unequal layers, one of three strategies for each, a batch size, and the
share of memory reserved for the dense part; a config that does not fit runs out of memory. Three families:

- ``overlap``: one stream computes, one communicates for about as long; parameters of the next layer are gathered
  while a layer computes.
- ``wall``: gathers and reductions have a stream each, neighbouring unsharded layers reduce in one message, layers are
  bound by memory, and the allocator slows down near the wall.
- ``latency``: half of the layers are tiny and bound by latency, and throughput is rough in the batch size.

A fourth, ``gpt``, has equal layers and tells what a transformer's formulas need: see ``Simulator.transformer``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.space import Parameter, SearchSpace

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Config

STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")
BATCH_SIZES = tuple(range(128, 428, 12))
RESERVES = tuple(round(0.77 + 0.01 * step, 2) for step in range(9))
WORLD_SIZE = 64
HBM_GIB = 80.0
OPTIMA = Path(__file__).parent.parent / "results" / "optima.json"
PEAK_NOISE = 0.005  # of recorded peak memory
NOISE = 0.01  # log standard deviation of one measurement
FAMILIES = ("overlap", "wall", "latency")
TRANSFORMER = "gpt"
TRANSFORMER_BATCH_SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 12)
WIDTH, LENGTH = 4096, 2048  # of the transformer


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulator:
    """One made-up model on one made-up cluster.

    Args:
        family: whose physics it follows.
        n_layers: layers with a strategy each.
        gathered_s: seconds to gather the parameters of each layer, ``[n_layers]``.
        compute_s: seconds of forward per sample in each layer, ``[n_layers]``.
        launch_s: seconds a layer takes however small its batch.
        state_gib: memory of parameters, gradients and optimizer of each layer when nothing is sharded, ``[n_layers]``.
        activation_gib: memory per sample in each layer, ``[n_layers]``.
        batch_sizes: that may be tried, ascending.
    """

    family: str
    n_layers: int
    gathered_s: np.ndarray
    compute_s: np.ndarray
    launch_s: float
    state_gib: np.ndarray
    activation_gib: np.ndarray
    workload: dict[str, object] = field(default_factory=dict)
    batch_sizes: tuple[int, ...] = BATCH_SIZES

    @classmethod
    def draw(cls, seed: int, *, n_layers: int = 24, family: str = "overlap", facts: bool = False) -> Simulator:
        """Return a made-up model; with ``facts``, layer sizes and peak memory are recorded."""
        if family == TRANSFORMER:
            return cls.transformer(seed, n_layers=n_layers, facts=facts)
        rng = np.random.default_rng(seed if family == "overlap" else [seed, FAMILIES.index(family)])
        size, work, weight = (np.exp(rng.normal(0.0, 0.8, n_layers)) for _ in range(3))
        weight *= size  # optimizers differ between layers
        wire_s, compute_s, launch_s, state, per_sample = 5.0e-3, 1.0e-5, 1.5e-3, (70.0, 90.0), (0.05, 0.07)
        if family == "wall":
            weight, wire_s, compute_s, launch_s = size, 7.0e-3, 0.5e-5, 3.0e-3
            state, per_sample = (50.0, 70.0), (0.07, 0.1)
        elif family == "latency":
            tiny = rng.permutation(n_layers) < n_layers // 2
            size, work = np.where(tiny, 0.02 * size, size), np.where(tiny, 0.05 * work, work)
            weight, wire_s, launch_s = size, 7.0e-3, 0.6e-3
            state, per_sample = (65.0, 85.0), (0.05, 0.07)
        workload = {"program": f"simulated-{family}-{seed}", "world_size": WORLD_SIZE, "n_layers": n_layers}
        if facts:
            workload["layer_n_params"] = tuple(np.round(1e8 * size / size.mean()).astype(int).tolist())
        return cls(
            family=family,
            n_layers=n_layers,
            gathered_s=0.3e-3 + wire_s * size / size.mean(),
            compute_s=compute_s * work / work.mean(),
            launch_s=launch_s,
            state_gib=weight / weight.sum() * rng.uniform(*state),
            activation_gib=work / work.sum() * rng.uniform(*per_sample),
            workload=workload,
        )

    @classmethod
    def transformer(cls, seed: int, *, n_layers: int, facts: bool) -> Simulator:
        """Return a transformer of equal layers on A100s, whose workload has the facts of its shape.

        Efficiencies of computation and network are drawn. The formulas do not know them, nor how this simulator
        gathers. With ``facts``, peak memory is recorded, too.
        """
        rng = np.random.default_rng([seed, len(FAMILIES)])
        n_params, ones = 12.0 * WIDTH**2, np.ones(n_layers)
        flops = 2.0 * n_params * LENGTH + 2.0 * WIDTH * LENGTH**2
        workload = {
            "program": f"simulated-{TRANSFORMER}-{seed}",
            "world_size": WORLD_SIZE,
            "nproc_per_node": 8,
            "n_layers": n_layers,
            "d_model": WIDTH,
            "d_ff": 4 * WIDTH,
            "seq_len": LENGTH,
            "vocab_size": 0,
            "precision": "bf16",
            "attention_kernel": "flash",
            "device": "NVIDIA A100-SXM4-80GB",
        }
        if facts:
            workload["layer_n_params"] = (int(n_params),) * n_layers
        return cls(
            family=TRANSFORMER,
            n_layers=n_layers,
            gathered_s=ones * 2.0 * n_params / (312e9 / 8 * rng.uniform(0.1, 0.6)),
            compute_s=ones * flops / (312e12 * rng.uniform(0.35, 0.65)),
            launch_s=0.6e-3,
            state_gib=ones * n_params * 24 / n_layers * rng.uniform(15.0, 19.0) / 2**30,
            activation_gib=ones * 24 / n_layers * WIDTH * LENGTH * rng.uniform(28.0, 38.0) / 2**30,
            workload=workload,
            batch_sizes=TRANSFORMER_BATCH_SIZES,
        )

    @property
    def current(self) -> Config:
        """The user's own config."""
        return {
            "sharding_strategy": ("FULL_SHARD",) * self.n_layers,
            "micro_batch_size": 2 if self.family == TRANSFORMER else 140,
            "reserved_share": RESERVES[0],
        }

    @property
    def space(self) -> SearchSpace:
        """The search space, not bound."""
        return SearchSpace(
            parameters=(
                Parameter(name="sharding_strategy", choices=STRATEGIES, per_layer="n_layers"),
                Parameter(name="micro_batch_size", choices=self.batch_sizes),
                Parameter(name="reserved_share", choices=RESERVES),
            ),
            objective="samples_per_second",
        )

    def throughput(self, config: Config) -> float:
        """Return samples per second of the whole job without noise; 0.0 where memory runs out."""
        chosen = np.array([[STRATEGIES.index(name) for name in config["sharding_strategy"]]])
        batch, reserve = np.array([config["micro_batch_size"]]), np.array([config["reserved_share"]])
        return float(self.throughputs(chosen, batch.astype(np.float64), reserve)[0])

    def throughputs(self, chosen: np.ndarray, batch: np.ndarray, reserve: np.ndarray) -> np.ndarray:
        """Return the same for many configs, ``[n]``: strategies ``[n, n_layers]``, batch sizes and reserved shares."""
        used = self._memory_gib(chosen, batch)
        # What the dense part reserves, the embeddings' cache lacks.
        step_s = {"overlap": self._step_s, "wall": self._two_streams_s, "latency": self._step_s}.get(
            self.family, self._step_s
        )
        speed = WORLD_SIZE * batch / step_s(chosen, batch) * (1.0 - 0.5 * (reserve - RESERVES[0]))
        if self.family == "wall":
            fullness = used / (reserve * HBM_GIB)
            speed /= 1.0 + 0.1 * np.maximum(0.0, (fullness - 0.92) / 0.08) ** 2  # the allocator retries
        if self.family == "latency":
            speed *= 1.0 + 0.02 * (batch % 32 == 0) - 0.02 * (batch % 8 != 0)  # tiles that are full, or not
        return np.where(used > reserve * HBM_GIB, 0.0, speed)

    def references(self) -> list[Config]:
        """Return the best config with every layer alike, for each strategy that fits at all."""
        configs = [
            {"sharding_strategy": (name,) * self.n_layers, "micro_batch_size": batch, "reserved_share": reserve}
            for name in STRATEGIES
            for batch in self.batch_sizes
            for reserve in RESERVES
        ]
        each = [
            max((config for config in configs if config["sharding_strategy"][0] == name), key=self.throughput)
            for name in STRATEGIES
        ]
        return [config for config in each if self.throughput(config) > 0.0]

    def launch(self, config: Config, *, rng: np.random.Generator, number: int) -> Trial:
        """Return the trial of one launch."""
        speed = self.throughput(config)
        if speed == 0.0:
            return Trial(trial_id=f"t{number}", workload=self.workload, config=config, state=State.OUT_OF_MEMORY)
        peak = None
        if "layer_n_params" in self.workload:
            chosen = np.array([[STRATEGIES.index(name) for name in config["sharding_strategy"]]])
            used = self._memory_gib(chosen, np.array([float(config["micro_batch_size"])]))
            peak = float(used[0]) * float(np.exp(np.random.default_rng(number).normal(0.0, PEAK_NOISE)))
        measured = Trial.completed(
            workload=self.workload,
            config=config,
            samples_per_second=speed * float(np.exp(rng.normal(0.0, NOISE))),
            peak_memory_gib=peak,
        )
        return measured if peak is None else replace(measured, observed={"device_memory_gib": HBM_GIB})

    def _memory_gib(self, chosen: np.ndarray, batch: np.ndarray) -> np.ndarray:
        kept = np.choose(chosen, [1.0 / WORLD_SIZE, 0.35 if self.family == "latency" else 0.25, 1.0])
        in_flight = 0.25 * np.sort(np.where(chosen == 0, self.state_gib, 0.0), axis=1)[:, -2:].sum(axis=1)
        return 8.0 + kept @ self.state_gib + in_flight + self.activation_gib.sum() * batch

    def _step_s(self, chosen: np.ndarray, batch: np.ndarray) -> np.ndarray:
        forward = np.maximum(np.outer(batch, self.compute_s), self.launch_s)
        gathered = chosen < 2
        wire, clock = np.zeros(len(batch)), np.zeros(len(batch))
        for layer in range(self.n_layers):
            wire = wire + np.where(gathered[:, layer], self.gathered_s[layer], 0.0)
            begun = np.where(gathered[:, layer], np.maximum(clock, wire), clock)
            clock = begun + forward[:, layer]
            wire = np.maximum(wire, begun)  # only the next layer is gathered meanwhile
        wire = clock
        for layer in reversed(range(self.n_layers)):
            again = chosen[:, layer] == 0
            wire = wire + np.where(again, self.gathered_s[layer], 0.0)
            begun = np.where(again, np.maximum(clock, wire), clock)
            clock, wire = begun + 2.0 * forward[:, layer], np.maximum(wire, begun)
            # Gradients: reduced and scattered, or reduced on every rank, in larger messages.
            wire = np.maximum(wire, clock) + self.gathered_s[layer] * np.where(chosen[:, layer] == 2, 1.3, 1.0)
        return np.maximum(clock, wire) + 2.0e-3

    def _two_streams_s(self, chosen: np.ndarray, batch: np.ndarray) -> np.ndarray:
        forward = self.launch_s + np.outer(batch, self.compute_s)
        clock, wire = np.zeros(len(batch)), np.zeros(len(batch))
        for layer in range(self.n_layers):
            gathered = chosen[:, layer] < 2
            wire = wire + np.where(gathered, self.gathered_s[layer], 0.0)
            clock = np.where(gathered, np.maximum(clock, wire), clock) + forward[:, layer]
        wire = reduced = clock
        for layer in reversed(range(self.n_layers)):
            again = chosen[:, layer] == 0
            wire = wire + np.where(again, self.gathered_s[layer], 0.0)
            clock = np.where(again, np.maximum(clock, wire), clock) + 2.0 * forward[:, layer]
            plain = chosen[:, layer] == 2
            merged = plain & (chosen[:, layer + 1] == 2) if layer + 1 < self.n_layers else np.zeros_like(plain)
            message = self.gathered_s[layer] * np.where(plain, 1.6, 1.0) - np.where(merged, 0.3e-3, 0.0)
            reduced = np.maximum(reduced, clock) + message
        return np.maximum(clock, reduced) + 2.0e-3

    def optimum(self, *, starts: int = 40, seed: int = 0) -> float:
        """Return the throughput of a strong local optimum: many starts, single changes, then pairs.

        It is looked up in ``OPTIMA`` where it was worked out before.
        """
        known = json.loads(OPTIMA.read_text()) if OPTIMA.exists() else {}
        name = f"{self.workload['program']}-{self.n_layers}-{starts}-{seed}"
        if name not in known:
            known[name] = round(self._optimum(starts, seed), 2)
            OPTIMA.write_text(json.dumps(dict(sorted(known.items())), indent=0) + "\n")
        return float(known[name])

    def _optimum(self, starts: int, seed: int) -> float:
        rng = np.random.default_rng(seed)
        sizes = np.array([len(STRATEGIES)] * self.n_layers + [len(self.batch_sizes), len(RESERVES)])
        singles = np.array([(place, choice) for place, size in enumerate(sizes) for choice in range(size)])
        best = 0.0
        for _ in range(starts):
            drawn = rng.integers(sizes, size=(50, len(sizes)))
            best = max(best, self._climb(drawn[int(np.argmax(self._at(drawn)))], singles, rng))
        for config in self.references():
            at = [STRATEGIES.index(name) for name in config["sharding_strategy"]]
            at += [self.batch_sizes.index(config["micro_batch_size"]), RESERVES.index(config["reserved_share"])]
            best = max(best, self._climb(np.array(at), singles, rng))
        return best

    def _climb(self, vector: np.ndarray, singles: np.ndarray, rng: np.random.Generator) -> float:
        """Return the height of the summit above ``vector``: the best single change, where none rises a pair of them."""
        value = float(self._at(vector[None])[0])
        for _ in range(1000):
            near = np.repeat(vector[None], len(singles), axis=0)
            near[np.arange(len(singles)), singles[:, 0]] = singles[:, 1]
            found = self._at(near)
            if found.max() <= value:
                pairs = rng.integers(len(singles), size=(4000, 2))
                near = np.repeat(vector[None], len(pairs), axis=0)
                for column in pairs.T:
                    near[np.arange(len(pairs)), singles[column, 0]] = singles[column, 1]
                found = self._at(near)
            if found.max() <= value:
                break
            vector, value = near[int(np.argmax(found))], float(found.max())
        return value

    def _at(self, vectors: np.ndarray) -> np.ndarray:
        batch = np.array(self.batch_sizes, dtype=np.float64)[vectors[:, -2]]
        return self.throughputs(vectors[:, :-2], batch, np.array(RESERVES)[vectors[:, -1]])

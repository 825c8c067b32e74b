"""Store of a finished tune in rounds, as of the demo, with rewritten launches after it."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from tests.comparisons import compare
from torchx_cubicml import Origin, State, Trial, TrialStore
from torchx_cubicml.advisor.comparison import Repeats
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.tuner.journal import Journal, Note, NoteKind
from torchx_cubicml.tuner.progress import TuneResult

if TYPE_CHECKING:
    from pathlib import Path

    from torchx_cubicml.records.values import Config

WORKLOAD = {"program": "train_gpt.py", "world_size": 8, "n_layers": 12, "n_heads": 12, "d_model": 768}
WORKLOAD |= {"vocab_size": 50_304, "seq_len": 1024}
HARDWARE = {"device": "cuda", "gpu": "NVIDIA H100 80GB HBM3", "n_gpus": 8, "nnodes": 1, "nproc_per_node": 8}
HARDWARE |= {"backend": "nccl", "n_params": 124_000_000, "optimizer": "AdamW", "precision": "bf16", **WORKLOAD}
OWN = {"micro_batch_size": 4, "sharding_strategy": "FULL_SHARD", "activation_checkpointing": "full", "compile": False}
TUNE = "tune-0123456789abcdef"
BEGIN = datetime(2026, 1, 5, 9, tzinfo=UTC)
ROUNDS, IN_ROUND, FIRST, AFTER = 4, 8, 8, 10
LAUNCHES = FIRST + ROUNDS * IN_ROUND + AFTER
SPACE = """
objective = "tokens_per_second"
[parameters.micro_batch_size]
choices = [1, 2, 4, 8, 16, 32]
flag = "--batch_size"
[parameters.sharding_strategy]
choices = ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"]
flag = "--sharding"
[parameters.activation_checkpointing]
choices = ["none", "selective", "full"]
flag = "--activation_checkpointing"
[parameters.compile]
choices = [false, true]
flag = "--compile"
"""


@dataclass(slots=True)
class Launcher:
    """Makes launches of one workload, one after the other, as a simple machine would end them."""

    rng: random.Random
    workload: dict[str, Any] = field(default_factory=lambda: dict(WORKLOAD))
    number: int = 0

    def launch(self, config: Config, *, predicted: float | None = None, round_number: int = 0, tune: str = "") -> Trial:
        """Return the next launch; it ran out of memory where its config needs more than a device has."""
        self.number += 1
        began = BEGIN + timedelta(minutes=6 * self.number)
        rate, peak = self.rate(config), self.peak(config)
        promise: dict[str, object] | None = None
        if predicted is not None:
            promise = {"throughput": predicted, "low": 0.9 * predicted, "high": 1.1 * predicted, "n_trials": 8}
            promise |= {"probability_to_fit": 0.9, "reason": "expected improvement", "gain": predicted / 322_000}
            promise |= {"round_number": round_number} if round_number else {}
        trial = replace(
            Trial.completed(workload=self.workload, config=config, tokens_per_second=rate),
            measurement=measured(rate, peak, noise=0.004 * (1 + self.rng.random())),
            origin=Origin.TUNE if tune else Origin.USER if predicted is None else Origin.REWRITE,
            launch_id=f"{tune.replace('tune', 'launch')}-{self.number:04d}" if tune else "",
            observed={**HARDWARE, **config, "queue_s": round(20 + 90 * self.rng.random(), 1)},
            suggestion=promise,
            started_at=f"{began:%Y-%m-%dT%H:%M:%SZ}",
            ended_at=f"{began + timedelta(seconds=200 + 60 * self.rng.random()):%Y-%m-%dT%H:%M:%SZ}",
        )
        if peak < 79.0:
            return trial
        reason = f"CUDA out of memory. Tried to allocate {peak / 9:.2f} GiB. GPU 0 has a total capacity of 79.10 GiB"
        return replace(trial, state=State.OUT_OF_MEMORY, measurement=None, reason=reason)

    def rate(self, config: Config) -> float:
        """Return tokens per second of a config, with two per cent of noise."""
        batch = float(config["micro_batch_size"])
        rate = 900_000 * batch / (batch + 3.5)
        rate *= {"none": 1.0, "selective": 0.93, "full": 0.76}[str(config["activation_checkpointing"])]
        rate *= {"FULL_SHARD": 0.86, "SHARD_GRAD_OP": 0.95, "NO_SHARD": 1.0}[str(config["sharding_strategy"])]
        return rate * (1.22 if config["compile"] else 1.0) * math.exp(self.rng.gauss(0, 0.02))

    def peak(self, config: Config) -> float:
        """Return the GiB that a config needs on a device."""
        kept = {"none": 3.4, "selective": 1.9, "full": 0.6}[str(config["activation_checkpointing"])]
        states = {"FULL_SHARD": 3.0, "SHARD_GRAD_OP": 6.0, "NO_SHARD": 14.0}[str(config["sharding_strategy"])]
        return states + kept * float(config["micro_batch_size"]) * (0.9 if config["compile"] else 1.0)


def measured(rate: float, peak: float | None = None, *, noise: float = 0.01) -> Measurement:
    """Return a measurement as the recorder makes it, of a step of half a million tokens."""
    step = 524_288 / rate
    return Measurement(
        tokens_per_second=rate,
        steps_counted=180,
        warmup_steps=20,
        step_time_s=(0.97 * step, step, 1.06 * step),
        mean_step_time_s=1.01 * step,
        peak_memory_gib=peak,
        statistic="mean",
        relative_error=noise,
        share_outside_steps=0.03,
        is_steady=True,
        startup_s=21.0,
        warmup_s=3.5,
        power_watts=8 * 520.0,
        power_of="GPUs",
    )


def fill(url: Path) -> tuple[str, ...]:
    """Fill a store; returns the words that name its space file."""
    store, launcher = TrialStore(str(url)), Launcher(random.Random(1))
    made = [launcher.launch(OWN, tune=TUNE), launcher.launch(OWN, tune=TUNE)]
    made += [launcher.launch(_drawn(launcher.rng), tune=TUNE) for _ in range(FIRST - 2)]
    for number in range(1, ROUNDS + 1):
        likely = sorted((_drawn(launcher.rng) for _ in range(6 * IN_ROUND)), key=launcher.rate, reverse=True)
        chosen = [each for each in likely if launcher.peak(each) < 110.0][:IN_ROUND]
        for config in sorted(chosen, key=launcher.rate, reverse=True):
            guess = launcher.rate(config) * math.exp(launcher.rng.gauss(0, 0.16 / number))
            made.append(launcher.launch(config, predicted=guess, round_number=number, tune=TUNE))
    best = max(
        (each for each in made if each.measurement), key=lambda each: each.throughput("tokens_per_second") or 0.0
    )
    guess = launcher.rate(best.config)
    made += [launcher.launch(best.config, predicted=guess) for _ in range(AFTER)]
    for trial in made:
        store.add(trial)
    _finish(str(url), made, best.config)
    space = url.parent / "space.toml"
    space.write_text(SPACE)
    return ("--space", str(space))


def _drawn(rng: random.Random) -> dict[str, Any]:
    return {
        "micro_batch_size": rng.choice([1, 2, 4, 8, 16, 32]),
        "sharding_strategy": rng.choice(["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"]),
        "activation_checkpointing": rng.choice(["none", "selective", "full"]),
        "compile": rng.choice([False, True]),
    }


def note_own(url: str) -> None:
    """Note that the first two launches of the tune measured the user's own config."""
    for number in (1, 2):
        facts = {"handle": "slurm://torchx/12", "purpose": "baseline"}
        launch_id = f"{TUNE.replace('tune', 'launch')}-{number:04d}"
        Journal(url).write(Note(kind=NoteKind.SUBMITTED, tune_id=TUNE, launch_id=launch_id, facts=facts))


def _finish(url: str, made: list[Trial], best: Config) -> None:
    """Write the result of the tune as ``tune`` itself does."""
    sides = []
    for config in (OWN, best):
        rates = [each.throughput("tokens_per_second") for each in made if each.config == config and each.measurement]
        found = tuple(rate for rate in rates if rate is not None)[:3]
        sides.append(Repeats(config=config, throughputs=found, uncertainties=(0.006,) * len(found)))
    words = ("dist.ddp", "-j", "1x8", "--script", "train_gpt.py", "--")
    words += tuple(f"--{name}={value}" for name, value in best.items())
    result = TuneResult(
        comparison=compare(*sides, objective="tokens_per_second"),
        best=None,
        launches=FIRST + ROUNDS * IN_ROUND,
        device_hours=21.3,
        command=words,
        tune_id=TUNE,
        confidence=0.97,
        others_measured=30,
        ending=f"{FIRST + ROUNDS * IN_ROUND} of {FIRST + ROUNDS * IN_ROUND} launches: the budget is used up",
    )
    note_own(url)
    facts = {"result": result.to_json()}
    Journal(url).write(Note(kind=NoteKind.FINISHED, tune_id=TUNE, time="2026-01-05T13:40:00Z", facts=facts))

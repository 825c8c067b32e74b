"""A tune on the simulated cluster: its request, and an advisor that needs no time."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

from tests.tune.cluster import runner_of
from torchx_cubicml.advisor import Suggestion
from torchx_cubicml.predictors.features.history import config_key
from torchx_cubicml.store import read_trials
from torchx_cubicml.tuner import Budget, Prepared, TuneRequest, prepare, tune
from torchx_cubicml.tuner.proposer import FinalReport
from torchx_cubicml.tuner.scheduler.jobs import JobRunner

if TYPE_CHECKING:
    from cluster import SimulatedCluster

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Config
    from torchx_cubicml.tuner import Step
    from torchx_cubicml.tuner.proposer import Proposer, Snapshot

TUNE = Path(__file__).resolve().parent
SPACE = """
objective = "samples_per_second"
[parameters.micro_batch_size]
low = 1
high = 64
flag = "--batch_size"
changes_training = true
[parameters.width]
low = 1
high = 64
flag = "--width"
"""


class Draws:
    """A quick advisor: draws what was not launched, and knows the best by its mean."""

    def suggest(self, snapshot: Snapshot) -> list[Suggestion]:
        taken = {config_key(trial.config) for trial in snapshot.trials}
        rng = random.Random(snapshot.seed)
        while True:
            config = {"micro_batch_size": rng.randint(1, 64), "width": rng.randint(1, 64)}
            if config_key(config) not in taken:
                return [suggestion_of(config)]

    def best_known(self, snapshot: Snapshot) -> Suggestion | None:
        measured = [trial for trial in snapshot.trials if trial.measurement is not None]
        best = max(measured, key=lambda trial: trial.measurement.throughput("samples_per_second"), default=None)
        return None if best is None else suggestion_of(best.config)

    def expected_gain(self, snapshot: Snapshot) -> float | None:
        del snapshot
        return None

    def rivals(self, snapshot: Snapshot, winner: Config) -> list[Suggestion]:
        del snapshot, winner
        return []

    def account(self, snapshot: Snapshot, winner: Config) -> FinalReport:
        del snapshot, winner
        return FinalReport()


def suggestion_of(config: Config) -> Suggestion:
    return Suggestion(
        config=config, throughput=None, low=None, high=None, probability_to_fit=1.0, reason="drawn", n_trials=0
    )


def prepare_in(folder: Path) -> Prepared:
    """Return a request of a thousand launches, sixteen in flight, whose store lies in ``folder``."""
    space = folder / "space.toml"
    space.write_text(SPACE)
    request = TuneRequest(
        component=f"{TUNE}/components.py:quick",
        component_args=("--script", f"{TUNE}/quick.py", "--", "--batch_size", "1", "--width", "1"),
        space=str(space),
        store=str(folder / "store"),
        scheduler="local_cwd",
        budget=Budget(launches=1000),
        parallel=16,
        queue_timeout_s=600.0,
        scratch=str(folder / "scratch"),
    )
    return prepare(request)


def go(prepared: Prepared, cluster: SimulatedCluster, advisor: Proposer | None = None) -> list[Step]:
    """Return the steps of a whole tune on ``cluster``."""
    jobs = JobRunner("sim", runner=runner_of(cluster))
    return list(tune(prepared, jobs=jobs, clock=cluster, advisor=advisor or Draws()))


def stored(prepared: Prepared) -> list[Trial]:
    """Return the trials of the tune's store."""
    return read_trials(prepared.store_url, deadline_s=60)[0]

"""Time that predictors take to fit and to score, from a hundred trials to a hundred thousand."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import numpy as np

from lib.methods import OBJECTIVE
from torchx_cubicml.predictors import DEFAULT_PREDICTOR, PREDICTORS
from torchx_cubicml.predictors.features.history import TrainingTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.records.trial import Trial

COUNTS = (100, 1_000, 10_000, 100_000)
_ASKED = 100_000  # configs that are scored


def cost(trials: Sequence[Trial], *, counts: Sequence[int] = COUNTS) -> str:
    """Return how long the predictors take to learn from tables of some sizes, made by repeating this one.

    Learning is measured in processor seconds, which do not count what else the machine does; scoring likewise, and by
    the clock on the wall, for large batches are scored on all cores.
    """
    ran = [trial for trial in trials if trial.measurement is not None]
    lines = [
        f"fitted in processor seconds on one core; {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}",
        f"{'trials':>8s} {'predictor':12s} {'to a table':>11s} {'fitted in':>10s} {'configs a second of one core':>29s}"
        f" {'by the clock':>13s}",
    ]
    for count in counts:
        many = [ran[index % len(ran)] for index in range(count)]
        started = time.process_time()
        history = TrainingTable.from_trials(many, objective=OBJECTIVE)
        read = time.process_time() - started
        asked = np.vstack([history.features] * max(_ASKED // count, 1))
        for name in (DEFAULT_PREDICTOR, "boosting", "roofline"):
            started = time.process_time()
            fitted = PREDICTORS[name]().fit(history, rng=np.random.default_rng(0))
            learned, clock = time.process_time(), time.perf_counter()
            fitted.predict(asked)
            speed = len(asked) / (time.process_time() - learned)
            by_clock = len(asked) / (time.perf_counter() - clock)
            lines.append(
                f"{count:8d} {name:12s} {read:9.2f} s {learned - started:8.2f} s {speed:29,.0f} {by_clock:13,.0f}"
            )
    return "\n".join(lines)

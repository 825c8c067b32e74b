"""How long predictors take to learn and to score, from a hundred trials to a hundred thousand."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
from methods import OBJECTIVE

from torchx_cubicml.history import History
from torchx_cubicml.predictors import DEFAULT_PREDICTOR, PREDICTORS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.trial import Trial

COUNTS = (100, 1_000, 10_000, 100_000)


def cost(trials: Sequence[Trial], *, counts: Sequence[int] = COUNTS) -> str:
    """Return how long the predictors take to learn from tables of some sizes, made by repeating this one.

    Processor seconds: the predictors keep to one thread, and what else the machine does is not counted.
    """
    ran = [trial for trial in trials if trial.measurement is not None]
    lines = [
        "processor seconds, on one core",
        f"{'trials':>8s} {'predictor':12s} {'to a table':>11s} {'fitted in':>10s} {'configs a second':>17s}",
    ]
    for count in counts:
        many = [ran[index % len(ran)] for index in range(count)]
        started = time.process_time()
        history = History.from_trials(many, objective=OBJECTIVE)
        read = time.process_time() - started
        asked = np.vstack([history.features] * max(20_000 // count, 1))
        for name in (DEFAULT_PREDICTOR, "boosting", "roofline"):
            started = time.process_time()
            fitted = PREDICTORS[name]().fit(history, rng=np.random.default_rng(0))
            learned = time.process_time()
            fitted.predict(asked)
            speed = len(asked) / (time.process_time() - learned)
            lines.append(f"{count:8d} {name:12s} {read:9.2f} s {learned - started:8.2f} s {speed:17,.0f}")
    return "\n".join(lines)

"""Stores of one trial, and of 50,000 in one segment, as a compacted store holds them."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.browser.stores.tuned import OWN, Launcher
from torchx_cubicml import State, Trial, TrialStore
from torchx_cubicml.records.event import trial_events
from torchx_cubicml.store.segments import encode_segment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TRIALS = 50_000
_IN_SEGMENT = 25_000  # a segment has a limit


def fill_one(url: Path) -> tuple[str, ...]:
    """Fill a store with one launch."""
    TrialStore(str(url)).add(Launcher(random.Random(5)).launch(OWN))
    return ()


def fill(url: Path) -> tuple[str, ...]:
    """Fill a store with many trials of twenty parameters."""
    store, trials = TrialStore(str(url)), list(_trials())
    for first in range(0, TRIALS, _IN_SEGMENT):
        objects = {
            f"20260101T000000.{first + number:06d}Z-{place:016x}.json": json.dumps(event.to_json()).encode()
            for number, trial in enumerate(trials[first : first + _IN_SEGMENT])
            for place, event in enumerate(trial_events(trial))
        }
        store.folder.publish_segment(f"2026-01-01-{first:016x}.events.gz", encode_segment(objects))
    return ()


def _trials() -> Iterator[Trial]:
    rng = random.Random(6)
    workload = {"program": "train.py", "world_size": 64}
    for number in range(TRIALS):
        batch = rng.choice([1, 2, 4, 8, 16])
        config = {"micro_batch_size": batch} | {f"option_{place:02d}": rng.randrange(6) for place in range(19)}
        rate = 1e5 * batch**0.5 * (1 + 0.02 * config["option_00"]) * (1 + 0.03 * rng.random())
        trial = Trial.completed(workload=workload, config=config, tokens_per_second=rate)
        second = number % 86_400
        time = f"2026-01-01T{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}Z"
        trial = replace(trial, trial_id=f"trial-{number:06d}", started_at=time, ended_at=time)
        if batch == 16 and config["option_01"] > 3:
            trial = replace(trial, measurement=None, state=State.OUT_OF_MEMORY, reason="CUDA out of memory")
        yield trial

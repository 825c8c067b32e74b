"""Measures the report of a large store: its size, and its time beside that of reading the store alone.

    python benchmarks/report_size.py --output benchmarks/results/report_size.txt

Times of the processor are in this process, so that other work on the machine counts less. The page of 50,000 trials
must stay below 10 MB; its time is meant to be below 20 s where nothing else runs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from contextlib import redirect_stderr
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torchx.cli.main import main as torchx

from torchx_cubicml import State, Trial
from torchx_cubicml.records.event import trial_events
from torchx_cubicml.store.presence import recorded_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKLOAD = {"program": "train.py", "world_size": 8, "n_layers": 4, "hidden_size": 512, "seq_len": 512}
STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")
N_KNOBS = 9  # plain parameters: with the others and the facts, 21 columns of the table
MOST_BYTES = 10_000_000


def trials(count: int) -> Iterator[Trial]:
    """Yield made-up launches of one workload."""
    rng = np.random.default_rng(0)
    for number in range(count):
        batch, is_compiled = int(rng.choice([1, 2, 4, 8, 16])), bool(rng.integers(2))
        sharding = tuple(str(each) for each in rng.choice(STRATEGIES, 4))
        knobs = {f"knob_{place}": int(rng.integers(5)) for place in range(N_KNOBS)}
        config = {"micro_batch_size": batch, "compile": is_compiled, "sharding_strategy": sharding, **knobs}
        rate = 1000 * batch**0.5 * (1.2 if is_compiled else 1.0) * float(np.exp(rng.normal(0, 0.02)))
        made = Trial.completed(
            workload=WORKLOAD, config=config, tokens_per_second=rate, peak_memory_gib=float(rng.uniform(5, 70))
        )
        times = (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=7 * number + more) for more in (0, 5))
        started, ended = (each.isoformat(timespec="seconds") for each in times)
        made = replace(made, started_at=started, ended_at=ended)
        if batch == 16 and sharding.count("NO_SHARD") > 1:
            made = replace(made, measurement=None, state=State.OUT_OF_MEMORY, reason="CUDA out of memory")
        yield made


def fill(folder: Path, count: int) -> None:
    """Write the launches below ``folder``, one object for each event, without waiting for the disk."""
    for number, trial in enumerate(trials(count)):
        day = folder / "events" / trial.started_at[:10]
        day.mkdir(parents=True, exist_ok=True)
        stamp = f"{datetime.fromisoformat(trial.started_at):%Y%m%dT%H%M%S.%fZ}"
        for place, event in enumerate(trial_events(trial)):
            text = json.dumps(event.to_json(), separators=(",", ":"))
            (day / f"{stamp}-{2 * number + place:016x}.json").write_text(f"{text}\n")


def measure(count: int) -> dict[str, float]:
    """Return the seconds of the processor for reading a store, and for its whole report, and the page's bytes."""
    with tempfile.TemporaryDirectory() as name:
        store, page = Path(name) / "store", Path(name) / "report.html"
        fill(store, count)
        start = time.process_time()
        found = recorded_snapshot(str(store), deadline_s=600.0).trials
        if len(found) != count:
            raise SystemExit(f"read {len(found)} of {count} trials")
        read_s = time.process_time() - start
        del found
        start, wall = time.process_time(), time.perf_counter()
        with redirect_stderr(StringIO()):
            torchx(["cubicml", "report", "--store", str(store), "--out", str(page)])
        report_s, wall_s = time.process_time() - start, time.perf_counter() - wall
        return {"read_s": read_s, "report_s": report_s, "wall_s": wall_s, "bytes": page.stat().st_size}


def main() -> int:
    """Measure, print, and write the result where asked; exit status 1 where the page is too large."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, nargs="+", default=[100, 5000, 50_000], help="sizes of stores")
    parser.add_argument("--output", type=Path, help="file to write the result to, besides printing it")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    names = f"{'trials':>8} {'page MB':>8} {'read CPU s':>11} {'report CPU s':>13} {'ratio':>6} {'wall s':>7}"
    lines = ["The report of one workload: its size, and its time with reading beside that of reading alone", "", names]
    largest = 0
    for count in arguments.trials:
        found = measure(count)
        ratio = found["report_s"] / found["read_s"]
        numbers = f"{found['bytes'] / 1e6:8.2f} {found['read_s']:11.1f} {found['report_s']:13.1f} {ratio:6.1f}"
        lines.append(f"{count:8,} {numbers} {found['wall_s']:7.1f}")
        largest = max(largest, int(found["bytes"]))
    held = largest < MOST_BYTES
    lines += ["", f"page below {MOST_BYTES / 1e6:.0f} MB: {'held' if held else 'BROKEN'}"]
    machine = f"python {platform.python_version()}, {os.cpu_count()} cores"
    lines.append(f"{machine}, load {load:.1f} before and {os.getloadavg()[0]:.1f} after; with load, wall s says little")
    text = "\n".join(lines)
    print(text)
    if arguments.output is not None:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(f"{text}\n")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())

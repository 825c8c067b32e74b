"""Measures what being recorded costs a training once: its start, the first look at its model, and the first 512 steps.

    python benchmarks/recorder_start.py --output benchmarks/results/recorder_start.txt

Starts are compared between pairs of processes, in an order that alternates. The first steps run in processes of their
own: the first two, in which the model is looked at, stand against the usual step without hooks; the others in pairs,
one with the hooks in place and one with them taken away, in an order drawn by chance. After 512 steps the recorder
watches short steps less (``recorder.py`` measures those). The mean of a process holds what its median leaves out, such
as reports, and the noise of the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from recorder import TOGGLED, conclude, interval, recorded, run

if TYPE_CHECKING:
    from collections.abc import Sequence

START_BOUND_MS = 150.0

START = """
import time
import torch
print(time.time(), time.process_time())
"""

FIRST = (
    """
import json, random, sys, time
import torch
from torch import nn
from torch.optim import optimizer as optimizers
torch.set_num_threads(1)
order = json.loads(sys.argv[1])
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
inputs, matrix = torch.randn(8, 64), torch.randn(192, 192)
def work(rounds):
    for _ in range(rounds):
        torch.mm(matrix, matrix)
    model(inputs).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
def timed(rounds):
    wall, host = time.perf_counter(), time.process_time()
    work(rounds)
    return time.perf_counter() - wall, time.process_time() - host
places = optimizers._global_optimizer_post_hooks, model._forward_pre_hooks, model._forward_hooks
"""
    + TOGGLED
    + """
def usual(rounds):
    return sorted(timed(rounds)[0] for _ in range(200))[100]
put(False)
least = usual(0)
rounds = max(round((order["step_s"] - least) / (usual(50) - least) * 50), 1)
without = usual(rounds)
put(True)
look = [timed(rounds)[0] for _ in range(2)]
pairs = []
while len(pairs) < 510:
    pair = {}
    for on in random.sample((True, False), 2):
        put(on)
        pair[on] = timed(rounds)
    pairs.append((*pair[True], *pair[False]))
put(True)
print(json.dumps({"look_s": sum(look) - 2 * without, "pairs": pairs}))
"""
)


def measure_start(folder: Path, pairs: int) -> tuple[str, bool]:
    """Return what a recorded start costs beyond importing torch and whether the bound holds."""
    script = folder / "start.py"
    script.write_text(START)
    commands = [sys.executable], [sys.executable, "-m", "torchx_cubicml.recorder", "--"]
    differences = []
    for number in range(pairs + 1):
        times: dict[int, tuple[float, float, float]] = {}
        for kind in sorted((0, 1), reverse=bool(number % 2)):
            began = time.time()
            reached, host = map(float, run([*commands[kind], str(script)], folder).split())
            times[kind] = reached - began, host, time.time() - began
        if number:  # the first fills the caches of the file system
            differences.append([1000 * (ours - plain) for ours, plain in zip(times[1], times[0], strict=True)])
    columns = [interval(column) for column in zip(*differences, strict=True)]
    names = ("wall time", "CPU time", "wall time to the end of the process, its record written")
    rows = [
        f"  start beyond importing torch {_spelled(column, 'ms', 0)}, {pairs} pairs, {name}"
        for name, column in zip(names, columns, strict=True)
    ]
    rows[0] += f", bound {START_BOUND_MS:g} ms"
    return "\n".join(rows), columns[0][2] < START_BOUND_MS


def measure_first_steps(folder: Path, step_s: float, processes: int) -> tuple[str, bool]:
    """Return what the steps of ``step_s`` cost before their forwards are watched less; no bound is set for them."""
    answers = [json.loads(*recorded(FIRST, {"step_s": step_s}, folder)) for _ in range(processes)]
    look = interval([1000 * each["look_s"] for each in answers])
    pairs = [each["pairs"] for each in answers]
    step_ms = 1000 * median(pair[2] for each in pairs for pair in each)
    rows = [f"  first look at the model      {_spelled(look, 'ms', 0)}, {processes} processes, once"]
    for name, column in (("wall time", 0), ("CPU time", 1)):
        growth = [100 * (pair[column] / pair[column + 2] - 1) for each in pairs for pair in each]
        means = [100 * (_total(each, column) / _total(each, column + 2) - 1) for each in pairs]
        rows += [
            f"  steps 3 to 512 of {step_ms:.1f} ms     {_spelled(interval(values), '%', 3)}, {words}, {name}"
            for words, values in ((f"{len(growth)} pairs", growth), (f"means of {processes} processes", means))
        ]
    return "\n".join(rows), True


def _total(pairs: Sequence[Sequence[float]], column: int) -> float:
    return sum(pair[column] for pair in pairs)


def _spelled(values: tuple[float, float, float], unit: str, digits: int) -> str:
    middle, low, high = (f"{value:.{digits}f}" for value in values)
    return f"{middle:>8s} {unit}  ({low} to {high})"


def main() -> int:
    """Measure, print, and write the result where asked; exit status 1 where a bound is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=40, help="pairs of processes (default: 40)")
    parser.add_argument("--processes", type=int, default=12, help="whose first steps are measured (default: 12)")
    parser.add_argument("--output", type=Path, help="file to write the result to, besides printing it")
    arguments = parser.parse_args()
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        results = [
            measure_first_steps(folder, 0.005, arguments.processes),
            measure_start(folder, arguments.starts),
        ]
    return conclude(results, load_before=before, output=arguments.output)


if __name__ == "__main__":
    sys.exit(main())

"""Measures what being recorded costs a training: its hooks, its steps, its start and its memory.

    python benchmarks/recorder.py --output benchmarks/results/recorder.txt

Hooks and memory are measured on the hooks of a really recorded process, called directly. Steps of a fixed amount of
work run in one recorded process in pairs, one with the hooks in place and one with them taken away, in an order drawn
by chance: what else the machine does meets both alike. Start-up is compared between pairs of processes. CPU time stands
beside wall time because other work on the machine disturbs it less. Every median stands with its 95 % interval, from
order statistics, so that no shape of the noise is assumed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from torchx_cubicml.settings import child_environment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HOOK_BOUND_US = 20.0
WALL_BOUND_PERCENT = 0.5
START_BOUND_MS = 150.0
GROWTH_BOUND_MIB = 1.0  # over all counted steps: an allocator's own breathing, not a leak

# The recorded training: the hooks are found where torch keeps them.
TRAINING = """
import gc, json, random, sys, time
import torch
from torch import nn
from torch.optim import optimizer as optimizers
torch.set_num_threads(1)
order = json.loads(sys.argv[1])
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
inputs = torch.randn(8, 64)
def step():
    model(inputs).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
for _ in range(40):
    step()
places = optimizers._global_optimizer_post_hooks, model._forward_pre_hooks, model._forward_hooks
def hooks():
    return [[*place.values()] for place in places]
assert all(hooks()[:2]), "the training is not recorded"
"""

HOOKS = """
def resident_kib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4
def call(count):
    after_step = hooks()[0][0]
    outputs = [model[0].bias * 1.0 for _ in range(count)]  # each with a graph of its own, as a training has them
    start = time.perf_counter()
    for output in outputs:
        (before_forward,) = model._forward_pre_hooks.values()
        before_forward(model, (inputs,), {})
        for hook in model._forward_hooks.values():
            hook(model, (inputs,), output)
        after_step(optimizer, (), {})
    return (time.perf_counter() - start) / count
call(20_000)
gc.collect()
before = resident_kib()
us = [1e6 * call(500) for _ in range(order["steps"] // 500)]
gc.collect()
print(json.dumps({"us": us, "growth_kib": resident_kib() - before}))
"""

TOGGLED = """
away = [{} for place in places]
def put(on):
    for kept, hooked in zip(away, places):
        if on:
            hooked.update(kept)
            kept.clear()
        elif hooked:
            kept.update(hooked)
            hooked.clear()
"""

# What torch itself does more in a module and an optimizer that have hooks is part of this.
WHOLE = """
large = torch.randn(3_000_000)  # 12 MB: the work of a step leaves no room for our code in the processor's cache
pairs = []
for _ in range(order["pairs"]):
    pair = {}
    for on in random.sample((True, False), 2):
        put(on)
        large.mul_(1.0)
        start = time.perf_counter()
        step()
        pair[on] = time.perf_counter() - start
    pairs.append(1e6 * (pair[True] - pair[False]))
put(True)
print(json.dumps(pairs))
"""

PAIRS = """
matrix = torch.randn(192, 192)
def work(rounds):
    for _ in range(rounds):
        torch.mm(matrix, matrix)
    step()
def timed(rounds):
    wall, host = time.perf_counter(), time.process_time()
    work(rounds)
    return time.perf_counter() - wall, time.process_time() - host
one = min(timed(50)[0] for _ in range(100)) / 50
rounds = max(round(order["step_s"] / one), 1)
pairs = []
for _ in range(order["pairs"]):
    pair = {}
    for on in random.sample((True, False), 2):
        put(on)
        pair[on] = timed(rounds)
    pairs.append((*pair[True], *pair[False]))
put(True)
print(json.dumps(pairs))
"""

START = """
import time
import torch
print(time.time(), time.process_time())
"""


def recorded(source: str, order: Mapping[str, object], folder: Path) -> list[str]:
    """Return the lines that a recorded script prints."""
    script = folder / "train.py"
    script.write_text(source)
    command = [sys.executable, "-m", "torchx_cubicml.recorder", "--", str(script), json.dumps(order)]
    return run(command, folder).splitlines()


def run(command: Sequence[str], folder: Path) -> str:
    """Return what a command prints; its store is within ``folder``."""
    environment = child_environment({"TORCHX_CUBICML_STORE": str(folder / "store")})
    return subprocess.run(
        command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ).stdout


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median and the ends of its 95 % interval, by order statistics.

    >>> interval([float(number) for number in range(1, 101)])
    (50.5, 40.0, 61.0)
    """
    ordered, count = sorted(values), len(values)
    reach = 1.96 * math.sqrt(count) / 2
    low, high = max(math.floor(count / 2 - reach), 0), min(math.ceil(count / 2 + reach), count - 1)
    return median(ordered), ordered[max(low - 1, 0)], ordered[high]


def measure_hooks(folder: Path, steps: int) -> tuple[str, bool]:
    """Return what the hooks cost and whether the bounds hold."""
    (line,) = recorded(TRAINING + HOOKS, {"steps": steps}, folder)
    told = json.loads(line)
    middle, low, high = interval(told["us"])
    grown = told["growth_kib"] / 1024
    (line,) = recorded(TRAINING + TOGGLED + WHOLE, {"pairs": 2000}, folder)
    whole = interval(json.loads(line))
    return (
        f"  hooks of one step            {middle:8.2f} us  ({low:.2f} to {high:.2f}; fastest block of 500 "
        f"{min(told['us']):.2f}), bound {HOOK_BOUND_US:g} us\n"
        f"  with what torch adds, cold   {whole[0]:8.2f} us  ({whole[1]:.2f} to {whole[2]:.2f}), 2000 pairs of steps\n"
        f"  growth over {steps:,} steps   {grown:8.2f} MiB, bound {GROWTH_BOUND_MIB:g} MiB",
        middle < HOOK_BOUND_US and grown < GROWTH_BOUND_MIB,
    )


def measure_pairs(folder: Path, step_s: float, seconds: float) -> tuple[str, bool]:
    """Return by how much steps of ``step_s`` grow and whether the bound holds."""
    (line,) = recorded(
        TRAINING + TOGGLED + PAIRS, {"step_s": step_s, "pairs": max(round(seconds / step_s / 2), 10)}, folder
    )
    told = json.loads(line)
    without = median(pair[2] for pair in told)
    wall = interval([100 * (pair[0] / pair[2] - 1) for pair in told])
    host = interval([100 * (pair[1] / pair[3] - 1) for pair in told])
    rows = [
        f"  steps of {1000 * without:5.1f} ms, {name} {values[0]:+8.3f} %   ({values[1]:+.3f} to {values[2]:+.3f}), "
        f"{len(told)} pairs, bound {WALL_BOUND_PERCENT:g} %"
        for name, values in (("wall time ", wall), ("CPU time  ", host))
    ]
    return "\n".join(rows), wall[0] < WALL_BOUND_PERCENT


def measure_start(folder: Path, pairs: int) -> tuple[str, bool]:
    """Return what a recorded start costs beyond importing torch and whether the bound holds."""
    script = folder / "start.py"
    script.write_text(START)
    commands = [sys.executable], [sys.executable, "-m", "torchx_cubicml.recorder", "--"]
    differences = []
    for number in range(pairs + 1):
        told: dict[int, tuple[float, float, float]] = {}
        for kind in sorted((0, 1), reverse=bool(number % 2)):
            began = time.time()
            reached, host = map(float, run([*commands[kind], str(script)], folder).split())
            told[kind] = reached - began, host, time.time() - began
        if number:  # the first fills the caches of the file system
            differences.append([1000 * (ours - plain) for ours, plain in zip(told[1], told[0], strict=True)])
    columns = [interval(column) for column in zip(*differences, strict=True)]
    names = ("wall time", "CPU time", "wall time to the end of the process, its record written")
    rows = [
        f"  start beyond importing torch {middle:8.0f} ms  ({low:.0f} to {high:.0f}), {pairs} pairs, {name}"
        for name, (middle, low, high) in zip(names, columns, strict=True)
    ]
    rows[0] += f", bound {START_BOUND_MS:g} ms"
    return "\n".join(rows), columns[0][0] < START_BOUND_MS


def main() -> int:
    """Measure, print, and write the result where asked; exit status 1 where a bound is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="of steps of each length (default: 20)")
    parser.add_argument("--starts", type=int, default=15, help="pairs of processes (default: 15)")
    parser.add_argument("--steps", type=int, default=100_000, help="over which memory may grow (default: 100,000)")
    parser.add_argument("--output", type=Path, help="file to write the result to, besides printing it")
    arguments = parser.parse_args()
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        results = [
            measure_hooks(folder, arguments.steps),
            measure_pairs(folder, 0.005, arguments.seconds),
            measure_pairs(folder, 0.05, arguments.seconds),
            measure_start(folder, arguments.starts),
        ]
    text = "\n".join(
        [
            "What being recorded costs; medians with their 95 % intervals, from order statistics",
            "",
            *(text for text, _ in results),
            "",
            f"python {platform.python_version()}, torch {version('torch')}, {platform.system()} {platform.machine()}, "
            f"{os.cpu_count()} cores, load average {before:.1f} before and {os.getloadavg()[0]:.1f} after",
        ]
    )
    print(text)
    if arguments.output is not None:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(f"{text}\n")
    return 0 if all(held for _, held in results) else 1


if __name__ == "__main__":
    sys.exit(main())

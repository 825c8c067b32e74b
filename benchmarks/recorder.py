"""Measures what being recorded costs a training in steady state: its hooks, its steps and its memory.

    python benchmarks/recorder.py --output benchmarks/results/recorder.txt

Hooks and memory are measured on the hooks of a really recorded process, called directly. Steps of a fixed amount of
work run in recorded processes in pairs, one with the hooks in place and one with them taken away, in an order drawn
by chance: what else the machine does meets both alike. Of short steps the recorder watches the forwards of some only:
how many it watches is counted while the training runs undisturbed, both kinds of steps have their own median, and the
cost is the mean of the two at that share. Every fifth pair is a control without hooks in either step: what it shows is
the method's own. CPU time stands beside wall time because other work on the machine disturbs it less. Every median
stands with its 95 % interval, from order statistics, so that no shape of the noise is assumed; a bound holds where the
whole interval is under it. By far the most of a step is work that no hook is in: the last rows compare the time of the
rest alone, forward to ``zero_grad``, as a share of the step: nearly free of noise, and blind to what a hook may leave
behind for that work. What a start and the first steps cost is measured by ``recorder_start.py``.
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
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from torchx_cubicml.settings import child_environment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HOOK_BOUND_US = 20.0
WALL_BOUND_PERCENT = 0.5
PROCESSES = 4  # that share the pairs: where a process happens to lie in memory is luck, too
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
for _ in range(1500):
    step()
places = optimizers._global_optimizer_post_hooks, model._forward_pre_hooks, model._forward_hooks
def hooks():
    return [[*place.values()] for place in places]
assert hooks()[0], "the training is not recorded"
from torchx_cubicml.recorder.steps import sampling
def watch(share):
    sampling._SHARE = share  # of the time of steps
    for _ in range(2000):
        step()
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
        for before_forward in model._forward_pre_hooks.values():
            before_forward(model, (inputs,), {})
        for hook in model._forward_hooks.values():
            hook(model, (inputs,), output)
        after_step(optimizer, (), {})
    return (time.perf_counter() - start) / count
results = {}
for name, share in (("all", 1e9), ("few", 1e-9)):
    watch(share)
    call(20_000)
    gc.collect()
    before = resident_kib()
    us = [1e6 * call(500) for _ in range(order["steps"] // 500)]
    gc.collect()
    results[name] = {"us": us, "growth_kib": resident_kib() - before}
print(json.dumps(results))
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
results = {}
for name, share in (("all", 1e9), ("few", 1e-9)):
    watch(share)
    pairs = results[name] = []
    while len(pairs) < order["pairs"]:
        pair = {}
        for on in random.sample((True, False), 2):
            put(on)
            large.mul_(1.0)
            is_other = on and bool(model._forward_pre_hooks) != (name == "all")
            start = time.perf_counter()
            step()
            pair[on] = time.perf_counter() - start
        if not is_other:
            pairs.append(1e6 * (pair[True] - pair[False]))
    put(True)
print(json.dumps(results))
"""

# An entry into no_grad in each step, and one in every other step, which puts hooks on the model to see what comes.
ENTRIES = """
enters = torch.no_grad.__enter__, torch.no_grad.__enter__.__wrapped__
def clip():
    with torch.no_grad():
        pass
def timed(every):
    start = time.perf_counter()
    for number in range(200):
        if number % every == 0:
            clip()
        step()
    return 1e6 * (time.perf_counter() - start) / 200
results = {}
watch(1e-9)
for every in (1, 2):
    results[every] = []
    for _ in range(order["pairs"]):
        pair = {}
        for on in random.sample((True, False), 2):
            torch.no_grad.__enter__ = enters[not on]
            pair[on] = timed(every)
        results[every].append(pair[True] - pair[False])
print(json.dumps(results))
"""

PAIRS = """
matrix = torch.randn(192, 192)
def work(rounds):
    for _ in range(rounds):
        torch.mm(matrix, matrix)
    between = time.perf_counter()
    step()
    return between
def timed(rounds):
    host, wall = time.process_time(), time.perf_counter()
    between = work(rounds)
    end = time.perf_counter()
    return end - wall, time.process_time() - host, end - between
def usual(rounds):
    return sorted(timed(rounds)[0] for _ in range(200))[100]
least = usual(0)
rounds = max(round((order["step_s"] - least) / (usual(50) - least) * 50), 1)
for _ in range(80):  # after 64 at most the recorder notices how long a step takes now
    work(rounds)
seen = []
for _ in range(order["pairs"] // 8):
    work(rounds)
    seen.append(bool(model._forward_pre_hooks))
pairs = []
for number in range(order["pairs"]):
    pair = {}
    kind = "control" if number % 5 == 0 else ""
    for on in random.sample((True, False), 2):
        put(on and not kind)
        if on and not kind:
            is_watched = bool(model._forward_pre_hooks)
        pair[on] = timed(rounds)
    pairs.append((kind or ("watched" if is_watched else "unwatched"), *pair[True], *pair[False]))
put(True)
print(json.dumps({"share": sum(seen) / len(seen), "pairs": pairs}))
"""


def recorded(source: str, order: Mapping[str, object], folder: Path) -> list[str]:
    """Return the lines that a recorded script prints."""
    script = folder / "train.py"
    script.write_text(source)
    command = [sys.executable, "-m", "torchx_cubicml.recorder", "--", str(script), json.dumps(order)]
    return run(command, folder).splitlines()


def run(command: Sequence[str], folder: Path) -> str:
    """Return what a command prints; its store is within ``folder``."""
    # What pip installs is compiled to bytecode; a checkout is at its first run, unless that is switched off.
    environment = child_environment({"TORCHX_CUBICML_STORE": str(folder / "store"), "PYTHONDONTWRITEBYTECODE": ""})
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


def weighted(values: Mapping[str, Sequence[float]], share: float) -> tuple[float, float, float]:
    """Return the mean of two medians and the ends of its 95 % interval.

    Args:
        values: of steps that are watched, and of those that are not.
        share: of the steps, that are watched.
    """
    parts = [
        (weight, interval(values[kind]))
        for kind, weight in (("watched", share), ("unwatched", 1 - share))
        if weight and values.get(kind)
    ]
    total = sum(weight for weight, _ in parts)
    middle = sum(weight * part[0] for weight, part in parts) / total
    below, above = (
        math.sqrt(sum((weight * (part[end] - part[0])) ** 2 for weight, part in parts)) / total for end in (1, 2)
    )
    return middle, middle - below, middle + above


def measure_hooks(folder: Path, steps: int) -> tuple[str, bool]:
    """Return what the hooks cost and whether the bounds hold."""
    (line,) = recorded(TRAINING + HOOKS, {"steps": steps}, folder)
    hot = json.loads(line)
    (line,) = recorded(TRAINING + TOGGLED + WHOLE, {"pairs": 2000}, folder)
    cold = json.loads(line)
    rows, holds = [], True
    for kind, words in (("all", "forward watched"), ("few", "not watched")):
        middle, low, high = interval(hot[kind]["us"])
        grown = hot[kind]["growth_kib"] / 1024
        whole = interval(cold[kind])
        rows += [
            f"  hooks of one step, {words:15s} {middle:7.2f} us  ({low:.2f} to {high:.2f}; fastest block of 500 "
            f"{min(hot[kind]['us']):.2f}), bound {HOOK_BOUND_US:g} us",
            f"    with what torch adds, cold       {whole[0]:7.2f} us  ({whole[1]:.2f} to {whole[2]:.2f}), "
            "2000 pairs of steps",
            f"    growth over {steps:,} steps       {grown:7.2f} MiB, bound {GROWTH_BOUND_MIB:g} MiB",
        ]
        holds = holds and high < HOOK_BOUND_US and grown < GROWTH_BOUND_MIB
    return "\n".join(rows), holds


def measure_entries(folder: Path) -> tuple[str, bool]:
    """Return what entries into ``no_grad`` cost more in a step and whether the bound holds."""
    words = {"1": "each", "2": "every other"}
    (line,) = recorded(TRAINING + ENTRIES, {"pairs": 200}, folder)
    found = {every: interval(values) for every, values in json.loads(line).items()}
    rows = [
        f"  more where {words[every]:10s} step enters no_grad {middle:6.2f} us a step  ({low:.2f} to {high:.2f}), "
        "200 pairs of 200 steps"
        for every, (middle, low, high) in found.items()
    ]
    return "\n".join(rows), all(high < HOOK_BOUND_US for _, _, high in found.values())


def measure_pairs(folder: Path, step_s: float, seconds: float) -> tuple[str, bool]:
    """Return by how much steps of ``step_s`` grow and whether the bound holds for the whole interval."""
    order = {"step_s": step_s, "pairs": max(round(seconds / step_s / 2 / PROCESSES), 10)}
    answers = [json.loads(*recorded(TRAINING + TOGGLED + PAIRS, order, folder)) for _ in range(PROCESSES)]
    pairs = [pair for each in answers for pair in each["pairs"]]
    share = sum(each["share"] for each in answers) / PROCESSES
    without = 1000 * median(pair[4] for pair in pairs)
    rows: list[str] = []
    highest = 0.0
    for name, column in (("wall time", 1), ("CPU time ", 2), ("of its part with hooks", 3)):
        growth: dict[str, list[float]] = defaultdict(list)
        for pair in pairs:
            growth[pair[0]].append(100 * (pair[column] - pair[column + 3]) / pair[4])
        values = weighted(growth, share)
        highest = values[2] if column == 1 else highest
        rows.append(
            f"  steps of {without:5.1f} ms, {name} {_spelled(values)}, {len(pairs)} pairs, "
            f"{100 * share:.0f} % watched, bound {WALL_BOUND_PERCENT:g} %"
        )
        rows += [
            f"    {kind + ' steps':27s} {_spelled(interval(growth[kind]))}, {len(growth[kind])} pairs"
            for kind in ("watched", "unwatched", "control")
            if growth[kind]
        ]
    return "\n".join(rows), highest < WALL_BOUND_PERCENT


def _spelled(values: tuple[float, float, float]) -> str:
    return f"{values[0]:+8.3f} %   ({values[1]:+.3f} to {values[2]:+.3f})"


def conclude(results: Sequence[tuple[str, bool]], *, load_before: float, output: Path | None) -> int:
    """Print the results, write them where asked, and return the exit status: 1 where a bound is broken."""
    text = "\n".join(
        [
            "What being recorded costs; medians with their 95 % intervals, from order statistics",
            "",
            *(text for text, _ in results),
            "",
            f"python {platform.python_version()}, torch {version('torch')}, {platform.system()} {platform.machine()}, "
            f"{os.cpu_count()} cores, load average {load_before:.1f} before and {os.getloadavg()[0]:.1f} after",
        ]
    )
    print(text)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(f"{text}\n")
    return 0 if all(held for _, held in results) else 1


def main() -> int:
    """Measure, print, and write the result where asked; exit status 1 where a bound is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seconds", type=float, default=55.0, help="of steps of 50 ms, and half of those of 5 ms (default: 55)"
    )
    parser.add_argument("--steps", type=int, default=100_000, help="over which memory may grow (default: 100,000)")
    parser.add_argument("--output", type=Path, help="file to write the result to, besides printing it")
    arguments = parser.parse_args()
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        results = [
            measure_hooks(folder, arguments.steps),
            measure_entries(folder),
            measure_pairs(folder, 0.005, 2 * arguments.seconds),
            measure_pairs(folder, 0.05, arguments.seconds),
        ]
    return conclude(results, load_before=before, output=arguments.output)


if __name__ == "__main__":
    sys.exit(main())

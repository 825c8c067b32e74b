"""Measures how well promised gains hold, and what is claimed by chance, on made-up histories of noisy launches.

python benchmarks/promises.py [--histories 200] [--workers 2] [--output benchmarks/results/promises.txt]

A history has launches of the user's own config and of others, drawn at random from 24 configs of known throughput. Runs
differ by 1 to 10 per cent (each history has its own level). Each run also has an error of its own: below a per cent or
a few for most, tens of per cent for one in ten, as in runs that drifted. ``told`` histories record that error,
``untold`` ones do not, as imported numbers. ``elsewhere`` histories add launches of two other programs on the same
machines, each repeated three times. ``transformer`` histories have 40 configs that the formulas of step time cover;
their truth is another formula. ``crowded`` histories are ``told`` ones on a machine that other jobs crowd in spells of
several launches, by up to a factor of three (``lib/crowded_machine.py``).

Held: share of 80 % intervals that hold the true gain over the user's own config, for all launched configs and for those
that a launch is rewritten to; 0.80 is nominal. Width: median ratio of the ends of the interval. Rewritten: share of
histories in which an ordinary launch is changed. Of those, false: the config is slower in truth; gain: mean true gain;
promised: mean promised gain. Lost: mean share of the throughput of the best launched config that is missed.

The second table is of histories that alternate between the user's own config and another one of known gain, on machines
that are quiet, crowded always, crowded in spells, or drifting. Held: share of 80 % intervals that hold the gain, as a
tune states it and, in each fourth history, as a launch does. Width: median ratio of the ends. Sure: share of tunes that
claim a gain; rewritten: share of launches that are changed. In the lines of gain 1.00 each of these is false.
"""

from __future__ import annotations

import argparse
import math
import statistics
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from lib.crowded_machine import MACHINES, CrowdedMachine

from torchx_cubicml.advisor import Study
from torchx_cubicml.advisor.claims import claims_of
from torchx_cubicml.advisor.comparison import compared
from torchx_cubicml.records.crowding import with_crowding
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.space import Parameter, SearchSpace
from torchx_cubicml.space.expression import parse_expression

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torchx_cubicml.records.values import Config, Workload

SPACE = SearchSpace(
    parameters=(
        Parameter(name="size", choices=(1, 2, 4, 8)),
        Parameter(name="kind", choices=("a", "b", "c")),
        Parameter(name="fused", choices=(False, True)),
    )
)
CONFIGS: tuple[Config, ...] = tuple(
    {"size": size, "kind": kind, "fused": fused}
    for size, kind, fused in product((1, 2, 4, 8), ("a", "b", "c"), (False, True))
)
TRANSFORMER = SearchSpace(
    parameters=(
        Parameter(name="micro_batch_size", choices=(1, 2, 4, 8, 16)),
        Parameter(name="activation_checkpointing", choices=("none", "full")),
        Parameter(name="data_workers", choices=(0, 1, 2, 4)),
        Parameter(
            name="gradient_accumulation_steps", derive=parse_expression("16 // micro_batch_size", where="derive")
        ),
    )
)
TRANSFORMER_CONFIGS: tuple[Config, ...] = tuple(
    {
        "micro_batch_size": size,
        "activation_checkpointing": checkpointing,
        "data_workers": workers,
        "gradient_accumulation_steps": 16 // size,
    }
    for size, checkpointing, workers in product((2, 1, 4, 8, 16), ("none", "full"), (0, 1, 2, 4))
)
KINDS = ("told", "untold", "told, elsewhere", "transformer", "crowded")
LAUNCHES = (2, 3, 5, 10, 20)
BETWEEN = (0.01, 0.1)  # log standard deviations from run to run, between which a history's is drawn
WITHIN, WILD, WILD_SHARE = (0.003, 0.03), (0.1, 0.5), 0.1  # of what runs tell of themselves
EFFECT = 0.15  # log standard deviation of what one choice does
GAINS, ALTERNATIONS = (1.0, 1.1, 2.0), (2, 3, 5, 12)
_EACH = 4  # history of which a launch is asked, too
ELSEWHERE = 3  # repeats of each of two configs of two other programs


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Promises made of one history, and whether they hold.

    Args:
        held: whether the interval of each launched config but the own holds its true gain.
        widths: logarithms of the ratio of its ends.
        rewritten: true and promised gain of what a launch is rewritten to, and whether its interval holds the former;
            ``None`` where the launch stays as typed.
        lost: share of the best launched config that is given away.
    """

    held: tuple[bool, ...]
    widths: tuple[float, ...]
    rewritten: tuple[float, float, bool] | None
    lost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """A workload, its configs, of which the first is the user's own, and the true throughput of each."""

    space: SearchSpace
    workload: Workload
    configs: Sequence[Config]
    true: Sequence[float]


def plain_ground(rng: np.random.Generator) -> Ground:
    """Return a workload of which nothing is known but its name."""
    effects = [rng.normal(0.0, EFFECT, 24).reshape(4, 3, 2) * 0.5]
    effects += [rng.normal(0.0, EFFECT, shape) for shape in ((4, 1, 1), (1, 3, 1), (1, 1, 2))]
    true = 1000.0 * np.exp(np.sum(np.broadcast_arrays(*effects), axis=0)).ravel()
    return Ground(space=SPACE, workload={"program": "a.py", "world_size": 8}, configs=CONFIGS, true=true.tolist())


def transformer_ground(rng: np.random.Generator) -> Ground:
    """Return a workload that names what the formulas need; each config is a few per cent off a formula of its own."""
    facts = {"n_layers": int(rng.choice([4, 12, 24])), "d_model": int(rng.choice([128, 768, 2048])), "seq_len": 512}
    per_sample, fixed, loader = 1.0, 10.0 ** rng.uniform(-1.0, 1.0), 10.0 ** rng.uniform(-1.5, 0.5)
    again = rng.uniform(1.1, 1.35)
    true = []
    for config in TRANSFORMER_CONFIGS:
        size, workers = config["micro_batch_size"], config["data_workers"]
        recompute = again if config["activation_checkpointing"] == "full" else 1.0
        busy = 16 / size * (fixed + size * per_sample) * recompute
        seconds = busy + 16 * loader if not workers else max(busy, 16 * loader / workers)
        true.append(1e4 / seconds * math.exp(rng.normal(0.0, 0.03)))
    workload = {"program": "a.py", "world_size": 8, **facts}
    return Ground(space=TRANSFORMER, workload=workload, configs=TRANSFORMER_CONFIGS, true=true)


def launched(
    config: Config,
    true: float,
    *,
    rng: np.random.Generator,
    between: float,
    has_error: bool,
    workload: Workload,
) -> Trial:
    """Return one launch of a config whose true throughput is known."""
    low, high = WILD if rng.random() < WILD_SHARE else WITHIN
    within = math.exp(rng.uniform(math.log(low), math.log(high)))
    speed = true * math.exp(rng.normal(0.0, between) + rng.normal(0.0, within))
    measurement = Measurement(
        tokens_per_second=speed, statistic="mean" if has_error else "", relative_error=within if has_error else None
    )
    name = f"trial-{int(rng.integers(2**53))}"
    return Trial(trial_id=name, workload=workload, config=config, state=State.COMPLETED, measurement=measurement)


def history(seed: int, kind: str, n_launches: int) -> tuple[list[Trial], Ground]:
    """Return launches, the first of them of the user's own config, and the truth."""
    rng = np.random.default_rng([seed, n_launches])
    ground = transformer_ground(rng) if kind == "transformer" else plain_ground(rng)
    between = math.exp(rng.uniform(*map(math.log, BETWEEN)))
    make = partial(launched, rng=rng, between=between, has_error=kind != "untold")
    others = 1 + rng.permutation(len(ground.configs) - 1)[: max(1, n_launches // 2)]
    tried = [0, *others.tolist()]
    tried += rng.choice(tried, n_launches - len(tried)).tolist() if n_launches > len(tried) else []
    trials = [make(ground.configs[place], ground.true[place], workload=ground.workload) for place in tried]
    if kind.endswith("elsewhere"):
        for program, place in product(("b.py", "c.py"), (0, 1)):
            workload = {**ground.workload, "program": program}
            trials += [make(CONFIGS[place], 300.0, workload=workload) for _ in range(ELSEWHERE)]
    return (crowded(trials, rng) if kind == "crowded" else trials), ground


def crowded(trials: Sequence[Trial], rng: np.random.Generator) -> list[Trial]:
    """Return launches as a store tells them of a crowded machine."""
    machine = CrowdedMachine(rng=rng)
    return with_crowding([machine.slowed(trial) for trial in trials])


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternated:
    """Statements on a config of known gain after it was launched in turn with the user's own.

    Args:
        held: whether the interval of a tune holds the gain.
        width: logarithm of the ratio of the ends.
        is_sure: whether the tune claims a gain.
        launch: whether the interval of a launch holds the gain, and whether the launch runs the config; ``None`` where
            no launch was asked.
    """

    held: bool
    width: float
    is_sure: bool
    launch: tuple[bool, bool] | None


def alternated(seed: int, *, machine: str, gain: float, times: int) -> Alternated:
    """Return the statements after so many launches of each config, of which the second has a known gain."""
    rng = np.random.default_rng([seed, times, round(100 * gain), sorted(MACHINES).index(machine)])
    busy, drift = MACHINES[machine]
    host = CrowdedMachine(rng=rng, busy=busy, drift=drift)
    between = math.exp(rng.uniform(*map(math.log, BETWEEN)))
    workload: Workload = {"program": "a.py", "world_size": 8}
    make = partial(launched, rng=rng, between=between, has_error=True, workload=workload)
    own, other = CONFIGS[0], CONFIGS[int(rng.integers(1, len(CONFIGS)))]
    sides = ((own, 1000.0), (other, 1000.0 * gain)) * times
    trials = with_crowding([host.slowed(make(config, true)) for config, true in sides])
    found = compared(own, other, trials, objective="tokens_per_second")
    if found is None:
        raise ValueError(f"history {seed} was not compared")
    return Alternated(
        held=found.gain_low <= gain <= found.gain_high,
        width=math.log(found.gain_high / found.gain_low),
        is_sure=found.claims_gain,
        launch=None if seed % _EACH else _launch(trials, own, other, gain=gain, seed=seed),
    )


def _launch(trials: Sequence[Trial], own: Config, other: Config, *, gain: float, seed: int) -> tuple[bool, bool]:
    study = Study.of(SPACE, workload=trials[0].workload, current=own, trials=trials, seed=seed)
    (claim,), best = claims_of(study.posterior, [other], own), study.best_known(confirmed=True)
    if claim is None or best is None:
        raise ValueError(f"history {seed} was not compared")
    low, high = claim.interval
    return low <= gain <= high, best.config != own


def alternated_lines(n_histories: int, workers: int) -> Iterator[str]:
    """Yield the table of alternated launches, line by line."""
    heads = f"{'tune':>6s} {'launch':>6s} {'width':>6s} {'sure':>6s} {'rewritten':>9s}"
    yield f"{'machine':18s} {'of each':>7s} {'gain':>5s} {heads}"
    every: list[Alternated] = []
    with ProcessPoolExecutor(workers) as executor:
        for machine, times, gain in product(MACHINES, ALTERNATIONS, GAINS):
            asked = partial(alternated, machine=machine, gain=gain, times=times)
            found = list(executor.map(asked, range(n_histories), chunksize=10))
            every += found
            yield f"{machine:18s} {times:7d} {gain:5.2f} {_cells(found)}"
    yield f"{'all':32s} {_cells(every)}"


def _cells(found: Sequence[Alternated]) -> str:
    held, sure = (statistics.fmean(getattr(each, name) for each in found) for name in ("held", "is_sure"))
    width = math.exp(statistics.median(each.width for each in found))
    asked = [each.launch for each in found if each.launch is not None]
    launch, rewritten = (statistics.fmean(each) for each in zip(*asked, strict=True))
    return f"{held:6.3f} {launch:6.3f} {width:6.2f} {sure:6.3f} {rewritten:9.3f}"


def outcome_of(seed: int, *, kind: str, n_launches: int) -> Outcome:
    """Return the promises made of one history."""
    trials, ground = history(seed, kind, n_launches)
    current, true = ground.configs[0], dict(zip(map(repr, ground.configs), ground.true, strict=True))
    study = Study.of(ground.space, workload=ground.workload, current=current, trials=trials, seed=seed)

    def ratio_of(config: Config) -> float:
        same = {name: config[name] for name in current}
        return true[repr(same)] / ground.true[0]

    measured = [config for config in study.posterior.measured() if config != current]
    gains = claims_of(study.posterior, measured, current)
    ratios = [ratio_of(config) for config in measured]
    ends = [each.interval for each in gains if each is not None]
    best = study.best_known(confirmed=True)
    rewritten = None
    if best is not None and best.config != current:
        if best.gain is None or best.gain_low is None or best.gain_high is None:
            raise ValueError(f"history {seed} has no gain of {best.config}")
        ratio = ratio_of(best.config)
        rewritten = ratio, best.gain, best.gain_low <= ratio <= best.gain_high
    chosen = best.config if best is not None else current
    fastest = max(map(ratio_of, (current, *measured)))
    return Outcome(
        held=tuple(low <= ratio <= high for (low, high), ratio in zip(ends, ratios, strict=True)),
        widths=tuple(math.log(high / low) for low, high in ends),
        rewritten=rewritten,
        lost=max(0.0, 1.0 - ratio_of(chosen) / fastest),
    )


def line(kind: str, n_launches: int, outcomes: Sequence[Outcome]) -> str:
    """Return one line of the table."""
    held = [each for outcome in outcomes for each in outcome.held]
    width = math.exp(statistics.median(each for outcome in outcomes for each in outcome.widths))
    changed = [outcome.rewritten for outcome in outcomes if outcome.rewritten is not None]
    lost = statistics.fmean(outcome.lost for outcome in outcomes)
    cells = [f"{kind:16s} {n_launches:8d} {statistics.fmean(held):7.2f} {width:7.2f} {lost:7.3f}"]
    cells.append(f"{len(changed) / len(outcomes):9.2f}")
    if changed:
        true, promised, inside = zip(*changed, strict=True)
        wrong = statistics.fmean(gain < 1.0 for gain in true)
        cells.append(f"{statistics.fmean(inside):7.2f} {wrong:6.3f} {statistics.fmean(true):6.2f}")
        cells.append(f"{statistics.fmean(promised):8.2f}")
    return " ".join(cells)


def lines(kinds: Sequence[str], n_histories: int, workers: int) -> Iterator[str]:
    """Yield the table, line by line."""
    heading = f"{'history':16s} {'launches':>8s} {'held':>7s} {'width':>7s} {'lost':>7s} {'rewritten':>9s}"
    yield f"{heading} {'held':>7s} {'false':>6s} {'gain':>6s} {'promised':>8s}"
    with ProcessPoolExecutor(workers) as executor:
        for kind, n_launches in product(kinds, LAUNCHES):
            asked = partial(outcome_of, kind=kind, n_launches=n_launches)
            yield line(kind, n_launches, list(executor.map(asked, range(n_histories), chunksize=10)))


def main() -> None:
    """Print the table, and write it besides where a file is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=KINDS, action="append", help="only this one; can be repeated")
    parser.add_argument("--histories", type=int, default=200, help="of each kind and length")
    parser.add_argument("--alternated", type=int, default=1000, help="histories of each line of the second table")
    parser.add_argument("--workers", type=int, default=1, help="processes at once")
    parser.add_argument("--output", type=Path, default=None, help="file to write besides")
    args = parser.parse_args()
    printed = []
    for each in chain(
        lines(args.kind or KINDS, args.histories, args.workers), [""], alternated_lines(args.alternated, args.workers)
    ):
        print(each, flush=True)
        printed.append(each)
    if args.output is not None:
        args.output.write_text("\n".join(printed) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

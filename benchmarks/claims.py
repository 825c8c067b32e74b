"""Measures how often an ordinary launch is promised a gain that is not there, and how well promised intervals hold.

python benchmarks/claims.py [--histories 1000] [--workers 2] [--output benchmarks/results/claims.txt]

A history is a workload of one of five kinds: simulated plain trainings (``llm``, ``vision``), a simulated training with
a strategy per layer (``layers``), and two public tables (configs that failed there are never launched).
The user's own config is the best of all (``best``), within one per cent of it (``near``), or one that two in three
configs are slower than (``usual``). Launches differ by 2, 5 or 10 per cent (log-normal), and one in twenty, or one in
ten, or none, is slowed down to 50 to 95 per cent by its node.

A history has 50 launches. The own config is among the first ten. All others but ordinary launches run configs that
somebody tries: half drawn at random, half one step away from the fastest so far. In half of the histories (``once``)
there is no other ordinary launch, so that the own config is measured once. In the others (``again``) one launch in four
is an ordinary one of the own config: it runs what it is rewritten to, or stays as typed, by the rules of a space file
that sets none (``baseline_every``). A history is asked what an ordinary launch would run: after 10, 25 and 50 launches,
and besides at each ordinary launch after the tenth.

A claim is made where that is another config than the user's own; it is false where the true gain is not above 0.
False: share of histories, and of claims, with the upper end of the 95 % interval (of histories: Wilson's; of claims:
errors clustered by history). Held: share of claims whose 80 % interval holds the true gain, with its 95 % interval,
clustered likewise. Gain and promised: mean logarithms of the claims' true and promised gains. Of all: mean logarithm of
the true gain of what runs, 0 where nothing is claimed. The second table repeats the same designs and seeds without
caution; `again` histories then differ. There the posterior of the gain alone decides, at 95 per cent, and the own
config is never run for its own sake.
"""

from __future__ import annotations

import argparse
import math
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from lib.plain_spaces import PlainModel
from lib.simulator import Simulator
from lib.tables import PLAIN_TABLES, plain_rows

from torchx_cubicml.advisor import best_known, study
from torchx_cubicml.predictors.measurement_error import Gain
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.rewrite.rules import measures_baseline
from torchx_cubicml.space import Parameter, SearchSpace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torchx_cubicml.advisor.posterior import Posterior
    from torchx_cubicml.records.suggestion import Suggestion
    from torchx_cubicml.records.values import Config

MARKS = (10, 25, 50)
OWN = ("best", "near", "usual")
NOISE, SLOWED = (0.02, 0.05, 0.10), (0.0, 0.05, 0.10)
BASELINE = ("once", "again")
ORDINARY = 0.25  # share of ordinary launches, where there are any
KINDS = ("llm", "vision", "layers", *PLAIN_TABLES[:2])
LEVELS = {"own": OWN, "noise": NOISE, "slowed": SLOWED, "kind": KINDS, "baseline": BASELINE}
NEAR, USUAL = 0.99, 2 / 3
WITHIN = 0.004  # error of one run, as it tells of itself
DRAWN = 400  # legal configs drawn at random, from which a history starts


class Ground(Protocol):
    """Configs of a workload, and the true throughput of each."""

    space: SearchSpace
    workload: Mapping[str, object]

    def true(self, config: Config) -> float:
        """Return the throughput without noise; 0.0 where the config cannot run."""

    def sample(self, bound: SearchSpace, count: int, rng: np.random.Generator) -> list[Config]:
        """Return configs that can run, drawn at random; ``bound`` is the space, bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """A simulated training."""

    model: PlainModel | Simulator

    @property
    def space(self) -> SearchSpace:
        """The search space, not bound."""
        return self.model.space

    @property
    def workload(self) -> Mapping[str, object]:
        """Its facts."""
        return self.model.workload

    def true(self, config: Config) -> float:
        """Return the throughput without noise; 0.0 where memory runs out."""
        return self.model.throughput(config)

    def sample(self, bound: SearchSpace, count: int, rng: np.random.Generator) -> list[Config]:
        """Return configs that can run, drawn uniformly."""
        found: list[Config] = []
        while len(found) < count:
            found += [each for each in bound.sample(count, rng=rng) if self.true(each) > 0.0]
        return found[:count]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A public table."""

    space: SearchSpace
    workload: Mapping[str, object]
    speeds: Mapping[tuple[object, ...], float]

    def true(self, config: Config) -> float:
        """Return the throughput of a row; 0.0 where it failed, or is not in the table."""
        return self.speeds.get(tuple(config.values()), 0.0)

    def sample(self, bound: SearchSpace, count: int, rng: np.random.Generator) -> list[Config]:
        """Return rows of the table, drawn uniformly."""
        rows, names = [*self.speeds], [each.name for each in bound.parameters]
        drawn = rng.integers(len(rows), size=count).tolist()
        return [dict(zip(names, rows[index], strict=True)) for index in drawn]


def ground_of(kind: str, seed: int) -> Ground:
    """Return the workload of a history."""
    if kind == "layers":
        return Simulated(model=Simulator.draw(1000 + seed, n_layers=16))
    if kind in PLAIN_TABLES:
        rows = plain_rows(kind)
        choices = {each: sorted({config[each] for config, _ in rows}) for each in rows[0][0]}
        space = SearchSpace(
            parameters=tuple(Parameter(name=each, choices=tuple(of)) for each, of in choices.items()),
            objective="samples_per_second",
        )
        return Replayed(
            space=space,
            workload={"program": kind, "world_size": 1},
            speeds={tuple(config.values()): speed for config, speed in rows if speed is not None},
        )
    return Simulated(model=PlainModel(family=kind, seed=1000 + seed))


def neighbours(space: SearchSpace, config: Config, rng: np.random.Generator) -> list[Config]:
    """Return the legal configs that differ from ``config`` in one choice, in random order."""
    home = space.encode(config)
    vectors = [
        (*home[:place], choice, *home[place + 1 :])
        for place, dimension in enumerate(space.dimensions)
        for choice in range(len(dimension.choices))
        if choice != home[place]
    ]
    found = (space.decode(vectors[index]) for index in rng.permutation(len(vectors)))
    return [each for each in found if each is not None]


def climbed(ground: Ground, space: SearchSpace, start: Config, rng: np.random.Generator) -> Config:
    """Return a config from which no single choice leads to a faster one."""
    best = start
    while True:
        faster = max(neighbours(space, best, rng), key=ground.true)
        if ground.true(faster) <= ground.true(best):
            return best
        best = faster


def own_config(ground: Ground, space: SearchSpace, own: str, rng: np.random.Generator) -> Config:
    """Return the user's own config: the best of all, one within a per cent of it, or a usual one."""
    drawn = sorted(ground.sample(space, DRAWN, rng), key=ground.true)
    if own == "usual":
        return drawn[int(USUAL * len(drawn))]
    best = max((climbed(ground, space, each, rng) for each in drawn[-3:]), key=ground.true)
    if own == "best":
        return best
    near = [
        each
        for each in neighbours(space, best, rng)
        if NEAR * ground.true(best) <= ground.true(each) < ground.true(best)
    ]
    return near[0] if near else best


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Config that an ordinary launch of a history would run, and its gain.

    Args:
        after: number of launches before it.
        gain: logarithm of the true gain over the own config; 0.0 where the launch stays as typed.
        promised: logarithm of the promised gain; ``None`` where nothing is claimed.
        held: whether the 80 % interval holds the true gain.
    """

    after: int
    gain: float = 0.0
    promised: float | None = None
    held: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """Design of a history; the fields are those of the table's lines."""

    own: str
    noise: float
    slowed: float
    kind: str
    baseline: str


def answers(seed: int, design: Design, *, is_cautious: bool) -> tuple[Answer, ...]:
    """Return the answers of one history."""
    places = OWN.index(design.own), KINDS.index(design.kind), BASELINE.index(design.baseline)
    rng = np.random.default_rng([seed, *places, int(1000 * design.noise), int(1000 * design.slowed)])
    ground = ground_of(design.kind, seed)
    space = ground.space.bind(workload=ground.workload, current={})
    current = own_config(ground, space, design.own, rng)
    first = int(rng.integers(MARKS[0]))
    trials: list[Trial] = []
    found = []
    while True:
        count = len(trials)
        is_ordinary = design.baseline == "again" and first < count and rng.random() < ORDINARY
        chosen = None
        if is_ordinary or count in MARKS:
            chosen = claimed(ground, current, trials, seed, is_cautious=is_cautious)
            if count >= MARKS[0]:
                found.append(_answer(ground, current, chosen, after=count))
        if count >= MARKS[-1]:
            return tuple(found)
        if is_ordinary:
            config = current if chosen is None else {name: chosen.config[name] for name in current}
        else:
            config = current if count == first else _next(ground, space, trials, rng)
        trials.append(_launched(ground, config, rng, design))


def claimed(
    ground: Ground, current: Config, trials: Sequence[Trial], seed: int, *, is_cautious: bool
) -> Suggestion | None:
    """Return what the next ordinary launch is rewritten to; ``None`` where it stays as typed."""
    if not is_cautious:
        study.claims_of, study.SURE = _plain_claims, 0.95
    best = best_known(ground.space, workload=ground.workload, current=current, trials=trials, seed=seed)
    if best is None or all(best.config[name] == value for name, value in current.items()):
        return None
    if is_cautious and measures_baseline(best, ground.space.rewrite, n_launched=len(trials)):
        return None
    return best


def _plain_claims(posterior: Posterior, configs: Sequence[Config], current: Config) -> list[Gain | None]:
    gains = posterior.gains(configs, current)
    pairs = zip(gains.logarithm.tolist(), gains.spread.tolist(), strict=True)
    claims = [Gain(np.ones(1), np.array([mean]), np.array([max(spread, 1e-9)])) for mean, spread in pairs]
    return [None if math.isnan(claim.means[0]) else claim for claim in claims]


def _next(ground: Ground, space: SearchSpace, trials: Sequence[Trial], rng: np.random.Generator) -> Config:
    measured = [trial for trial in trials if trial.measurement is not None]
    if measured and rng.random() < 0.5:
        fastest = max(measured, key=lambda trial: trial.measurement.samples_per_second or 0.0)
        around = (each for each in neighbours(space, fastest.config, rng) if ground.true(each) > 0.0)
        return next(around, fastest.config)
    return ground.sample(space, 1, rng)[0]


def _launched(ground: Ground, config: Config, rng: np.random.Generator, design: Design) -> Trial:
    speed = ground.true(config) * math.exp(rng.normal(0.0, design.noise) + rng.normal(0.0, WITHIN))
    if rng.random() < design.slowed:
        speed *= rng.uniform(0.5, 0.95)
    measurement = Measurement(samples_per_second=max(speed, 1e-3), statistic="mean", relative_error=WITHIN)
    return Trial(
        trial_id=f"t{rng.integers(2**62)}",
        workload=dict(ground.workload),
        config=config,
        state=State.COMPLETED,
        measurement=measurement,
    )


def _answer(ground: Ground, current: Config, chosen: Suggestion | None, *, after: int) -> Answer:
    if chosen is None:
        return Answer(after=after)
    true = ground.true({name: chosen.config[name] for name in current})
    gain = math.log(true / ground.true(current)) if true > 0.0 else -math.inf
    if chosen.gain is None or chosen.gain_low is None or chosen.gain_high is None:
        raise ValueError(f"no gain of {chosen.config}")
    held = math.log(chosen.gain_low) <= gain <= math.log(chosen.gain_high)
    return Answer(after=after, gain=max(gain, -1.0), promised=math.log(chosen.gain), held=held)


def wilson(count: int, total: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson, 1927)."""
    z, share = 1.96, count / total
    middle = (share + z**2 / (2 * total)) / (1 + z**2 / total)
    half = z / (1 + z**2 / total) * math.sqrt(share * (1 - share) / total + z**2 / (4 * total**2))
    return middle - half, middle + half


def clustered(pairs: Iterable[tuple[int, int]]) -> tuple[float, float]:
    """Return the share of successes and the half width of its 95 % interval, from (successes, tries) per cluster."""
    array = np.array([pair for pair in pairs if pair[1]], dtype=np.float64).reshape(-1, 2)
    if not len(array):
        return math.nan, math.nan
    share = array[:, 0].sum() / array[:, 1].sum()
    scores = array[:, 0] - share * array[:, 1]
    return float(share), float(1.96 * math.sqrt((scores**2).sum()) / array[:, 1].sum())


def line(name: str, histories: Sequence[Sequence[Answer]]) -> str:
    """Return one line of the table, of the answers of each history."""
    claims = [[each for each in of if each.promised is not None] for of in histories]
    false = [[each for each in of if each.gain <= 0.0] for of in claims]
    share, half = clustered((len(wrong), len(of)) for wrong, of in zip(false, claims, strict=True))
    n_false = sum(map(bool, false))
    held, held_half = clustered((sum(each.held for each in of), len(of)) for of in claims)
    every = [each for of in claims for each in of]
    true = np.mean([each.gain for each in every]) if every else math.nan
    promised = np.mean([each.promised for each in every]) if every else math.nan
    gain = np.mean([each.gain for of in histories for each in of] or [math.nan])
    of_history, of_claim = wilson(n_false, len(histories))[1], share + half
    return (
        f"{name:22s} {len(histories):9d} {len(every):6d} {n_false / len(histories):6.3f} to "
        f"{of_history:5.3f} {share:7.3f} to {of_claim:5.3f} {held:6.3f} +- {held_half:5.3f} "
        f"{true:6.3f} {promised:8.3f} {gain:6.3f}"
    )


def table(found: Sequence[Sequence[Answer]], designs: Sequence[Design]) -> list[str]:
    """Return the lines of a table, of the answers of histories and their designs."""
    lines = [
        f"{'histories':22s} {'histories':>9s} {'claims':>6s} {'false/history':>15s} {'false/claim':>16s} "
        f"{'held':>15s} {'gain':>6s} {'promised':>8s} {'of all':>6s}",
        line("all", found),
    ]
    for each in fields(Design):
        for value in LEVELS[each.name]:
            of = [one for one, design in zip(found, designs, strict=True) if getattr(design, each.name) == value]
            lines += [line(f"{each.name} {value}", of)] if of else []
    for low, high in zip(MARKS, (*MARKS[1:], math.inf), strict=True):
        lines.append(line(f"after {low}", [[one for one in of if low <= one.after < high] for of in found]))
    for low, high in zip(MARKS, (*MARKS[1:], math.inf), strict=True):
        usual = [of for of, design in zip(found, designs, strict=True) if design.own == "usual"]
        lines.append(line(f"usual, after {low}", [[one for one in of if low <= one.after < high] for of in usual]))
    return lines


def main() -> None:
    """Print the tables, and write them besides where a file is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=1080, help="of all designs together")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="processes at once")
    parser.add_argument("--cautious-only", action="store_true", help="leave the second table out")
    parser.add_argument("--output", type=Path, default=None, help="file to write besides")
    args = parser.parse_args()
    rng = np.random.default_rng(args.first_seed)
    designs = [Design(**dict(zip(LEVELS, values, strict=True))) for values in product(*LEVELS.values())]
    rounds = -(-args.histories // len(designs))
    drawn = [designs[index] for _ in range(rounds) for index in rng.permutation(len(designs))][: args.histories]
    printed: list[str] = []
    for is_cautious in (True,) if args.cautious_only else (True, False):
        with ProcessPoolExecutor(args.workers) as executor:
            jobs = [
                executor.submit(partial(answers, args.first_seed + seed, design, is_cautious=is_cautious))
                for seed, design in enumerate(drawn)
            ]
            found = [job.result() for job in jobs]
        printed += ["" if is_cautious else "\nWithout caution", *table(found, drawn)]
    text = "\n".join(printed).strip()
    print(text)
    if args.output is not None:
        args.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""The paper's recipe by the command line alone: real ``tune`` commands over a program whose throughput is simulated.

    python benchmarks/paper_commands.py --output FILE.txt --draw FILE.svg

Each model is one ``torchx cubicml tune`` of a hundred random launches and three rounds of 33, each launch a process
of ``lib/simulated_job.py``. What is printed is read from ``history rounds --json`` and ``history list --json``.
CubicML (arXiv 2409.04585), figure 2, shows what is looked for: random search saturates, the first round jumps, and
predictions rank the launches within a round and across rounds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from lib.simulator import FAMILIES, Simulator

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = Path(__file__).resolve().parent
COMPONENT = f"{HERE.parent}/tests/tune/components.py:quick"
_RECIPE = ("--predictor", "ranking_mlp", "--searcher", "reinforce", "--acquisition", "mean", "--rounds")
_CONFIRMATIONS = 6  # launches of a tune with ``--repeats 2`` that measure the winner, its rivals and the baseline again


def tune_words(simulator: Simulator, folder: str, *, random: int, per_round: int, rounds: int, model: int) -> list[str]:
    """Return the command of a tune by the paper's recipe.

    Args:
        simulator: of the model.
        folder: of the store.
        random: random launches before the first round.
        per_round: launches of a round.
        rounds: how many.
        model: seed of the model, and of the tune.
    """
    budget = random + per_round * rounds + _CONFIRMATIONS
    options = ["--space", "simulated_job.toml", "--store", f"{folder}/store", "--scratch", f"{folder}/scratch", "--yes"]
    options += ["--budget", f"{budget} launches", "--repeats", "2", "--seed", str(model), "--start", f"random:{random}"]
    options += [*_RECIPE, "--parallel", str(per_round)]
    own = {"family": simulator.family, "model": model, "n_layers": simulator.n_layers}
    own |= {"sharding": ",".join(simulator.current["sharding_strategy"])}
    own |= {"batch_size": simulator.current["micro_batch_size"], "reserved_share": simulator.current["reserved_share"]}
    flags = [word for name, value in own.items() for word in (f"--{name}", str(value))]
    return ["torchx", "cubicml", "tune", *options, "--", COMPONENT, "--script", "simulated_job.py", "--", *flags]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Result of one tune, as the command line prints it.

    Args:
        measured: throughput of each launch in the order of launch as a share of the optimum; 0.0 where it failed.
        table: of ``history rounds``.
    """

    measured: tuple[float, ...]
    table: dict[str, object]

    def best(self, launches: int) -> float:
        """Return the best measurement of the first ``launches``."""
        return max(self.measured[:launches])

    def figure(self, number: int, name: str) -> float | None:
        """Return one figure of a round, as in ``history rounds --json``."""
        return next(each[name] for each in self.table["rounds"] if each["number"] == number)


def run(simulator: Simulator, args: argparse.Namespace, *, model: int) -> Found:
    """Run a tune with a store of its own and return what ``history`` prints of it; draw its rounds on demand."""
    with tempfile.TemporaryDirectory() as folder:
        counts = {"random": args.random, "per_round": args.per_round, "rounds": args.rounds}
        words = tune_words(simulator, folder, model=model, **counts)
        done = subprocess.run(words, cwd=HERE / "lib", capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"a tune failed:\n{done.stderr[-3000:]}")
        listed = _printed("list", "--limit", "0", folder=folder)
        drawn = ("--out", str(args.draw.absolute())) if args.draw else ()
        (table,) = _printed("rounds", *drawn, folder=folder)
    optimum = simulator.optimum()
    rates = [(trial.get("measurement") or {}).get("samples_per_second") or 0.0 for trial in listed]
    return Found(measured=tuple(rate / optimum for rate in rates), table=table)


def _printed(*words: str, folder: str) -> list[dict[str, object]]:
    command = ["torchx", "cubicml", "history", *words, "--json", "--store", f"{folder}/store"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def table(tunes: dict[str, Found], *, counts: tuple[int, int, int]) -> str:
    """Return the orderings as a table.

    Args:
        tunes: model -> what its tune found.
        counts: random launches, launches of a round, rounds.
    """
    first, per_round, rounds = counts
    numbers = range(1, rounds + 1)
    marks = [first // 4, first // 2, first, *(first + per_round * number for number in numbers)]
    lines = [f"{'best measured so far':20s}" + "".join(f"{mark:8d}" for mark in marks)]
    lines += [f"{model:20s}" + "".join(f"{found.best(mark):8.3f}" for mark in marks) for model, found in tunes.items()]
    lines += ["", f"{'history rounds':20s}   first" + "".join(f" round {number}" for number in numbers) + "  across"]
    for model, found in tunes.items():
        medians = [_share(found, number) for number in (0, *numbers)]
        taus = [found.figure(number, "tau") for number in numbers]
        lines.append(f"{model + ', median':20s}" + "".join(f"{value:8.3f}" for value in medians))
        lines.append(f"{model + ', tau':20s}{'':8s}" + "".join(map(_tau, taus)) + _tau(found.table["tau"]))
    return "\n".join([*lines, "", *orderings(list(tunes.values()), counts=counts)])


def _share(found: Found, number: int) -> float:
    """Return the median of a round as a share of the optimum."""
    top = max(each["best"] for each in found.table["rounds"] if each["best"] is not None)
    return float(found.figure(number, "median") or 0.0) * max(found.measured) / top


def _tau(value: float | None) -> str:
    return f"{value:8.2f}" if value is not None else f"{'-':>8s}"


def orderings(tunes: Sequence[Found], *, counts: tuple[int, int, int]) -> list[str]:
    """Return what the tunes show of the paper's orderings, mean over them."""
    first, _, rounds = counts
    numbers = range(1, rounds + 1)
    half = first // 2
    gains = [
        ("random launches saturate: the second half of them adds", [f.best(first) - f.best(half) for f in tunes]),
        (f"as many launches in rounds, the first {half}, add", [f.best(first + half) - f.best(first) for f in tunes]),
        ("the first round jumps: its median over the random launches'", [_share(f, 1) - _share(f, 0) for f in tunes]),
        (
            "later rounds add less: median over the round's before",
            [_share(f, number) - _share(f, number - 1) for f in tunes for number in numbers[1:]],
        ),
        ("tau of predicted and measured within a round", [f.figure(n, "tau") for f in tunes for n in numbers]),
        ("the same over the launches of all rounds", [f.table["tau"] for f in tunes]),
    ]
    return [f"{text}: {_mean([value for value in values if value is not None])}" for text, values in gains]


def _mean(values: Sequence[float]) -> str:
    if not values:
        return "unknown"
    up = sum(value > 0 for value in values)
    return f"{fmean(values):+.3f}, above 0 in {up} of {len(values)}"


def main() -> None:
    """Run the tunes and print what they show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=1, help="simulated models of each family")
    parser.add_argument("--families", default=",".join(FAMILIES), help="kinds of physics, joined by commas")
    parser.add_argument("--layers", type=int, default=24, help="layers of each")
    parser.add_argument("--random", type=int, default=100, help="random launches before the first round")
    parser.add_argument("--per-round", type=int, default=33, help="launches of a round")
    parser.add_argument("--rounds", type=int, default=3, help="rounds")
    parser.add_argument("--output", type=Path, default=None, help="file to write besides")
    parser.add_argument("--draw", type=Path, default=None, help="file to draw the last tune's rounds to")
    args = parser.parse_args()
    counts = args.random, args.per_round, args.rounds
    tunes: dict[str, Found] = {}
    for model in range(args.models):
        for family in args.families.split(","):
            simulator = Simulator.draw(model, n_layers=args.layers, family=family)
            tunes[f"{family} {model}"] = run(simulator, args, model=model)
            text = f"{_heading(args, len(tunes))}\n\n{table(tunes, counts=counts)}\n"
            print(text, flush=True)  # what is done so far, for those who wait
            if args.output is not None:
                args.output.write_text(text)


def _heading(args: argparse.Namespace, n_models: int) -> str:
    return (
        f"`torchx cubicml tune`: {args.random} random launches, then {args.rounds} rounds of {args.per_round} by"
        f" ranking_mlp and REINFORCE;\n{args.layers} layers, {n_models} simulated models, each launch a process."
        " Throughput as a share of a strong optimum,\nas measured, with 1 % noise."
    )


if __name__ == "__main__":
    main()

"""Measures what each mechanism of the engine brings: the same cases with it and without it, paired.

python benchmarks/ablation.py [--only 'outliers;residual trees + slow mode'] [--families replay,plain] [--seeds 2]
    [--workers 2] [--output benchmarks/results/ablation.txt]

A mechanism is switched off by patches of functions or constants, listed in ``MECHANISMS``; those with a plus between
them are switched off together, for two may stand in for each other. A case is one split of a
table, one workload that is searched, or one simulated training. The loss is the figure with the mechanism less the
figure without it: mean over the cases of a family, with its 95 % t-interval over cases. A mechanism is not worth its
code where the upper end is under 0.005 in every family.

The families of cases are those of ``lib/cases.py``.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
from lib.cases import FAMILIES, cases, mean_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lib.cases import Case, Figures
    from numpy.typing import NDArray

    from torchx_cubicml.records.values import Config

NOTHING = 0.005  # of a figure: a smaller loss is not worth the code
_PACKAGE = "torchx_cubicml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Off:
    """One patch that switches something off.

    Args:
        at: module below ``torchx_cubicml`` or in ``lib``, a colon, and the attribute: ``predictors.greybox:_FADE``.
        instead: returns what takes its place, given what is there.
    """

    at: str
    instead: Callable[[Any], Any]

    def patched(self) -> Any:
        """Return the patch as a context manager."""
        module, _, path = self.at.partition(":")
        *owners, name = path.split(".")
        target = import_module(module if module.startswith("lib.") else f"{_PACKAGE}.{module}")
        for owner in owners:
            target = getattr(target, owner)
        return patch.object(target, name, self.instead(vars(target)[name]))


def _constant(value: object) -> Callable[[Any], Any]:
    return partial(_first, value)


def _first(value: object, _there: object) -> object:
    return value


def _answer(value: object) -> Callable[[Any], Any]:
    return partial(_always, value)


def _always(value: object, _there: object) -> Callable[..., object]:
    return lambda *_args, **_options: value


def _without_variance(place: int) -> Callable[[Any], Any]:
    """Return what makes a method ``kernel`` return kernels without one of their terms."""

    def instead(there: Callable[..., Any]) -> Callable[..., Any]:
        def kernel(*args: object) -> object:
            made = there(*args)
            variances = made.variances.copy()
            variances[place] = 0.0
            return replace(made, variances=variances)

        return kernel

    return instead


def _without_traits(there: Callable[..., NDArray[np.float64]]) -> Callable[..., NDArray[np.float64]]:
    return lambda *args: np.zeros_like(there(*args))


def _first_ones(_there: object) -> Callable[..., object]:
    def subset(
        _space: object, configs: Sequence[Config], scores: NDArray[np.float64], *, count: int, taken: object
    ) -> list[Config]:
        del taken
        return [configs[place] for place in np.argsort(-scores.mean(axis=0), kind="stable")[:count].tolist()]

    return subset


def _never(there: Any) -> Any:
    del there
    return property(lambda _self: ())


def _itself(_there: object) -> Callable[..., object]:
    return lambda self, _rows: self


def _itself_alone(_there: object) -> Callable[..., object]:
    return lambda self, **_options: [self]


def _no_outliers(_there: object) -> Callable[..., object]:
    return lambda _kernel, sample, **_options: np.zeros(len(sample.rest), dtype=np.bool_)


_KERNEL = "predictors.gaussian_process.kernel:Prior"
_ROOFLINE = "predictors.roofline.predictor"
MECHANISMS: dict[str, tuple[Off, ...]] = {
    "residual trees": (Off(at="predictors.greybox:Greybox._fit_trees", instead=_answer(None)),),
    "fading of the trees": (Off(at="predictors.greybox:_FADE", instead=_constant(1e9)),),
    "category offsets": (Off(at=f"{_ROOFLINE}:_FEWEST_FOR_OFFSETS", instead=_constant(10**9)),),
    "slow mode": (Off(at="predictors.roofline.calibration:_Fit.stalls", instead=_answer([])),),
    "tree inputs: shares": (Off(at=f"{_ROOFLINE}:_traits", instead=_without_traits),),
    "feasibility trees": (Off(at="predictors.memory.cross_workload:_FEWEST_FOR_TREES", instead=_constant(10**9)),),
    "kernel: linear": (Off(at=f"{_KERNEL}.kernel", instead=_without_variance(1)),),
    "kernel: matching": (Off(at=f"{_KERNEL}.kernel", instead=_without_variance(2)),),
    "kernel: additive": (Off(at=f"{_KERNEL}.kernel", instead=_without_variance(3)),),
    "kernel: memory pressure": (Off(at=f"{_KERNEL}.kernel", instead=_without_variance(4)),),
    "kernel: stepwise": (Off(at=f"{_KERNEL}.stepwise", instead=_never),),
    "outliers": (Off(at="predictors.gaussian_process.process:find_outliers", instead=_no_outliers),),
    "optimistic prior mean": (
        Off(at="advisor.surrogates.select:PRIOR_MEAN_PARAMETERS", instead=_constant(frozenset())),
    ),
    "roofline starts": (Off(at="advisor.batch:roofline_starts", instead=_answer([])),),
    "batch diversity": (
        Off(at="advisor.batch:diverse_subset", instead=_first_ones),
        Off(at="lib.batches:diverse_subset", instead=_first_ones),
    ),
    "kriging believer": (Off(at="advisor.surrogates.per_workload:PerWorkloadSurrogate.fantasize", instead=_itself),),
    "ensemble of three": (
        Off(at="advisor.surrogates.cross_workload:CrossWorkloadSurrogate.ensemble", instead=_itself_alone),
    ),
    "prefetch": (Off(at="tuner.prefetch:Prefetch.pays", instead=_answer(False)),),
    "polls at intervals: each 1 s": (Off(at="tuner.launches:poll_interval_s", instead=_answer(1.0)),),
    "polls at intervals: each 10 s": (Off(at="tuner.launches:poll_interval_s", instead=_answer(10.0)),),
}
"""Mechanisms to switch off, in the order of the engine: predictors, kernel, surrogates, acquisition, tuner."""


def measured(job: tuple[str, Case]) -> Figures:
    """Return the figures of a case with one mechanism switched off; none is, by the empty name."""
    warnings.filterwarnings("ignore")
    name, case = job
    _forget()
    with ExitStack() as stack:
        for part in name.split(" + ") if name else ():
            for off in MECHANISMS[part]:
                stack.enter_context(off.patched())
        found = case.measure()
    _forget()
    return found


def _forget() -> None:
    """Drop what a fit with the mechanism has left in this process."""
    from torchx_cubicml.advisor.surrogates import transfer_prior

    for each in vars(transfer_prior).values():
        if hasattr(each, "cache_clear"):
            each.cache_clear()


def rows(names: Sequence[str], chosen: Sequence[Case], *, workers: int) -> Iterator[str]:
    """Yield a row for each mechanism, family and figure: the loss with its 95 % interval."""
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        whole = list(pool.map(measured, [("", case) for case in chosen]))
        for name in names:
            without = list(pool.map(measured, [(name, case) for case in chosen]))
            losses: defaultdict[tuple[str, str], defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
            for case, before, after in zip(chosen, whole, without, strict=True):
                for figure in before.keys() & after.keys():
                    losses[case.family, figure][case.unit].append(before[figure] - after[figure])
            tops = []
            for (family, figure), of_units in sorted(losses.items()):
                mean, low, high = mean_interval([float(np.mean(values)) for values in of_units.values()])
                tops.append(high)
                yield f"{name:34s}{family:11s}{figure:10s}{mean:+8.4f} ({low:+.4f} to {high:+.4f}) {len(of_units):4d}"
            yield f"{name:34s}{'brings nothing here' if max(tops) < NOTHING else 'stays'}"


@cache
def _names() -> str:
    return ", ".join(MECHANISMS)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=";".join(MECHANISMS), help=f"with semicolons between, of {_names()}")
    parser.add_argument("--families", default=",".join(FAMILIES), help="with commas between")
    parser.add_argument("--seeds", type=int, default=1, help="of each kind of case")
    parser.add_argument("--workers", type=int, default=1, help="processes that measure at once")
    parser.add_argument("--output", type=Path, default=None, help="file to write besides")
    args = parser.parse_args()
    names = args.only.split(";")
    if unknown := [part for name in names for part in name.split(" + ") if part not in MECHANISMS]:
        sys.exit(f"unknown mechanism {unknown[0]!r}; choose from {_names()}")
    chosen = list(cases(args.families.split(","), seeds=args.seeds))
    lines = [f"Loss without each mechanism over {len(chosen)} cases; 95 % t-interval over units; units."]
    print(lines[0], flush=True)
    for line in rows(names, chosen, workers=args.workers):
        print(line, flush=True)
        lines.append(line)
        if args.output is not None:
            args.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

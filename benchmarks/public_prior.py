"""First launches of a person without any history: predicted with a public prior that was learned without their source.

python benchmarks/public_prior.py [--nanotron FILE] [--foundry FILE] [--output benchmarks/results/public_prior.txt]

Each row of a source counts as the first launch of a person, predicted by the formulas with the prior of all other
sources (benchmarks/priors/, written by scripts/learn-public-prior). Beside it stand the hand-set constants and their
widths, carried over to the step alike, on the same rows. Those were set by people who knew these sources, so they are
no rival that never saw the answer. error: of the logarithm of tokens per second, or of the peak in GiB. inside: rows
that the other sources cover; for no others is anything claimed. coverage: of 80 % intervals. width: half the interval,
as a logarithm, the median. Each source counts alike in the means; all are too few for an error of these. BigScience is
in no prior and in no mean. No rule was chosen by it: it was added when wait and factor stood, and is predicted by the
shipped prior.

After n launches: the ``roofline`` predictor is calibrated on n random rows of the source, under either prior, and
predicts others of it. Of fewer than 10 launches, the public prior's interval is as wide as that without any, where it
says one. Mean over 10 draws, the same for both.

Devices: median log error of the hand-set formulas per source that used a device. An offset of a device, or of another
category, would be worth shipping if sources agreed on it.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from lib.priors import prior_without, use_hand_set, use_prior_without
from lib.public_sources import public_sources
from lib.random_effects import HAND_SET_SOURCES, NOISE, Z, device_of
from lib.tables import add_tables
from lib.unused_jobs import NAME as UNUSED
from lib.unused_jobs import unused_source

from torchx_cubicml.predictors.features.history import TrainingTable, training_row
from torchx_cubicml.predictors.features.rows import encode_rows
from torchx_cubicml.predictors.roofline import Roofline
from torchx_cubicml.predictors.roofline.constants import HAND_SET
from torchx_cubicml.predictors.roofline.public_prior import SHIPPED, PublicPrior, public_prior
from torchx_cubicml.records.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lib.public_sources import Source
    from numpy.typing import NDArray

    from torchx_cubicml.predictors import Prediction

PRIOR, HAND = "public prior", "hand-set"
SPEED, PEAK = "tokens/s", "peak"
LAUNCHES, DRAWS, MOST_ASKED = (1, 3, 10), 10, 60


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Errors:
    """Errors of the predictions of one source's rows.

    Args:
        source: name.
        figure: what was predicted.
        method: by which constants.
        n_rows: all rows of the source with that figure.
        errors: logarithm of measured over predicted of those inside, ``[n]``.
        spread: predicted deviation of it, ``[n]``.
    """

    source: str
    figure: str
    method: str
    n_rows: int
    errors: NDArray[np.float64]
    spread: NDArray[np.float64]

    @property
    def numbers(self) -> tuple[float, ...]:
        """Share inside, bias, median and mean size of the errors, coverage and median half width."""
        sizes = np.abs(self.errors)
        inside = len(sizes) / self.n_rows
        covered = float(np.mean(sizes <= Z * self.spread))
        middle = (float(np.median(self.errors)), float(np.median(sizes)), float(np.mean(sizes)))
        return (inside, *middle, covered, float(Z * np.median(self.spread)))


def errors_of(source: Source, prior: PublicPrior) -> Iterator[Errors]:
    """Yield the errors of both methods on one source; those of the peak where it is stated."""
    layout = source.layout
    measured = np.log(layout.tokens_per_step) - source.log_seconds
    hand_set = replace(prior, constants=HAND_SET, error=NOISE, widening=1.0, wait_s=0.0)
    by_prior, by_hand = (each.tokens_per_second(source.rows) for each in (prior, hand_set))
    same = replace(by_hand, logarithm=np.where(np.isfinite(by_prior.logarithm), by_hand.logarithm, np.nan))
    for method, predicted in ((PRIOR, by_prior), (HAND, same)):
        yield _errors(source.name, SPEED, method, measured, predicted)
    stated = np.flatnonzero(np.isfinite(source.log_peak_gib)).tolist()
    if stated and len(prior.memory_sources) > 1:
        known = source.at(stated)
        yield _errors(source.name, PEAK, PRIOR, known.log_peak_gib, prior.peak_gib(known.rows))


def _errors(source: str, figure: str, method: str, measured: NDArray[np.float64], predicted: Prediction) -> Errors:
    inside = np.isfinite(predicted.logarithm)
    return Errors(
        source=source,
        figure=figure,
        method=method,
        n_rows=len(measured),
        errors=(measured - predicted.logarithm)[inside],
        spread=predicted.spread[inside],
    )


def after_launches(source: Source) -> Iterator[Errors]:
    """Yield the errors on one source after a few of its rows are known, under either prior."""
    work = np.log(source.layout.tokens_per_step)
    trials = [
        Trial.completed(workload=row, config={}, tokens_per_second=float(speed))
        for row, speed in zip(source.rows, np.exp(work - source.log_seconds), strict=True)
    ]
    rng = np.random.default_rng(0)
    for n in LAUNCHES:
        draws = [rng.permutation(len(trials)).tolist() for _ in range(DRAWS)]
        if len(trials) < n + 2:
            continue
        for method in (PRIOR, HAND):
            if method == PRIOR:
                use_prior_without(source.name)
            else:
                use_hand_set()
            prior = public_prior()
            parts = [_after(trials, draw[:n], draw[n : n + MOST_ASKED], prior) for draw in draws]
            errors, spread = (np.concatenate(each) for each in zip(*parts, strict=True))
            yield Errors(
                source=source.name,
                figure=f"after {n}",
                method=method,
                n_rows=len(errors),
                errors=errors,
                spread=spread,
            )


def _after(
    trials: Sequence[Trial], known: Sequence[int], asked: Sequence[int], prior: PublicPrior | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    history = TrainingTable.from_trials([trials[at] for at in known], objective="tokens_per_second")
    predictor = Roofline().fit(history, rng=np.random.default_rng(0))
    rows = [training_row(trials[at]) for at in asked]
    predicted = predictor.predict(encode_rows(history.columns, rows))
    if prior is not None:
        predicted = prior.after_few_launches(predicted, rows, n_launches=len(known))
    speeds = [trials[at].measurement.tokens_per_second for at in asked]
    return np.log(np.array(speeds, dtype=np.float64)) - predicted.logarithm, predicted.spread


def device_lines(sources: Sequence[Source]) -> Iterator[str]:
    """Yield a line per device of two or more sources, and the mean and deviation over these."""
    use_hand_set()
    errors: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for source in sources:
        rest = np.log(source.layout.tokens_per_step) - source.log_seconds
        rest -= np.log(Roofline().tokens_per_second(source.rows))
        devices = np.array([device_of(row) for row in source.rows])
        for device in np.unique(devices).tolist():
            errors[device][source.name] = float(np.median(rest[devices == device]))
    for device, of_sources in errors.items():
        values = list(of_sources.values())
        if len(values) > 1:
            shown = ", ".join(f"{name} {value:+.2f}" for name, value in of_sources.items())
            yield f"{device}: mean {np.mean(values):+.2f}, deviation {np.std(values, ddof=1):.2f} ({shown})"


def lines_of(found: Sequence[Errors]) -> Iterator[str]:
    """Yield a table per figure and method, with the mean over the sources."""
    for figure, method in dict.fromkeys((each.figure, each.method) for each in found):
        yield f"{figure + ', ' + method:26s}{'rows':>6s}{'inside':>8s}{'bias':>8s}{'median':>8s}{'mean':>8s}" + (
            f"{'coverage':>10s}{'width':>8s}"
        )
        group = [each for each in found if (each.figure, each.method) == (figure, method)]
        for each in group:
            yield f"{each.source:26s}{each.n_rows:6d}" + (_numbers(each.numbers) if len(each.errors) else f"{0.0:8.2f}")
        rows = [each.numbers for each in group if len(each.errors) and each.source != UNUSED]
        yield f"{'mean of the sources':26s}{'':6s}" + _numbers(tuple(np.mean(rows, axis=0).tolist()))
        yield ""


def _width_text(prior: PublicPrior) -> str:
    return f"factor {prior.widening:.2f}, wait {prior.wait_s:g} s"


def _numbers(numbers: Sequence[float]) -> str:
    inside, bias, middle, mean, covered, width = numbers
    return f"{inside:8.2f}{bias:8.2f}{middle:8.2f}{mean:8.2f}{covered:10.2f}{width:8.2f}"


def main() -> int:
    """Measure and print; exit status 1 without the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_tables(parser)
    parser.add_argument("--output", type=Path, default=None, help="file to write the result to")
    args = parser.parse_args()
    if not args.nanotron.exists():
        print(f"{args.nanotron} is not there: nothing to measure on", file=sys.stderr)
        return 1
    warnings.filterwarnings("ignore")
    sources = public_sources(args.nanotron, args.foundry)
    priors = {source.name: PublicPrior.read(prior_without(source.name)) for source in sources}
    shipped = PublicPrior.read(SHIPPED)
    found = [each for source in sources for each in errors_of(source, priors[source.name])]
    found += errors_of(unused_source(), shipped)
    found += [each for source in sources for each in after_launches(source)]
    notes = [
        "\n\n".join(__doc__.split("\n\n")[2:]),
        f"{len(sources)} sources; the hand-set constants count as {HAND_SET_SOURCES:g}.",
        *(f"without {name}: {_width_text(prior)}" for name, prior in priors.items()),
        f"shipped: {_width_text(shipped)}",
    ]
    text = "\n".join(["\n".join(notes), "", *lines_of(found), *device_lines(sources)])
    print(text)
    if args.output is not None:
        args.output.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Compares the formulas with published throughputs and memory of transformer trainings, row by row.

python benchmarks/published.py [--output benchmarks/results/published.txt]

Each row is a training that a public page describes (``lib/published_jobs.py``). Throughput is in tokens per second and
device, memory in GiB of one device as the source counts it: torchtitan's is what PyTorch has reserved, DLPerf's is what
nvidia-smi shows. Both hold more than tensors need.
defaults: the formulas with the constants of a public prior that was learned without the repository of the page, and
no measurement of anything. calibrated: on the other rows of the same source, as a store's trials calibrate them; memory
has a factor per part from the other rows.
Error: of ours relative to the published figure.
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from lib.priors import use_prior_without
from lib.public_sources import repository_of
from lib.published_jobs import OMITTED, jobs

from torchx_cubicml.predictors.features.history import TrainingTable, training_row
from torchx_cubicml.predictors.roofline import Roofline
from torchx_cubicml.predictors.roofline.part_factors import part_factors
from torchx_cubicml.records.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lib.published_jobs import PublishedJob

FEWEST_OTHERS = 4  # rows that a calibration is worth trying on
GIB = 2.0**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One published figure beside ours.

    Args:
        job: that it is of.
        figure: its name.
        published: as published.
        default: by the formulas as they are; NaN where they do not cover the job.
        calibrated: after calibration on the other rows of the source; NaN where there are too few.
    """

    job: PublishedJob
    figure: str
    published: float
    default: float
    calibrated: float


def trial_of(job: PublishedJob) -> Trial:
    """Return a job as a trial of whole-job throughput."""
    world = job.facts["world_size"]
    return Trial.completed(workload=job.facts, config={}, tokens_per_second=job.tokens_per_second * float(world))


def compared_throughputs(of_source: Sequence[PublishedJob]) -> Iterator[Comparison]:
    """Yield the throughputs of one source."""
    trials = [trial_of(job) for job in of_source]
    rows = [training_row(trial) for trial in trials]
    worlds = np.array([float(job.facts["world_size"]) for job in of_source])
    default = Roofline().tokens_per_second(rows) / worlds
    for at, job in enumerate(of_source):
        others, calibrated = [*trials[:at], *trials[at + 1 :]], np.nan
        if len(others) >= FEWEST_OTHERS:
            history = TrainingTable.from_trials(others, objective="tokens_per_second")
            roofline = Roofline().fit(history, rng=np.random.default_rng(0))
            calibrated = float(roofline.tokens_per_second([rows[at]])[0]) / worlds[at]
        yield Comparison(
            job=job,
            figure="tokens/s",
            published=job.tokens_per_second,
            default=float(default[at]),
            calibrated=calibrated,
        )


def compared_memory(of_source: Sequence[PublishedJob]) -> Iterator[Comparison]:
    """Yield the memory of one source, where it is stated."""
    known = [job for job in of_source if job.memory_gib is not None]
    if not known:
        return
    parts = np.column_stack(list(Roofline().memory([training_row(trial_of(job)) for job in known]).values())) / GIB
    published = np.array([job.memory_gib for job in known])
    for at, job in enumerate(known):
        others = np.arange(len(known)) != at
        calibrated = np.nan
        if others.sum() >= FEWEST_OTHERS:
            calibrated = float(parts[at] @ part_factors(parts[others], published[others]))
        yield Comparison(
            job=job,
            figure="GiB",
            published=float(published[at]),
            default=float(parts[at].sum()),
            calibrated=calibrated,
        )


def lines_of(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Yield a line per figure, then one per source and figure with the errors."""
    head = f"{'':72s}{'figure':>9s}{'published':>11s}{'defaults':>10s}{'error':>7s}{'calibrated':>12s}{'error':>7s}"
    for source in dict.fromkeys(each.job.source for each in comparisons):
        yield source
        yield head
        for each in (each for each in comparisons if each.job.source == source):
            numbers = (
                f"{each.figure:>9s}{each.published:11.4g}{each.default:10.4g}{_error(each.default, each.published)}"
            )
            rest = (
                f"{each.calibrated:12.4g}{_error(each.calibrated, each.published)}"
                if each.calibrated == each.calibrated
                else ""
            )
            yield f"  {each.job.name:70s}{numbers}{rest}"
        if source in OMITTED:
            yield f"  left out: {OMITTED[source]}"
        yield ""
    yield f"{'source':66s}{'figure':>9s}{'n':>4s}  {'defaults: bias, error, 90 %':28s}  calibrated: bias, error, 90 %"
    for source, figure in dict.fromkeys((each.job.source, each.figure) for each in comparisons):
        group = [each for each in comparisons if (each.job.source, each.figure) == (source, figure)]
        published = np.array([each.published for each in group])
        columns = []
        for name in ("default", "calibrated"):
            errors = np.array([getattr(each, name) for each in group]) / published - 1.0
            errors = errors[np.isfinite(errors)]
            columns.append(_spread(errors) if len(errors) else "")
        yield f"{source:66s}{figure:>9s}{len(group):4d}  {columns[0]:28s}  {columns[1]}"


def _spread(errors: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> str:
    numbers = (np.median(errors), np.median(np.abs(errors)), np.quantile(np.abs(errors), 0.9))
    return "".join(f"{100 * number:8.0f}%" for number in numbers)


def _error(ours: float, published: float) -> str:
    return f"{100 * (ours / published - 1.0):6.0f}%" if np.isfinite(ours) else f"{'-':>7s}"


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=None, help="file to write the result to")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    found = list(jobs())
    comparisons: list[Comparison] = []
    for source in dict.fromkeys(job.source for job in found):
        of_source = [job for job in found if job.source == source]
        use_prior_without(repository_of(source))
        comparisons += [*compared_throughputs(of_source), *compared_memory(of_source)]
    notes = [*__doc__.split("\n\n")[2:], "bias: median of the errors. error, 90 %: median of their sizes, and the size"]
    notes.append("that nine in ten do not exceed.\n")
    text = "\n".join(["\n".join(notes), *lines_of(comparisons)]) + "\n"
    print(text)
    if arguments.output is not None:
        arguments.output.write_text(text)


if __name__ == "__main__":
    main()

"""Public sources of measured trainings: each table, and the pages of each repository, as facts and measurements.

Pages of one repository share authors, software and mostly a cluster, so they count as one source.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lib.published_jobs import jobs
from lib.tables import FSDP_JOBS, H100_JOBS, fsdp_trials, h100_trials
from torchx_cubicml.predictors.features.history import training_row
from torchx_cubicml.predictors.roofline.facts import Facts
from torchx_cubicml.predictors.roofline.training_layout import TrainingLayout
from torchx_cubicml.records.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from torchx_cubicml.records.values import Value

NANOTRON, FOUNDRY = "nanotron", "llm-foundry"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Source:
    """Trainings of one public source that the formulas cover.

    Args:
        name: of the table or the repository.
        rows: facts of ``n`` trainings.
        log_seconds: per step, as measured, ``[n]``.
        log_peak_gib: of one device, as the source counts it, ``[n]``; NaN where it is not stated.
    """

    name: str
    rows: Sequence[dict[str, Value]]
    log_seconds: NDArray[np.float64]
    log_peak_gib: NDArray[np.float64]

    @property
    def facts(self) -> Facts:
        """Facts of the trainings."""
        return Facts.from_rows(self.rows)

    @property
    def layout(self) -> TrainingLayout:
        """Layouts of the trainings."""
        return TrainingLayout.of(self.facts)

    def at(self, chosen: Iterable[int]) -> Source:
        """Return the trainings at some indices."""
        indices = list(chosen)
        return Source(
            name=self.name,
            rows=[self.rows[index] for index in indices],
            log_seconds=self.log_seconds[indices],
            log_peak_gib=self.log_peak_gib[indices],
        )


def public_sources(nanotron: Path = H100_JOBS, foundry: Path = FSDP_JOBS) -> list[Source]:
    """Return all sources, the two tables first."""
    groups: defaultdict[str, list[tuple[Trial, float]]] = defaultdict(list)
    peaks = _nanotron_peaks(nanotron)
    groups[NANOTRON] = [(trial, peaks[trial.trial_id]) for trial in h100_trials(nanotron)]
    groups[FOUNDRY] = [(trial, np.nan) for trial in fsdp_trials(foundry)]
    for job in jobs():
        whole = job.tokens_per_second * float(job.facts["world_size"])
        trial = Trial.completed(workload=job.facts, config={}, tokens_per_second=whole)
        groups[repository_of(job.source)].append((trial, np.nan if job.memory_gib is None else job.memory_gib))
    return [_source(name, pairs) for name, pairs in groups.items()]


def repository_of(page: str) -> str:
    """Return the short name of the repository of a page.

    >>> repository_of("pytorch/torchtitan docs/performance.md")
    'torchtitan'
    """
    return page.split(maxsplit=1)[0].split("/")[1]


def _source(name: str, pairs: Sequence[tuple[Trial, float]]) -> Source:
    rows, seconds, peaks = [], [], []
    for trial, peak in pairs:
        measurement = trial.measurement
        if measurement is None or measurement.tokens_per_second is None:
            continue
        row = training_row(trial)
        layout = TrainingLayout.of(Facts.from_rows([row]))
        if layout.covered[0]:
            rows.append(row)
            seconds.append(float(layout.tokens_per_step[0]) / measurement.tokens_per_second)
            peaks.append(peak if peak > 0.0 else np.nan)
    return Source(name=name, rows=rows, log_seconds=np.log(seconds), log_peak_gib=np.log(peaks))


def _nanotron_peaks(path: Path) -> dict[str, float]:
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["slow_twin_suspect"] not in {"1", "1.0"}]
    return {f"row-{number:05d}": float(row["peak_memory_gb"] or "nan") for number, row in enumerate(rows)}

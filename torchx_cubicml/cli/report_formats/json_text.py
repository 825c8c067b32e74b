"""Report as JSON: all that the page tells, as data. docs/report.md documents the schema."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torchx_cubicml.cli.report_sections import data_of
from torchx_cubicml.cli.report_sections.across_workloads import across_data
from torchx_cubicml.cli.report_sections.result import headline_of
from torchx_cubicml.cli.report_sections.trials_table import recorded_values
from torchx_cubicml.cli.report_sections.workload_summary import summary_of_workload
from torchx_cubicml.records.redaction import mask, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchx_cubicml.cli.report_formats.store_report import StoreReport
    from torchx_cubicml.cli.report_sections.view import WorkloadView

SCHEMA = 1
"""Version of the schema; a name or a meaning that changes raises it."""
_MOST_LETTERS = 10_000  # of one text


def content(report: StoreReport, *, kind: str) -> bytes:
    """Return the JSON text, in ASCII."""
    del kind
    made: dict[str, Any] = {
        "schema": SCHEMA,
        "store": report.store,
        "read_at": report.read_at,
        "notes": list(report.notes),
        "across": across_data(report.views, predictor=report.predictor) if len(report.views) > 1 else None,
        "workloads": [
            {**_workload(view), "sections": data_of(view) if view.place <= report.chapters else None}
            for view in _told(report)
        ],
    }
    return f"{json.dumps(_plain(made), allow_nan=False, separators=(',', ':'))}\n".encode()


def _told(report: StoreReport) -> Iterator[WorkloadView]:
    for number, view in enumerate(report.views):
        report.report(number, len(report.views))
        yield view


def _workload(view: WorkloadView) -> dict[str, Any]:
    found = summary_of_workload(view)
    return {
        "workload": dict(found.workload),
        "objective": found.objective,
        "launches": found.launches,
        "measured": found.measured,
        "failures": found.failures,
        "throughput": found.throughput,
        "best": found.best,
        "own": view.own,
        "gain": _gain(view),
        "headline": asdict(headline_of(view)),
        "trials": [dict(recorded_values(trial)) for trial in view.trials],
    }


def _gain(view: WorkloadView) -> dict[str, Any] | None:
    found = view.comparison
    if found is None:
        return None
    return {"ratio": found.gain, "low": found.gain_low, "high": found.gain_high, "is_claimed": found.claims_gain}


def _plain(value: Any) -> Any:
    """Return a value of JSON: texts without secrets and control characters, and no number that JSON lacks."""
    if isinstance(value, str):
        return printable(mask(str(value)[:_MOST_LETTERS]))
    if isinstance(value, dict):
        return {_plain(str(name)): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, bool | int | float):
        return value
    return _plain(dict(value)) if hasattr(value, "keys") else _plain(str(value))

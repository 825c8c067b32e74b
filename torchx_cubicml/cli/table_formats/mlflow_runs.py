"""Runs of an MLflow file store: a folder ``mlruns``, one of its experiments, or one run."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from torchx_cubicml.cli.table_formats.records import cell_text, table_of_records
from torchx_cubicml.errors import RecordError
from torchx_cubicml.launch.config_text import parse_yaml

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torchx_cubicml.cli.jobs_table.source import SourceTable
    from torchx_cubicml.cli.table_formats.place import Place

# RunStatus of https://github.com/mlflow/mlflow/blob/master/mlflow/protos/service.proto
_STATUSES = {1: "RUNNING", 2: "SCHEDULED", 3: "FINISHED", 4: "FAILED", 5: "KILLED"}
_META = "meta.yaml"
_MOST_META, _MOST_PARAMETER, _MOST_METRIC = 2**20, 2**16, 2**24  # bytes


def is_mlflow(files: Iterable[str]) -> bool:
    """Return whether the files of a folder are those of a file store.

    >>> is_mlflow(["0/meta.yaml", "0/a1/meta.yaml", "0/a1/params/lr"]), is_mlflow(["conda/meta.yaml"])
    (True, False)
    """
    return bool(_run_files(files))


def read_mlflow(place: Place) -> SourceTable:
    """Return one row per run: its parameters, the latest value of each metric, its status and its start.

    Raises:
        RecordError: the folder cannot be read, or holds no run.
    """
    records, problems = [], []
    for folder, names in sorted(_run_files(place.files()).items()):
        label = folder.rstrip("/") or place.name
        try:
            record = _record(place, folder, names)
        except RecordError as error:
            problems.append(f"run {label}: {error}")
            continue
        if record:
            records.append((label, record))
    return table_of_records(place, records, counted="run", problems=problems)


def _run_files(files: Iterable[str]) -> dict[str, list[str]]:
    """Return folder of a run -> its parameters and metrics."""
    folders = {file.removesuffix(_META) for file in files if file == _META or file.endswith(f"/{_META}")}
    found: dict[str, list[str]] = {}
    for file in files:
        folder, *below = re.split(r"(?:^|(?<=/))(?:params|metrics)/", file, maxsplit=1)
        if below and folder in folders:
            found.setdefault(folder, []).append(file)
    return found


def _record(place: Place, folder: str, files: Iterable[str]) -> dict[str, str]:
    """Return the cells of a run; nothing for an experiment, and for a run that was deleted."""
    meta = _meta(place, f"{folder}{_META}")
    if ("run_id" not in meta and "run_uuid" not in meta) or meta.get("lifecycle_stage") == "deleted":
        return {}
    status = meta.get("status")
    word = _STATUSES.get(status, "") if isinstance(status, int) else cell_text(status)
    record = {"status": word, "start_time": _start(meta.get("start_time"))}
    for file in files:
        kind, _, key = file.removeprefix(folder).partition("/")
        if kind == "params":
            record[f"params.{key}"] = cell_text(_text(place, file, _MOST_PARAMETER))
        elif kind == "metrics":
            record[f"metrics.{key}"] = _latest(_text(place, file, _MOST_METRIC))
    return record


def _meta(place: Place, file: str) -> dict[str, object]:
    try:
        found = parse_yaml(_text(place, file, _MOST_META))
    except (RecursionError, ValueError) as error:
        raise RecordError(f"{_META} is no YAML: {error!s:.120}") from error
    if not isinstance(found, dict):
        raise RecordError(f"{_META} must be a table of keys")
    return found


def _text(place: Place, file: str, most: int) -> str:
    return place.read(file, most=most).decode(errors="replace").replace("\0", "")


def _start(milliseconds: object) -> str:
    try:
        moment = datetime.fromtimestamp(float(str(milliseconds)) / 1000.0, tz=UTC)
    except (OverflowError, OSError, ValueError):
        return ""
    return moment.isoformat(timespec="seconds")


def _latest(text: str) -> str:
    r"""Return the value of the last step in a metric's file, whose lines are time, value and step.

    >>> _latest("1700000000000 41000.5 2\n1700000000001 40990.5 1\n")
    '41000.5'
    """
    points = []
    for line in text.splitlines():
        words = line.split()
        try:
            time, step = int(words[0]), int(words[2]) if len(words) > 2 else 0
            points.append((step, time, words[1]))
        except (IndexError, ValueError):  # IndexError: a line cut short
            continue
    return max(points)[2] if points else ""

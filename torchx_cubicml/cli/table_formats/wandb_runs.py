"""Run folders of W&B: the config and the summary of each run below a folder, or the log of a run that was offline."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from torchx_cubicml.cli.table_formats.records import flattened, object_of_json, table_of_records
from torchx_cubicml.cli.table_formats.wandb_log import read_wandb_log
from torchx_cubicml.errors import RecordError
from torchx_cubicml.launch.config_text import parse_yaml

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torchx_cubicml.cli.jobs_table.source import SourceTable
    from torchx_cubicml.cli.table_formats.place import Place

_CONFIG, _SUMMARY, _METADATA = "config.yaml", "wandb-summary.json", "wandb-metadata.json"
_LOG = ".wandb"
_FROM_METADATA = {"program": "program", "startedAt": "started_at", "gpu": "GPU type"}  # the rest names people and hosts
_MOST_BYTES = 2**22


def is_wandb(files: Iterable[str]) -> bool:
    """Return whether the files of a folder are those of runs of W&B.

    >>> is_wandb(["offline-run-1/files/config.yaml", "offline-run-1/files/wandb-summary.json"]), is_wandb(["a.csv"])
    (True, False)
    """
    return any(file.rpartition("/")[2] == _SUMMARY or file.endswith(_LOG) for file in files)


def read_wandb(place: Place) -> SourceTable:
    """Return one row per run: its config, the last logged value of each metric, its program, device and start.

    Raises:
        RecordError: the folder cannot be read, or holds no run.
    """
    present = set(place.files())
    runs: dict[str, str] = {}
    for name in (_SUMMARY, _LOG, _CONFIG):  # the later ones hold more: a run that was offline leaves an empty summary
        for file in sorted(file for file in present if file.endswith(name)):
            folder = file.rpartition("/")[0]
            runs[folder if name == _LOG else folder.removesuffix("files").rstrip("/")] = file
    records, problems = [], []
    for folder, file in sorted(runs.items()):
        label = folder or place.name
        try:
            if file.endswith(_LOG):
                records.append((label, read_wandb_log(place.read(file))))
            else:
                records.append((label, _record(place, file.removesuffix(file.rpartition("/")[2]), present)))
        except RecordError as error:
            problems.append(f"run {label}: {error}")
    return table_of_records(place, records, counted="run", problems=problems)


def _record(place: Place, folder: str, present: set[str]) -> dict[str, str]:
    metadata = _object(place, f"{folder}{_METADATA}", present)
    record = flattened({name: metadata[key] for key, name in _FROM_METADATA.items() if key in metadata})
    if "program" in record:
        record["program"] = PurePosixPath(record["program"]).name  # its folders are the machine's
    record |= flattened(_config(place, f"{folder}{_CONFIG}", present))
    for key, text in flattened(_object(place, f"{folder}{_SUMMARY}", present)).items():
        if not key.startswith("_"):
            record[f"summary.{key}" if key in record else key] = text
    return record


def _object(place: Place, file: str, present: set[str]) -> dict[str, object]:
    if file not in present:
        return {}
    try:
        found = object_of_json(place.read(file, most=_MOST_BYTES))
    except RecordError as error:
        raise RecordError(f"{file.rpartition('/')[2]}: {error}") from error
    return found if isinstance(found, dict) else {}


def _config(place: Place, file: str, present: set[str]) -> dict[str, object]:
    """Return the config of a run, without W&B's own keys; each value stands below a key ``value``."""
    if file not in present:
        return {}
    try:
        found = parse_yaml(place.read(file, most=_MOST_BYTES).decode(errors="replace"))
    except (RecursionError, ValueError) as error:
        raise RecordError(f"{_CONFIG} is no YAML: {error!s:.120}") from error
    entries = found.items() if isinstance(found, dict) else ()
    return {
        str(key): entry["value"] if isinstance(entry, dict) and "value" in entry else entry
        for key, entry in entries
        if key != "wandb_version" and not str(key).startswith("_")
    }

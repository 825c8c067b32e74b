"""Result folders of DeepSpeed's autotuner: one folder per experiment below ``autotuning_results``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.cli.table_formats.log_facts import OUT_OF_MEMORY
from torchx_cubicml.cli.table_formats.records import flattened, object_of_json, table_of_records
from torchx_cubicml.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torchx_cubicml.cli.jobs_table.source import SourceTable
    from torchx_cubicml.cli.table_formats.place import Place

# Files of https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/autotuning/README.md
_EXPERIMENT, _CONFIG, _METRICS, _ERRORS = "exp.json", "ds_config.json", "metrics.json", "stderr.log"
_MODEL_INFO = "model_info.json"  # of the one experiment that only profiles the model
_OFFLOADS = {
    "zero_optimization.offload_param.device": "cpu_offload",
    "zero_optimization.offload_optimizer.device": "optimizer_cpu_offload",
}
_MOST_BYTES = 2**22
_NOTE = (
    "DeepSpeed's autotuner times forward, backward and step only, so its throughput is higher than that of a whole "
    "training: compare these rows with each other, not with recorded launches"
)


def is_deepspeed(files: Iterable[str]) -> bool:
    """Return whether the files of a folder are those of the autotuner.

    >>> is_deepspeed(["z1_gas1_tmbspg3/exp.json", "z1_gas1_tmbspg3/ds_config.json"]), is_deepspeed(["ds_config.json"])
    (True, False)
    """
    return any(file.rpartition("/")[2] == _EXPERIMENT for file in files)


def read_deepspeed(place: Place) -> SourceTable:
    """Return one row per experiment: its DeepSpeed config, devices, throughput and outcome.

    Raises:
        RecordError: the folder cannot be read, or holds no experiment.
    """
    present = set(place.files())
    folders = sorted(file.removesuffix(_EXPERIMENT) for file in present if file.rpartition("/")[2] == _EXPERIMENT)
    profiled = [folder for folder in folders if f"{folder}{_MODEL_INFO}" in present]
    records, problems = [], []
    shared: dict[str, str] = {}
    for folder in [*profiled, *(folder for folder in folders if folder not in profiled)]:
        label = folder.rstrip("/") or place.name
        try:
            if folder in profiled:
                count = _object(place, f"{folder}{_MODEL_INFO}").get("num_params")
                shared |= flattened({"n_params": count}) if count else {}
            else:
                records.append((label, _record(place, folder, present, shared)))
        except RecordError as error:
            problems.append(f"run {label}: {error}")
    return table_of_records(place, records, counted="run", problems=problems, notes=[_NOTE])


def _record(place: Place, folder: str, present: set[str], shared: Mapping[str, str]) -> dict[str, str]:
    experiment = _object(place, f"{folder}{_EXPERIMENT}")
    inline = experiment.get("ds_config")
    config = _object(place, f"{folder}{_CONFIG}") if f"{folder}{_CONFIG}" in present else inline
    config = {key: value for key, value in config.items() if key != "autotuning"} if isinstance(config, dict) else {}
    metrics = _object(place, f"{folder}{_METRICS}") if f"{folder}{_METRICS}" in present else {}
    record = {
        **shared,
        **flattened({"nodes": experiment.get("num_nodes"), "GPUs per node": experiment.get("num_gpus")}),
        **dict(_setting(key, text) for key, text in flattened(config).items()),
        **flattened({"samples_per_second": metrics.get("throughput")}),
    }
    record["status"] = "completed" if record["samples_per_second"] else _failure(place, f"{folder}{_ERRORS}", present)
    return record


def _setting(key: str, text: str) -> tuple[str, str]:
    """Return heading and cell of a key of the config; ``auto`` is no value, and a device of an offload a switch."""
    text = "" if text == "auto" else text
    return (_OFFLOADS[key], str(text in {"cpu", "nvme"}) if text else "") if key in _OFFLOADS else (key, text)


def _failure(place: Place, file: str, present: set[str]) -> str:
    text = place.read(file) if file in present else b""
    return "out of memory" if OUT_OF_MEMORY.search(text.decode(errors="replace")) else "failed"


def _object(place: Place, file: str) -> dict[str, object]:
    try:
        found = object_of_json(place.read(file, most=_MOST_BYTES))
    except RecordError as error:
        raise RecordError(f"{file.rpartition('/')[2]}: {error}") from error
    if not isinstance(found, dict):
        raise RecordError(f"{file.rpartition('/')[2]} must be a JSON object")
    return found

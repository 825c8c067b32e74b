"""History of Paddle's auto tuner: the CSV file that ``paddle.distributed.launch --auto_tuner_json`` writes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torchx_cubicml.cli.table_formats.records import table_of_records, whole_number
from torchx_cubicml.cli.table_formats.text import read_text_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.cli.jobs_table.source import SourceTable
    from torchx_cubicml.cli.table_formats.place import Place

_MARKS = (b"job_id", b"mp_degree", b"sharding_degree", b"max_mem_usage")
# Columns of https://github.com/PaddlePaddle/Paddle/blob/develop/python/paddle/distributed/launch/main.py: the ranks of
# its data and sharding groups all read samples of their own.
_HEADINGS = {
    "dp_degree": "dp_replicate_degree",
    "sharding_degree": "dp_shard_degree",
    "sharding_stage": "zero_stage",
    "mp_degree": "tp_degree",
    "vpp_degree": "virtual_pp_degree",
    "acc_steps": "gradient_accumulation_steps",
    "max_mem_usage": "peak memory (MiB)",
    "nodes": "nnodes",
    "num_gpus": "world_size",
}
_NO_FACTS = frozenset(
    {"error_info", "exec_time", "estimated_memory_usage", "estimated_dp_degree", "job_id", "has_error", "time"}
)
_KNOWN = frozenset(
    {*_HEADINGS, *_NO_FACTS, "pp_degree", "micro_batch_size", "global_batch_size", "use_recompute"}
    | {"recompute_granularity", "sharding_overlap"}
)
_DEGREES = ("dp_degree", "sharding_degree", "mp_degree", "pp_degree")


def is_paddle(head: bytes) -> bool:
    r"""Return whether a file begins with the header of the tuner's history.

    >>> is_paddle(b"job_id,dp_degree,sharding_degree,mp_degree,ips,max_mem_usage\n1,2,1,4,9.5,100\n")
    True
    """
    first = head.split(b"\n", 1)[0]
    return all(mark in first for mark in _MARKS)


def read_paddle(place: Place) -> SourceTable:
    """Return one row per task: its degrees, batch, recomputation, metric, peak memory and outcome.

    The name of the metric is the user's, so its column keeps it: the dialog asks what it means if it does not say.

    Raises:
        RecordError: the file cannot be read.
    """
    source = read_text_table(place)
    records = [(label, _record(row)) for label, row in source.records()]
    return table_of_records(place, records, counted="line", problems=source.problems)


def _record(row: Mapping[str, str]) -> dict[str, str]:
    record = {
        _HEADINGS.get(heading, heading): text
        for heading, text in row.items()
        if heading not in {"use_recompute", "recompute_granularity"} and heading not in _NO_FACTS
    }
    switch = row.get("use_recompute", "").lower()
    granularity = row.get("recompute_granularity") or "full"
    record["activation_checkpointing"] = granularity if switch in {"true", "1"} else "none" if switch else ""
    if row.get("sharding_degree") == "1":  # its stage then has no effect
        record["zero_stage"] = "0"
    degrees = [size for name in _DEGREES if (size := whole_number(row.get(name, ""))) is not None]
    if not row.get("num_gpus") and len(degrees) == len(_DEGREES):
        record["world_size"] = str(math.prod(degrees))
    is_out_of_memory = row.get("max_mem_usage") == "OOM"
    if is_out_of_memory:
        record["peak memory (MiB)"] = ""
    has_metric = any(text for heading, text in row.items() if heading not in _KNOWN)
    record["status"] = "OOM" if is_out_of_memory else "ok" if has_metric else "failed"
    return record

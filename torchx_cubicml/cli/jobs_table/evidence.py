"""ColumnEvidence in the cells: whether a column can be what its heading says, and which of several names it has."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from torchx_cubicml.cli.jobs_table.cells import COUNTS, DEGREES, is_vocabulary, read_cell
from torchx_cubicml.cli.jobs_table.column_roles import PEAK_MEMORY, STARTED_AT, STATUS, STEP_TIMES, UNITS
from torchx_cubicml.cli.jobs_table.rates import count, dp_degree, model_parallel, samples_per_step
from torchx_cubicml.cli.jobs_table.statuses import state_of_word
from torchx_cubicml.cli.jobs_table.times import sortable_time
from torchx_cubicml.cli.jobs_table.written_numbers import gibibytes, rate, scaled_number, seconds, states_time
from torchx_cubicml.errors import RecordError
from torchx_cubicml.predictors.features.device_specs import REFERENCE, find_hardware
from torchx_cubicml.records.standard_words import standard_word, switch_value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torchx_cubicml.cli.jobs_table.headings import Heading
    from torchx_cubicml.cli.jobs_table.source import SourceTable
    from torchx_cubicml.records.values import Scalar

_MOST_ROWS = 2000  # rows that evidence is taken from
_LEAST_SHARE = 0.5  # of the cells that must be legal under a name
_AGREEING_SHARE = 0.95  # of the rows in which two readings of one number agree
_TOLERANCE = 0.02  # relative, between a number and its rounded label
_DEVICE_SIZES = frozenset(
    map(float, (8, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 94, 96, 128, 141, 144, 180, 186, 192, 256, 288))
)  # GB of memory of accelerators
_FEWEST_PARAMETERS = 1000.0
_LEAST_ROWS_PER_SIZE = 5  # so many round peaks of memory are no accident
_LEAST_UTILISATION, _MOST_UTILISATION = 0.002, 1.0  # of a device's peak, by any training


@dataclass(frozen=True)
class ColumnEvidence:
    """Evidence of the rows of a table about its columns.

    Args:
        source: the table.
        names: standard name -> heading of the columns that are certain.
    """

    source: SourceTable
    names: Mapping[str, Heading]

    def facts(self) -> list[dict[str, Scalar]]:
        """Return the facts of each row under their certain names, as far as the cells are legal."""
        columns = {
            name: (heading, self.source.cells(heading.text)[:_MOST_ROWS]) for name, heading in self.names.items()
        }
        rows: list[dict[str, Scalar]] = [{} for _ in range(min(len(self.source.rows), _MOST_ROWS))]
        for name, (heading, cells) in columns.items():
            known = {cell: self._value(name, cell, heading) for cell in set(cells)}
            for row, cell in zip(rows, cells, strict=True):
                value = known[cell]
                if value is not None:
                    row[name] = value
        return rows

    def _value(self, name: str, cell: str, heading: Heading) -> Scalar | None:
        try:
            return read_cell(name, cell, heading, decimal_comma=self.source.decimal_comma)[0]
        except RecordError:
            return None

    def chosen(self, heading: Heading) -> str:
        """Return the one of a heading's choices that the rows prove, or an empty name."""
        cells = self.source.known_cells(heading.text)
        for choice in heading.choices:
            prove = _PROOFS.get(choice)
            if cells and prove is not None and prove(self, heading, cells):
                return choice
        return ""

    def tokens_per_step(self) -> list[float | None]:
        """Return micro batch x accumulation x data-parallel degree x sequence length of each row, where known."""
        rows = ((samples_per_step(row), count(row, "seq_len")) for row in self.facts())
        return [None if batch is None or length is None else batch * length for batch, length in rows]

    def numbers(self, heading: Heading) -> list[float | None]:
        """Return the numbers of a column, ``None`` for any other cell."""
        cells = self.source.cells(heading.text)[:_MOST_ROWS]
        comma = self.source.decimal_comma
        return [scaled_number(cell, decimal_comma=comma) if cell else None for cell in cells]

    def agree(self, expected: Sequence[float | None], found: Sequence[float | None]) -> bool:
        """Return whether two columns of numbers agree in nearly all rows that hold both."""
        pairs = [(one, other) for one, other in zip(expected, found, strict=True) if one and other]
        equal = sum(math.isclose(one, other, rel_tol=_TOLERANCE) for one, other in pairs)
        return bool(pairs) and equal >= _AGREEING_SHARE * len(pairs)


def is_plausible(name: str, heading: Heading, cells: Sequence[str]) -> bool:
    """Return whether the known cells of a column can be values of ``name``: at least half of them are legal.

    >>> from torchx_cubicml.cli.jobs_table.headings import read_heading
    >>> is_plausible("attention_kernel", read_heading("attention"), ["MHA", "GQA"])
    False
    """
    if not cells:
        return False
    distinct = list(dict.fromkeys(cells))
    legal = sum(_is_legal(name, cell, heading) for cell in distinct)
    return legal >= _LEAST_SHARE * len(distinct) if name in COUNTS or name in UNITS else legal > 0


def _is_legal(name: str, cell: str, heading: Heading) -> bool:
    """Return whether a cell can be a value of ``name``, whatever the decimal sign."""
    if name == "n_params":  # 7 without a unit are no parameters: billions or millions of them
        return _number(cell) * (heading.scale if _number(cell) < _FEWEST_PARAMETERS else 1.0) >= _FEWEST_PARAMETERS
    if name in COUNTS:
        return _is_number(scaled_number, cell) or (name in DEGREES and switch_value(cell) is False)
    if name in UNITS:
        return _is_number(seconds if name in STEP_TIMES else rate, cell) or states_time(cell)
    if name == STATUS:
        return state_of_word(cell, heading=heading.text) is not None
    check = _LEGAL.get(name)
    if check is not None:
        return check(cell)
    return not is_vocabulary(name) or read_cell(name, cell, heading)[1]


def _is_number(read: Callable[..., float | None], cell: str) -> bool:
    return read(cell) is not None or read(cell, decimal_comma=True) is not None


def _number(cell: str) -> float:
    return scaled_number(cell) or scaled_number(cell, decimal_comma=True) or 0.0


def _is_memory(cell: str) -> bool:
    return _is_number(gibibytes, cell)


def _is_time(cell: str) -> bool:
    try:
        return bool(sortable_time(cell))
    except ValueError:
        return False


_LEGAL: dict[str, Callable[[str], bool]] = {
    PEAK_MEMORY: _is_memory,
    "device_memory_gib": _is_memory,
    STARTED_AT: _is_time,
}


def _proves_global_batch(evidence: ColumnEvidence, heading: Heading, cells: Sequence[str]) -> bool:
    """A batch is the global one if it is micro batch x accumulation x data-parallel degree."""
    if "micro_batch_size" not in evidence.names or "global_batch_size" in evidence.names:
        return False
    return evidence.agree([samples_per_step(row) for row in evidence.facts()], evidence.numbers(heading))


def _proves_micro_batch(evidence: ColumnEvidence, heading: Heading, cells: Sequence[str]) -> bool:
    """A batch is the micro batch if it, accumulated over all data-parallel ranks, is the global one."""
    if "global_batch_size" not in evidence.names or "micro_batch_size" in evidence.names:
        return False
    rows, found = evidence.facts(), evidence.numbers(heading)
    expected = [
        samples_per_step({**row, "micro_batch_size": number or 0.0, "global_batch_size": 0.0})
        for row, number in zip(rows, found, strict=True)
    ]
    return evidence.agree([count(row, "global_batch_size") for row in rows], expected)


def _proves_device(evidence: ColumnEvidence, heading: Heading, cells: Sequence[str]) -> bool:
    return any(find_hardware(cell) is not None for cell in set(cells))


def _proves_kernel(evidence: ColumnEvidence, heading: Heading, cells: Sequence[str]) -> bool:
    distinct = [cell for cell in set(cells) if switch_value(cell) is None]
    known = [cell for cell in distinct if standard_word("attention_kernel", cell) is not None]
    return bool(known) and len(known) >= _LEAST_SHARE * len(distinct)


def _proves_tensor_parallel(evidence: ColumnEvidence, heading: Heading, cells: Sequence[str]) -> bool:
    """Model parallelism is tensor parallelism beside a column for the pipeline, or if the degrees then fit."""
    if "tp_degree" in evidence.names:
        return False
    if "pp_degree" in evidence.names:
        return True
    return _completes_degrees("tp_degree", evidence, heading)


def _completes_degrees(name: str, evidence: ColumnEvidence, heading: Heading) -> bool:
    if name in evidence.names or not {"dp_degree", "world_size"} <= evidence.names.keys():
        return False
    rows, found = evidence.facts(), evidence.numbers(heading)
    products = [
        (count(row, "dp_degree") or 0.0) * model_parallel({**row, name: number or 0.0})
        for row, number in zip(rows, found, strict=True)
    ]
    return len({number for number in found if number}) > 1 and evidence.agree(
        [count(row, "world_size") for row in rows], products
    )


def _proves_sharding(evidence: ColumnEvidence, heading: Heading, cells: Sequence[str]) -> bool:
    distinct = [cell for cell in set(cells) if switch_value(cell) is None]
    known = [cell for cell in distinct if standard_word("sharding_strategy", cell) is not None]
    return bool(known) and len(known) >= _LEAST_SHARE * len(distinct)


def _proves_precision(evidence: ColumnEvidence, heading: Heading, cells: Sequence[str]) -> bool:
    return all(re.search(r"[a-z]", cell.lower()) and standard_word("precision", cell) for cell in set(cells))


def _proves_shards(evidence: ColumnEvidence, heading: Heading, cells: Sequence[str]) -> bool:
    numbers = [scaled_number(cell) for cell in set(cells)]
    return all(numbers) and any(number > 1 for number in numbers if number)


def _proves_peak_memory(evidence: ColumnEvidence, heading: Heading, cells: Sequence[str]) -> bool:
    """A memory of many values on one kind of device is what jobs used; the memory of a device is constant."""
    devices = {str(row.get("device", "")) for row in evidence.facts()}
    return all(map(_is_memory, cells)) and len(set(cells)) > 2 * len(devices) + 2


def _proves_device_memory(evidence: ColumnEvidence, heading: Heading, cells: Sequence[str]) -> bool:
    """A memory is that of devices if all of many rows hold one of a few sizes in which devices are sold."""
    comma = evidence.source.decimal_comma
    sizes = {cell: gibibytes(cell, unit=heading.unit or "gib", decimal_comma=comma) for cell in set(cells)}
    return set(sizes.values()) <= _DEVICE_SIZES and len(cells) >= _LEAST_ROWS_PER_SIZE * len(sizes)


def _proves_accumulation(evidence: ColumnEvidence, heading: Heading, cells: Sequence[str]) -> bool:
    """A number is the accumulation if micro batch x it x data-parallel degree is the global batch."""
    if not {"micro_batch_size", "global_batch_size"} <= evidence.names.keys():
        return False
    rows, found = evidence.facts(), evidence.numbers(heading)
    expected = [
        samples_per_step({**row, "gradient_accumulation_steps": number or 0.0, "global_batch_size": 0.0})
        for row, number in zip(rows, found, strict=True)
    ]
    return evidence.agree([count(row, "global_batch_size") for row in rows], expected)


def _proves_step_time(unit: str) -> Callable[[ColumnEvidence, Heading, Sequence[str]], bool]:
    def proves(evidence: ColumnEvidence, heading: Heading, cells: Sequence[str]) -> bool:
        """A number is a step time in a unit if no other unit gives a possible share of the devices' peak."""
        if all(map(states_time, cells)):
            return unit == "seconds_per_step"
        shares = _utilisations(evidence, heading)
        if not shares:
            return False
        middle = median(shares)
        in_seconds, in_milliseconds = _is_possible(middle), _is_possible(1000.0 * middle)
        return in_seconds != in_milliseconds and in_seconds == (unit == "seconds_per_step")

    return proves


def _utilisations(evidence: ColumnEvidence, heading: Heading) -> list[float]:
    """Return the share of the peak that each row reaches if the column is in seconds: 6 FLOPs per weight and token."""
    shares = []
    for row, value in zip(evidence.facts(), evidence.numbers(heading), strict=True):
        batch, params, length = samples_per_step(row), count(row, "n_params"), count(row, "seq_len")
        world = count(row, "world_size") or ((dp_degree(row) or 0.0) * model_parallel(row))
        if value and batch and params and length and world:
            peak = (find_hardware(str(row.get("device", ""))) or REFERENCE).peak("bf16")
            shares.append(6.0 * params * batch * length / value / (world * peak))
    return shares


def _is_possible(share: float) -> bool:
    return _LEAST_UTILISATION < share < _MOST_UTILISATION


def _proves_sequence_degree(evidence: ColumnEvidence, heading: Heading, cells: Sequence[str]) -> bool:
    return _completes_degrees("cp_degree", evidence, heading)


_PROOFS: dict[str, Callable[[ColumnEvidence, Heading, Sequence[str]], bool]] = {
    "micro_batch_size": _proves_micro_batch,
    "global_batch_size": _proves_global_batch,
    "device": _proves_device,
    "attention_kernel": _proves_kernel,
    "tp_degree": _proves_tensor_parallel,
    "cp_degree": _proves_sequence_degree,
    "precision": _proves_precision,
    "sharding_strategy": _proves_sharding,
    "dp_shard_degree": _proves_shards,
    PEAK_MEMORY: _proves_peak_memory,
    "device_memory_gib": _proves_device_memory,
    "gradient_accumulation_steps": _proves_accumulation,
    "seconds_per_step": _proves_step_time("seconds_per_step"),
    "milliseconds_per_step": _proves_step_time("milliseconds_per_step"),
}
"""Name -> check that the rows of a column of several meanings prove this one."""

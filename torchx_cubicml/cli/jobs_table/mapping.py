"""Mapping from the columns of a table to the fields of a trial, from options or a TOML file."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Self

from torchx_cubicml.cli.jobs_table.cells import own_value
from torchx_cubicml.cli.jobs_table.column_roles import ROLES, UNITS
from torchx_cubicml.cli.jobs_table.headings import read_heading
from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.standard_names import standard_name
from torchx_cubicml.user_files import parse_toml, read_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from torchx_cubicml.records.values import Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingFields:
    """Fields of a mapping from the columns of a table to a trial; those that are not given are empty.

    Args:
        workload: name of a fact -> column.
        parameters: name of a parameter -> column.
        throughput: column of the throughput, or of the time of a step.
        unit: its unit, a name in ``UNITS``.
        program: program trained, where no workload column holds it.
        status: column of the job's status; empty where each row with a throughput is a job that ran.
        completed: status values of jobs that ran, in any case.
        out_of_memory: status values of jobs that ran out of memory; any other value is a failure of unknown cause.
        time: column of the job's start, ISO 8601 (a day or a month is enough); empty for none.
        peak_memory_gib: column of the largest memory of one device; empty for none.
        text: columns whose cells are texts, whatever they look like.
        facts: fact -> value that holds for each row.
    """

    workload: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    throughput: str = ""
    unit: str = ""
    program: str = ""
    status: str = ""
    completed: tuple[str, ...] = ()
    out_of_memory: tuple[str, ...] = ()
    time: str = ""
    peak_memory_gib: str = ""
    text: frozenset[str] = frozenset()
    facts: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMapping(MappingFields):
    """Whole mapping: it has a throughput, whose unit is tokens per second by default."""

    unit: str = "tokens_per_second"

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise RecordError(f"unknown unit {self.unit!r}; choose from {', '.join(UNITS)}")
        if not self.throughput:
            raise RecordError("no throughput column: give --throughput COLUMN, or throughput in the mapping file")
        if bool(self.status) != bool(self.completed):
            raise RecordError("status (a column) and completed (its values for jobs that ran) must be given together")

    @classmethod
    def from_toml(cls, path: Path) -> Self:
        """Read a mapping from a TOML file whose keys are the fields; ``workload`` may be a list of columns.

        Raises:
            RecordError: the file cannot be read, or is no such mapping.
        """
        try:
            found = parse_toml(read_text(path))
        except ValueError as error:
            raise RecordError(f"cannot read mapping file {path}: {error}") from error
        legal = {item.name for item in fields(cls)}
        unknown = sorted(found.keys() - legal)
        if unknown:
            raise RecordError(
                f"mapping file {path}: unknown key {unknown[0]!r}; choose from {', '.join(sorted(legal))}"
            )
        texts = {
            name: str(found.get(name, "")) for name in ("throughput", "program", "status", "time", "peak_memory_gib")
        }
        return cls(
            workload=named_columns(found.get("workload", [])),
            parameters=named_columns(found.get("parameters", [])),
            throughput=texts["throughput"],
            unit=str(found.get("unit", "tokens_per_second")),
            program=texts["program"],
            status=texts["status"],
            completed=_values(found, "completed", path),
            out_of_memory=_values(found, "out_of_memory", path),
            time=texts["time"],
            peak_memory_gib=texts["peak_memory_gib"],
            text=frozenset(_values(found, "text", path)),
            facts=_facts(found.get("facts", {}), path),
        )

    @property
    def columns(self) -> set[str]:
        """Columns that a table must have."""
        single = {self.throughput, self.status, self.time, self.peak_memory_gib}
        return ({*self.workload.values(), *self.parameters.values(), *single} | self.text) - {""}


def _values(found: Mapping[str, object], key: str, path: Path) -> tuple[str, ...]:
    values = found.get(key, [])
    if not isinstance(values, list):
        names = "completed and out_of_memory" if key != "text" else "text"
        raise RecordError(
            f"mapping file {path}: {names} must be {'lists' if ' ' in names else 'a list'}, got {values!r:.60}"
        )
    return tuple(map(str, values))


def _facts(found: object, path: Path) -> dict[str, Scalar]:
    if not isinstance(found, dict) or not all(isinstance(value, bool | int | float | str) for value in found.values()):
        raise RecordError(f"mapping file {path}: facts must be a table of names and values, got {found!r:.60}")
    return dict(found)


def named_columns(columns: object) -> dict[str, str]:
    """Return name -> column, from a mapping or from a list of ``column`` or ``name=column``.

    A column with a known alias gets the standard name.

    Raises:
        RecordError: the argument is neither, or a name occurs twice.

    >>> named_columns(["tp", "layers=depth", "seed", "Tensor Parallelism (ways)=width"])
    {'tp_degree': 'tp', 'layers': 'depth', 'seed': 'seed', 'Tensor Parallelism (ways)': 'width'}
    """
    if isinstance(columns, dict):
        return {str(name): str(column) for name, column in columns.items()}
    if not isinstance(columns, list):
        raise RecordError(f"columns must be a list or a table of names, got {type(columns).__name__}")
    found: dict[str, str] = {}
    for text in map(str, columns):
        name, _, column = text.rpartition("=")
        name = name or standard_column_name(column)
        if name in found:
            raise RecordError(f"two columns are named {name}: {found[name]} and {column}")
        found[name] = column
    return found


def standard_column_name(column: str) -> str:
    """Return the standard name of a column, the column itself if it has none or is ambiguous.

    >>> [standard_column_name(column) for column in ("tp", "data parallelism", "batch_size", "lr")]
    ['tp_degree', 'dp_degree', 'batch_size', 'lr']
    """
    name = read_heading(column).name
    return name if name and name not in ROLES else standard_name(column)


def column_names(texts: Iterable[str]) -> dict[str, str]:
    """Return column -> name, from ``COLUMN=NAME``; an empty name leaves the column out.

    Raises:
        RecordError: a text has no equals sign, or names a column twice.

    >>> column_names(["tensor parallelism=tp_degree", "note="])
    {'tensor parallelism': 'tp_degree', 'note': ''}
    """
    found: dict[str, str] = {}
    for text in texts:
        column, sign, name = text.rpartition("=")
        if not sign or not column:
            raise RecordError(f"--map must be COLUMN=NAME, or COLUMN= to leave it out, got {text!r:.60}")
        if column in found:
            raise RecordError(f"--map names column {column!r:.60} twice")
        found[column.strip()] = name.strip()
    return found


def fact_values(texts: Iterable[str]) -> dict[str, Scalar]:
    """Return fact -> value, from ``NAME=VALUE``.

    Raises:
        RecordError: a text has no equals sign.

    >>> fact_values(["seq_len=4096", "device=H100"])
    {'seq_len': 4096, 'device': 'H100'}
    """
    found: dict[str, Scalar] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name.strip() or not value.strip():
            raise RecordError(f"--fact must be NAME=VALUE, got {text!r:.60}")
        found[standard_column_name(name.strip())] = own_value(value.strip())
    return found

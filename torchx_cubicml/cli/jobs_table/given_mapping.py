"""Choice of the mapping: what the user gave, joined with what is proposed."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Self

from torchx_cubicml.cli.jobs_table.column_roles import OUTCOME, PEAK_MEMORY, PROGRAM, ROLES, STARTED_AT, STATUS, UNITS
from torchx_cubicml.cli.jobs_table.headings import read_heading
from torchx_cubicml.cli.jobs_table.mapping import MappingFields, TableMapping, standard_column_name
from torchx_cubicml.cli.jobs_table.proposal import STEP_DOUBT, has_micro_batches, times_of_iteration
from torchx_cubicml.cli.jobs_table.rates import count
from torchx_cubicml.cli.jobs_table.statuses import states_of_words
from torchx_cubicml.cli.jobs_table.synonyms import WORKLOAD_SYNONYMS
from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.standard_names import ACCUMULATION
from torchx_cubicml.records.trial import State

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.cli.jobs_table.proposal import ColumnPlan
    from torchx_cubicml.cli.jobs_table.source import SourceTable

_SINGLE = {"throughput": "", "status": STATUS, "time": STARTED_AT, "peak_memory_gib": PEAK_MEMORY}


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenMapping(MappingFields):
    """Part of a mapping that the user gave.

    Args:
        columns: column -> name or role, by ``--map``; an empty name leaves the column out.
    """

    columns: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, mapping: TableMapping) -> Self:
        """Return a whole mapping as given."""
        return cls(**{item.name: getattr(mapping, item.name) for item in fields(MappingFields)})

    @property
    def is_whole(self) -> bool:
        """Flag: it names a throughput and parameters, so that nothing needs to be proposed."""
        return bool(self.throughput and self.parameters)

    def named(self) -> dict[str, str]:
        """Return column -> name or role of all columns that the user named.

        Raises:
            RecordError: a name of ``--map`` is no legal one.
        """
        found = {column: name for name, column in {**self.workload, **self.parameters}.items()}
        if self.throughput:
            found[self.throughput] = self.unit or _unit_of(self.throughput)
        found |= {getattr(self, name): role for name, role in _SINGLE.items() if role and getattr(self, name)}
        return found | {column: _legal_name(name) for column, name in self.columns.items()}

    def check_columns(self, source: SourceTable) -> None:
        """Check that the table has each column that the user named.

        Raises:
            RecordError: it lacks one.
        """
        missing = sorted({*self.named(), *self.text} - set(source.headings))
        if missing:
            raise RecordError(f"{source.place}: no column {missing[0]!r}; choose from {', '.join(source.headings)}")

    def joined(self, source: SourceTable, plans: Sequence[ColumnPlan]) -> TableMapping:
        """Return the whole mapping: what is given, and what is planned for the other columns.

        Raises:
            RecordError: there is no throughput, or no status that says that a job ran.
        """
        placed = {**self.workload, **self.parameters}
        others = [plan for plan in plans if plan.heading.text not in placed.values()]
        by_name = {plan.name: plan.heading.text for plan in others if plan.name and plan.name not in {*UNITS, OUTCOME}}
        rated = next((plan for plan in plans if plan.name in UNITS), None)
        units = () if self.unit else times_of_iteration(self.throughput, _unit_of(self.throughput))
        several = (count(self.facts, ACCUMULATION) or 0.0) > 1.0
        if units and (several or has_micro_batches(source, {**by_name, **placed}.get(ACCUMULATION, ""))):
            raise RecordError(f"column {self.throughput!r} {STEP_DOUBT}: give --unit {' or --unit '.join(units)}")
        status = self.status or by_name.pop(STATUS, "")
        completed, out_of_memory = self._statuses(source, status)
        single = {name: by_name.pop(name, "") for name in (STARTED_AT, PEAK_MEMORY, STATUS)}
        free = {name: column for name, column in by_name.items() if name not in placed and name not in self.facts}
        facts = {name for name in free if name in WORKLOAD_SYNONYMS or name == PROGRAM}
        return TableMapping(
            workload={**self.workload, **{name: column for name, column in free.items() if name in facts}},
            parameters={**self.parameters, **{name: column for name, column in free.items() if name not in facts}},
            throughput="" if rated is None else rated.heading.text,
            unit="tokens_per_second" if rated is None else rated.name,
            program=self.program,
            status=status,
            completed=completed,
            out_of_memory=out_of_memory,
            time=self.time or single[STARTED_AT],
            peak_memory_gib=self.peak_memory_gib or single[PEAK_MEMORY],
            text=self.text,
            facts=self.facts,
        )

    def _statuses(self, source: SourceTable, column: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if not column or self.completed:
            return self.completed, self.out_of_memory
        states = states_of_words(source.cells(column), heading=column)
        completed = tuple(word for word, state in states.items() if state is State.COMPLETED)
        has_blanks = "" in source.cells(column)
        if not completed and not has_blanks:
            words = ", ".join(f"{word:.24}" for word in list(states)[:6])
            raise RecordError(
                f"no status in column {column!r} says that a job ran: give --completed with one of {words}"
            )
        found = tuple(word for word, state in states.items() if state is State.OUT_OF_MEMORY)
        return (*completed, *([""] if has_blanks else [])), self.out_of_memory or found


def _unit_of(column: str) -> str:
    """Return the unit that the heading of a throughput says, tokens per second where it says none."""
    name = read_heading(column).name
    return name if name in UNITS else UNITS[0]


def _legal_name(name: str) -> str:
    if name in {"throughput", "step_time", "time"}:
        raise RecordError(f"--map COLUMN={name} has no unit; choose from {', '.join((*UNITS, STARTED_AT))}")
    return name if not name or name in ROLES else standard_column_name(name)

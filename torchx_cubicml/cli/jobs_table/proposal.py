"""Proposed meaning of each column of a table, for the user to confirm."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torchx_cubicml.cli.jobs_table.cells import COUNTS, shards_parameters
from torchx_cubicml.cli.jobs_table.column_roles import (
    GLOBAL_BATCH_TOKENS,
    MICRO_BATCH_TIMES,
    OUTCOME,
    PEAK_MEMORY,
    PROGRAM,
    STARTED_AT,
    STATUS,
    STEP_TIMES,
    UNITS,
)
from torchx_cubicml.cli.jobs_table.evidence import ColumnEvidence, is_plausible
from torchx_cubicml.cli.jobs_table.headings import read_heading
from torchx_cubicml.cli.jobs_table.rates import missing_for_steps
from torchx_cubicml.cli.jobs_table.statuses import state_of_word
from torchx_cubicml.cli.jobs_table.synonyms import STEMS, heading_key
from torchx_cubicml.cli.jobs_table.written_numbers import rate, scaled_number, seconds
from torchx_cubicml.records.standard_names import ACCUMULATION
from torchx_cubicml.records.standard_words import standard_word, switch_value, zero_stage
from torchx_cubicml.records.trial import State

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.cli.jobs_table.headings import Heading
    from torchx_cubicml.cli.jobs_table.source import SourceTable

STEP_DOUBT = "may be the time of a step or of one of its micro batches"
_STEP_WORDS = re.compile(r"step|optim|update|global")  # an iteration of these is a step, whatever its micro batches
_ONCE = frozenset({STATUS, STARTED_AT, PEAK_MEMORY, PROGRAM})
_FAILED = frozenset({State.UNKNOWN, State.OUT_OF_MEMORY})
_MOST_SHOWN = 4  # values that a reason quotes
_NEARLY_ALL = 0.95  # of the rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnPlan:
    """Proposed meaning of one column.

    Args:
        heading: of the column.
        name: standard name or role; empty where the column is left over.
        choices: names of which the user must choose one; empty where there is no doubt.
        reason: cause for leaving the column over, or for the question.
        is_given: whether the user named it.
    """

    heading: Heading
    name: str = ""
    choices: tuple[str, ...] = ()
    reason: str = ""
    is_given: bool = False


def propose_columns(source: SourceTable, given: Mapping[str, str]) -> list[ColumnPlan]:
    """Return the proposed meaning of each column, in their order.

    Args:
        source: the table.
        given: column -> name, as the user says; an empty name leaves a column out.
    """
    plans = {heading: _first_plan(source, heading, given) for heading in source.headings}
    plans = _with_failures(source, _without_duplicates(source, plans))
    for _ in range(2):  # what the first round settles is evidence for the second
        evidence = ColumnEvidence(
            source, {plan.name: plan.heading for plan in plans.values() if plan.name in COUNTS | {"device"}}
        )
        for heading, plan in plans.items():
            if plan.choices:
                name = evidence.chosen(plan.heading)
                plans[heading] = replace(plan, name=name, choices=(), reason="") if name else plan
        plans = _without_duplicates(source, plans)
    plans = _without_read_choices(plans)
    plans = _with_devices_per_node(source, _with_batch_in_tokens(source, plans))
    plans = _with_doubtful_step_times(source, plans)
    return list(_with_one_throughput(source, plans).values())


def _with_failures(source: SourceTable, plans: dict[str, ColumnPlan]) -> dict[str, ColumnPlan]:
    """Return the plans where a column of an unknown heading tells which jobs failed, if no other column does.

    Remarks stand beside the failed jobs only; a verdict stands beside each job.
    """
    if any(plan.name == STATUS for plan in plans.values()):
        return plans
    for heading, plan in plans.items():
        cells = source.known_cells(heading)
        states = {cell: state_of_word(cell, heading=heading) for cell in set(cells)}
        failed = {cell for cell, state in states.items() if state in _FAILED and switch_value(cell) is None}
        is_told = len(cells) < len(source.rows) or State.COMPLETED in states.values()
        is_free = not plan.name and not plan.choices and not plan.is_given
        if is_free and failed and is_told and None not in states.values():
            return {**plans, heading: replace(plan, name=STATUS, reason="")}
    return plans


def _first_plan(source: SourceTable, text: str, given: Mapping[str, str]) -> ColumnPlan:
    heading, cells = read_heading(text), source.known_cells(text)
    if text in given:
        reason = "" if given[text] else "left out as asked"
        return ColumnPlan(heading=heading, name=given[text], reason=reason, is_given=True)
    if not cells:
        return ColumnPlan(heading=heading, reason="empty")
    name = _name_by_cells(heading, cells)
    if name == OUTCOME or (name and is_plausible(name, heading, cells)):
        return ColumnPlan(heading=heading, name=name)
    return _doubtful_plan(heading, name, cells)


def _doubtful_plan(heading: Heading, name: str, cells: Sequence[str]) -> ColumnPlan:
    if name:
        return ColumnPlan(heading=heading, reason=f"may be {name}, but holds {_shown(cells)}")
    if heading.choices:
        possible = tuple(choice for choice in heading.choices if is_plausible(choice, heading, cells))
        may = " or ".join(possible or heading.choices)
        holds = f"; holds {_shown(cells)}" if possible else f", but holds {_shown(cells)}"
        return ColumnPlan(heading=heading, choices=possible, reason=f"may be {may}{holds}")
    if len(set(cells)) == 1:
        return ColumnPlan(heading=heading, reason=f"always {cells[0]!r:.40}")
    key = heading_key(heading.text)
    concern = next((f"; it may concern {name}" for stem, name in STEMS.items() if stem in key), "")
    return ColumnPlan(heading=heading, reason=f"unknown heading{concern}")


def _name_by_cells(heading: Heading, cells: Sequence[str]) -> str:
    """Return the name of a column whose cells show that it is a sister of what its heading says."""
    name = heading.name
    if name == "sharding_strategy" and shards_parameters(heading.text) and all(map(_is_switch_or_digit, cells)):
        return name  # the numbers of FSDP's strategies are no stages of ZeRO
    if name == "sharding_strategy" and all(zero_stage(cell) is not None for cell in cells):
        return "zero_stage"
    if name == "zero_stage" and all(zero_stage(cell) is None for cell in cells):
        return "sharding_strategy" if any(standard_word("sharding_strategy", cell) for cell in cells) else name
    if name == "sequence_parallel" and any((scaled_number(cell) or 0.0) > 1 for cell in cells):
        return "cp_degree"
    if name == "device" and all(cell.isdecimal() for cell in cells):
        return "world_size"
    return "device" if name == "world_size" and not any(map(scaled_number, cells)) else name


def _is_switch_or_digit(cell: str) -> bool:
    return cell.isdecimal() or switch_value(cell) is not None


def _without_duplicates(source: SourceTable, plans: dict[str, ColumnPlan]) -> dict[str, ColumnPlan]:
    """Return the plans with one column per name: equal columns count once, others are asked for."""
    by_name: dict[str, list[ColumnPlan]] = {}
    for plan in plans.values():
        if plan.name and plan.name != OUTCOME and plan.name not in UNITS:
            by_name.setdefault(plan.name, []).append(plan)
    for name, rivals in by_name.items():
        given = [plan for plan in rivals if plan.is_given]
        if len(rivals) > 1:
            for plan in _one_of(source, name, given[:1] or rivals, rivals):
                plans[plan.heading.text] = plan
    return plans


def _one_of(
    source: SourceTable, name: str, favourites: Sequence[ColumnPlan], rivals: Sequence[ColumnPlan]
) -> list[ColumnPlan]:
    if name == PROGRAM and len(favourites) > 1:
        return [plan if plan is rivals[0] else replace(plan, name=plan.heading.text) for plan in rivals]
    best = max(favourites, key=lambda plan: len(set(source.known_cells(plan.heading.text))))
    if name in COUNTS | _ONCE and len(favourites) > 1:
        best = max(favourites, key=lambda plan: (len(source.known_cells(plan.heading.text)), _digits(source, plan)))
    found = [best]
    for plan in rivals:
        if plan is best:
            continue
        is_same = _is_same_status if name == STATUS else _is_same
        if len(favourites) == 1 or is_same(source, best.heading, plan.heading):
            found.append(replace(plan, name="", choices=(), reason=f"{name} is read from {best.heading.text!r}"))
        else:
            reason = f"like {best.heading.text!r} it may be {name}, with other values"
            found.append(replace(plan, name="", choices=(name,), reason=reason))
    return found


def _digits(source: SourceTable, plan: ColumnPlan) -> int:
    return sum(len(cell) for cell in set(source.known_cells(plan.heading.text)))


def _is_same(source: SourceTable, one: Heading, other: Heading) -> bool:
    evidence = ColumnEvidence(source, {})
    first, second = evidence.numbers(one), evidence.numbers(other)
    scaled = ([None if value is None else value * heading.scale for value in values] for values, heading in (
        (first, one), (second, other),
    ))  # fmt: skip
    pairs = list(zip(source.cells(one.text), source.cells(other.text), strict=True))
    return evidence.agree(*scaled) or all(left == right for left, right in pairs)


def _is_same_status(source: SourceTable, one: Heading, other: Heading) -> bool:
    """Return whether two columns of statuses name the same jobs as completed."""
    ran = (
        [state_of_word(cell, heading=heading.text) is State.COMPLETED for cell in source.cells(heading.text)]
        for heading in (one, other)
    )
    return next(ran) == next(ran)


def _without_read_choices(plans: dict[str, ColumnPlan]) -> dict[str, ColumnPlan]:
    """Return the plans where a heading of one possible meaning is no question if another column has that meaning."""
    column_of = {plan.name: plan.heading.text for plan in plans.values() if plan.name and plan.name not in UNITS}
    for heading, plan in plans.items():
        if plan.choices and plan.choices == plan.heading.choices and len(plan.choices) == 1:
            (name,) = plan.choices
            if name in column_of:
                reason = f"{name} is read from {column_of[name]!r}"
                plans[heading] = replace(plan, choices=(), reason=reason)
    return plans


def _with_devices_per_node(source: SourceTable, plans: dict[str, ColumnPlan]) -> dict[str, ColumnPlan]:
    """Return the plans where a number of GPUs beside a number of nodes is of one node, if the rows say so."""
    named = {plan.name: plan for plan in plans.values() if plan.name}
    devices, nodes = named.get("world_size"), named.get("nnodes")
    if devices is None or nodes is None or devices.is_given or "nproc_per_node" in named:
        return plans
    evidence = ColumnEvidence(source, {})
    counted = evidence.numbers(devices.heading)
    pairs = [
        (gpus, hosts) for gpus, hosts in zip(counted, evidence.numbers(nodes.heading), strict=True) if gpus and hosts
    ]
    varies = len({hosts for _, hosts in pairs}) > 1
    is_constant = varies and len({gpus for gpus, _ in pairs}) == 1
    if is_constant or any(gpus < hosts for gpus, hosts in pairs):
        plans[devices.heading.text] = replace(devices, name="nproc_per_node")
    return plans


def _with_batch_in_tokens(source: SourceTable, plans: dict[str, ColumnPlan]) -> dict[str, ColumnPlan]:
    """Return the plans where the global batch counts tokens, if the rows say so."""
    named = {plan.name: plan for plan in plans.values() if plan.name in COUNTS}
    batch = named.pop("global_batch_size", None)
    if batch is None or batch.is_given:
        return plans
    evidence = ColumnEvidence(source, {name: plan.heading for name, plan in named.items()})
    if evidence.agree(evidence.tokens_per_step(), evidence.numbers(batch.heading)):
        plans[batch.heading.text] = replace(batch, name=GLOBAL_BATCH_TOKENS)
    return plans


def _with_doubtful_step_times(source: SourceTable, plans: dict[str, ColumnPlan]) -> dict[str, ColumnPlan]:
    """Return the plans where the time of an iteration is asked for, if a step of some row has several micro batches.

    Some trainers call each micro batch an iteration, others each step.
    """
    rounds = next((heading for heading, plan in plans.items() if plan.name == ACCUMULATION), "")
    if not has_micro_batches(source, rounds):
        return plans
    for heading, plan in plans.items():
        if choices := () if plan.is_given else times_of_iteration(heading, plan.name):
            plans[heading] = replace(plan, name="", choices=choices, reason=STEP_DOUBT)
    return plans


def has_micro_batches(source: SourceTable, column: str) -> bool:
    """Return whether a step of some row has several micro batches, by a column of their number; empty for none."""
    cells = {*source.known_cells(column)} if column else ()
    return any((scaled_number(cell, decimal_comma=source.decimal_comma) or 0.0) > 1.0 for cell in cells)


def times_of_iteration(text: str, name: str) -> tuple[str, ...]:
    """Return what a column may hold if a step has several micro batches; empty without doubt."""
    return (name, MICRO_BATCH_TIMES[name]) if name in MICRO_BATCH_TIMES and not _STEP_WORDS.search(text.lower()) else ()


def _with_one_throughput(source: SourceTable, plans: dict[str, ColumnPlan]) -> dict[str, ColumnPlan]:
    """Return the plans with one column of throughput; the others are outcomes."""
    rated = [plan for plan in plans.values() if plan.name in UNITS]
    names = {plan.name for plan in plans.values() if plan.name}
    usable = [plan for plan in rated if plan.is_given or not _lacks(plan.name, names)] or rated
    asked = any(plan.is_given for plan in rated)
    if not usable:
        return plans
    counts = {plan.heading.text: _n_positive(source, plan) for plan in usable}
    enough = _NEARLY_ALL * max(counts.values())
    best = min(
        (plan for plan in usable if counts[plan.heading.text] >= enough and (plan.is_given or not asked)),
        key=lambda plan: UNITS.index(plan.name),
        default=usable[0],
    )
    for plan in rated:
        if plan is not best:
            reason = f"throughput is read from {best.heading.text!r}"
            plans[plan.heading.text] = replace(plan, name=OUTCOME, reason=reason)
    for heading, plan in plans.items():
        if set(plan.choices) & set(UNITS):
            reason = f"throughput is read from {best.heading.text!r}"
            plans[heading] = replace(plan, name=OUTCOME, choices=(), reason=reason)
    return plans


def _lacks(unit: str, names: set[str]) -> bool:
    """Return whether the table lacks what turns a unit into the throughput of the job."""
    if unit.endswith("_per_device"):
        return not (
            {"world_size"} & names
            or {"nnodes", "nproc_per_node"} <= names
            or {"dp_degree", "tp_degree", "pp_degree"} <= names
        )
    return not unit.startswith(("tokens", "samples")) and bool(missing_for_steps(names))


def _n_positive(source: SourceTable, plan: ColumnPlan) -> int:
    comma = source.decimal_comma
    read = seconds if plan.name in STEP_TIMES else rate
    return sum((read(cell, decimal_comma=comma) or 0.0) > 0 for cell in source.cells(plan.heading.text))


def _shown(cells: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(cells))
    more = f" and {len(distinct) - _MOST_SHOWN} more" if len(distinct) > _MOST_SHOWN else ""
    return ", ".join(f"{cell:.24}" for cell in distinct[:_MOST_SHOWN]) + more

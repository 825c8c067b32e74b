"""Trainers in a space file: the additions that a trainer's table makes to a file that names it.

- A parameter in the table needs no binding, no choices and no default, and has a short form: ``"auto"``, one value, or
  a list.
- Facts that parameters and rules need are read from the trainer's flags.
- If the micro batch or the mesh is tuned, accumulation is derived, so that the global batch stays constant.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torchx_cubicml.records.standard_names import ACCUMULATION
from torchx_cubicml.space import Binding, BindingKind, Parameter, SearchSpace, WorkloadFact
from torchx_cubicml.space.arithmetic import kind
from torchx_cubicml.space.constraints import NOT_DATA_PARALLEL, batch_derivation
from torchx_cubicml.space.expression import parse_expression
from torchx_cubicml.space.legality import JOB_RULES, LegalityRule
from torchx_cubicml.space.toml.schema import closest
from torchx_cubicml.space.trainers import TRAINERS, WORKLOAD_NAMES

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from torchx_cubicml.records.values import Scalar
    from torchx_cubicml.space.expression import Expression
    from torchx_cubicml.space.toml.schema import TomlTable
    from torchx_cubicml.space.trainers import Trainer, TrainerFlag

AUTO = "auto"
JOB_ACCUMULATION = "job_accumulation_steps"
_MAX_SAMPLES = 3  # values that a message gives as examples

_IN_BATCH = ("micro_batch_size", "world_size", *NOT_DATA_PARALLEL)
_FACTS = frozenset(
    {
        *WORKLOAD_NAMES,
        *NOT_DATA_PARALLEL,
        *("dp_replicate_degree", "dp_shard_degree", "micro_batch_size", "global_batch_size", ACCUMULATION),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerParameter:
    """A parameter in a trainer's table.

    Args:
        choices: values that ``"auto"`` stands for.
        binding: its flag, or its key in a file.
        default: the trainer's value if the command states none; ``None`` if unknown.
        when: condition under which it counts; ``None`` for always.
    """

    choices: tuple[Scalar, ...]
    binding: Binding
    default: Scalar | None
    when: Expression | None


def read_trainer(root: TomlTable) -> Trainer | None:
    """Return the trainer that a file names, ``None`` if it names none.

    Raises:
        SpaceError: there is no table of that trainer.
    """
    name = root.text("trainer")
    if name is None:
        return None
    if name not in TRAINERS:
        raise root.unknown("trainer", "trainer", name, TRAINERS)
    return TRAINERS[name]


def trainer_parameter(trainer: Trainer | None, name: str) -> TrainerParameter | None:
    """Return a parameter of a trainer's table, ``None`` if it is not there."""
    flag = trainer.flags.get(name) if trainer is not None else None
    if trainer is None or flag is None or (name == ACCUMULATION and trainer.accumulation != "per rank"):
        return None
    return TrainerParameter(
        choices=flag.choices,
        binding=_binding(trainer, flag),
        default=flag.default if flag.flag else flag.file_default,
        when=parse_expression(flag.when, where=f"trainer {trainer.name}: {name}") if flag.when else None,
    )


def is_auto_accumulation(tables: TomlTable, name: str, trainer: Trainer | None) -> bool:
    """Return whether a parameter is accumulation with the value ``"auto"``, which the trainer's table derives."""
    return trainer is not None and name == ACCUMULATION and tables.raw(name) == AUTO


def read_short_form(tables: TomlTable, name: str, trainer: Trainer) -> Parameter:
    """Return the parameter ``name = "auto"``, ``name = 4`` or ``name = [1, 2, 4]`` of ``[parameters]``.

    Raises:
        SpaceError: the trainer's table lacks it, or the trainer does not take a value.
    """
    known = trainer_parameter(trainer, name)
    if known is None:
        raise tables.error(
            name,
            f"trainer {trainer.name!r} has no flag for it{closest(name, trainer.flags)}; write a table with choices "
            f"and a binding, or use one of {', '.join(trainer.flags)}",
        )
    if tables.raw(name) == AUTO:
        if not known.choices:
            raise tables.error(name, no_values_text(trainer, name))
        choices = known.choices
    else:
        value = tables.value(name)
        choices = value if isinstance(value, tuple) else () if value is None else (value,)
        check_values(tables, name, choices, trainer)
    return Parameter(name=name, choices=choices, binding=known.binding, default=known.default, when=known.when)


def no_values_text(trainer: Trainer, name: str) -> str:
    """Return the rule that the values of a flag must be listed, with examples of its kind.

    >>> no_values_text(TRAINERS["torchtitan"], "compile")
    "the trainer's table has no values for it; list them, as in [false, true]"
    """
    samples = trainer.flags[name].samples
    numbers = [value for value in samples if isinstance(value, int | float) and not isinstance(value, bool)]
    if numbers or not samples:
        first = numbers[0] if numbers else 1
        samples = (first, 2 * first) if first > 0 else (first, 1)
    listed = ", ".join(json.dumps(value) for value in samples[:_MAX_SAMPLES])
    return f"the trainer's table has no values for it; list them, as in [{listed}]"


def check_values(table: TomlTable, key: str, values: Iterable[Scalar], trainer: Trainer, *, name: str = "") -> None:
    """Check that a trainer takes ``values`` for its flag.

    Raises:
        SpaceError: a value is of another kind, or no word of the trainer.
    """
    flag = trainer.flags[name or key]
    legal = dict.fromkeys([*flag.choices, *(word for word, _ in flag.words)])
    sample = flag.samples
    for value in values:
        if sample and kind(value) != kind(sample[0]):
            raise table.error(key, f"must be {kind(sample[0])} for trainer {trainer.name!r}")
        words = value.split() if isinstance(value, str) and flag.takes_list else [value]
        if isinstance(value, str) and legal and not set(words) <= set(legal):
            raise table.unknown(key, "value", value, [*map(str, legal)], owner=f"trainer {trainer.name!r}")


def with_trainer(space: SearchSpace, trainer: Trainer, *, accumulates: bool) -> SearchSpace:
    """Return the space with the additions of a trainer's table: accumulation, constraints, and facts from its flags.

    Args:
        space: the space that the file declares.
        trainer: the trainer that the file names.
        accumulates: whether accumulation must be derived whatever is tuned.
    """
    names = {item.name for item in space.parameters} | {item.name for item in space.workload}
    tuned = [item.name for item in space.parameters]
    parameters = list(space.parameters)
    if ACCUMULATION not in names and (accumulates or any(name in _IN_BATCH for name in tuned)):
        parameters += _accumulation(trainer)
        names |= {ACCUMULATION}
    rules = [parse_expression(rule, where=f"trainer {trainer.name}") for rule in trainer.constraints]
    constraints = [*space.constraints, *(rule for rule in rules if _with_mesh(rule.names) & set(tuned))]
    space = replace(space, parameters=tuple(parameters), constraints=tuple(constraints))
    space = replace(space, workload=(*space.workload, *_facts(space, trainer, names)))
    return replace(space, rule_facts=_rule_facts(space, trainer))


def implied_rules(trainer: Trainer | None, *, ignored: Container[str] = ()) -> tuple[LegalityRule, ...]:
    """Return the implied rules of a space file: those of every job, and those of its trainer.

    Args:
        trainer: the trainer that the file names.
        ignored: names of the rules that the file ignores.
    """
    rules = {rule.name: rule for rule in JOB_RULES}
    if trainer is not None:
        scope = f"{trainer.name} {trainer.release.version}"
        rules |= {name: LegalityRule.of(name, stated, scope=scope) for name, stated in trainer.rules.items()}
    exempt = trainer.exempt if trainer is not None else ()
    return tuple(rule for name, rule in rules.items() if name not in ignored and name not in exempt)


def _accumulation(trainer: Trainer) -> list[Parameter]:
    where = f"trainer {trainer.name}: {ACCUMULATION}"
    per_rank = parse_expression(batch_derivation(), where=where)
    flag = trainer.flags.get(ACCUMULATION)
    if flag is None:
        return [Parameter(name=ACCUMULATION, derive=per_rank)] if trainer.accumulation == "implied" else []
    binding = _binding(trainer, flag)
    if trainer.accumulation == "per rank":
        return [Parameter(name=ACCUMULATION, derive=per_rank, binding=binding, default=flag.default)]
    of_job = parse_expression("global_batch_size / micro_batch_size", where=where)
    share = parse_expression(f"{JOB_ACCUMULATION} / dp_degree", where=where)
    return [
        Parameter(name=JOB_ACCUMULATION, derive=of_job, binding=binding, default=flag.default),
        Parameter(name=ACCUMULATION, derive=share),
    ]


def _facts(space: SearchSpace, trainer: Trainer, declared: set[str]) -> list[WorkloadFact]:
    """Return the facts read from the trainer's flags; those that no expression reads may be absent."""
    needed = _with_mesh(_names_read(space))
    declared_bindings = [item.binding for item in space.parameters] + [item.binding for item in space.workload]
    taken = {
        *space.tune.args,
        *(declared_binding.name for declared_binding in declared_bindings if declared_binding is not None),
    }
    facts = []
    for name, flag in trainer.flags.items():
        binding = _binding(trainer, flag)
        if name in declared or binding.name in taken or (name not in needed and name not in _FACTS):
            continue
        value = flag.default if flag.flag else flag.file_default
        # The global batch must be stated only if it implies accumulation; otherwise it is computed.
        optional = name not in needed or (name == "global_batch_size" and trainer.accumulation != "implied")
        facts.append(WorkloadFact(name=name, binding=binding, value=value, optional=optional))
    return facts


def _rule_facts(space: SearchSpace, trainer: Trainer) -> tuple[WorkloadFact, ...]:
    """Return the facts that only the trainer's rules read, with the flags that state them."""
    read = set[str]().union(*(rule.expression.names for rule in implied_rules(trainer)))
    declared = {item.name for item in space.parameters} | {item.name for item in space.workload}
    return tuple(
        WorkloadFact(
            name=name,
            binding=_binding(trainer, flag),
            value=flag.default if flag.flag else flag.file_default,
            optional=flag.default is None,
        )
        for name, flag in trainer.flags.items()
        if name in read - declared
    )


def _names_read(space: SearchSpace) -> set[str]:
    expressions: list[Expression | None] = [*space.constraints]
    names: set[str] = set()
    for item in space.parameters:
        expressions += [item.derive, item.when]
        names |= {item.counted_by} if isinstance(item.counted_by, str) else set()
    return names.union(*(expression.names for expression in expressions if expression is not None))


def _with_mesh(names: Iterable[str]) -> set[str]:
    names = set(names)
    return names | set(NOT_DATA_PARALLEL) if "dp_degree" in names else names


def _binding(trainer: Trainer, flag: TrainerFlag) -> Binding:
    return Binding(
        kind=BindingKind.FLAG if flag.flag else BindingKind.FILE,
        name=flag.flag or f"{flag.key} in {flag.file}",
        aliases=flag.aliases,
        words=flag.words,
        bare=flag.bare,
        companions=flag.companions,
        unless=trainer.other_defaults,
        file=flag.file,
        key=tuple(filter(None, flag.key.split("."))),
        file_default=flag.file_default,
        file_words=flag.file_words,
        flag_overrides_file=flag.flag_overrides_file,
        file_must_be_auto=flag.file_must_be_auto,
        implied=flag.implied,
        takes_list=flag.takes_list,
        of_launcher=flag.of_launcher,
    )

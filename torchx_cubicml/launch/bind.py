"""Reads the config of a command where a search space says that its values stand, and writes another in its place.

The law: writing back the config just read changes nothing, and what is written is what is read back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError, SpaceError
from torchx_cubicml.launch.flag_place import FlagPlace
from torchx_cubicml.launch.flag_values import is_stated, read_flag, remove_flag, write_flag
from torchx_cubicml.launch.launch import workload_of
from torchx_cubicml.launch.script_args import flags_in, positionals, set_flag
from torchx_cubicml.launch.spelling import read_scalar, same_value, spell, spell_switch, switch_value
from torchx_cubicml.space import LandingKind, implied_values
from torchx_cubicml.trial import MAX_ITEMS, freeze_values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.launch.launch import Launch
    from torchx_cubicml.space import Landing, Parameter, SearchSpace, WorkloadFact
    from torchx_cubicml.trial import Config, Scalar, Value, Workload


def read_config(launch: Launch, space: SearchSpace) -> tuple[Workload, Config]:
    """Return the workload and the config that the command states, at the places that the space declares.

    Raises:
        LaunchError: a declared place is not in the command and has no default, or holds no legal kind of value.
        RecordError: a value is larger than a record may hold.
    """
    if not launch.program:
        raise LaunchError(f"the command starts no training: {launch.not_rewritten}")
    facts = _sizes_in_use(launch, space)
    for fact in space.workload:
        value = _read_fact(launch, fact, space)
        if value is not None:
            facts[fact.name] = value
    workload = freeze_values(workload_of(launch, facts), where="workload")
    config: dict[str, Value] = {}
    for parameter in space.parameters:
        if parameter.landing is not None:
            count = _entries(parameter, {**facts, **config})
            config[parameter.name] = _read_parameter(launch, parameter, space, count)
    config |= _implied(space, {**workload, **config})
    return workload, freeze_values(config, where="config")


def write_config(launch: Launch, space: SearchSpace, config: Config) -> Launch:
    """Return the launch with the values of ``config`` in it; parameters that it does not name stay as they are.

    Raises:
        LaunchError: a value cannot be written so that it is read back.
    """
    workload, current = read_config(launch, space)
    written = launch
    for parameter in space.parameters:
        value = config.get(parameter.name)
        if parameter.landing is None or value is None or same_value(value, current[parameter.name]):
            continue
        count = _entries(parameter, {**workload, **config})
        written = _write_parameter(written, parameter, space, value, count)
    _, read_back = read_config(written, space)
    landed = {item.name: current[item.name] for item in space.parameters if item.landing is not None}
    for name, value in {**landed, **config}.items():
        if name in read_back and not same_value(read_back[name], value):
            raise LaunchError(f"parameter {name} cannot be set to {spell(value)!r:.60} in this command")
    return written


def change_for_profiling(launch: Launch, space: SearchSpace, filled: Mapping[str, str]) -> Launch:
    """Return the launch with the flags and variables that ``[tune]`` changes, their ``{names}`` filled in.

    Args:
        launch: a command.
        space: says what a profiling launch changes.
        filled: what ``{scratch}``, ``{launch_id}``... stand for.
    """
    args = launch.script_args
    for flag, text in space.tune.args.items():
        args = set_flag(args, flag, _fill(text, filled))
    changes = {name: _fill(text, filled) for name, text in space.tune.env.items()}
    return replace(launch, script_args=args, env={**launch.env, **changes})


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is looked for at a place: whose it is, its legal values, its entries, and whether it counts at all times."""

    owner: str
    choices: tuple[Scalar, ...]
    default: Value | None
    count: int | None
    may_be_idle: bool = False


def _sizes_in_use(launch: Launch, space: SearchSpace) -> dict[str, Value]:
    """Return how the job is spread over nodes, where an expression asks; elsewhere it sets no workloads apart."""
    expressions = [*space.constraints]
    for item in space.parameters:
        expressions += [expression for expression in (item.derive, item.when) if expression is not None]
    names = frozenset().union(*(expression.names for expression in expressions))
    sizes = {"nnodes": launch.nnodes, "nproc_per_node": launch.nproc_per_node}
    return {name: size for name, size in sizes.items() if name in names and size is not None}


def _implied(space: SearchSpace, known: Mapping[str, Value]) -> dict[str, Value]:
    """Return the parameters that have no place in the command and follow from those that have one."""
    try:
        return implied_values(space, known)
    except SpaceError as error:
        raise LaunchError(f"the command does not fit the space file: {error}") from None


def _read_fact(launch: Launch, fact: WorkloadFact, space: SearchSpace) -> Value | None:
    if fact.landing is None:
        if fact.value is None:
            raise LaunchError(f"workload fact {fact.name} has neither a value nor a place in the command")
        return fact.value
    kind = (fact.value,) if isinstance(fact.value, bool) else ()
    wanted = _Wanted(f"workload fact {fact.name}", kind, fact.value, None)
    if fact.optional and not _is_said(launch, fact.landing, space, wanted):
        return None
    return _read(launch, fact.landing, space, wanted)


def _is_said(launch: Launch, landing: Landing, space: SearchSpace, wanted: _Wanted) -> bool:
    """Whether the command says a value, or the default is known."""
    if landing.kind is LandingKind.HOOK:
        return wanted.default is not None
    if landing.kind is LandingKind.ENV:
        return wanted.default is not None or landing.name in launch.env
    place = _flag_place(launch, landing, space, wanted)
    return place.default is not None or is_stated(launch.script_args, place)


def _read_parameter(launch: Launch, parameter: Parameter, space: SearchSpace, count: int | None) -> Value:
    if parameter.landing is None:
        raise LaunchError(f"parameter {parameter.name} has no place in the command")
    return _read(launch, parameter.landing, space, _wanted(parameter, count))


def _wanted(parameter: Parameter, count: int | None) -> _Wanted:
    default = parameter.default
    if default is not None and count is not None and not isinstance(default, tuple):
        default = (default,) * count
    return _Wanted(
        f"parameter {parameter.name}", parameter.choices, default, count, may_be_idle=parameter.when is not None
    )


def _read(launch: Launch, landing: Landing, space: SearchSpace, wanted: _Wanted) -> Value:
    if landing.kind is LandingKind.ENV:
        return _read_variable(launch, landing.name, wanted)
    if landing.kind is LandingKind.HOOK:
        return _read_hook(launch, landing.name, wanted)
    return read_flag(launch.script_args, _flag_place(launch, landing, space, wanted))


def _write_parameter(
    launch: Launch, parameter: Parameter, space: SearchSpace, value: Value, count: int | None
) -> Launch:
    landing, wanted = parameter.landing, _wanted(parameter, count)
    if landing is None:
        return launch
    if landing.kind is LandingKind.ENV:
        like = launch.env.get(landing.name, "1")
        text = spell_switch(value, like=like) if isinstance(value, bool) else spell(value)
        return replace(launch, env={**launch.env, landing.name: text})
    if landing.kind is LandingKind.HOOK:
        hooks = {name: kept for name, kept in launch.hooks.items() if name != landing.name}
        as_typed = same_value(value, wanted.default) if wanted.default is not None else False
        return replace(launch, hooks=hooks if as_typed else {**hooks, landing.name: value})
    place = _flag_place(launch, landing, space, wanted)
    args = write_flag(launch.script_args, place, value)
    return replace(launch, script_args=_with_companions(args, landing, place, value))


def _with_companions(args: tuple[str, ...], landing: Landing, place: FlagPlace, value: Value) -> tuple[str, ...]:
    """Return ``args`` with the flags that must stand beside a value, and without those of other values."""
    wanted = {flag: text for known, beside in landing.companions if same_value(known, value) for flag, text in beside}
    for flag in dict.fromkeys(flag for _, beside in landing.companions for flag, _ in beside):
        beside = FlagPlace(flag=flag, owner=place.owner, other_flags=place.other_flags | {place.flag})
        if flag not in wanted:
            args = remove_flag(args, beside)
        elif not is_stated(args, beside):
            args = write_flag(args, beside, wanted[flag])
    return args


def _flag_place(launch: Launch, landing: Landing, space: SearchSpace, wanted: _Wanted) -> FlagPlace:
    places = [parameter.landing for parameter in space.parameters] + [fact.landing for fact in space.workload]
    declared = {
        name
        for place in places
        if place is not None and place.kind is LandingKind.FLAG
        for name in (place.name, *place.aliases)
    }
    elsewhere = _elsewhere(launch.script_args, landing.unless)
    default = None if elsewhere else wanted.default
    unsaid = next((value for value, text in landing.words if not text and same_value(value, default or ())), None)
    return FlagPlace(
        flag=landing.name,
        owner=wanted.owner,
        choices=wanted.choices,
        default=default,
        count=wanted.count,
        other_flags=frozenset(declared - {landing.name, *landing.aliases}),
        aliases=landing.aliases,
        words=landing.words,
        bare=landing.bare,
        absent=default if wanted.may_be_idle else unsaid,
        elsewhere=elsewhere,
    )


def _elsewhere(args: Sequence[str], patterns: Sequence[str]) -> str:
    """Return the flag or file in a command that brings other defaults, as one of ``patterns`` says."""
    words = [*flags_in(args), *positionals(args)]
    return next((word for word in words if any(fnmatchcase(word, pattern) for pattern in patterns)), "")


def _read_variable(launch: Launch, name: str, wanted: _Wanted) -> Value:
    text = launch.env.get(name)
    if text is None:
        if wanted.default is not None:
            return wanted.default
        there = ", ".join(sorted(launch.env)) or "none"
        raise LaunchError(
            f"variable {name} of {wanted.owner} is not set in the command and has no default; set there: {there}"
        )
    if wanted.count is not None:
        texts = text.split(",")
        texts = texts * wanted.count if len(texts) == 1 else texts
        return tuple(read_scalar(entry, wanted.choices, where=name) for entry in texts)
    said = switch_value(text) if bool in map(type, wanted.choices) else None
    return read_scalar(text, wanted.choices, where=name) if said is None else said


def _read_hook(launch: Launch, name: str, wanted: _Wanted) -> Value:
    value = launch.hooks.get(name, wanted.default)
    if value is None:
        raise LaunchError(f"{wanted.owner} has a hook and no default")
    return value


def _entries(parameter: Parameter, known: Mapping[str, Value]) -> int | None:
    if parameter.per_layer is None or isinstance(parameter.per_layer, int):
        return parameter.per_layer
    count = known.get(parameter.per_layer)
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_ITEMS:
        raise LaunchError(
            f"parameter {parameter.name} has one value per {parameter.per_layer}, which must be a whole number from 1 "
            f"to {MAX_ITEMS} known from the command, got {count!r:.60}"
        )
    return count


def _fill(text: str, filled: Mapping[str, str]) -> str:
    for name, value in filled.items():
        text = text.replace(f"{{{name}}}", value)
    return text

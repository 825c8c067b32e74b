"""Config input and output: read the config at its bindings in a command, and write another in its place.

Round-trip law: writing back the config just read changes nothing, and a written config is read back unchanged.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from torchx_cubicml.errors import LaunchError, SpaceError
from torchx_cubicml.history.history import History
from torchx_cubicml.history.present_command import PresentCommand, setting_names
from torchx_cubicml.launch.bindings.argv import set_flag
from torchx_cubicml.launch.bindings.base import BindingQuery
from torchx_cubicml.launch.bindings.config_file import ConfigFileBinding, checked_keys
from torchx_cubicml.launch.bindings.env import EnvBinding
from torchx_cubicml.launch.bindings.flag import FlagBinding
from torchx_cubicml.launch.bindings.hook import HookBinding
from torchx_cubicml.launch.bindings.job_options import ComponentOptionBinding, SchedulerOptionBinding
from torchx_cubicml.launch.bindings.torchrun_size import TorchrunSizeBinding
from torchx_cubicml.launch.command_texts import command_texts, program_path, recorded_variables
from torchx_cubicml.launch.launch import Launch, workload_of
from torchx_cubicml.launch.scheduler import program_environment
from torchx_cubicml.records.argument_words import argument_words
from torchx_cubicml.records.values import MAX_ITEMS, Value, freeze_values
from torchx_cubicml.space import BindingKind, implied_values
from torchx_cubicml.space.spelling import same_value, spell

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torchx_cubicml.launch.bindings.base import BindingIO
    from torchx_cubicml.records.contract import Contract
    from torchx_cubicml.records.values import Config, Workload
    from torchx_cubicml.space import Binding, Parameter, SearchSpace, WorkloadFact

_T = TypeVar("_T")


def read_config(launch: Launch, space: SearchSpace) -> tuple[Workload, Config]:
    """Return the workload and the config that the command states at the bindings of the space.

    Raises:
        LaunchError: a declared binding is not in the command and has no default, or its value is of an illegal kind.
        RecordError: a value is larger than a record may hold.
    """
    if not launch.program:
        raise LaunchError(f"the command starts no training: {launch.why_not_rewritten}")
    facts = _sizes_in_use(launch, space)
    for fact in space.workload:
        value = _read_fact(launch, fact, space)
        if value is not None:
            facts[fact.name] = value
    tuned = {parameter.name for parameter in space.parameters}
    known = workload_of(_without_chosen_host(launch, space), facts, project=space.project)
    workload = freeze_values({name: value for name, value in known.items() if name not in tuned}, where="workload")
    config: dict[str, Value] = {}
    unstated: dict[str, Value | None] = {}
    for parameter in space.parameters:
        binding = parameter.binding
        if binding is None:
            continue
        query = _query(parameter, space, _entry_count(parameter, {**facts, **config}))
        binding_io, place = _BINDING_IO[binding.kind], _with_place(launch, binding)
        if binding.implied and not binding_io.says(place, binding, replace(query, default=None)):
            unstated[parameter.name] = query.default
            continue
        value = binding_io.read(place, binding, query)
        if binding.implied_by and value in binding.implied_by:
            unstated[parameter.name] = query.default
        else:
            config[parameter.name] = value
    config |= _implied(space, {**workload, **config})
    config |= {name: value for name, value in unstated.items() if name not in config and value is not None}
    return workload, freeze_values(config, where="config")


def _without_chosen_host(launch: Launch, space: SearchSpace) -> Launch:
    """Return the launch without the host that the command names, if a parameter chooses that: then it is no fact."""
    is_chosen = any(item.binding is not None and item.binding.name == "-h" for item in space.parameters)
    return replace(launch, device="") if is_chosen else launch


def with_rule_facts(launch: Launch, space: SearchSpace) -> SearchSpace:
    """Return the space with the facts that only its rules read, as far as the command states them."""
    read = {fact.name: _value_or_none(partial(_read_fact, launch, fact, space)) for fact in space.rule_facts}
    known = {name: value for name, value in read.items() if value is not None}
    return replace(space, known={**space.known, **known}) if known else space


def command_history(launch: Launch, space: SearchSpace) -> History:
    """Return the history of a command, without trials as yet.

    Raises:
        LaunchError: see ``read_config``.
    """
    workload, current = read_config(launch, space)
    command = present_command(launch, space)
    return History(space=with_rule_facts(launch, space), workload=workload, current=current, command=command)


def present_command(launch: Launch, space: SearchSpace) -> PresentCommand:
    """Return the command of a launch, as a history compares it; the bindings of the space declare settings."""
    program, environment = program_path(launch.program, is_module=launch.is_module), program_environment(launch)
    variables = recorded_variables(program, environment)
    files = {f":{'.'.join(key)}" for keys in space.tune.files.values() for key in keys}
    return replace(
        program_command(program, space),
        arguments=launch.script_args,
        texts=command_texts(program, launch.script_args, variables=variables, environment=environment),
        redirected=frozenset({*argument_words([*space.tune.args]), *(f"${name}" for name in space.tune.env), *files}),
    )


def program_command(program: Path | None, space: SearchSpace) -> PresentCommand:
    """Return a command of which no more is known than its program's file: enough to read the records of others."""
    declared = [item.binding for item in space.parameters] + [fact.binding for fact in space.workload]
    bindings = [binding for binding in declared if binding is not None]
    bound = [binding.name for binding in bindings if binding.kind == BindingKind.ENV]
    return PresentCommand(
        declared=frozenset(name for binding in bindings for name in setting_names(binding)),
        variables=frozenset(recorded_variables(program, bound)),
        stated=partial(stated_values, program="" if program is None else str(program)),
    )


def stated_values(
    arguments: Sequence[str], space: SearchSpace, known: Mapping[str, Value], *, program: str = ""
) -> dict[str, Value | None]:
    """Return the values of parameters and workload facts bound to flags, as the program's arguments state them.

    Config files are not read: they may have changed since.

    Args:
        arguments: of the program, in an earlier command.
        space: contains the bindings.
        known: facts of the launch, one of which may count the entries of a per-layer parameter.
        program: its file, whose source tells which flags take no value; empty if unknown.

    Returns:
        Value by name. The value is ``None`` where it is unknown: its flag is absent and has no default, or what stands
        there is no legal kind of value. A name whose value may stand elsewhere than in the arguments is left out.
    """
    launch, stated = Launch(program=program, script_args=tuple(arguments)), dict[str, Value | None]()
    for fact in space.workload:
        if fact.binding is not None and _is_in_arguments(launch, fact.binding, _fact_query(fact, space)):
            stated[fact.name] = _value_or_none(partial(_read_fact, launch, fact, space))
    facts = {**known, **{name: value for name, value in stated.items() if value is not None}}
    for parameter in space.parameters:
        binding = parameter.binding
        if binding is None:
            continue
        query = _query(parameter, space, _value_or_none(partial(_entry_count, parameter, facts)))
        if binding.implied:
            query = replace(query, default=None)
        if _is_in_arguments(launch, binding, query):
            value = _value_or_none(partial(_FLAG_BINDING.read, launch, binding, query))
            stated[parameter.name] = None if value in binding.implied_by else value
    return stated


def _is_in_arguments(launch: Launch, binding: Binding, query: BindingQuery) -> bool:
    """Return whether the arguments decide on a value: no config file that they may name has a say."""
    # A record holds no options of a launcher.
    if binding.kind != BindingKind.FLAG or binding.of_launcher or _FLAG_BINDING.is_left_to_file(launch, binding, query):
        return False
    # The path of a file is recorded as a digest, and a variable is not recorded.
    is_named_by_flag = binding.file.startswith("-") or binding.file.endswith("=")
    return not binding.file or is_named_by_flag or _FLAG_BINDING.is_typed(launch, binding, query)


def _value_or_none(read: Callable[[], _T]) -> _T | None:
    try:
        return read()
    except LaunchError:
        return None


def write_config(launch: Launch, space: SearchSpace, config: Config) -> Launch:
    """Return the launch with the values of ``config``; parameters that it does not name stay as they are.

    Raises:
        LaunchError: a value cannot be written so that it is read back.
    """
    workload, current = read_config(launch, space)
    written = launch
    for parameter in space.parameters:
        value = config.get(parameter.name)
        if parameter.binding is None or value is None or same_value(value, current.get(parameter.name, ())):
            continue
        query = _query(parameter, space, _entry_count(parameter, {**workload, **config}))
        written = _written(written, parameter.binding, query, value)
    _, read_back = read_config(written, space)
    unchanged = {item.name: current[item.name] for item in space.parameters if item.binding and item.name in current}
    for name, value in {**unchanged, **config}.items():
        if name in read_back and not same_value(read_back[name], value):
            raise LaunchError(f"parameter {name} cannot be set to {spell(value)!r:.60} in this command")
    return written


def _with_place(launch: Launch, binding: Binding) -> Launch:
    """Return the launch with the words in which the binding is: those of the launcher, or of the program."""
    return replace(launch, script_args=launch.launcher_args) if binding.of_launcher else launch


def _written(launch: Launch, binding: Binding, query: BindingQuery, value: Value) -> Launch:
    written = _BINDING_IO[binding.kind].write(_with_place(launch, binding), binding, query, value)
    if not binding.of_launcher:
        return written
    return replace(written, script_args=launch.script_args, launcher_args=written.script_args)


def checked_hooks(launch: Launch, space: SearchSpace, config: Config) -> dict[str, Value]:
    """Return the hooks that a launch does not set, with the program's own values.

    The job finds out whether the hooks could set other values.
    """
    return {
        item.binding.name: config[item.name]
        for item in space.parameters
        if item.binding is not None and item.binding.kind == BindingKind.HOOK and item.name in config
        if item.binding.name not in launch.hooks
    }


def kept_variables(contract: Contract, space: SearchSpace | None = None) -> tuple[str, ...]:
    """Return the names of the environment variables that are kept with a command: those recorded, and those bound."""
    bindings = [item.binding for item in space.parameters] if space is not None else []
    bound = [each.name for each in bindings if each is not None and each.kind == BindingKind.ENV]
    return tuple(sorted({*contract.variables, *bound}))


def change_for_profiling(launch: Launch, space: SearchSpace, filled: Mapping[str, str]) -> Launch:
    """Return the launch with the flags, variables and file keys that ``[tune]`` changes, placeholders filled in.

    Args:
        launch: a command.
        space: contains the changes of a profiling launch.
        filled: values of the placeholders ``{scratch}``, ``{launch_id}``...

    Raises:
        LaunchError: a key cannot be set in its file.
    """
    args = launch.script_args
    for flag, text in space.tune.args.items():
        args = set_flag(args, flag, _fill(text, filled))
    changes = {name: _fill(text, filled) for name, text in space.tune.env.items()}
    files = dict(launch.files)
    for file, keys in space.tune.files.items():
        filled_in = {key: _fill(text, filled) for key, text in keys.items()}
        files[file] = checked_keys(launch, file, {**files.get(file, {}), **filled_in})
    return replace(launch, script_args=args, env={**launch.env, **changes}, files=files)


_FLAG_BINDING = FlagBinding()
_BINDING_IO: dict[str, BindingIO] = {
    BindingKind.FLAG: _FLAG_BINDING,
    BindingKind.ENV: EnvBinding(),
    BindingKind.HOOK: HookBinding(),
    BindingKind.FILE: ConfigFileBinding(),
    BindingKind.TORCHRUN: TorchrunSizeBinding(),
    BindingKind.COMPONENT: ComponentOptionBinding(),
    BindingKind.SCHEDULER: SchedulerOptionBinding(),
}


def _sizes_in_use(launch: Launch, space: SearchSpace) -> dict[str, Value]:
    """Return ``nnodes`` and ``nproc_per_node`` if an expression reads them; otherwise they separate no workloads."""
    expressions = [*space.constraints]
    for item in space.parameters:
        expressions += [expression for expression in (item.derive, item.when) if expression is not None]
    names = frozenset().union(*(expression.names for expression in expressions))
    sizes = {"nnodes": launch.nnodes, "nproc_per_node": launch.nproc_per_node}
    return {name: size for name, size in sizes.items() if name in names and size is not None}


def _implied(space: SearchSpace, known: Mapping[str, Value]) -> dict[str, Value]:
    """Return the parameters that the command does not state and that follow from those it states."""
    try:
        return implied_values(space, known)
    except SpaceError as error:
        raise LaunchError(f"the command does not fit the space file: {error}") from None


def _read_fact(launch: Launch, fact: WorkloadFact, space: SearchSpace) -> Value | None:
    if fact.binding is None:
        if fact.value is None:
            raise LaunchError(f"workload fact {fact.name} needs a value or a binding to the command")
        return fact.value
    query = _fact_query(fact, space)
    binding_io = _BINDING_IO[fact.binding.kind]
    place = _with_place(launch, fact.binding)
    if fact.optional and not binding_io.says(place, fact.binding, query):
        return None
    return binding_io.read(place, fact.binding, query)


def _fact_query(fact: WorkloadFact, space: SearchSpace) -> BindingQuery:
    kind = (fact.value,) if isinstance(fact.value, bool) else ()
    return BindingQuery(
        owner=f"workload fact {fact.name}", choices=kind, default=fact.value, flags=_declared_flags(space)
    )


def _query(parameter: Parameter, space: SearchSpace, count: int | None) -> BindingQuery:
    default = parameter.default
    if default is not None and count is not None and not isinstance(default, tuple):
        default = (default,) * count
    return BindingQuery(
        owner=f"parameter {parameter.name}",
        choices=parameter.choices,
        default=default,
        count=count,
        is_conditional=parameter.when is not None,
        flags=_declared_flags(space),
    )


def _declared_flags(space: SearchSpace) -> frozenset[str]:
    facts = [*space.workload, *space.rule_facts]
    bindings = [parameter.binding for parameter in space.parameters] + [fact.binding for fact in facts]
    flags = [binding for binding in bindings if binding is not None and binding.kind == BindingKind.FLAG]
    return frozenset(name for binding in flags for name in (binding.name, *binding.aliases))


def _entry_count(parameter: Parameter, known: Mapping[str, Value]) -> int | None:
    if parameter.counted_by is None or isinstance(parameter.counted_by, int):
        return parameter.counted_by
    count = known.get(parameter.counted_by)
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_ITEMS:
        raise LaunchError(
            f"parameter {parameter.name} has one value per {parameter.counted_by}, which must be a whole number from 1 "
            f"to {MAX_ITEMS} in the command, got {count!r:.60}"
        )
    return count


def _fill(text: str, filled: Mapping[str, str]) -> str:
    for name, value in filled.items():
        text = text.replace(f"{{{name}}}", value)
    return text

"""TorchX components: parse a component with its arguments, and build its app, recorded or as typed."""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.bindings.argv import find_flag, looks_like_value, write_value
from torchx_cubicml.launch.bindings.argv import replace as replace_words
from torchx_cubicml.launch.launch import Launch, has_same_nodes
from torchx_cubicml.launch.launchers.table import LAUNCHERS, is_launcher
from torchx_cubicml.launch.role import RoleCommand, read_role
from torchx_cubicml.launch.shell import ShellWord, quote, respell, with_macro_escape, without_macro_escape
from torchx_cubicml.records.contract import CONTRACT_VARIABLE, SECOND_ATTEMPT_VARIABLE, encode_contract
from torchx_cubicml.space.spelling import spell

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torchx.specs import AppDef, Role

    from torchx_cubicml.records.contract import Contract


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterializedComponent:
    """A TorchX component with the user's arguments, materialised once as typed.

    Args:
        component: its name, or ``file.py:function``.
        options: its arguments before those of the script.
        script_args: arguments of the script, typed or from the ``.torchxconfig`` defaults.
        takes_env: whether it has an ``--env`` option.
        takes_size: whether it has a ``-j`` option for the number of nodes and processes.
        device: the host that ``-h`` names; empty without one.
        values: its other options, as ``Launch.component_options``.
        app: the app that the component returns.
    """

    component: str
    options: tuple[str, ...]
    script_args: tuple[str, ...]
    takes_env: bool
    takes_size: bool
    device: str
    values: Mapping[str, str]
    app: AppDef


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentLaunch:
    """A component that the user runs, with the training command found in its app.

    Args:
        launch: the command; its ``program`` is empty if the command could not be read.
        why_not_recorded: reason why the app can only run as typed; empty if it can be recorded.
        source: the component as TorchX materialises it.
        role: index of the recorded role.
        command: that role's command; ``None`` without one.
    """

    launch: Launch
    why_not_recorded: str
    source: MaterializedComponent
    role: int = 0
    command: RoleCommand | None = None

    @classmethod
    def parse(cls, component: str, args: Sequence[str]) -> Self:
        """Resolve a component and its arguments exactly as TorchX does, including ``.torchxconfig`` defaults.

        Raises:
            LaunchError: TorchX has no such component, or the component rejects its arguments.
            SystemExit: TorchX's parser rejects an argument; it has printed the reason to stderr.
        """
        return cls.of(materialize(component, args))

    @classmethod
    def of(cls, source: MaterializedComponent) -> Self:
        """Read the training command in an app that TorchX built."""
        commands, reasons = _read_roles(source.app)
        if not commands:
            reason = reasons[0] if reasons else "the component has no role"
            return cls(launch=Launch(program="", why_not_rewritten=reason), why_not_recorded=reason, source=source)
        role = min(commands, key=lambda position: (not commands[position].is_torchrun, position))
        names = [source.app.roles[position].name for position in commands]
        several = f"several roles train ({', '.join(names)}); only {source.app.roles[role].name} is recorded"
        env = {name: without_macro_escape(value) for name, value in source.app.roles[role].env.items()}
        launch = commands[role].launch(env=env, device=source.device, obstacle=several if len(names) > 1 else "")
        if source.takes_size and commands[role].is_torchrun and launch.world_size and not commands[role].parts.launcher:
            launch = replace(launch, resizable=frozenset({"nnodes", "nproc_per_node"}))
        launch = replace(launch, mounted=_mounted(source.app.roles[role]), component_options=source.values)
        return cls(launch=launch, why_not_recorded="", source=source, role=role, command=commands[role])

    def build(
        self, launch: Launch | None = None, contract: Contract | None = None, second_attempt: Contract | None = None
    ) -> AppDef:
        """Return the app: recorded with the arguments and variables of ``launch``, or as typed without a contract.

        Every call returns a new app.

        Args:
            launch: the command that runs; ``None`` for the one as typed.
            contract: its contract.
            second_attempt: contract of the command as typed, which runs if ``launch`` fails early; ``None`` for none.

        Raises:
            LaunchError: the recorded command does not fit into one argument.
            ContractError: the contract does not fit into one environment value.
        """
        target = launch or self.launch
        if contract is None or self.command is None:
            return copy.deepcopy(self.source.app)
        made, command, fallback = self, self.command, ""
        if self._changes_launcher(target):
            command, fallback = command.with_launcher_of(target), command.unrecorded(self.launch.script_args)
        elif _resources(target) != _resources(self.launch):
            made, command = self._rebuilt(target)
            # Other nodes are already allocated; with the typed arguments they would train with another global batch.
            typed = self.command.unrecorded(self.launch.script_args)
            fallback = typed if has_same_nodes(target, self.launch) else command.unrecorded(target.script_args)
        app = copy.deepcopy(made.source.app)
        role = app.roles[made.role]
        variables = made._changed_variables(target)
        role.entrypoint, role.args = command.wrapped(
            target.script_args,
            variables,
            fallback=fallback,
            second_attempt=None if second_attempt is None else self.command,
        )
        role.env[CONTRACT_VARIABLE] = encode_contract(contract)
        if second_attempt is not None:
            role.env[SECOND_ATTEMPT_VARIABLE] = encode_contract(second_attempt)
        return app

    def readable_words(self, launch: Launch) -> list[str]:
        """Return the command that the job runs, as words of a shell, without the recorder and the fallback.

        Raises:
            LaunchError: the component builds another command for the size of ``launch``.
        """
        command = self.command
        if command is None:
            return []
        if _resources(launch) != _resources(self.launch):
            command = self._rebuilt(launch)[1]
        settings = [f"{name}={quote(value)}" for name, value in self._changed_variables(launch).items()]
        return [*settings, *command.unrecorded_words(launch.script_args)]

    def arguments(self, launch: Launch) -> tuple[str, ...]:
        """Return the component's arguments that produce ``launch`` when typed.

        Raises:
            LaunchError: typed arguments of the component cannot express a change of ``launch``.
        """
        source, variables = self.source, self._changed_variables(launch)
        if variables and not source.takes_env:
            raise LaunchError(f"{source.component} has no --env option to set {', '.join(variables)}")
        options = self._options_of(launch)
        options = _with_variables(options, variables) if variables else options
        if self.command is None:
            return (*options, "--", *source.script_args) if source.script_args else options
        # A component that takes a whole command has the launcher's words in front of the program's arguments.
        head = self._launcher_words(launch)
        typed = source.script_args[len(self._launcher_words(self.launch)) :]
        words = [ShellWord(value=self.command.as_seen(argument), text=argument) for argument in typed]
        target_args = tuple(word.value for word in words)
        if launch.script_args != self.launch.script_args:
            if target_args != self.launch.script_args:
                raise LaunchError(f"{source.component} builds script arguments that cannot be typed")
            target_args = launch.script_args
        script_args = (*head, *respell(words, target_args, spell=self.command.as_typed))
        return (*options, "--", *script_args) if script_args else options

    def _changes_launcher(self, launch: Launch) -> bool:
        """Return whether ``launch`` has other options of the launcher, the number of processes among them."""
        return self.command is not None and self.command.with_launcher_of(launch).words != self.command.words

    def _launcher_words(self, launch: Launch) -> tuple[str, ...]:
        """Return the component's arguments in front of those of the program, with the launcher's options of ``launch``.

        Raises:
            LaunchError: the component does not take the launcher's words as they stand in its command.
        """
        source, command = self.source, self.command
        count = len(source.script_args) - len(self.launch.script_args)
        typed = source.script_args[: max(count, 0)]
        if command is None or not self._changes_launcher(launch):
            return typed
        if [without_macro_escape(word) for word in typed] != [each.value for each in command.words[: len(typed)]]:
            raise LaunchError(f"{source.component} builds a command whose launcher cannot be typed")
        made = command.with_launcher_of(launch)
        return tuple(with_macro_escape(word.value) for word in made.words[: made.parts.args_start])

    def _rebuilt(self, launch: Launch) -> tuple[Self, RoleCommand]:
        """Return the component, materialised by TorchX with the size and the options of ``launch``, and its command."""
        source = self.source
        typed = ("--", *source.script_args) if source.script_args else ()
        rebuilt = self.of(materialize(source.component, [*self._options_of(launch), *typed]))
        actual = rebuilt.launch
        same = (actual.program, actual.script_args) == (self.launch.program, self.launch.script_args)
        if rebuilt.command is None or not same or _resources(actual) != _resources(launch):
            changed = " ".join(f"{flag} {text}" for flag, text in self._changed_options(launch).items())
            raise LaunchError(f"{source.component} builds a different command for {changed}")
        return rebuilt, rebuilt.command

    def _changed_options(self, launch: Launch) -> dict[str, str]:
        """Return the options of the component that ``launch`` changes, its size among them."""
        typed, size = self.launch, (launch.nnodes, launch.nproc_per_node)
        is_own = size == (typed.nnodes, typed.nproc_per_node) or self._changes_launcher(launch)
        sizes = {} if is_own else {"-j": f"{size[0]}x{size[1]}"}
        options = launch.component_options.items()
        return sizes | {flag: text for flag, text in options if typed.component_options.get(flag) != text}

    def _options_of(self, launch: Launch) -> tuple[str, ...]:
        """Return the component's options with the size and the options of ``launch``."""
        options = self.source.options
        for flag, text in self._changed_options(launch).items():
            options = _with_option(options, flag, text)
        return options

    def _changed_variables(self, launch: Launch) -> dict[str, str]:
        return {name: value for name, value in launch.env.items() if self.launch.env.get(name) != value}


def _resources(launch: Launch) -> tuple[object, ...]:
    """Return the resources that TorchX reserves for a launch: its size, and the options of its component."""
    return launch.nnodes, launch.nproc_per_node, dict(launch.component_options)


def _with_option(options: tuple[str, ...], flag: str, text: str) -> tuple[str, ...]:
    """Return the component's options with another value of one, in the form in which it is typed."""
    for name in (flag, f"-{flag}") if len(flag) == 2 else (flag,):
        found = find_flag(options, name, is_value=looks_like_value)
        if found and found[-1].texts:
            return replace_words(options, found[-1], write_value(name, [text], found[-1].form))
    return (*options, flag, text)


def materialize(component: str, args: Sequence[str]) -> MaterializedComponent:
    """Return a component, materialised by TorchX with its arguments; see ``ComponentLaunch.parse``.

    A launcher or Python in its place runs behind ``utils.sh``.
    """
    from torchx.runner.config import load_sections
    from torchx.specs import finder
    from torchx.specs.builders import materialize_appdef, parse_args

    try:
        function = finder.get_component(component).fn
    except (finder.ComponentNotFoundException, finder.ComponentValidationException, OSError, ValueError) as error:
        if is_launcher(component):
            return materialize("utils.sh", [component, *args])
        raise LaunchError(f"{_text_of(error)}; or begin with {LAUNCHERS}") from error
    defaults = load_sections("component").get(component)
    parsed = vars(parse_args(function, list(args), defaults))
    try:
        app = materialize_appdef(function, list(args), defaults)
    except (ValueError, LookupError, OSError) as error:
        raise LaunchError(f"{component} rejects its arguments: {_text_of(error)}") from error
    script_args = _script_args(function, parsed)
    typed = list(args[len(args) - len(script_args) :]) == script_args
    return MaterializedComponent(
        component=component,
        options=tuple(args[: len(args) - len(script_args)] if typed else args),
        script_args=tuple(script_args[1:] if script_args[:1] == ["--"] else script_args),
        takes_env="env" in parsed,
        takes_size="j" in parsed,
        device=str(parsed.get("h") or ""),
        values=_option_values(parsed),
        app=app,
    )


def _option_values(parsed: Mapping[str, object]) -> dict[str, str]:
    """Return the single values among the parsed options, as ``Launch.component_options``."""
    values = {name: "" if value is None else value for name, value in parsed.items() if name not in {"j", "env"}}
    return {
        f"-{name}" if len(name) == 1 else f"--{name}": spell(value)
        for name, value in values.items()
        if isinstance(value, str | int | float)
    }


def _script_args(function: Callable[..., AppDef], parsed: Mapping[str, object]) -> list[str]:
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            values = parsed.get(name)
            return [str(value) for value in values] if isinstance(values, list) else []
    return []


def _read_roles(app: AppDef) -> tuple[dict[int, RoleCommand], list[str]]:
    commands: dict[int, RoleCommand] = {}
    reasons: list[str] = []
    for position, role in enumerate(app.roles):
        try:
            commands[position] = read_role(role)
        except LaunchError as error:
            reasons.append(f"role {role.name}: {error}")
    return commands, reasons


def _mounted(role: Role) -> tuple[str, ...]:
    """Return the writable mounts of a role (host folders and volumes) whose path is the same inside and outside."""
    paths = []
    for mount in role.mounts:
        inside = str(mount.dst_path)
        outside = str(getattr(mount, "src_path", inside))  # a volume has a name instead
        # A device has paths but holds no files, and is not said to be read-only.
        if inside == outside and not getattr(mount, "read_only", True):
            paths.append(inside)
    return tuple(paths)


def _with_variables(options: Sequence[str], variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return a component's options with ``variables`` added to those that ``--env`` already sets."""
    text = ",".join(f"{name}={value}" for name, value in variables.items())
    found = find_flag(options, "--env", is_value=looks_like_value)
    if not found or not found[-1].texts:
        return (*options, "--env", text)
    words = write_value("--env", [f"{found[-1].texts[0]},{text}"], found[-1].form)
    return replace_words(options, found[-1], words)


def _text_of(error: Exception) -> str:
    """Return an error's message on one line; that of a ``KeyError`` is only the key, so it gets a prefix."""
    text = " ".join(str(error).split())
    return f"unknown {text}" if isinstance(error, KeyError) else text

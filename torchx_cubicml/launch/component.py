"""A TorchX component and its arguments in, the app that it makes out, recorded or as typed."""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.bindings.argv import find_flag, looks_like_value, write_value
from torchx_cubicml.launch.bindings.argv import replace as replace_words
from torchx_cubicml.launch.launch import Launch
from torchx_cubicml.launch.role import RoleCommand, read_role
from torchx_cubicml.launch.shell import ShellWord, keep_texts, without_macro_escape
from torchx_cubicml.records.contract import CONTRACT_VARIABLE, encode_contract

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torchx.specs import AppDef, Role

    from torchx_cubicml.records.contract import Contract


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterializedComponent:
    """A TorchX component with the user's arguments, materialised once as typed.

    Args:
        component: its name, or ``file.py:function``.
        options: its arguments up to the script's.
        script_args: the script's arguments among them, or in its ``.torchxconfig`` defaults.
        takes_env: whether it has an ``--env`` option.
        takes_size: whether its ``-j`` option says how many nodes and processes there are.
        device: the host that ``-h`` names; empty where none is named.
        app: the app that it makes.
    """

    component: str
    options: tuple[str, ...]
    script_args: tuple[str, ...]
    takes_env: bool
    takes_size: bool
    device: str
    app: AppDef


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentLaunch:
    """A component that the user runs, with what could be read of its command.

    Args:
        launch: the command; without a program where it could not be read.
        not_recorded: why the app can only run as typed, in words; empty where it can be recorded.
        source: the component as TorchX materialises it.
        role: position of the role that is recorded.
        command: that role's command; ``None`` where there is none.
    """

    launch: Launch
    not_recorded: str
    source: MaterializedComponent
    role: int = 0
    command: RoleCommand | None = None

    @classmethod
    def parse(cls, component: str, args: Sequence[str]) -> Self:
        """Resolve a component and its arguments exactly as TorchX does, its ``.torchxconfig`` defaults included.

        Raises:
            LaunchError: TorchX knows no such component, or the component refuses its arguments.
            SystemExit: TorchX's parser refuses an argument; it has told so on stderr.
        """
        return cls.of(materialize(component, args))

    @classmethod
    def of(cls, source: MaterializedComponent) -> Self:
        """Read the command in an app that TorchX made."""
        commands, reasons = _read_roles(source.app)
        if not commands:
            reason = reasons[0] if reasons else "it has no role"
            return cls(launch=Launch(program="", not_rewritten=reason), not_recorded=reason, source=source)
        role = min(commands, key=lambda position: (not commands[position].is_torchrun, position))
        names = [source.app.roles[position].name for position in commands]
        several = f"several of its roles train ({', '.join(names)}), of which {source.app.roles[role].name} is recorded"
        env = {name: without_macro_escape(value) for name, value in source.app.roles[role].env.items()}
        launch = commands[role].launch(env=env, device=source.device, obstacle=several if len(names) > 1 else "")
        if source.takes_size and commands[role].is_torchrun and launch.world_size is not None:
            launch = replace(launch, resizable=frozenset({"nnodes", "nproc_per_node"}))
        launch = replace(launch, mounted=_mounted(source.app.roles[role]))
        return cls(launch=launch, not_recorded="", source=source, role=role, command=commands[role])

    def build(self, launch: Launch | None = None, contract: Contract | None = None) -> AppDef:
        """Return the app: recorded, with the arguments and variables of ``launch``; as typed without a contract.

        Every call returns an app of its own.

        Raises:
            LaunchError: the recorded command does not fit into one argument.
            ContractError: the contract does not fit into one environment value.
        """
        wanted = launch or self.launch
        if contract is None or self.command is None:
            return copy.deepcopy(self.source.app)
        if wanted.world_size != self.launch.world_size or wanted.nnodes != self.launch.nnodes:
            return self._resized(wanted)._wrapped(wanted, contract, otherwise=self._otherwise(wanted))
        return self._wrapped(wanted, contract)

    def _wrapped(self, wanted: Launch, contract: Contract, *, otherwise: str = "") -> AppDef:
        app = copy.deepcopy(self.source.app)
        if self.command is None:
            return app
        role = app.roles[self.role]
        variables = self._changed_variables(wanted)
        role.entrypoint, role.args = self.command.wrapped(wanted.script_args, variables, otherwise=otherwise)
        role.env[CONTRACT_VARIABLE] = encode_contract(contract)
        return app

    def arguments(self, launch: Launch) -> tuple[str, ...]:
        """Return the component's arguments that make ``launch`` when typed.

        Raises:
            LaunchError: the component leaves no room for what ``launch`` changes.
        """
        source, variables = self.source, self._changed_variables(launch)
        if variables and not source.takes_env:
            raise LaunchError(f"{source.component} has no --env option that sets {', '.join(variables)}")
        options = self._sized_options(launch)
        options = _with_variables(options, variables) if variables else options
        if self.command is None:
            return (*options, "--", *source.script_args) if source.script_args else options
        words = [ShellWord(value=self.command.as_seen(argument), text=argument) for argument in source.script_args]
        wanted = tuple(word.value for word in words)
        if launch.script_args != self.launch.script_args:
            if wanted != self.launch.script_args:
                raise LaunchError(f"{source.component} makes up arguments of its script that cannot be typed")
            wanted = launch.script_args
        script_args = keep_texts(words, wanted, spell=self.command.as_typed)
        return (*options, "--", *script_args) if script_args else options

    def _otherwise(self, wanted: Launch) -> str:
        """Return what a job of another size runs where it cannot record: as typed, or as many nodes would need it."""
        if self.command is None:
            return ""
        if wanted.nnodes == self.launch.nnodes:
            return self.command.unrecorded(self.launch.script_args)
        # The nodes are there; the user's own arguments would train with another global batch on them.
        resized = self._resized(wanted).command
        return resized.unrecorded(wanted.script_args) if resized is not None else ""

    def _resized(self, launch: Launch) -> Self:
        """Return the component as TorchX materialises it for another number of nodes and processes."""
        source = self.source
        typed = ("--", *source.script_args) if source.script_args else ()
        resized = self.of(materialize(source.component, [*self._sized_options(launch), *typed]))
        told, wanted = resized.launch, (launch.nnodes, launch.nproc_per_node)
        same = (told.program, told.script_args) == (self.launch.program, self.launch.script_args)
        if not same or (told.nnodes, told.nproc_per_node) != wanted:
            raise LaunchError(f"{source.component} makes another command of -j {wanted[0]}x{wanted[1]}")
        return resized

    def _sized_options(self, launch: Launch) -> tuple[str, ...]:
        """Return the component's options with the size of ``launch``."""
        options, wanted = self.source.options, (launch.nnodes, launch.nproc_per_node)
        if wanted == (self.launch.nnodes, self.launch.nproc_per_node):
            return options
        text = f"{wanted[0]}x{wanted[1]}"
        for flag in ("-j", "--j"):
            found = find_flag(options, flag, is_value=looks_like_value)
            if found and found[-1].texts:
                return replace_words(options, found[-1], write_value(flag, [text], found[-1].form))
        return (*options, "-j", text)

    def _changed_variables(self, launch: Launch) -> dict[str, str]:
        return {name: value for name, value in launch.env.items() if self.launch.env.get(name) != value}


def materialize(component: str, args: Sequence[str]) -> MaterializedComponent:
    """Return what TorchX makes of a component and its arguments; see ``ComponentLaunch.parse``."""
    from torchx.runner.config import load_sections
    from torchx.specs import finder
    from torchx.specs.builders import materialize_appdef, parse_args

    try:
        function = finder.get_component(component).fn
    except (finder.ComponentNotFoundException, finder.ComponentValidationException, OSError, ValueError) as error:
        raise LaunchError(_text_of(error)) from error
    defaults = load_sections("component").get(component)
    parsed = vars(parse_args(function, list(args), defaults))
    try:
        app = materialize_appdef(function, list(args), defaults)
    except (ValueError, LookupError, OSError) as error:
        raise LaunchError(f"{component} refuses its arguments: {_text_of(error)}") from error
    script_args = _script_args(function, parsed)
    typed = list(args[len(args) - len(script_args) :]) == script_args
    return MaterializedComponent(
        component=component,
        options=tuple(args[: len(args) - len(script_args)] if typed else args),
        script_args=tuple(script_args[1:] if script_args[:1] == ["--"] else script_args),
        takes_env="env" in parsed,
        takes_size="j" in parsed,
        device=str(parsed.get("h") or ""),
        app=app,
    )


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
    """Return the folders of this machine, or of a volume, that a role can write to under the path they have here."""
    kept = []
    for mount in role.mounts:
        inside = str(getattr(mount, "dst_path", ""))  # a device has a path too, and keeps no files
        outside = str(getattr(mount, "src_path", inside))  # a volume has a name instead
        if inside and inside == outside and not getattr(mount, "read_only", True):
            kept.append(inside)
    return tuple(kept)


def _with_variables(options: Sequence[str], variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return a component's options that set ``variables`` besides what ``--env`` sets already."""
    text = ",".join(f"{name}={value}" for name, value in variables.items())
    found = find_flag(options, "--env", is_value=looks_like_value)
    if not found or not found[-1].texts:
        return (*options, "--env", text)
    words = write_value("--env", [f"{found[-1].texts[0]},{text}"], found[-1].form)
    return replace_words(options, found[-1], words)


def _text_of(error: Exception) -> str:
    """Return an error's own words on one line; those of a missing key are only the key."""
    text = " ".join(str(error).split())
    return f"unknown {text}" if isinstance(error, KeyError) else text

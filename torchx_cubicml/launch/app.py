"""Everything that touches TorchX: a component and its arguments in, the app that it makes out, recorded or as typed."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Self

from torchx_cubicml.contract import CONTRACT_VARIABLE, encode_contract
from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.launch import Launch
from torchx_cubicml.launch.role_command import RoleCommand, read_role
from torchx_cubicml.launch.script_args import looks_like_value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torchx.specs import AppDef, Role

    from torchx_cubicml.contract import Contract


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentLaunch:
    """A TorchX component with the user's arguments, materialised once as typed.

    Args:
        component: its name, or ``file.py:function``.
        args: its arguments, script arguments included.
        launch: the command in it; without a program where ``not_recorded`` says why there is none.
        not_recorded: why the app can only run as typed, in words; empty where it can be recorded.
        typed: the app as the user typed it.
        role: position of the role that is recorded.
        command: that role's command; ``None`` where there is none.
    """

    component: str
    args: tuple[str, ...]
    launch: Launch
    not_recorded: str
    typed: AppDef
    role: int = 0
    command: RoleCommand | None = None

    @classmethod
    def parse(cls, component: str, args: Sequence[str]) -> Self:
        """Resolve a component and its arguments exactly as TorchX does, its ``.torchxconfig`` defaults included.

        Raises:
            LaunchError: TorchX knows no such component, or the component refuses its arguments.
            SystemExit: its parser refuses an argument; it has told so on stderr.
        """
        typed, device = _materialize(component, args)
        commands, reasons = _read_roles(typed)
        common = {"component": component, "args": tuple(args), "typed": typed}
        if not commands:
            return cls(launch=Launch(program=""), not_recorded=reasons[0] if reasons else "it has no role", **common)
        index = min(commands, key=lambda position: (not commands[position].is_torchrun, position))
        command = commands[index]
        several = f"roles {', '.join(typed.roles[position].name for position in commands)} each train"
        obstacle = several if len(commands) > 1 else command.not_rewritten
        launch = command.launch(env=_without_macro_escapes(typed.roles[index].env), device=device, obstacle=obstacle)
        return cls(launch=launch, not_recorded="", role=index, command=command, **common)

    def build(self, launch: Launch | None = None, contract: Contract | None = None) -> AppDef:
        """Return the app: recorded, with the arguments and variables of ``launch``; as typed without a contract.

        Every call returns an app of its own.

        Raises:
            LaunchError: the recorded command does not fit into one argument.
            ContractError: the contract does not fit into one environment value.
        """
        app = copy.deepcopy(self.typed)
        if contract is None or self.command is None:
            return app
        wanted = launch or self.launch
        role: Role = app.roles[self.role]
        changed = {name: value for name, value in wanted.env.items() if self.launch.env.get(name) != value}
        role.entrypoint, role.args = self.command.wrapped(wanted.script_args, changed)
        role.env[CONTRACT_VARIABLE] = encode_contract(contract)
        return app

    def arguments(self, launch: Launch) -> tuple[str, ...]:
        """Return the component's arguments that give ``launch`` when typed.

        Raises:
            LaunchError: the component takes no script arguments, or none of the changed variables.
        """
        options, own = self._split_args()
        changed = {name: value for name, value in launch.env.items() if self.launch.env.get(name) != value}
        if launch.script_args != self.launch.script_args and own is None:
            raise LaunchError(f"{self.component} makes up its script's arguments itself: they cannot be typed")
        if changed:
            options = _with_env(options, changed)
        if launch.script_args == self.launch.script_args:
            return (*options, *self.args[len(self._split_args()[0]) :])
        return (*options, "--", *launch.script_args)

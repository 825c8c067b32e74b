"""Check of a tune's hooks before its first launch: whether the program has what they change, as far as it is known.

Earlier launches that set a hook or checked it decide. Where none did, the model of an earlier launch and the program's
source may show that a hook cannot serve; the job of the first launch finds out the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.advisor.hook_refusals import has_told, hook_name, shown_obstacle
from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch.uncalled_hooks import uncalled_hooks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.launch.uncalled_hooks import UncalledHook
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.tuner.request import Prepared


def check_hooks(prepared: Prepared, recorded: Sequence[Trial]) -> str:
    """Return a line on the hooks that no launch has told of yet; empty without one.

    Args:
        prepared: the checked request.
        recorded: trials of the same work as recorded, whose config has only what their launch knew.

    Raises:
        LaunchError: a hook cannot serve the program.
    """
    current = prepared.current
    asked = [
        item
        for item in prepared.space.parameters
        if item.derive is None and hook_name(item) and not has_told(item, current, recorded)
    ]
    obstacles = {item.name: shown_obstacle(item, current, recorded) for item in asked}
    hooks = {item.name: hook_name(item) for item in asked}
    uncalled = uncalled_hooks(prepared.component.launch, hooks)
    found = [_refusal([name], hooks[name], reason) for name, reason in obstacles.items() if reason]
    found += [_refusal(each.parameters, each.hook, each.reason) for each in uncalled if not each.doubt]
    if found:
        raise LaunchError(
            f"nothing was launched: {'; '.join(found)}. Correct or remove what {prepared.request.space} says of it. "
            "If the hook serves the program all the same, launch the command once with this space file: the job tells"
        )
    return _open_line(hooks, uncalled)


def _refusal(parameters: Sequence[str], hook: str, reason: str) -> str:
    return f'hook = "{hook}" cannot set {" and ".join(parameters)}: {reason}'


def _open_line(hooks: Mapping[str, str], uncalled: Sequence[UncalledHook]) -> str:
    """Return the line on the hooks that the first launch checks, with the doubts that the source leaves."""
    if not hooks:
        return ""
    named: dict[str, list[str]] = {}
    for parameter, hook in hooks.items():
        named.setdefault(hook, []).append(parameter)
    listed = ", ".join(f"{hook} ({' and '.join(parameters)})" for hook, parameters in named.items())
    doubts = dict.fromkeys(f"{each.reason}, but {each.doubt}" for each in uncalled)
    return "; ".join([f"the first launch tells whether these hooks serve the program: {listed}", *doubts])

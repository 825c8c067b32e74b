"""Offers of hooks in a starter space file, for a script that makes without a flag what they change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.launch.program_source import ProgramCalls
from torchx_cubicml.recorder.apply.hooks import hook_classes

if TYPE_CHECKING:
    from collections.abc import Collection

    from torchx_cubicml.launch import Launch


def hook_lines(launch: Launch, *, taken: Collection[str], has_n_layers: bool) -> list[str]:
    """Return commented parameters with hooks; nothing for a script that no hook is offered for.

    Args:
        launch: the command.
        taken: standard names that flags of the command set.
        has_n_layers: whether a workload fact counts the layers.

    >>> from torchx_cubicml.launch import Launch
    >>> hook_lines(Launch(program="not/here.py"), taken=(), has_n_layers=True)
    []
    """
    program, per_layer = ProgramCalls.of(launch), ['per_layer = "n_layers"'] if has_n_layers else []
    offers = [line for hook in hook_classes() for line in hook.offer(program, taken, per_layer)]
    heading = "No flag sets these. A hook can, inside the job; the first launch of a tune tells whether it serves:"
    return [f"# {line}" for line in (heading, *offers)] if offers else []

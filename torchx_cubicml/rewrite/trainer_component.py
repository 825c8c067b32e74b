"""Shared part of the trainers' components: a torchrun job of a known program, recorded and rewritten."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.rewrite.rewriter import Options, rewrite_component

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx.specs import AppDef

Given: TypeAlias = "str | int | Mapping[str, str] | Sequence[str] | None"
"""Value of an option as TorchX passes it to a component; ``None`` if it is not given."""


def trainer_app(
    program: Sequence[str], args: Sequence[str], *, job: Mapping[str, Given], ours: Mapping[str, str | None]
) -> AppDef:
    """Build the app that runs a program under torchrun, and report the changes on stderr.

    Args:
        program: arguments that name the program to TorchX's own component: ``--script FILE`` or ``-m MODULE``.
        args: arguments of the program.
        job: options of TorchX's own component; it and ``.torchxconfig`` set those that are not given.
        ours: space, store and mode.

    Raises:
        ComponentValidationException: TorchX refuses the options; TorchX prints this exception without a traceback.
    """
    from torchx.specs.finder import ComponentValidationException

    words = [component_name(), *program]
    for name, value in job.items():
        words += [f"-{name}" if len(name) == 1 else f"--{name}", _text(value)] if value is not None else []
    options = Options.resolved(**{name: value or "" for name, value in ours.items()})
    try:
        return rewrite_component([*words, *(["--", *args] if args else [])], options)
    except LaunchError as error:
        raise ComponentValidationException(str(error)) from None


def component_name() -> str:
    """Return the name of TorchX's own component for torchrun, which differs between releases."""
    from torchx.components import dist

    return "dist.torchrun" if hasattr(dist, "torchrun") else "dist.ddp"


def _text(value: Given) -> str:
    if isinstance(value, str | int):
        return str(value)
    if isinstance(value, Mapping):
        return ",".join(f"{name}={item}" for name, item in value.items())
    return ",".join(value or ())

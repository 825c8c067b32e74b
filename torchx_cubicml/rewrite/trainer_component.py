"""What the components of trainers share: a torchrun job of a known program, recorded and rewritten."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.rewrite.rewriter import Options, rewrite_component

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx.specs import AppDef

Given: TypeAlias = "str | int | Mapping[str, str] | Sequence[str] | None"
"""An option as TorchX hands it to a component; ``None`` where it is not given."""


def trainer_app(
    program: Sequence[str], args: Sequence[str], *, job: Mapping[str, Given], ours: Mapping[str, str | None]
) -> AppDef:
    """Return the app that runs a program under torchrun, and tell on stderr what was done.

    Args:
        program: what names it to TorchX's own component: ``--script FILE`` or ``-m MODULE``.
        args: the program's own.
        job: options of TorchX's own component; those that are not given are left to it and to ``.torchxconfig``.
        ours: space, store and mode.

    Raises:
        ComponentValidationException: TorchX refuses the options; it tells so without a traceback.
    """
    from torchx.specs.finder import ComponentValidationException

    words = [component_name(), *program]
    for name, value in job.items():
        words += [f"-{name}" if len(name) == 1 else f"--{name}", _text(value)] if value is not None else []
    options = Options.settled(**{name: value or "" for name, value in ours.items()})
    try:
        return rewrite_component([*words, *(["--", *args] if args else [])], options)
    except LaunchError as error:
        raise ComponentValidationException(str(error)) from None


def component_name() -> str:
    """Return TorchX's own component for torchrun: newer releases have another name for it."""
    from torchx.components import dist

    return "dist.torchrun" if hasattr(dist, "torchrun") else "dist.ddp"


def _text(value: Given) -> str:
    if isinstance(value, str | int):
        return str(value)
    if isinstance(value, Mapping):
        return ",".join(f"{name}={said}" for name, said in value.items())
    return ",".join(value or ())

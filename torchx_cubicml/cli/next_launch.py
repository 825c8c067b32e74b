"""Next launch of a tune's command with its space file: whether it takes the winner, as that launch itself decides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torchx_cubicml.cli.component_command import run_words
from torchx_cubicml.launch.messages import KEPT
from torchx_cubicml.records.config_changes import config_changes

if TYPE_CHECKING:
    from torchx_cubicml.launch.place_config import RewrittenLaunch
    from torchx_cubicml.records.values import Config
    from torchx_cubicml.tuner import Prepared

_OURS = "torchx-cubicml: "


@dataclass(frozen=True, slots=True, kw_only=True)
class NextLaunch:
    """The user's own command with the space file.

    Args:
        words: the command.
        text: sentence on what it runs, before the command.
    """

    words: tuple[str, ...]
    text: str


def next_launch(prepared: Prepared, winner: Config) -> NextLaunch:
    """Return the user's own command with the space file, and whether a launch rewrites it to the winner.

    Args:
        prepared: request of the tune, as checked.
        winner: best config of the tune.
    """
    from torchx_cubicml.rewrite.rewriter import Options, rewrite

    request = prepared.request
    ordinary = replace(prepared.component.launch, submits=False)
    rewritten = rewrite(ordinary, Options(space=request.space, store=prepared.store_url, mode="rewrite"))
    typed = (request.component, *request.component_args)
    words = run_words(request.scheduler, request.scheduler_args, typed, space=request.space, store=prepared.store_url)
    return NextLaunch(words=tuple(words), text=_text(rewritten, prepared.current, winner))


def _text(rewritten: RewrittenLaunch, current: Config, winner: Config) -> str:
    contract = rewritten.contract
    config = {**current, **contract.config} if contract is not None and rewritten.suggestion is not None else current
    if all(config.get(name) == value for name, value in winner.items()):
        return "Or your own command with the space file, which a launch rewrites to the same:"
    lines = [line.removeprefix(_OURS) for line in rewritten.lines]
    why = [line.removeprefix(f"{KEPT}: ") for line in lines if line.startswith(f"{KEPT}: ")]
    if why:
        return f"Your own command with the space file will not apply it, because {why[-1]}:"
    changes = ", ".join(config_changes(config, current)) or "your arguments"
    return f"Your own command with the space file applies {changes} instead:"

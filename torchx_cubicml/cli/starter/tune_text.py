"""Lines of ``[tune]`` in a starter space file: what keeps a profiling launch off the user's outputs."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from torchx_cubicml.cli.starter.toml_text import one_line, toml
from torchx_cubicml.facts.named_places import NamedPlace, place_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.cli.starter.script_flag import ScriptFlag

_PLACES = ("{scratch}/{launch_id}", *(f"{{scratch}}/{{launch_id}}-{index}" for index in range(2, 99)))


def tune_lines(destinations: Sequence[ScriptFlag], *, uses_wandb: bool, saving: str = "") -> list[str]:
    """Return the lines of ``[tune]``; none where nothing is known to be written.

    Args:
        destinations: flags, keys and variables that name an output.
        uses_wandb: whether the training logs to Weights & Biases, which profiling launches turn off.
        saving: call that saves checkpoints and its file, as ``saving_call`` returns it; empty if none was found.
    """
    redirected = [(flag, toml(_redirected(flag, place))) for flag, place in zip(destinations, _PLACES, strict=False)]
    args = [f"{toml(flag.name)} = {place}" for flag, place in redirected if not flag.file and not flag.is_variable]
    lines = [f"args = {{ {', '.join(args)} }}"] if args else []
    env = [f"{flag.name} = {place}" for flag, place in redirected if flag.is_variable]
    env += ['WANDB_MODE = "disabled"'] if uses_wandb else []
    lines += [f"env = {{ {', '.join(env)} }}"] if env else []
    files: dict[str, list[str]] = {}
    for flag, place in redirected:
        if flag.file:
            files.setdefault(flag.file, []).append(f"{toml(flag.name)} = {place}")
    lines += [f"files.{toml(file)} = {{ {', '.join(keys)} }}" for file, keys in files.items()]
    if lines:
        lines.insert(0, "[tune] # redirects what profiling launches write, so that they never overwrite your outputs")
    return [*([] if redirected else _hint(saving, has_section=bool(lines))), *lines]


def _hint(saving: str, *, has_section: bool) -> list[str]:
    """Return the comment on checkpoints whose place no flag names; none without saving."""
    if not saving:
        return []
    return [
        f"# {one_line(saving)} saves checkpoints, and no flag, key or variable was found that names their place.",
        "# Each launch of a tune would save them too. If there is such a flag, redirect it:",
        *([] if has_section else ["# [tune]"]),
        '# args = { "--out_dir" = "{scratch}/{launch_id}" }',
    ]


def _redirected(flag: ScriptFlag, place: str) -> str:
    if place_of(flag.name, flag.value) is NamedPlace.LABEL:
        return "{launch_id}"
    suffix = PurePosixPath(flag.value or "").suffix
    return place + (suffix if re.fullmatch(r"\.[A-Za-z][A-Za-z0-9]{0,5}", suffix) else "")

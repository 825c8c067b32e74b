"""Check of the space file: legal, and the one that the latest launches used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.cli.checks.finding import Finding, ok, skipped, warning, wrong
from torchx_cubicml.errors import SpaceError
from torchx_cubicml.records.provenance import SPACE

if TYPE_CHECKING:
    from torchx_cubicml.cli.checks.context import CheckContext

NAME, PLACE = "space file", 160


def check(context: CheckContext) -> Finding:
    """Check the file of the options, ``.torchxconfig`` or the environment."""
    from torchx_cubicml.space.toml import load_space

    path = context.space_file
    if not path:
        return skipped("none is named: launches are recorded, and nothing is rewritten")
    try:
        space = load_space(path)
    except SpaceError as error:
        return wrong(str(error), "correct the file as the message says; docs/space-file.md lists what is legal")
    found = f"{path}: {len(space.parameters)} parameters"
    used = sorted(
        (trial.started_at, str(trial.provenance[SPACE])) for trial in context.trials if SPACE in trial.provenance
    )
    if used and space.digest not in {digest for _, digest in used}:
        text = f"{found}; no recorded launch used it as it is now ({space.digest}); the latest used {used[-1][1]}"
        return warning(text, "none needed if you have just changed it; else name the file that your launches use")
    return ok(found)

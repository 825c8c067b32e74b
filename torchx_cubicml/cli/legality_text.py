"""Text on the legal configs of a bound space: their number, and the combinations that each rule leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.space.legality import MOST_COUNTED

if TYPE_CHECKING:
    from torchx_cubicml.space import SearchSpace


def legality_lines(space: SearchSpace) -> list[str]:
    """Return a heading and a line for each rule that excludes configs or is set aside; empty if there is none."""
    effects = space.effects()
    lines = [f"  {effect.left:,} by {effect.text}" for effect in effects]
    if effects:
        lines.insert(0, _heading(space.size(limit=MOST_COUNTED), effects[0].total))
    return lines + [
        f"  Rule {rule.text} is set aside for this job: {sentence}." for rule, sentence in space.in_force.set_aside
    ]


def legality_json(space: SearchSpace) -> dict[str, object]:
    """Return the same as JSON values."""
    effects = space.effects()
    return {
        "legal": space.size(limit=MOST_COUNTED),
        "rules": [{"rule": each.text, "left": each.left, "of": each.total} for each in effects],
        "set_aside": [{"rule": rule.text, "why": why} for rule, why in space.in_force.set_aside],
    }


def _heading(n_legal: int, n_combinations: int) -> str:
    more = "or more " if n_combinations >= MOST_COUNTED else ""
    return f"Legal configs: {n_legal:,} of {n_combinations:,} {more}combinations. Combinations that each rule leaves:"

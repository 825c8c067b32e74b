"""End of a tune that confirmed no gain: the fastest measured config beside the user's own, why, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.cli.terminal import say
from torchx_cubicml.cli.tune_display import comparison_table
from torchx_cubicml.launch.messages import best_word, better_word

if TYPE_CHECKING:
    from rich.console import Console

    from torchx_cubicml.tuner import Prepared
    from torchx_cubicml.tuner.unconfirmed import Unconfirmed


def print_unconfirmed(console: Console, seen: Unconfirmed, *, prepared: Prepared) -> None:
    """Print the table of both configs, and a sentence each on the ratio, the doubt and the cure."""
    objective = seen.comparison.objective
    label, statistic = f"{best_word(objective)} seen", prepared.space.statistic
    console.print(comparison_table(seen.comparison, statistic=statistic, best_label=label, prepared=prepared))
    for text in (f"No config was confirmed {better_word(objective)} than yours.", seen.seen, seen.why, seen.advice):
        say(console, text)

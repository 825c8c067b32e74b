"""Text of the result of a tune: its frontier, the best config beside the user's own, and the command to run."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from torchx_cubicml.advisor.comparison import too_few_text
from torchx_cubicml.cli.component_command import run_words
from torchx_cubicml.cli.frontier_table import frontier_lines, print_frontier
from torchx_cubicml.cli.sensitivity_table import FLEXIBLE, OPTIONAL, sensitivity_table
from torchx_cubicml.cli.terminal import command_lines, fitted, say
from torchx_cubicml.cli.tune_display import comparison_table
from torchx_cubicml.launch.messages import better_word
from torchx_cubicml.records.redaction import mask

if TYPE_CHECKING:
    from rich.console import Console

    from torchx_cubicml.advisor.pareto_front import Frontier
    from torchx_cubicml.tuner import Prepared, TuneResult

_MOST_SURE = 0.99  # probability beyond which a model of few launches is not to be trusted


def print_result(console: Console, result: TuneResult, prepared: Prepared) -> None:
    """Print the result of a tune.

    Args:
        console: to print on.
        result: of the tune.
        prepared: its request, as checked.
    """
    if result.frontier is not None and result.frontier.points:
        _print_frontier(console, result.frontier, prepared)
    _print_comparison(console, result, prepared)


def _print_comparison(console: Console, result: TuneResult, prepared: Prepared) -> None:
    comparison, seen = result.comparison, result.unconfirmed
    if comparison is None or comparison.best.config == comparison.baseline.config:
        _print_none_confirmed(console, result, prepared)
        return
    console.print(comparison_table(comparison, statistic=prepared.space.statistic, prepared=prepared))
    say(console, str(comparison))
    if seen is not None:
        say(console, str(seen))
    if result.confidence is not None and result.others_measured > 1:
        than, share = better_word(comparison.objective), min(result.confidence, _MOST_SURE)
        least = "at least " if result.confidence > share else ""
        say(console, f"Probability that no other measured config is more than 1 % {than}: {least}{share:.0%}")
    if result.sensitivities:
        console.print()
        make = partial(sensitivity_table, result.sensitivities)
        console.print(fitted(console, make, OPTIONAL, flexible=FLEXIBLE))
        console.print()
    _print_ending(console, result)
    _print_command(console, result, prepared)


def _print_none_confirmed(console: Console, result: TuneResult, prepared: Prepared) -> None:
    """Print the end of a tune without a winner besides the user's own config."""
    seen, lack = result.unconfirmed, "" if result.comparison is not None else too_few_text(result.launches_lacking)
    if not result.compares:
        lack = "no config besides your own was measured, so nothing was compared"
    shown, label = (seen.comparison, seen.label) if seen is not None else (result.comparison, "")
    if shown is not None:
        console.print(comparison_table(shown, statistic=prepared.space.statistic, best_label=label, prepared=prepared))
    if shown is not None and result.compares:
        say(console, f"No config was confirmed {better_word(shown.objective)} than yours.")
    for text in (seen.seen, seen.why, seen.advice) if seen is not None else ():
        say(console, text)
    _print_ending(console, result, lack)


def _print_command(console: Console, result: TuneResult, prepared: Prepared) -> None:
    if result.claims_gain:
        from torchx_cubicml.cli.next_launch import next_launch

        words = run_words(prepared.request.scheduler, result.scheduler_args, result.command, store=prepared.store_url)
        console.print("\n".join(["Command to run:", *command_lines(words, console.width)]), soft_wrap=True)
        following = next_launch(prepared, result.best.config) if result.best is not None else None
        if following is not None:
            say(console, following.text)
            console.print("\n".join(command_lines(following.words, console.width)), soft_wrap=True)


def _print_frontier(console: Console, frontier: Frontier, prepared: Prepared) -> None:
    print_frontier(console, frontier, current=prepared.current)
    for line in frontier_lines(frontier):
        say(console, line)
    say(console, f"Below, your config is compared by {frontier.objectives[0]} alone; the choice is yours.\n")


def _print_ending(console: Console, result: TuneResult, lack: str = "") -> None:
    """Print the values set aside, the used part of the budget, why the tune ended, and what it lacks."""
    kept = [
        *(
            (f"{name} stayed as in your command, as each launch that changed it", why)
            for name, why in result.set_aside.items()
        ),
        *(
            (f"{text} was not tried again, as each launch with it", why)
            for text, why in result.values_set_aside.items()
        ),
    ]
    for text in result.refused:
        say(console, text)
    for text, reason in kept:
        say(console, f"{text} failed: {mask(reason)}")
    text = f"{'; '.join(filter(None, (result.ending, lack)))} ({result.device_hours:.2f} device hours)"
    say(console, text)

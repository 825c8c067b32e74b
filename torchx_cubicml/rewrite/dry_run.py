"""Lines that a dry run prints besides: where time and memory go as typed and as rewritten, and the readable command."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from torchx_cubicml.advisor.breakdown_text import breakdown_lines
from torchx_cubicml.advisor.command_explanation.estimates import WIDEST
from torchx_cubicml.advisor.hook_check import HookCheck
from torchx_cubicml.launch import read_config, with_rule_facts
from torchx_cubicml.launch.messages import message_line
from torchx_cubicml.launch.present_command import PresentCommand
from torchx_cubicml.records.redaction import printable
from torchx_cubicml.records.shell_words import shell_lines
from torchx_cubicml.rewrite.choice import DecisionContext
from torchx_cubicml.store.deadline import read_with_deadline, within
from torchx_cubicml.store.digest_key import digest_keys
from torchx_cubicml.store.predictor_choice import latest_choice

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torchx_cubicml.advisor.breakdown import Breakdowns
    from torchx_cubicml.launch import Launch
    from torchx_cubicml.records.values import Config

_PLAIN_WIDTH = 100  # columns without a terminal
# An estimate that is missed by a share ``e`` may be off by a factor of ``1 / (1 - e)``. Of a normal logarithm that half
# of the launches miss by more, the 80 % interval spans ``WIDEST``: wider ones are not told by ``explain`` either. Its
# ends are 2 * 1.2816 standard deviations apart, and the median error is 0.6745 of one.
_MOST_ERROR = 1.0 - WIDEST ** (-0.6745 / (2.0 * 1.2816))


def dry_run_lines(
    typed: Launch, *, rewritten: Config, space_path: str, url: str, limits: tuple[float, float], cache: Path | None
) -> tuple[str, ...]:
    """Return message lines on hooks that cannot serve, and on where time and memory go, by the step-time formulas.

    Args:
        typed: launch as typed.
        rewritten: config that the launch would run.
        space_path: path of the space file.
        url: URL of the store.
        limits: deadlines in seconds, for reading the store and for computing.
        cache: folder of caches; ``None`` for no cache.

    Raises:
        StoreError: the store cannot be read, or not in time.
        SpaceError: the space cannot be bound to the workload.
        LaunchError: computing took too long.
    """
    from torchx_cubicml.space.toml import load_space

    space = load_space(space_path)
    workload, current = read_config(typed, space)
    command, space = PresentCommand.of(typed, space), with_rule_facts(typed, space)
    trials = read_with_deadline(url, deadline_s=limits[0], cache=cache).trials
    case = DecisionContext(
        space=space,
        workload=workload,
        current=current,
        command=command,
        trials=trials,
        predictor=latest_choice(url),
        digest_keys=digest_keys(url),
    )
    known = case.migrated()

    def lines() -> tuple[str, ...]:
        check = HookCheck.of(typed, space, current, recorded=trials, own=known.own_trials())
        return (*map(message_line, check.texts()), *_lines(known, rewritten))

    return within(limits[1], lines, what="estimating where time and memory go")


def estimate_lines(breakdowns: Breakdowns) -> list[str]:
    """Return the lines on where time and memory go, or why they are not told."""
    error = max(basis.error or 0.0 for basis in (breakdowns.time, breakdowns.memory))
    if error <= _MOST_ERROR:
        return breakdown_lines(breakdowns)
    return [f"No estimate of where time and memory go: its median error on launches is {100.0 * error:.0f} %."]


def dry_run_command(what: str, words: Sequence[str]) -> tuple[str, ...]:
    """Return the message lines that show the command of a launch, without the recorder and the fallback.

    Args:
        what: sentence before the command.
        words: of the command, as a shell reads them.
    """
    lines = shell_lines(words, shutil.get_terminal_size((_PLAIN_WIDTH, 1)).columns, indent="    ")
    return (message_line(f"{what}:"), *map(printable, lines))


def _lines(case: DecisionContext, rewritten: Config) -> tuple[str, ...]:
    from torchx_cubicml.advisor import Study
    from torchx_cubicml.advisor.breakdown import Breakdowns

    study = Study.of(
        case.space, workload=case.workload, current=case.current, trials=case.trials, predictor=case.predictor
    )
    configs = {"your config": study.current, "rewritten": {**study.current, **rewritten}}
    if configs["rewritten"] == study.current:
        del configs["rewritten"]
    # Rows of the tables are indented, as those of the block of changes.
    lines = estimate_lines(Breakdowns.estimate(study, configs))
    return tuple(line if line.startswith(" ") else message_line(line[0].lower() + line[1:]) for line in lines)

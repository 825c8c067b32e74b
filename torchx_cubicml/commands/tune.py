"""``torchx cubicml tune``: rounds of launches, and the config that they found."""

from __future__ import annotations

import re
import shlex
import sys
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from torchx_cubicml.commands.base import add_json, add_launch, add_store, print_json, split_command, store_url
from torchx_cubicml.errors import LaunchError
from torchx_cubicml.masking import mask

if TYPE_CHECKING:
    import argparse
    from contextlib import AbstractContextManager

    from rich.console import Console

    from torchx_cubicml.tuner import Ended, Launching, Prepared, TuneRequest, TuneResult

_BUDGET = re.compile(r"\s*(\d{1,6})\s*(?:launch(?:es)?)?\s*")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the budget, the scheduler and the command."""
    parser.add_argument("--space", required=True, help="space file (TOML)")
    add_store(parser)
    parser.add_argument("--budget", default="16 launches", help='launches at most, as in "16 launches" (the default)')
    parser.add_argument("-s", "--scheduler", default="local_cwd", help="TorchX scheduler (default: local_cwd)")
    parser.add_argument("-cfg", "--scheduler_args", default="", help="scheduler options, as for `torchx run`")
    parser.add_argument("--repeats", type=int, default=3, help="measurements behind a claimed gain (default: 3)")
    parser.add_argument("--steps", type=int, default=None, help="end each launch after this many optimizer steps")
    parser.add_argument("--trial-timeout", type=float, default=3600.0, metavar="S", help="seconds per launch")
    parser.add_argument("--scratch", default="", help="folder for {scratch} in [tune]; every node must see it")
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers")
    parser.add_argument("--yes", action="store_true", help="do not ask before launching")
    add_json(parser)
    add_launch(parser)


def run(args: argparse.Namespace) -> int:
    """Tune, telling progress on stderr and the result on stdout."""
    from rich.console import Console

    from torchx_cubicml.launch.jobs import interruptions
    from torchx_cubicml.tuner import TuneResult, prepare, tune

    console = Console(stderr=True)
    prepared = prepare(_request(args))
    _ask(prepared, yes=args.yes, console=console)
    console.print(
        f"tuning {prepared.component.launch.program}: {prepared.request.launches} launches on "
        f"{prepared.request.scheduler}, recorded in {mask(prepared.store_url)}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    prepared = _choosing(prepared, console)
    waiting: AbstractContextManager[object] = nullcontext()
    try:
        for step in tune(prepared):
            waiting.__exit__(None, None, None)
            if isinstance(step, TuneResult):
                return _tell_result(step, prepared, as_json=args.json)
            waiting = _tell_step(step, console=console, objective=prepared.space.objective)
            waiting.__enter__()
    except interruptions():
        console.print("interrupted; what was measured is in the store, and the same command goes on from there")
        return 130
    finally:
        waiting.__exit__(None, None, None)
    return 1


def _choosing(prepared: Prepared, console: Console) -> Prepared:
    """Return the request with the predictor that ranks the store's own trials best, kept there for launches."""
    from torchx_cubicml.predictor_choice import choose_predictor, keep_choice
    from torchx_cubicml.store import read_trials

    trials, _ = read_trials(prepared.store_url, deadline_s=60.0)
    choice = choose_predictor(trials, objective=prepared.space.objective, seed=prepared.request.seed)
    if choice is None:
        return prepared
    keep_choice(prepared.store_url, choice)
    console.print(str(choice), highlight=False, markup=False, soft_wrap=True)
    return replace(prepared, predictor=choice.name)


def launches_of(budget: str) -> int:
    """Return the number of launches that a budget allows.

    Raises:
        LaunchError: not of the form ``16 launches``.

    >>> launches_of("16 launches")
    16
    """
    match = _BUDGET.fullmatch(budget)
    if match is None or int(match[1]) < 1:
        raise LaunchError(
            f'--budget {budget!r} is not legal; a whole number of launches is wanted, as in "16 launches"'
        )
    return int(match[1])


def _request(args: argparse.Namespace) -> TuneRequest:
    from torchx_cubicml.tuner import TuneRequest

    component, component_args = split_command(args.command)
    return TuneRequest(
        component=component,
        component_args=tuple(component_args),
        space=args.space,
        store=store_url(args),
        scheduler=args.scheduler,
        scheduler_args=args.scheduler_args,
        launches=launches_of(args.budget),
        repeats=args.repeats,
        trial_timeout_s=args.trial_timeout,
        step_limit=args.steps,
        scratch=args.scratch,
        seed=args.seed,
    )


def _ask(prepared: Prepared, *, yes: bool, console: Console) -> None:
    """Ask before launches that could write where the user's own training writes."""
    from torchx_cubicml.starter import script_help, unredirected_outputs

    if yes:
        return
    launch = prepared.component.launch
    flags = unredirected_outputs(launch, prepared.space, script_help(launch))
    if not flags:
        return
    question = (
        f"{', '.join(flags)} may name an output, a log or a checkpoint, and [tune] in {prepared.request.space} does "
        "not redirect it: the launches of this tune would write there"
    )
    if not sys.stdin.isatty():
        raise LaunchError(f"{question}; redirect it in [tune], or give --yes")
    if console.input(f"{question}. Go on? \\[y/N] ").strip().lower() not in {"y", "yes"}:
        raise LaunchError("nothing was launched")


def _tell_step(step: Launching | Ended, *, console: Console, objective: str) -> AbstractContextManager[object]:
    from rich.text import Text

    from torchx_cubicml.commands.history import config_text
    from torchx_cubicml.tuner import Launching

    if isinstance(step, Launching):
        hope = step.suggestion.throughput
        expected = "" if hope is None else f", {hope:,.0f} expected"
        line = f"{step.number:3d} {step.purpose:8s} {config_text(step.suggestion.config)}{expected}"
        if console.is_terminal:
            return console.status(Text(line))
        console.print(line, highlight=False, markup=False, soft_wrap=True)
        return nullcontext()
    found = f"{step.throughput:,.0f} {objective}" if step.throughput is not None else f"{step.trial.state}"
    why = f" ({step.trial.reason})" if step.trial.reason and step.throughput is None else ""
    shown = f"{step.number:3d} {config_text(step.trial.config)}: " if console.is_terminal else f"{step.number:3d}   -> "
    console.print(f"{shown}{found}{why}", highlight=False, markup=False, soft_wrap=True)
    return nullcontext()


def _tell_result(result: TuneResult, prepared: Prepared, *, as_json: bool) -> int:
    from torchx_cubicml.commands.base import wide_console
    from torchx_cubicml.commands.tables import comparison_table

    if as_json:
        print_json({**asdict(result), "claims_gain": bool(result.comparison and result.comparison.claims_gain)})
        return 0
    console = wide_console()
    comparison = result.comparison
    if comparison is None:
        console.print(f"{result.launches} launches, and too few of them were measured to compare; see `history list`")
        return 1
    if comparison.best.config == comparison.baseline.config:
        console.print(f"nothing faster than your own config was found in {result.launches} launches")
        return 0
    console.print(comparison_table(comparison))
    console.print(str(comparison))
    console.print(f"{result.launches} launches, {result.device_hours:.2f} device hours")
    if comparison.claims_gain:
        request = prepared.request
        options = ["-s", request.scheduler, *(["-cfg", request.scheduler_args] if request.scheduler_args else [])]
        words = ["torchx", "run", *options, "cubicml", "--store", mask(prepared.store_url), *result.command]
        console.print(f"the command to run:\n  {shlex.join(words)}", soft_wrap=True)
    return 0

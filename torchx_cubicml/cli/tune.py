"""Sub-command ``torchx cubicml tune``: tunes a command by launches within a budget, and prints the best config."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.cli.base import (
    add_json,
    add_keep_command,
    add_launch,
    add_recipe,
    add_scheduler,
    add_seed,
    add_store,
    keeps_command,
    method_of,
    print_json,
    random_launches,
    split_command,
    store_url,
)
from torchx_cubicml.cli.progress_bar import progress, read_store
from torchx_cubicml.cli.terminal import open_console, say
from torchx_cubicml.errors import LaunchError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from rich.console import Console

    from torchx_cubicml.history.history import History
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.tuner import Ended, Prepared, TuneRequest, TuneResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the budget, the scheduler and the command."""
    parser.add_argument("--space", required=True, help="space file (TOML)")
    add_store(parser)
    parser.add_argument(
        "--budget", default="16 launches", help='limit: "16 launches" (default), "200 gpu-hours" or "6 hours"'
    )
    parser.add_argument("--parallel", type=int, default=1, metavar="P", help="launches in flight (default: 1)")
    parser.add_argument("--rounds", action="store_true", help="start the next P launches only when all P have ended")
    add_scheduler(parser, default="local_cwd")
    text = "times your config and the one to confirm are measured (default: 3)"
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help=text)
    text = "end each launch after N optimizer steps, at least 5"
    parser.add_argument("--steps", type=int, default=None, metavar="N", help=text)
    text = "seconds that a launch may run (default: 3600)"
    parser.add_argument("--trial-timeout", type=float, default=3600.0, metavar="S", help=text)
    text = "seconds that a launch may wait in the queue (default: 86400)"
    parser.add_argument("--queue-timeout", type=float, default=86_400.0, metavar="S", help=text)
    text = "stop once G x your throughput is confirmed (e.g. 1.2)"
    parser.add_argument("--target-gain", type=float, default=None, metavar="G", help=text)
    text = "stop when expected improvement < SHARE (e.g. 0.01)"
    parser.add_argument("--stop-under", type=float, default=None, metavar="SHARE", help=text)
    parser.add_argument("--workspace", default=None, help="workspace, as for `torchx run`; its image is built once")
    parser.add_argument("--fresh", action="store_true", help="start over instead of resuming")
    text = "write the confirmed config to a .torchxconfig"
    parser.add_argument("--write-config", metavar="FILE", default="", help=text)
    parser.add_argument("--scratch", default="", help="folder for {scratch} in [tune]; all nodes must see it")
    add_keep_command(parser)
    add_seed(parser)
    parser.add_argument("--yes", action="store_true", help="launch even if [tune] does not redirect outputs")
    add_recipe(parser)
    add_json(parser)
    add_launch(parser)


def run(args: argparse.Namespace) -> int:
    """Run the tune, with progress on stderr and the result on stdout."""
    from torchx_cubicml.cli.tune_display import open_display
    from torchx_cubicml.tuner import Ended, TuneResult, prepare, tune
    from torchx_cubicml.tuner.scheduler.torchx_state import interruptions

    console = open_console(stderr=True)
    prepared = prepare(_request(args))
    if args.write_config:
        _check_default(Path(args.write_config), prepared)
    trials, _ = read_store(prepared.store_url, is_json=args.json, may_be_absent=True)
    awaits_checkpoint = _confirm(prepared, trials, yes=args.yes, console=console)
    prepared = _announced(prepared, trials, console)
    steps = tune(prepared)
    result: TuneResult | None = None
    try:
        with open_display(console, prepared) as display:
            while result is None:
                step = next(steps)
                display.show(step)
                if awaits_checkpoint and isinstance(step, Ended) and _saved_first_checkpoint(step, prepared):
                    steps.throw(LaunchError(_checkpoint_text(step, prepared)))
                result = step if isinstance(step, TuneResult) else None
        _hand_over(result, prepared, args)
        next(steps, None)  # ends the tune, once its result is printed and written
    except interruptions() as error:
        with suppress(*interruptions()):
            steps.throw(error)  # ends a tune whose display was interrupted; one that has ended raises it again
        notes = "".join(f" {note}." for note in getattr(error, "__notes__", ()))
        say(console, f"Interrupted. Results are saved; run the same command to resume.{notes}")
        return 130
    return 0 if result.compares else 1


def _with_chosen_predictor(prepared: Prepared, history: History, console: Console) -> Prepared:
    """Return the request with the predictor that ranks the store's trials best; save that choice for launches."""
    from torchx_cubicml.history.objective import measured_objective
    from torchx_cubicml.predictors.selection import choose_predictor, save_choice

    trials = [trial.at(history.space.statistic) for trial in history.trials]
    space, _ = measured_objective(history)
    with progress("comparing predictors") as report:
        choice = choose_predictor(trials, objective=space.learned, seed=prepared.request.seed, report=report)
    if choice is None:
        return prepared
    save_choice(prepared.store_url, choice)
    say(console, str(choice))
    return replace(prepared, predictor=choice.name)


def _announced(prepared: Prepared, trials: Sequence[Trial], console: Console) -> Prepared:
    """Print what is known before the first launch, and return the request with the chosen predictor."""
    from torchx_cubicml.cli.first_launch_lines import first_launch_lines
    from torchx_cubicml.history.passes import migrated
    from torchx_cubicml.store.digest_key import digest_keys
    from torchx_cubicml.tuner.duration import more_work_text, rounds_text

    history = migrated(prepared.history(trials, digest_keys(prepared.store_url)))
    prepared = _with_chosen_predictor(prepared, history, console)
    for line in filter(None, [*first_launch_lines(history), more_work_text(prepared), rounds_text(prepared)]):
        say(console, line)
    return prepared


def _request(args: argparse.Namespace) -> TuneRequest:
    from torchx_cubicml.tuner import Budget, TuneRequest

    component, component_args = split_command(args.command)
    budget = Budget.parse(args.budget)
    return TuneRequest(
        component=component,
        component_args=tuple(component_args),
        space=args.space,
        store=store_url(args),
        scheduler=args.scheduler,
        scheduler_args=args.scheduler_args,
        budget=budget,
        repeats=args.repeats,
        parallel=args.parallel,
        rounds=args.rounds,
        trial_timeout_s=args.trial_timeout,
        queue_timeout_s=args.queue_timeout,
        target_gain=args.target_gain,
        stop_under=args.stop_under,
        workspace=_workspace(args.workspace),
        fresh=args.fresh,
        step_limit=args.steps,
        scratch=args.scratch,
        keeps_command=keeps_command(args),
        method=replace(
            method_of(args),
            predictor=args.predictor,
            random_launches=random_launches(args.start, budget=budget.launches),
        ),
        seed=args.seed,
    )


def _confirm(prepared: Prepared, trials: Sequence[Trial], *, yes: bool, console: Console) -> bool:
    """Ask for confirmation if launches could overwrite the outputs of the user's training.

    Returns:
        True if the user need not have been asked by then, but must be if a launch turns out to save a checkpoint.
    """
    from torchx_cubicml.cli.starter import is_redirected, script_help, unredirected_outputs

    if yes:
        return False
    launch = prepared.component.launch
    flags = unredirected_outputs(launch, prepared.space, script_help(launch))
    question = f"this tune would write to {', '.join(flags)} (an output, log or checkpoint?), which" if flags else ""
    if not flags and not is_redirected(prepared.space):
        question = _checkpoint_question(prepared, trials)
    if not question:
        return not is_redirected(prepared.space)
    question = f"{question} [tune] in {prepared.request.space} does not redirect"
    if not sys.stdin.isatty():
        raise LaunchError(f"{question}; redirect it there, or give --yes")
    if not _says_yes(question, console):
        raise LaunchError("cancelled: nothing was launched")
    return False


def _checkpoint_question(prepared: Prepared, trials: Sequence[Trial]) -> str:
    from torchx_cubicml.cli.starter import recorded_saving, saving_call

    launch = prepared.component.launch
    if recorded_saving(trials, prepared.workload):
        return f"each launch of this tune would save checkpoints, as an earlier launch of {launch.program} did, which"
    call = saving_call(launch)
    return f"each launch of this tune may save checkpoints ({call}), which" if call else ""


def _saved_first_checkpoint(step: Ended, prepared: Prepared) -> bool:
    """Return whether a launch saved a checkpoint, and others are to follow."""
    is_last = step.number == prepared.request.budget.launches
    return step.trial.observed.get("saves_checkpoints") is True and not is_last


def _checkpoint_text(step: Ended, prepared: Prepared) -> str:
    return (
        f"stopping: launch {step.number} saved a checkpoint, and so would each further launch, which [tune] in "
        f"{prepared.request.space} does not redirect; redirect it there, or give --yes"
    )


def _says_yes(question: str, console: Console) -> bool:
    console.print(f"{question}. Continue? [y/N] ", end="", markup=False, highlight=False, soft_wrap=True)
    return console.input().strip().lower() in {"y", "yes"}


def _workspace(named: str | None) -> str:
    """Return the workspace that ``torchx run`` would use."""
    from torchx.runner.config import get_config

    found: str | None = named if named is not None else get_config("cli", "run", "workspace")
    return found if found is not None else f"file://{Path.cwd()}"


def _hand_over(result: TuneResult, prepared: Prepared, args: argparse.Namespace) -> None:
    """Print the result, and write a confirmed winner where ``--write-config`` asks for that."""
    from torchx_cubicml.cli.tune_result import print_result

    if args.json:
        print_json(result.to_json())
    else:
        print_result(open_console(), result, prepared)
    if args.write_config:
        _write_default(Path(args.write_config), result.command if result.claims_gain else ())


def _check_default(path: Path, prepared: Prepared) -> None:
    from torchx_cubicml.cli.torchxconfig import check_default

    check_default(path, (prepared.request.component, *prepared.request.component_args))


def _write_default(path: Path, command: Sequence[str]) -> None:
    from torchx_cubicml.cli.torchxconfig import write_default

    if command:
        write_default(path, command)
    else:
        print(f"{path} unchanged: no gain was confirmed", file=sys.stderr)  # noqa: T201 - the command line's own output

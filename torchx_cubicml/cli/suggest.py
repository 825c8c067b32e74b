"""Sub-command ``torchx cubicml suggest``: prints the next launch and configs worth trying, and launches nothing."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING

from torchx_cubicml.cli.base import (
    LATEST_SCHEDULER,
    add_json,
    add_launch,
    add_method,
    add_scheduler,
    add_seed,
    add_store,
    method_of,
    print_json,
    store_url,
)
from torchx_cubicml.cli.component_command import launch_words, on_latest_scheduler, typed_command
from torchx_cubicml.cli.progress_bar import progress, read_store
from torchx_cubicml.cli.terminal import command_lines, fitted, open_console, say
from torchx_cubicml.records.trial import short_id

if TYPE_CHECKING:
    import argparse
    from collections.abc import Hashable, Sequence

    from torchx_cubicml.advisor import ParameterSensitivity, Study, Suggestion
    from torchx_cubicml.advisor.breakdown import Breakdowns
    from torchx_cubicml.cli.component_command import TypedCommand
    from torchx_cubicml.history.history import History
    from torchx_cubicml.launch import Launch
    from torchx_cubicml.launch.place_config import RewrittenLaunch
    from torchx_cubicml.records.suggestion import NearTrial
    from torchx_cubicml.records.trial import Trial

_NOTHING_LEFT = (
    "Nothing left to try: every other legal config was tried, is in flight, or is known not to fit in memory."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the space, the store and the command."""
    parser.add_argument("--space", required=True, help="space file (TOML)")
    add_store(parser)
    parser.add_argument("--count", type=int, default=1, metavar="N", help="number of configs to propose (default: 1)")
    text = "show the frontier of the two objectives of the space file instead, with untried configs as predicted"
    parser.add_argument("--frontier", action="store_true", help=text)
    add_scheduler(parser, otherwise=LATEST_SCHEDULER)
    add_seed(parser)
    add_method(parser)
    add_json(parser)
    add_launch(parser)


def run(args: argparse.Namespace) -> int:
    """Print the next ordinary launch and configs worth trying, or with ``--frontier`` the frontier."""
    from torchx_cubicml.errors import LaunchError
    from torchx_cubicml.store import absolute_url

    if args.count < 1:
        raise LaunchError(f"--count must be >= 1, got {args.count}")
    typed = typed_command(args)
    # A configured store that is not there yet is made by the first launch; one that is named may be mistyped.
    is_named, args.store = bool(args.store), absolute_url(store_url(args))
    recorded, _ = read_store(args.store, is_json=args.json, may_be_absent=not is_named)
    with progress("comparing the launches", is_json=args.json):
        typed = on_latest_scheduler(typed, args, recorded)
        history = _read_history(typed.launch, args, recorded)
    if args.frontier:
        return _print_frontier(history, args)
    return _print_suggestions(typed, history, args)


def _print_suggestions(typed: TypedCommand, history: History, args: argparse.Namespace) -> int:
    """Print the command of the next ordinary launch, the sensitivity to each parameter, and configs worth trying."""
    from torchx_cubicml.advisor import Study, sensitivity
    from torchx_cubicml.advisor.breakdown_text import breakdown_json, breakdown_lines
    from torchx_cubicml.cli.legality_text import legality_json, legality_lines
    from torchx_cubicml.launch import ComponentLaunch
    from torchx_cubicml.launch.messages import changes_in_job
    from torchx_cubicml.rewrite.rewriter import Options, rewrite

    with progress("choosing configs", is_json=args.json):
        study = Study.fitted(history, seed=args.seed)
        history = replace(history, space=replace(history.space, objective=study.posterior.space.objective))
        proposals = _with_commands(typed, history, study.suggest(count=args.count, method=method_of(args)), args)
        sensitivities = sensitivity(study)
        ordinary = replace(typed.launch, submits=False)
        flags = "--" if isinstance(typed, ComponentLaunch) else "--cubicml-"
        rewritten = rewrite(ordinary, Options(space=args.space, store=args.store, mode="rewrite", flags=flags))
        next_command = _command(typed, rewritten.launch, args)
        breakdowns = _breakdowns(study, rewritten, [suggestion for suggestion, _, _ in proposals])
    if args.json:
        changed = rewritten.launch != ordinary
        first = {"rewritten": changed, "command": next_command, "set_in_job": changes_in_job(rewritten.launch)}
        print_json(
            {
                "next": first,
                "worth_trying": [
                    {**_suggestion_json(item, history), "command": command, "set_in_job": in_job}
                    for item, command, in_job in proposals
                ],
                "sensitivity": [asdict(worth) for worth in sensitivities],
                "legality": legality_json(study.posterior.space),
                "breakdown": breakdown_json(breakdowns),
            }
        )
        return 0
    lines = [line.removeprefix("torchx-cubicml: ") for line in rewritten.lines]
    lines = [*dict.fromkeys([*lines, *history.notes]), *legality_lines(study.posterior.space)]
    _print_text(next_command, lines, sensitivities, proposals, history)
    _print_lines(breakdown_lines(breakdowns))
    return 0


def _print_frontier(history: History, args: argparse.Namespace) -> int:
    """Print the frontier of measured and predicted configs."""
    from torchx_cubicml.advisor.frontier_search import predicted_frontier
    from torchx_cubicml.cli.frontier_table import frontier_lines, print_frontier
    from torchx_cubicml.errors import LaunchError
    from torchx_cubicml.history.passes import comparable

    if not history.space.second_objective:
        example = 'objective = ["tokens_per_second", "tokens_per_device_hour"]'
        raise LaunchError(f"--frontier needs two objectives in {args.space}, such as: {example}")
    history = comparable(history)
    with progress("searching the frontier", is_json=args.json):
        frontier = predicted_frontier(history, seed=args.seed)
    if args.json:
        print_json(frontier.to_json())
    elif not frontier.points:
        _print_lines([*history.notes, "No launch of this workload was measured in both objectives yet."])
    else:
        print_frontier(open_console(), frontier, current=history.current)
        _print_lines([*frontier_lines(frontier), *history.notes])
    return 0


def _breakdowns(study: Study, following: RewrittenLaunch, proposed: Sequence[Suggestion]) -> Breakdowns:
    """Return the breakdowns of the user's own config, of the next launch and of the configs worth trying."""
    from torchx_cubicml.advisor.breakdown import Breakdowns
    from torchx_cubicml.searchers.base import identity

    named = {"your config": study.current}
    if following.contract is not None:
        named["next launch"] = {**study.current, **following.contract.config}
    named |= {f"proposed {number}": suggestion.config for number, suggestion in enumerate(proposed, start=1)}
    names: dict[Hashable, str] = {}
    for name, config in named.items():
        names.setdefault(identity(config), name)
    return Breakdowns.estimate(study, {name: named[name] for name in names.values()})


def _print_lines(lines: Sequence[str]) -> None:
    from torchx_cubicml.records.redaction import printable

    console = open_console()
    console.print()
    for line in lines:
        say(console, printable(line))


def _print_text(
    next_command: Sequence[str],
    notes: Sequence[str],
    sensitivities: Sequence[ParameterSensitivity],
    proposals: Sequence[tuple[Suggestion, list[str], list[str]]],
    history: History,
) -> None:
    from torchx_cubicml.cli.sensitivity_table import FLEXIBLE, OPTIONAL, sensitivity_table

    console = open_console()
    say(console, "The next launch would run:")
    console.print("\n".join(command_lines(next_command, console.width)), soft_wrap=True)
    for line in notes:
        say(console, f"  {line}")
    if sensitivities:
        console.print()
        console.print(fitted(console, partial(sensitivity_table, sensitivities), OPTIONAL, flexible=FLEXIBLE))
    console.print()
    say(console, "Configs worth trying:" if proposals else _NOTHING_LEFT)
    for number, (suggestion, command, in_job) in enumerate(proposals, start=1):
        say(console, f"{number:3d}. {_reason_text(suggestion)}", indent="     ")
        console.print("\n".join(command_lines(command, console.width, indent="     ")), soft_wrap=True)
        for line in (*(f"and {text}" for text in in_job), *_nearest_lines(suggestion.nearest, history)):
            say(console, f"     {line}")


def _reason_text(suggestion: Suggestion) -> str:
    """Return the reason without the most similar trial, which the lines below it show."""
    nearest = suggestion.nearest[0].differs if suggestion.nearest else ""
    return suggestion.reason.replace(f"; most similar trial: {nearest}", "", 1) if nearest else suggestion.reason


def _nearest_lines(trials: Sequence[NearTrial], history: History) -> list[str]:
    from torchx_cubicml.cli.efficiency_text import mfu_text, power_text
    from torchx_cubicml.launch.messages import interval_text, rate_text, statistic_text

    space, recorded = history.space, {trial.trial_id: trial.at(history.space.statistic) for trial in history.trials}

    def measured(each: NearTrial) -> str:
        words = (
            rate_text(each.throughput, space.objective, uncertainty=each.uncertainty),
            interval_text(each.uncertainty),
            statistic_text(space.statistic),
        )
        trial = recorded.get(each.trial_id)
        found = (mfu_text(trial), power_text(trial.measurement)) if trial is not None else ()
        return ", ".join(filter(None, (" ".join(filter(None, words)), *found)))

    return [f"similar trial: {measured(each)} ({each.differs}), {short_id(each.trial_id)}" for each in trials]


def _suggestion_json(suggestion: Suggestion, history: History) -> dict[str, object]:
    """Return a suggestion as JSON values, with MFU and energy of each similar trial."""
    from torchx_cubicml.cli.efficiency_text import efficiency_json

    ids = {each.trial_id for each in suggestion.nearest}
    known = {each.trial_id: {"efficiency": efficiency_json(each)} for each in history.trials if each.trial_id in ids}
    nearest = [{**asdict(each), **known.get(each.trial_id, {})} for each in suggestion.nearest]
    return {**suggestion.to_json(), "nearest": nearest}


def _read_history(launch: Launch, args: argparse.Namespace, recorded: Sequence[Trial]) -> History:
    """Return the history for a choice among the configs that keep the training, with its messages.

    Parameters that no hook can set keep their own values.
    """
    from torchx_cubicml.advisor.hook_check import HookCheck
    from torchx_cubicml.history.passes import OF_SUGGESTIONS, passed
    from torchx_cubicml.history.same_training import batch_lines
    from torchx_cubicml.launch import command_history
    from torchx_cubicml.space.toml import load_space
    from torchx_cubicml.store.digest_key import digest_keys
    from torchx_cubicml.store.predictor_choice import latest_choice
    from torchx_cubicml.tuner.kept_training import keep_training

    keys, predictor = digest_keys(args.store), latest_choice(args.store)
    history = replace(command_history(launch, load_space(args.space)), trials=recorded, keys=keys, predictor=predictor)
    history = passed(history, *OF_SUGGESTIONS)
    check = HookCheck.of(launch, history.space, history.current, recorded=recorded, own=history.own)
    kept, batch = keep_training(history, launch, where=args.space), batch_lines(history)
    held = replace(history, space=kept.space).holding({*check.unserved, *batch})
    return held.noting(*check.texts(), *kept.notices, *dict.fromkeys(batch.values()))


def _with_commands(
    typed: TypedCommand, history: History, suggestions: Sequence[Suggestion], args: argparse.Namespace
) -> list[tuple[Suggestion, list[str], list[str]]]:
    from torchx_cubicml.launch.messages import changes_in_job
    from torchx_cubicml.launch.place_config import place_config
    from torchx_cubicml.records.trial import Origin

    rows = []
    for suggestion in suggestions:
        placed = place_config(typed.launch, history.space, suggestion.config, store=args.store, origin=Origin.USER)
        rows.append((suggestion, _command(typed, placed.launch, args), changes_in_job(placed.launch)))
    return rows


def _command(typed: TypedCommand, launch: Launch, args: argparse.Namespace) -> list[str]:
    """Return the command that starts a launch as it stands, recorded where this command has read."""
    return launch_words(typed, launch, args, mode="record", space=args.space, store=args.store)

"""Sub-command ``torchx cubicml evaluate``: grades predictors on hold-out trials of the store, and compares them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from torchx_cubicml.cli.base import add_json, add_seed, add_store, print_json, store_url
from torchx_cubicml.cli.component_command import follow_up
from torchx_cubicml.cli.option_choices import PREDICTOR_NAMES, add_choice
from torchx_cubicml.cli.progress_bar import progress, read_store
from torchx_cubicml.cli.terminal import open_console, say
from torchx_cubicml.errors import StoreError
from torchx_cubicml.records.objective_units import OBJECTIVES, PER_JOULE
from torchx_cubicml.records.redaction import mask

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from torchx_cubicml.predictors.evaluation import ReportCard
    from torchx_cubicml.predictors.selection import PredictorChoice
    from torchx_cubicml.records.trial import Trial

_MAX_NAMED = 3  # impossible throughputs that a warning names
SPLITS = ("random", "time", "scale", "workload")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the split, the predictors and the output options."""
    add_store(parser)
    add_choice(parser, "--split", SPLITS, "how trials are held out", note="default: random", default="random")
    text = "with --split scale: largest world size used for training (default: that of half of the trials)"
    parser.add_argument("--max-world-size", type=int, default=None, metavar="N", help=text)
    text = "with --split scale: larger jobs also used for training (default: 0)"
    parser.add_argument("--large", type=int, default=0, metavar="N", help=text)
    note = "default: the one chosen for the store"
    add_choice(parser, "--predictor", PREDICTOR_NAMES, "predictors to grade", note=note, nargs="+", default=None)
    text = "save the predictor that ranks best in the store, for its launches and tunes"
    parser.add_argument("--choose", action="store_true", help=text)
    parser.add_argument("--curve", action="store_true", help="also print Kendall's tau by number of known jobs")
    names, note = (*OBJECTIVES, *PER_JOULE), "default: the unit of most trials"
    add_choice(parser, "--objective", names, "unit of throughput", note=note, default="")
    add_seed(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the report cards of the predictors."""
    from torchx_cubicml.predictors.evaluation import most_measured_objective
    from torchx_cubicml.predictors.selection import choose_predictor, load_choice, save_choice

    url = store_url(args)
    trials, _ = read_store(url, is_json=args.json)
    if not trials:
        raise StoreError(f"store {mask(url)} is empty: no launch has been recorded in it")
    objective = args.objective or most_measured_objective(trials)
    _warn_impossible(trials)
    in_use, is_compared = load_choice(url), args.choose or not args.predictor
    choice = None
    if is_compared:
        with progress("comparing predictors", is_json=args.json) as report:
            choice = choose_predictor(trials, objective=objective, seed=args.seed, report=report)
    names = args.predictor or [in_use]
    graded = []
    with progress("grading predictors", is_json=args.json) as report:
        for number, name in enumerate(names):
            report(number, len(names))
            graded.append(_graded(trials, name, objective, args))
    cards, curves = [card for card, _ in graded], [curve for _, curve in graded if curve is not None]
    if choice is not None and args.choose:
        save_choice(url, choice)
    if args.json:
        print_json(_json(cards, curves, choice, in_use=in_use, is_saved=args.choose))
    else:
        _print_cards(cards, curves)
        if is_compared:
            _print_comparison(choice, in_use=in_use, is_saved=args.choose, url=url)
    return 0


def _graded(
    trials: Sequence[Trial], name: str, objective: str, args: argparse.Namespace
) -> tuple[ReportCard, Sequence[tuple[int, float]] | None]:
    """Return the report card of a predictor, and its learning curve if that is asked for."""
    from torchx_cubicml.predictors.evaluation import evaluate, learning_curve

    card = evaluate(
        trials,
        split=args.split,
        predictor=name,
        objective=objective,
        max_world_size=args.max_world_size,
        large=args.large,
        seed=args.seed,
    )
    return card, learning_curve(trials, predictor=name, objective=objective) if args.curve else None


def _warn_impossible(trials: Sequence[Trial]) -> None:
    impossible = [trial.measurement.impossible() for trial in trials if trial.measurement is not None]
    throughputs = sorted(set(filter(None, impossible)))
    if throughputs:
        more = f" and {len(throughputs) - _MAX_NAMED} more" if len(throughputs) > _MAX_NAMED else ""
        count = sum(map(bool, impossible))
        left_out = f"{count} trial{'s' if count > 1 else ''} left out: impossible throughput, "
        sys.stderr.write(f"torchx-cubicml: {left_out}{' or '.join(throughputs[:_MAX_NAMED])}{more}\n")


def _json(
    cards: Sequence[ReportCard],
    curves: Sequence[Sequence[tuple[int, float]]],
    choice: PredictorChoice | None,
    *,
    in_use: str,
    is_saved: bool,
) -> object:
    payload = [card.to_json() for card in cards]
    for item, curve in zip(payload, curves, strict=False):
        item["learning_curve"] = [{"n_train": count, "tau": tau} for count, tau in curve]
    if choice is not None:
        payload[0]["comparison"] = {"in_use": in_use, "best": choice.name, "tau": choice.taus, "saved": is_saved}
    return payload[0] if len(payload) == 1 else payload


def _print_cards(cards: Sequence[ReportCard], curves: Sequence[Sequence[tuple[int, float]]]) -> None:
    console = open_console()
    for card in cards:
        say(console, str(card))
    for card, curve in zip(cards, curves, strict=False):
        points = ", ".join(f"{tau:.2f} ({count} jobs)" for count, tau in curve) or "undefined for these jobs"
        say(console, f"{card.predictor}, Kendall's tau by number of known jobs: {points}")


def _print_comparison(choice: PredictorChoice | None, *, in_use: str, is_saved: bool, url: str) -> None:
    text = f"the measured trials are too few, or too alike, to compare predictors; launches use {in_use}"
    if choice is not None:
        sets = follow_up("evaluate", "--choose", store=url)
        text = str(choice) if is_saved else choice.advice(in_use=in_use, command=sets)
    say(open_console(), text)

"""Sub-command ``torchx cubicml evaluate``: grades predictors on hold-out trials of the store, and chooses one."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from torchx_cubicml.cli.base import add_json, add_seed, add_store, print_json, store_url
from torchx_cubicml.errors import StoreError
from torchx_cubicml.records.redaction import mask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.predictors.evaluation import ReportCard
    from torchx_cubicml.predictors.selection import PredictorChoice
    from torchx_cubicml.records.trial import Trial

_MAX_NAMED = 3  # impossible throughputs that a warning names
SPLITS = ("random", "time", "scale", "workload")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the split, the predictors and the output options."""
    add_store(parser)
    parser.add_argument("--split", choices=SPLITS, default="random", help="how trials are held out (default: random)")
    text = "with --split scale: largest world size used for training (default: that of half of the trials)"
    parser.add_argument("--max-world-size", type=int, default=None, metavar="N", help=text)
    text = "with --split scale: larger jobs also used for training (default: 0)"
    parser.add_argument("--large", type=int, default=0, metavar="N", help=text)
    text = "greybox, boosting, roofline, gaussian_process, ranking_mlp (default: the one chosen for the store)"
    parser.add_argument("--predictor", nargs="+", default=None, metavar="NAME", help=text)
    parser.add_argument(
        "--choose",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="compare all predictors and save the best one for launches (default: without --predictor)",
    )
    parser.add_argument("--curve", action="store_true", help="also print Kendall's tau by number of known jobs")
    text = "tokens_per_second, samples_per_second or steps_per_second (default: the unit of most trials)"
    parser.add_argument("--objective", default="", help=text)
    add_seed(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the report cards of the predictors."""
    from torchx_cubicml.predictors.evaluation import evaluate, learning_curve
    from torchx_cubicml.predictors.selection import choose_predictor, load_choice, save_choice
    from torchx_cubicml.predictors.tune_rounds import most_measured_objective
    from torchx_cubicml.store.presence import read_recorded

    url = store_url(args)
    trials, _ = read_recorded(url)
    if not trials:
        raise StoreError(f"store {mask(url)} is empty: no launch has been recorded in it")
    objective = args.objective or most_measured_objective(trials)
    _warn_impossible(trials)
    args.choose = args.predictor is None if args.choose is None else args.choose
    choice = choose_predictor(trials, objective=objective, seed=args.seed) if args.choose else None
    if choice is not None:
        save_choice(url, choice)
    names = args.predictor or [load_choice(url)]
    cards = [
        evaluate(
            trials,
            split=args.split,
            predictor=name,
            objective=objective,
            max_world_size=args.max_world_size,
            large=args.large,
            seed=args.seed,
        )
        for name in names
    ]
    curves = [learning_curve(trials, predictor=name, objective=objective) for name in names if args.curve]
    _print_cards(args, cards, curves, choice)
    return 0


def _warn_impossible(trials: Sequence[Trial]) -> None:
    impossible = [trial.measurement.impossible() for trial in trials if trial.measurement is not None]
    throughputs = sorted(set(filter(None, impossible)))
    if throughputs:
        more = f" and {len(throughputs) - _MAX_NAMED} more" if len(throughputs) > _MAX_NAMED else ""
        count = sum(map(bool, impossible))
        left_out = f"{count} trial{'s' if count > 1 else ''} left out: impossible throughput, "
        sys.stderr.write(f"torchx-cubicml: {left_out}{' or '.join(throughputs[:_MAX_NAMED])}{more}\n")


def _print_cards(
    args: argparse.Namespace,
    cards: Sequence[ReportCard],
    curves: Sequence[Sequence[tuple[int, float]]],
    choice: PredictorChoice | None,
) -> None:
    if args.json:
        payload = [card.to_json() for card in cards]
        for item, curve in zip(payload, curves, strict=False):
            item["learning_curve"] = [{"n_train": count, "tau": tau} for count, tau in curve]
        if choice is not None:
            payload[0]["chosen"] = {"predictor": choice.name, "tau": choice.taus}
        print_json(payload[0] if len(payload) == 1 else payload)
        return
    for card in cards:
        sys.stdout.write(f"{card}\n")
    for card, curve in zip(cards, curves, strict=False):
        points = ", ".join(f"{tau:.2f} ({count} jobs)" for count, tau in curve) or "undefined for these jobs"
        sys.stdout.write(f"{card.predictor}, Kendall's tau by number of known jobs: {points}\n")
    if args.choose:
        too_few = "no predictor chosen: too few measured trials to compare predictors; launches use the default"
        sys.stdout.write(f"{choice or too_few}\n")

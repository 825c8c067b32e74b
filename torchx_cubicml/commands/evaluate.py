"""``torchx cubicml evaluate``: how far a predictor can be trusted on the store's own trials."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from torchx_cubicml.commands.base import add_json, add_store, print_json, store_url

if TYPE_CHECKING:
    import argparse

SPLITS = ("random", "time", "scale")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the split."""
    add_store(parser)
    parser.add_argument("--split", choices=SPLITS, default="random", help="what the predictor does not see")
    parser.add_argument("--max-world-size", type=int, default=None, help="with --split scale: largest job that it sees")
    parser.add_argument("--predictor", default="greybox", help="name of a predictor (default: greybox)")
    parser.add_argument("--objective", default="tokens_per_second", help="tokens_per_second or samples_per_second")
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the report card."""
    from torchx_cubicml.evaluation import evaluate
    from torchx_cubicml.store import read_trials

    trials, _ = read_trials(store_url(args), deadline_s=60.0)
    card = evaluate(
        trials,
        split=args.split,
        predictor=args.predictor,
        objective=args.objective,
        max_world_size=args.max_world_size,
        seed=args.seed,
    )
    if args.json:
        print_json(card.to_json())
    else:
        sys.stdout.write(f"{card}\n")
    return 0

"""``torchx cubicml suggest``: what the next launch should run, and why; nothing is launched."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from torchx_cubicml.commands.base import add_json, add_launch, add_store, print_json, split_command, store_url

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the space, the store and the command."""
    parser.add_argument("--space", required=True, help="space file (TOML)")
    add_store(parser)
    parser.add_argument("--count", type=int, default=1, help="suggestions wanted (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers")
    add_json(parser)
    add_launch(parser)


def run(args: argparse.Namespace) -> int:
    """Print the suggestions, best first."""
    from torchx_cubicml.advisor import suggest
    from torchx_cubicml.errors import LaunchError
    from torchx_cubicml.launch import read_config
    from torchx_cubicml.launch.app import ComponentLaunch
    from torchx_cubicml.rewriter import place_config
    from torchx_cubicml.space_file import read_space
    from torchx_cubicml.store import absolute_url, read_trials
    from torchx_cubicml.trial import Origin

    if args.count < 1:
        raise LaunchError(f"--count must be >= 1, got {args.count}")
    name, component_args = split_command(args.command)
    space = read_space(args.space)
    component = ComponentLaunch.parse(name, component_args)
    workload, current = read_config(component.launch, space)
    store = absolute_url(store_url(args))
    trials, _ = read_trials(store, deadline_s=60.0)
    found = suggest(space, workload=workload, current=current, trials=trials, count=args.count, seed=args.seed)
    rows = []
    for suggestion in found:
        placed = place_config(component.launch, space, suggestion.config, store=store, origin=Origin.USER)
        rows.append((suggestion, ("torchx", "run", name, *component.arguments(placed.launch))))
    if args.json:
        print_json([{**suggestion.to_json(), "command": list(command)} for suggestion, command in rows])
        return 0
    from rich.console import Console

    console = Console(highlight=False, markup=False, soft_wrap=True)
    if not rows:
        console.print("every legal config was tried; nothing is left to suggest")
    for suggestion, command in rows:
        console.print(f"{suggestion.reason}\n  {shlex.join(command)}")
    return 0

"""Sub-command ``torchx cubicml explain``: tells of a command what its launch will need and take; launches nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torchx_cubicml.cli.base import (
    add_json,
    add_launch,
    add_scheduler,
    add_store,
    print_json,
    store_url,
)
from torchx_cubicml.cli.component_command import typed_command
from torchx_cubicml.cli.progress_bar import progress, read_store
from torchx_cubicml.cli.terminal import open_console

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from torchx_cubicml.advisor.command_explanation.levers import Lever
    from torchx_cubicml.launch import Launch
    from torchx_cubicml.launch.command_facts.known_facts import CommandFacts
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Value

_LOCAL = "local_cwd"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the facts that the user states, the store and the command."""
    text = "fact that the command does not tell, such as n_layers=12; repeatable"
    parser.add_argument("--fact", action="append", default=[], metavar="NAME=VALUE", help=text)
    parser.add_argument("--device", default="", metavar="NAME", help='kind of device, such as "H100" or "cpu"')
    parser.add_argument("--space", default="", metavar="FILE", help="space file (TOML): its changes are forecast")
    add_store(parser)
    add_scheduler(parser, default="")
    add_json(parser)
    add_launch(parser)


def run(args: argparse.Namespace) -> int:
    """Print the explanation."""
    from torchx_cubicml.advisor.command_explanation.explanation import explain_command
    from torchx_cubicml.cli.explanation_text import explanation_lines, fitted_line
    from torchx_cubicml.launch.command_facts.command_facts import facts_of_command
    from torchx_cubicml.launch.command_facts.recorded_commands import with_command_facts
    from torchx_cubicml.launch.launch import workload_of
    from torchx_cubicml.records.redaction import printable
    from torchx_cubicml.records.workload import PROJECT
    from torchx_cubicml.store import absolute_url

    launch = _launch(args)
    known = facts_of_command(launch, stated=_stated(args.fact), device=args.device)
    workload = workload_of(launch)
    program = str(workload["program"])
    trials, _ = read_store(absolute_url(store_url(args)), is_json=args.json, may_be_absent=not args.store)
    with progress("estimating time and memory", is_json=args.json):
        if "embedding_rows" in known.facts:
            trials = with_command_facts(trials, launch)
        known = _completed(known, launch, trials, program, args)
        explanation = explain_command(
            known,
            program=program,
            project=workload.get(PROJECT),
            trials=trials,
            levers=_levers(launch, args.space),
            device_gib=_host_gib(known, launch),
        )
    if args.json:
        print_json(explanation.to_json())
    else:
        console = open_console()
        lines = [fitted_line(printable(line), console.width) for line in explanation_lines(explanation)]
        console.print("\n".join(lines), soft_wrap=True)
    return 0


def _launch(args: argparse.Namespace) -> Launch:
    """Return the launch of a component, or of a launcher as ``cubicrun`` reads it, which starts on this machine."""
    from torchx_cubicml.errors import LaunchError

    launch = typed_command(args, env={}).launch
    if not launch.program:
        raise LaunchError(f"no training command was found in {args.command[0]}: {launch.why_not_rewritten}")
    return replace(launch, scheduler=launch.scheduler or _LOCAL)


def _stated(texts: Sequence[str]) -> dict[str, Value]:
    """Return the facts of ``--fact``.

    Raises:
        LaunchError: a text is not ``NAME=VALUE`` with a known name and a legal value.
    """
    from torchx_cubicml.errors import LaunchError
    from torchx_cubicml.launch.command_facts.fact_names import FACTS, TABLE_LISTS, TABLE_WORDS, fact_name, stated_fact
    from torchx_cubicml.launch.command_facts.stated_settings import typed_value

    names = FACTS | TABLE_LISTS | TABLE_WORDS
    stated: dict[str, Value] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        name = key if key in names else fact_name(key)
        found = stated_fact(name, typed_value(value)) if name else None
        if not equals or not name:
            raise LaunchError(f"--fact must be NAME=VALUE with a name of {', '.join(sorted(names))}, got {text!r:.60}")
        if found is None:
            raise LaunchError(f"--fact {name} has no legal value in {text!r:.60}")
        stated[name] = found
    return stated


def _completed(
    known: CommandFacts, launch: Launch, trials: Sequence[Trial], program: str, args: argparse.Namespace
) -> CommandFacts:
    """Return the facts with those of the nearest launch, and with the device of this machine for a local launch."""
    from torchx_cubicml.advisor.command_explanation.recorded_tables import with_recorded_facts
    from torchx_cubicml.launch.command_facts.local_device import local_device
    from torchx_cubicml.store import absolute_url
    from torchx_cubicml.store.digest_key import digest_keys

    keys = digest_keys(absolute_url(store_url(args))) if trials else ()
    known = with_recorded_facts(known, trials, program=program, arguments=launch.script_args, keys=keys)
    return known.completed_by(local_device(launch))


def _levers(launch: Launch, path: str) -> list[Lever] | None:
    if not path:
        return None
    from torchx_cubicml.advisor.command_explanation.space_levers import space_levers
    from torchx_cubicml.launch import read_config
    from torchx_cubicml.space.toml import load_space

    space = load_space(path)
    workload, current = read_config(launch, space)
    return space_levers(space, workload=workload, current=current)


def _host_gib(known: CommandFacts, launch: Launch) -> float | None:
    """Return the memory of this machine for each process of a local launch on its CPU."""
    from torchx_cubicml.launch.command_facts.local_device import host_gib_per_process

    return host_gib_per_process(launch) if known.facts.get("device") == "cpu" else None

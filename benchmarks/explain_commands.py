"""Compares ``torchx cubicml explain`` of generated and of public training commands with their launches.

    nice -n 15 python benchmarks/explain_commands.py --torchrec-python PYTHON [--folder FOLDER] [--output FILE]

Add ``--scripts FOLDER --stand-in FOLDER --python LIBRARY=PYTHON ...`` for the public commands. ``--folder`` keeps the
launches, so that an interrupted run goes on. What the figures mean stands in the result.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lib.explained.generated import generated
from lib.explained.launches import (
    HERE,
    ROOT,
    copy_earlier,
    launch_all,
    launch_public,
    launched_commands,
    launched_public,
)
from lib.explained.public import public_commands
from lib.explained.scoring import Score, facts_lines, score, table

from torchx_cubicml.advisor.command_explanation.explanation import explain_command
from torchx_cubicml.advisor.command_explanation.recorded_tables import with_recorded_facts
from torchx_cubicml.launch import ComponentLaunch, workload_of
from torchx_cubicml.launch.command_facts.command_facts import facts_of_command
from torchx_cubicml.launch.command_facts.local_device import local_device
from torchx_cubicml.launch.command_facts.recorded_commands import with_command_facts
from torchx_cubicml.settings import child_environment
from torchx_cubicml.store.digest_key import digest_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lib.explained.generated import Command
    from lib.explained.public import PublicCommand

    from torchx_cubicml.records.trial import Trial

_OTHERS = "after launches of other programs alone"
_EXPLANATION = """\
Generated commands start small trainings of this repository on one or two CPU processes with drawn sizes: a GPT, a
Llama, an encoder, a recommender of plain torch (dlrm), and TorchRec's DLRM under its planner. Public commands start
public scripts and trainers, in sizes that a CPU trains. Each is explained from its command and source, as the command
line does it: without any launch, with the launches of other generated programs on this machine, and with all launches
of this machine before its own, none of which has its sizes. Public commands, which are of other projects, are launched
with four sizes each: the first is explained without any launch and with all launches of the generated ones, each
further one with the launches of all sizes before. The explanations are made when all launches have ended, but read
nothing of the launch itself or of later ones.

exact, range, wrong, untold: the number of parameters, beside the recorded one. Held: share of the 80 % intervals that
hold the measured number, of how many, and the median ratio of an interval's ends. Peak: resident memory of a process,
with Python and all libraries. Step: mean seconds of a step. Refused: steps that are not told, as their interval would
span more than a factor of ten; they count neither as held nor as missed. All launches are of one machine, so that
intervals without its launches are right or wrong together: their share says little."""


def explained(command: Command, trial: Trial, launches: Sequence[Trial], keys: Sequence[str]) -> Score:
    """Return the score of a generated command's explanation with some launches, as the command line makes it."""
    words = ["-j", f"1x{command.processes}", "--script", command.script, "--", *command.words]
    launch = replace(ComponentLaunch.parse("dist.ddp", words).launch, scheduler="local_cwd")
    workload, trials = workload_of(launch), with_command_facts(launches, launch)
    program = str(workload["program"])
    known = with_recorded_facts(
        facts_of_command(launch), trials, program=program, arguments=launch.script_args, keys=keys
    )
    found = explain_command(
        known.completed_by(local_device(launch)),
        program=program,
        project=workload.get("project"),
        trials=trials,
        levers=(),
    )
    return score(command.kind, found.to_json(), trial)


def explained_by_command_line(command: PublicCommand, size: int, trial: Trial, *, python: str, store: Path) -> Score:
    """Return the score of what ``explain`` prints of a public command, in the environment that runs it."""
    words = command.launcher_words(size)
    torchx = str(Path(python).with_name("torchx"))
    done = subprocess.run(
        [torchx, "cubicml", "explain", "--json", "--store", str(store), "-s", "local_cwd", "--", "dist.ddp", *words],
        cwd=command.folder,
        env=child_environment({"PYTHONPATH": str(ROOT)}),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"explain failed for {command.name}:\n{done.stderr[-2000:]}")
    return score(command.name, json.loads(done.stdout), trial)


def generated_lines(folder: Path, args: argparse.Namespace) -> list[str]:
    """Launch and explain the generated commands; return the lines."""
    commands = generated(args.seed)[: args.commands or None]
    if not args.as_is:
        launch_all(commands, folder, torchrec_python=args.torchrec_python, backwards=args.backwards)
    launched = launched_commands(commands, folder)
    trials = [each.trial for each in launched]
    keys = digest_keys(str(folder / "store"))
    chosen = {
        "without any launch": lambda _: (),
        _OTHERS: lambda number: [
            each for each in trials[:number] if each.fact("program") != trials[number].fact("program")
        ],
        "after launches of other sizes": lambda number: trials[:number],
    }
    with contextlib.chdir(HERE):
        scores = {
            name: [explained(each.command, each.trial, of(number), keys) for number, each in enumerate(launched)]
            for name, of in chosen.items()
        }
    return [f"{len(launched)} of {len(commands)} generated commands ran to their end.", "", *_tables(scores)]


def public_lines(folder: Path, args: argparse.Namespace, others: Path) -> list[str]:
    """Launch and explain the public commands; return the lines.

    Args:
        folder: of their launches.
        args: of the command line.
        others: store with the launches of the generated commands.
    """
    pythons = {"torch": sys.executable, "torchrec": args.torchrec_python, **dict(args.python or ())}
    commands = public_commands(args.scripts, folder, list(pythons))
    if not args.as_is:
        launch_public(commands, folder, pythons=pythons, stand_in=str(args.stand_in))
    lines, pooled = [], []
    for size in range(max(len(command.sizes) for command in commands)):
        launched = launched_public(commands, folder, size)
        n_all = sum(size < len(command.sizes) for command in commands)
        lines += ["", f"{len(launched)} of {n_all} public commands ran to their end with size {size + 1}.", ""]
        with tempfile.TemporaryDirectory() as temporary:
            stores: dict[str, Callable[[Trial], Path]] = {
                "without any launch": lambda _, empty=Path(temporary): empty,
                _OTHERS: lambda _: others,
            }
            if size:
                for _, trial in launched:
                    copy_earlier(folder / "store", trial, Path(temporary, trial.trial_id))
                name = f"after the launches with {size} other {'size' if size == 1 else 'sizes'}"
                stores = {name: lambda trial, copies=temporary: Path(copies, trial.trial_id)}
            scores = {
                name: [
                    explained_by_command_line(
                        command, size, trial, python=pythons[command.library], store=store_of(trial)
                    )
                    for command, trial in launched
                ]
                for name, store_of in stores.items()
            }
        lines += _tables(scores, with_facts=size == 0)
        pooled += [each for found in scores.values() for each in found if size > 1]
    return [*lines, "", "after the launches with 2 or 3 other sizes, together", *table(pooled)]


def _tables(scores: Mapping[str, Sequence[Score]], *, with_facts: bool = True) -> list[str]:
    """Return one table per store, and lines on the facts that the first one tells."""
    lines = [line for name, chosen in scores.items() for line in (name, *table(chosen), "")]
    return [*lines, *(facts_lines(next(iter(scores.values()))) if with_facts else ())]


def _named(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not value:
        raise argparse.ArgumentTypeError(f"must be LIBRARY=PYTHON, got {text!r}")
    return name, value


def main() -> None:
    """Launch, explain and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--commands", type=int, default=0, help="the first so many; 0 for all")
    text = "launch the last command first, as a second process beside another on the same folder does"
    parser.add_argument("--backwards", action="store_true", help=text)
    parser.add_argument("--as-is", action="store_true", help="launch no generated command that the folder lacks")
    parser.add_argument("--torchrec-python", default=sys.executable, help="interpreter with TorchRec")
    text = "interpreter with torchtitan, megatron, transformers (and Lightning) or deepspeed; repeatable"
    parser.add_argument("--python", action="append", type=_named, metavar="LIBRARY=PYTHON", help=text)
    parser.add_argument(
        "--scripts", type=Path, help="folder with nanoGPT and pytorch_examples; without it, no public command"
    )
    text = "folder whose sitecustomize.py lets the CPU stand for the accelerators that scripts ask for"
    parser.add_argument("--stand-in", type=Path, default=Path(), help=text)
    parser.add_argument("--folder", type=Path, help="keeps the launches (default: a temporary folder)")
    parser.add_argument("--output", type=Path, help="file that receives the result")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.folder or Path(temporary)).absolute()
        lines = generated_lines(folder, args)
        if args.scripts:
            lines += public_lines(folder / "public", args, folder / "store")
    lines += ["", f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} at the end"]
    text = "\n".join([*_EXPLANATION.splitlines(), "", *lines])
    print(text)
    if args.output:
        args.output.write_text(f"{text}\n")


if __name__ == "__main__":
    main()

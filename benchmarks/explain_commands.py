"""Compares ``torchx cubicml explain`` of generated and of public training commands with their launches.

    nice -n 15 python benchmarks/explain_commands.py --torchrec-python PYTHON [--folder FOLDER] [--output FILE]

Generated commands start small trainings of this repository (``lib/explained``) on one or two CPU processes with drawn
sizes: a GPT, a Llama, an encoder, a recommender of plain torch, and TorchRec's DLRM under its planner. Some flags are
left to their defaults. Each command is explained by itself, then launched under the recorder. It is explained twice:
without any launch, and with the launches of this machine before it, all of which have other sizes. ``--folder`` keeps
the launches, so that an interrupted run goes on.

exact, range, wrong, untold: the number of parameters, beside the recorded one. Held: share of the 80 % intervals that
hold the measured number, of how many, and the median ratio of an interval's ends. Peak: resident memory of a process,
with Python and all libraries. Step: mean seconds of a step.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from lib.explained.generated import generated
from lib.explained.launches import HERE, Launched, launch_all, launched_commands
from lib.explained.scoring import Score, facts_lines, score, table

from torchx_cubicml.advisor.command_explanation.explanation import explain_command
from torchx_cubicml.launch import ComponentLaunch, workload_of
from torchx_cubicml.launch.command_facts.command_facts import facts_of_command
from torchx_cubicml.launch.command_facts.recorded_commands import with_command_facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.records.trial import Trial


def explained(each: Launched, before: Sequence[Trial]) -> Score:
    """Return the score of a command's explanation with the launches before it."""
    command = each.command
    words = ["-j", f"1x{command.processes}", "--script", command.script, "--", *command.words]
    launch = ComponentLaunch.parse("dist.ddp", words).launch
    known = facts_of_command(launch, device="cpu")
    program = str(workload_of(launch).get("program", ""))
    found = explain_command(known, program=program, trials=with_command_facts(before, launch))
    return score(command.kind, found, each.trial)


def main() -> None:
    """Launch, explain and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--commands", type=int, default=0, help="the first so many; 0 for all")
    parser.add_argument("--torchrec-python", default=sys.executable, help="interpreter with TorchRec")
    text = "launch the last command first, as a second process beside another on the same folder does"
    parser.add_argument("--backwards", action="store_true", help=text)
    parser.add_argument("--folder", type=Path, help="keeps the launches (default: a temporary folder)")
    parser.add_argument("--output", type=Path, help="file that receives the result")
    args = parser.parse_args()
    commands = generated(args.seed)[: args.commands or None]
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.folder or Path(temporary)).absolute()
        launch_all(commands, folder, torchrec_python=args.torchrec_python, backwards=args.backwards)
        launched = launched_commands(commands, folder)
    with contextlib.chdir(HERE):
        trials = [each.trial for each in launched]
        alone = [explained(each, ()) for each in launched]
        after = [explained(each, trials[:number]) for number, each in enumerate(launched)]
    lines = [*(__doc__ or "").partition("\n\nexact")[1:][1].splitlines()]
    lines = [
        f"{len(launched)} of {len(commands)} commands ran to their end.",
        "",
        "without any launch",
        *table(alone),
        "",
        "after the launches of other sizes before it",
        *table(after),
        "",
        *facts_lines(alone),
        "",
        f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} at the end",
    ]
    text = "\n".join(lines)
    print(text)
    if args.output:
        args.output.write_text(f"{text}\n")


if __name__ == "__main__":
    main()

"""Launches of generated commands under the recorder, one after the other, and what was measured of each."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.records.workload import recency
from torchx_cubicml.settings import child_environment
from torchx_cubicml.store import TrialStore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lib.explained.generated import Command
    from lib.explained.public import PublicCommand
    from torchx_cubicml.records.trial import Trial

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent
_TIMEOUT_S = 600
_JOURNAL = "launched.jsonl"
_PUBLIC_JOURNAL = "public.json"
_TRIAL_ID = re.compile(r'"trial_id":"([\w-]+)"')  # in the line that the recorder prints at the end


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """One command and its trial."""

    command: Command
    trial: Trial


def launch_all(commands: Sequence[Command], folder: Path, *, torchrec_python: str, backwards: bool = False) -> None:
    """Launch the commands that ``folder`` does not hold yet.

    Args:
        commands: in the order of their launches.
        folder: holds the store, and which trial is of which command.
        torchrec_python: interpreter with TorchRec.
        backwards: whether the last is launched first, as by a second process beside another.
    """
    folder.mkdir(parents=True, exist_ok=True)
    numbers = range(len(commands))
    for number in reversed(numbers) if backwards else numbers:
        if number not in _journal(folder):
            command = commands[number]
            python = torchrec_python if command.kind == "torchrec" else sys.executable
            entry = {"number": number, "trial_id": _launch(command, folder, python=python)}
            with (folder / _JOURNAL).open("a") as stream:
                stream.write(f"{json.dumps(entry)}\n")
            print(f"{number}: {command.kind} {entry['trial_id'] or 'failed'}", file=sys.stderr, flush=True)


def launched_commands(commands: Sequence[Command], folder: Path) -> list[Launched]:
    """Return the commands that were launched and recorded, in the order of their launches."""
    trials = {trial.trial_id: trial for trial in TrialStore(str(folder / "store"))}
    found = [
        Launched(command=commands[number], trial=trials[trial_id])
        for number, trial_id in _journal(folder).items()
        if number < len(commands) and trial_id in trials
    ]
    return sorted(found, key=lambda each: recency(each.trial))


def _journal(folder: Path) -> dict[int, str]:
    """Return the number of each command that was launched, and its trial; empty where it failed."""
    path = folder / _JOURNAL
    lines = path.read_text().splitlines() if path.exists() else []
    entries = [json.loads(line) for line in lines]
    return {entry.get("number", index): entry["trial_id"] for index, entry in enumerate(entries)}


def launch_public(
    commands: Sequence[PublicCommand], folder: Path, *, pythons: Mapping[str, str], stand_in: str
) -> None:
    """Launch public commands that ``folder`` does not hold yet: all of them with their first sizes, then the second...

    Args:
        commands: in the order of their launches.
        folder: holds the store, and which trial is of which command.
        pythons: library -> interpreter that has it.
        stand_in: folder whose ``sitecustomize`` lets the CPU stand for accelerators.
    """
    done = _public_journal(folder)
    for size in range(max((len(command.sizes) for command in commands), default=0)):
        for command in commands:
            entry = f"{command.name} {size}"
            if size < len(command.sizes) and entry not in done:
                done[entry] = _launch_public(command, size, folder, pythons=pythons, stand_in=stand_in)
                (folder / _PUBLIC_JOURNAL).write_text(json.dumps(done, indent=1))
                print(f"{entry}: {done[entry] or 'failed'}", file=sys.stderr, flush=True)


def launched_public(commands: Sequence[PublicCommand], folder: Path, size: int) -> list[tuple[PublicCommand, Trial]]:
    """Return the public commands that were launched and recorded with one of their sizes, in order."""
    done = _public_journal(folder)
    trials = {trial.trial_id: trial for trial in TrialStore(str(folder / "store"))}
    found = [(command, done.get(f"{command.name} {size}", "")) for command in commands]
    return [(command, trials[trial_id]) for command, trial_id in found if trial_id in trials]


def copy_earlier(store: Path, trial: Trial, copy: Path) -> None:
    """Copy what a store held when a launch began: the names of its objects begin with their time."""
    started = datetime.fromisoformat(trial.started_at).strftime("%Y%m%dT%H%M%S.%fZ")

    def later(_: str, names: Sequence[str]) -> list[str]:
        return [name for name in names if name.endswith(".json") and name >= started]

    shutil.copytree(store, copy, ignore=later)


def _public_journal(folder: Path) -> dict[str, str]:
    """Return the trial of each public command and size that was launched; empty where it failed."""
    path = folder / _PUBLIC_JOURNAL
    return json.loads(path.read_text()) if path.exists() else {}


def _launch_public(
    command: PublicCommand, size: int, folder: Path, *, pythons: Mapping[str, str], stand_in: str
) -> str:
    """Run one public command and return the id of its trial; empty if it failed."""
    variables = {"HF_HUB_OFFLINE": "1"}
    if command.needs_devices:
        variables["PYTHONPATH"] = f"{stand_in}:{ROOT}"
    for path in (command.folder / name for name in command.outputs):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    return _recorded(
        (command.script, *command.script_words(size)),
        command.processes[size],
        store=folder / "store",
        cwd=command.folder,
        python=pythons[command.library],
        variables=variables,
    )


def _launch(command: Command, folder: Path, *, python: str) -> str:
    """Run one command and return the id of its trial; empty if it failed."""
    return _recorded(
        (command.script, *command.words),
        command.processes,
        store=folder / "store",
        cwd=HERE,
        python=python,
        variables={},
    )


def _recorded(
    words: Sequence[str], processes: int, *, store: Path, cwd: Path, python: str, variables: Mapping[str, str]
) -> str:
    """Run a script under the recorder and return the id of its trial; empty if it failed."""
    own = {
        "TORCHX_CUBICML_STORE": str(store),
        "TORCHX_CUBICML_PRINT_TRIAL": "yes",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    launcher = [python, "-m", "torchx_cubicml.cubicrun", "--standalone", "--nproc_per_node", str(processes)]
    try:
        done = subprocess.run(
            [*launcher, *words],
            cwd=cwd,
            env=child_environment({**own, **variables}),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ""
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
        return ""
    found = _TRIAL_ID.search(done.stdout + done.stderr)
    return found[1] if found is not None else ""

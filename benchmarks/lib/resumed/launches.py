"""Launches of a generated training: whole, killed and again, and the samples that each saw."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lib.resumed.drawn import PER_RANK
from torchx_cubicml.records.arguments import digested_arguments
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import new_id
from torchx_cubicml.settings import child_environment
from torchx_cubicml.store import TrialStore
from torchx_cubicml.store.digest_key import copy_digest_keys, digest_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lib.resumed.drawn import Training
    from torchx_cubicml.records.trial import Trial

_HERE = Path(__file__).resolve().parent
_MARK = "RESUMED_LAUNCH"  # variable by which all processes of a launch are found
_TIMEOUT_S, _ENDING_S = 300.0, 20.0
_NOISE = (0.995, 1.0, 1.002, 1.006)  # of speeds; one launch each
_MEASURED = {"steps_counted": 500, "warmup_steps": 3, "statistic": "mean", "relative_error": 0.004, "is_steady": True}
_IDLE = {"other_busy_cpus": 0.0, "idle_cpus": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """One launch, as its ranks and its launcher tell.

    Args:
        status: of the launcher.
        text: what it printed on stderr.
        samples: step -> its samples on all ranks, sorted.
        layouts: micro batches and accumulations that were seen.
        checkpoints: steps of each checkpoint, and its path.
    """

    status: int
    text: str
    samples: dict[int, list[int]]
    layouts: frozenset[tuple[int, int]]
    checkpoints: tuple[tuple[int, str], ...]


class Case:
    """Folder of one training, in which it is launched.

    Args:
        training: what is launched.
        folder: that is made.
        python: interpreter with the kind's libraries and this package.
    """

    def __init__(self, training: Training, folder: Path, python: Path) -> None:
        self.training, self.folder, self.python = training, folder, python
        self.code = folder / "code"
        self.code.mkdir(parents=True)
        (self.code / "train.py").write_text(training.script)
        shutil.copy(_HERE / "watch.py", self.code)
        (folder / "space.toml").write_text(training.space)

    def launch(self, label: str, mode: str, store: Path, *, at: str, steps: int, goes_on_from: str | None) -> Launched:
        """Launch the training and wait for its end; the first launch is killed where it is to be.

        Args:
            label: of the launch.
            mode: of the recorder, or ``without us``.
            store: path.
            at: name of the folder in which the command is typed.
            steps: that the command asks for.
            goes_on_from: as in ``Training.command``.
        """
        (self.code / "label").write_text(label)
        (self.code / "hold").unlink(missing_ok=True)
        is_killed = label == "first" and self.training.end.startswith("SIG")
        if is_killed:
            (self.code / "hold").write_text(str(self.training.stop))
        words, variables = self._words(mode, store, at=at, steps=steps, goes_on_from=goes_on_from)
        mark = f"{self.folder}-{label}"
        with (self.folder / f"{label}.log").open("w+") as log:
            process = subprocess.Popen(
                words,
                cwd=self.folder / at,
                env=variables | {_MARK: mark},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                status = self._killed(process, mark) if is_killed else process.wait(_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                status = -1
            finally:
                _signal(mark, signal.SIGKILL)
                process.wait()
        return self._seen(label, status)

    def shows_rewrite(self, store: Path, *, at: str) -> list[str]:
        """Return what a dry run of the first command says that it changes, in an empty folder."""
        steps, goes_on_from = first_words(self.training)
        words, variables = self._words("rewrite", store, at=at, steps=steps, goes_on_from=goes_on_from)
        words.insert(1, "--cubicml-dryrun")
        done = subprocess.run(
            words, cwd=self.folder / at, env=variables, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        (self.folder / f"{at}.log").write_text(done.stderr)
        if "arguments rewritten" not in done.stderr:
            return []
        bound = [self.training.places[name][1] for name in ("batch", "accumulate")]
        return [
            line.strip() for line in done.stderr.splitlines() if "->" in line and any(each in line for each in bound)
        ]

    def _words(
        self, mode: str, store: Path, *, at: str, steps: int, goes_on_from: str | None
    ) -> tuple[list[str], dict[str, str]]:
        folder = self.folder / at
        words, variables = self.training.command(folder, steps=steps, out=folder / "out", goes_on_from=goes_on_from)
        single = self.training.processes == 1
        python, script = str(self.python), "../code/train.py"
        started = [python, script] if single else ["--standalone", "--nproc_per_node", "2", script]
        if mode == "without us":
            started = started if single else [python, "-m", "torch.distributed.run", *started]
        else:
            options = {"store": str(store), "space": str(self.folder / "space.toml"), "mode": mode}
            ours = [word for name, value in options.items() for word in (f"--cubicml-{name}", value)]
            started = [str(self.python.with_name("cubicrun")), *ours, *["--"] * single, *started]
        own = {"OMP_NUM_THREADS": "1", "TORCHX_CUBICML_CACHE": str(self.folder / "cache")}
        return [*started, *words], child_environment(own | variables)

    def _killed(self, process: subprocess.Popen[bytes], mark: str) -> int:
        """Wait until each rank holds before its step, end the processes of the launch, and return the status."""
        end = time.monotonic() + _TIMEOUT_S
        held = [self.code / f"held-{rank}" for rank in range(self.training.processes)]
        while not all(path.exists() for path in held) and process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(self.training.pause_s)
        _signal(mark, signal.Signals[self.training.end])
        return process.wait(_ENDING_S + self.training.pause_s)

    def _seen(self, label: str, status: int) -> Launched:
        samples, layouts = defaultdict[int, list[int]](list), set[tuple[int, int]]()
        for note in _notes(self.code, f"{label}-seen-*"):
            samples[note["step"]] += note["ids"]
            layouts.add(tuple(note["layout"]))
        return Launched(
            status=status,
            text=(self.folder / f"{label}.log").read_text(errors="replace"),
            samples={step: sorted(ids) for step, ids in samples.items()},
            layouts=frozenset(layouts),
            checkpoints=tuple((note["step"], note["path"]) for note in _notes(self.code, f"{label}-saved-*")),
        )


def first_words(training: Training) -> tuple[int, str | None]:
    """Return the steps that the first command asks for, and what it goes on from."""
    steps = training.stop if training.end in {"ended", "part"} else training.steps
    return steps, "" if training.is_asked_first else None


def again_words(training: Training, first: Launched, folder: Path) -> tuple[int, str | None]:
    """Return the steps that the second command asks for, and what it goes on from.

    Args:
        training: as drawn.
        first: its first launch.
        folder: where the command is typed.
    """
    steps = training.stop if training.end == "part" else training.steps
    if training.resume == "always" or training.asks != "path":
        return steps, None if training.resume == "always" else ""
    path = max(first.checkpoints)[1]
    return steps, str(Path(path).relative_to(folder)) if training.is_relative else path


def speeds(training: Training) -> dict[tuple[int, int], float]:
    """Return the samples per second of each layout: as typed, a faster one, and one that is found later."""
    return {training.layout: 400.0, (16, 1) if training.layout[0] < PER_RANK else (4, 4): 1200.0, (8, 2): 3600.0}


def add_history(training: Training, recorded: Path, store: Path, layouts: Iterable[tuple[int, int]]) -> None:
    """Write several launches of each layout to ``store``, made of the one in ``recorded``.

    Args:
        training: as drawn.
        recorded: store with one launch of it.
        store: that is written.
        layouts: micro batches and accumulations, of ``speeds``.
    """
    copy_digest_keys(str(recorded), str(store), is_own=True)
    (trial,) = TrialStore(str(recorded))
    may_ask = training.asks != "path" and training.resume != "always"
    key, target, every = digest_keys(str(recorded))[0], TrialStore(str(store)), speeds(training)
    for layout in layouts:
        typed, place = replace(training, layout=layout), list(every).index(layout)
        for number, noise in enumerate(_NOISE):
            at = store.parent / f"history-{place}-{number}"
            goes_on_from = "" if training.is_asked_first or (may_ask and number % 2) else None
            words, _ = typed.command(at, steps=training.steps, out=at / "out", goes_on_from=goes_on_from)
            made = _remade(trial, layout, noise * every[layout], digested_arguments(words, key))
            day = f"2026-01-{1 + number + 10 * place:02}"  # none ran beside another
            target.add(replace(made, started_at=f"{day}T08:00:00+00:00", ended_at=f"{day}T09:00:00+00:00"))


def settle_speeds(training: Training, store: Path) -> None:
    """Give launches that were measured the speed of their layout in the history, whatever the machine was busy with."""
    every = speeds(training)
    for path in (store / "events").glob("*/*.json"):
        event = json.loads(path.read_text())
        if "measurement" in event and "observed" in event:
            layout = tuple(event["config"][name] for name in ("micro_batch_size", "gradient_accumulation_steps"))
            event["measurement"] = {**_MEASURED, "samples_per_second": every[layout]}
            event["observed"] |= _IDLE
            path.write_text(f"{json.dumps(event)}\n")


def _remade(trial: Trial, layout: tuple[int, int], speed: float, arguments: tuple[str, ...]) -> Trial:
    if trial.measurement is None:
        raise ValueError(f"the whole launch was not measured: {trial.state} {trial.reason}")
    sizes = {"micro_batch_size": layout[0], "gradient_accumulation_steps": layout[1]}
    measurement = Measurement(**_MEASURED, samples_per_second=speed)
    return replace(
        trial,
        trial_id=new_id("trial"),
        config={**trial.config, **sizes},
        observed={**trial.observed, **sizes, **_IDLE},
        measurement=measurement,
        arguments=arguments,
    )


def _notes(folder: Path, pattern: str) -> Iterator[dict[str, object]]:
    for path in sorted(folder.glob(pattern)):
        for line in path.read_text().splitlines():
            yield json.loads(line)


def _signal(mark: str, number: signal.Signals) -> None:
    """Send a signal to every process of a launch, as a scheduler does."""
    wanted = f"{_MARK}={mark}".encode()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (path / "environ").read_bytes().split(b"\0"):
                # Only processes that this launch has started have the mark.
                os.kill(int(path.name), number)
        except (OSError, ValueError):
            continue

"""Five scenarios that each scheduler and each launcher runs for real: record, rewrite, tune, resume, failure.

A scheduler is one file of this folder: a fixture ``site`` of module scope, and ``class TestDocker(Scenarios)``.
A launcher is one function of ``tests/launchers/launchers.py``.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from torchx_cubicml import State, Trial, TrialStore
from torchx_cubicml.records.contract import decode_contract
from torchx_cubicml.records.trial import Origin

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).resolve().parents[2]
TRAINING = "--n_layer 2 --n_embd 32 --block_size 32 --steps 12 --batch_size 2 --accumulate 2 --sharding FULL_SHARD"
REFUSED = TRAINING.replace("FULL_SHARD", "NONE")
"""The same with a value that the script refuses, by exit status 2."""
SPACE = """
objective = "samples_per_second"

[parameters.micro_batch_size]
choices = [1, FASTER]
flag = "--batch_size"
changes_training = true
"""
LONGEST_S = 900.0
"""Seconds that a command may take: only a hang takes so long."""
ENDED_WITHIN_S = 300.0
"""Seconds until the trial of a job that is over tells its end; likewise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A scheduler, and how the scenarios launch on it.

    Args:
        scheduler: its name in TorchX.
        version: its name and version, as the results state it.
        options: words of `torchx run` and of `torchx cubicml tune`, such as -s, -cfg and --workspace.
        component: words of `dist.ddp`, such as --image and --mounts.
        folder: folder of scripts and stores, which jobs see under the same path; commands are typed there.
        store: URL below which each scenario has its store.
        limits_memory: whether a job that takes more than its --memMB is killed.
    """

    scheduler: str
    version: str
    options: tuple[str, ...]
    component: tuple[str, ...]
    folder: Path
    store: str
    limits_memory: bool = False
    training: Path = ROOT / "examples" / "train_gpt.py"
    training_args: str = TRAINING
    refused_args: str = REFUSED
    faster: int = 4
    quick: Path = ROOT / "tests" / "tune" / "quick.py"

    @property
    def facts(self) -> dict[str, str | int]:
        """Facts that are observed in the recorded training."""
        return {"world_size": 2, "nnodes": 1, "global_batch_size": 8, "scheduler": self.scheduler}

    def write_files(self) -> None:
        """Write the scripts and the space file into the folder."""
        for script in {self.training, self.quick}:
            (self.folder / script.name).write_text(script.read_text())
        (self.folder / "space.toml").write_text(SPACE.replace("FASTER", str(self.faster)))

    def typed(self, args: Sequence[str]) -> tuple[str, ...]:
        """Return the words that start the training without us, and without the scheduler."""
        return ("torchrun", "--nproc_per_node", "2", self.training.name, *args)

    def recorded(self, store: str, script: str, args: Sequence[str], *, space: str = "") -> tuple[str, ...]:
        """Return the words of a recorded launch of a script."""
        rewrite = ("--space", space) if space else ()
        words = ("run", "--wait", *self.options, "cubicml", *rewrite, "--store", f"{self.store}/{store}")
        return ("torchx", *words, *self.command(script, args, processes=1 if script == self.quick.name else 2))

    def launch(self, store: str, script: str, args: Sequence[str], *, space: str = "") -> Ended:
        """Launch a script, recorded, and wait until its trial has ended."""
        before = {trial.trial_id for trial in self.trials(store)}
        done = self.run(*self.recorded(store, script, args, space=space))
        end = time.monotonic() + ENDED_WITHIN_S
        while time.monotonic() < end:
            new = [trial for trial in self.trials(store) if trial.trial_id not in before]
            if new and all(trial.state.ended for trial in new):
                return Ended(done.returncode, done.stderr, new)
            time.sleep(0.5)
        raise AssertionError(f"the launch has no ended trial: {done.stderr[-4000:]}")

    def command(self, script: str, args: Sequence[str], *, processes: int, memory: str = "4000") -> tuple[str, ...]:
        """Return the words of the component, here `dist.ddp`, with a script of the folder."""
        component = ("dist.ddp", "-j", f"1x{processes}", "--memMB", memory, *self.component)
        return (*component, "--script", str(self.folder / script), "--", *args)

    def tune(self, store: str, args: Sequence[str], *options: str, memory: str = "4000") -> tuple[str, ...]:
        """Return the words of a tune of the quick training, which writes down who ran."""
        fixed = ("--space", "space.toml", "--store", f"{self.store}/{store}", "--scratch", str(self.folder / "scratch"))
        ledger = ("--ledger", str(self.folder / store))
        command = self.command(self.quick.name, ["--batch_size", "1", *ledger, *args], processes=1, memory=memory)
        return ("torchx", "cubicml", "tune", *self.options, *fixed, "--yes", "--json", *options, "--", *command)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the folder."""
        return subprocess.run(
            words, cwd=self.folder, capture_output=True, text=True, errors="replace", check=False, timeout=LONGEST_S
        )

    def trials(self, store: str) -> list[Trial]:
        """Return the trials of a scenario's store."""
        return list(TrialStore(f"{self.store}/{store}"))

    def ran(self, store: str) -> list[tuple[str, str]]:
        """Return launch id and arguments of each job that ran, as the jobs themselves wrote them down."""
        ledger = self.folder / store
        lines = ledger.read_text().splitlines() if ledger.exists() else []
        found = [line.partition(" ")[::2] for line in lines]
        return [(decode_contract(contract).launch_id, args) for contract, args in found]


@dataclass(frozen=True, slots=True)
class Ended:
    """A launch that has ended: exit status and stderr of its command, and the trials that it left."""

    returncode: int
    stderr: str
    trials: list[Trial]


class Scenarios:
    """The scenarios of one scheduler or launcher, whose fixture ``site`` returns a `Site`."""

    @pytest.fixture(autouse=True)
    def _told(self, site: Site, record_property: Callable[[str, object], None]) -> None:
        site.write_files()
        record_property("site", site.version)

    def test_record(self, site: Site, record_property: Callable[[str, object], None]) -> None:
        args = [*site.training_args.split(), "--out_dir"]
        outside = site.run(*site.typed([*args, "outside"]))
        assert outside.returncode == 0, outside.stderr[-4000:]
        ended = site.launch("record", site.training.name, [*args, str(site.folder / "inside")])
        assert ended.returncode == 0, ended.stderr[-4000:]
        (trial,) = ended.trials
        assert trial.state is State.COMPLETED, trial.reason
        assert trial.measurement is not None
        assert {name: trial.observed.get(name) for name in site.facts} == site.facts
        one, other = weights(site.folder / "outside"), weights(site.folder / "inside")
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
        ranks = "one rank" if site.facts["world_size"] == 1 else "two ranks"
        record_property("ran", f"{ranks}, one trial, the weights of the same training outside to the bit")

    def test_tune(self, site: Site, tuned: dict[str, Any], record_property: Callable[[str, object], None]) -> None:
        recorded = [trial for trial in site.trials("tune") if trial.origin is Origin.TUNE]
        assert {trial.state for trial in recorded} == {State.COMPLETED}, [trial.reason for trial in recorded]
        assert tuned["claims_gain"], tuned
        assert tuned["best"]["config"]["micro_batch_size"] == site.faster
        of_tune = {trial.launch_id for trial in recorded}
        counts = Counter(launch_id for launch_id, _ in site.ran("tune") if launch_id in of_tune)
        assert counts == dict.fromkeys(of_tune, 1)
        assert tuned["launches"] == len(of_tune)
        record_property("ran", f"{len(of_tune)} launches, each job ran once, a gain is confirmed")

    def test_rewrite(self, site: Site, tuned: dict[str, Any], record_property: Callable[[str, object], None]) -> None:
        assert tuned["claims_gain"], tuned
        args = ["--batch_size", "1", "--ledger", str(site.folder / "tune"), "--seconds", "1.2"]
        ended = site.launch("tune", site.quick.name, args, space="space.toml")
        assert "arguments rewritten" in ended.stderr, ended.stderr
        (trial,) = ended.trials
        config = {"micro_batch_size": site.faster}
        assert (ended.returncode, trial.state, dict(trial.config)) == (0, State.COMPLETED, config)
        ran = [text for launch_id, text in site.ran("tune") if launch_id == trial.launch_id]
        assert ran == [f"--batch_size {site.faster}"]
        record_property("ran", "the job got the tune's winner in place of the typed value")

    def test_resume(self, site: Site, record_property: Callable[[str, object], None]) -> None:
        words = site.tune("resume", ["--seconds", "8"], "--budget", "2 launches", "--repeats", "1")
        with (site.folder / "killed.log").open("wb") as log:
            tune = subprocess.Popen(words, cwd=site.folder, stdout=log, stderr=log, start_new_session=True)
        end = time.monotonic() + LONGEST_S
        while not site.ran("resume"):
            assert tune.poll() is None, (site.folder / "killed.log").read_text()[-4000:]
            assert time.monotonic() < end, "no job began"
            time.sleep(0.1)
        ((running, _),) = site.ran("resume")
        tune.send_signal(signal.SIGKILL)
        tune.wait(timeout=30)
        done = site.run(*words)
        assert done.returncode in {0, 1}, done.stderr[-4000:]
        states = {trial.launch_id: (trial.state, trial.attempts, trial.reason) for trial in site.trials("resume")}
        assert {state for state, *_ in states.values()} == {State.COMPLETED}, (states, done.stderr[-4000:])
        assert states[running][1] == 1
        assert Counter(launch_id for launch_id, _ in site.ran("resume")) == dict.fromkeys(states, 1)
        assert json.loads(done.stdout)["launches"] == len(states) >= 2
        record_property("ran", "killed by SIGKILL while a job ran; the second tune took it over, no launch ran twice")

    def test_failure(self, site: Site, record_property: Callable[[str, object], None]) -> None:
        eaten = ["--eat_mib", "2500"] if site.limits_memory else ["--eat_mib", "16000", "--limit_mib", "8000"]
        memory = "1000" if site.limits_memory else "4000"
        done = site.run(*site.tune("failure", eaten, "--budget", "2 launches", "--repeats", "1", memory=memory))
        assert done.returncode in {0, 1}, done.stderr[-4000:]
        found = {trial.config["micro_batch_size"]: trial for trial in site.trials("failure")}
        states = {size: trial.state for size, trial in found.items()}
        assert states == {1: State.COMPLETED, site.faster: State.OUT_OF_MEMORY}, found
        ended = site.launch("refused", site.training.name, site.refused_args.split())
        (trial,) = ended.trials
        assert (trial.state, trial.reason) == (State.USER_ERROR, "exit status 2")
        cause = "memory limit of the job" if site.limits_memory else "address space"
        told = found[site.faster].reason
        record_property("ran", f"out of memory ({cause}) and exit status 2, each told as such: {told}")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return the weights that the training saved at its end."""
    checkpoint = torch.load(folder / "ckpt.pt", weights_only=True)
    model: dict[str, torch.Tensor] = checkpoint["model"]
    return model

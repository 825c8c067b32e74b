"""Launches that go on with an earlier training: planned over recorded launches, and real ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spaces import BATCH_SIZES
from torchx_cubicml.launch.command_texts import program_texts
from torchx_cubicml.launch.launch import Launch
from torchx_cubicml.launch.torchrun_command import RECORDER
from torchx_cubicml.records.arguments import KEY_ID, digested_arguments, text_digest
from torchx_cubicml.records.contract import CONTRACT_VARIABLE, Contract, TypedCommand, encode_contract
from torchx_cubicml.records.resumption import (
    LOADED_FROM,
    SAVED_IN,
    SAVED_STEP,
    STARTS_ANEW,
    UNSEEN,
    digested,
    folder_id,
    resumed_from,
)
from torchx_cubicml.records.trial import Origin, State, Trial, short_id
from torchx_cubicml.records.workload import LOAD_FAILED, expire_lost_trials
from torchx_cubicml.rewrite.rewriter import Options, rewrite
from torchx_cubicml.store import TrialStore
from torchx_cubicml.store.digest_key import made_digest_key

if TYPE_CHECKING:
    from torchx_cubicml.launch.place_config import RewrittenLaunch
    from torchx_cubicml.records.values import Value

JOB = Path(__file__).parents[1] / "jobs" / "train_resumed.py"
RECOMPUTE = (
    '\n[parameters.activation_checkpointing]\nchoices = ["none", "full"]\nflag = "--recompute"\ndefault = "none"\n'
)
TYPED = ("--batch_size", "2", "--accumulate", "8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a working folder with a space file, and a store that knows the micro batch of 8 to be fastest."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHX_CUBICML_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    (tmp_path / "space.toml").write_text(BATCH_SIZES)
    (tmp_path / "train.py").write_text("print('trains')\n")
    for batch in (1, 2, 4, 8):
        measured(batch)
    return tmp_path


def config(batch: int, **others: Value) -> dict[str, Value]:
    return {"micro_batch_size": batch, "gradient_accumulation_steps": 16 // batch, **others}


def measured(batch: int, *, program: str = "train.py", ranks: int = 1, speed: float = 0.0, **others: Value) -> None:
    done = Trial.completed(
        workload={"program": program, "world_size": ranks},
        config=config(batch, **others),
        tokens_per_second=speed or 1000.0 * batch,
    )
    TrialStore("store").add(done)


def saved(
    batch: int, *words: str, place: str = "", day: int = 1, origin: Origin = Origin.REWRITE, **observed: Value
) -> Trial:
    """Record a launch that ran with a batch, and saved in ``place``."""
    key, texts = made_digest_key("store"), {**program_texts(Path("train.py")), KEY_ID: ""}
    (id_,) = digested([place if place == UNSEEN else folder_id(str(Path(place).resolve()))], [key])
    launch = Trial(
        trial_id=f"launch-{day}",
        workload={"program": "train.py", "world_size": 1},
        config=config(batch),
        state=State.COMPLETED,
        origin=origin,
        observed={**({SAVED_IN: (id_,)} if place else {}), SAVED_STEP: 40, **observed},
        arguments=digested_arguments((*TYPED, *words), key),
        digests={name: text_digest(text, key) for name, text in texts.items()},
        started_at=f"2026-01-{day:02}T00:00:00+00:00",
    )
    TrialStore("store").add(launch)
    return launch


def fill(path: str) -> None:
    Path(path).mkdir(parents=True, exist_ok=True)
    Path(path, "state.pt").write_text("state")


def planned(*words: str, mode: str = "rewrite") -> RewrittenLaunch:
    launch = Launch(program="train.py", script_args=(*TYPED, *words), world_size=1, nnodes=1, nproc_per_node=1)
    launch = replace(launch, can_have_second_attempt=True)
    return rewrite(launch, Options(space="space.toml", store="store", mode=mode))


def batch_of(rewritten: RewrittenLaunch) -> int:
    return int(rewritten.launch.script_args[1])


@pytest.mark.usefixtures("folder")
class TestPlanned:
    def test_a_training_of_a_rewritten_launch_keeps_its_config(self) -> None:
        saved(4, place="runs/a", day=1)
        assert batch_of(planned("--out", "runs/a")) == 8  # nothing is there
        fill("runs/a")
        kept = planned("--out", "runs/a")
        assert batch_of(kept) == 4
        assert any(
            "goes on from step 40 of launch launch-1, keeping its batch and layout" in line for line in kept.lines
        )
        assert kept.second_attempt is None  # as typed, it would be another training
        assert kept.contract is not None
        assert kept.contract.origin is Origin.REWRITE
        assert batch_of(planned("--out", "runs/b")) == 8
        assert planned("--out", "runs/a").lines == kept.lines  # no decision in the cache hides it

    def test_a_training_of_a_launch_as_typed_stays_as_typed(self) -> None:
        fill("runs/a")
        saved(2, place="runs/a", origin=Origin.USER)
        kept = planned("--out", "runs/a")
        assert batch_of(kept) == 2
        assert any("goes on from step 40" in line for line in kept.lines)

    def test_the_latest_launch_that_saved_there_counts(self) -> None:
        fill("runs/a")
        saved(4, place="runs/a", day=1)
        saved(1, place="runs/a", day=2)
        assert batch_of(planned("--out", "runs/a")) == 1

    def test_a_batch_that_the_user_has_changed_since_is_theirs(self) -> None:
        fill("runs/a")
        saved(4, place="runs/a")
        launch = Launch(
            program="train.py", script_args=("--batch_size=4", "--accumulate=8", "--out=runs/a"), world_size=1
        )
        rewritten = rewrite(launch, Options(space="space.toml", store="store"))
        assert rewritten.launch == launch
        assert any("goes on from" in line for line in rewritten.lines)

    def test_a_flag_keeps_the_command_where_the_earlier_launch_is_unknown(self) -> None:
        assert batch_of(planned("--resume")) == 8  # nothing is there
        fill("somewhere")
        kept = planned("--resume")
        assert batch_of(kept) == 2
        assert any("goes on from a checkpoint (resume) of no known launch" in line for line in kept.lines)
        assert batch_of(planned("--resume", "--out", "absent")) == 8

    def test_a_rewritten_launch_whose_checkpoints_nobody_sees_is_kept(self) -> None:
        saved(4, place=UNSEEN, day=1)
        kept = planned("--out", "absent")
        assert batch_of(kept) == 4
        assert any(line.endswith("in case (its checkpoints are out of sight)") for line in kept.lines)
        saved(1, place=UNSEEN, day=2, origin=Origin.TUNE)
        assert batch_of(planned("--out", "absent")) == 8  # a tune's launches save elsewhere
        saved(2, place=UNSEEN, day=3, origin=Origin.USER)  # the job starts as typed if it goes on from there
        assert batch_of(planned("--out", "absent")) == 8

    def test_a_flag_alone_is_no_sign_if_the_job_could_start_again(self, folder: Path) -> None:
        assert batch_of(planned("--resume")) == 8
        (folder / "space.toml").write_text(f"{BATCH_SIZES}[rewrite]\nretry_as_typed = false\n")
        assert batch_of(planned("--resume")) == 2
        (folder / "space.toml").write_text(BATCH_SIZES)
        measured(8, speed=9000.0)
        with_ranks = Trial.completed(
            workload={"program": "train.py", "world_size": 1},
            config=config(2),
            tokens_per_second=1.0,
        )
        with_ranks = replace(with_ranks, observed={"world_size": 4})
        TrialStore("store").add(with_ranks)  # the program starts them itself, and none can start again
        assert batch_of(planned("--resume")) == 2

    def test_a_restarted_job_goes_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        saved(4, job_id="slurm-7")
        monkeypatch.setenv("SLURM_JOB_ID", "7")
        assert batch_of(planned()) == 8
        monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
        assert batch_of(planned()) == 4

    def test_recording_warns_of_another_config(self) -> None:
        fill("runs/a")
        saved(4, place="runs/a")
        recorded = planned("--out", "runs/a", mode="record")
        assert batch_of(recorded) == 2
        line = next(line for line in recorded.lines if "goes on from" in line)
        assert "launch-1, which ran with micro_batch_size 4, gradient_accumulation_steps 4" in line

    def test_a_program_that_begins_anew_is_rewritten(self) -> None:
        fill("runs/a")
        saved(2, "--out", "runs/a", place="runs/a", origin=Origin.USER, **{STARTS_ANEW: True})
        assert batch_of(planned("--out", "runs/a")) == 8
        saved(2, "--out", "runs/a", place="runs/a", day=2, **{LOADED_FROM: ("0" * 8,)})
        assert batch_of(planned("--out", "runs/a")) == 2

    def test_what_touches_no_state_may_still_change(self, folder: Path) -> None:
        (folder / "space.toml").write_text(f"{BATCH_SIZES}{RECOMPUTE}")
        measured(2, speed=50.0, activation_checkpointing="full")
        measured(2, speed=5000.0, activation_checkpointing="none")
        fill("runs/a")
        saved(2, place="runs/a", origin=Origin.USER)
        faster = planned("--recompute", "full", "--out", "runs/a").launch.script_args
        assert faster[:6] == (*TYPED, "--recompute", "none")

    def test_the_space_file_may_allow_more(self, folder: Path) -> None:
        (folder / "space.toml").write_text(f'{BATCH_SIZES}[rewrite]\nresume = ["micro_batch_size"]\n')
        fill("runs/a")
        saved(2, place="runs/a", origin=Origin.USER)
        assert batch_of(planned("--out", "runs/a")) == 8

    def test_a_launch_that_failed_while_it_loaded_bans_nothing(self) -> None:
        failed = saved(8, state_of="x", **{LOAD_FAILED: True})
        failed = replace(failed, state=State.USER_ERROR)
        short = replace(failed, state=State.OUT_OF_MEMORY)
        own = replace(failed, origin=Origin.TUNE)
        assert expire_lost_trials([failed, short, own], {}) == [short, own]


class Real:
    """Real launches of one command in a folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SHOWN", str(folder / "shown"))
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        (folder / JOB.name).write_text(JOB.read_text())
        for batch, ranks in product((1, 2, 4, 8), (1, 2)):
            measured(batch, program=JOB.name, ranks=ranks)

    def launch(
        self, *words: str, mode: str = "rewrite", ranks: int = 1, launcher: tuple[str, ...] = (), **env: str
    ) -> tuple[str, Trial]:
        """Return what a launch printed, and its record."""
        known = {trial.trial_id for trial in TrialStore("store")}
        ours = ["--cubicml-store", "store", "--cubicml-space", "space.toml", "--cubicml-mode", mode]
        started = [*(launcher or ("--standalone", "--nproc_per_node", str(ranks))), JOB.name, *TYPED]
        done = subprocess.run(
            [sys.executable, "-m", "torchx_cubicml.cubicrun", *ours, *started, *words],
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        fresh = [trial for trial in TrialStore("store") if trial.trial_id not in known]
        return done.stderr, max(fresh, key=lambda trial: trial.started_at)

    @property
    def shown(self) -> list[list[int]]:
        """First and last sample of each start that came to its end, and its batch."""
        return [json.loads(line) for line in Path(os.environ["SHOWN"]).read_text().splitlines()]


@pytest.fixture
def real(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Real:
    return Real(folder, monkeypatch)


@pytest.mark.launch
def test_each_rank_goes_on_with_the_batch_of_a_rewritten_launch(real: Real) -> None:
    _, first = real.launch("--out", "out", ranks=2)
    for _ in range(3):
        measured(1, program=JOB.name, ranks=2, speed=1e6)
    said, second = real.launch("--out", "out", ranks=2)
    assert real.shown == [[0, 384, 8], [384, 768, 8]]
    assert f"goes on from step 12 of launch {short_id(first.trial_id)}, keeping its batch and layout" in said
    assert (second.config, second.observed[SAVED_STEP]) == (first.config, 24)
    assert resumed_from(second, [first, second]) == first.trial_id
    assert all(str(Path.cwd()) not in file.read_text() for file in Path("store").rglob("*.json"))


@pytest.mark.launch
def test_a_distributed_checkpoint_keeps_the_batch_as_typed(real: Real) -> None:
    _, first = real.launch("--kind", "dcp", mode="record")
    said, second = real.launch("--kind", "dcp")
    assert real.shown == [[0, 192, 2], [192, 384, 2]]
    assert f"of launch {short_id(first.trial_id)}, keeping its batch and layout" in said
    assert resumed_from(second, [first, second]) == first.trial_id


@pytest.mark.launch
def test_weights_alone_begin_a_training_of_its_own(real: Real) -> None:
    _, first = real.launch("--kind", "weights", "--out", "one", mode="record")
    Path("one").rename("pretrained")
    _, second = real.launch("--kind", "weights", "--out", "pretrained")
    assert [batch for *_, batch in real.shown] == [2, 8]
    assert LOADED_FROM not in second.observed
    assert resumed_from(second, [first, second]) == ""


@pytest.mark.launch
@pytest.mark.parametrize("launcher", [(), ("--", "env", sys.executable, "-u")])
def test_a_checkpoint_that_no_word_names_is_found_in_the_job(
    real: Real, tmp_path_factory: pytest.TempPathFactory, launcher: tuple[str, ...]
) -> None:
    home = str(tmp_path_factory.mktemp("home"))
    real.launch("--at_home", mode="record", launcher=launcher, HOME=home)
    said, second = real.launch("--at_home", launcher=launcher, HOME=home)
    assert real.shown == [[0, 192, 2], [192, 384, 2]]
    assert "goes on with a training of another config" in said
    assert second.trial_id.endswith("-as-typed")


@pytest.mark.launch
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_rewritten_process_that_loads_a_checkpoint_of_nobody_known(
    real: Real, folder: Path, tmp_path_factory: pytest.TempPathFactory, ranks: int
) -> None:
    """Alone, it starts again as typed; as one of several ranks it goes on with a warning."""
    home = tmp_path_factory.mktemp("home")
    made = subprocess.run([sys.executable, JOB.name, *TYPED, "--out", str(home / "runs")], check=False)
    typed = TypedCommand(args=(*TYPED, "--at_home"), config=config(2))
    contract = Contract(store="store", config=config(8), origin=Origin.REWRITE, as_typed=typed)
    variables = {CONTRACT_VARIABLE: encode_contract(contract), "RANK": "0", "WORLD_SIZE": str(ranks)}
    words = ["-m", RECORDER, JOB.name, "--batch_size", "8", "--accumulate", "2", "--at_home"]
    environment = {**os.environ, **variables, "HOME": str(home)}
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=False)
    assert (made.returncode, done.returncode) == (0, 0), done.stderr
    assert [batch for *_, batch in real.shown] == [2, 2 if ranks == 1 else 8]
    end = "starting again as you typed it" if ranks == 1 else "its loader may skip samples, or repeat them"
    assert f"goes on with a training of another config{'; ' if ranks == 1 else ': '}{end}" in done.stderr

"""``doctor`` finds each way to break a set-up that is broken here, tells its cure, and finds a sound one sound."""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib import metadata
from importlib.metadata import PathDistribution, version
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from torchx.schedulers import get_default_scheduler_name
from torchx.specs import finder

from torchx_cubicml import Trial, TrialStore
from torchx_cubicml.cli import doctor
from torchx_cubicml.cli.checks import context, store_health
from torchx_cubicml.cli.checks.context import CheckContext
from torchx_cubicml.components.cubicml import cubicml
from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch import ComponentLaunch, read_config
from torchx_cubicml.launch.messages import KEPT
from torchx_cubicml.records.contract import CONTRACT_VERSION
from torchx_cubicml.records.event import Event, EventKind, fold_events, trial_events
from torchx_cubicml.records.provenance import SPACE
from torchx_cubicml.rewrite.rewriter import Options, rewrite
from torchx_cubicml.settings import COMPONENT_OPTIONS, PREFIX, USER_OPTIONS
from torchx_cubicml.space.toml import load_space
from torchx_cubicml.store.backend import Presence
from torchx_cubicml.store.deadline import read_with_deadline
from torchx_cubicml.store.local import LocalBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

ROOT = Path(__file__).resolve().parents[2]
SPACE_TEXT = '[parameters.micro_batch_size]\nchoices = [1, 2, 4]\nflag = "--batch"\n'
COMMAND = ("--", "dist.ddp", "-j", "1x2", "--script", "train.py", "--", "--batch", "1")
IS_ROOT = os.name == "posix" and os.geteuid() == 0


def doctored(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, dict[str, str]]]:
    """Return the exit status and the finding of each check."""
    parser = argparse.ArgumentParser()
    doctor.add_arguments(parser)
    status = doctor.run(parser.parse_args(["--json", "-s", "local_cwd", *words]))
    rows = json.loads(capsys.readouterr().out)
    found = {row["check"]: row for row in rows}
    assert len(found) == len(rows), "the names of checks are unique"
    return status, found


def trial_of(size: int, **changes: Any) -> Trial:
    workload = {"program": "train.py", "world_size": 2}
    trial = Trial.completed(workload=workload, config={"micro_batch_size": size}, tokens_per_second=100.0 * size)
    return replace(trial, **changes)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sound set-up: a store with trials, a cache, a space file and a script."""
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TORCHX_CUBICML_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("TORCHX_CUBICML_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TORCHXCONFIG", raising=False)
    monkeypatch.delenv("PYTHON_EXEC", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(finder, "_components", None)
    (tmp_path / "train.py").write_text("import argparse\n")
    (tmp_path / "space.toml").write_text(SPACE_TEXT)
    (tmp_path / "cache").mkdir()
    digest = load_space(tmp_path / "space.toml").digest
    store = TrialStore(str(tmp_path / "store"))
    for size in range(1, 16):
        store.add(trial_of(size, provenance={SPACE: digest}))
    return tmp_path


def files_below(place: Path) -> set[Path]:
    return set(place.rglob("*"))


def test_a_sound_set_up_is_all_ok_and_stays_as_it_is(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files_below(folder)
    status, found = doctored("--job", "--space", "space.toml", *COMMAND, capsys=capsys)
    assert {name: row["found"] for name, row in found.items() if row["level"] != "ok"} == {}
    assert status == 0
    assert not any(row["cure"] for row in found.values())
    assert files_below(folder) == before
    assert found["store: objects"]["found"] == "15 trials in 30 readable objects"
    assert "loads the recorder and writes the store" in found["job"]["found"]


def test_without_a_command_and_a_job_nothing_is_submitted(capsys: pytest.CaptureFixture[str]) -> None:
    status, found = doctored("--no-probe", capsys=capsys)
    assert status == 0
    skipped = {name for name, row in found.items() if row["level"] == "skipped"}
    assert skipped == {"store: clock", "space file", "command", "rewrite", "job"}
    assert "no probe was written" in found["store: write"]["found"]


def test_an_index_of_ordinary_use_is_not_stale(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Launches on a busy host are indexed while they run and after most have ended; the others end later."""
    store, busy = TrialStore(str(folder / "store")), {"host_cpus": 2, "other_busy_cpus": 1.2, "idle_cpus": 0.0}
    launches = [trial_events(trial_of(1, trial_id=f"job-{number}", observed=busy)) for number in range(30)]

    def write(events: Iterable[Event]) -> None:
        for event in events:
            store.append(event)

    def indexed() -> list[Trial]:
        return read_with_deadline(store.url, deadline_s=60.0, cache=folder / "cache").trials

    write(events[0] for events in launches)
    indexed()
    write(event for events in launches[:25] for event in events[1:])
    ended = {trial.trial_id: trial for trial in indexed() if trial.state.ended}
    write(event for events in launches[25:] for event in events[1:])
    (index,) = (folder / "cache" / "stores").iterdir()
    assert '"job-0"' in index.read_text()
    assert {f"job-{number}" for number in range(25)} <= ended.keys()
    assert ended["job-0"] not in fold_events(store.events())  # readers widen the uncertainty of a crowded launch
    status, found = doctored(capsys=capsys)
    assert (status, found["cache"]["level"]) == (0, "ok"), found["cache"]


def rewrite_line(words: Sequence[str], *, capsys: pytest.CaptureFixture[str]) -> str:
    row = doctored("--space", "space.toml", *words, capsys=capsys)[1]["rewrite"]
    assert (row["level"], row["cure"]) == ("ok", "")
    return row["found"]


def test_the_reason_of_no_rewrite_is_that_of_the_launch(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    launch = ComponentLaunch.parse("dist.ddp", COMMAND[2:]).launch
    for words, typed in ((COMMAND, launch), (("--", "torchrun", "train.py", "--batch", "1"), None)):
        found = rewrite_line(words, capsys=capsys)
        assert re.match("not now: .*[a-z]", found)
        if typed is not None:
            options = Options(space="space.toml", store=str(folder / "store"))
            assert rewrite(typed, options).lines[-1].endswith(f"{KEPT}: {found.removeprefix('not now: ')}")


def test_a_launch_that_would_be_rewritten(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launch = ComponentLaunch.parse("dist.ddp", COMMAND[2:]).launch
    (folder / "space.toml").write_text(f"{SPACE_TEXT}changes_training = true\n")
    workload, _ = read_config(launch, load_space("space.toml"))
    for size, _ in product((1, 2, 4), range(3)):
        TrialStore(str(folder / "store")).add(trial_of(size, workload=workload))
    before = files_below(folder)
    assert rewrite_line(COMMAND, capsys=capsys).startswith("the next launch would be rewritten")
    assert files_below(folder) == before
    config_of(folder, monkeypatch, "[component:cubicml]\nmode = record\n")
    assert rewrite_line(COMMAND, capsys=capsys) == "not now: the mode is record"


def test_no_launch_is_decided_on_where_its_options_cannot_be_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    an_unreadable_config(folder, monkeypatch)
    command = ("--", "torchrun", "train.py", "--batch", "1")
    _, found = doctored("--space", "space.toml", *command, capsys=capsys)
    assert (found["rewrite"]["level"], found["store: objects"]["level"]) == ("skipped", "ok")
    assert "cannot be read" in found["rewrite"]["found"]


@pytest.mark.parametrize(
    ("program", "config", "words", "scheduler"),
    [
        ("train.py", "", ["-s", "slurm"], "slurm"),
        ("train.py", "[cli:run]\nscheduler = lsf\n", [], "lsf"),
        ("train.py", "", [], "kubernetes"),
        ("other.py", "", [], get_default_scheduler_name()),
    ],
)
def test_the_scheduler_is_that_of_the_latest_launch_of_the_program(
    program: str, config: str, words: list[str], scheduler: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"2026-01-01": "slurm", "2026-01-02": "kubernetes", "2026-01-03": "unheard_of"}
    for day, name in names.items():
        trial = trial_of(1, started_at=f"{day}T00:00:00+00:00", observed={"scheduler": name})
        TrialStore(str(folder / "store")).add(replace(trial, workload={"program": program, "world_size": 2}))
    config_of(folder, monkeypatch, config)
    parser = argparse.ArgumentParser()
    doctor.add_arguments(parser)
    assert CheckContext(args=parser.parse_args([*words, *COMMAND])).scheduler == scheduler


# Each of these breaks one thing and returns the options to call the doctor with.


def a_file_in_place_of_the_store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    (folder / "file").touch()
    return ["--store", str(folder / "file" / "store")]


def a_store_of_the_kernel(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return ["--store", "/proc/store"]


def a_mistyped_store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return ["--store", str(folder)]


def an_unknown_protocol(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return ["--store", "s4://user:hunter2@team/cubicml"]


def a_missing_client(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setitem(sys.modules, "s3fs", None)  # hides it where it is installed
    monkeypatch.setattr(sys, "path", [place for place in sys.path if not (Path(place) / "s3fs").is_dir()])
    return ["--store", "s3://key:hunter2@team/cubicml"]


def a_local_store_for_containers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return ["-s", "kubernetes"]


def an_unreadable_object(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    day = next((folder / "store" / "events").iterdir())
    (day / "20260101T000000.000000Z-0.json").write_text("{")
    return []


def a_store_that_cannot_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    (folder / "other" / "segments").mkdir(parents=True)
    (folder / "other" / "events").touch()
    return ["--store", str(folder / "other")]


def another_program_under_the_same_id(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    other = trial_of(1, trial_id="twice", workload={"program": "other.py", "world_size": 2})
    for trial in (trial_of(1, trial_id="twice"), other):
        TrialStore(str(folder / "store")).add(trial)
    return []


def another_measurement_under_the_same_id(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    for size in (1, 2):
        trial = replace(trial_of(size), trial_id="twice", config={"micro_batch_size": 1})
        TrialStore(str(folder / "store")).add(trial)
    return []


def started(at: datetime) -> Event:
    return Event(kind=EventKind.STARTED, trial_id="job-1", time=at.isoformat(), workload={"program": "train.py"})


def a_trial_of_the_future(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    TrialStore(str(folder / "store")).append(started(datetime.now(UTC) + timedelta(hours=2)))
    return []


def a_trial_without_an_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    TrialStore(str(folder / "store")).append(started(datetime.now(UTC) - timedelta(days=30)))
    return []


def a_damaged_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    (folder / "cache" / "stores").mkdir()
    (folder / "cache" / "stores" / "0.json").write_text('{"format": ')
    (folder / "cache" / "of_another_program.json").write_text("[]")
    return []


def a_file_in_place_of_the_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    (folder / "cached").touch()
    monkeypatch.setenv("TORCHX_CUBICML_CACHE", str(folder / "cached"))
    return []


def a_stale_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Someone edits an object of the store after its content was cached."""
    url = str(folder / "store")
    read_with_deadline(url, deadline_s=60.0, cache=folder / "cache")
    assert files_below(folder / "cache" / "stores")
    place = max((folder / "store" / "events").rglob("*.json"))
    place.write_text(place.read_text().replace('"tokens_per_second":1500.0', '"tokens_per_second":9000.0'))
    return []


def an_illegal_space_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    (folder / "space.toml").write_text(SPACE_TEXT.replace("choices", "chioces"))
    return ["--space", "space.toml"]


def another_space_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    (folder / "space.toml").write_text(SPACE_TEXT.replace("[1, 2, 4]", "[1, 2]"))
    return ["--space", "space.toml"]


def a_command_without_the_parameter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return ["--space", "space.toml", *COMMAND[:-2]]


def a_command_of_no_training(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return ["--", "utils.echo", "--msg", "hello"]


def an_unknown_component(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return ["--", "dist.dpp", "--script", "train.py"]


def config_of(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> list[str]:
    (folder / ".torchxconfig").write_text(text)
    monkeypatch.setenv("TORCHXCONFIG", str(folder / ".torchxconfig"))  # TorchX notes its folders when it is imported
    return []


def a_misspelled_option(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return config_of(folder, monkeypatch, "[component:cubicml]\nstroe = s3://team/cubicml\n")


def a_misspelled_section(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return config_of(folder, monkeypatch, "[component:cubcml]\nstore = s3://team/cubicml\n")


def an_unreadable_config(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return config_of(folder, monkeypatch, "store = s3://team/cubicml\n")


def an_illegal_option(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return config_of(folder, monkeypatch, "[component:cubicml]\nmode = rewirte\nkeep_command = maybe\n")


def a_missing_config(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("TORCHXCONFIG", str(folder / "nowhere"))
    return []


def a_misspelled_variable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("TORCHX_CUBICML_STROE", "/data")
    return []


def an_illegal_deadline(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("TORCHX_CUBICML_THINK_DEADLINE_S", "10s")
    return []


def a_variable_of_a_launch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("TORCHX_CUBICML_LAUNCH", "copied")
    return []


def distribution(folder: Path, name: str, release: str, entry_points: str = "") -> None:
    """Write what ``pip`` leaves of an installed package."""
    info = folder / f"{name.replace('-', '_')}-{release}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {release}\n")
    (info / "entry_points.txt").write_text(entry_points)


def with_packages(folder: Path, monkeypatch: pytest.MonkeyPatch, *, last: bool = False) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)] if last else [str(folder), *sys.path])
    importlib.invalidate_caches()


def two_torchx(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    distribution(folder / "packages", "torchx-nightly", "2026.11.26")
    with_packages(folder / "packages", monkeypatch)
    return []


def an_old_torch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    distribution(folder / "packages", "torch", "2.1.0")
    with_packages(folder / "packages", monkeypatch)
    return []


def a_shadowed_component(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    distribution(folder / "packages", "other-tools", "1.0", "[torchx.components]\n_other = other_components\n")
    (folder / "packages" / "other_components.py").write_text(
        "import torchx.specs as specs\n\n\ndef cubicml(name: str = 'x') -> specs.AppDef:\n"
        "    '''Another one.\n\n    Args:\n        name: of it\n    '''\n    return specs.AppDef(name=name)\n"
    )
    with_packages(folder / "packages", monkeypatch, last=True)
    return []


def a_component_that_does_not_load(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    distribution(folder / "packages", "other-tools", "1.0", "[torchx.components]\nother = no_such_module\n")
    with_packages(folder / "packages", monkeypatch)
    return []


def put_python(folder: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    """Let jobs run a Python that the shell ``line`` starts."""
    script = folder / "python-of-jobs"
    script.write_text(f"#!/bin/sh\n{line}\n")
    script.chmod(0o755)
    monkeypatch.setenv("PYTHON_EXEC", str(script))


def a_job_without_the_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    put_python(folder, monkeypatch, f'exec {sys.executable} -I -S "$@"')
    return ["--job"]


def a_job_that_sees_no_store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    put_python(folder, monkeypatch, f'TORCHX_CUBICML_STORE={folder}/elsewhere exec {sys.executable} "$@"')
    return ["--job"]


def a_job_that_cannot_write(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    put_python(folder, monkeypatch, f'TORCHX_CUBICML_STORE=/proc/store exec {sys.executable} "$@"')
    return ["--job"]


def a_job_with_a_wrong_clock(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    (folder / "clock").mkdir()
    (folder / "clock" / "sitecustomize.py").write_text(
        "import time\nnow = time.time\ntime.time = lambda: now() + 7200\n"
    )
    put_python(folder, monkeypatch, f'PYTHONPATH={folder}/clock:$PYTHONPATH exec {sys.executable} "$@"')
    return ["--job"]


def a_job_without_a_python(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("PYTHON_EXEC", "/nowhere/python")
    return ["--job"]


def an_unknown_scheduler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return ["--job", "-s", "slrum"]


BROKEN: list[tuple[Callable[[Path, pytest.MonkeyPatch], list[str]], str, str, str, str]] = [
    (a_file_in_place_of_the_store, "store: write", "wrong", "file is not a folder", "name another place"),
    (a_store_of_the_kernel, "store: write", "wrong", "those of the kernel", "name a folder on a disk"),
    (a_mistyped_store, "store: write", "warning", "holds other files and no store", "check --store for a typing"),
    (an_unknown_protocol, "store: URL", "wrong", "unknown protocol 's4'", "correct --store"),
    (a_missing_client, "store: URL", "wrong", "needs s3fs", "install it here and"),
    (a_local_store_for_containers, "store: URL", "warning", "may not be visible to jobs on kubernetes", "object store"),
    (an_unreadable_object, "store: objects", "warning", "1 unreadable object: .*-0.json .not JSON", "move them out"),
    (a_store_that_cannot_be_read, "store: objects", "wrong", "cannot read store .*other", "check the network"),
    (another_program_under_the_same_id, "trials: conflicts", "wrong", "twice has the programs other.py", "move its"),
    (another_measurement_under_the_same_id, "trials: conflicts", "wrong", "different measurement", "LAUNCH"),
    (a_trial_of_the_future, "trials: clocks", "wrong", "job-1 by 7[12]\\d\\d s", "set the clock .* by NTP"),
    (a_trial_without_an_end, "trials: ends", "warning", "1 trials count as running .*: job-1", "KillWait"),
    (a_damaged_cache, "cache", "warning", "1 damaged file, .*0.json", "rm [^ ]*0.json .what"),
    (a_file_in_place_of_the_cache, "cache", "warning", "cached is not a folder", "TORCHX_CUBICML_CACHE"),
    (a_stale_cache, "cache", "wrong", "is stale: it differs from the store in import-", "rm .*stores"),
    (an_illegal_space_file, "space file", "wrong", "did you mean 'choices'", "correct the file"),
    (another_space_file, "space file", "warning", "no recorded launch used it as it is now", "name the file that"),
    (a_command_without_the_parameter, "command", "wrong", "its arguments will be kept: .*--batch", "messages.md"),
    (a_command_of_no_training, "command", "wrong", "cannot be recorded: .*neither torchrun nor python", "messages.md"),
    (an_unknown_component, "command", "wrong", "dist.dpp", "correct the command"),
    (a_misspelled_option, ".torchxconfig", "wrong", "'stroe'; did you mean 'store'", "legal options .* space, store"),
    (
        an_illegal_option,
        ".torchxconfig",
        "wrong",
        "mode must .*'rewirte'; .*keep_command must .*'maybe'",
        "correct each",
    ),
    (a_misspelled_section, ".torchxconfig", "wrong", ".component:cubcml. is ignored", "correct each"),
    (an_unreadable_config, ".torchxconfig", "wrong", "cannot be read: .* no section headers", "correct the file"),
    (a_missing_config, ".torchxconfig", "wrong", "nowhere` does not exist", "unset TORCHXCONFIG"),
    (a_misspelled_variable, "environment", "wrong", "did you mean 'TORCHX_CUBICML_STORE'", "correct or unset"),
    (an_illegal_deadline, "environment", "wrong", "THINK_DEADLINE_S must be a number .* got '10s'", "correct or unset"),
    (a_variable_of_a_launch, "environment", "wrong", "only a launch may set", "unset"),
    (two_torchx, "TorchX", "wrong", "torchx-nightly 2026.11.26.: they overwrite", "uninstall torchx torchx-nightly"),
    (an_old_torch, "Python here", "wrong", "torch 2.1.0", "install 'torch>=2.4'"),
    (a_shadowed_component, "component", "wrong", "other_components.py", "package other-tools.*components/cubicml.py"),
    (a_component_that_does_not_load, "component", "wrong", "no_such_module", "uninstall|install"),
    (
        a_job_without_the_package,
        "job",
        "wrong",
        "No module named 'torchx_cubicml'",
        "install it there: .*python.* -m pip",
    ),
    (a_job_that_sees_no_store, "job", "wrong", "sees no store at .*store, which exists here", "use a shared folder"),
    (a_job_that_cannot_write, "job", "wrong", "cannot use the store: .*of the kernel", "name a folder on a disk"),
    (a_job_with_a_wrong_clock, "job", "wrong", "clock is 7\\d\\d\\d s ahead of the one here", "by NTP"),
    (a_job_without_a_python, "job", "wrong", "ended without a report: .*(not found|No such)", "see its log"),
    (an_unknown_scheduler, "job", "wrong", "unknown scheduler 'slrum'.*did you mean 'slurm'", "correct -s"),
]


@pytest.mark.parametrize(
    ("breaks", "name", "level", "finding", "cure"), BROKEN, ids=[breaks.__name__ for breaks, *_ in BROKEN]
)
def test_what_is_broken_is_found_with_its_cure(
    breaks: Callable[[Path, pytest.MonkeyPatch], list[str]],
    name: str,
    level: str,
    finding: str,
    cure: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = breaks(folder, monkeypatch)
    status, found = doctored(*words, capsys=capsys)
    row = found[name]
    assert row["level"] == level, row
    assert re.search(finding, row["found"]), row
    assert re.search(cure, row["cure"]), row
    others = {each: other["found"] for each, other in found.items() if other["level"] == "wrong" and each != name}
    assert status == (1 if level == "wrong" or others else 0)
    assert "hunter2" not in json.dumps(found)


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mounted = (
        IS_ROOT
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], capture_output=True, check=False
        ).returncode
    )
    if not mounted:
        pytest.skip("no file system can be mounted here")
    (place / "store" / "events").mkdir(parents=True)
    try:
        with suppress(OSError), (place / "filling").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        yield place / "store"
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk(full_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = doctored("--store", str(full_disk), capsys=capsys)
    assert status == 1
    assert "no space left" in found["store: write"]["found"]
    assert found["store: write"]["cure"].startswith("free space")
    assert found["store: space"]["level"] == "wrong"


@pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")
def test_a_folder_of_another_user(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    doctored(capsys=capsys)  # loads the modules, which another user may not read
    parents = [folder, *folder.parents]
    modes = {place: place.stat().st_mode for place in parents}
    try:
        for place in parents[:-2]:
            place.chmod(0o755)
        os.seteuid(65534)
        try:
            _, found = doctored(capsys=capsys)
        finally:
            os.seteuid(0)
    finally:
        for place in parents[:-2]:
            place.chmod(modes[place] & 0o7777)
    assert "no permission to write" in found["store: write"]["found"]
    assert found["store: write"]["cure"].startswith("let your user write there")


def test_findings_are_lines_that_fit_and_have_no_colour_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TORCHX_CUBICML_STROE", "/data")
    parser = argparse.ArgumentParser()
    doctor.add_arguments(parser)
    assert doctor.run(parser.parse_args(["-s", "local_cwd"])) == 1
    out = capsys.readouterr().out
    assert "\x1b" not in out
    lines = out.splitlines()
    assert all(len(line) <= 60 or len(line.split()[-1]) > 40 for line in lines), out
    assert any(line.startswith("wrong    environment: ") for line in lines)
    assert re.fullmatch(r"\d+ checks: \d+ ok, \d+ skipped, 1 wrong", lines[-1])


def test_a_check_that_fails_hides_no_other(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(context: object) -> None:
        raise ZeroDivisionError("by design")

    monkeypatch.setitem(store_health.CHECKS, "store: space", fails)
    status, found = doctored(capsys=capsys)
    assert found["store: space"]["found"] == "the check failed: ZeroDivisionError: by design"
    assert (status, found["job"]["level"]) == (0, "skipped")


def test_the_component_itself_is_no_command() -> None:
    parser = argparse.ArgumentParser()
    doctor.add_arguments(parser)
    with pytest.raises(LaunchError, match="without `cubicml`"):
        doctor.run(parser.parse_args(["--", "cubicml", "dist.ddp"]))


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "86401", "soon"])
def test_the_wait_for_a_job_is_bounded(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises((LaunchError, SystemExit)) as error:
        doctored("--timeout", seconds, capsys=capsys)
    text = str(error.value) if isinstance(error.value, LaunchError) else capsys.readouterr().err
    assert re.search(r"--timeout.*(above 0 s and at most 86400 s|invalid float value)", text)


def test_a_store_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    answer = threading.Event()
    monkeypatch.setattr(context, "PROBE_DEADLINE_S", 0.01)
    monkeypatch.setattr(LocalBackend, "presence", lambda _: answer.wait() and Presence.STORE)
    status, found = doctored(capsys=capsys)
    answer.set()
    assert (status, found["store: write"]["level"]) == (1, "wrong")
    assert found["store: write"]["found"] == "reaching the store took longer than 0.01 s"
    assert found["store: write"]["cure"].startswith("check the network and the server")
    unread = {"store: objects", "store: compaction", "trials: conflicts", "trials: ends", "trials: clocks"}
    assert {found[name]["found"] for name in unread} == {"the store was not read: it cannot be reached"}
    assert found["cache"]["level"] == "ok"


def test_the_known_variables_are_those_of_the_page() -> None:
    page = (ROOT / "docs" / "launching.md").read_text()
    documented = set(re.findall(rf"^\| `({PREFIX}\w+)` \|", page, re.MULTILINE))
    assert documented == {f"{PREFIX}{name.upper()}" for name in USER_OPTIONS}


@pytest.mark.parametrize(
    ("name", "loaded", "level"),
    [
        ("torchx", "0.6.0", "wrong"),
        ("torchx", "0.7.0", "ok"),
        ("torchx-nightly", "2026.10.26", "ok"),
        ("torchx", "0.9.0", "warning"),
    ],
)
def test_the_version_of_torchx(
    name: str,
    loaded: str,
    level: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    distribution(folder / "packages", name, loaded)
    installed = [PathDistribution(path) for path in (folder / "packages").iterdir()]
    monkeypatch.setattr(
        metadata, "distributions", lambda name=None: [each for each in installed if name in {None, each.name}]
    )
    monkeypatch.setattr("torchx.version.__version__", loaded)
    _, found = doctored(capsys=capsys)
    assert found["TorchX"]["level"] == level, found["TorchX"]
    assert f"({name} {loaded})" in found["TorchX"]["found"]
    assert ("torchx>=0.7" in found["TorchX"]["cure"]) == (level == "wrong")


def test_a_store_with_another_clock(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 3600.0)  # the clock here, where the store stamps by the true one
    status, found = doctored(capsys=capsys)
    assert status == 1
    assert re.fullmatch(r"the store's clock is 3[56]\d\d s behind the one here", found["store: clock"]["found"])
    assert "by NTP" in found["store: clock"]["cure"]


def test_a_store_of_many_old_objects(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    next((folder / "store" / "events").iterdir()).rename(folder / "store" / "events" / "2020-01-01")
    assert doctored(capsys=capsys)[1]["store: compaction"]["found"].startswith("30 objects older than 7 days")
    monkeypatch.setattr("torchx_cubicml.cli.checks.store_health.MOST_LOCAL", 29)
    assert doctored(capsys=capsys)[1]["store: compaction"]["cure"] == "torchx cubicml history compact"


def test_a_disk_that_is_nearly_full(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("torchx_cubicml.cli.checks.store_health.LEAST_BYTES", 2**80)
    row = doctored(capsys=capsys)[1]["store: space"]
    assert (row["level"], row["cure"][:10]) == ("warning", "free space")
    assert re.match(r"[\d,.]+ MiB and [\d,]+ files are left", row["found"])


REPORT = {
    "python": "3.11.7",
    "executable": "/opt/python",
    "versions": {"torch": "2.8.0", "torchx-cubicml": version("torchx-cubicml")},
    "contract": CONTRACT_VERSION,
    "store": {"presence": "store", "obstacle": "", "is_written": True},
}


@pytest.mark.parametrize(
    ("changes", "level", "finding", "cure"),
    [
        ({}, "ok", "loads the recorder and writes the store", "^$"),
        ({"python": "3.9.2", "contract": None}, "wrong", "3.9.2 .* is older than 3.11", "use a newer one; install"),
        ({"contract": 999}, "wrong", "reads contract version 999, launches here write 1", "install one version"),
        ({"versions": {"torch": "2.1.0"}}, "wrong", "torch is older than 2.4", "install torch>=2.4"),
        ({"versions": {"torchx-cubicml": "0.0.1"}}, "warning", "0.0.1; here it is torchx-cubicml", "one version"),
        ({"store": None, "error": "no s3fs"}, "wrong", "the store was not tried: no s3fs", "check the place"),
    ],
)
def test_what_a_job_reports_is_judged(
    changes: dict[str, Any],
    level: str,
    finding: str,
    cure: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    reported = json.dumps({**REPORT, **changes})
    put_python(folder, monkeypatch, f"""echo 'CUBICML_DOCTOR {reported[:-1]}, "time": '$(date +%s)'}}' >&2""")
    row = doctored("--job", capsys=capsys)[1]["job"]
    assert row["level"] == level, row
    assert re.search(finding, row["found"]), row
    assert re.search(cure, row["cure"]), row


def test_the_known_options_are_those_of_the_component() -> None:
    names = [each.name for each in inspect.signature(cubicml).parameters.values() if each.name != "args"]
    assert names == list(COMPONENT_OPTIONS)


def test_the_page_lists_each_check(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "doctor.md").read_text()
    documented = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert [name for name in documented if not name.startswith("-")] == list(doctored(capsys=capsys)[1])


def test_a_running_trial_that_reports_is_no_finding(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = TrialStore(str(folder / "store"))
    store.append(started(datetime.now(UTC) - timedelta(days=30)))
    store.append(replace(started(datetime.now(UTC)), kind=EventKind.MEASURED, sequence=1))
    for event in trial_events(trial_of(3, trial_id="restarted", attempts=2)):
        store.append(event)
    status, found = doctored(capsys=capsys)
    assert status == 0
    assert found["trials: ends"]["found"].startswith("1 trials count as running")
    assert found["trials: conflicts"]["level"] == "ok"

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest

from torchx_cubicml.recorder.events.crash_trace import ENDED_BY_SIGTERM
from torchx_cubicml.records.contract import CONTRACT_VARIABLE, Contract, encode_contract
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.store import TrialStore

JOBS = Path(__file__).parents[1] / "jobs"
RECORDED = ("-m", "torchx_cubicml.recorder", "--")


def run(*arguments: str, folder: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TORCHX_CUBICML_STORE": str(folder / "store"), "OMP_NUM_THREADS": "1", **changes}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def only_trial(folder: Path) -> Trial:
    (trial,) = TrialStore(str(folder / "store"))
    return trial


def wait_for_its_end(folder: Path) -> None:
    end = time.monotonic() + 100
    while not any(trial.state.ended for trial in TrialStore(str(folder / "store"))):
        assert time.monotonic() < end, "nobody tells that it has ended"
        time.sleep(0.05)


def write(folder: Path, text: str, name: str = "train.py") -> str:
    (folder / name).write_text(text)
    return name


def test_an_ordinary_training_is_recorded(tmp_path: Path) -> None:
    done = run(*RECORDED, str(JOBS / "train_alone.py"), folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "12 steps, 153 parameters\n")
    trial = only_trial(tmp_path)
    begin, *end = done.stderr.splitlines()
    assert begin == f"torchx-cubicml: recording to {tmp_path / 'store'}"
    name = trial.trial_id.removeprefix("trial-")
    assert re.fullmatch(
        r"torchx-cubicml: recorded [\d,]+ \w+/s \((± |within a factor of )[^()]+, \d+ steps[^()]*\)"
        rf"(; | torchx-cubicml: )torchx cubicml history show {name} --store {tmp_path / 'store'}",
        " ".join(end),
    ), end
    assert trial.state is State.COMPLETED
    assert trial.observed["n_params"] == 153
    assert trial.measurement is not None
    assert trial.measurement.steps_counted + trial.measurement.warmup_steps == 12


BROKEN = [
    "steps.training:Training.step",
    "model.batch:BatchReader.read",
    "model.precision:PrecisionProbe.release",
    "steps.step_clock:HostClock.tick",
    "model.sharding:read_layout",
    "steps.forwards:read_pipeline",
    "logs.stream:LogLines.listen",
    "events.reporter:Reporter.measured",
    "steps.training:Training.measurement",
    "steps.training:Training.conclude",
    "session:Session._on_torch",
    "events.sender:_start_writer",
]


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Record one training for each function that is broken in it; return what each left in a folder."""
    folders = {broken: tmp_path_factory.mktemp("failed") for broken in BROKEN}
    words = [str(word) for broken, folder in folders.items() for word in (folder, broken)]
    done = run(
        str(JOBS / "records_broken.py"), str(JOBS / "train_alone.py"), *words, folder=tmp_path_factory.mktemp("x")
    )
    assert done.returncode == 0, done.stderr
    return folders


@pytest.mark.parametrize("broken", BROKEN)
def test_an_internal_failure_gives_one_warning_only(broken: str, failed: dict[str, Path]) -> None:
    code, stdout, stderr = ((failed[broken] / name).read_text() for name in ("code", "stdout", "stderr"))
    assert (code, stdout) == ("0", "12 steps, 153 parameters\n"), stderr
    warnings = [line for line in stderr.splitlines() if "warning" in line]
    assert len(warnings) == 1
    assert "injected" in warnings[0]
    assert "hunter2" not in stderr
    assert "Traceback" not in stderr
    if not broken.startswith("events.sender"):
        assert only_trial(failed[broken]).state is State.COMPLETED


def test_an_unreadable_line_is_still_printed(tmp_path: Path) -> None:
    write(
        tmp_path,
        "from torchx_cubicml.recorder.logs.stream import LogLines\n"
        "def fail(*args):\n    raise RuntimeError('injected')\n"
        "LogLines._take_text = fail\n",
        "sitecustomize.py",
    )
    done = run(*RECORDED, write(tmp_path, "print('one')\nprint('two')\n"), folder=tmp_path, PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "one\ntwo\n")
    (warning,) = [line for line in done.stderr.splitlines() if "warning" in line]
    assert "injected" in warning
    assert only_trial(tmp_path).state is State.COMPLETED


@pytest.mark.parametrize("version", [0, 999])
def test_another_contract_version_runs_unrecorded(version: int, tmp_path: Path) -> None:
    payload = zlib.compress(json.dumps({"version": version, "store": str(tmp_path / "store")}).encode())
    contract = {CONTRACT_VARIABLE: base64.urlsafe_b64encode(payload).decode()}
    done = run(*RECORDED, write(tmp_path, "print('trained')\n"), folder=tmp_path, **contract)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert len(done.stderr.splitlines()) == 1
    assert f"version {version}" in done.stderr
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("program", "ends_in_s", "state"),
    [
        ("os.kill(os.getpid(), signal.SIGTERM)", -5, State.TIMEOUT),
        ("os.kill(os.getpid(), signal.SIGTERM)", 3600, State.INFRASTRUCTURE),
        ("os.kill(os.getpid(), signal.SIGTERM)", -7200, State.INFRASTRUCTURE),
        ("sys.exit(143)", -5, State.TIMEOUT),
        ("sys.exit(3)", -5, State.USER_ERROR),
    ],
    ids=["signal at the limit", "signal before it", "long after one that was extended", "handled", "own error"],
)
def test_a_scheduler_time_limit_is_recorded_as_such(program: str, ends_in_s: int, state: State, tmp_path: Path) -> None:
    name = write(tmp_path, f"import os, signal, sys\n{program}\n")
    run(*RECORDED, name, folder=tmp_path, SLURM_JOB_END_TIME=str(int(time.time()) + ends_in_s))
    wait_for_its_end(tmp_path)
    trial = only_trial(tmp_path)
    assert trial.state is state
    assert trial.reason.endswith("at the scheduler's time limit") is (state is State.TIMEOUT)


@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM", "SIGABRT", "SIGSEGV", "native"])
def test_a_silent_end_is_closed(how: str, tmp_path: Path) -> None:
    leave = "__import__('ctypes').CDLL(None)._exit(7)" if how == "native" else f"os.kill(os.getpid(), signal.{how})"
    # The child that it leaves behind holds everything that a fork hands down.
    program = "import os, signal, time\nif (child := os.fork()) == 0:\n    time.sleep(300)\n    os._exit(0)\n"
    name = write(tmp_path, f"{program}open('child', 'w').write(str(child))\n{leave}\n")
    environment = {**os.environ, "TORCHX_CUBICML_STORE": str(tmp_path / "store")}
    done = subprocess.run([sys.executable, *RECORDED, name], cwd=tmp_path, env=environment, check=False)
    assert done.returncode == (7 if how == "native" else -getattr(signal, how))
    wait_for_its_end(tmp_path)
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)  # it still lives: nothing waited for it
    trial = only_trial(tmp_path)
    if how == "SIGTERM":
        assert (trial.state, trial.reason) == (State.INFRASTRUCTURE, ENDED_BY_SIGTERM)
    elif how in {"SIGABRT", "SIGSEGV"}:
        assert (trial.state, trial.reason) == (State.UNKNOWN, f"ended by {how}")
    else:
        assert trial.state is State.UNKNOWN
        assert "sent no end event" in trial.reason


REPLACED = "replaced by os.exec: what followed was not recorded"


@pytest.mark.parametrize(
    ("program", "state", "reason"),
    [
        ("pass", State.COMPLETED, ""),
        ("import sys; sys.exit(3)", State.USER_ERROR, "exit status 3"),
        ("raise ValueError('--api-key sk-123 is wrong')", State.USER_ERROR, "ValueError: --api-key *** is wrong"),
        ("raise MemoryError", State.OUT_OF_MEMORY, "MemoryError"),
        ("raise KeyboardInterrupt", State.STOPPED_EARLY, "KeyboardInterrupt"),
        ("import atexit; atexit.register(print, 'last'); raise TimeoutError", State.TIMEOUT, "TimeoutError"),
        ("class Odd(RuntimeError):\n    __str__ = None\nraise Odd", State.USER_ERROR, "Odd: <exception str() failed>"),
        ("import os, sys\nif os.fork() == 0: sys.exit(5)\nos.wait()", State.COMPLETED, ""),
        ("import os\nif os.fork() == 0: os._exit(5)\nos.wait()", State.COMPLETED, ""),
        ("import os\nif os.fork() == 0: os.execvp('false', ['false'])\nos.wait()", State.COMPLETED, ""),
        ("import os; os._exit(0)", State.COMPLETED, ""),
        ("import os; os._exit(status=7)", State.USER_ERROR, "exit status 7"),
        ("import atexit, os; atexit.register(os._exit, 7)", State.COMPLETED, ""),
        ("import os; os.execlp('true', 'true')", State.UNKNOWN, REPLACED),
        (
            "import os; os.execve(path=b'/bin/sh', argv=['sh', '-c', 'true'], env={})",
            State.UNKNOWN,
            REPLACED,
        ),
        (
            "import os\ntry: os.execv('/no/such', ['x'])\nexcept OSError: raise TimeoutError",
            State.TIMEOUT,
            "TimeoutError",
        ),
        (
            "import os, pathlib\npathlib.Path('x').write_text('true')\nos.chmod('x', 0o755)\n"
            "try: os.execv('x', ['x'])\nexcept OSError: raise TimeoutError",
            State.TIMEOUT,
            "TimeoutError",
        ),
        (
            "import os, sys\nsys.excepthook = lambda *_: os._exit(1)\nraise TimeoutError",
            State.TIMEOUT,
            "TimeoutError",
        ),
        (
            "import os, pickle\nassert pickle.loads(pickle.dumps(os._exit)) is os._exit\nos._exit(0)",
            State.COMPLETED,
            "",
        ),
    ],
    ids=[
        *("end", "exit", "secret", "memory", "interrupt", "timeout", "odd", "fork", "left fork", "replaced fork"),
        *("left", "left badly", "left at exit", "replaced", "replaced by keywords", "not replaced", "no program"),
        *("left by a handler", "pickled"),
    ],
)
def test_the_end_of_a_program_is_recorded(program: str, state: State, reason: str, tmp_path: Path) -> None:
    done = run(*RECORDED, write(tmp_path, program), folder=tmp_path)
    trial = only_trial(tmp_path)
    assert (trial.state, trial.reason) == (state, reason)
    assert trial.measurement is None
    assert done.stderr.count("torchx-cubicml: recorded without a throughput") == 1
    assert "CUBICML_TRIAL" not in done.stderr


def test_a_program_waits_only_for_its_own_children(tmp_path: Path) -> None:
    program = "import os\ntry:\n    os.wait()\nexcept ChildProcessError:\n    print('no children')\n"
    assert run(*RECORDED, write(tmp_path, program), folder=tmp_path).stdout == "no children\n"


def test_explicit_steps_need_no_torch(tmp_path: Path) -> None:
    program = (
        "import sys, time\nfrom torchx_cubicml import measure\n"
        "for _ in range(9):\n    time.sleep(0.01)\n    measure.step(samples=5)\nprint('torch' in sys.modules)\n"
    )
    assert run(*RECORDED, write(tmp_path, program), folder=tmp_path).stdout == "False\n"
    measurement = only_trial(tmp_path).measurement
    assert measurement is not None
    assert measurement.samples_per_second == pytest.approx(5 / measurement.mean_step_time_s)
    assert 0 < measurement.samples_per_second <= 500


@pytest.mark.parametrize("then", ["pass", "import torch"])
def test_a_hook_is_refused_where_steps_are_made_without_torch(then: str, tmp_path: Path) -> None:
    steps = "for _ in range(9):\n    measure.step(samples=5)\n"
    program = f"from torchx_cubicml import measure\n{steps}{then}\n{steps}"
    contract = Contract(
        store=f"file://{tmp_path}/store", hooks={"fsdp": "NO_SHARD"}, checked_hooks={"mesh.tp": 1, "mesh.cp": 1}
    )
    variables = {CONTRACT_VARIABLE: encode_contract(contract)}
    done = run(*RECORDED, write(tmp_path, program), folder=tmp_path, **variables)
    reason = "the program made its first step without torch"
    assert f"hook = 'fsdp' was not applied as requested: {reason}" in done.stderr
    observed = only_trial(tmp_path).observed
    assert {name: observed[name] for name in ("fsdp_hook", "mesh_hook")} == dict.fromkeys(
        ("fsdp_hook", "mesh_hook"), f"refused: {reason}"
    )


def test_data_loader_workers_of_either_kind_work(tmp_path: Path) -> None:
    program = """
import os, torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        return torch.randn(8), os.getpid()

def main():
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for kind in ("fork", "spawn"):
        for inputs, process in DataLoader(Numbers(), batch_size=4, num_workers=1, multiprocessing_context=kind):
            assert process[0] != os.getpid()
            model(inputs).sum().backward()
            optimizer.step()
    print("trained")

if __name__ == "__main__":
    main()
"""
    done = run(*RECORDED, write(tmp_path, program), folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert only_trial(tmp_path).observed["micro_batch_size"] == 4
    assert len(list(TrialStore(str(tmp_path / "store")).events())) == 4

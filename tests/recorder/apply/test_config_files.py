from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.recorder.apply import config_copies as beside
from torchx_cubicml.recorder.apply.config_copies import copied
from torchx_cubicml.records.contract import CONTRACT_VARIABLE, Contract, FilePatch, TypedCommand, encode_contract
from torchx_cubicml.records.trial import Origin, State
from torchx_cubicml.store import TrialStore

JOB = Path(__file__).parents[2] / "jobs" / "shows_config.py"
YAML = "# why\nfsdp_config: {strategy: FULL_SHARD, offload: no}\nlast: 1.5\n"
JSON = '{"zero_optimization": {"stage": 2}, "batch": 8}'
TYPED = ("--config=c.yaml", "--deepspeed", "ds.json", "a b", "$HOME '\"é\n", "--batch", "4")
WANTED = (*TYPED[:-1], "2")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "c.yaml").write_text(YAML)
    (tmp_path / "ds.json").write_text(JSON)
    (tmp_path / "shown").mkdir()
    (tmp_path / "tmp").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def patch(path: str, key: str, value: object, **place: object) -> FilePatch:
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return FilePatch(path=path, digest=digest, values=((tuple(key.split(".")), value),), **place)


def contract(folder: Path) -> Contract:
    return Contract(
        store=str(folder / "store"),
        workload={"program": str(JOB)},
        config={"stage": 3, "micro_batch_size": 2},
        origin=Origin.REWRITE,
        suggestion={"reason": "faster"},
        files=(
            patch("c.yaml", "fsdp_config.strategy", "SHARD_GRAD_OP", argument=0),
            patch("ds.json", "zero_optimization.stage", 3, argument=2),
        ),
        as_typed=TypedCommand(args=TYPED, env={"TEXT": None}, config={"stage": 2, "micro_batch_size": 4}),
    )


STANDALONE = ("--standalone", "--nproc_per_node", "2")


def run(
    folder: Path, *options: str, wanted: Contract, torchrun: tuple[str, ...] = (), cwd: Path | None = None
) -> subprocess.CompletedProcess:
    launcher = ["-m", "torch.distributed.run", *torchrun] if torchrun else []
    return subprocess.run(
        [sys.executable, *launcher, "-m", "torchx_cubicml.recorder", "--", str(JOB), *WANTED, *options],
        env={
            **os.environ,
            CONTRACT_VARIABLE: encode_contract(wanted),
            "SHOWN": str(folder / "shown"),
            "TMPDIR": str(folder / "tmp"),
            "TEXT": "rewritten",
            "OMP_NUM_THREADS": "1",
        },
        cwd=cwd or folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def shown(folder: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in sorted((folder / "shown").iterdir())]


def wait_until_swept(folder: Path) -> None:
    end = time.monotonic() + 60
    while any(folder.glob("tmp/torchx-cubicml-files-*")):
        assert time.monotonic() < end, "the copies are still there"
        time.sleep(0.02)


def check_rewritten(seen: dict[str, object], folder: Path) -> None:
    assert seen["files"] == {
        "c.yaml": {"fsdp_config": {"strategy": "SHARD_GRAD_OP", "offload": False}, "last": 1.5},
        "ds.json": {"zero_optimization": {"stage": 3}, "batch": 8},
    }
    assert set(seen["modes"]) <= {"0o600", "0o700"}
    copies = seen["paths"]
    assert all(path.startswith(str(folder / "tmp")) for path in copies.values())
    assert seen["argv"][: len(WANTED)] == [
        f"--config={copies['c.yaml']}",
        "--deepspeed",
        copies["ds.json"],
        *WANTED[3:],
    ]
    assert seen["env"] == "rewritten"


@pytest.mark.parametrize("ends", [(), ("--die",)], ids=["ends", "is killed"])
def test_a_process_reads_copies_that_go_with_it(folder: Path, ends: tuple[str, ...]) -> None:
    done = run(folder, *ends, wanted=contract(folder))
    assert done.returncode == (-9 if ends else 0), done.stderr
    (seen,) = shown(folder)
    check_rewritten(seen, folder)
    wait_until_swept(folder)
    assert ((folder / "c.yaml").read_text(), (folder / "ds.json").read_text()) == (YAML, JSON)


READS_BESIDE = """
import os, sys, json
from pathlib import Path

config = Path(sys.argv[1].removeprefix("--config="))
said = [(config.parent / path).read_text() for path in ("words.txt", "deeper/words.txt", "../words.txt", "ds.json")]
(config.parent / "made by the program").write_text("kept")
(config.parent / "deeper" / "made").write_text("where it belongs")
Path("said").write_text(json.dumps([*said, config.read_text(), str(config.parent)]))
"""


def test_neighbours_of_a_config_file_are_beside_its_copy(folder: Path) -> None:
    conf = folder / "conf"
    (conf / "deeper").mkdir(parents=True)
    for place in (folder, conf, conf / "deeper"):
        (place / "words.txt").write_text(place.name)
    (conf / "c.yaml").write_text("data: [../words.txt, deeper]\nlast: 1.5\n")
    (conf / "ds.json").write_text(JSON)
    (folder / "job.py").write_text(READS_BESIDE)
    files = (
        patch("conf/c.yaml", "last", 2.5, argument=0),
        patch("conf/ds.json", "batch", 4, argument=1),
    )
    wanted = Contract(store=str(folder / "store"), files=files, as_typed=TypedCommand(args=()))
    done = subprocess.run(
        [sys.executable, "-m", "torchx_cubicml.recorder", "--", "job.py", "--config=conf/c.yaml", "conf/ds.json"],
        env={**os.environ, CONTRACT_VARIABLE: encode_contract(wanted), "TMPDIR": str(folder / "tmp")},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *beside, other, text, place = json.loads((folder / "said").read_text())
    assert beside == ["conf", "deeper", folder.name]
    assert (json.loads(other)["batch"], text) == (4, "data: [../words.txt, deeper]\nlast: 2.5\n")
    assert (conf / "deeper" / "made").read_text() == "where it belongs"
    assert sorted(path.name for path in conf.iterdir()) == ["c.yaml", "deeper", "ds.json", "words.txt"]
    assert (conf / "c.yaml").read_text().endswith("1.5\n")
    end = time.monotonic() + 60
    while (left := [path for path in folder.glob("tmp/**/*") if not path.is_dir()]) != [
        Path(place) / "made by the program"
    ]:
        assert time.monotonic() < end, left
        time.sleep(0.02)


def test_a_file_named_twice_has_a_copy_of_each_kind(folder: Path) -> None:
    by_word = patch("c.yaml", "last", 2.5, argument=0)
    by_variable = patch("c.yaml", "last", 3.5, variable="CONFIG")
    _, answer = copied([by_word, by_variable], WANTED, {"CONFIG": "c.yaml"}, folder=folder / "tmp")
    word = answer["args"][0].removeprefix("--config=")
    assert [Path(path).read_text() for path in (word, answer["env"]["CONFIG"])] == [
        YAML.replace("1.5", "2.5"),
        YAML.replace("1.5", "3.5"),
    ]


def test_a_folder_with_too_many_files_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "_MAX_LINKS", 3)
    with pytest.raises(LaunchError, match="more than 3 files are beside"):
        copied([patch("c.yaml", "last", 2.5, argument=0)], WANTED, {}, folder=folder / "tmp")


@pytest.mark.launch
def test_all_ranks_read_the_copies(folder: Path) -> None:
    done = run(folder, wanted=contract(folder), torchrun=STANDALONE)
    assert done.returncode == 0, done.stderr
    seen = shown(folder)
    assert len(seen) == 2
    for one in seen:
        check_rewritten(one, folder)
    wait_until_swept(folder)


def children_of(process: subprocess.Popen) -> list[int]:
    """Return its children that make copies."""
    numbers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(one) for one in numbers if "config_copies" in Path(f"/proc/{one}/cmdline").read_text()]


@pytest.mark.launch
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs the list of a process's children")
def test_a_rank_with_a_killed_child_follows_the_others(folder: Path) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    env = {
        **os.environ,
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "MASTER_PORT": str(store.port),
        "SHOWN": str(folder / "shown"),
        "TMPDIR": str(folder / "tmp"),
        CONTRACT_VARIABLE: encode_contract(contract(folder)),
        "TEXT": "rewritten",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "torchx_cubicml.recorder", "--", str(JOB), *WANTED]

    def start(rank: str) -> subprocess.Popen:
        own = {**env, "RANK": rank, "LOCAL_RANK": rank}
        return subprocess.Popen(command, env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    first, end = start("0"), time.monotonic() + 100
    while not (store.check(["torchx_cubicml/0.0/files/came"]) and children_of(first)):
        assert time.monotonic() < end
        time.sleep(0.02)
    os.kill(children_of(first)[0], signal.SIGKILL)  # as the kernel does for want of memory
    both = [first, start("1")]
    errors = [process.communicate(timeout=600)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], errors
    seen = shown(folder)
    assert len(seen) == 2
    for one in seen:
        check_rewritten(one, folder)
    assert not any("typed" in text for text in errors)
    wait_until_swept(folder)


@pytest.mark.parametrize("does", ["nothing", "replaces its copy", "removes its copy"])
def test_only_links_of_the_program_stay(folder: Path, does: str) -> None:
    """Whatever the program does with its copy."""
    (folder / "job.py").write_text(
        "import os, sys, time\n"
        "config = sys.argv[1].removeprefix('--config=')\n"
        "beside = os.path.dirname(config)\n"
        "os.symlink('checkpoint-3', beside + '/latest')\n"
        "time.sleep(0.05)  # file systems tell time in ticks\n"
        "if sys.argv[2].startswith('re'): open(beside + '/new', 'w').close(); os.replace(beside + '/new', config)\n"
        "if sys.argv[2].startswith('rem'): os.remove(config)\n"
    )
    files = (patch("c.yaml", "last", 2.5, argument=0),)
    wanted = Contract(store=str(folder / "store"), files=files, as_typed=TypedCommand(args=()))
    done = subprocess.run(
        [sys.executable, "-m", "torchx_cubicml.recorder", "--", "job.py", "--config=c.yaml", does],
        env={**os.environ, CONTRACT_VARIABLE: encode_contract(wanted), "TMPDIR": str(folder / "tmp")},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    end = time.monotonic() + 60
    while [path.name for path in folder.glob("tmp/**/*") if not path.is_dir()] != ["latest"]:
        assert time.monotonic() < end, list(folder.glob("tmp/**/*"))
        time.sleep(0.02)


@pytest.mark.launch
def test_all_nodes_run_as_typed_where_one_has_another_file(folder: Path, free_port: int) -> None:
    other = folder / "other"
    other.mkdir()
    (other / "c.yaml").write_text(YAML)
    (other / "ds.json").write_text(JSON.replace("8", "9"))
    wanted = contract(folder)
    meeting = ("--nnodes", "2", "--nproc_per_node", "1", "--master_addr", "127.0.0.1", "--master_port", str(free_port))
    with ThreadPoolExecutor() as nodes:
        first = nodes.submit(run, folder, wanted=wanted, torchrun=(*meeting, "--node_rank", "0"))
        second = nodes.submit(run, folder, wanted=wanted, torchrun=(*meeting, "--node_rank", "1"), cwd=other)
        ends = [first.result(), second.result()]
    assert [end.returncode for end in ends] == [0, 0], [end.stderr for end in ends]
    assert [one["argv"] for one in shown(folder)] == [list(TYPED)] * 2
    assert [one["env"] for one in shown(folder)] == [None] * 2
    wait_until_swept(folder)
    assert "another rank could not" in ends[0].stderr
    assert "ds.json has changed" in ends[1].stderr
    (trial,) = TrialStore(str(folder / "store"))
    assert (trial.origin, trial.config["stage"]) == (Origin.USER, 2)
    assert "another rank could not" in str(trial.observed["runs_as_typed"])


def contract_of_before(folder: Path) -> Contract:
    (folder / "ds.json").write_text(JSON)
    wanted = contract(folder)
    (folder / "ds.json").write_text(JSON + " ")
    return wanted


def test_an_unchangeable_file_runs_as_typed(folder: Path) -> None:
    done = run(folder, wanted=contract_of_before(folder))
    assert done.returncode == 0, done.stderr
    (seen,) = shown(folder)
    assert seen["argv"] == list(TYPED)
    assert seen["env"] is None
    warnings = [line for line in done.stderr.splitlines() if "warning" in line]
    assert warnings == [
        "torchx-cubicml: warning: running your command as typed: its config files cannot be changed: "
        "ds.json has changed since the launch was made"
    ]
    (trial,) = TrialStore(str(folder / "store"))
    assert (trial.state, trial.origin, trial.suggestion) == (State.COMPLETED, Origin.USER, None)
    assert trial.config == {"stage": 2, "micro_batch_size": 4}
    assert trial.observed["runs_as_typed"] == "ds.json has changed since the launch was made"


@pytest.mark.parametrize("typed", [False, True], ids=["rewritten", "as typed"])
def test_a_program_waits_only_for_its_own_children(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, typed: bool
) -> None:
    wanted = contract_of_before(folder) if typed else contract(folder)
    monkeypatch.setenv("WAITS_FOR_CHILDREN", "1")
    done = run(folder, wanted=wanted)
    assert done.returncode == 0, done.stderr
    (seen,) = shown(folder)
    assert (seen["argv"][: len(TYPED)] == list(TYPED)) is typed
    wait_until_swept(folder)


def test_a_launch_of_a_tune_never_runs_as_typed(folder: Path) -> None:
    done = run(folder, wanted=replace(contract_of_before(folder), launch_id="launch-1"))
    assert done.returncode == 1
    assert done.stderr == (
        "torchx-cubicml: stopping this launch of a tune: its config files cannot be changed: "
        "ds.json has changed since the launch was made\n"
    )
    assert shown(folder) == []


@pytest.mark.parametrize(
    ("path", "place", "message"),
    [
        ("c.yaml", {"argument": 9}, "the arguments no longer name c.yaml"),
        ("c.yaml", {"argument": 2}, "the arguments no longer name c.yaml"),
        ("c.yaml", {"variable": "CONFIG"}, "variable CONFIG does not name c.yaml"),
    ],
)
def test_a_file_that_is_named_otherwise_is_left_alone(folder: Path, path: str, place: dict, message: str) -> None:
    wanted = patch(path, "last", 2.5, **place)
    with pytest.raises(LaunchError, match=message):
        copied([wanted], WANTED, {}, folder=folder / "tmp")


def test_a_variable_can_name_a_file(folder: Path) -> None:
    wanted = patch("c.yaml", "last", 2.5, variable="CONFIG")
    _, answer = copied([wanted], WANTED, {"CONFIG": "c.yaml"}, folder=folder / "tmp")
    assert answer["args"] == list(WANTED)
    assert Path(answer["env"]["CONFIG"]).read_text() == YAML.replace("1.5", "2.5")

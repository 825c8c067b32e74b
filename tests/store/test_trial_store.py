from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from torchx_cubicml.errors import RecordError, StoreError
from torchx_cubicml.records.event import Event, EventKind
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.store import TrialStore, absolute_url, read_trials

if TYPE_CHECKING:
    from collections.abc import Iterator

WRITER = """
    import sys
    from torchx_cubicml.records.event import Event, EventKind
    from torchx_cubicml.store import TrialStore
    url, trial_id, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    store = TrialStore(url)
    facts = {f"x{number}": "y" * 4000 for number in range(int(sys.argv[4]))}
    for sequence in range(count):
        store.append(Event(kind=EventKind.MEASURED, trial_id=trial_id, sequence=sequence, observed=facts))
        if sequence == 0:
            print("writing", flush=True)
"""


def python(code: str, *args: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", textwrap.dedent(code), *args]
    return subprocess.Popen(argv, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A server that accepts every connection and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as server:
        yield server.getsockname()[1]


class TestWriters:
    def test_two_processes_lose_nothing(self, tmp_path: Path) -> None:
        writers = [python(WRITER, str(tmp_path), name, "200", "1") for name in ("a", "b")]
        for writer in writers:
            _, errors = writer.communicate(timeout=600)
            assert (writer.returncode, errors) == (0, "")
        store = TrialStore(str(tmp_path))
        seen = {(event.trial_id, event.sequence) for event in store.events()}
        assert seen == {(name, sequence) for name in ("a", "b") for sequence in range(200)}
        assert store.warnings == ()

    def test_a_killed_writer_leaves_whole_objects_only(self, tmp_path: Path) -> None:
        for number in range(3):
            with python(WRITER, str(tmp_path), f"t{number}", "1000000", "200") as writer:
                assert writer.stdout is not None
                assert writer.stdout.readline() == "writing\n"
                time.sleep(0.05 + 0.03 * number)
                writer.kill()
        store = TrialStore(str(tmp_path))
        events = list(store.events())
        assert store.warnings == ()
        for number in range(3):
            sequences = [event.sequence for event in events if event.trial_id == f"t{number}"]
            assert sequences == list(range(len(sequences)))

    def test_a_writer_killed_within_a_write_leaves_no_object(self, tmp_path: Path) -> None:
        code = """
            import resource, signal
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))  # the kernel kills who writes further
        """
        process = python(textwrap.dedent(code) + textwrap.dedent(WRITER), str(tmp_path), "a", "1", "200")
        process.communicate(timeout=600)
        assert process.returncode == -signal.SIGXFSZ
        [left] = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert left.stat().st_size == 65536
        assert read_trials(str(tmp_path)) == ([], ())

    def test_a_half_done_put_is_not_seen(self, tmp_path: Path) -> None:
        seen = []

        class Slow(LocalFileSystem):
            protocol = "slow"

            @classmethod
            def _strip_protocol(cls, path: str) -> str:
                return super()._strip_protocol(str(path).removeprefix("slow://"))

            def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: object) -> None:
                Path(path).write_bytes(value[: len(value) // 2])
                seen.append(read_trials(str(tmp_path)))
                Path(path).write_bytes(value)

        fsspec.register_implementation("slow", Slow, clobber=True)
        TrialStore(f"slow://{tmp_path}").append(Event(kind=EventKind.STARTED, trial_id="a"))
        assert seen == [([], ())]
        assert [trial.trial_id for trial in read_trials(str(tmp_path))[0]] == ["a"]

    def test_new_days_keep_the_permissions_of_the_store(self, tmp_path: Path) -> None:
        shared = tmp_path / "shared"
        shared.mkdir()
        shared.chmod(0o2775)
        TrialStore(str(shared)).append(Event(kind=EventKind.STARTED, trial_id="a"))
        [day] = (shared / "events").iterdir()
        assert day.stat().st_mode & 0o7777 == 0o2775

    def test_a_store_that_is_a_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        store = TrialStore(str(tmp_path / "file"))
        with pytest.raises(StoreError, match=r"cannot write to store .*file: "):
            store.append(Event(kind=EventKind.STARTED, trial_id="a"))
        with pytest.raises(StoreError, match=r"cannot read store .*file: "):
            read_trials(store.url)

    def test_a_failed_write_leaves_no_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def no_space(self: Path, target: Path) -> Path:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Path, "rename", no_space)
        with pytest.raises(StoreError, match="No space left"):
            TrialStore(str(tmp_path)).append(Event(kind=EventKind.STARTED, trial_id="a"))
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []

    @pytest.mark.parametrize(
        "fields",
        [
            {"config": {"x": "y" * 10_000}},
            {"config": {"x": float("nan")}},
            {"config": {"x": object()}},
            {"observed": {str(number): "y" * 4000 for number in range(500)}},
            {"trial_id": "x" * 100_000},
        ],
        ids=["long text", "nan", "object", "too large", "long id"],
    )
    def test_an_unreadable_event_is_not_written(self, tmp_path: Path, fields: dict[str, object]) -> None:
        with pytest.raises(RecordError):
            TrialStore(str(tmp_path)).append(Event(**{"kind": EventKind.STARTED, "trial_id": "a", **fields}))
        assert list(tmp_path.iterdir()) == []

    def test_no_secret_reaches_an_object(self, tmp_path: Path) -> None:
        trial = Trial.infeasible(workload={"url": "https://me:hunter2@host"}, config={"api_key": "hunter2"})
        TrialStore(str(tmp_path)).add(trial)
        files = [path.read_text() for path in tmp_path.rglob("*.json")]
        assert len(files) == 2
        assert not any("hunter2" in text for text in files)


class TestReaders:
    def test_a_pipe_in_the_store_is_skipped(self, tmp_path: Path) -> None:
        (tmp_path / "events").mkdir()
        os.mkfifo(tmp_path / "events" / "pipe.json")
        assert read_trials(str(tmp_path)) == ([], ())

    def test_an_unlistable_day_is_reported_and_the_rest_is_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = TrialStore(str(tmp_path))
        store.append(Event(kind=EventKind.STARTED, trial_id="a"))
        closed = tmp_path / "events" / "2020-01-01"
        closed.mkdir()
        scandir = os.scandir

        def refusing(path: str) -> object:  # what permissions do to everybody but root
            if path == str(closed):
                raise PermissionError(13, "Permission denied")
            return scandir(path)

        monkeypatch.setattr(os, "scandir", refusing)
        assert [trial.trial_id for trial in store] == ["a"]
        assert store.warnings[0].endswith("events/2020-01-01 (Permission denied)")

    def test_ten_thousand_objects_are_read_well_within_the_deadline(self, tmp_path: Path) -> None:
        day = tmp_path / "events" / "2026-03-01"
        day.mkdir(parents=True)
        text = '{"schema":1,"event":"ended","trial_id":"t%d","config":{"micro_batch_size":4},"state":"completed"}'
        for number in range(10_000):
            (day / f"{number}.json").write_text(text % number)
        began = time.process_time()
        trials, warnings = read_trials(str(tmp_path), deadline_s=60)
        assert (len(trials), warnings) == (10_000, ())
        assert time.process_time() - began < 30  # about 2 s of one core
        with pytest.raises(StoreError, match="within 0 s"):
            read_trials(str(tmp_path), deadline_s=0)

    def test_a_warning_is_fit_for_a_terminal(self, tmp_path: Path) -> None:
        (tmp_path / "events").mkdir()
        (tmp_path / "events" / "\x1b[2J\n.json").write_text("{")
        (tmp_path / "events" / os.fsdecode(b"\xff.json")).write_text("{")
        store = TrialStore(str(tmp_path))
        assert list(store) == []
        assert store.warnings[0].isprintable()

    def test_an_unlistable_remote_day_is_reported(self, tmp_path: Path) -> None:
        class Closed(LocalFileSystem):
            protocol = "closed"

            @classmethod
            def _strip_protocol(cls, path: str) -> str:
                return super()._strip_protocol(str(path).removeprefix("closed://"))

            def ls(self, path: str, detail: bool = False, **kwargs: object) -> object:
                if path.endswith("2020-01-01"):
                    raise PermissionError("not yours")
                return super().ls(path, detail=detail, **kwargs)

        fsspec.register_implementation("closed", Closed, clobber=True)
        TrialStore(str(tmp_path)).append(Event(kind=EventKind.STARTED, trial_id="a"))
        (tmp_path / "events" / "2020-01-01").mkdir()
        store = TrialStore(f"closed://{tmp_path}")
        assert [trial.trial_id for trial in store] == ["a"]
        assert store.warnings[0].endswith("2020-01-01 (not yours)")


class TestDeadline:
    def test_a_silent_server_costs_only_the_deadline(self, silent_port: int) -> None:
        code = """
            import sys, time
            from torchx_cubicml.store import read_trials
            began = time.perf_counter()
            try:
                read_trials(sys.argv[1], deadline_s=0.5)
            except OSError as error:
                print(type(error).__name__, error)
            print(time.perf_counter() - began, flush=True)
        """
        process = python(code, f"ftp://me:hunter2@127.0.0.1:{silent_port}/store")
        assert process.stdout is not None
        message, waited = (process.stdout.readline().rstrip() for _ in range(2))
        began = time.perf_counter()
        _, errors = process.communicate(timeout=600)
        assert message.startswith("StoreError store ftp://***@127.0.0.1")
        assert message.endswith("was not read within 0.5 s")
        assert 0.5 <= float(waited) < 15
        assert time.perf_counter() - began < 25  # ftplib alone would wait for 30 s
        assert (process.returncode, errors) == (0, "")

    def test_a_hanging_name_server_does_not_delay_the_exit(self) -> None:
        code = """
            import asyncio, time
            import fsspec
            from fsspec.asyn import AsyncFileSystem
            from torchx_cubicml.store import read_trials

            class Stuck(AsyncFileSystem):
                protocol = "stuck"

                async def _ls(self, path, detail=True, **kwargs):
                    # As asyncio looks up names: in a thread of the executor that Python joins at exit.
                    await asyncio.get_running_loop().run_in_executor(None, time.sleep, 60)

            fsspec.register_implementation("stuck", Stuck)
            try:
                read_trials("stuck://host/store", deadline_s=0.5)
            except OSError as error:
                print(error, flush=True)
        """
        process = python(code)
        assert process.stdout is not None
        assert process.stdout.readline().endswith("was not read within 0.5 s\n")
        began = time.perf_counter()
        _, errors = process.communicate(timeout=600)
        assert errors == ""
        assert time.perf_counter() - began < 30  # the name server takes 60 s

    def test_a_refusing_server_is_reported(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        with pytest.raises(StoreError, match=r"cannot read store ftp://127\.0\.0\.1:\d+/store: ConnectionRefusedError"):
            read_trials(f"ftp://127.0.0.1:{port}/store")

    def test_a_refusing_server_is_reported_to_a_writer(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        with pytest.raises(StoreError, match=r"cannot write to store ftp://.*: ConnectionRefusedError"):
            TrialStore(f"ftp://127.0.0.1:{port}/store").append(Event(kind=EventKind.STARTED, trial_id="a"))

    def test_a_missing_client_package_is_named(self) -> None:
        fsspec.register_implementation("absent", "no_such_client.FileSystem", errtxt="Please install no_such_client")
        with pytest.raises(StoreError, match=r"absent://team/x needs a client package \(.*install no_such_client"):
            read_trials("absent://team/x")


class TestUrl:
    @pytest.mark.parametrize(
        ("url", "absolute"),
        [
            ("store", "{cwd}/store"),
            ("./a/../store/", "{cwd}/a/../store"),
            ("/data/store", "/data/store"),
            ("~/store", "{home}/store"),
            ("file:///data/store", "file:///data/store"),
            ("file://store", "file://{cwd}/store"),
            ("runs:1/store", "{cwd}/runs:1/store"),
            ("größe 1", "{cwd}/größe 1"),
            ("S3://Team/x/", "s3://Team/x"),
            ("gs://team", "gs://team"),
            ("sftp://me:pw@host/data", "sftp://me:pw@host/data"),
            ("memory://store", "memory://store"),
            ("lakefs://repository/branch", "lakefs://repository/branch"),
        ],
    )
    def test_it_names_the_same_store_from_everywhere(
        self, url: str, absolute: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        expected = absolute.format(cwd=tmp_path, home=tmp_path / "home")
        assert absolute_url(url) == expected
        assert absolute_url(expected) == expected

    @pytest.mark.parametrize(
        ("url", "message"),
        [
            ("", "URL is empty; use a path, file, s3"),
            ("  ", "URL is empty"),
            ("nonsense://x", "unknown protocol 'nonsense'; use a path, file, s3, gs"),
            ("s3://", "has no folder"),
            ("file://", "has no folder"),
            ("s3:team/x", "has no slashes; write s3://"),
            ("file:/data", "has no slashes"),
            ("simplecache::s3://team/x", "use the URL of that store alone"),
            ("zip://x::s3://team/x.zip", "use the URL of that store alone"),
            ("cached://x", "use the URL of that store alone"),
            ("/data/\0", "null character"),
        ],
    )
    def test_an_illegal_url_is_refused(self, url: str, message: str) -> None:
        with pytest.raises(StoreError, match=message):
            absolute_url(url)
        with pytest.raises(StoreError, match=message):
            TrialStore(url)

    def test_a_launch_refuses_a_memory_store(self) -> None:
        with pytest.raises(StoreError, match="exists only in this process"):
            absolute_url("memory://x", for_launch=True)
        assert absolute_url("/data/x", for_launch=True) == "/data/x"

    def test_a_password_in_a_url_is_not_shown(self) -> None:
        with pytest.raises(StoreError) as caught:
            absolute_url("nonsense://me:hunter2@host/x")
        assert "hunter2" not in str(caught.value)


def test_a_local_store_is_read_without_fsspec_and_without_torch(tmp_path: Path) -> None:
    TrialStore(str(tmp_path)).add(Trial.infeasible(workload={}, config={}))
    code = """
        import sys
        from torchx_cubicml.store import TrialStore, absolute_url, read_trials
        assert absolute_url("s3://team/x") == "s3://team/x"
        assert len(read_trials(sys.argv[1])[0]) == 1
        print(sorted({"fsspec", "torch", "numpy", "asyncio"} & set(sys.modules)))
    """
    output, errors = python(code, str(tmp_path)).communicate(timeout=600)
    assert (output.strip(), errors) == ("[]", "")


def test_an_interrupt_is_raised(tmp_path: Path, silent_port: int) -> None:
    code = """
        import signal, sys
        from torchx_cubicml.store import read_trials
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin without it
        print("reading", flush=True)
        read_trials(sys.argv[1], deadline_s=60)
    """
    process = python(code, f"ftp://127.0.0.1:{silent_port}/store")
    assert process.stdout is not None
    assert process.stdout.readline() == "reading\n"
    time.sleep(0.5)
    began = time.perf_counter()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=600)
    assert process.returncode == -signal.SIGINT
    assert time.perf_counter() - began < 30


def test_an_added_trial_can_have_any_state(tmp_path: Path) -> None:
    store = TrialStore(str(tmp_path))
    for state in State:
        store.add(Trial(trial_id=state, workload={}, config={}, state=state))
    assert {trial.trial_id: trial.state for trial in store} == {str(state): state for state in State}


def test_every_reader_sees_the_error_that_other_load_leaves(tmp_path: Path) -> None:
    crowded = Trial.completed(workload={}, config={}, tokens_per_second=100.0)
    store = TrialStore(str(tmp_path))
    store.add(replace(crowded, observed={"host_cpus": 2, "other_busy_cpus": 1.2, "idle_cpus": 0.0}))
    (told,) = read_trials(store.url)[0]
    assert told.measurement is not None
    assert told.measurement.relative_error == pytest.approx(-math.log(0.4))
    assert list(store) == [told]
    assert store.to_pandas()["relative_error"].tolist() == [told.measurement.relative_error]
    assert store.to_arrow()["relative_error"].to_pylist() == [told.measurement.relative_error]

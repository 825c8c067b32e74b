"""Commands that pass trials on: export, anonymous export, merge, and the filters of the list."""

from __future__ import annotations

import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from torchx.cli.main import main

from torchx_cubicml.records.event import Event, EventKind, trial_events
from torchx_cubicml.records.kept_command import kept_command
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.provenance import COMMIT, OWNER, PACKAGE_VERSION, SPACE, UNCOMMITTED, Trust
from torchx_cubicml.records.trial import Origin, State, Trial
from torchx_cubicml.space.toml.reader import space_digest
from torchx_cubicml.store import TrialStore
from torchx_cubicml.store.digest_key import made_digest_key

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOSTS = ("gpu-node-0417", "login3.cluster.example.org", "10.17.4.23")
USERS = ("mmustermann", "jdoe42", "svc-train-eu")
PATHS = ("/home/mmustermann/gpt/train_secret.py", "s3://acme-bucket/corpora/v7", "C:\\Users\\jdoe42\\run")
PROGRAMS = ("train_secret.py", "acme.models.launch", "acme-llm")
SECRETS = ("hf_AbCdEfGhIjKlMnOpQrStUvWx", "correct-horse-battery", "größe层🙂", "4f3c2a1b9d8e7f60", "wandb_key=99xyz")
WORDS = (*HOSTS, *USERS, *PATHS, *PROGRAMS, *SECRETS)
SENSITIVE = (*WORDS, "--learning_rate_of_acme", "ACME_TOKEN", "d_acme", "2026-03-01", "acme", "train_secret")


def torchx(*words: str | Path) -> tuple[int, str, str]:
    """Return exit status, stdout and stderr of TorchX's command line, run in this process."""
    stdout, stderr = StringIO(), StringIO()
    with redirect_stdout(stdout), redirect_stderr(stderr):
        try:
            main(["cubicml", "history", *map(str, words)])
        except SystemExit as end:
            return int(end.code or 0), stdout.getvalue(), stderr.getvalue()
    return 0, stdout.getvalue(), stderr.getvalue()


def sensitive_trials() -> Iterator[Trial]:
    """Yield trials with each of the words in each place where a record can hold a text."""
    for number, word in enumerate(WORDS):
        yield Trial(
            trial_id=f"slurm-{word}-{number}",
            launch_id=f"tune-{word}",
            workload={"program": word, "project": (f"{word}:src", f"={word}"), "d_acme": word, "n_layers": word,
                      "world_size": 8, f"w {word}": word},
            config={"micro_batch_size": 4 + number, "precision": word, "learning_rate_of_acme": 0.1, word: (word, 3)},
            state=State.COMPLETED if number % 2 else State.USER_ERROR,
            observed={"host": word, "job_id": word, "cpu": word, "device": word, "torch_version": word, "mesh": word,
                      "scheduler": word, "optimizer": word, "tp_plan": word, "embedding_tables": (word, word),
                      "embedding_ranks": (word,), "fsdp_hook": f"refused: {word}", "runs_as_typed": word,
                      "visible_devices": word, "backend": word, "mesh_axes": (word,), f"o {word}": 5, "compile": True},
            measurement=Measurement(samples_per_second=50.0 + number, source=word, other_source=word,
                                    other_samples_per_second=1.0),
            origin=Origin.TUNE,
            reason=f"Traceback: {word}",
            suggestion={"reason": word, word: {"deep": [word]}},
            arguments=("--learning_rate_of_acme", "0.1", f"--data={word}"),
            digests={"program": "0123abcd", "$ACME_TOKEN": "89abcdef", f"--flag:{word}": "0123abcd"},
            provenance={OWNER: word, COMMIT: word, PACKAGE_VERSION: word, SPACE: word, UNCOMMITTED: True},
            command={"words": ("torchrun", word, f"--x={word}"), f"hook {word}": word},
            started_at=f"2026-03-01T00:{number:02d}:00+00:00",
            ended_at=f"2026-03-01T00:{number:02d}:30+00:00",
        )  # fmt: skip


@pytest.fixture(scope="module")
def sensitive(tmp_path_factory: pytest.TempPathFactory) -> str:
    store = TrialStore(str(tmp_path_factory.mktemp("sensitive") / "jdoe42-store"))
    for trial in sensitive_trials():
        for event in trial_events(trial, writer=PROGRAMS[0]):
            store.append(Event.from_json({**event.to_json(), "of_later": {HOSTS[0]: USERS[0]}}))
    store.append(Event(kind=EventKind.PLANNED, launch_id=USERS[0], config={"micro_batch_size": 1}))
    made_digest_key(store.url)
    return store.url


def all_bytes(folder: Path) -> bytes:
    """Return the names and contents of all files below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    assert files
    return b"\n".join(str(path.relative_to(folder)).encode() + b"\n" + path.read_bytes() for path in files)


def test_no_byte_of_an_anonymous_export_is_of_the_owner(sensitive: str, tmp_path: Path) -> None:
    status, stdout, _ = torchx("export", tmp_path / "out", "--anonymous", "--yes", "--store", sensitive)
    assert status == 0
    content = all_bytes(tmp_path / "out")
    plain = content.decode("ascii")
    for word in SENSITIVE:
        for form in {word, word.lower(), json.dumps(word)[1:-1]}:
            assert form not in plain
    assert b"digest-key" not in content
    assert f"exported {len(WORDS)} trials" in stdout
    assert "config.micro_batch_size" in stdout
    assert "learning_rate_of_acme -> name_" in stdout


def test_an_export_keeps_what_predictors_read(sensitive: str, tmp_path: Path) -> None:
    assert torchx("export", tmp_path / "out", "--anonymous", "--yes", "--json", "--store", sensitive)[0] == 0
    trials = list(TrialStore(str(tmp_path / "out")))
    sizes = {trial.config["micro_batch_size"]: trial.measurement.samples_per_second for trial in trials}  # type: ignore[union-attr]
    assert sizes == {4 + number: 50.0 + number for number in range(len(WORDS))}
    assert len({trial.workload["program"] for trial in trials}) == len(WORDS)
    assert all(trial.workload["world_size"] == 8 and trial.observed["compile"] is True for trial in trials)


def test_without_a_terminal_an_anonymous_export_asks_for_yes(sensitive: str, tmp_path: Path) -> None:
    status, stdout, _ = torchx("export", tmp_path / "out", "--anonymous", "--store", sensitive)
    assert status == 1
    assert "nothing is written; --yes" in stdout
    assert "workload.world_size" in stdout, "what would be left is shown"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("answer", "is_written"), [("y", True), ("", False)])
def test_on_a_terminal_it_asks(
    sensitive: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, is_written: bool
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda prompt: answer)
    status, _, _ = torchx("export", tmp_path / "out", "--anonymous", "--store", sensitive)
    assert (status == 0) is is_written is (tmp_path / "out").exists()


def test_an_anonymous_export_wants_a_new_store(sensitive: str, tmp_path: Path) -> None:
    for status in (0, 2):
        done = torchx("export", tmp_path / "out", "--anonymous", "--yes", "--store", sensitive)
        assert done[0] == status
    assert "needs a new store" in done[2]


def test_a_plain_export_keeps_all(sensitive: str, tmp_path: Path) -> None:
    for _ in range(2):
        status, stdout, _ = torchx("export", tmp_path / "out", "--store", sensitive)
        assert status == 0
        assert "with all they hold" in stdout
    assert {trial.trial_id: trial for trial in TrialStore(str(tmp_path / "out"))} == {
        trial.trial_id: trial for trial in TrialStore(sensitive)
    }


def small_store(folder: Path, name: str, *ids: str, **fields: object) -> str:
    store = TrialStore(str(folder / name))
    for trial_id in ids:
        store.add(
            Trial(
                trial_id=trial_id,
                workload={"program": "train.py"},
                config={"micro_batch_size": 2},
                state=State.COMPLETED,
                measurement=Measurement(samples_per_second=5.0),
                **fields,  # type: ignore[arg-type]
            )
        )
    return store.url


def test_merge_adds_each_trial_once_with_a_trust_level(tmp_path: Path) -> None:
    one, other = small_store(tmp_path, "a", "t1", "t2"), small_store(tmp_path, "b", "t3")
    status, stdout, _ = torchx("merge", one, other)
    assert status == 0
    assert "1 trials new, 0 known" in stdout
    assert {trial.trial_id: trial.trust for trial in TrialStore(one)} == {
        "t1": Trust.OWN,
        "t2": Trust.OWN,
        "t3": Trust.TEAM,
    }
    assert "0 trials new, 1 known" in torchx("merge", one, other)[1]
    _, listed, _ = torchx("list", "--store", one)
    assert "trust" in listed
    assert "team" in listed
    _, listed, _ = torchx("list", "--store", one, "--trust", "own", "--json")
    assert [trial["trial_id"] for trial in json.loads(listed)] == ["t2", "t1"]


def test_merge_into_a_third_store_leaves_both(tmp_path: Path) -> None:
    one, other = small_store(tmp_path, "a", "t1"), small_store(tmp_path, "b", "t1", "t2")
    before = [all_bytes(tmp_path / name) for name in ("a", "b")]
    status, stdout, _ = torchx("merge", one, other, "--into", tmp_path / "c", "--trust", "public", "--json")
    assert status == 0
    assert [result["new"] for result in json.loads(stdout)] == [1, 1]
    assert [all_bytes(tmp_path / name) for name in ("a", "b")] == before
    assert {trial.trial_id: str(trial.trust) for trial in TrialStore(str(tmp_path / "c"))} == {
        "t1": "own",
        "t2": "public",
    }


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("a", "a"), "merge takes different stores"),
        (("a", "absent"), "there is no store"),
        (("a", "b", "--into", "b"), "merge takes different stores"),
        (("a", "b", "--into", "other"), "the folder holds other files"),
        (("a", "b", "--trust", "friend"), "invalid choice: 'friend'"),
    ],
)
def test_what_cannot_be_merged_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    small_store(tmp_path, "a", "t1")
    small_store(tmp_path, "b", "t2")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.pdf").touch()
    status, _, stderr = torchx("merge", *words)
    assert status == 2
    assert reason in stderr


def test_the_list_is_filtered_by_provenance(tmp_path: Path) -> None:
    (tmp_path / "gpt.toml").write_text("[parameters]\n")
    digest = space_digest("[parameters]\n")
    facts = {OWNER: "ab12", COMMIT: "0123abcd", PACKAGE_VERSION: "0.1.0", SPACE: digest}
    url = small_store(tmp_path, "a", "t1", provenance=facts)
    small_store(tmp_path, "a", "t2")
    for words in (
        ("--owner", "ab"),
        ("--commit", "0123"),
        ("--package-version", "0.1.0"),
        ("--space", tmp_path / "gpt.toml"),
        ("--space", digest),
    ):
        _, listed, _ = torchx("list", "--store", url, "--json", *words)
        assert [trial["trial_id"] for trial in json.loads(listed)] == ["t1"]
    assert json.loads(torchx("list", "--store", url, "--json", "--owner", "ab", "--commit", "4")[1]) == []
    status, _, stderr = torchx("list", "--store", url, "--space", "absent.toml")
    assert status == 2
    assert "absent.toml" in stderr


def test_imported_trials_get_a_trust_level(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("tp,mbs,samples_per_second\n1,2,10\n2,4,20\n4,4,30\n")
    words = ("import", tmp_path / "jobs.csv", "--yes", "--trust", "public", "--store", tmp_path / "s")
    assert torchx(*words)[0] == 0
    assert {trial.trust for trial in TrialStore(str(tmp_path / "s"))} == {Trust.PUBLIC}


def test_a_printed_trial_never_rises(tmp_path: Path) -> None:
    trial = Trial(trial_id="t1", workload={"program": "t.py"}, config={}, state=State.USER_ERROR, trust=Trust.PUBLIC)
    begin, end = trial_events(trial)
    (tmp_path / "job.log").write_text(f"CUBICML_TRIAL {json.dumps({**begin.to_json(), **end.to_json()})}\n")
    assert torchx("import", "--log", tmp_path / "job.log", "--trust", "team", "--store", tmp_path / "s")[0] == 0
    assert [trial.trust for trial in TrialStore(str(tmp_path / "s"))] == [Trust.PUBLIC]


def test_no_text_of_a_record_steers_the_terminal(tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07\u202e"
    trial = Trial(
        trial_id="t1",
        state=State.USER_ERROR,
        workload={"program": evil, evil: evil},
        config={evil: (evil, evil)},
        command=kept_command([evil], variables={"DEPTH": evil}, hooks={evil: evil}, files={evil: evil}),
        provenance={SPACE: evil, COMMIT: evil},
        reason=evil,
    )
    store = TrialStore(str(tmp_path))
    store.add(trial)
    store.add(replace(trial, trial_id=f"t{evil}", command={}))
    for words in (["list"], ["show", "t1"], ["show", f"t{evil}"], ["show", "t1", "--command"], ["show", "t"]):
        printed = "".join(torchx(*words, "--store", tmp_path)[1:])
        assert "owned" in printed
        assert not {"\x1b", "\x07", "\u202e"} & {*printed}

"""Reading of notes, of which each counts once however often it is asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.errors import StoreError
from torchx_cubicml.store import local
from torchx_cubicml.store.backend import MAX_OBJECT_BYTES
from torchx_cubicml.store.local import LocalBackend
from torchx_cubicml.tuner.journal import Journal, Note, NoteKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(str(tmp_path / "store"))


def write(journal: Journal, *launches: str) -> None:
    for launch_id in launches:
        journal.write(Note(kind=NoteKind.SETTLED, tune_id="t", launch_id=launch_id, facts={"run_s": 1.5}))


def launches_of(journal: Journal) -> list[str]:
    return [note.launch_id for note in journal.read()]


def test_each_note_is_read_once_in_order(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, read_file = [], local._read_file
    monkeypatch.setattr(local, "_read_file", lambda place: seen.append(place) or read_file(place))
    assert launches_of(journal) == []
    write(journal, "a", "b")
    assert launches_of(journal) == launches_of(journal) == ["a", "b"]
    write(journal, "c")
    assert launches_of(journal) == ["a", "b", "c"]
    assert len(seen) == 3


def test_only_unreadable_notes_are_tried_again(journal: Journal, tmp_path: Path) -> None:
    write(journal, "a")
    (folder,) = (tmp_path / "store" / "tunes" / "events").iterdir()
    (folder / "odd.json").write_text('{"schema": 1, "facts": []}')
    seen, read_file = [], local._read_file

    def failing(place: str) -> bytes | Exception:
        seen.append(place)
        return OSError(5, "Input/output error") if not place.endswith("odd.json") else read_file(place)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "_read_file", failing)
        assert launches_of(journal) == launches_of(journal) == []
    assert [Path(place).name == "odd.json" for place in seen] == [False, True, False]
    assert launches_of(journal) == ["a"]


def test_notes_count_once_where_the_store_fails_between_them(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    write(journal, "a", "b", "c")
    read = LocalBackend.read

    def failing(self: LocalBackend, places: Sequence[str]) -> Iterable[tuple[str, bytes | Exception]]:
        yield from read(self, places[:2])
        raise StoreError("503 Slow Down")

    with monkeypatch.context() as patch:
        patch.setattr(LocalBackend, "read", failing)
        with pytest.raises(StoreError):
            journal.read()
    assert launches_of(journal) == ["a", "b", "c"]


def test_a_note_on_disk_is_as_in_earlier_releases(journal: Journal, tmp_path: Path) -> None:
    note = Note(
        kind=NoteKind.SETTLED, tune_id="tune-1", launch_id="launch-1-0001", time="2026-01-01", facts={"run_s": 1.5}
    )
    journal.write(note)
    (file,) = (tmp_path / "store" / "tunes" / "events").glob("*/*.json")
    assert json.loads(file.read_text()) == {
        "schema": 1,
        "note": "settled",
        "tune_id": "tune-1",
        "launch_id": "launch-1-0001",
        "time": "2026-01-01",
        "facts": {"run_s": 1.5},
    }
    day, name = file.parent.name, file.name
    assert name.startswith(day.replace("-", "") + "T")
    assert journal.read() == [note]


@pytest.mark.parametrize("kind", ["begun", "alive", "submitted", "settled", "finished"])
def test_each_kind_of_note_is_read(journal: Journal, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "store" / "tunes" / "events" / "2026-01-01"
    folder.mkdir(parents=True)
    (folder / "a.json").write_text(json.dumps({"schema": 1, "note": kind, "tune_id": "t", "facts": {"job": "7"}}))
    assert journal.read() == [Note(kind=NoteKind[kind.upper()], tune_id="t", facts={"job": "7"})]


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        "[" * 100_000,
        '{"note": "alive", "facts": {}}',
        '{"schema": 2, "note": "alive", "facts": {}}',
        '{"schema": 1, "note": "snored", "facts": {}}',
        '{"schema": 1, "facts": {}}',
        '{"schema": 1, "note": "alive"}',
        '{"schema": 1, "note": "alive", "facts": [1]}',
        '{"schema": 1, "note": "alive", "facts": {}, "tune_id": 7}',
        '{"schema": 1, "note": "alive", "facts": {}, "launch_id": null}',
        '{"schema": 1, "note": "alive", "facts": {}, "time": 1.5}',
        json.dumps({"schema": 1, "note": "alive", "facts": {"text": "x" * MAX_OBJECT_BYTES}}),
    ],
    ids=lambda text: text[:40],
)
def test_a_damaged_note_is_left_out(journal: Journal, tmp_path: Path, text: str) -> None:
    write(journal, "a")
    (folder,) = (tmp_path / "store" / "tunes" / "events").iterdir()
    (folder / "0.json").write_text(text)
    assert launches_of(journal) == ["a"]


def test_facts_of_another_type_count_as_none() -> None:
    note = Note(kind=NoteKind.ALIVE, tune_id="t", facts={"n": 3, "f": 1.5, "text": "7", "none": None})
    assert [note.number(name) for name in ("n", "f", "text", "none", "missing")] == [3.0, 1.5, 0.0, 0.0, 0.0]
    assert [note.text(name) for name in ("n", "f", "text", "none", "missing")] == ["", "", "7", "", ""]
    assert type(note.number("n")) is float

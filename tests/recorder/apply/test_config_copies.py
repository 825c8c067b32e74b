from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.recorder.apply import config_copies
from torchx_cubicml.recorder.apply.config_copies import MADE, copied, folders_up, main, mirror_folder
from torchx_cubicml.records.contract import CONTRACT_VARIABLE, Contract, FilePatch, encode_contract


def tree(folder: Path) -> dict[str, str | None]:
    """Return each entry below a folder: the target of a link, ``None`` for a real folder."""
    found: dict[str, str | None] = {}
    for path in sorted(folder.rglob("*")):
        if not any(parent.is_symlink() for parent in path.relative_to(folder).parents if folder / parent != folder):
            found[str(path.relative_to(folder))] = str(path.readlink()) if path.is_symlink() else None
    return found


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a folder with a config folder inside, files beside each, and a place for mirrors."""
    project = tmp_path / "project"
    (project / "conf").mkdir(parents=True)
    for path in ("data.txt", "conf/a.yaml", "conf/b.yaml"):
        (project / path).write_text("x: 1\n")
    (tmp_path / "inside").mkdir()
    return project


def test_a_mirror_links_to_each_neighbour(project: Path, tmp_path: Path) -> None:
    mirror = mirror_folder(project / "conf", up=0, inside=tmp_path / "inside")
    assert mirror == tmp_path / "inside"
    assert tree(mirror) == {name: str(project / "conf" / name) for name in ("a.yaml", "b.yaml")}


def test_a_mirror_goes_up_as_far_as_asked(project: Path, tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    mirror = mirror_folder(project / "conf", up=1, inside=inside)
    assert mirror == inside / "conf"
    assert tree(inside) == {
        "conf": None,
        "conf/a.yaml": str(project / "conf" / "a.yaml"),
        "conf/b.yaml": str(project / "conf" / "b.yaml"),
        "data.txt": str(project / "data.txt"),
    }
    assert mirror.stat().st_mode & 0o777 == 0o700
    (tmp_path / "second").mkdir()
    assert mirror_folder(project / "conf", up=2, inside=tmp_path / "second") == tmp_path / "second" / "project" / "conf"
    assert (tmp_path / "second" / "project" / "data.txt").readlink() == project / "data.txt"
    assert (tmp_path / "second" / "inside").readlink() == inside


def test_nothing_is_above_the_root(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="leads above the root folder"):
        mirror_folder(Path("/"), up=1, inside=tmp_path)
    with pytest.raises(LaunchError, match="leads above the root folder"):
        mirror_folder(tmp_path, up=len(tmp_path.parents) + 1, inside=tmp_path)


@pytest.mark.parametrize(("most", "is_refused"), [(3, False), (2, True)])
def test_links_of_all_folders_are_counted(
    project: Path, tmp_path: Path, most: int, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_copies, "_MAX_LINKS", most)
    if is_refused:
        with pytest.raises(LaunchError, match=f"more than {most} files are beside"):
            mirror_folder(project / "conf", up=1, inside=tmp_path / "inside")
    else:
        assert mirror_folder(project / "conf", up=1, inside=tmp_path / "inside").exists()


@pytest.mark.parametrize(
    ("values", "up"),
    [
        ("../x", 1),
        ("a/../x", 0),
        ("a/../../x", 1),
        ("../../x", 2),
        ("/../x", 0),
        ("..", 1),
        ("..x/y", 0),
        (3, 0),
        (None, 0),
        ({}, 0),
        ([], 0),
        (["../x", {"y": "../../z"}], 2),
        ({"a": ["x", "../y"]}, 1),
        ("../" + "x" * 4093, 1),
        ("../" + "x" * 4094, 0),
    ],
)
def test_parents_that_paths_go_up(values: object, up: int) -> None:
    assert folders_up(values) == up


def patch(path: Path, value: float, **place: object) -> FilePatch:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return FilePatch(path=str(path), digest=digest, values=((("x",), value),), **place)


def test_files_of_one_folder_share_a_mirror(project: Path, tmp_path: Path) -> None:
    patches = [
        patch(project / "conf" / name, value, argument=index)
        for index, (name, value) in enumerate((("a.yaml", 2), ("b.yaml", 3)))
    ]
    (project / "data.txt").rename(project / "data.yaml")
    other = patch(project / "data.yaml", 4, variable="DATA")
    args = [f"--config={project}/conf/a.yaml", f"{project}/conf/b.yaml", "rest"]
    made, answer = copied(
        [*patches, other], args, {"DATA": str(project / "data.yaml"), "MORE": "x"}, folder=tmp_path / "inside"
    )
    first, second, third = made
    assert first.parent == second.parent != third.parent
    assert [path.read_text() for path in made] == ["x: 2\n", "x: 3\n", "x: 4\n"]
    assert [path.stat().st_mode & 0o777 for path in made] == [0o600] * 3
    assert answer == {"args": [f"--config={first}", str(second), "rest"], "env": {"DATA": str(third)}}
    assert (project / "conf" / "a.yaml").read_text() == "x: 1\n"


@pytest.mark.parametrize(("argument", "is_named"), [(0, True), (1, False), (2, False)])
def test_an_argument_must_still_name_its_file(project: Path, tmp_path: Path, argument: int, is_named: bool) -> None:
    file = project / "conf" / "a.yaml"
    wanted, args = [patch(file, 2, argument=argument)], [str(file), f"{file}x"]
    if is_named:
        assert copied(wanted, args, {}, folder=tmp_path / "inside")[0][0].read_text() == "x: 2\n"
    else:
        with pytest.raises(LaunchError, match="the arguments no longer name"):
            copied(wanted, args, {}, folder=tmp_path / "inside")


def answer_of(
    monkeypatch: pytest.MonkeyPatch, contract: Contract, folder: str, args: list[str], **environment: str
) -> dict[str, object]:
    """Return what the child process answers, run in this process."""
    answers: list[str] = []
    monkeypatch.setenv(CONTRACT_VARIABLE, encode_contract(contract))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.argv", ["config_copies", folder])
    monkeypatch.setattr("sys.stdin", SimpleNamespace(read=lambda: json.dumps(args)))

    def answer(agree: object, alone: object) -> None:
        try:
            answers.append(agree(lambda: None))
        except (ConnectionError, RuntimeError) as error:
            answers.append(alone(str(error)))

    monkeypatch.setattr(config_copies, "answer_as_child", answer)
    main()
    return json.loads(answers[0])


def test_a_child_answers_with_its_copies(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, folder = project / "conf" / "a.yaml", tmp_path / "made"
    contract = Contract(store="s", files=(patch(file, 2, argument=0),))
    answer = answer_of(monkeypatch, contract, str(folder), [str(file)])
    (copy,) = answer["args"]
    assert answer == {"args": [copy], "env": {}, "refused": ""}
    assert Path(copy).read_text() == "x: 2\n"
    assert (folder / MADE).read_bytes() == os.fsencode(copy) + b"\0"
    assert folder.stat().st_mode & 0o777 == 0o700
    Path(copy).write_text("of the program")
    assert answer_of(monkeypatch, contract, str(folder), [str(file)]) == answer  # a second child makes nothing
    assert Path(copy).read_text() == "of the program"


def test_an_incomplete_folder_is_made_again(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, folder = project / "conf" / "a.yaml", tmp_path / "made"
    folder.mkdir()
    (folder / "left").write_text("")
    answer = answer_of(monkeypatch, Contract(store="s", files=(patch(file, 2, argument=0),)), str(folder), [str(file)])
    assert answer["refused"] == ""
    assert not (folder / "left").exists()


def test_a_child_that_cannot_copy_says_why(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, folder = project / "conf" / "a.yaml", tmp_path / "made"
    contract = Contract(store="s", files=(patch(file, 2, argument=0),))
    file.write_text("x: 5\n")
    answer = answer_of(monkeypatch, contract, str(folder), [str(file)])
    assert answer == {"refused": f"{file} has changed since the launch was made"}
    assert not folder.exists()
    assert answer_of(monkeypatch, contract, "", [str(file)]) == {"refused": "no folder for temporary files can be made"}


@pytest.mark.parametrize("agrees", [True, False])
def test_copies_need_the_agreement_of_all_ranks(
    project: Path, tmp_path: Path, agrees: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, folder = project / "conf" / "a.yaml", tmp_path / "made"
    asked: list[tuple[object, ...]] = []

    def vote(store: object, job: object, question: tuple[str, str], **more: object) -> bool:
        asked.append((store, question))
        return agrees

    monkeypatch.setattr(config_copies, "connected", lambda job, within_s: ("store of rank", job.rank, within_s))
    monkeypatch.setattr(config_copies, "vote_unanimously", vote)
    contract = Contract(store="s", files=(patch(file, 2, argument=0),))
    answer = answer_of(monkeypatch, contract, str(folder), [str(file)], WORLD_SIZE="2", RANK="1")
    assert answer["refused"] == ("" if agrees else "another rank could not change them, or did not join in time")
    assert folder.exists() is agrees
    assert asked == [(("store of rank", 1, 10.0), ("files", "can"))]
    file.write_text("x: 5\n")
    answer_of(monkeypatch, contract, str(tmp_path / "other"), [str(file)], WORLD_SIZE="2", RANK="1")
    assert asked[1][1] == ("files", "")


def test_ranks_without_a_store_run_as_typed(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, folder = project / "conf" / "a.yaml", tmp_path / "made"
    contract = Contract(store="s", files=(patch(file, 2, argument=0),))
    answer = answer_of(monkeypatch, contract, str(folder), [str(file)], WORLD_SIZE="2", RANK="1")
    assert answer["refused"] == "the ranks cannot agree: torchrun hosts no TCPStore for this job"
    assert not folder.exists()

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch import Launch, patches_of, read_config, write_config
from torchx_cubicml.launch.config_text import parse_document
from torchx_cubicml.records.contract import FilePatch
from torchx_cubicml.space import Binding, BindingKind, Parameter, SearchSpace, WorkloadFact
from torchx_cubicml.space.expression import parse_expression
from torchx_cubicml.space.toml import parse_space
from torchx_cubicml.user_files import MAX_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    from torchx_cubicml.records.values import Scalar, Value

CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 2e8},
    "precision": "auto",
    "layers": ["FULL_SHARD", "NO_SHARD"],
}
FILES = {
    "c.json": json.dumps(CONFIG),
    "c.yaml": "train_micro_batch_size_per_gpu: 4\nzero_optimization: {stage: 2, overlap_comm: yes, "
    "reduce_bucket_size: 2.0e+8}\nprecision: auto\nlayers:\n- FULL_SHARD\n- NO_SHARD\n",
    "c.toml": 'train_micro_batch_size_per_gpu = 4\nprecision = "auto"\nlayers = ["FULL_SHARD", "NO_SHARD"]\n'
    "[zero_optimization]\nstage = 2\noverlap_comm = true\nreduce_bucket_size = 2e8\n",
}
SPACE = """
[parameters.stage]
choices = [1, 2, 3]
file = "{place}"
key = "zero_optimization.stage"
[parameters.overlap]
choices = [false, true]
file = "{place}"
key = "zero_optimization.overlap_comm"
[parameters.micro_batch_size]
choices = [1, 2, 4, 8]
file = "{place}"
key = "train_micro_batch_size_per_gpu"
[parameters.bucket]
choices = [1e8, 2e8]
file = "{place}"
key = "zero_optimization.reduce_bucket_size"
[parameters.sharding]
choices = ["FULL_SHARD", "NO_SHARD"]
per_layer = 2
file = "{place}"
key = "layers"
[parameters.added]
choices = ["a b", "$HOME \\"'é\\n"]
default = "a b"
file = "{place}"
key = "of.ours.text"
"""
OWN = {
    "stage": 2,
    "overlap": True,
    "micro_batch_size": 4,
    "bucket": 2e8,
    "sharding": ("FULL_SHARD", "NO_SHARD"),
    "added": "a b",
}
OTHER = {
    "stage": 3,
    "overlap": False,
    "micro_batch_size": 1,
    "bucket": 1e8,
    "sharding": ("NO_SHARD", "NO_SHARD"),
    "added": "$HOME \"'é\n",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def space(place: str) -> SearchSpace:
    return parse_space(SPACE.replace("{place}", place), where="x.toml")


def launch(*args: str, **env: str) -> Launch:
    return Launch(program="train.py", script_args=args, env=env, world_size=2)


PLACES = {
    "flag and value": ("--config", lambda name: launch("--a", "--config", name, "b")),
    "joined": ("--config", lambda name: launch(f"--config={name}")),
    "key": ("run.config=", lambda name: launch("x", f"run.config={name}")),
    "variable": ("$CONFIG", lambda name: launch("x", CONFIG=name)),
    "position": ("c.*", lambda name: launch("train", name, "--lr", "1")),
    "path in a flag": ("c.*", lambda name: launch(f"--anything={name}")),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(("place", "make"), PLACES.values(), ids=PLACES)
def test_values_are_read_and_written(folder: Path, name: str, place: str, make) -> None:
    typed, read = make(name), space(place)
    assert read_config(typed, read)[1] == OWN
    assert write_config(typed, read, OWN) == typed
    written = write_config(typed, read, OTHER)
    assert read_config(written, read)[1] == OTHER
    assert replace(written, files={}) == typed
    (patch,) = patches_of(written)
    assert patch.path == name
    assert dict(patch.values)["zero_optimization", "stage"] == 3
    assert (patch.argument is None) == (place == "$CONFIG")
    assert {path.name: path.read_text() for path in folder.iterdir()} == FILES


@settings(max_examples=40)
@given(
    config=st.fixed_dictionaries(
        {name: st.sampled_from([OWN[name], OTHER[name]]) for name in OWN},
    )
)
def test_written_values_are_read_back(tmp_path_factory: pytest.TempPathFactory, config: dict[str, object]) -> None:
    folder = tmp_path_factory.mktemp("files")
    for name, text in FILES.items():
        (folder / name).write_text(text)
        typed, read = launch("--config", str(folder / name)), space("--config")
        written = write_config(typed, read, config)
        assert read_config(written, read)[1] == config
        assert write_config(written, read, config) == written


NOT_READ = {
    "not named": (launch("--lr", "1"), "--config must name one config file, but it names no file"),
    "not here": (launch("--config", "gone.json"), "gone.json cannot be read here: No such file or directory"),
    "named twice": (launch("--config", "c.json", "--config", "c.yaml"), "names more than one file"),
    "no config file": (launch("--config", "c.ini"), "unsupported format; choose from .json, .yaml, .yml, .toml"),
    "damaged": (launch("--config", "damaged.json"), "damaged.json cannot be read"),
    "not text": (launch("--config", "binary.json"), "binary.json cannot be read here: it is not UTF-8 text"),
    "a folder": (launch("--config", "folder.json"), "folder.json cannot be read here: it is no regular file"),
    "left open": (launch("--config", "auto.json"), "train_micro_batch_size_per_gpu in auto.json is 'auto'"),
    "of another kind": (launch("--config", "kind.json"), "zero_optimization.stage in kind.json of parameter stage"),
    "missing": (
        launch("--config", "missing.json"),
        "zero_optimization.stage in missing.json of parameter stage is missing",
    ),
}


@pytest.mark.parametrize(("typed", "message"), NOT_READ.values(), ids=NOT_READ)
def test_unreadable_files_are_reported(folder: Path, typed: Launch, message: str) -> None:
    (folder / "c.ini").write_text("a = 1")
    (folder / "damaged.json").write_text("{")
    (folder / "binary.json").write_bytes(b"\xff\xfe")
    (folder / "folder.json").mkdir()
    (folder / "auto.json").write_text(json.dumps({**CONFIG, "train_micro_batch_size_per_gpu": "auto"}))
    (folder / "kind.json").write_text(json.dumps({**CONFIG, "zero_optimization": {"stage": {"a": 1}}}))
    (folder / "missing.json").write_text("{}")
    with pytest.raises(LaunchError) as caught:
        read_config(typed, space("--config"))
    assert message in str(caught.value)


def test_a_value_shared_by_several_keys_is_not_written(folder: Path) -> None:
    (folder / "shared.yaml").write_text("base: &base {stage: 2}\nzero_optimization: *base\n")
    read = parse_space(
        '[parameters.stage]\nchoices = [1, 2]\nfile = "--config"\nkey = "zero_optimization.stage"', where="x.toml"
    )
    typed = launch("--config", "shared.yaml")
    assert read_config(typed, read)[1] == {"stage": 2}
    with pytest.raises(LaunchError, match="zero_optimization is an anchor or an alias"):
        write_config(typed, read, {"stage": 1})


def test_a_fact_of_the_workload_can_stand_in_a_file(folder: Path) -> None:
    read = parse_space(
        '[workload]\nbatch = { file = "--config", key = "train_micro_batch_size_per_gpu" }\n'
        '[parameters.stage]\nchoices = [1, 2]\nfile = "--config"\nkey = "zero_optimization.stage"',
        where="x.toml",
    )
    assert read_config(launch("--config", "c.toml"), read)[0]["batch"] == 4


def test_the_copy_is_of_the_file_that_was_read(folder: Path) -> None:
    written = write_config(launch("--config", "c.yaml"), space("--config"), OTHER)
    (patch,) = patches_of(written)
    (folder / "c.yaml").write_text(f"{FILES['c.yaml']}# a remark\n")
    assert patches_of(written)[0].digest != patch.digest
    assert parse_document((folder / "c.yaml").read_text(), path="c.yaml")["zero_optimization"]["stage"] == 2


IN_FILE = Binding(kind=BindingKind.FILE, name="k in --c", file="--c", key=("k",))


def of_file(*choices: Scalar, count: int | None = None, default: Value | None = None, **more: object) -> SearchSpace:
    """Return a space with one parameter ``p`` at the key ``k`` of a file, if ``more`` says no other place."""
    binding = replace(IN_FILE, **more)
    return SearchSpace(
        parameters=(Parameter(name="p", choices=choices, binding=binding, per_layer=count, default=default),)
    )


@pytest.fixture
def write(folder: Path):
    """Return a function that writes a JSON file, and returns a launch that names it."""

    def written(content: object) -> Launch:
        (folder / "w.json").write_text(json.dumps(content))
        return launch("--c", "w.json")

    return written


WORDS = (("FULL", "3"), ("NONE", "false"), ("SOME", "half"), ("OTHER", ""))
NAMES = ("FULL", "NONE", "SOME", "OTHER")


@pytest.mark.parametrize(
    ("choices", "more", "stated", "value"),
    [
        ((1, 2), {}, 2, 2),
        ((1, 2), {}, 2.0, 2),
        ((1, 2), {}, 5, 5),
        ((1.5, 2), {}, 1.5, 1.5),
        ((1, 2), {}, "2", 2),
        ((False, True), {}, True, True),
        (("a", "b"), {"count": 3}, ["a", "b", "a"], ("a", "b", "a")),
        (("a", "b"), {"count": 3}, ["b"], ("b",) * 3),
        (("a", "b"), {"count": 3}, "b", ("b",) * 3),
        ((1, 2), {"default": 1}, None, 1),
        (NAMES, {"file_words": WORDS}, 3, "FULL"),
        (NAMES, {"file_words": WORDS}, "FULL", "FULL"),
        (NAMES, {"file_words": WORDS}, False, "NONE"),
        (NAMES, {"file_words": WORDS}, "half", "SOME"),
        (NAMES, {"file_words": WORDS}, "OTHER", "OTHER"),
        (NAMES, {"file_words": WORDS, "count": 2}, [3, "half"], ("FULL", "SOME")),
    ],
)
def test_a_value_of_a_file_is_read_as_its_choice(write, choices, more, stated: object, value: Value) -> None:
    declared = of_file(*choices, **more)
    read = read_config(write({} if stated is None else {"k": stated}), declared)[1]["p"]
    assert (type(read), read) == (type(value), value)


@pytest.mark.parametrize(
    ("choices", "more", "stated", "reason"),
    [
        ((1, 2), {}, True, r"k in w.json of parameter p is True; choose from 1, 2$"),
        ((False, True), {}, 1, "is 1; choose from false, true$"),
        ((False, True), {}, "no", "is 'no'; choose from false, true$"),
        (("a", "b"), {}, 1.5, "is 1.5; choose from a, b$"),
        ((1, 2), {}, "x", "^k in w.json is 'x'"),
        ((1, 2), {}, {"a": 1}, "is {'a': 1}; it must be one value or a list of values$"),
        ((1, 2), {}, [1], "is a list; it must be one value$"),
        ((1, 2), {}, None, "k in w.json of parameter p is missing and has no default$"),
        ((1, 2), {"count": 3}, [1, 2], "has 2 entries; it must have 1 or 3$"),
        ((1, 2), {"count": 3}, [], "has 0 entries; it must have 1 or 3$"),
        (NAMES, {"file_words": WORDS}, 2, "is 2; choose from FULL, NONE, SOME, OTHER$"),
        (NAMES, {"file_words": WORDS}, 0, "is 0; choose from FULL, NONE, SOME, OTHER$"),
    ],
)
def test_a_value_of_another_kind_is_refused(write, choices, more, stated: object, reason: str) -> None:
    with pytest.raises(LaunchError, match=reason):
        read_config(write({} if stated is None else {"k": stated}), of_file(*choices, **more))


@pytest.mark.parametrize(
    ("count", "value", "in_file"),
    [
        (None, "FULL", 3),
        (None, "NONE", False),
        (None, "SOME", "half"),
        (None, "OTHER", "OTHER"),
        (2, ("FULL", "SOME"), (3, "half")),
    ],
)
def test_a_value_is_written_in_the_words_of_the_file(write, count, value: Value, in_file: Value) -> None:
    declared = of_file(*NAMES, file_words=WORDS, count=count)
    typed = write({"k": "half", "other": 1})
    written = write_config(replace(typed, files={"--d": {("x",): 1}}), replace(declared), {"p": value})
    assert written.files["--d"] == {("x",): 1}
    if value != "SOME":
        assert written.files["--c"] == {("k",): in_file}
        assert type(written.files["--c"]["k",]) is type(in_file)
    assert read_config(written, declared)[1] == {"p": value}


@pytest.mark.parametrize(
    ("content", "args", "value"),
    [
        ({"k": 7}, ["--c", "w.json"], 7),
        ({}, ["--c", "w.json"], None),
        ({"k": 7}, [], None),
        ({"k": 7}, ["--c", "w.ini"], None),
        ({"k": 7}, ["--c"], None),
    ],
    ids=["stated", "no key", "no file", "no document", "no value"],
)
def test_an_optional_fact_of_a_file(write, content: object, args: list[str], value: int | None) -> None:
    write(content)
    fact = WorkloadFact(name="f", binding=IN_FILE, optional=True)
    assert read_config(launch(*args), SearchSpace(parameters=(), workload=(fact,)))[0].get("f") == value
    with_default = SearchSpace(parameters=(), workload=(replace(fact, value=3),))
    named = args == ["--c", "w.json"]
    assert read_config(launch(*args), with_default)[0].get("f") == ((value or 3) if named else None)


@pytest.mark.parametrize(
    ("locator", "args", "argument"),
    [
        ("--c", ["a", "--c", "w.json", "b"], 2),
        ("--c", ["--c=w.json"], 0),
        ("-c", ["a", "-c", "w.json"], 2),
        ("x.c=", ["a", "x.c=w.json"], 1),
        ("*.json", ["a.txt", "--any=thing=w.json"], 1),
        ("$C", ["a"], None),
    ],
)
def test_a_patch_says_where_the_file_is_named(write, locator: str, args: list[str], argument: int | None) -> None:
    write({"k": 1, "l": 2})
    typed = launch(*args, C="w.json") if locator == "$C" else launch(*args)
    (patch,) = patches_of(write_config(typed, of_file(1, 2, file=locator), {"p": 2}))
    digest = hashlib.sha256(b'{"k": 1, "l": 2}').hexdigest()
    variable = "C" if locator == "$C" else ""
    assert patch == FilePatch(path="w.json", argument=argument, variable=variable, digest=digest, values=((("k",), 2),))


def test_a_path_is_matched_as_it_is_typed(folder: Path) -> None:
    (folder / "run[1].json").write_text('{"k": 2}')
    assert read_config(launch("run[1].json"), of_file(1, 2, file="run[1].json"))[1] == {"p": 2}


@pytest.mark.parametrize(
    ("typed", "locator", "reason"),
    [
        (launch("x"), "$C", r"^\$C must name one config file, but it names no file in the command$"),
        (launch(C=""), "$C", r"^\$C must name one config file, but it names no file in the command$"),
        (
            launch("--c", "gone.json"),
            "--c",
            "^gone.json cannot be read here: No such file or directory$",
        ),
        (launch("--c", "a\0.json"), "--c", "cannot be read here: embedded null byte$"),
    ],
    ids=["unset", "empty", "gone", "no path"],
)
def test_the_reason_why_a_file_is_not_read(folder: Path, typed: Launch, locator: str, reason: str) -> None:
    with pytest.raises(LaunchError, match=reason):
        read_config(typed, of_file(1, 2, file=locator))


def test_a_file_may_have_as_many_bytes_as_the_limit(folder: Path) -> None:
    (folder / "w.json").write_text('{"k": 1}'.ljust(MAX_BYTES))
    assert read_config(launch("--c", "w.json"), of_file(1, 2))[1] == {"p": 1}
    (folder / "w.json").write_text('{"k": 1}'.ljust(MAX_BYTES + 1))
    with pytest.raises(LaunchError, match=rf"^w\.json cannot be read here: it has more than {MAX_BYTES} bytes$"):
        read_config(launch("--c", "w.json"), of_file(1, 2))


BESIDE = {"kind": BindingKind.FLAG, "name": "--p"}


@pytest.mark.parametrize("content", [{"k": "auto"}, {}], ids=["auto", "unstated"])
def test_a_flag_is_changed_where_the_file_agrees(write, content: object) -> None:
    declared = of_file(1, 2, **BESIDE, file_must_be_auto=True)
    typed = replace(write(content), script_args=("--p", "1", "--c", "w.json"))
    assert write_config(typed, declared, {"p": 2}).script_args == ("--p", "2", "--c", "w.json")


def test_a_flag_is_not_changed_against_the_file(write) -> None:
    declared = of_file(1, 2, **BESIDE, file_must_be_auto=True)
    typed = replace(write({"k": 1}), script_args=("--p", "1", "--c", "w.json"))
    assert read_config(typed, declared)[1] == {"p": 1}
    with pytest.raises(
        LaunchError, match=r"^flag --p of parameter p cannot be changed: .* k in w.json, which is 1; write 'auto'"
    ):
        write_config(typed, declared, {"p": 2})
    free = replace(typed, script_args=("--p", "1"))
    assert write_config(free, declared, {"p": 2}).script_args == ("--p", "2")
    apart = of_file(1, 2, **BESIDE)
    assert write_config(typed, apart, {"p": 2}).script_args == ("--p", "2", "--c", "w.json")


@pytest.mark.parametrize("wins", [False, True], ids=["the file counts", "the flag wins"])
def test_a_flag_that_is_not_typed_is_left_to_the_file(write, wins: bool) -> None:
    declared = of_file(1, 2, 3, **BESIDE, default=1, flag_overrides_file=wins)
    typed = write({"k": 2})
    assert read_config(typed, declared)[1] == {"p": 2}
    assert read_config(replace(typed, script_args=("--p", "3", "--c", "w.json")), declared)[1] == {"p": 3}
    assert read_config(launch(), declared)[1] == {"p": 1}
    written = write_config(typed, declared, {"p": 3})
    args = ("--c", "w.json", "--p", "3") if wins else ("--c", "w.json")
    assert (written.script_args, dict(written.files)) == (args, {} if wins else {"--c": {("k",): 3}})


def test_a_default_of_the_flag_is_written_beside_the_file(write) -> None:
    declared = of_file(1, 2, **BESIDE, default=1, flag_overrides_file=True)
    (parameter,) = declared.parameters
    conditional = replace(
        declared, parameters=(replace(parameter, when=parse_expression("world_size > 1", where="w")),)
    )
    typed = write({"k": 2})
    assert write_config(typed, conditional, {"p": 1}).script_args == ("--c", "w.json", "--p", "1")


@pytest.mark.parametrize(("default", "value"), [(1, 3), (None, None)])
def test_a_file_without_the_key_has_a_default_of_its_own(write, default: int | None, value: int | None) -> None:
    declared = of_file(1, 2, 3, **BESIDE, default=default, file_default=3)
    typed = write({})
    if value is None:
        with pytest.raises(LaunchError, match="is missing and has no default"):
            read_config(typed, declared)
    else:
        assert read_config(typed, declared)[1] == {"p": value}

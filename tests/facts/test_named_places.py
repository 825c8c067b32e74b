"""What names and values of arguments say about outputs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from torchx_cubicml.facts import named_places as tables
from torchx_cubicml.facts.named_places import NamedPlace, is_remote, named_values, place_of, places_in
from torchx_cubicml.space.trainers import FLAG_ALIASES, TRAINERS

ROWS = [
    row.split(maxsplit=1)
    for row in Path(__file__).with_name("named_places.txt").read_text().splitlines()
    if not row.startswith("#")
]


def test_the_table_is_large() -> None:
    assert len({named for _, named in ROWS}) == len(ROWS) > 150
    assert {verdict for verdict, _ in ROWS} == {place.name for place in NamedPlace}


@pytest.mark.parametrize(("verdict", "typed"), ROWS, ids=[typed for _, typed in ROWS])
def test_what_an_argument_names(verdict: str, typed: str) -> None:
    ((name, value),) = named_values(typed.split(maxsplit=1))
    assert place_of(name, value).name == verdict


@pytest.mark.parametrize(
    ("names", "verdict"),
    [
        ("--out_dir --log_file --default_root_dir --snapshot_path --out output= OUT_DIR CKPT_PATH", NamedPlace.OUTPUT),
        ("--run_name --wandb_project --job_id --experiment --tracking_uri", NamedPlace.LABEL),
        ("--resume --load_dir RESUME_FROM --auto_resume", NamedPlace.RESUME),
        ("--cache_dir TMPDIR", NamedPlace.CACHE),
        ("--data_dir --config_file --init_from --model_path", NamedPlace.INPUT),
        ("--save --log --tensorboard --checkpoint --use_ckpt --save_every --max_out --report_to --lr", NamedPlace.NONE),
    ],
    ids=lambda case: getattr(case, "name", None),
)
def test_a_name_alone_tells_of_each_text(names: str, verdict: NamedPlace) -> None:
    assert {name: place_of(name) for name in names.split()} == dict.fromkeys(names.split(), verdict)


@pytest.mark.parametrize(
    "spelling", ["--log_dir", "--log-dir", "--logDir", "--logdir", "-log_dir", "log_dir=", "LOG_DIR", "a.b.log_dir"]
)
def test_spellings_of_a_name_are_one(spelling: str) -> None:
    assert place_of(spelling) is place_of(spelling, "x") is NamedPlace.OUTPUT


@pytest.mark.parametrize("value", ["none", "None", "null", "false", "No", "off", "0", "12", "-1", "1e-3", "true"])
def test_a_value_that_is_no_text_names_no_place(value: str) -> None:
    assert place_of("--log_dir", value) is NamedPlace.NONE


@pytest.mark.parametrize("value", ["", "True", "yes", "1", "latest", "a.pt"])
def test_a_switch_may_say_that_a_training_goes_on(value: str) -> None:
    assert place_of("--resume", value) is NamedPlace.RESUME


def test_no_tuned_flag_of_a_trainer_is_a_place() -> None:
    flags = [flag.flag for trainer in TRAINERS.values() for flag in trainer.flags.values() if flag.flag]
    for name in (*flags, *FLAG_ALIASES):
        assert {place_of(name), place_of(name, "full"), place_of(name, "")} == {NamedPlace.NONE}, name


def test_the_outputs_of_trainers_are_outputs() -> None:
    for trainer in TRAINERS.values():
        assert all(place_of(name) is NamedPlace.OUTPUT for name in trainer.outputs)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("a.py --x 1 --y=2 --z", [("--x", "1"), ("--y", "2"), ("--z", "")]),
        ("--x --y a b", [("--x", ""), ("--y", "a")]),
        ("--x -3 --y - --z -- --w v", [("--x", "-3"), ("--y", "-"), ("--z", ""), ("--w", "v")]),
        ("--x k=v +a.b=c= --y=d=e s3://b/k=1 p/q=2 db/e=f", [("--x", ""), ("k", "v"), ("+a.b", "c="), ("--y", "d=e")]),
        ("--x s3://b/k=1 --y p/q=2", [("--x", "s3://b/k=1"), ("--y", "p/q=2")]),
        ("", []),
    ],
)
def test_arguments_are_read_by_name(words: str, found: list[tuple[str, str]]) -> None:
    assert [*named_values(words.split())] == found


def test_the_places_of_a_command_are_found() -> None:
    words = ["train.py", "--lr", "0.1", "--save", "ckpts", "--load", "old", "run_name=x", "--save", "--log_level", "x"]
    assert places_in(words, NamedPlace.OUTPUT, NamedPlace.RESUME) == [
        ("--save", "ckpts"),
        ("--load", "old"),
        ("--save", ""),
    ]
    assert places_in(words, NamedPlace.LABEL) == [("run_name", "x")]


def test_a_store_is_remote_and_a_service_is_not() -> None:
    assert all(map(is_remote, ["s3://b", "GS://b/c", "abfs://c@a/x", "hdfs://h/x"]))
    assert not any(map(is_remote, ["", "runs/1", "/a://b", "file:///a", "https://h", "GRPC://h", "x=s3://b"]))


def test_a_long_value_is_read_at_once() -> None:
    for text in ("a" * 1_000_000, "." * 1_000_000, "1" * 1_000_000, "a.b" * 300_000):
        assert place_of("--x", text) is NamedPlace.NONE


def test_the_docs_print_the_real_tables() -> None:
    page = (Path(__file__).parents[2] / "docs" / "launching.md").read_text()
    section = page.split("\n## Outputs")[1].split("\n## ")[0]
    rows = [line.split("|")[2] for line in section.splitlines() if line.startswith("| ")][1:]
    assert [set(re.findall("`([^`]+)`", row)) for row in rows] == [
        *(tables._CONTINUES, tables._CACHES, tables._FIXED, tables._WRITES, tables._READS, tables._SPLITS),
        *(tables._STATES | tables._FILED, tables._RUNS, tables._PATHS, tables._NAMES),
    ]
    assert all(f"`{name.replace('checkpointer_', 'checkpointer.')}`" in section for name in tables._KNOWN)

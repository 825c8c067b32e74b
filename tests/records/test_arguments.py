from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx_cubicml.records.arguments import digested_arguments, restored_arguments

WORDS = st.text(max_size=8) | st.sampled_from(
    ["--lr", "-b8", "a.yaml", "x=y", "[a,b]", "1e-3", "true", "--token", "-x"]
)


@pytest.mark.parametrize(
    "word",
    [
        "--lr",
        "-b",
        "-b8",
        "--no-x.y_z",
        "0",
        "-1",
        "1e-05",
        ".5",
        "1_0"[:1],
        "true",
        "False",
        "none",
        "",
        "1,2,3",
        "[1,2]",
    ],
)
def test_flags_and_numbers_are_recorded(word: str) -> None:
    assert digested_arguments([word]) == (word,)


DIGEST = "~[0-9a-f]{8}"


@pytest.mark.parametrize(
    ("word", "recorded"),
    [
        ("/home/alice/data", DIGEST),
        ("alice", DIGEST),
        ("-phunter2", DIGEST),
        ("1234567890123456", DIGEST),
        ("https://host/x?a=1", DIGEST),
        ("a b=c", DIGEST),
        ("--" + "x" * 66, DIGEST),
        ("/a/train.YAML", DIGEST + r"\.yaml"),
        ("report.pdf", DIGEST),
        ("--data=/home/alice", "--data=" + DIGEST),
        ("+trainer.name=alice", r"\+trainer\.name=" + DIGEST),
        ("--layers=[1,alice]", rf"--layers=\[1,{DIGEST}]"),
    ],
)
def test_a_text_is_recorded_as_a_digest(word: str, recorded: str) -> None:
    (found,) = digested_arguments([word])
    assert re.fullmatch(recorded, found)


@pytest.mark.parametrize("word", ["FULL_SHARD", "--x=FULL_SHARD", "x.y=FULL_SHARD", "[1,FULL_SHARD]", "-batch"])
def test_a_known_text_is_recognised(word: str) -> None:
    found = digested_arguments([word])
    assert found != (word,)
    assert restored_arguments(found, ["NO_SHARD", "FULL_SHARD", "-batch"]) == (word,)
    assert restored_arguments(found, ["NO_SHARD"]) == found


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--api-key", "hunter2", "--lr", "0.1"], ("--api-key", "***", "--lr", "0.1")),
        (["--api-key=hunter2", "--lr"], ("--api-key=***", "--lr")),
        (["--password", "1234"], ("--password", "***")),
        (["auth_token=1234", "4"], ("auth_token=***", "4")),
        (["--max_tokens", "4096", "--batch", "8"], ("--max_tokens", "4096", "--batch", "8")),
    ],
)
def test_a_secret_leaves_no_digest(arguments: list[str], expected: tuple[str, ...]) -> None:
    assert digested_arguments(arguments) == expected


@given(st.lists(WORDS, max_size=4))
def test_digests_of_digests_are_the_same(arguments: list[str]) -> None:
    once = digested_arguments(arguments)
    assert len(once) == len(arguments)
    assert digested_arguments(once) == once
    assert restored_arguments(once, []) == once


@pytest.mark.parametrize("key", ["", "5eed"])
@pytest.mark.parametrize("name", ["", "--names=", "+x.y="])
@pytest.mark.parametrize(
    "value", [",".join(f"layer{index}" for index in range(420)), f"[{','.join(map(str, range(2000)))}]"]
)
def test_a_list_too_long_for_a_record_becomes_one_digest(name: str, value: str, key: str) -> None:
    (found,) = digested_arguments([f"{name}{value}"], key)
    assert re.fullmatch(re.escape(name) + ("~k" if key else "~") + "[0-9a-f]{8}", found)
    assert digested_arguments([found]) == (found,)
    assert digested_arguments([f"{name}{value[:-1]}"], key) != (found,)
    assert restored_arguments([found], [value], [key]) == (f"{name}{value}",)


def test_a_list_that_fits_keeps_its_entries() -> None:
    (found,) = digested_arguments([",".join(f"layer{index}" for index in range(400))])
    assert len(found.split(",")) == 400

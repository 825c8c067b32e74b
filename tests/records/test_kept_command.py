from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_cubicml.records.kept_command import command_notes, command_text, kept_command
from torchx_cubicml.records.redaction import mask, printable

PLAIN = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=8).filter(
    lambda text: mask(text) == text
)


def kept(*words: str, **variables: str) -> dict[str, object]:
    return dict(kept_command(words, variables=variables, hooks={}, files={}))


@settings(max_examples=40)
@given(st.lists(PLAIN, max_size=5), st.dictionaries(st.sampled_from(["DEPTH", "NCCL_ALGO"]), PLAIN))
def test_a_shell_reads_the_words_back(words: list[str], variables: dict[str, str]) -> None:
    text = command_text(kept_command(["t.py", *words], variables=variables, hooks={}, files={}))
    assert printable(text).replace("\n", "") == text.replace("\n", "")
    if "$'" in text:  # of control characters, which shlex does not read
        return
    assert shlex.split(text) == [*(f"{name}={value}" for name, value in variables.items()), "t.py", *words]


def test_variables_reach_the_program() -> None:
    program = "import os, sys; print(os.environ['DEPTH'], sys.argv[1:])"
    text = command_text(
        kept_command([sys.executable, "-c", program, "a b", "$X"], variables={"DEPTH": "1 2"}, hooks={}, files={})
    )
    done = subprocess.run(
        ["/bin/sh", "-c", text], capture_output=True, text=True, check=True, env={**os.environ, "X": "y"}
    )
    assert done.stdout == "1 2 ['a b', '$X']\n"


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_reads_control_characters_back() -> None:
    words = ["it's\x1b[2J", "a\\b\x07", "\u202eé", "\t'\r\n", "\udcff"]
    program = "import os, sys; sys.stdout.buffer.write(b'|'.join(map(os.fsencode, sys.argv[1:])))"
    text = command_text(kept_command([sys.executable, "-c", program, *words], variables={}, hooks={}, files={}))
    assert printable(text) == text
    done = subprocess.run(
        ["bash", "-c", text], capture_output=True, check=True, env={**os.environ, "LC_ALL": "C.UTF-8"}
    )
    assert done.stdout == b"|".join(map(os.fsencode, words))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("t.py", "--api-key", "hunter2", "--lr", "1"), "t.py --api-key '***' --lr 1"),
        (("t.py", "--api-key=hunter2"), "t.py '--api-key=***'"),
        (("t.py", "https://me:hunter2@host/x"), "t.py 'https://***@host/x'"),
        (("t.py", "--note", "password=hunter2 x"), "t.py --note 'password=***'"),
    ],
)
def test_secrets_are_masked(words: tuple[str, ...], text: str) -> None:
    command = kept_command(words, variables={"WANDB_API_KEY": "hunter2"}, hooks={}, files={})
    assert command_text(command) == f"WANDB_API_KEY='***' {text}"
    assert command_notes(command) == ["*** stands for a secret: give your own"]


def test_what_no_word_states_is_a_note() -> None:
    command = kept_command(["t.py"], variables={}, hooks={"fsdp": "FULL_SHARD"}, files={"ds.json zero.stage": 3})
    assert command_notes(command) == [
        "the job set fsdp = FULL_SHARD by a hook, which needs the space file",
        "the job read ds.json zero.stage = 3 from its copy of that config file: set it there",
    ]
    assert command_text({}) == ""
    assert command_notes({}) == []

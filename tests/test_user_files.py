"""Files that a launch looks at: none is waited for, and a pipe keeps what the job will read from it."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import tomllib
from configparser import RawConfigParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx_cubicml.errors import LaunchError, SpaceError
from torchx_cubicml.launch.config_text import parse_document
from torchx_cubicml.launch.torchx_config import read_ini
from torchx_cubicml.predictors.roofline.public_prior import PublicPrior
from torchx_cubicml.project import project_of
from torchx_cubicml.space.toml import load_space
from torchx_cubicml.user_files import MAX_BYTES, MAX_DEPTH, parse_toml, read_bytes, read_head, read_python, read_text

HANG_S = 120.0
SPACE = '[parameters.batch]\nchoices = [1, 2]\nfile = "{file}"\nkey = "batch"\n'
SCRIPT = "import argparse\nargparse.ArgumentParser(fromfile_prefix_chars='@').add_argument('--batch')\n"
TORCHRUN = ["--nproc_per_node", "2"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a working directory with a script and space files, and a home beside it."""
    work, home = tmp_path / "work", tmp_path / "home"
    for each in (work, home):
        each.mkdir()
    (work / "train.py").write_text(SCRIPT)
    (work / "s.toml").write_text(SPACE.format(file="--config"))
    (work / "variable.toml").write_text(SPACE.format(file="$CONFIG"))
    monkeypatch.chdir(work)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TORCHX_CUBICML_STORE", str(tmp_path / "store"))
    for name in ("TORCHXCONFIG", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return work


def dry_run(*words: str) -> str:
    """Return what a dry run of cubicrun prints; a hang is an error."""
    command = [sys.executable, "-m", "torchx_cubicml.cubicrun", "--cubicml-dryrun", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


WITH_SPACE = ["--cubicml-space", "s.toml", *TORCHRUN, "train.py"]
PIPES = {
    "bound config file": (
        "p.json",
        [*WITH_SPACE, "--config", "p.json"],
        "p.json cannot be read here: it is no regular",
    ),
    "bound by a variable": ("p.yaml", ["--cubicml-space", "variable.toml", *TORCHRUN, "train.py"], "p.yaml cannot be"),
    "config file": ("p.toml", [*TORCHRUN, "train.py", "--config", "p.toml"], "will be recorded"),
    "space file": ("p.toml", ["--cubicml-space", "p.toml", *TORCHRUN, "train.py"], "space file p.toml cannot be read"),
    "project": ("pyproject.toml", [*TORCHRUN, "train.py"], "will be recorded"),
    "checkout": (".git", [*TORCHRUN, "train.py"], "will be recorded"),
    "options": (".torchxconfig", [*TORCHRUN, "train.py"], ".torchxconfig cannot be read here: it is no regular file"),
    "script": ("p.py", [*TORCHRUN, "p.py"], "will be recorded"),
    "arguments": ("p.txt", [*TORCHRUN, "train.py", "@p.txt"], "will be recorded"),
    "accelerate": (
        "p.yaml",
        ["--", "accelerate", "launch", "--config_file", "p.yaml", "train.py"],
        "accelerate would run",
    ),
}


@pytest.mark.parametrize(("name", "words", "shown"), PIPES.values(), ids=PIPES)
def test_a_pipe_keeps_its_content_for_the_job(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: list[str], shown: str
) -> None:
    monkeypatch.setenv("CONFIG", "p.yaml")
    os.mkfifo(folder / name)
    # The writer waits for the first reader, and is lost if that leaves without reading.
    writer = subprocess.Popen(["sh", "-c", 'exec echo batch: 1 >"$1"', "sh", name])
    try:
        assert shown in dry_run(*words)
        assert writer.poll() is None
        assert (folder / name).read_text() == "batch: 1\n"
    finally:
        writer.kill()
        writer.wait()


@pytest.mark.parametrize("is_bound", [True, False])
def test_a_substituted_process_is_left_to_the_job(folder: Path, is_bound: bool) -> None:
    command = [sys.executable, "-m", "torchx_cubicml.cubicrun", "--cubicml-dryrun"]
    space = ["--cubicml-space", "s.toml"] if is_bound else []
    script = 'exec 9< <(echo "{}"); "$@" --config /dev/fd/9 >&2; cat <&9'
    words = ["bash", "-c", script, "bash", *command, *space, *TORCHRUN, "train.py"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=HANG_S, check=True)
    assert done.stdout == "{}\n"


@pytest.mark.parametrize("command", ["explain", "init"])
def test_what_explains_a_command_reads_no_pipe(folder: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("CONFIG", "p.yaml")
    for name in ("p.yaml", "p.json", "p.txt", "p.py"):
        os.mkfifo(folder / name)
    (folder / "train.py").write_text(f"import p\n{SCRIPT}")
    torchx = [sys.executable, "-m", "torchx.cli.main", "cubicml", command]
    words = [
        "dist.ddp",
        "-j",
        "1x1",
        "--env",
        "CONFIG=p.yaml",
        "--script",
        "train.py",
        "--",
        "--config",
        "p.json",
        "@p.txt",
    ]
    done = subprocess.run([*torchx, *words], capture_output=True, text=True, timeout=HANG_S, check=False)
    assert "Traceback" not in done.stderr


BEFORE = "\ufeff"


def test_a_byte_order_mark_is_read(folder: Path) -> None:
    for name, text in {"c.json": '{"a": 1}', "c.toml": "a = 1", "c.yaml": "a: 1"}.items():
        (folder / name).write_text(BEFORE + text)
        assert parse_document(read_text(name), path=name) == {"a": 1}
    (folder / "s.toml").write_text(BEFORE + SPACE.format(file="--config"))
    assert load_space("s.toml").digest
    (folder / ".torchxconfig").write_text(f"{BEFORE}[component:cubicml]\nMode = off\n")
    assert [*read_ini(".torchxconfig", RawConfigParser())["component:cubicml"]] == ["Mode"]
    (folder / "pyproject.toml").write_text(f'{BEFORE}[project]\nname = "gpt"\n')
    assert project_of("train.py", is_module=False) == ("gpt:.",)
    (folder / "train.py").write_text(f"{BEFORE}a = 1\n")
    text, tree = read_python("train.py")
    assert (text, tree is None) == ("a = 1\n", False)


def test_other_files_are_refused(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("pipe")
    refused = {"pipe": "it is no regular file", "link": "it is no regular file", "/dev/zero": "it is no regular file"}
    refused |= {".": "it is no regular file", "absent": "No such file or directory", "a\0b": "embedded null byte"}
    for path, why in refused.items():
        with pytest.raises(LaunchError) as caught:
            read_head(path, 1)
        assert str(caught.value) == f"{path} cannot be read here: {why}"
    assert read_python("absent") == read_python("pipe") == ("", None)


def test_a_file_that_another_program_keeps_for_itself_is_not_waited_for(folder: Path) -> None:
    with (folder / "train.py").open("r+") as file:
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)  # not SIGIO, which ends a process
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)  # whoever opens it waits until the lease ends
        with pytest.raises(LaunchError, match=r"train.py cannot be read here: Resource temporarily unavailable"):
            read_bytes("train.py")


def test_a_file_has_a_limit_of_size(folder: Path) -> None:
    (folder / "f").write_bytes(b"12345")
    assert (read_bytes("f", most=5), read_head("f", 2), read_head("f", 9)) == (b"12345", b"12", b"12345")
    with pytest.raises(LaunchError, match=r"^f cannot be read here: it has more than 4 bytes$"):
        read_bytes("f", most=4)
    with (folder / "huge.py").open("wb") as file:
        file.truncate(1 << 40)
    assert read_python("huge.py") == ("", None)
    with pytest.raises(SpaceError, match="it has more than 262144 bytes"):
        load_space("huge.py")
    with pytest.raises(LaunchError, match=f"it has more than {MAX_BYTES} bytes"):
        read_text("huge.py")


def test_a_file_that_is_no_text(folder: Path) -> None:
    (folder / "f").write_bytes(b"\xff\x00")
    with pytest.raises(LaunchError, match=r"^f cannot be read here: it is not UTF-8 text$"):
        read_text("f")
    assert read_text("f", errors="replace") == "\ufffd\0"
    assert read_python("f") == ("\ufffd\0", None)
    (folder / "pyproject.toml").write_bytes(b"\xff\x00")
    assert project_of("train.py", is_module=False) == ()


DEEP = ".".join(["a"] * 40_000)
DEEP_TEXTS = {
    "key": f"{DEEP} = 1",
    "table": f"[{DEEP}]",
    "array of tables": f"[[ {DEEP} ]]",
    "quoted": '"a".' * 40_000 + "a = 1",
    "spaced": "a . 'b'\t." * 20_000 + "a = 1",
    "behind a string": f'x = """\\""" "\n"""\n{DEEP} = 1',
    "in a table": f"x = {{{DEEP} = 1}}",
}


@pytest.mark.parametrize("text", DEEP_TEXTS.values(), ids=DEEP_TEXTS)
def test_a_deep_key_is_refused_before_its_time_grows(folder: Path, text: str) -> None:
    with pytest.raises(ValueError, match=f"^a key has more than {MAX_DEPTH} names$"):
        parse_toml(text)
    (folder / "pyproject.toml").write_text(text)
    assert project_of("train.py", is_module=False) == ()
    with pytest.raises(LaunchError, match=r"^c\.toml cannot be read: a key has more than"):
        parse_document(text, path="c.toml")


DOTS = "." * 5000
LEGAL_TEXTS = {
    "string": f'a = "{DOTS}"',
    "literal": f"a = '{DOTS}\\'",
    "escaped": f'a = "\\"{DOTS}\\\\" # "',
    "lines": f'a = """\n"{DOTS}""\\""" "\n{DOTS}\n"""',
    "literal lines": f"a = '''\n'{DOTS}''\n{DOTS}'''",
    "comment": f"# it's {DOTS}\na = 1 # \"{DOTS}",
    "quoted key": f'"{DOTS}" = 1',
    "numbers": f"a = [{', '.join(['1.5'] * 5000)}]\n" + "".join(f"k{index} = 1.5\n" for index in range(5000)),
    "keys": "".join(f"a.k{index} = 1.5\n" for index in range(5000)),
    "tables": "".join(f"[a.k{index}]\nb.c = 1.5\n" for index in range(5000)),
    "as deep as the limit": ".".join(["a"] * MAX_DEPTH) + " = 1.5",
}


@pytest.mark.parametrize("text", LEGAL_TEXTS.values(), ids=LEGAL_TEXTS)
def test_dots_that_are_no_deep_key_are_legal(text: str) -> None:
    assert parse_toml(text) == tomllib.loads(text)


@given(
    st.lists(st.sampled_from(['"', "'", '"""', "'''", "\\", "#", ".", "a", "\n", "=", "[", "]", " ", "1"]), max_size=30)
)
def test_what_is_refused_is_what_the_parser_refuses_else(pieces: list[str]) -> None:
    try:
        expected = tomllib.loads("".join(pieces))
    except tomllib.TOMLDecodeError:
        expected = None
    try:
        found = parse_toml("".join(pieces))
    except ValueError:
        found = None
    assert found == expected


NESTED = {
    "c.json": lambda depth: '{"a":' * depth + "1" + "}" * depth,
    "d.json": lambda depth: '{"a":' + "[" * (depth - 1) + "1" + "]" * (depth - 1) + "}",
    "c.yaml": lambda depth: "{a: " * depth + "1" + "}" * depth,
    "c.toml": lambda depth: "a = " + "[" * (depth - 1) + "1" + "]" * (depth - 1),
    "d.toml": lambda depth: "a.b = " + "{a.b = " * (depth // 2 - 1) + "1" + "}" * (depth // 2 - 1),
}


@pytest.mark.parametrize("path", NESTED)
def test_tables_and_lists_have_a_limit_of_depth(path: str) -> None:
    assert parse_document(NESTED[path](MAX_DEPTH), path=path)
    for depth in (MAX_DEPTH + 2, 100_000):
        with pytest.raises(LaunchError, match=f"^{path} cannot be read: "):
            parse_document(NESTED[path](depth), path=path)


def test_a_number_of_many_parts_is_refused() -> None:
    assert parse_document("a: 1:30:00", path="c.yaml") == {"a": 5400}
    with pytest.raises(LaunchError, match=r"^c\.yaml cannot be read: a number has more than 4096 digits$"):
        parse_document("a: 1" + ":30" * 300_000, path="c.yaml")


def test_options_with_many_blanks_are_refused(folder: Path) -> None:
    (folder / "blank").write_text("[component:cubicml]\nstore" + " " * 60_000 + "x\n")
    with pytest.raises(LaunchError, match=r"^blank cannot be read: it has hundreds of blanks in a row$"):
        read_ini("blank", RawConfigParser())
    (folder / "blank").write_text("no section")
    with pytest.raises(LaunchError, match=r"^blank cannot be read: File contains no section headers"):
        read_ini("blank", RawConfigParser())
    (folder / "blank").write_text("[a]\n" * 20_000)
    with pytest.raises(LaunchError, match=r"^blank cannot be read here: it has more than 65536 bytes"):
        read_ini("blank", RawConfigParser())


def test_a_prior_is_no_pipe(folder: Path) -> None:
    os.mkfifo(folder / "prior.json")
    with pytest.raises(ValueError, match=r"prior\.json is no file .* it is no regular file"):
        PublicPrior.read(Path("prior.json"))
    (folder / "other.json").write_text(json.dumps({"format": 0}))
    with pytest.raises(ValueError, match="its content is another one"):
        PublicPrior.read(Path("other.json"))

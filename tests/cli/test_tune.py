"""The command ``tune`` on real local launches: on a terminal and off it, and what it writes."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.shared_results import SharedResults

pytestmark = pytest.mark.launch
TUNE = Path(__file__).resolve().parents[1] / "tune"
QUICK = [f"{TUNE}/components.py:quick", "--script", f"{TUNE}/quick.py"]
SPACE = """
objective = "samples_per_second"
[parameters.micro_batch_size]
choices = [1, 2, 4]
flag = "--batch_size"
changes_training = true
"""
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class TerminalOutput:
    status: int
    screen: str
    folder: Path

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in re.split(r"[\r\n]+", _CONTROL.sub("", self.screen))]


def on_a_terminal(words: list[str], cwd: Path) -> TerminalOutput:
    """Run a command whose every stream is a terminal, and return all that it wrote there."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "160", "LINES": "40"}
    process = subprocess.Popen(words, cwd=cwd, stdin=follower, stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    screen = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:  # so Linux reports that nobody holds the other end any more
            break
        if not piece:
            break
        screen += piece
    os.close(leader)
    return TerminalOutput(process.wait(timeout=600), screen.decode(errors="replace"), cwd)


def quick_tune(*options: str, args: str = "--batch_size 1 --seconds 0.6") -> list[str]:
    fixed = ["--space", "space.toml", "--store", "store", "--scratch", "scratch", "--repeats", "2"]
    return ["torchx", "cubicml", "tune", *fixed, *options, "--", *QUICK, "--", *args.split()]


@pytest.fixture(scope="module")
def output(shared_results: SharedResults) -> TerminalOutput:
    return shared_results.get("tune on a terminal", tuned_on_a_terminal)


def tuned_on_a_terminal(folder: Path) -> TerminalOutput:
    (folder / "space.toml").write_text(SPACE)
    (folder / ".torchxconfig").write_text("[cli:run]\nscheduler = local_cwd\n")
    options = ("--budget", "8 launches", "--parallel", "2", "--write-config", ".torchxconfig")
    return on_a_terminal(quick_tune(*options), folder)


def test_a_terminal_shows_what_is_in_flight_and_what_is_left(output: TerminalOutput) -> None:
    assert output.status == 0, output.screen[-3000:]
    assert "\x1b[" in output.screen
    heads = [
        line for line in output.lines if line.split() == ["purpose", "config", "state", "time", "predicted", "measured"]
    ]
    assert len(heads) > 3  # drawn again and again
    both = [line.split() for line in output.lines if re.match(r"\s*\d+ +(baseline|search|confirm) ", line)]
    assert {words[0] for words in both} >= {"1", "2", "3"}
    assert any("running" in words for words in both)
    assert any(re.search(r"fastest seen [\d,]+ samples/s; \d of 8 launches left", line) for line in output.lines)
    assert any("about" in line and "launches left" in line for line in output.lines)


def test_a_terminal_keeps_the_ends_and_the_result(output: TerminalOutput) -> None:
    begins = [line for line in output.lines if re.match(r"\s*\d+ \w+ +(batch \d+ -> \d+|your config)", line)]
    assert len({line.split()[0] for line in begins}) >= 6
    assert sum(re.match(r"\s+[\d,]+ samples/s", line) is not None for line in output.lines) >= 6
    rest = "\n".join(output.lines)
    assert "Command to run:" in rest
    assert "device hours" in rest


def test_the_winner_is_the_default_of_the_next_launch(output: TerminalOutput) -> None:
    assert "[cli:run]" in (output.folder / ".torchxconfig").read_text()  # what stood there stays
    words = ["torchx", "run", "--dryrun", "cubicml", "--mode", "record", "--store", "store", QUICK[0]]
    done = subprocess.run(words, cwd=output.folder, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"--batch_size\W+4\b", done.stdout), done.stdout[-3000:]
    assert "quick.py" in done.stdout


def test_without_a_terminal_lines_are_plain(tmp_path: Path) -> None:
    (tmp_path / "space.toml").write_text(SPACE)
    words = quick_tune("--budget", "2 launches", "--write-config", "defaults", args="--batch_size 4 --seconds 0.2")
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "\x1b" not in done.stdout + done.stderr
    lines = done.stderr.splitlines()
    assert "your config: batch 4" in lines
    assert "  1 baseline your config" in lines
    assert sum(re.match(r"  \d -> [\d,.]+ samples/s", line) is not None for line in lines) == 2
    # Nothing was found to be faster, and so nothing is written.
    assert not (tmp_path / "defaults").exists()
    assert "defaults unchanged" in done.stderr

"""Progress of long work: a bar on a terminal, and nothing in a pipe or beside JSON."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml import Trial, TrialStore
from torchx_cubicml.cli import progress_bar as module
from torchx_cubicml.cli.progress_bar import progress

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = """
    import sys
    from torchx.cli.main import main
    from torchx_cubicml.cli import progress_bar as progress
    progress.DELAY_S = 0.0
    main(["cubicml", *sys.argv[1:]])
"""
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def on_terminal(code: str, *words: str, folder: Path, env: Mapping[str, str] = {}) -> tuple[int, str]:
    """Run Python code with both outputs on one terminal of 80 columns; return its status and what it wrote."""
    leader, follower = os.openpty()
    given = {**os.environ, "COLUMNS": "80", "TERM": "xterm", "PYTHONPATH": str(ROOT), **env}
    command = [sys.executable, "-c", textwrap.dedent(code), *words]
    process = subprocess.Popen(command, stdout=follower, stderr=follower, cwd=folder, env=given)
    os.close(follower)
    written = b""
    while True:
        try:
            more = os.read(leader, 65536)
        except OSError:  # the process has closed the terminal
            break
        if not more:
            break
        written += more
    os.close(leader)
    return process.wait(timeout=600), written.decode()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = str(tmp_path_factory.mktemp("progress") / "store")
    for size in range(1, 31):
        config = {"micro_batch_size": size, "compile": bool(size % 3)}
        trial = Trial.completed(
            workload={"program": "train.py", "world_size": 2}, config=config, tokens_per_second=1e3 * size**0.5
        )
        TrialStore(url).add(trial)
    return url


@pytest.mark.parametrize(
    ("words", "work", "result"),
    [
        (("evaluate", "--predictor", "boosting", "roofline"), "grading predictors", "boosting, a random fifth"),
        (("history", "import", "jobs.csv", "--yes"), "importing trials", "imported 600 trials"),
        (("report", "--out", "page.html"), "writing the report", "wrote page.html"),
    ],
    ids=["evaluate", "import", "report"],
)
def test_a_terminal_gets_a_bar_that_is_gone_before_the_result(
    store: str, tmp_path: Path, words: tuple[str, ...], work: str, result: str
) -> None:
    rows = "".join(f"{number},8,{1000 + number}\n" for number in range(1, 601))
    (tmp_path / "jobs.csv").write_text(f"micro_batch_size,n_gpus,tokens/s\n{rows}")
    where = str(tmp_path / "imported") if "import" in words else store
    status, text = on_terminal(COMMANDS, *words, "--store", where, folder=tmp_path)
    assert status == 0, text
    assert work in text
    assert text.rindex("\x1b[2K") < text.index(result)  # the line of the bar is erased
    assert work not in text[text.index(result) :]


def test_a_bar_tells_the_time_left_where_the_parts_are_counted(tmp_path: Path) -> None:
    code = """
        import time
        from torchx_cubicml.cli import progress_bar as progress
        progress.DELAY_S = 0.0
        with progress.progress("counting") as report:
            for number in range(8):
                report(number, 8)
                time.sleep(0.3)
        with progress.progress("searching"):
            time.sleep(1.2)
    """
    _, text = on_terminal(code, folder=tmp_path, env={"NO_COLOR": "1"})
    assert not re.search(r"\x1b\[[0-9;]*m", text)  # no colour
    lines = re.split(r"[\r\n]+", ESCAPES.sub("", text))
    assert any(re.search(r"^counting .* about [\d.]+ s left", line) for line in lines), lines
    searching = [line for line in lines if line.startswith("searching")]
    assert searching
    assert all(re.search(r" \d+ s so far$", line.rstrip()) for line in searching)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("env", [{"TERM": "dumb"}, {}], ids=["dumb", "json"])
def test_a_dumb_terminal_and_json_get_no_bar(store: str, tmp_path: Path, env: dict[str, str]) -> None:
    words = ("evaluate", "--predictor", "boosting", "--store", store, *([] if env else ["--json"]))
    status, text = on_terminal(COMMANDS, *words, folder=tmp_path, env=env)
    assert status == 0, text
    assert "grading predictors" not in text
    assert "\x1b" not in text


def test_a_pipe_gets_no_bar(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(module, "DELAY_S", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress("counting") as report:
        report(1, 2)
    assert capfd.readouterr() == ("", "")


def test_a_failure_ends_the_bar_and_is_told(tmp_path: Path) -> None:
    code = """
        import time
        from torchx_cubicml.cli import progress_bar as progress
        progress.DELAY_S = 0.0
        with progress.progress("counting"):
            time.sleep(0.5)
            raise ValueError("of the work")
    """
    status, text = on_terminal(code, folder=tmp_path)
    assert status == 1
    assert text.rindex("\x1b[?25h") < text.index("Traceback")  # the cursor is shown again
    assert text.rstrip().endswith("ValueError: of the work")


def test_quick_work_shows_nothing(tmp_path: Path) -> None:
    code = """
        from torchx_cubicml.cli import progress_bar as progress
        progress.DELAY_S = 600.0
        with progress.progress("counting") as report:
            report(1, 2)
        print("done")
    """
    assert on_terminal(code, folder=tmp_path) == (0, "done\r\n")

"""Lines and tables of the commands, which fit the width that there is."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
from dataclasses import replace
from functools import partial
from io import StringIO
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from rich.console import Console
from rich.table import Table

from torchx_cubicml import State, Trial, TrialStore
from torchx_cubicml.cli import history, suggest, tune_display
from torchx_cubicml.cli.history_filters import find_trial
from torchx_cubicml.cli.terminal import command_lines, fitted, joined, open_console, say, wrapped
from torchx_cubicml.cli.tune_display import Display, Live
from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.crowding import with_crowding
from torchx_cubicml.records.measurement import MEAN
from torchx_cubicml.records.trial import short_id
from torchx_cubicml.tuner import Ended, Launching, Notice, Waiting
from torchx_cubicml.tuner.progress import InFlight

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

SPACE = """
objective = "tokens_per_second"
[parameters.micro_batch_size]
choices = [1, 2, 4]
flag = "--batch"
[parameters.sharding_strategy]
choices = ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"]
per_layer = 12
flag = "--sharding"
"""
COMMAND = ["dist.ddp", "-j", "1x2", "--script", "train.py", "--", "--batch", "1", "--sharding", "FULL_SHARD"]
LAYERS = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD") * 4


def filled_store(folder: Path) -> str:
    store = TrialStore(str(folder / "store"))
    for number in range(1, 9):
        trial = Trial.completed(
            workload={"program": "train.py", "world_size": 2},
            config={"micro_batch_size": 2 ** (number % 3), "sharding_strategy": LAYERS[number:] + LAYERS[:number]},
            tokens_per_second=1000.0 + 17 * number,
        )
        trial = replace(trial, trial_id=f"local_cwd-train-{number}abcdefghi", started_at=f"2026-01-0{number}T10:00:00Z")
        if number == 4:
            trial = replace(trial, measurement=None, state=State.OUT_OF_MEMORY, reason="CUDA out of memory")
        store.add(trial)
    return store.url


def listed(store: str, *words: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    parser = argparse.ArgumentParser()
    history.add_arguments(parser)
    assert history.run(parser.parse_args(["list", "--store", store, *words])) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_a_list_of_trials_fits_and_says_the_most_important(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    monkeypatch.chdir(tmp_path)
    filled_store(tmp_path)
    monkeypatch.setenv("COLUMNS", str(width))
    lines = listed("store", capsys=capsys)
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if "abcdefghi" in line]
    assert [row.split()[0] for row in rows] == [f"{number}abcdefghi" for number in range(8, 0, -1)]
    assert sum("out of memory" in row for row in rows) == 1
    assert sum("tokens/s" in row for row in rows) == 7
    assert ("2026-01-08 10:00" in rows[0]) is (width > 60)
    assert all("batch" in row for row in rows)


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        (("--state", "out_of_memory"), [4]),
        (("--since", "2026-01-06"), [8, 7, 6]),
        (("--since", "2026-01-06T12:00"), [8, 7]),
        (("--since", "1d"), []),
        (("--program", "train.py", "--limit", "2"), [8, 7]),
        (("--program", "other.py"), []),
        (("--workload", "world_size=2", "--state", "completed", "--since", "2026-01-03"), [8, 7, 6, 5, 3]),
        (("--workload", "world_size=4"), []),
    ],
)
def test_filters_choose_trials(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], numbers: list[int]
) -> None:
    lines = listed(filled_store(tmp_path), *words, capsys=capsys)
    assert [line.split()[0] for line in lines if "abcdefghi" in line] == [f"{number}abcdefghi" for number in numbers]


def test_a_time_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RecordError, match=r"--since must be a date such as 2026-01-31.*got 'yesterday'"):
        listed(filled_store(tmp_path), "--since", "yesterday", capsys=capsys)


def test_a_short_name_finds_its_trial() -> None:
    trials = [
        Trial(trial_id=name, workload={}, config={}, state=State.RUNNING)
        for name in ("job-01234x6789", "job-abcde1ghij", "other-abcde1ghij", "9876543210", "slurm-hpc-1234567", "ab-1")
    ]
    names = {trial.trial_id: short_id(trial.trial_id) for trial in trials}
    assert names == {
        "job-01234x6789": "01234x6789",
        "job-abcde1ghij": "abcde1ghij",
        "other-abcde1ghij": "abcde1ghij",  # no launches have ids like these two
        "9876543210": "9876543210",
        "slurm-hpc-1234567": "slurm-hpc-1234567",
        "ab-1": "ab-1",
    }
    for name, short in names.items():
        if short != "abcde1ghij":
            assert find_trial(trials, short, store="here").trial_id == name
    with pytest.raises(RecordError, match="'abcde1ghij' is ambiguous: 2 trials begin or end with it"):
        find_trial(trials, "abcde1ghij", store="here")


@pytest.mark.parametrize(
    ("own", "batch", "line"),
    [
        (800.0, 4, "  7 -> 1,000 tokens/s, 1.25x your config, predicted 900"),
        (800.0, 2, "  7 -> 1,000 tokens/s, predicted 900"),
        (None, 4, "  7 -> 1,000 tokens/s, predicted 900"),
    ],
    ids=["another config", "the own config", "own not measured"],
)
def test_the_end_of_a_launch_is_compared_with_the_own_config(own: float | None, batch: int, line: str) -> None:
    trial = Trial.completed(workload={}, config={"micro_batch_size": batch}, tokens_per_second=1000.0)
    output = StringIO()
    prepared = SimpleNamespace(current={"micro_batch_size": 2}, space=SimpleNamespace(statistic=MEAN))
    ended = Ended(number=7, trial=trial, objective="tokens_per_second", throughput=1000.0, expected=900.0, own=own)
    Display(Console(file=output, width=80), prepared).show(ended)
    assert output.getvalue() == f"{line}\n"


def test_only_the_first_crowded_launch_explains_itself_and_warns() -> None:
    trial = Trial.completed(workload={}, config={"micro_batch_size": 2}, tokens_per_second=1000.0)
    facts = {"host_cpus": 2, "other_busy_cpus": 1.7, "idle_cpus": 0.0}
    (crowded,) = with_crowding([replace(trial, observed=facts)])
    output = StringIO()
    current, space = {"micro_batch_size": 2}, SimpleNamespace(statistic=MEAN)
    prepared = SimpleNamespace(current=current, space=space, request=SimpleNamespace(repeats_made=3))
    display = Display(Console(file=output, width=120), prepared)
    for number, each in enumerate([trial, crowded, crowded], start=1):
        display.show(Ended(number=number, trial=each, objective="tokens_per_second", throughput=1000.0))
    why = "crowded: other processes kept 1.7 of 2 processors busy"
    assert output.getvalue().splitlines() == [
        "  1 -> 1,000 tokens/s",
        f"  2 -> 1,000 tokens/s within a factor of 5.2, {why}",
        "    3 launches of each config, as crowded as this one, are likely to confirm gains above 1.41x only",
        "  3 -> 1,000 tokens/s within a factor of 5.2, crowded",
    ]


def test_the_last_lines_of_a_program_stay_lines_in_the_display_of_a_tune() -> None:
    output = StringIO()
    display = Display(Console(file=output, width=40), SimpleNamespace())
    display.show(Notice(text="compile stays as in your command: it failed; last lines:\n  a = 1\n  Error: no compiler"))
    assert output.getvalue().splitlines() == [
        "compile stays as in your command: it",
        "    failed; last lines:",
        "  a = 1",
        "  Error: no compiler",
    ]


@pytest.mark.parametrize("width", [60, 100])
def test_suggestions_fit_and_their_commands_can_be_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "space.toml").write_text(SPACE)
    filled_store(tmp_path)
    monkeypatch.setenv("COLUMNS", str(width))
    parser = argparse.ArgumentParser()
    suggest.add_arguments(parser)
    options = ["--space", "space.toml", "--store", "store", "-s", "local_cwd", "--count", "2"]
    assert suggest.run(parser.parse_args([*options, "--", *COMMAND])) == 0
    out = capsys.readouterr().out
    longest_word = max(map(len, out.split()))
    assert max(map(len, out.splitlines())) <= max(width, longest_word + len("    --store  \\"))
    lines = out.splitlines()
    first = lines.index("The next launch would run:") + 1
    last = next(number for number in range(first, len(lines)) if not lines[number].endswith("\\"))
    command = shlex.split("".join(line.removesuffix("\\") for line in lines[first : last + 1]))
    assert command[:3] == ["torchx", "run", "-s"]
    assert "--batch" in command


def test_a_file_has_a_hundred_columns_or_those_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, width in (("", 100), ("72", 72), ("wide", 100)):
        monkeypatch.setenv("COLUMNS", text)
        assert open_console().width == width


def test_no_part_of_a_command_becomes_markup_or_an_emoji(capsys: pytest.CaptureFixture[str]) -> None:
    console = open_console()
    say(console, "train.py --ratio 1:100:1 --map a:x:b [bold]c[/bold]")
    table = Table(title=":x: [red]", title_justify="left")
    table.add_column(":100:")
    console.print(table)
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "train.py --ratio 1:100:1 --map a:x:b [bold]c[/bold]"
    assert ":100:" in out.partition("\n")[2]


def table_of(names: Collection[str], without: Collection[str]) -> Table:
    made = Table()
    for name in names:
        if name not in without:
            made.add_column(name, no_wrap=True)
    return made


@pytest.mark.parametrize(("width", "kept"), [(60, "abc"), (30, "ac"), (16, "a"), (4, "a")])
def test_the_least_important_columns_are_left_out_first(width: int, kept: str) -> None:
    console = Console(file=StringIO(), width=width)
    found = fitted(console, partial(table_of, ["a" * 10, "b" * 10, "c" * 10]), ["b" * 10, "c" * 10])
    assert "".join(str(column.header)[0] for column in found.columns) == kept


def test_words_are_kept_whole() -> None:
    assert wrapped("", 10) == [""]
    assert wrapped("a " + "b" * 50, 30) == ["a", "b" * 50]
    assert joined(["x 1 -> 2", "yes 1 -> 2"], 22, first="12 ", indent="  ") == ["12 x 1 -> 2,", "  yes 1 -> 2"]
    out = StringIO()
    say(Console(file=out, width=24), "  one two three four five six\nshort   line")
    assert out.getvalue() == "  one two three four\n    five six\nshort   line\n"


@pytest.mark.parametrize("width", [20, 40, 80])
def test_a_command_over_several_lines_is_the_same_command(width: int) -> None:
    words = ["torchx", "run", "it's", "a b", "--flag", "1", "", "--x=1", "line\nbreak", "-v", "--", "$HOME", "\\"]
    script = f"printf '%s\\0' {chr(10).join(command_lines(words, width)).lstrip()}"
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split("\0")[:-1] == words


def test_a_command_with_a_tab_and_an_escape_is_printed_as_text() -> None:
    out = StringIO()
    lines = command_lines(["train.py", "--sep", "a\tb", "--mark=\x1b[2J"], 80)
    Console(file=out, width=80, markup=False, highlight=False).print("\n".join(lines), soft_wrap=True)
    assert out.getvalue() == "  train.py --sep $'a\\x09b' $'--mark=\\x1b[2J'\n"


def in_flight(number: int, *, measured: float | None = None) -> InFlight:
    config = {"micro_batch_size": 16, "sharding_strategy": LAYERS, "activation_checkpointing": "selective"}
    return InFlight(
        number=number,
        purpose="search",
        config=config,
        phase="running",
        since_s=31.0,
        expected=12_345.6,
        measured=measured,
        uncertainty=0.05 if measured else 0.0,
    )


def waiting(*launches: InFlight) -> Waiting:
    return Waiting(
        in_flight=launches,
        objective="tokens_per_second",
        best=10_000.0,
        best_config={},
        budget_left="3 of 8 launches left",
        time_left_s=120.0,
    )


OWN = SimpleNamespace(current={"micro_batch_size": 2}, space=SimpleNamespace(statistic=MEAN))


@pytest.mark.parametrize(
    ("width", "headings"),
    [
        (60, ["purpose", "config", "time", "predicted", "measured"]),
        (110, ["purpose", "config", "state", "time", "predicted", "measured"]),
    ],
)
def test_the_launches_in_flight_fit_by_leaving_columns_out(width: int, headings: list[str]) -> None:
    output = StringIO()
    console = Console(file=output, width=width, height=20, force_terminal=True, color_system=None)
    with Live(console, OWN) as display:
        display.show(waiting(in_flight(3, measured=12_345.6), in_flight(4)))
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output.getvalue()))]
    start = next(number for number, line in enumerate(lines) if "purpose" in line)
    assert lines[start].split() == headings
    third, fourth, *caption = lines[start + 1 : start + 5]
    assert third.split()[0] == "3"
    assert third.endswith("12,300 ± 8 %")
    assert "31 s" in third
    assert "batch 2 -> 16" in fourth
    assert " ".join(caption).startswith("fastest seen 10,000 tokens/s; 3 of 8 launches left, about 2 min")
    assert max(map(len, lines)) <= width


def test_a_tune_that_thinks_long_says_so_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_display, "DELAY_S", 0.0)
    output = StringIO()
    console = Console(file=output, width=80, height=20, force_terminal=True, color_system=None)
    trial = Trial.completed(workload={}, config={"micro_batch_size": 4}, tokens_per_second=1000.0)
    suggestion = SimpleNamespace(config={"micro_batch_size": 4})
    display = Live(console, OWN)
    display.show(waiting(in_flight(3), in_flight(4)))
    for step, text in (
        (Ended(number=3, trial=trial, objective="tokens_per_second", throughput=1e3), "deciding what comes next: 0 s"),
        (Launching(number=5, purpose="search", suggestion=suggestion), "submitting launch 5: 0 s"),
    ):
        display.show(step)
        with console.capture() as shown:
            console.print(display._shown())
        lines = shown.get().splitlines()
        assert lines[-1].rstrip() == text
        assert [line.split()[0] for line in lines if "search" in line] == ["4"]  # launch 3 has ended
    display.show(waiting(in_flight(4)))
    with console.capture() as shown:
        console.print(display._shown())
    assert "0 s" not in shown.get().splitlines()[-1]

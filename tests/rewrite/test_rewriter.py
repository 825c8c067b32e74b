from __future__ import annotations

import json
import os
import re
import shlex
import threading
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spaces import BATCH_SIZES, N_LAYERS
from torchx_cubicml import advisor, settings
from torchx_cubicml.advisor import Suggestion
from torchx_cubicml.errors import LaunchError, StoreError
from torchx_cubicml.history.history import History
from torchx_cubicml.launch import Launch
from torchx_cubicml.launch.config_io import present_command
from torchx_cubicml.launch.going_on import ResumeSigns
from torchx_cubicml.launch.place_config import RewrittenLaunch, place_config
from torchx_cubicml.launch.torchrun_command import TORCHRUN_WITH_SECOND_ATTEMPT
from torchx_cubicml.records import contract
from torchx_cubicml.records.contract import CONTRACT_VARIABLE, SECOND_ATTEMPT_VARIABLE, decode_contract
from torchx_cubicml.records.trial import Origin, Trial
from torchx_cubicml.rewrite import rewriter
from torchx_cubicml.rewrite.decide import Decision, DecisionLimits
from torchx_cubicml.rewrite.rewriter import Options, rewrite, rewrite_component
from torchx_cubicml.rewrite.rules import held
from torchx_cubicml.settings import cache_folder
from torchx_cubicml.space.toml import load_space, parse_space
from torchx_cubicml.store import TrialStore
from torchx_cubicml.store.obstacle import folder_obstacle

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Value

SPACE = (
    N_LAYERS
    + BATCH_SIZES
    + """
[parameters.sharding_strategy]
choices = ["NO_SHARD", "FULL_SHARD"]
per_layer = "n_layers"
flag = "--sharding"

[tune]
args = { "--out_dir" = "{scratch}/{launch_id}" }
env = { WANDB_MODE = "disabled" }
"""
)
ARGS = shlex.split("--n_layer 2 --batch_size 2 --accumulate 8 --sharding FULL_SHARD --out_dir out")
LAUNCH = Launch(program="train.py", script_args=tuple(ARGS), world_size=2, nnodes=1, nproc_per_node=2)
WORKLOAD: dict[str, Value] = {"program": "train.py", "world_size": 2, "n_layers": 2}
CURRENT: dict[str, Value] = {
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 8,
    "sharding_strategy": ("FULL_SHARD", "FULL_SHARD"),
}


@pytest.fixture
def options(tmp_path: Path) -> Options:
    path = tmp_path / "space.toml"
    path.write_text(SPACE)
    return Options(space=str(path), store=str(tmp_path / "store"))


def trial(batch: int, strategy: str, throughput: float) -> Trial:
    config = {
        "micro_batch_size": batch,
        "gradient_accumulation_steps": 16 // batch,
        "sharding_strategy": (strategy, strategy),
    }
    return Trial.completed(workload=WORKLOAD, config=config, tokens_per_second=throughput)


def fill(options: Options, *more: Trial, gain: float = 1.5) -> None:
    """Record every uniform config, of which 8 x NO_SHARD is the fastest by far."""
    store = TrialStore(options.store)
    for batch, strategy in product([1, 2, 4, 8], ["NO_SHARD", "FULL_SHARD"]):
        store.add(trial(batch, strategy, 1000.0 * gain if (batch, strategy) == (8, "NO_SHARD") else 1000.0 + batch))
    for extra in more:
        store.add(extra)


def promise(**changes: float | None) -> Suggestion:
    values = {"gain": 1.5, "gain_low": 1.4, "gain_high": 1.6, "probability_to_fit": 1.0, **changes}
    config = trial(8, "NO_SHARD", 1.0).config
    return Suggestion(config=config, throughput=1.0, low=0.9, high=1.1, reason="test", n_trials=9, **values)


def assert_as_typed(rewritten: RewrittenLaunch, reason: str, *, launch: Launch = LAUNCH) -> None:
    """Assert that the launch is recorded as typed, with one line that says why it is not rewritten."""
    assert rewritten.launch == launch
    assert rewritten.suggestion is None
    assert rewritten.contract is not None
    assert rewritten.contract.origin is Origin.USER
    reasons = [line for line in rewritten.lines if "keeping your arguments: " in line]
    assert len(reasons) == 1
    assert re.search(reason, reasons[0])


def test_a_launch_is_recorded_without_a_space(tmp_path: Path) -> None:
    rewritten = rewrite(LAUNCH, Options(store=str(tmp_path / "store")))
    assert rewritten.launch == LAUNCH
    assert rewritten.contract is not None
    assert rewritten.contract.store == str(tmp_path / "store")
    assert rewritten.contract.workload == {"program": "train.py", "world_size": 2}
    assert rewritten.contract.config == {}
    assert rewritten.lines == (f"torchx-cubicml: this launch will be recorded in {tmp_path / 'store'}",)


def test_a_store_that_cannot_be_written_is_not_announced(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    options = Options(store=str(tmp_path / "file"))
    rewritten = rewrite(LAUNCH, options, find_obstacle=folder_obstacle)
    why = f"cannot write to store {tmp_path / 'file'}: {tmp_path / 'file'} is not a folder"
    assert rewritten.lines == (f"torchx-cubicml: this launch will not be recorded: {why}",)
    assert rewritten.contract is not None, "the job tries, and says what became of it"
    announced = (f"torchx-cubicml: this launch will be recorded in {tmp_path / 'file'}",)
    assert rewrite(LAUNCH, options).lines == announced, "only the job knows"


def test_a_store_that_hangs_delays_no_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewriter, "_OBSTACLE_DEADLINE_S", 0.01)
    ends = threading.Event()
    rewritten = rewrite(LAUNCH, Options(store=str(tmp_path)), find_obstacle=lambda url: str(ends.wait(60)))
    ends.set()
    assert rewritten.lines == (f"torchx-cubicml: this launch will be recorded in {tmp_path}",)


def test_a_program_on_a_file_system_that_hangs_delays_no_launch(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = threading.Event()
    monkeypatch.setattr(rewriter, "_FILES_S", 0.01)
    monkeypatch.setattr(rewriter, "program_path", lambda *_, **__: ends.wait(60) and None)
    rewritten = rewrite(LAUNCH, options)
    ends.set()
    why = "running your command as typed, without recording it: reading the program's files took longer than 0.01 s"
    assert (rewritten.launch, rewritten.contract) == (LAUNCH, None)
    assert rewritten.lines == (f"torchx-cubicml: {why}",)


def test_a_space_file_that_hangs_delays_no_launch(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    ends, plain = threading.Event(), rewriter._plain_contract(LAUNCH, options)

    def program_is_read(*_: object) -> object:
        monkeypatch.setattr(rewriter, "_FILES_S", 0.01)  # from now on
        return plain

    monkeypatch.setattr(rewriter, "_plain_contract", program_is_read)
    monkeypatch.setattr("torchx_cubicml.space.toml.load_space", lambda _: ends.wait(60))
    rewritten = rewrite(LAUNCH, options)
    ends.set()
    assert_as_typed(rewritten, r"reading the space file took longer than 0\.01 s$")


@pytest.mark.parametrize(
    ("scheduler", "store", "warned"),
    [
        ("local_docker", "/data/store", True),
        ("kubernetes", "file:///data/store", True),
        ("kubernetes", "s3://team/store", False),
        ("local_cwd", "/data/store", False),
        ("slurm", "/data/store", False),
        ("", "/data/store", False),
    ],
)
def test_a_local_store_outside_the_container_is_reported(scheduler: str, store: str, warned: bool) -> None:
    rewritten = rewrite(replace(LAUNCH, scheduler=scheduler), Options(store=store))
    assert rewritten.contract is not None
    assert rewritten.contract.scheduler == scheduler
    lines = [line for line in rewritten.lines if "may not be visible to jobs" in line]
    assert len(lines) == int(warned)
    assert len(rewritten.lines) == 1 + int(warned)
    assert all(scheduler in line and store in line and "--store URL" in line for line in lines)


@pytest.mark.parametrize(
    ("mounted", "warned"),
    [(("/data",), False), (("/data/store",), False), (("/dat",), True), (("/data/store/below",), True)],
    ids=["around", "itself", "alike", "below"],
)
def test_a_mount_with_the_store_in_it_keeps_what_is_recorded(mounted: tuple[str, ...], warned: bool) -> None:
    launch = replace(LAUNCH, scheduler="kubernetes", mounted=mounted)
    lines = [
        line
        for line in rewrite(launch, Options(store="file:///data/store")).lines
        if "may not be visible to jobs" in line
    ]
    assert len(lines) == int(warned)


def test_the_mode_record_reads_the_config_and_changes_nothing(options: Options) -> None:
    fill(options)
    rewritten = rewrite(LAUNCH, replace(options, mode="record"))
    assert rewritten.launch == LAUNCH
    assert rewritten.contract is not None
    assert (rewritten.contract.workload, rewritten.contract.config) == (WORKLOAD, CURRENT)
    assert len(rewritten.lines) == 1


def test_the_mode_off_does_and_says_nothing(options: Options) -> None:
    assert rewrite(LAUNCH, replace(options, mode="off")) == RewrittenLaunch(launch=LAUNCH)


def test_a_launch_is_rewritten_from_what_others_showed(options: Options) -> None:
    fill(options)
    rewritten = rewrite(LAUNCH, options)
    assert rewritten.launch.script_args == tuple(
        shlex.split("--n_layer 2 --batch_size 8 --accumulate 2 --sharding NO_SHARD --out_dir out")
    )
    assert rewritten.contract is not None
    assert rewritten.contract.origin is Origin.REWRITE
    assert rewritten.contract.config == trial(8, "NO_SHARD", 1.0).config
    assert rewritten.contract.suggestion is not None
    assert "config" not in rewritten.contract.suggestion
    assert json.loads(json.dumps(rewritten.contract.suggestion))["n_trials"] == 8
    text = "\n".join(rewritten.lines)
    assert "torchx-cubicml: arguments rewritten, based on 8 launches of this workload\n" in text
    assert re.search(r"\n    micro_batch_size +2 -> 8  \(--batch_size\)\n", text)
    assert re.search(r"\n    sharding_strategy +FULL_SHARD x2 -> NO_SHARD x2  \(--sharding\)\n", text)
    assert re.search(r"\n    predicted gain +\+\d+ % \(80 % interval: \+\d+ % to \+\d+ %\)\n", text)
    assert text.endswith("    to switch this off           --mode record")


def test_a_gain_per_cost_is_told_with_its_unit(options: Options) -> None:
    fill(options)
    Path(options.space).write_text(f'objective = "tokens_per_device_hour"\n{SPACE}')
    first, again = rewrite(LAUNCH, options), rewrite(LAUNCH, options)
    assert re.search(r"\n    predicted gain in tokens per device hour +\+\d+ % ", "\n".join(first.lines))
    assert first == again  # the second from the cache
    assert first.contract is not None
    assert first.contract.suggestion is not None
    assert first.contract.suggestion["objective"] == "tokens_per_device_hour"


def test_rewriting_is_repeatable(options: Options) -> None:
    fill(options)
    assert rewrite(LAUNCH, options) == rewrite(LAUNCH, options)


def test_an_empty_store_leaves_the_launch_as_typed(options: Options) -> None:
    assert_as_typed(rewrite(LAUNCH, options), "no measured launch matches this workload yet")


def test_the_best_config_known_stays(options: Options) -> None:
    fill(options)
    typed = "--n_layer 2 --batch_size 8 --accumulate 2 --sharding NO_SHARD"
    best = replace(LAUNCH, script_args=tuple(shlex.split(typed)))
    assert_as_typed(
        rewrite(best, options),
        r"no recorded launch suggests a faster config that this launch may run \(8 launches known\)",
        launch=best,
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gain": 1.05, "gain_low": 0.98}, r"the best predicted gain, \+5.0%, is within the noise"),
        ({"gain": 1.005, "gain_low": 1.004}, r"the best predicted gain, \+0.5%, is below min_gain, 1.0%"),
        ({"probability_to_fit": 0.5}, "fits in memory with a probability of only 50%, below min_fit, 90%"),
    ],
    ids=["noise", "tiny", "memory"],
)
def test_a_suggestion_that_is_not_good_enough_is_not_used(
    options: Options, monkeypatch: pytest.MonkeyPatch, changes: dict[str, float], reason: str
) -> None:
    fill(options)
    monkeypatch.setattr(advisor, "incumbent", lambda *_, **__: promise(**changes))
    assert_as_typed(rewrite(LAUNCH, options), reason)


def test_a_user_config_out_of_memory_is_replaced(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(options)
    suggestion = promise(gain=None, gain_low=None, gain_high=None)
    monkeypatch.setattr(advisor, "incumbent", lambda *_, **__: suggestion)
    rewritten = rewrite(LAUNCH, options)
    assert rewritten.suggestion is suggestion
    assert any("your own config ran out of memory" in line for line in rewritten.lines)


def test_a_config_that_is_not_of_the_space_is_refused(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(options)
    hostile = replace(promise(), config={**promise().config, "micro_batch_size": 64})
    monkeypatch.setattr(advisor, "incumbent", lambda *_, **__: hostile)
    assert_as_typed(rewrite(LAUNCH, options), "64")


def test_a_space_of_another_batch_size_rewrites_nothing(options: Options) -> None:
    fill(options)
    Path(options.space).write_text(SPACE.replace("[workload]", "[workload]\nglobal_batch_size = 64"))
    assert_as_typed(rewrite(LAUNCH, options), "global batch size of 64, but the command has 32")


def test_a_suggestion_of_another_batch_size_is_not_used(options: Options) -> None:
    store = TrialStore(options.store)
    for batch in (1, 2, 4, 8):
        config: dict[str, Value] = {"micro_batch_size": batch}
        store.add(Trial.completed(workload=WORKLOAD, config=config, tokens_per_second=1000.0 * batch))
    Path(options.space).write_text(SPACE[: SPACE.index("[parameters.grad")])
    assert_as_typed(rewrite(LAUNCH, options), "the global batch size by a factor of 4; to keep")


def test_parameters_that_change_the_training_stay(options: Options) -> None:
    fill(options)
    precision = '[parameters.precision]\nchoices = ["fp32", "bf16"]\nflag = "--precision"\ndefault = "fp32"\n[tune]'
    Path(options.space).write_text(SPACE.replace("[tune]", precision))
    rewritten = rewrite(LAUNCH, options)
    assert "--precision" not in rewritten.launch.script_args
    (line,) = [line for line in rewritten.lines if "precision" in line]
    assert line.startswith("torchx-cubicml: keeping precision: it changes what is trained")


def test_a_launch_that_explores_says_so_and_is_recorded_as_such(options: Options) -> None:
    store = TrialStore(options.store)
    for batch, strategy in product([2, 8], ["NO_SHARD", "FULL_SHARD"]):
        store.add(trial(batch, strategy, 1000.0 + batch))
    Path(options.space).write_text(f"{SPACE}\n[rewrite]\nexplore = 1\nexplore_budget_gpu_hours = 8\n")
    rewritten = rewrite(LAUNCH, options)
    assert rewrite(LAUNCH, options) == rewritten
    assert rewritten.contract is not None
    assert rewritten.contract.origin is Origin.EXPLORE
    assert rewritten.contract.suggestion is not None
    assert rewritten.launch != LAUNCH
    text = "\n".join(rewritten.lines)
    assert "torchx-cubicml: this launch explores (explore = 1): 0 of 8 device hours used\n" in text
    assert "torchx-cubicml: arguments rewritten, to explore: 4 launches known\n" in text
    assert text.endswith("    to switch this off           --mode record")


def test_a_config_decided_in_the_job_is_recorded(options: Options) -> None:
    fill(options)
    elastic = replace(LAUNCH, world_size=None, why_not_rewritten="the number of nodes (1:4) is decided later")
    rewritten = rewrite(elastic, options)
    assert_as_typed(rewritten, r"the number of nodes \(1:4\)", launch=elastic)
    assert rewritten.contract is not None
    assert rewritten.contract.config == CURRENT


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("choices = [1, 2, 4, 8]", "choise = [1]"), "choise"),
        (('flag = "--batch_size"', 'flag = "--micro"'), "--micro of parameter micro_batch_size is not in the command"),
        (("[tune]", '[[constraints]]\nrequire = "micro_batch_size > 99"\n\n[tune]'), "micro_batch_size > 99"),
        (("[workload]", "[workload"), "space.toml"),
    ],
    ids=["unknown key", "absent flag", "impossible", "no TOML"],
)
def test_an_unusable_space_is_reported_with_its_place(options: Options, change: tuple[str, str], reason: str) -> None:
    fill(options)
    Path(options.space).write_text(SPACE.replace(*change))
    assert_as_typed(rewrite(LAUNCH, options), reason)


def test_a_missing_space_is_reported(options: Options, tmp_path: Path) -> None:
    assert_as_typed(rewrite(LAUNCH, replace(options, space=str(tmp_path / "nope.toml"))), "nope.toml")


def test_an_unknown_mode_names_the_legal_ones(options: Options) -> None:
    fill(options)
    assert_as_typed(rewrite(LAUNCH, replace(options, mode="of")), "unknown mode 'of'; choose from rewrite, record, off")


def test_the_mode_rewrite_needs_a_space(tmp_path: Path) -> None:
    assert_as_typed(rewrite(LAUNCH, Options(store=str(tmp_path), mode="rewrite")), "no space file was given")


@pytest.mark.parametrize("store", ["foo://x", "memory://x", "s3://"])
def test_an_unreachable_store_leaves_the_launch_as_typed(options: Options, store: str) -> None:
    rewritten = rewrite(LAUNCH, replace(options, store=store))
    assert (rewritten.launch, rewritten.contract) == (LAUNCH, None)
    assert len(rewritten.lines) == 1
    assert rewritten.lines[0].startswith(
        f"torchx-cubicml: running your command as typed, without recording it: store {store} "
    )


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (StoreError("store s3://me:hunter2@x was not read within 5 s"), r"store s3://\*\*\*@x was not read within 5 s"),
        (RuntimeError("a defect"), "RuntimeError: a defect"),
        (RecursionError(), "RecursionError"),
    ],
    ids=["store", "defect", "deep"],
)
def test_an_internal_failure_is_one_line_and_changes_nothing(
    options: Options, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    fill(options)
    monkeypatch.setattr(advisor, "incumbent", fail)
    assert_as_typed(rewrite(LAUNCH, options), reason)


@pytest.mark.parametrize(
    ("step", "reached"),
    [("_contract_with_config", {}), ("check_batch_size", CURRENT), ("_decide", CURRENT), ("_with_choice", CURRENT)],
)
def test_a_failure_keeps_the_last_sound_launch(
    options: Options, monkeypatch: pytest.MonkeyPatch, step: str, reached: dict[str, Value]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a defect")

    fill(options)
    monkeypatch.setattr(rewriter, step, fail)
    rewritten = rewrite(LAUNCH, options)
    assert_as_typed(rewritten, "ZeroDivisionError: a defect")
    assert rewritten.contract is not None
    assert rewritten.contract.config == reached
    assert rewritten.contract.suggestion is None


HOSTILE: list[Value] = ["; rm -rf /", "$(touch /tmp/x)", "`id`", "a\nb", "' \" \\", "x" * 4000, -1, 2**62, True, 0.5]


def test_a_slow_decision_leaves_the_launch_as_typed(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(options)
    asked, released = threading.Event(), threading.Event()

    def ponder(*_: object, **__: object) -> None:
        asked.set()
        released.wait(300)

    monkeypatch.setattr(advisor, "incumbent", ponder)
    monkeypatch.setenv("TORCHX_CUBICML_THINK_DEADLINE_S", "0.5")
    assert_as_typed(rewrite(LAUNCH, options), "choosing a config took longer than 0.5 s")
    assert asked.wait(100)
    released.set()


def test_trials_on_another_device_are_left_out_and_reported(options: Options) -> None:
    fill(options, gain=3.0)
    store = TrialStore(options.store)
    times = {"started_at": "2026-01-01T00:00:00+00:00", "ended_at": "2026-01-01T01:00:00+00:00"}
    for device, day, throughput in (("H100", 3, 1000.0), ("A100", 1, 9000.0)):
        dates = {name: text.replace("01T", f"0{day}T") for name, text in times.items()}
        batch = {"H100": 2, "A100": 1}[device]
        store.add(replace(trial(batch, "FULL_SHARD", throughput), observed={"device": device}, **dates))
    rewritten = rewrite(LAUNCH, options)
    assert any("1 launch left out: the latest had device H100, not A100" in line for line in rewritten.lines)
    assert rewritten.suggestion is not None
    assert rewritten.suggestion.config["micro_batch_size"] == 8


def test_no_text_of_a_store_enters_a_command(options: Options) -> None:
    """Whatever a store claims of the fastest configs, every word comes from the user's command or space file."""
    config = dict(trial(8, "NO_SHARD", 1.0).config)
    lies = [
        Trial.completed(workload=WORKLOAD, config=config | {name: value}, tokens_per_second=1e9)
        for value in HOSTILE
        for name in ("micro_batch_size", "gradient_accumulation_steps", "--batch_size", "; rm -rf /")
    ]
    lies += [
        Trial.completed(workload=WORKLOAD, config=config | {"sharding_strategy": (value, value)}, tokens_per_second=1e9)
        for value in HOSTILE
        if not isinstance(value, tuple)
    ]
    lies += [replace(lie, observed={"micro_batch_size": "$(id)", "device": "`id`"}) for lie in lies[:8]]
    fill(options, *lies)
    events = Path(options.store) / "events"
    (events / "2026-01-01").mkdir()
    (events / "2026-01-01" / "00-bad.json").write_text('{"throughput": NaN, "x": "$(id)"}')
    event = {"schema": 1, "event": "ended", "trial_id": "t", "state": "completed", "config": {"x": "y" * 10_000_000}}
    (events / "2026-01-01" / "01-huge.json").write_text(json.dumps(event))
    legal_event = next(text for text in map(Path.read_text, events.rglob("*.json")) if '"tokens_per_second":' in text)
    no_number = re.sub(r'"tokens_per_second":\s*[^,}]+', '"tokens_per_second": NaN', legal_event)
    (events / "2026-01-01" / "02-nan.json").write_text(no_number.replace('"trial_id":"', '"trial_id":"nan-'))
    rewritten = rewrite(LAUNCH, options)
    assert rewrite(LAUNCH, options) == rewritten, "what is kept of it says the same"
    legal = {
        *ARGS,
        "1",
        "2",
        "4",
        "8",
        "16",
        "NO_SHARD",
        *(",".join(p) for p in product(["NO_SHARD", "FULL_SHARD"], repeat=2)),
    }
    assert set(rewritten.launch.script_args) <= legal
    assert rewritten.launch.env == LAUNCH.env
    assert rewritten.launch.program == LAUNCH.program
    printed = "\n".join(rewritten.lines)
    assert "rm -rf" not in printed
    assert "touch" not in printed
    assert "00-bad.json" in printed
    assert "01-huge.json (larger than" in printed
    assert "skipped 3 unreadable objects in store" in printed, "the one that is not a number too"
    assert len(printed) < 5000


def test_place_config_writes_what_a_profiling_launch_needs(options: Options, tmp_path: Path) -> None:
    config = trial(8, "NO_SHARD", 1.0).config
    placed = place_config(
        LAUNCH,
        load_space(options.space),
        config,
        store=options.store,
        origin=Origin.TUNE,
        launch_id="launch-1",
        suggestion=promise(),
        step_limit=20,
        scratch="/tmp/s",
    )
    assert placed.launch.script_args[-2:] == ("--out_dir", "/tmp/s/launch-1")
    assert placed.launch.env == {"WANDB_MODE": "disabled"}
    made = placed.contract
    assert made is not None
    assert (made.origin, made.launch_id, made.step_limit, made.config) == (Origin.TUNE, "launch-1", 20, config)
    assert made.workload == WORKLOAD


def test_without_scratch_the_users_outputs_stay(options: Options) -> None:
    placed = place_config(LAUNCH, load_space(options.space), CURRENT, store=options.store, origin=Origin.USER)
    assert placed.launch == LAUNCH


def test_place_config_raises_what_the_user_must_know(options: Options) -> None:
    space = parse_space('[parameters.a]\nchoices = [1, 2]\nflag = "--a"', where="s.toml")
    with pytest.raises(LaunchError, match="--a of parameter a is not in the command"):
        place_config(LAUNCH, space, {"a": 1}, store=options.store, origin=Origin.TUNE)
    with pytest.raises(LaunchError, match="arguments of this command cannot be changed: elastic"):
        place_config(replace(LAUNCH, why_not_rewritten="elastic"), space, {}, store=options.store, origin=Origin.TUNE)
    with pytest.raises(StoreError, match="unknown protocol"):
        place_config(LAUNCH, load_space(options.space), CURRENT, store="foo://x", origin=Origin.TUNE)


DDP = ["dist.ddp", "-j", "1x2", "--script", "train.py", "--", *ARGS]


def test_a_component_is_recorded_and_rewritten(options: Options, capsys: pytest.CaptureFixture[str]) -> None:
    fill(options)
    (role,) = rewrite_component(DDP, options).roles
    assert "train.py --n_layer 2 --batch_size 8 --accumulate 2 --sharding NO_SHARD --out_dir out; fi;" in role.args[1]
    assert role.args[1].endswith(" train.py " + " ".join(ARGS))
    assert decode_contract(role.env[CONTRACT_VARIABLE]).config["micro_batch_size"] == 8
    out, err = capsys.readouterr()
    assert out == ""
    assert "arguments rewritten" in err


REMOTE = [*ARGS[:-1], "s3://bucket/run"]
COMPONENTS = """
from torchx.specs import AppDef, Role


def job(*args: str, entrypoint: str, start: str) -> AppDef:
    words = [*start.split(), "train.py", *args]
    return AppDef(name="job", roles=[Role(name="job", image="", entrypoint=entrypoint, args=words, num_replicas=2)])
"""


@pytest.mark.parametrize(
    ("entrypoint", "start", "has_second"),
    [
        ("torchrun", "--nnodes 2", True),
        ("python", "-m torch.distributed.run --nnodes 2", True),
        ("torchrun", "--nnodes 2 --no-python python", False),
        ("torchrun", "--nnodes 1 --nproc_per_node 2", False),  # TorchX starts it twice
        ("python", "", False),
    ],
)
def test_a_remote_output_matters_only_to_a_launch_that_may_start_again(
    options: Options,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    entrypoint: str,
    start: str,
    has_second: bool,
) -> None:
    fill(options)
    (tmp_path / "mine.py").write_text(COMPONENTS)
    component = [f"{tmp_path}/mine.py:job", "--entrypoint", entrypoint, f"--start={start}", "--"]
    (local,) = rewrite_component([*component, *ARGS], options).roles
    assert "arguments rewritten" in capsys.readouterr().err
    assert (SECOND_ATTEMPT_VARIABLE in local.env) is has_second
    (remote,) = rewrite_component([*component, *REMOTE], options).roles
    said = capsys.readouterr().err
    assert ("arguments rewritten" not in said) is has_second
    assert ("what it left in s3:// (--out_dir) could not be moved aside" in said) is has_second
    assert SECOND_ATTEMPT_VARIABLE not in remote.env


def test_a_remote_output_does_not_matter_on_another_number_of_nodes(
    options: Options, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(options.space).write_text('[parameters.nnodes]\nchoices = [1, 2]\ntorchrun = "--nnodes"\n')
    workload = {"program": "train.py", "nproc_per_node": 2}
    for nnodes in (1, 2):
        trial = Trial.completed(workload=workload, config={"nnodes": nnodes}, tokens_per_second=1000.0 * nnodes)
        TrialStore(options.store).add(trial)
    (role,) = rewrite_component([*DDP[:6], *REMOTE], options).roles
    assert "1 -> 2" in capsys.readouterr().err
    assert (role.num_replicas, SECOND_ATTEMPT_VARIABLE in role.env) == (2, False)
    assert TORCHRUN_WITH_SECOND_ATTEMPT not in role.args[1]


def test_a_component_that_does_not_train_runs_as_typed(capsys: pytest.CaptureFixture[str]) -> None:
    (role,) = rewrite_component(["utils.echo", "--msg", "hi"], Options()).roles
    assert (role.entrypoint, role.args, role.env) == ("echo", ["hi"], {})
    assert capsys.readouterr().err == (
        "torchx-cubicml: running your command as typed, without recording it: "
        "role echo: echo is neither torchrun nor python\n"
    )


def test_a_component_in_mode_off_is_unchanged(options: Options, capsys: pytest.CaptureFixture[str]) -> None:
    (role,) = rewrite_component(DDP, replace(options, mode="off")).roles
    assert role.args[1].startswith("torchrun ")
    assert CONTRACT_VARIABLE not in role.env
    assert capsys.readouterr() == ("", "")


def test_a_carrier_over_its_limit_leaves_the_launch_as_typed(
    options: Options, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(contract, "MAX_BYTES", 10)
    (role,) = rewrite_component(DDP, options).roles
    assert role.args[1].startswith("torchrun ")
    assert "without recording it: the launch contract has" in capsys.readouterr().err


def test_a_component_leaves_nothing_of_our_libraries_to_its_jobs(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "_NOT_SET_AT_START", ("KMP_INIT_AT_FORK",))
    monkeypatch.setenv("KMP_INIT_AT_FORK", "FALSE")
    rewrite_component(DDP, options)
    assert "KMP_INIT_AT_FORK" not in os.environ


def test_a_missing_component_is_refused() -> None:
    with pytest.raises(LaunchError, match="give a component to run"):
        rewrite_component([], Options())


def test_options_have_three_sources_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / ".torchxconfig"
    config.write_text("[component:cubicml]\nspace = config.toml\nstore = config-store\n")
    monkeypatch.setenv("TORCHXCONFIG", str(config))
    for name in ("SPACE", "STORE", "MODE"):
        monkeypatch.setenv(f"TORCHX_CUBICML_{name}", f"from-environment-{name}")
    assert Options.resolved(space="mine.toml") == Options(
        space="mine.toml", store="config-store", mode="from-environment-MODE"
    )


@pytest.mark.parametrize(("doubt", "words"), [(0.024, "± 4 %"), (0.0, "")], ids=["rough", "exact"])
def test_the_measurement_error_is_reported(
    options: Options, monkeypatch: pytest.MonkeyPatch, doubt: float, words: str
) -> None:
    fill(options)
    monkeypatch.setattr(advisor, "incumbent", lambda *_, **__: promise(doubt=doubt))
    told = [line for line in rewrite(LAUNCH, options).lines if "error of a single launch" in line]
    assert len(told) == bool(words)
    assert all(line.endswith(f"{words} at best; the interval above pools 9 launches") for line in told)


@pytest.mark.parametrize(("variable", "think_s"), [("", 10.0), ("2.5", 2.5)])
def test_a_decision_has_its_limits(
    options: Options, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, think_s: float
) -> None:
    asked = []

    def decide(case: History, signs: ResumeSigns, url: str, *, limits: DecisionLimits, now: datetime) -> Decision:
        asked.append((case, signs, url, limits, now.tzinfo))
        return Decision(choice=None, lines=("advice",))

    monkeypatch.setattr("torchx_cubicml.rewrite.decide.decide", decide)
    monkeypatch.setenv("TORCHX_CUBICML_THINK_DEADLINE_S", variable)
    rewritten = rewrite(LAUNCH, options)
    space = load_space(options.space)
    command = present_command(LAUNCH, space)
    signs = ResumeSigns.of(LAUNCH)
    case = History(space=space, held=held(space), workload=WORKLOAD, current=CURRENT, command=command)
    limits = DecisionLimits(read_s=5.0, think_s=think_s, cache=cache_folder())
    assert asked == [(case, signs, options.store, limits, UTC)]
    assert rewritten.lines[-2:] == (
        "torchx-cubicml: advice",
        "torchx-cubicml: keeping your arguments: no measured launch matches this workload yet",
    )


def test_options_that_nothing_sets_are_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".torchxconfig").touch()
    monkeypatch.setenv("TORCHXCONFIG", str(tmp_path / ".torchxconfig"))
    for name in ("SPACE", "STORE", "MODE"):
        monkeypatch.delenv(f"TORCHX_CUBICML_{name}", raising=False)
    assert Options.resolved() == Options(space="", store="", mode="", flags="--")
    given = {"space": "a", "store": "b", "mode": "c", "flags": "--x-"}
    assert Options.resolved(**given) == Options(**given)


@pytest.mark.parametrize(
    ("scheduler", "mounted", "warned"),
    [
        ("kubernetes", (), True),
        ("kubernetes", ("/elsewhere", "{folder}"), False),
        ("kubernetes", ("{folder}/store/below",), True),
        ("slurm", (), False),
        ("", (), False),
    ],
)
def test_a_store_outside_of_the_containers_is_reported(
    options: Options, tmp_path: Path, scheduler: str, mounted: tuple[str, ...], warned: bool
) -> None:
    folders = tuple(folder.format(folder=tmp_path) for folder in mounted)
    launch = replace(LAUNCH, scheduler=scheduler, mounted=folders)
    rewritten = rewrite(launch, replace(options, store=str(tmp_path / "store"), mode="record", flags="--our-"))
    line = f"{tmp_path}/store may not be visible to jobs on {scheduler}, or end with their container"
    lines = [each for each in rewritten.lines if "visible" in each]
    assert lines == ([f"torchx-cubicml: {line}; use a shared store (--our-store URL)"] if warned else [])
    assert rewritten.contract is not None
    assert rewritten.contract.scheduler == scheduler


def test_on_ray_the_nodes_must_share_a_folder(options: Options, tmp_path: Path) -> None:
    launch = replace(LAUNCH, scheduler="ray")
    shared = rewrite(launch, replace(options, store="s3://team/cubicml", mode="record", flags="--"))
    assert not any("visible" in line for line in shared.lines)
    folder = rewrite(launch, replace(options, store=str(tmp_path / "store"), mode="record", flags="--"))
    said = f"{tmp_path}/store is visible to jobs on ray only if all nodes of the cluster share this folder"
    assert f"torchx-cubicml: {said}; use a shared store (--store URL)" in folder.lines


def test_a_known_launch_is_counted_in_the_singular(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(options)
    for count, words in ((1, "based on 1 launch of"), (2, "based on 2 launches of"), (0, "based on 0 launches of")):
        known = replace(promise(), n_trials=count)
        monkeypatch.setattr(advisor, "incumbent", lambda *_, known=known, **__: known)
        TrialStore(options.store).add(trial(8, "NO_SHARD", 9e5 + count))
        lines = rewrite(LAUNCH, options).lines
        assert any(f"arguments rewritten, {words} this workload" in line for line in lines), lines


def test_the_scheduler_of_the_process_is_recorded(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    def recorded() -> str:
        (role,) = rewrite_component(DDP, replace(options, mode="record")).roles
        return decode_contract(role.env[CONTRACT_VARIABLE]).scheduler

    monkeypatch.setattr(rewriter, "scheduler_of_process", lambda: "slurm")
    assert recorded() == "slurm"
    monkeypatch.setattr(rewriter, "scheduler_of_process", None)  # calling it fails
    assert recorded() == ""


def test_a_failure_without_words_has_the_name_of_its_kind(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise LaunchError("")

    monkeypatch.setattr(rewriter, "_contract_with_config", fail)
    assert_as_typed(rewrite(LAUNCH, options), "keeping your arguments: LaunchError$")

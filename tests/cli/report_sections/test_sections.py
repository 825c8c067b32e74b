"""Sections on time, memory, promises, efficiency and objectives: made of the trials of one workload."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import unescape
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from torchx_cubicml.cli.report_sections.view import WorkloadView
from torchx_cubicml.predictors.roofline import Roofline
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import Origin, State, Trial
from torchx_cubicml.report.sections.figures import Colours
from torchx_cubicml.space import Parameter, SearchSpace
from torchx_cubicml.tuner.results import TuneNotes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.records.values import Value

HOSTILE = "</script><img src=x onerror=alert(1)> datum['x'] \u2028 ' \" &"
WORKLOAD: dict[str, Value] = {
    "program": "train.py",
    "world_size": 8,
    "n_layers": 4,
    "d_model": 1024,
    "n_heads": 16,
    "seq_len": 1024,
    "vocab_size": 32_000,
    "n_params": 80_000_000,
    "device": "NVIDIA A100-SXM4-80GB",
    "attention_kernel": "flash",
    "precision": "bf16",
}
OWN: dict[str, Value] = {"micro_batch_size": 1, "activation_checkpointing": "full"}
BEST: dict[str, Value] = {"micro_batch_size": 8, "activation_checkpointing": "none"}
BEGIN = datetime(2026, 3, 2, 9, tzinfo=UTC)
NEW = ("step_breakdown", "launch_times", "kept_promises", "hardware_use", "two_objectives")


def launch(number: int, config: dict[str, Value], *, minutes: float = 10.0, **changes: Any) -> Trial:
    """Return a measured launch that starts so many quarters of an hour after the first, at the formulas' pace."""
    row = {**WORKLOAD, **config}
    step_s = sum(Roofline().explain(row).values())
    begin = BEGIN + timedelta(minutes=15 * number)
    size = config["micro_batch_size"]
    assert isinstance(size, int)
    measured = Measurement(
        tokens_per_second=size * 8 * 1024 / step_s,
        mean_step_time_s=step_s,
        statistic="mean",
        relative_error=0.01,
        peak_memory_gib=10.0,
        share_outside_steps=0.03,
        startup_s=60.0,
        compile_s=0.0,
        warmup_s=0.0,
        steps_counted=100,
    )
    trial = Trial(
        trial_id=f"trial-{number}",
        workload=WORKLOAD,
        config=config,
        state=State.COMPLETED,
        measurement=measured,
        started_at=begin.isoformat(),
        ended_at=(begin + timedelta(minutes=minutes)).isoformat(),
    )
    return replace(trial, **changes)


def powered(trial: Trial, watts: float) -> Trial:
    assert trial.measurement is not None
    return replace(trial, measurement=replace(trial.measurement, power_watts=watts, power_of="GPUs"))


def failed(trial: Trial, state: State) -> Trial:
    return replace(trial, measurement=None, state=state, reason="why")


def view(trials: Sequence[Trial], **changes: Any) -> WorkloadView:
    given: dict[str, Any] = {
        "trials": trials,
        "objective": "tokens_per_second",
        "space": None,
        "notes": TuneNotes(),
        "store": "file:///store",
        "recorded": trials,
        "colours": Colours(),
        "place": 1,
        "predictor": "greybox",
    }
    return WorkloadView(**{**given, **changes})


def section(name: str, trials: Sequence[Trial], **changes: Any) -> str:
    found: str = import_module(f"torchx_cubicml.cli.report_sections.{name}").section(view(trials, **changes))
    return found


def text_of(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", re.sub(r"<title>.*?</title>", " ", html))).split())


def row_of(html: str, heading: str) -> list[str]:
    """Return the texts of the cells of the first row with a heading."""
    for row in re.findall(r"<tr>(.*?)</tr>", html):
        first, *cells = [text_of(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)]
        if first == heading:
            return cells
    raise AssertionError(f"no row {heading}")


def own_and_best() -> list[Trial]:
    found = Origin.EXPLORE
    return [launch(0, OWN), launch(1, BEST, origin=found), launch(2, {**BEST, "micro_batch_size": 4}, origin=found)]


class TestBreakdown:
    def test_own_best_and_another_config_stand_side_by_side(self) -> None:
        html = section("step_breakdown", own_and_best())
        assert row_of(html, "part, ms") == ["your config", "best found", "2nd best"]
        recomputation, outside = row_of(html, "recomputation"), row_of(html, "between steps, measured")
        assert float(recomputation[0].split()[0]) > 0.0
        assert recomputation[1:] == ["-", "-"]
        assert outside == ["3.0 %"] * 3
        assert row_of(html, "part, GiB") == ["your config", "best found", "2nd best"]
        assert row_of(html, "measured")[0] != "-"
        assert "Time: estimated from the step of 3 launches" in text_of(html)

    def test_the_parts_of_a_column_add_up_to_its_total(self) -> None:
        html = section("step_breakdown", own_and_best())
        parts = ("compute", "memory traffic", "recomputation", "data parallel", "optimizer", "overhead")
        for column in (0, 1):
            amounts = [row_of(html, part)[column].split()[0] for part in parts]
            total = float(row_of(html, "estimated in all")[column])
            assert sum(float(each) for each in amounts if each != "-") == pytest.approx(total, rel=0.02)

    def test_the_config_of_a_chosen_trial_comes_first(self) -> None:
        trials = [*own_and_best(), launch(3, {**OWN, "micro_batch_size": 2}, origin=Origin.EXPLORE)]
        html = section("step_breakdown", trials, chosen="trial-3")
        assert row_of(html, "part, ms")[:3] == ["your config", "best found", "trial trial-3"]
        options = re.findall(r"<option[^>]*>(.*?)</option>", html)
        assert options[0] == "trial trial-3: micro_batch_size 2"

    def test_a_latest_launch_that_failed_can_be_compared(self) -> None:
        trials = [*own_and_best(), failed(launch(3, {**BEST, "micro_batch_size": 16}), State.OUT_OF_MEMORY)]
        html = section("step_breakdown", trials)
        assert "the latest launch (out of memory): micro_batch_size 16" in html
        assert row_of(html, "measured")[-1] == "-"

    def test_what_the_formulas_lack_is_one_sentence(self) -> None:
        workload = {"program": "train.py", "world_size": 8}
        trials = [replace(trial, workload=workload) for trial in own_and_best()]
        text = text_of(section("step_breakdown", trials))
        assert text.startswith(
            "Where the time and the memory go No estimate of where time and memory go: the formulas, which are for "
            "transformers and recommenders, lack n_layers, d_model, seq_len"
        )
        assert "<svg" not in section("step_breakdown", trials)

    def test_a_workload_that_was_never_measured_has_intervals(self) -> None:
        space = SearchSpace(parameters=(Parameter(name="micro_batch_size", choices=(1, 2, 4)),))
        facts = {"n_layers": 32, "d_model": 4096, "seq_len": 4096, "n_params": 6_700_000_000, "world_size": 64}
        facts |= {"device": "NVIDIA H100 80GB HBM3", "n_heads": 32, "d_ff": 11_008}
        trial = replace(launch(0, {"micro_batch_size": 1}), workload={**WORKLOAD, **facts})
        html = section("step_breakdown", [failed(trial, State.OUT_OF_MEMORY)], space=space)
        assert html.count('class="whisker"') == 2  # of the step, and of the memory
        assert "no measured launch of yours: " in text_of(html)
        assert "not measured" in text_of(html)


class TestTimes:
    def test_phases_come_from_the_recorded_times(self) -> None:
        planned = launch(0, OWN, launch_id="launch-0123456789abcdef-0001", observed={"queue_s": 90.0})
        html = section("launch_times", [planned])
        assert row_of(html, "completed") == ["1", "90 s", "60 s", "7 min 30 s", "1.13"]
        assert "starting up; 02 Mar 2026, 09:00 UTC; queued 90 s, starting up 60 s, running 7 min 30 s" in html

    def test_a_launch_that_never_started_is_told_apart(self) -> None:
        lost = failed(launch(0, OWN, launch_id="launch-0123456789abcdef-0001"), State.INFRASTRUCTURE)
        html = section("launch_times", [lost])
        assert row_of(html, "infrastructure") == ["1", "-", "-", "-", "-"]
        assert "no start recorded" in html

    def test_launches_at_the_same_time_have_lanes(self) -> None:
        alone, together = ([launch(0, OWN), launch(1, OWN, minutes=minutes), launch(2, OWN)] for minutes in (5.0, 20.0))
        assert "lanes of their own" not in section("launch_times", alone)
        assert "lanes of their own" in section("launch_times", together)

    def test_long_pauses_are_cut_out_and_dated(self) -> None:
        html = section("launch_times", [launch(0, OWN), launch(1000, OWN)])
        assert "pauses cut out" in html
        assert ">12 Mar 2026, 19:00 UTC<" in html
        assert "pauses cut out" not in section("launch_times", [launch(0, OWN), launch(1, OWN)])

    def test_the_latest_tune_has_a_figure_of_its_own(self) -> None:
        tuned = [launch(at, OWN, launch_id=f"launch-0123456789abcdef-000{at}") for at in (1, 2)]
        assert section("launch_times", tuned).count("<figure") == 1
        assert section("launch_times", [*tuned, launch(9, OWN, minutes=600.0)]).count("<figure") == 2

    def test_impossible_times_are_left_out(self) -> None:
        wrong = [
            launch(0, OWN, ended_at=""),
            launch(1, OWN, started_at=""),
            launch(2, OWN, ended_at="2025-01-01T00:00:00Z"),
            launch(3, OWN, ended_at="2126-01-01T00:00:00Z"),
            launch(4, OWN, started_at="yesterday"),
        ]
        assert section("launch_times", wrong) == ""
        assert row_of(section("launch_times", [*wrong, launch(5, OWN)]), "completed")[0] == "1"

    def test_a_running_launch_lasts_until_the_latest_known_time(self) -> None:
        running = replace(launch(0, OWN), state=State.RUNNING, ended_at="", measurement=None)
        html = section("launch_times", [running, launch(1, OWN)])
        assert row_of(html, "not ended")[3] == "25 min 0 s"


def rewritten(number: int, *, ratio: float = 1.0, own: float = 0.5, **changes: Any) -> Trial:
    """Return a launch of 70 minutes at pace that measured so many times the promise; the own config was at ``own``."""
    trial = launch(10 * number, BEST, minutes=71.0, origin=Origin.REWRITE)
    assert trial.measurement is not None
    rate = trial.measurement.tokens_per_second
    assert rate is not None
    promised = rate / ratio
    promise: dict[str, object] = {"throughput": promised, "low": 0.9 * promised, "high": 1.1 * promised}
    promise |= {"baseline_throughput": own * rate, "gain": 2.0, "gain_low": 2.0, "gain_high": 2.0}
    return replace(trial, suggestion=promise, **changes)


class TestPromises:
    def test_promises_are_compared_with_what_was_measured(self) -> None:
        html = section(
            "kept_promises", [rewritten(1), rewritten(2, ratio=0.8), rewritten(3, ratio=1.05), launch(0, OWN)]
        )
        text = text_of(html)
        assert "3 launches were rewritten to a faster config: measured over promised throughput is 1.00 in" in text
        assert "2 of 3 measurements lie in the 80 % interval" in text
        assert [row_of(html, number)[-1] for number in ("1", "2", "3")] == ["yes", "no", "yes"]
        assert row_of(html, "1")[1] == "+100 %"

    def test_the_time_saved_is_that_of_the_same_work(self) -> None:
        text = text_of(section("kept_promises", [rewritten(1)]))
        assert "They ran 70 min" not in text
        assert "They ran 1 h 10 min at their pace." in text
        assert "would have taken 1 h 10 min more (80 % interval: 1 h 10 min more to 1 h 10 min more)." in text

    def test_a_slower_config_has_lost_time(self) -> None:
        assert "would have taken 35 min 0 s less" in text_of(section("kept_promises", [rewritten(1, own=2.0)]))

    def test_a_launch_that_measured_nothing_counts_as_lost(self) -> None:
        lost = failed(rewritten(2), State.OUT_OF_MEMORY)
        text = text_of(section("kept_promises", [rewritten(1), lost]))
        assert "1 launch measured nothing." in text
        assert "Of that, 71 min 0 s of launches without a measurement count as lost." not in text
        assert "1 h 11 min of launches without a measurement count as lost" in text
        assert "would have taken 60 s less" in text

    def test_the_doubt_of_the_own_config_widens_the_time_saved(self) -> None:
        doubtful = rewritten(1)
        promise = {**(doubtful.suggestion or {}), "gain_low": 1.6, "gain_high": 2.5}
        text = text_of(section("kept_promises", [replace(doubtful, suggestion=promise)]))
        assert "(80 % interval: 42 min 0 s more to 1 h 45 min more)" in text

    def test_without_the_doubt_of_the_own_config_no_time_saved_is_told(self) -> None:
        sure = rewritten(1)
        promise = {name: value for name, value in (sure.suggestion or {}).items() if not name.startswith("gain_")}
        unsure = replace(rewritten(2), suggestion=promise)
        assert "same work" not in text_of(section("kept_promises", [unsure]))
        text = text_of(section("kept_promises", [sure, unsure]))
        assert "1 launch without recorded times, or without that prediction and its interval, is left out." in text

    def test_without_a_measurement_nothing_is_saved(self) -> None:
        text = text_of(section("kept_promises", [failed(rewritten(1), State.USER_ERROR)]))
        assert "1 launch was rewritten to a faster config; none of them was measured." in text
        assert "same work" not in text

    @pytest.mark.parametrize("value", [True, "9", -1.0, float("inf"), None, 10**400])
    def test_a_broken_promise_of_a_foreign_store_is_no_number(self, value: object) -> None:
        broken = rewritten(1)
        names = ("low", "high", "baseline_throughput", "gain", "gain_low", "gain_high")
        promise = {**(broken.suggestion or {}), **dict.fromkeys(names, value)}
        html = section("kept_promises", [replace(broken, suggestion=promise)])
        assert row_of(html, "1")[-1] == "-"
        assert "same work" not in text_of(html)

    def test_launches_of_tunes_and_typed_ones_are_no_promises(self) -> None:
        trials = [replace(rewritten(at), origin=origin) for at, origin in enumerate((Origin.TUNE, Origin.USER))]
        assert section("kept_promises", trials) == ""


class TestHardwareUse:
    def test_mfu_and_energy_of_own_and_best(self) -> None:
        own, best, other = own_and_best()
        html = section("hardware_use", [powered(own, 2000.0), powered(best, 3000.0), other])
        assert html.count("<figure") == 2
        assert row_of(html, "median over") == ["launches", "MFU", "power", "energy of a step", "tokens per joule"]
        rates = [each.throughput("tokens_per_second") for each in (own, best)]
        for label, rate, watts in zip(("your config", "best found"), rates, (2000.0, 3000.0), strict=True):
            count, mfu, power, _, per_joule = row_of(html, label)
            assert (count, power) == ("1", f"{watts:,.0f} W")
            assert 0.0 < float(mfu.removesuffix(" %")) < 100.0
            assert float(per_joule.replace(",", "")) == pytest.approx((rate or 0.0) / watts, rel=0.01)
        assert row_of(html, "other configs")[2:] == ["-", "-", "-"]
        assert "Power is of GPUs alone, and recorded of 2 of 3 measured launches." in text_of(html)

    def test_without_power_there_is_one_figure(self) -> None:
        html = section("hardware_use", own_and_best())
        assert html.count("<figure") == 1
        assert row_of(html, "median over") == ["launches", "MFU"]

    def test_a_stated_mfu_is_called_so(self) -> None:
        trial = launch(0, OWN, workload={"program": "a", "world_size": 8})
        assert trial.measurement is not None
        html = section("hardware_use", [replace(trial, measurement=replace(trial.measurement, stated_mfu=0.41))])
        assert row_of(html, "your config") == ["1", "41.0 % stated"]
        assert "The MFU of 1 of 1 measured launches is not known: n_layers" in text_of(html)

    def test_without_either_there_is_no_section(self) -> None:
        assert section("hardware_use", [launch(0, OWN, workload={"program": "a", "world_size": 8})]) == ""


class TestTwoObjectives:
    def test_recorded_power_gives_a_second_objective(self) -> None:
        own, best, other = own_and_best()
        html = section("two_objectives", [powered(own, 9000.0), powered(best, 9000.0), powered(other, 1000.0)])
        heads = ["tokens per second", "tokens per second over yours", "tokens per joule", "tokens per joule over yours"]
        assert row_of(html, "config") == [*heads, "± of both", "launches"]
        assert row_of(html, "your own config surpassed in both")[1] == "1.00x"
        assert html.count("<figure") == 1
        assert "A config measured once is on the frontier also by luck" in text_of(html)

    def test_objectives_of_the_space_file_come_first(self) -> None:
        names = {"objective": "tokens_per_second", "second_objective": "tokens_per_device_hour"}
        space = SearchSpace(parameters=(Parameter(name="micro_batch_size", choices=(1, 4, 8)),), **names)
        html = section("two_objectives", own_and_best(), space=space)
        assert row_of(html, "config")[2] == "tokens per device hour"

    def test_multiples_of_one_objective_are_no_two(self) -> None:
        assert section("two_objectives", own_and_best()) == ""

    def test_configs_on_different_numbers_of_devices_are_compared(self) -> None:
        workload = {name: value for name, value in WORKLOAD.items() if name != "world_size"}
        trials = [launch(at, {**OWN, "world_size": size}, workload=workload) for at, size in enumerate((8, 16))]
        assert row_of(section("two_objectives", trials), "config")[2] == "tokens per device hour"

    def test_one_config_has_no_frontier(self) -> None:
        trials = [powered(launch(at, OWN), watts) for at, watts in enumerate((1000.0, 2000.0))]
        assert section("two_objectives", trials) == ""


@pytest.mark.parametrize("name", NEW)
def test_a_section_without_data_is_empty(name: str) -> None:
    bare = Trial.infeasible(workload={"program": "a"}, config={})
    assert section(name, [bare]) == ""


@pytest.mark.parametrize("name", NEW)
def test_a_section_without_the_renderer_keeps_its_table(name: str) -> None:
    trials = [powered(each, watts) for each, watts in zip(own_and_best(), (1e3, 3e3, 2e3), strict=True)]
    html = section(name, [*trials, rewritten(5)], colours=None)
    assert "<table" in html
    assert "<figure" not in html


@pytest.mark.parametrize("name", NEW)
def test_hostile_texts_stay_texts(name: str) -> None:
    def hostile(trial: Trial) -> Trial:
        config = {**trial.config, HOSTILE: f"{HOSTILE}{trial.trial_id}"}
        return replace(trial, workload={**WORKLOAD, "program": HOSTILE}, config=config, reason=HOSTILE)

    trials = [powered(each, watts) for each, watts in zip(own_and_best(), (1e3, 3e3, 2e3), strict=True)]
    html = section(name, [hostile(each) for each in [*trials, rewritten(5)]])
    assert html
    assert not re.search(r"<(script|img)", html)
    assert "could not be drawn" not in html

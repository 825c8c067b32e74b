from __future__ import annotations

from tests.comparisons import compare
from torchx_cubicml.advisor.comparison import Repeats
from torchx_cubicml.cli.measurement_text import measurement_lines, throughput_text
from torchx_cubicml.cli.tune_display import comparison_table
from torchx_cubicml.records.measurement import Measurement

FULL = Measurement(
    tokens_per_second=1830.0,
    steps_counted=33,
    warmup_steps=8,
    statistic="mean",
    relative_error=0.024,
    is_steady=False,
    evaluation_s=12.3,
    checkpoint_s=3.0,
    tokens_per_second_overall=1700.0,
    may_include_evaluation=True,
    other_source="Hugging Face",
    other_samples_per_second=2.1,
)


def test_a_throughput_is_shown_with_error_and_statistic() -> None:
    old = Measurement(samples_per_second=100.0, statistic="p50", step_time_s=(0.49, 0.7, 0.94), drift=-0.49)
    assert throughput_text(old) == "100 samples/s within a factor of 3.5 at the median step"
    assert throughput_text(Measurement(tokens_per_second=5.0, statistic="mean", relative_error=0.001)) == "5 tokens/s"
    assert throughput_text(Measurement(peak_memory_gib=1.0)) == throughput_text(None) == "-"


def test_a_throughput_is_described_line_by_line() -> None:
    assert measurement_lines(FULL) == [
        "1,830 tokens/s ± 4 %, not steady",
        "8 of 41 steps excluded as warm-up",
        "12.3 s of evaluation, 3.0 s of saving excluded",
        "1,700 tokens/s including evaluation and saving",
        "may include evaluation that was not detected",
        "Hugging Face reports 2.1 samples/s",
    ]
    timed = Measurement(tokens_per_second=5.0, startup_s=12.0, compile_s=95.2, warmup_s=0.0)
    assert measurement_lines(timed, observed={"queue_s": 40.4}) == [
        "5 tokens/s",
        "before the steady pace: queued 40 s, start-up 12 s, compilation 95 s",
    ]
    assert measurement_lines(None) == []
    assert measurement_lines(Measurement(tokens_per_second=5.0)) == ["5 tokens/s"]


def test_a_comparison_shows_known_errors() -> None:
    def rows(doubts: tuple[float, ...]) -> list[str]:
        sides = [Repeats(config={"a": 1}, throughputs=(9.0, 9.5), uncertainties=doubts) for _ in range(2)]
        table = comparison_table(compare(*sides, objective="tokens_per_second"), statistic="p50")
        assert table.title == "tokens_per_second at the median step, whole job"
        return list(table.columns[1].cells)

    assert "± 4 %" in rows((0.024, 0.024))
    assert len(rows(())) == len(rows((0.0, 0.0))) == len(rows((0.024, 0.024))) - 1


def test_a_comparison_of_times_shows_their_parts() -> None:
    own, best = (
        Repeats(
            config={"compile": compiled},
            throughputs=(1 / seconds, 1 / (seconds + 20)),
            time_to_done={"queue_s": 40.0, "startup_s": 12.0, **parts},
        )
        for compiled, seconds, parts in (
            (False, 500, {"steps_s": 458.0}),
            (True, 400, {"compile_s": 95.0, "steps_s": 263.0}),
        )
    )
    found = compare(own, best, objective="soonest_done")
    table = comparison_table(found)
    assert table.title == "time until done"
    rows = {name: cells for name, *cells in zip(*(map(str, column.cells) for column in table.columns), strict=True)}
    assert rows == {
        "compile": ["False", "True"],
        "median": ["8 min 30 s", "6 min 50 s"],
        "range": ["8 min 20 s to 8 min 40 s", "6 min 40 s to 7 min 0 s"],
        "queued": ["40 s", "40 s"],
        "start-up": ["12 s", "12 s"],
        "compilation": ["", "95 s"],
        "steps": ["7 min 38 s", "4 min 23 s"],
        "launches": ["2", "2"],
    }
    assert str(found).startswith("Gain 1.24x in jobs per day")

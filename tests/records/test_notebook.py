"""HTML of records in a notebook: what it shows, and that hostile texts stay texts."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest

from tests.plots.simulated import GIVEN, SPACE, launches
from torchx_cubicml import Measurement, ReportCard, State, Suggestion, Trial, TrialStore, evaluate, suggest
from torchx_cubicml.records.notebook import MOST_ROWS, table_html
from torchx_cubicml.space.toml import parse_space
from torchx_cubicml.store import store_html as store_page

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HOSTILE = "</td><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[2J \udcff & ' \""
TAGS = {"div", "strong", "table", "thead", "tbody", "tr", "th", "td", "p"}


class Shown(HTMLParser):
    """Elements and texts of a representation; each element must be closed."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.cells: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self._open.append(tag)
        if tag in {"th", "td", "p", "strong"}:
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.cells[-1] += data

    def after(self, name: str) -> str:
        """Return the cell that follows another one."""
        return self.cells[self.cells.index(name) + 1]


SUGGESTION = Suggestion(
    config={"micro_batch_size": 8, "sharding_strategy": ("NO_SHARD", "NO_SHARD", "FULL_SHARD")},
    throughput=41_000.0,
    low=40_000.0,
    high=42_500.0,
    probability_to_fit=0.97,
    reason="best predicted",
    n_trials=12,
    gain=1.5,
    gain_low=1.25,
    gain_high=1.75,
)
CARD = ReportCard(
    predictor="greybox",
    split="random",
    tau=0.8,
    pearson=0.9,
    spearman=0.85,
    regret=0.05,
    coverage=0.8,
    n_train=40,
    n_test=10,
)


SPACE_FILE = """
[parameters.micro_batch_size]
choices = [1, 2, 4]
flag = "--batch"
[parameters.gradient_accumulation_steps]
derive = "global_batch_size / (micro_batch_size * dp_degree)"
flag = "--accumulate"
[parameters.bucket_mb]
choices = [1, 25]
when = "micro_batch_size > 1"
default = 25
env = "BUCKET"
[[constraints]]
require = "micro_batch_size < 4"
"""


def hostile_trial(_: Path) -> object:
    facts = {HOSTILE: HOSTILE, "list": (HOSTILE, HOSTILE)}
    command = {"words": (HOSTILE, "--api_key", "hunter2hunter2")}
    return Trial(
        trial_id=HOSTILE,
        workload=facts,
        config=facts,
        observed=facts,
        state=State.UNKNOWN,
        reason=HOSTILE,
        command=command,
    )


def hostile_store(folder: Path) -> object:
    store = TrialStore(str(folder / "<b>"))
    facts = {"program": HOSTILE, HOSTILE[:100]: HOSTILE}
    store.add(Trial(trial_id="t", workload=facts, config=facts, state=State.USER_ERROR, reason=HOSTILE))
    return store


REPRESENTED: dict[str, Callable[[Path], object]] = {
    "trial": hostile_trial,
    "store": hostile_store,
    "suggestion": lambda _: replace(SUGGESTION, config={HOSTILE: HOSTILE}, reason=HOSTILE),
    "card": lambda _: replace(CARD, predictor=HOSTILE, split=HOSTILE),
    "space": lambda _: replace(SPACE, facts={HOSTILE: HOSTILE}, objective=HOSTILE),
}


@pytest.mark.parametrize("kind", REPRESENTED)
def test_hostile_texts_are_shown_as_text(kind: str, tmp_path: Path) -> None:
    html = REPRESENTED[kind](tmp_path)._repr_html_()  # type: ignore[attr-defined]  # each has it
    shown = Shown(html)
    assert shown.tags <= TAGS
    assert shown.attributes <= {"style"}
    assert "<script>alert(1)</script>" in "".join(shown.cells)
    assert "\x1b" not in html
    assert "hunter2" not in html
    html.encode()


def test_a_trial_shows_what_was_recorded() -> None:
    measured = Measurement(tokens_per_second=41_000.0, step_time_s=(0.9, 1.0, 1.2))
    trial = replace(
        launches(1)[0], measurement=measured, digests={"program": "secret"}, command={"words": ("torchrun", "a b.py")}
    )
    shown = Shown(trial._repr_html_())
    assert shown.cells[0] == "Trial trial-000"
    names = ("state", "workload.program", "measurement.tokens_per_second", "measurement.step_time_s", "command.words")
    assert [shown.after(name) for name in names] == ["completed", "train.py", "41000", "0.9,1,1.2", "torchrun 'a b.py'"]
    assert "secret" not in trial._repr_html_()


def test_a_suggestion_shows_its_prediction_with_its_interval() -> None:
    shown = Shown(SUGGESTION._repr_html_())
    assert shown.after("sharding_strategy") == "2xNO_SHARD,FULL_SHARD"
    assert shown.after("throughput of the whole job, per second") == "41,000 (80 % interval: 40,000 to 42,500)"
    assert shown.after("over your own config") == "1.5x (80 % interval: 1.25x to 1.75x)"
    assert shown.cells[-1] == "best predicted"


def test_a_suggestion_without_a_prediction_claims_none() -> None:
    unknown = replace(SUGGESTION, throughput=None, low=None, high=None, gain=None, gain_low=None, gain_high=None)
    assert "interval" not in unknown._repr_html_()
    timed = replace(SUGGESTION, objective="soonest_done", throughput=0.01, low=0.008, high=0.0125)
    assert Shown(timed._repr_html_()).after("until the job is done") == "100 s (80 % interval: 80 s to 125 s)"


def test_a_real_suggestion_and_a_real_card_are_shown() -> None:
    trials = launches(30)
    (best,) = suggest(SPACE, **GIVEN, trials=trials)
    assert Shown(best._repr_html_()).after("micro_batch_size") == str(best.config["micro_batch_size"])
    card = evaluate(trials)
    shown = Shown(card._repr_html_())
    assert shown.after("Kendall's tau") == f"{card.tau:.2f}"
    assert shown.cells[-1].startswith(f"Only {card.n_test} trials were predicted")


def test_scores_without_a_meaning_are_left_out() -> None:
    assert "nan" not in CARD._repr_html_()
    assert "regret of the best of three" not in CARD._repr_html_()


def test_a_space_shows_values_conditions_places_and_constraints() -> None:
    space = parse_space(SPACE_FILE, where="space.toml")
    shown = Shown(space._repr_html_())
    assert shown.after("micro_batch_size") == "1, 2, 4"
    assert shown.after("gradient_accumulation_steps") == "= global_batch_size / (micro_batch_size * dp_degree)"
    assert [shown.after(name) for name in ("bucket_mb", "1, 25", "micro_batch_size > 1")] == [
        "1, 25",
        "micro_batch_size > 1",
        "env BUCKET",
    ]
    assert "flag --batch" in shown.cells
    assert "Constraints: micro_batch_size < 4" in shown.cells


def test_a_store_shows_its_latest_trials_first_and_how_all_ended(tmp_path: Path) -> None:
    store = TrialStore(str(tmp_path))
    trials = launches(30)
    for trial in trials:
        store.add(trial)
    shown = Shown(store._repr_html_())
    failed = sum(trial.measurement is None for trial in trials)
    assert shown.cells[:2] == [f"30 trials in {store.url}", f"{30 - failed} completed, {failed} out of memory"]
    assert shown.after("reason") == "2026-01-01 00:29:00"
    assert shown.cells[-1] == "The latest 20 are shown."


def test_an_empty_a_damaged_and_an_unreadable_store_say_so(tmp_path: Path) -> None:
    assert Shown(TrialStore(str(tmp_path))._repr_html_()).cells[0] == f"0 trials in {tmp_path}"
    store = TrialStore(str(tmp_path))
    store.add(launches(1)[0])
    next(tmp_path.rglob("*.json")).write_text("{")
    assert "skipped 1 unreadable object" in store._repr_html_()
    (tmp_path / "file").write_text("x")
    assert "The store cannot be read" in TrialStore(str(tmp_path / "file"))._repr_html_()


def test_a_store_that_takes_long_to_read_shows_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = TrialStore(str(tmp_path))
    store.add(launches(1)[0])
    monkeypatch.setattr(store_page, "_MOST_S", -1.0)
    assert "so nothing is shown" in store._repr_html_()


def test_a_long_table_is_cut_and_says_so() -> None:
    shown = Shown(table_html((), [("name", "x" * 1000)] * (MOST_ROWS + 3)))
    assert shown.cells[-1] == "3 more"
    assert shown.cells.count("name") == MOST_ROWS
    assert shown.cells[1].endswith("… (cut)")


def test_secrets_are_masked_by_name_and_in_long_texts() -> None:
    reason = "password=hunter2 " * 200
    trial = Trial(
        trial_id="t", workload={"api_key": "hunter2"}, config={"n": 1}, state=State.OUT_OF_MEMORY, reason=reason
    )
    shown = Shown(trial._repr_html_())
    assert "hunter2" not in " ".join(shown.cells)
    assert shown.after("workload.api_key") == "***"
    assert shown.after("reason").startswith("password=*** password=***")
    assert shown.after("reason").endswith("… (cut)")
    short_when_masked = f"{'/'.join(['https://' + 'u:' + 'p' * 2000 + '@host'] * 3)}"
    assert Shown(table_html((), [("url", short_when_masked)])).after("url").endswith("… (cut)")

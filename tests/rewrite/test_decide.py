from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spaces import BATCH_SIZES
from torchx_cubicml import advisor
from torchx_cubicml.errors import CubicMLError, StoreError
from torchx_cubicml.history.history import History
from torchx_cubicml.launch.going_on import ResumeSigns
from torchx_cubicml.records.trial import Origin, State, Trial
from torchx_cubicml.rewrite import decide as decide_module
from torchx_cubicml.rewrite.cache import CachedSuggestion, cache_path, load, save
from torchx_cubicml.rewrite.choice import Choice, advise, apply_rules, keeps_own
from torchx_cubicml.rewrite.decide import Decision, DecisionLimits, decide
from torchx_cubicml.rewrite.rules import held
from torchx_cubicml.rewrite.unsure_gain import unsure_gain
from torchx_cubicml.space import RewriteRules
from torchx_cubicml.space.toml import parse_space
from torchx_cubicml.store import TrialStore
from torchx_cubicml.store.predictor_choice import append_choice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torchx_cubicml.records.values import Value

SPACE = parse_space(
    BATCH_SIZES
    + """
    [parameters.mode]
    choices = ["a", "b"]
    flag = "--mode"
    """,
    where="space.toml",
)
WORKLOAD: dict[str, Value] = {"program": "train.py", "world_size": 2}
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def chosen(case: History) -> Choice | None:
    """What is decided of the trials of a case, without a store, a cache or a deadline."""
    suggestion = advise(case)
    unsure = unsure_gain(case, recorded=case.trials) if keeps_own(case, suggestion) else ""
    return apply_rules(case, suggestion, unsure=unsure) if suggestion is not None else None


def config(batch: int, mode: str) -> dict[str, Value]:
    return {"micro_batch_size": batch, "gradient_accumulation_steps": 16 // batch, "mode": mode}


CASE = History(space=SPACE, held=held(SPACE), workload=WORKLOAD, current=config(2, "a"))


def ran(batch: int, mode: str = "a", *, program: str = "train.py", throughput: float = 0.0) -> Trial:
    throughput = throughput or 1000.0 * batch * (1.1 if mode == "b" else 1.0)
    workload = {**WORKLOAD, "program": program}
    return Trial.completed(workload=workload, config=config(batch, mode), tokens_per_second=throughput)


class Place:
    """A store and a cache, and how often something was worked out."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = TrialStore(str(folder / "store"))
        self.limits = DecisionLimits(read_s=60, think_s=60, cache=folder / "cache")
        self.n_learned = 0
        real = advisor.incumbent

        def counted(*args: object, **kwargs: object) -> object:
            self.n_learned += 1
            return real(*args, **kwargs)

        monkeypatch.setattr(advisor, "incumbent", counted)

    def add(self, *trials: Trial) -> None:
        for trial in trials:
            self.store.add(trial)

    def decide(self, case: History = CASE) -> Decision:
        return decide(case, ResumeSigns(), self.store.url, limits=self.limits, now=NOW)

    def kept(self, case: History = CASE) -> Path:
        assert self.limits.cache is not None
        return cache_path(self.limits.cache, case, self.store.url)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


@pytest.fixture
def filled(place: Place) -> Place:
    place.add(*(ran(batch, mode) for batch, mode in product([1, 2, 4, 8], "ab") if (batch, mode) != (8, "b")))
    place.add(*(ran(1, program="other.py", throughput=1000.0 + number) for number in range(33)))
    return place


def test_a_second_launch_of_a_command_reuses_the_decision(filled: Place) -> None:
    first, second = filled.decide(), filled.decide()
    assert first == second
    assert first.choice is not None
    assert first.choice.config["micro_batch_size"] == 8
    assert filled.n_learned == 1
    assert first.choice == chosen(replace(CASE, trials=list(filled.store)))


@pytest.mark.parametrize("news", [0, 1], ids=["nothing new", "a launch elsewhere since"])
def test_a_kept_decision_loads_no_library(filled: Place, news: int) -> None:
    """It takes a few milliseconds, where NumPy alone takes eighty to load."""
    filled.decide()
    filled.add(*(ran(1, program="other.py", throughput=9.0 + number) for number in range(news)))
    script = f"""
import sys
for name in ("numpy", "scipy", "sklearn", "torch", "fsspec", "pandas"):
    sys.modules[name] = None
from datetime import UTC, datetime
from pathlib import Path
from torchx_cubicml.history.history import History
from torchx_cubicml.launch.going_on import ResumeSigns
from torchx_cubicml.rewrite.rules import held
from torchx_cubicml.rewrite.decide import DecisionLimits, decide
from torchx_cubicml.space.toml import parse_space
space = parse_space(sys.argv[3], where="space.toml")
case = History(space=space, held=held(space), workload={WORKLOAD!r}, current={dict(CASE.current)!r})
limits = DecisionLimits(read_s=60, think_s=60, cache=Path(sys.argv[2]))
print(decide(case, ResumeSigns(), sys.argv[1], limits=limits, now=datetime.now(UTC)).choice.config["micro_batch_size"])
"""
    text = "\n".join(
        f"[parameters.{item.name}]\n"
        + (f"choices = {list(item.choices)}\n" if item.derive is None else f"derive = '{item.derive.source}'\n")
        + f"flag = '{item.binding.name}'\n"
        for item in SPACE.parameters
        if item.binding is not None
    )
    command = [sys.executable, "-c", script, filled.store.url, str(filled.limits.cache), text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert (done.stdout, done.stderr) == ("8\n", "")


@pytest.mark.parametrize(
    ("news", "learned"),
    [
        ([ran(8, "b")], True),
        ([replace(ran(8, "b"), state=State.RUNNING)], True),
        ([replace(ran(8, "b"), state=State.RUNNING, measurement=None)], False),
        ([replace(ran(8, "b"), state=State.PLANNED, measurement=None)], False),
        ([Trial.infeasible(workload=WORKLOAD, config=config(8, "a"))], True),
        ([Trial.infeasible(workload=WORKLOAD, config=config(8, "a"), reason="infrastructure")], True),
        ([ran(1, program="other.py")], False),
        ([ran(1, program="other.py")] * 1 + [ran(2, program="other.py")] * 1, False),
        ([ran(1, program="other.py", throughput=2.0 + number) for number in range(3)], True),
    ],
    ids=[
        "measured",
        "measured and running",
        "running",
        "planned",
        "out of memory",
        "broken off",
        "another program's",
        "two of another program",
        "a twentieth more",
    ],
)
def test_only_what_can_matter_is_learned_from(filled: Place, news: list[Trial], learned: bool) -> None:
    before = filled.decide()
    filled.add(*(replace(trial, trial_id=f"news{number}") for number, trial in enumerate(news)))
    after = filled.decide()
    assert filled.n_learned == 1 + learned
    if not learned:
        assert after == before
    assert filled.decide() == after
    assert filled.n_learned == 1 + learned


def test_a_launch_under_way_counts_once_it_has_observed(filled: Place) -> None:
    """So that a decision kept and one worked out anew are the same."""
    filled.add(replace(ran(8, "a"), state=State.RUNNING, measurement=None))
    with_it = chosen(replace(CASE, trials=list(filled.store)))
    without = chosen(replace(CASE, trials=[t for t in filled.store if t.state.ended]))
    assert with_it == without


@pytest.mark.parametrize(
    "changed",
    [
        replace(CASE, current=config(4, "a")),
        replace(CASE, workload={**WORKLOAD, "world_size": 4}),
        replace(CASE, space=replace(SPACE, rewrite=RewriteRules(freeze=("micro_batch_size",), baseline_every=0))),
        replace(CASE, space=replace(SPACE, rewrite=RewriteRules(min_gain=50.0))),
        replace(CASE, space=replace(SPACE, objective="samples_per_second")),
    ],
    ids=["other config", "other size", "frozen", "higher wants", "other objective"],
)
def test_another_command_or_space_has_its_own(filled: Place, changed: History) -> None:
    assert filled.kept() != filled.kept(changed)
    filled.decide()
    assert filled.decide(changed).choice == chosen(replace(changed, trials=list(filled.store)))


def test_the_name_of_what_is_kept_is_the_same_in_every_process(filled: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets are told in one order, whatever the seed of the hashes."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; "
    code += "from tests.rewrite import test_decide as t; from torchx_cubicml.rewrite.cache import cache_path; "
    code += "print(cache_path(Path('x'), t.CASE, 'y').name)"
    root = str(Path(__file__).parents[2])
    names = set()
    for seed in "123":
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        names.add(subprocess.check_output([sys.executable, "-c", code, root], text=True, timeout=600))
    assert len(names) == 1


def test_another_predictor_chosen_for_the_store_is_asked(filled: Place) -> None:
    filled.decide()
    append_choice(filled.store.url, "boosting", why={})
    filled.decide()
    filled.decide()
    assert filled.n_learned == 2


def test_a_remote_store_is_listed_once_for_a_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchx_cubicml.store.remote import RemoteBackend

    place = Place(tmp_path, monkeypatch)
    place.store = TrialStore(f"memory://{tmp_path.name}")
    place.add(ran(2), ran(2), ran(8), ran(8))
    first, listed = place.decide(), []
    real = RemoteBackend.list_objects
    monkeypatch.setattr(RemoteBackend, "list_objects", lambda *args: listed.append(args[0]._url) or real(*args))
    assert place.decide() == first
    assert place.n_learned == 1
    assert len([url for url in listed if not url.endswith(("choices", "digest-key"))]) == 1


def test_values_of_different_types_are_distinct(filled: Place) -> None:
    values: list[Value] = [1, True, "1", (1,)]
    assert len({filled.kept(replace(CASE, workload={**WORKLOAD, "n": value})) for value in values}) == 4


def test_no_measurement_keeps_no_decision(place: Place) -> None:
    assert place.decide().choice is None
    assert place.decide().choice is None
    assert place.n_learned == 0
    place.add(ran(2), ran(8))
    assert place.decide().choice is not None


def test_without_a_folder_no_decision_is_kept(filled: Place) -> None:
    filled.limits = replace(filled.limits, cache=None)
    assert filled.decide() == filled.decide()
    assert filled.n_learned == 2


def test_a_kept_decision_is_judged_again(filled: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    filled.decide()
    for name, reason in (("rejection_reason", "no"), ("batch_change_reason", "another batch")):
        with monkeypatch.context() as patch:
            patch.setattr(f"torchx_cubicml.rewrite.choice.{name}", lambda *_, reason=reason, **__: reason)
            choice = filled.decide().choice
            assert choice is not None
            assert choice.rejection_reason == reason
    monkeypatch.setattr("torchx_cubicml.rewrite.choice.held", lambda _, **__: ("micro_batch_size",))
    assert filled.decide().choice != choice
    assert filled.n_learned <= 2


def test_store_warnings_are_repeated_with_a_kept_decision(filled: Place) -> None:
    (Path(filled.store.url) / "events" / "bad.json").write_text("{")
    first, second = filled.decide(), filled.decide()
    assert first == second
    assert "bad.json" in second.lines[0]


def test_an_exploring_launch_is_drawn_although_something_is_kept(filled: Place) -> None:
    rules = RewriteRules(explore=1.0, explore_budget_device_hours=10.0, min_fit=0.1)
    case = replace(CASE, space=replace(SPACE, rewrite=rules))
    for _ in range(2):
        found = filled.decide(case)
        assert found.choice is not None
        assert found.choice.origin is Origin.EXPLORE
        assert found.choice.config == config(8, "b")
    assert any("this launch explores" in line for line in found.lines)


def test_a_full_budget_leaves_the_kept_decision(filled: Place) -> None:
    case = replace(CASE, space=replace(SPACE, rewrite=RewriteRules(explore=1.0, explore_budget_device_hours=0.0)))
    first, second = filled.decide(case), filled.decide(case)
    assert first == second
    assert first.choice is not None
    assert first.choice.origin is Origin.REWRITE
    assert any("could exceed the exploration budget" in line for line in first.lines)
    assert filled.n_learned == 1


def test_an_unlistable_store_is_reported(filled: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    filled.decide()

    def refuse(*_: object, **__: object) -> None:
        raise StoreError("the store is gone")

    monkeypatch.setattr("torchx_cubicml.store.local.LocalBackend.list_objects", refuse)
    with pytest.raises(StoreError, match="gone"):
        filled.decide()


HOSTILE = [None, -1, 3, 10**30, 1e308, 0.5, "", "; rm -rf /", "$(id)", "x" * 10**6, [], [0], [9, 9], [-1, 0], {}, True]


def places_of(value: object, path: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places_of(item, (*path, key))


def test_a_kept_decision_adds_no_foreign_word(filled: Place) -> None:
    """Any one or two values of it replaced by any others: a legal config of the user's space, or learned anew."""
    filled.add(ran(8, "b"))
    filled.decide()
    path = filled.kept()
    whole = json.loads(path.read_text())
    rng = random.Random(0)
    legal = [config(batch, mode) for batch, mode in product([1, 2, 4, 8], "ab")]
    places = [place for place in places_of(whole) if place]
    for _ in range(400):
        damaged = json.loads(json.dumps(whole))
        for place in rng.sample(places, rng.choice([1, 2])):
            inner = damaged
            try:
                for key in place[:-1]:
                    inner = inner[key]
                inner[place[-1]] = rng.choice(HOSTILE)
            except (TypeError, KeyError, IndexError):
                continue
        path.write_text(json.dumps(damaged))
        kept = load(path, CASE)
        if kept is None or kept.suggestion is None:
            continue
        assert kept.suggestion.config in legal
        try:
            choice = filled.decide().choice
        except CubicMLError:
            continue
        assert choice is not None
        assert choice.config in legal
        assert len(choice.suggestion.reason) <= 4096


@pytest.mark.parametrize("text", ["{", "[]", "NaN", '{"suggestion": NaN}', "x" * 10_000_000], ids=str.__len__)
def test_a_damaged_file_is_replaced(filled: Place, text: str) -> None:
    first = filled.decide()
    filled.kept().write_text(text)
    assert filled.decide() == first
    assert filled.n_learned == 2


def test_what_is_kept_is_recalled_with_each_number(place: Place) -> None:
    """But for the trials that lie near, which only lists of suggestions show."""
    suggestion = advisor.Suggestion(
        config=config(8, "b"),
        throughput=10.5,
        low=9.5,
        high=11.5,
        probability_to_fit=0.75,
        reason="why",
        n_trials=7,
        baseline_throughput=5.25,
        gain=2.0,
        gain_low=1.75,
        gain_high=2.25,
        doubt=0.125,
    )
    kept = CachedSuggestion(
        suggestion=suggestion,
        store={},
        shown="digest",
        n_trials=9,
        n_launched=8,
        predictor="boosting",
        unsure="workers 0 -> 4 measured 3.60x yours, not surely faster",
        lines=("advice",),
        warnings=("a warning",),
    )
    save(place.kept(), kept, CASE)
    assert load(place.kept(), CASE) == kept
    of_own = replace(
        kept, suggestion=replace(suggestion, config=CASE.current, gain=None, gain_low=None, gain_high=None)
    )
    save(place.kept(), of_own, CASE)
    assert load(place.kept(), CASE) == of_own
    save(place.kept(), replace(kept, suggestion=None), CASE)
    assert load(place.kept(), CASE) == replace(kept, suggestion=None)


@pytest.mark.parametrize(
    ("shown", "n_trials", "predictor", "stands"),
    [
        ("same", 100, "same", True),
        ("same", 105, "same", True),  # five per cent more elsewhere
        ("same", 106, "same", False),
        ("same", 99, "same", False),
        ("other", 100, "same", False),
        ("same", 100, "other", False),
    ],
)
def test_a_cached_suggestion_is_valid_until_much_is_new(
    shown: str, n_trials: int, predictor: str, stands: bool
) -> None:
    kept = CachedSuggestion(suggestion=None, store={}, shown="same", n_trials=100, n_launched=0, predictor="same")
    assert kept.stands(shown=shown, n_trials=n_trials, predictor=predictor) is stands


def test_the_absence_of_measurements_is_cached(place: Place) -> None:
    place.add(ran(1, program="other.py"))
    append_choice(place.store.url, "boosting", why={})
    place.decide()
    kept = load(place.kept(), CASE)
    assert kept is not None
    assert (kept.suggestion, kept.predictor, kept.n_trials, kept.n_launched) == (None, "boosting", 1, 0)


def kept_for_own(**changes: object) -> CachedSuggestion:
    """Return what is cached of a suggestion of the user's own config."""
    numbers = {"throughput": 10.0, "low": 9.0, "high": 11.0, "gain": 2.0, "gain_low": 1.5, "gain_high": 2.5}
    suggestion = advisor.Suggestion(
        **{"config": CASE.current, "probability_to_fit": 0.5, "reason": "why", "n_trials": 7, **numbers, **changes}
    )
    return CachedSuggestion(suggestion=suggestion, store={}, shown="s", n_trials=9, n_launched=8)


@pytest.mark.parametrize(
    "changes",
    [
        {"probability_to_fit": 1.0},
        {"probability_to_fit": 0.0, "n_trials": 0},
        {"low": 10.0, "high": 10.0},
        {"gain_low": 2.0, "gain_high": 2.0},
        {"throughput": None, "low": None, "high": None, "baseline_throughput": None},
        {"throughput": 0.0, "low": 0.0, "high": 0.0},
        {"low": None, "gain_low": None},
        {"reason": "x" * 4096},
        {"time_to_done": {"queue_s": 40.0, "steps_s": 2.5}},
    ],
)
def test_the_ends_of_legal_numbers_are_recalled(place: Place, changes: dict[str, object]) -> None:
    kept = kept_for_own(**changes)
    save(place.kept(), kept, CASE)
    assert load(place.kept(), CASE) == kept


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("probability_to_fit", 1.01),
        ("probability_to_fit", None),
        ("doubt", None),
        ("low", 10.1),
        ("high", 9.9),
        ("gain_low", 2.1),
        ("gain_high", 1.9),
        ("gain", None),
        ("throughput", None),
        ("high", None),
        ("gain_high", None),
        ("gain", -1.0),
        ("n_trials", 1.5),
        ("reason", "x" * 4097),
        ("reason", None),
        ("choices", [True, 0]),
        ("choices", [-1, 0]),
        ("choices", [0.0, 0]),
        ("choices", [0]),
        ("choices", {}),
        ("choices", "00"),
        ("choices", [9, 9]),
    ],
)
def test_a_suggestion_with_a_damaged_value_is_not_recalled(place: Place, name: str, value: object) -> None:
    save(place.kept(), kept_for_own(), CASE)
    whole = json.loads(place.kept().read_text())
    assert name in whole["suggestion"]
    whole["suggestion"][name] = value
    place.kept().write_text(json.dumps(whole))
    assert load(place.kept(), CASE) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("shown", "x" * 4097),
        ("predictor", "x" * 4097),
        ("predictor", None),
        ("n_trials", -1),
        ("n_launched", 0.5),
        ("lines", ["x"] * 17),
        ("lines", ["x" * 4097]),
        ("warnings", ["x"] * 17),
        ("warnings", ["x" * 4097]),
        ("store", []),
        ("suggestion", []),
    ],
)
def test_a_damaged_value_is_not_recalled(place: Place, name: str, value: object) -> None:
    save(place.kept(), kept_for_own(), CASE)
    whole = json.loads(place.kept().read_text())
    assert name in whole
    place.kept().write_text(json.dumps({**whole, name: value}))
    assert load(place.kept(), CASE) is None


def test_first_positions_and_few_lines_are_recalled(place: Place) -> None:
    lines = tuple(f"line {number}" for number in range(17))
    kept = replace(kept_for_own(config=config(1, "a"), reason="x" * 5000), lines=lines, warnings=lines)
    save(place.kept(), kept, CASE)
    recalled = load(place.kept(), CASE)
    assert recalled is not None
    assert recalled.suggestion == replace(kept.suggestion, reason="x" * 4096)
    assert recalled.lines == recalled.warnings == lines[:16]


def test_an_own_config_outside_of_the_choices_is_recalled(place: Place) -> None:
    case = replace(CASE, current={**CASE.current, "mode": "c"})
    kept = kept_for_own(config=case.current)
    save(place.kept(case), kept, case)
    assert load(place.kept(case), case) == kept


def test_a_config_outside_of_the_choices_is_not_kept(place: Place) -> None:
    save(place.kept(), kept_for_own(config=config(1, "z")), CASE)
    assert load(place.kept(), CASE) is None


def test_the_newest_256_commands_are_kept(place: Place) -> None:
    folder = place.kept().parent
    assert folder.name == "suggestions"
    folder.mkdir(parents=True)
    for number in range(300):
        (folder / f"{number}.json").touch()
    save(place.kept(), kept_for_own(), CASE)
    assert len(list(folder.iterdir())) == 256


SETTLED_NS = "torchx_cubicml.store.local._SETTLED_NS"  # age from which the stamp of a folder counts


@pytest.mark.parametrize("age_ns", [10**18, -(10**18)], ids=["stamps are young", "stamps have settled"])
def test_an_unchanged_store_is_not_read_again(filled: Place, age_ns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SETTLED_NS, age_ns)
    append_choice(filled.store.url, "boosting", why={})
    first = filled.decide()
    kept = filled.kept().read_text()
    monkeypatch.setattr("torchx_cubicml.rewrite.decide.read_with_deadline", None)
    assert filled.decide() == first
    assert filled.kept().read_text() == kept


def test_stamps_that_have_settled_since_are_kept(filled: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SETTLED_NS, 10**18)
    first = filled.decide()
    young = json.loads(filled.kept().read_text())
    monkeypatch.setattr(SETTLED_NS, -(10**18))
    assert filled.decide() == first
    settled = json.loads(filled.kept().read_text())
    assert {stamp for stamp, _ in young["store"].values()} == {None}
    assert settled == {
        **young,
        "store": {place: [Path(place).stat().st_ctime_ns, names] for place, (_, names) in young["store"].items()},
    }


def test_advice_on_the_trials_is_kept_with_the_decision(filled: Place) -> None:
    for device, day in (("A100", 1), ("H100", 2)):
        filled.add(replace(ran(4, "b"), observed={"device": device}, ended_at=f"2025-12-0{day}T00:00:00+00:00"))
    first, second = filled.decide(), filled.decide()
    assert first.lines == second.lines == ("1 launch left out: the latest had device H100, not A100",)


def test_no_line_stands_for_nothing(filled: Place) -> None:
    assert filled.decide().lines == filled.decide().lines == ()


def test_an_unreadable_choice_of_a_predictor_is_none(filled: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str) -> str:
        raise StoreError("damaged")

    monkeypatch.setattr("torchx_cubicml.rewrite.decide.latest_choice", refuse)
    filled.decide()
    kept = load(filled.kept(), CASE)
    assert kept is not None
    assert kept.predictor == ""


def test_a_small_gain_over_few_launches_has_it_measured_again(place: Place) -> None:
    place.add(*(ran(2, throughput=1000.0 + n) for n in range(2)), *(ran(4, throughput=1150.0 + n) for n in range(3)))
    place.add(*(ran(8, throughput=900.0 + n) for n in range(2)))  # seven launches: the next one is due
    choice = place.decide().choice
    assert choice is not None
    assert choice.config == config(4, "a")
    assert choice.rejection_reason == (
        "this launch measures your own config again, which was measured 2 times: one launch in 4 does until there are "
        "3 (baseline_every = 0 switches this off)"
    )
    again = place.decide().choice
    assert again == choice
    off = replace(CASE, space=replace(SPACE, rewrite=RewriteRules(baseline_every=0)))
    unhindered = place.decide(off).choice
    assert unhindered is not None
    assert unhindered.rejection_reason == ""
    place.add(ran(2, throughput=1001.0))
    later = place.decide().choice
    assert later is not None
    assert later.rejection_reason == ""


def test_an_unreadable_key_of_the_digests_is_none_and_costs_no_second_deadline(
    filled: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []
    real = decide_module.within

    def timed(deadline_s: float, step: Callable[[], object], *, what: str) -> object:
        limits.append(deadline_s)
        return real(deadline_s, step, what=what)

    def fail(_url: str) -> str:
        raise StoreError("no")

    monkeypatch.setattr(decide_module, "within", timed)
    monkeypatch.setattr(decide_module, "digest_keys", fail)
    assert filled.decide(CASE).choice is not None
    assert limits
    assert all(limit < 60 for limit in limits[:2])  # what reading the store has left; then thinking has its own

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.history.history import History
from torchx_cubicml.history.passes import OF_LAUNCH, passed
from torchx_cubicml.history.same_training import batch_lines, batch_parameters
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.rewrite.choice import advise, apply_rules
from torchx_cubicml.rewrite.observed_batch import faster_batch_note
from torchx_cubicml.rewrite.rules import held
from torchx_cubicml.space.toml import parse_space

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Config

WORKLOAD = {"program": "train.py", "world_size": 2}
KNOBS = """
[parameters.knob]
choices = [1, 2, 4]
flag = "--knob"

[parameters.workers]
choices = [0, 4]
flag = "--workers"
"""
SPACE = parse_space(KNOBS, where="space.toml")


def trial_of(config: Config, speed: float, batch: int | None = None) -> Trial:
    trial = Trial.completed(workload=WORKLOAD, config=config, tokens_per_second=speed)
    return trial if batch is None else replace(trial, observed={"global_batch_size": batch})


def knobs(knob: int, workers: int, speed: float = 1.0, *, batch: int | None = None) -> Trial:
    return trial_of({"knob": knob, "workers": workers}, speed, batch)


@pytest.mark.parametrize(
    ("trials", "expected"),
    [
        ([knobs(1, 0, batch=8), knobs(2, 0, batch=16)], ("knob",)),
        ([knobs(1, 0, batch=8), knobs(1, 4, batch=16)], ("workers",)),
        ([knobs(1, 0, batch=8), knobs(2, 4, batch=16)], ()),
        ([knobs(1, 0, batch=8), knobs(2, 0, batch=8)], ()),
        ([knobs(1, 0, batch=8), knobs(2, 0)], ()),
        ([knobs(1, 0), knobs(2, 0)], ()),
    ],
    ids=["the knob", "the workers", "both differ", "the same batch", "seen once", "never seen"],
)
def test_launches_show_what_changes_the_batch(trials: list[Trial], expected: tuple[str, ...]) -> None:
    assert batch_parameters(SPACE, trials) == expected


@pytest.mark.parametrize(
    ("trials", "sure", "suspected"),
    [
        ([knobs(1, 0, batch=8), knobs(2, 4, batch=16)], (), ("knob", "workers")),
        ([knobs(1, 0, batch=8), knobs(2, 4, batch=16), knobs(4, 0, batch=32)], ("knob",), ("knob",)),
        ([knobs(1, 0, batch=8), knobs(2, 4, batch=16), knobs(4, 4, batch=16)], (), ("knob", "workers")),
        ([knobs(1, 0, batch=8), knobs(2, 4, batch=16), knobs(1, 0, batch=16)], (), ()),
        ([knobs(1, 0, batch=8), knobs(2, 4, batch=8)], (), ()),
    ],
    ids=["either", "the knob", "still either", "neither", "the same batch"],
)
def test_launches_that_differ_in_two_parameters_show_the_only_possible_cause(
    trials: list[Trial], sure: tuple[str, ...], suspected: tuple[str, ...]
) -> None:
    assert batch_parameters(SPACE, trials) == sure
    assert batch_parameters(SPACE, trials, suspected=True) == suspected


@pytest.mark.parametrize("name", ["bsz", "batch", "local_batch_size"])
def test_a_flag_of_a_batch_is_the_cause_rather_than_another(name: str) -> None:
    space = parse_space(KNOBS.replace('"--knob"', f'"--{name}"'), where="space.toml")
    trials = [knobs(1, 0, batch=8), knobs(2, 4, batch=16)]
    assert batch_parameters(space, trials) == batch_parameters(space, trials, suspected=True) == ("knob",)
    assert batch_parameters(space, [trials[0], knobs(2, 4, batch=8)]) == ()


def test_an_ordinary_launch_takes_no_config_that_another_batch_was_seen_with() -> None:
    """The faster config differs in two parameters, so that either may be the cause of its larger batch."""
    trials = [knobs(1, 0, 100.0, batch=8) for _ in range(3)] + [knobs(2, 4, 190.0, batch=16) for _ in range(3)]
    current = {"knob": 1, "workers": 0}
    case = History(space=SPACE, held=held(SPACE), workload=WORKLOAD, current=current, trials=trials)
    best = advise(case)
    assert best is not None
    assert best.config == current


def test_a_permitted_parameter_may_change_the_batch() -> None:
    space = parse_space(KNOBS.replace('"--knob"', '"--knob"\nchanges_training = true'), where="space.toml")
    assert batch_parameters(space, [knobs(1, 0, batch=8), knobs(2, 0, batch=16)]) == ()
    assert batch_parameters(space, [knobs(1, 0, batch=8), knobs(2, 4, batch=16)], suspected=True) == ()


def test_launches_of_an_earlier_space_file_differ_in_what_is_derived_now() -> None:
    derived = """
[parameters.gradient_accumulation_steps]
derive = "global_batch_size / micro_batch_size"
flag = "--accum"

[parameters.micro_batch_size]
choices = [1, 2]
flag = "--micro"
"""
    space = parse_space(KNOBS + derived, where="space.toml")
    config = {"knob": 1, "workers": 0, "micro_batch_size": 2, "gradient_accumulation_steps": 4}
    trials = [trial_of(config, 1.0, 8), trial_of({**config, "knob": 2, "gradient_accumulation_steps": 16}, 1.0, 32)]
    assert batch_parameters(space, trials) == ()
    assert batch_parameters(space, [trials[0], trial_of({**config, "knob": 2}, 1.0, 32)]) == ("knob",)


def test_what_is_derived_from_a_parameter_may_follow_it() -> None:
    text = "[parameters.buckets]\nderive = 'knob * 2'\nflag = '--buckets'\n"
    space = parse_space(f"{KNOBS}{text}", where="space.toml")
    trials = [trial_of({"knob": knob, "workers": 0, "buckets": 2 * knob}, 1.0, 8 * knob) for knob in (1, 2)]
    assert batch_parameters(space, trials) == ("knob",)


def test_an_ordinary_launch_keeps_a_batch_of_any_name() -> None:
    trials = [knobs(knob, 0, 100.0 * knob, batch=8 * knob) for knob in (1, 2, 4) for _ in range(3)]
    trials += [knobs(1, 4, 130.0, batch=8) for _ in range(3)]
    case = History(space=SPACE, held=held(SPACE), workload=WORKLOAD, current={"knob": 1, "workers": 0}, trials=trials)
    best = advise(case)
    assert best is not None
    assert best.config == {"knob": 1, "workers": 4}


MICRO = """
[parameters.micro_batch_size]
choices = [2, 4, 32]
flag = "--batch_size"
"""
DERIVED = """
[parameters.accum]
derive = "global_batch_size / (micro_batch_size * dp_degree)"
flag = "--accum"
changes_training = true
"""
OWN = {"micro_batch_size": 2, "gradient_accumulation_steps": 1}


@pytest.mark.parametrize(
    ("speed", "text", "said"),
    [
        (
            160.0,
            MICRO + DERIVED,
            "a launch with a global batch size of 64 was 1.60x as fast as the fastest with yours, 4; it is another "
            "training, so yours stays (changes_training = true on accum, with choices in place of derive, would allow "
            "it)",
        ),
        (
            160.0,
            MICRO,
            "a launch with a global batch size of 64 was 1.60x as fast as the fastest with yours, 4; it is another "
            "training, so yours stays (changes_training = true on micro_batch_size would allow it)",
        ),
        (104.0, MICRO + DERIVED, ""),
    ],
    ids=["derived", "one choice", "hardly faster"],
)
def test_a_faster_batch_that_is_not_allowed_is_named(speed: float, text: str, said: str) -> None:
    space = parse_space(text, where="space.toml")
    trials = [trial_of(OWN, 90.0), trial_of(OWN, 110.0), trial_of({**OWN, "micro_batch_size": 32}, speed)]
    assert faster_batch_note(space, trials, workload=WORKLOAD, current=OWN) == said
    assert faster_batch_note(space, trials[:2], workload=WORKLOAD, current=OWN) == ""
    assert faster_batch_note(space, trials[2:], workload=WORKLOAD, current=OWN) == ""
    assert faster_batch_note(space, trials, workload={"program": "train.py"}, current=OWN) == ""


def test_a_launch_takes_another_micro_batch_of_a_script_that_keeps_the_global_one() -> None:
    space, current = parse_space(MICRO, where="space.toml"), {"micro_batch_size": 2}
    trials = [trial_of({"micro_batch_size": micro}, 50.0 * micro) for micro in (2, 4, 32) for _ in range(3)]
    seen = {2: (2, 2, 8), 4: (4, 1, 8), 32: (32, 1, 64)}
    names = ("micro_batch_size", "gradient_accumulation_steps", "global_batch_size")
    trials = [
        replace(each, arguments=(), observed=dict(zip(names, seen[each.config["micro_batch_size"]], strict=True)))
        for each in trials
    ]
    case = History(space=space, held=held(space), workload=WORKLOAD, current=current, trials=trials)
    best = advise(passed(case, *OF_LAUNCH))
    assert best is not None
    assert best.config == {"micro_batch_size": 4}
    assert apply_rules(passed(case, *OF_LAUNCH), best).rejection_reason == ""
    assert "changes the global batch size by a factor of 2" in apply_rules(case, best).rejection_reason


def test_a_launch_keeps_a_batch_that_recorded_launches_contradict() -> None:
    """The script takes its batch from a variable, and each flag that a launch adds goes before that."""
    space = parse_space(MICRO + KNOBS.partition("\n\n")[2] + DERIVED.partition("changes")[0], where="space.toml")
    observed = {"micro_batch_size": 8, "gradient_accumulation_steps": 2, "global_batch_size": 32}
    trials = [
        replace(trial_of({**config, "workers": workers}, speed), observed=observed, arguments=())
        for config, workers, speed in (
            (OWN, 0, 100.0),
            (OWN, 4, 130.0),
            ({"micro_batch_size": 4, "gradient_accumulation_steps": 1}, 0, 190.0),
        )
        for _ in range(3)
    ]
    case = passed(
        History(space=space, held=held(space), workload=WORKLOAD, current={**OWN, "workers": 0}, trials=trials),
        *OF_LAUNCH,
    )
    best = advise(case)
    assert best is not None
    assert best.config == {**OWN, "workers": 4}
    assert [*dict.fromkeys(batch_lines(case).values())] == [
        "by the space file your command has batch 2, accumulation 1, global batch 4, but its launch had batch 8, "
        "accumulation 2, global batch 32: name in the space file what sets the batch, or state it in the command "
        "(changes_training = true on the sizes of the batch goes on all the same)"
    ]


def test_a_batch_of_lower_cost_is_told_in_its_unit() -> None:
    space = parse_space(f'objective = "tokens_per_device_hour"\n{MICRO}', where="space.toml")
    trials = [trial_of(OWN, 100.0), trial_of({**OWN, "micro_batch_size": 32}, 160.0)]
    note = faster_batch_note(space, trials, workload=WORKLOAD, current=OWN)
    assert note.startswith("a launch with a global batch size of 64 had 1.60x the tokens_per_device_hour of the best")

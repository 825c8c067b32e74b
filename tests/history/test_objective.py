from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx_cubicml.advisor import Study, best_known
from torchx_cubicml.errors import SpaceError
from torchx_cubicml.history.history import History
from torchx_cubicml.history.objective import COUNT_WORK, measured_objective
from torchx_cubicml.history.passes import OF_LAUNCH, of_one_size, passed
from torchx_cubicml.history.same_training import batch_lines
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.rewrite.choice import advise
from torchx_cubicml.rewrite.rules import held
from torchx_cubicml.space.toml import parse_space

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Config
    from torchx_cubicml.space import SearchSpace

SAMPLES_TAKEN = "samples_per_second is compared, as no launch of this workload counted tokens"
TEXT = "[parameters.knob]\nchoices = [1, 2]\nflag = '--knob'\n"
SPACE = parse_space(TEXT, where="space.toml")
WORKLOAD = {"program": "train.py"}


def trial_of(knob: int = 1, **speeds: float) -> Trial:
    return Trial.completed(workload=WORKLOAD, config={"knob": knob}, **speeds)


def paced(**observed: int) -> Trial:
    """Return a trial of which nothing but the steps could be counted."""
    measurement = Measurement(mean_step_time_s=0.1, statistic="mean")
    return replace(trial_of(tokens_per_second=1.0), measurement=measurement, observed=observed)


def history_of(space: SearchSpace, trials: list[Trial], current: Config | None = None) -> History:
    return History(space=space, held=held(space), workload=WORKLOAD, current=current or {}, trials=trials)


PACED = paced(micro_batch_size=4)
NONE_COUNTED = "no launch of this workload counted tokens or samples"
TOKENS, SAMPLES = trial_of(tokens_per_second=1.0), trial_of(samples_per_second=1.0)
BOTH = trial_of(tokens_per_second=1.0, samples_per_second=1.0)


@pytest.mark.parametrize(
    ("trials", "objective", "line"),
    [
        ([], "tokens_per_second", ""),
        ([BOTH, TOKENS], "tokens_per_second", ""),
        (
            [SAMPLES],
            "samples_per_second",
            SAMPLES_TAKEN,
        ),
        (
            [SAMPLES, SAMPLES, BOTH],
            "samples_per_second",
            "samples_per_second is compared, which 3 of 3 launches of this workload have; "
            "set objective in the space file to choose",
        ),
        (
            [TOKENS, *[SAMPLES] * 49],
            "samples_per_second",
            "samples_per_second is compared, which 49 of 50 launches of this workload have; "
            "set objective in the space file to choose",
        ),
        (
            [TOKENS, SAMPLES],
            "tokens_per_second",
            "tokens_per_second is compared, which 1 of 2 launches of this workload have; "
            "set objective in the space file to choose",
        ),
        (
            [PACED, PACED],
            "steps_per_second",
            f"steps_per_second is compared, as {NONE_COUNTED}; {COUNT_WORK}",
        ),
        (
            [PACED, SAMPLES],
            "samples_per_second",
            "samples_per_second is compared, which 1 of 2 launches of this workload have; "
            "set objective in the space file to choose",
        ),
        (
            [PACED, BOTH, PACED],
            "steps_per_second",
            "steps_per_second is compared, which 2 of 3 launches of this workload have; "
            "set objective in the space file to choose",
        ),
        (
            [PACED, BOTH, paced(micro_batch_size=8)],
            "tokens_per_second",
            "tokens_per_second is compared, which 1 of 3 launches of this workload have; "
            "set objective in the space file to choose",
        ),
        (
            [PACED, paced()],
            "steps_per_second",
            f"steps_per_second is compared, as {NONE_COUNTED}; {COUNT_WORK}",
        ),
        (
            [PACED, paced(micro_batch_size=8)],
            "tokens_per_second",
            f"{NONE_COUNTED}, and steps per second do not compare as launches differ in micro_batch_size; {COUNT_WORK}",
        ),
        ([replace(SAMPLES, workload={"program": "other.py"})], "tokens_per_second", ""),
        ([replace(SAMPLES, measurement=None)], "tokens_per_second", ""),
    ],
    ids=[
        *("nothing", "tokens", "samples", "both", "one odd launch", "a tie", "steps", "steps and samples"),
        *("steps and tokens", "steps of two batches and tokens", "a batch that is unknown", "steps of two batches"),
        *("another workload", "not measured"),
    ],
)
def test_the_objective_is_the_one_that_was_measured(trials: list[Trial], objective: str, line: str) -> None:
    space, found = measured_objective(history_of(SPACE, trials))
    assert (space.objective, found) == (objective, line)
    back, _ = measured_objective(history_of(space, [TOKENS]))
    assert back.objective == "tokens_per_second"


@given(st.lists(st.sampled_from(["tokens", "samples", "steps of 4", "steps of 8", "other", "unmeasured"]), max_size=6))
def test_every_history_is_compared_in_the_unit_that_most_launches_have(kinds: list[str]) -> None:
    made = {"tokens": BOTH, "samples": SAMPLES, "steps of 4": PACED, "steps of 8": paced(micro_batch_size=8)}
    made |= {
        "other": replace(TOKENS, workload={"program": "other.py"}),
        "unmeasured": replace(TOKENS, measurement=None),
    }
    space, line = measured_objective(history_of(SPACE, [made[kind] for kind in kinds]))
    paces = {kind for kind in kinds if kind.startswith("steps")}
    n_steps = sum(kind.startswith("steps") for kind in kinds)
    n_tokens, n_samples = kinds.count("tokens"), kinds.count("tokens") + kinds.count("samples")
    counted = "samples" if n_samples > n_tokens else "tokens"
    is_minority = 2 * n_samples < n_samples + n_steps
    unit = "steps" if is_minority and len(paces) == 1 else counted
    assert space.objective == f"{unit}_per_second"
    assert bool(line) == ("samples" in kinds or bool(paces))
    assert (COUNT_WORK in line) == (bool(paces) and not n_samples)


KEPT = parse_space(
    f"{TEXT}[parameters.micro_batch_size]\nchoices = [1, 2, 4]\nflag = '--b'\n"
    "[parameters.gradient_accumulation_steps]\nderive = 'global_batch_size / (micro_batch_size * dp_degree)'\n"
    "flag = '--a'\n",
    where="space.toml",
)


@given(
    st.lists(
        st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from([4, 4, 8]), st.sampled_from(["all", "micro", "none"])),
        min_size=1,
        max_size=6,
    )
)
def test_steps_of_one_global_batch_compare_however_it_is_split(launches: list[tuple[int, int, str]]) -> None:
    trials = []
    for micro, batch, known in launches:
        observed = {"micro_batch_size": micro, "gradient_accumulation_steps": batch // micro, "seq_len": 8}
        names = {"all": [*observed], "micro": ["micro_batch_size"], "none": []}[known]
        trials.append(paced(**{name: observed[name] for name in names}))
    space, line = measured_objective(history_of(KEPT, trials))
    batches = {batch for _, batch, known in launches if known == "all"}
    assert space.objective == ("steps_per_second" if len(batches) < 2 else "tokens_per_second")
    assert ("launches differ in" in line) == (len(batches) > 1)


@pytest.mark.parametrize(
    ("first", "second", "differing"),
    [
        ({"micro_batch_size": 4, "gradient_accumulation_steps": 1}, {"micro_batch_size": 2}, ""),
        ({"seq_len": 8}, {"seq_len": 16}, "seq_len"),
        ({"global_batch_size": 8}, {"global_batch_size": 8, "micro_batch_size": 2}, ""),
        ({"global_batch_size": 8}, {"global_batch_size": 16}, "global_batch_size"),
        (
            {"micro_batch_size": 4, "gradient_accumulation_steps": 1},
            {"micro_batch_size": 2, "gradient_accumulation_steps": 2},
            "",
        ),
        (
            {"micro_batch_size": 4, "gradient_accumulation_steps": 2, "world_size": 4, "tp_degree": 2},
            {"micro_batch_size": 4, "gradient_accumulation_steps": 1, "world_size": 4},
            "",
        ),
        (
            {"micro_batch_size": 4, "gradient_accumulation_steps": 2, "dp_degree": 2},
            {"micro_batch_size": 4, "gradient_accumulation_steps": 2, "dp_degree": 1},
            "dp_degree",
        ),
        (
            {"micro_batch_size": 4, "gradient_accumulation_steps": 2},
            {"micro_batch_size": 2, "gradient_accumulation_steps": 1},
            "micro_batch_size and gradient_accumulation_steps",
        ),
    ],
    ids=["unknown", "seq_len", "global", "globals", "another split", "another mesh", "another degree", "both"],
)
def test_the_work_of_a_step_is_compared(first: dict[str, int], second: dict[str, int], differing: str) -> None:
    space, line = measured_objective(history_of(SPACE, [paced(**first), paced(**second)]))
    assert (space.objective == "steps_per_second") == (not differing)
    assert (f"as launches differ in {differing};" in line) == bool(differing)


@pytest.mark.parametrize(
    ("freeze", "tried"),
    [(["micro_batch_size"], [1]), (["micro_batch_size"], [1, 2]), ([], [1]), ([], [1, 2, 4])],
    ids=["frozen", "frozen after another", "free", "free after others"],
)
def test_steps_alone_are_compared_between_launches_of_one_batch(freeze: list[str], tried: list[int]) -> None:
    batch = "[parameters.micro_batch_size]\nchoices = [1, 2, 4]\nflag = '--b'\nchanges_training = true\n"
    space = parse_space(f"{TEXT}{batch}[rewrite]\nfreeze = {freeze}\n", where="space.toml")
    trials = [
        replace(
            paced(),
            config={"knob": knob, "micro_batch_size": micro},
            measurement=Measurement(mean_step_time_s=(0.1 + 0.001 * number) / knob / micro**2, statistic="mean"),
        )
        for micro in tried
        for knob in (1, 2)
        for number in range(3)
    ]
    current = {"knob": 1, "micro_batch_size": 1}
    case = passed(History(space=space, held=held(space), workload=WORKLOAD, current=current, trials=trials), *OF_LAUNCH)
    assert case.space.objective == "steps_per_second"
    assert case.notes == (f"steps_per_second is compared, as {NONE_COUNTED}; {COUNT_WORK}",)
    assert {trial.config["micro_batch_size"] for trial in case.trials} == {1}
    suggestion = advise(case)
    assert suggestion is not None
    assert (suggestion.config, suggestion.gain) == ({**current, "knob": 2}, pytest.approx(2.0, rel=0.05))
    why = f"steps alone were counted, and those of another value may do other work; {COUNT_WORK}"
    assert batch_lines(case) == {"micro_batch_size": f"keeping micro_batch_size: {why}"}


def test_launches_that_count_their_work_are_compared_over_batches() -> None:
    space = parse_space(f"{TEXT}[parameters.bs]\nchoices = [1, 2]\nflag = '--bs'\n", where="space.toml")
    trials = [replace(SAMPLES, config={"knob": 1, "bs": size}) for size in (1, 2)]
    assert of_one_size(history_of(space, trials, {"knob": 1, "bs": 1})).trials == trials
    steps = [replace(PACED, config={"knob": 1, "bs": size}) for size in (1, 2, 2)]
    elsewhere = replace(steps[1], workload={"program": "other.py"})
    assert of_one_size(history_of(space, [*trials, *steps, elsewhere], {"knob": 1, "bs": 1})).trials == [
        *(trials[0], steps[0], elsewhere),
    ]
    assert of_one_size(history_of(space, steps, {"knob": 1})).trials == steps  # the batch of the command is not known
    stated = replace(space, is_objective_stated=True)
    assert of_one_size(history_of(stated, steps, {"knob": 1, "bs": 1})).trials == steps


@pytest.mark.parametrize(
    ("text", "changers"),
    [
        ("[parameters.bs]\nchoices = [1, 2]\nflag = '--batch_size'\n", "bs"),
        (f"{TEXT}changes_training = true\n", "knob"),
        (f"{TEXT}[parameters.nnodes]\nchoices = [1, 2]\ntorchrun = 'nnodes'\n", "nnodes"),
        (f"{TEXT}[parameters.tp_degree]\nchoices = [1]\nflag = '--tp'\n", ""),
        (
            f"{TEXT}[parameters.micro_batch_size]\nchoices = [1, 2]\nflag = '--b'\n[parameters.accumulate]\n"
            "derive = 'global_batch_size / (micro_batch_size * dp_degree)'\nflag = '--a'\n",
            "",
        ),
        (
            f"{TEXT}[parameters.global_batch_size]\nchoices = [8, 16]\nflag = '--gbs'\n[parameters.accumulate]\n"
            "derive = 'global_batch_size / (micro_batch_size * dp_degree)'\nflag = '--a'\n"
            "[workload.micro_batch_size]\nflag = '--b'\n",
            "global_batch_size",
        ),
        ("trainer = 'megatron-lm'\n[parameters]\nglobal_batch_size = [8, 16]\n", "global_batch_size"),
        ("trainer = 'megatron-lm'\n[parameters]\nmicro_batch_size = [1, 2]\ntp_degree = [1, 2]\n", ""),
        ("trainer = 'nanogpt'\n[parameters]\nmicro_batch_size = [1, 2]\n", ""),
        (f"{TEXT}[parameters.x]\nchoices = [1, 2]\nflag = '--train_batch_size'\n", "x"),
    ],
    ids=[
        *("the batch", "declared", "the processes", "one choice", "a batch that is kept", "the global batch"),
        *("the global batch of a trainer", "an implied accumulation", "an accumulation of the job", "by its flag"),
    ],
)
def test_steps_are_compared_only_where_all_do_the_same_work(text: str, changers: str) -> None:
    space, line = measured_objective(history_of(parse_space(text, where="space.toml"), [PACED]))
    why = f", and steps per second do not compare as {changers} may change the work of a step; {COUNT_WORK}"
    assert space.objective == ("tokens_per_second" if changers else "steps_per_second")
    assert line == (
        NONE_COUNTED + why if changers else f"steps_per_second is compared, as {NONE_COUNTED}; {COUNT_WORK}"
    )
    stated = f"objective = 'steps_per_second'\n{text}"
    if changers:
        with pytest.raises(SpaceError, match=f"space.toml: objective steps_per_second .* but {changers} may change it"):
            parse_space(stated, where="space.toml")
    else:
        assert parse_space(stated, where="space.toml").objective == "steps_per_second"


@pytest.mark.parametrize("stated", ["tokens_per_second", "samples_per_second"])
def test_a_stated_objective_stays(stated: str) -> None:
    space = parse_space(f"objective = '{stated}'\n{TEXT}", where="space.toml")
    assert measured_objective(history_of(space, [TOKENS, SAMPLES])) == (space, "")


def test_launches_measured_in_samples_are_learned_from() -> None:
    trials = [trial_of(knob, samples_per_second=100.0 * knob + number) for knob in (1, 2) for number in range(3)]
    best = best_known(SPACE, workload=WORKLOAD, current={"knob": 1}, trials=trials)
    assert best is not None
    assert (best.config, best.gain) == ({"knob": 2}, pytest.approx(2.0, rel=0.05))
    study = Study.of(SPACE, workload=WORKLOAD, current={"knob": 1}, trials=trials)
    assert study.posterior.space.objective == "samples_per_second"
    case = passed(history_of(SPACE, trials, {"knob": 1}), *OF_LAUNCH)
    assert case.space.objective == "samples_per_second"
    assert case.notes == ("samples_per_second is compared, as no launch of this workload counted tokens",)

"""The batch of a training: what launches show of it, and what the script keeps itself."""

from __future__ import annotations

import pytest

from torchx_cubicml.history.same_training import (
    batch_change,
    batch_contradiction,
    batch_difference,
    kept_batch,
    with_same_training,
)
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.space.toml import parse_space

MICRO = '[parameters.micro_batch_size]\nchoices = [2, 3, 4, 8, 16]\nflag = "--device-batch"\n'
ACCUMULATION = '[parameters.gradient_accumulation_steps]\nchoices = [1, 2, 4]\nflag = "--accum"\n'
SPACE = parse_space(MICRO, where="space.toml")
BOTH = parse_space(MICRO + ACCUMULATION, where="space.toml")
FACTS = {"program": "train.py", "world_size": 2}
OWN = {"micro_batch_size": 2}
PAIR = {"micro_batch_size": 2, "gradient_accumulation_steps": 4}
TYPED = ("--device-batch", "2", "--accum", "4")


def launch(
    config: dict[str, int],
    micro: int,
    steps: int,
    *,
    words: tuple[str, ...] | None = (),
    state: State = State.COMPLETED,
) -> Trial:
    seen = {"micro_batch_size": micro, "gradient_accumulation_steps": steps, "global_batch_size": 2 * micro * steps}
    return Trial(trial_id=f"{config}", workload=FACTS, config=config, observed=seen, arguments=words, state=state)


def sized(micro: int, steps: int, **others: int) -> Trial:
    return launch({"micro_batch_size": micro, **others}, micro, steps)


class TestKeptBatch:
    def test_launches_of_one_global_batch_show_that_the_script_keeps_it(self) -> None:
        assert [*kept_batch([sized(2, 4), sized(8, 1)], current=OWN).values()] == [16]

    @pytest.mark.parametrize(
        "trials",
        [
            [sized(2, 4), sized(8, 4)],
            [sized(2, 4), sized(2, 4)],
            [sized(2, 4, workers=0), sized(8, 1, workers=4)],
            [sized(2, 4), sized(8, 1), sized(2, 8), sized(8, 2)],
            [launch(OWN, 2, 4, words=None), launch({"micro_batch_size": 8}, 8, 1, words=None)],
        ],
        ids=["another batch", "one micro batch", "another setting", "two totals", "arguments unknown"],
    )
    def test_other_launches_show_nothing(self, trials: list[Trial]) -> None:
        assert kept_batch(trials, current=OWN) == {}

    @pytest.mark.parametrize("current", [PAIR, {**OWN, "tp_degree": 1}, {**OWN, "nproc_per_node": 2}])
    def test_nothing_is_told_of_accumulation_and_ranks_in_the_space_file(self, current: dict[str, int]) -> None:
        assert kept_batch([sized(2, 4), sized(8, 1)], current=current) == {}

    @pytest.mark.parametrize(
        "facts",
        [kept_batch([sized(2, 4), sized(8, 1)], current=OWN), {"script_batch_tokens": 2048, "seq_len": 128}],
        ids=["launches", "tokens"],
    )
    def test_sizes_that_divide_the_total_are_the_same_training(self, facts: dict[str, int]) -> None:
        known = {"workload": {**FACTS, **facts}, "current": OWN}
        bound = with_same_training(SPACE, **known).bind(workload=FACTS, current=OWN)
        assert sorted({config["micro_batch_size"] for config in bound.configs()}) == [2, 4, 8]
        assert batch_change(SPACE, **known, config={"micro_batch_size": 8}) is None
        assert str(batch_change(SPACE, **known, config={"micro_batch_size": 3})) == "from 16 to 12"
        assert str(batch_change(SPACE, **known, config={"micro_batch_size": 16})) == "from 16 to 32"

    def test_an_own_size_that_does_not_divide_the_total_stays(self) -> None:
        known = {"workload": {**FACTS, "script_batch_size": 16}, "current": {"micro_batch_size": 3}}
        space = with_same_training(SPACE, **known)
        assert {each["micro_batch_size"] for each in space.bind(**known).configs()} == {3}


class TestContradiction:
    def test_a_default_that_was_not_used_is_told_with_both_batches(self) -> None:
        found = batch_contradiction(BOTH, [launch(PAIR, 4, 8)], current=PAIR)
        assert found.startswith(
            "by the space file your command has batch 2, accumulation 4, global batch 16, but its launch had batch 4, "
            "accumulation 8, global batch 64: "
        )

    def test_a_launch_without_the_default_is_one_of_the_command(self) -> None:
        assert "has batch 2, but its launch had batch 8" in batch_contradiction(SPACE, [launch({}, 8, 1)], current=OWN)

    @pytest.mark.parametrize(
        "trial",
        [
            launch(PAIR, 2, 4),
            launch(PAIR, 1, 8),
            launch(PAIR, 1, 4, state=State.OUT_OF_MEMORY),
            launch({**PAIR, "micro_batch_size": 4}, 8, 4),
        ],
        ids=["the same", "split in stages", "went on with less", "another config"],
    )
    def test_other_launches_contradict_nothing(self, trial: Trial) -> None:
        assert batch_contradiction(BOTH, [trial], current=PAIR) == ""

    def test_a_script_that_counts_otherwise_contradicts_only_where_other_launches_do(self) -> None:
        """A flag of the batch of all ranks, and an environment variable that wins over the flags."""
        typed = launch(PAIR, 1, 4, words=TYPED)
        others = {"micro_batch_size": 4, "gradient_accumulation_steps": 2}
        assert batch_contradiction(BOTH, [typed], current=PAIR) == ""
        assert batch_contradiction(BOTH, [typed, launch(others, 2, 2)], current=PAIR) == ""
        assert "had batch 1, accumulation 4" in batch_contradiction(BOTH, [typed, launch(others, 1, 2)], current=PAIR)

    def test_a_batch_that_stays_or_may_change_is_contradicted_by_nothing(self) -> None:
        fixed = parse_space(MICRO.replace("[2, 3, 4, 8, 16]", "[2]"), where="space.toml")
        free = parse_space(f"{MICRO}changes_training = true\n", where="space.toml")
        assert [batch_contradiction(space, [launch(OWN, 8, 1)], current=OWN) for space in (fixed, free)] == ["", ""]

    def test_a_stage_of_a_pipeline_takes_a_part_of_a_micro_batch(self) -> None:
        trial = launch(OWN, 1, 2)
        staged = Trial(
            trial_id="a", workload=FACTS, config=OWN, observed={**trial.observed, "pp_degree": 2}, state=trial.state
        )
        assert batch_difference(trial)
        assert not batch_difference(staged)

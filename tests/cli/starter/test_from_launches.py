"""Meanings of flags by recorded launches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.cli.starter import NO_FLAG, RecordedLaunches, starter_space
from torchx_cubicml.launch import Launch
from torchx_cubicml.records.arguments import digested_arguments
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import State, Trial
from torchx_cubicml.space.toml import parse_space

if TYPE_CHECKING:
    from pathlib import Path

KEY = "5eed"
PROGRAM = "odd.py"
SOURCE = 'MODES = {"whole": 1, "grads": 2}\n'


def trial(command: str, *, program: str = PROGRAM, **observed: str | int) -> Trial:
    return Trial(
        trial_id=f"{command}-{program}",
        workload={"program": program},
        config={},
        state=State.COMPLETED,
        observed=observed,
        measurement=Measurement(samples_per_second=1.0),
        arguments=digested_arguments(command.split(), KEY),
    )


def batch(command: str, micro: int, accumulation: int, *, program: str = PROGRAM) -> Trial:
    return trial(command, program=program, micro_batch_size=micro, gradient_accumulation_steps=accumulation)


def starter(command: str, *trials: Trial, help_text: str = "") -> str:
    launch = Launch(program=PROGRAM, script_args=tuple(command.split()), world_size=2)
    return starter_space(launch, help_text, RecordedLaunches.of(launch, trials, (KEY,)))


def bindings(text: str) -> dict[str, str]:
    """Return the flag of each parameter of a space file that is bound to one."""
    parameters = parse_space(text, where="starter").parameters
    return {item.name: item.binding.name for item in parameters if item.binding and item.binding.name.startswith("-")}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / PROGRAM).write_text(SOURCE)
    return tmp_path


class TestCounts:
    def test_flags_that_equal_the_observed_batch_in_launches_with_several_values(self) -> None:
        text = starter("--chunk 4 --fold=2", batch("--chunk 4 --fold=2", 4, 2), batch("--chunk=8 --fold 1", 8, 1))
        assert bindings(text) == {"micro_batch_size": "--chunk", "gradient_accumulation_steps": "--fold"}
        assert parse_space(text, where="starter").parameters[0].choices == (1, 2, 4, 8)
        assert "# In 2 recorded launches, --chunk was the observed micro batch size (4, 8).\n" in text
        assert NO_FLAG not in text

    def test_one_value_gives_a_guess_that_is_no_parameter_yet(self) -> None:
        text = starter("--chunk 4 --fold 2", batch("--chunk 4 --fold 2", 4, 2), batch("--chunk 4 --fold 2", 4, 2))
        assert bindings(text) == {}
        assert NO_FLAG in text
        lines = text.splitlines()
        at = lines.index("# In 2 recorded launches, --chunk was the observed micro batch size (4).")
        assert lines[at + 1].startswith("# That is a guess.")
        assert lines[at + 2].startswith("# [parameters.micro_batch_size]")

    def test_uncommented_guesses_are_a_legal_space(self) -> None:
        text = starter("--chunk 4 --fold 2", batch("--chunk 4 --fold 2", 4, 2))
        starts = ("# [parameters.micro", "# [parameters.grad", "# choices", "# derive", "# flag")
        lines = [line.removeprefix("# ") if line.startswith(starts) else line for line in text.splitlines()]
        found = bindings("\n".join(lines))
        assert found == {"micro_batch_size": "--chunk", "gradient_accumulation_steps": "--fold"}

    def test_a_guessed_accumulation_does_not_free_a_named_batch(self) -> None:
        text = starter("--batch_size 4 --fold 2", batch("--batch_size 4 --fold 2", 4, 2))
        assert parse_space(text, where="starter").parameters[0].choices == (4,)
        assert "--fold was the observed gradient accumulation steps (2)" in text

    @pytest.mark.parametrize(
        "trials",
        [
            [batch("--chunk 4 --depth 4", 4, 1)],  # either of two
            [batch("--chunk 4", 4, 1), batch("--chunk 8", 4, 1)],  # one launch shows another number
            [batch("--chunk 1", 1, 1)],  # any flag may be 1
            [batch("--chunk 4", 4, 1, program="other.py")],
            [trial("--chunk 4")],
        ],
    )
    def test_nothing_is_said_without_evidence(self, trials: list[Trial]) -> None:
        command = "--chunk 4 --depth 4"
        assert starter(command, *trials) == starter(command)

    def test_a_flag_of_the_global_batch_is_named_and_stays(self) -> None:
        launches = [
            trial("--total 16", micro_batch_size=4, global_batch_size=16, gradient_accumulation_steps=2),
            trial("--total 32", micro_batch_size=8, global_batch_size=32, gradient_accumulation_steps=2),
        ]
        text = starter("--total 16", *launches)
        assert "--total was the observed global batch size (16, 32)" in text
        assert bindings(text) == {}

    @pytest.mark.parametrize(("world_size", "is_known"), [(1, True), (2, False)])
    def test_launches_on_one_rank_leave_open_which_batch_it_is(self, world_size: int, is_known: bool) -> None:
        shown = [trial(f"--chunk {size} --fold 1", micro_batch_size=size, global_batch_size=size) for size in (4, 8)]
        launch = Launch(program=PROGRAM, script_args=("--chunk", "4"), world_size=world_size)
        text = starter_space(launch, "", RecordedLaunches.of(launch, shown, (KEY,)))
        assert ("micro_batch_size" in bindings(text)) == is_known
        assert ("micro batch size (4, 8), and the global batch size, too.\n# That is a guess." in text) != is_known

    def test_a_script_that_derives_its_accumulation_frees_the_micro_batch(self) -> None:
        launches = [
            trial(f"--mbs {micro} --seed {micro}", micro_batch_size=micro, global_batch_size=24) for micro in (3, 6)
        ]
        text = starter("--mbs 3", *launches)
        assert parse_space(text, where="starter").parameters[0].choices == (1, 2, 3, 4, 8)
        assert "the script derives its accumulation: launches of several had one global batch, 24" in text
        assert "no accumulation to adjust" not in text

    @pytest.mark.parametrize("words", ["--fold", "--rows"])
    def test_an_accumulation_that_the_commands_state_is_none_of_the_script(self, words: str) -> None:
        launches = [
            trial(f"--mbs {micro} {words} {24 // micro}", micro_batch_size=micro, global_batch_size=24)
            for micro in (3, 6)
        ]
        text = starter("--mbs 3", *launches)
        assert parse_space(text, where="starter").parameters[0].choices == (3,)

    def test_keys_are_found_as_flags_are(self) -> None:
        text = starter("chunk=4 fold=2", batch("chunk=4 fold=2", 4, 2), batch("chunk=8 fold=1", 8, 1))
        parameters = {item.name: item.binding for item in parse_space(text, where="starter").parameters}
        assert {name: place.name for name, place in parameters.items() if place} == {
            "micro_batch_size": "chunk=",
            "gradient_accumulation_steps": "fold=",
        }

    def test_a_name_stands_where_launches_show_more_rows(self) -> None:
        shown = [batch("--batch_size 2", 1024, 1), batch("--batch_size 4", 2048, 1)]
        assert bindings(starter("--batch_size 2", *shown)) == {"micro_batch_size": "--batch_size"}

    def test_a_name_counts_for_nothing_where_launches_show_a_smaller_number(self) -> None:
        text = starter("--batch_size 16", batch("--batch_size 16", 8, 1), batch("--batch_size 32", 16, 1))
        assert bindings(text) == {}
        assert "[parameters.batch_size]" not in text
        assert "--batch_size is not the micro batch size in any recorded launch: the latest with 32 showed 16" in text


class TestWords:
    def test_a_flag_whose_words_tell_the_observed_sharding(self) -> None:
        text = starter(
            "--mode whole",
            trial("--mode whole", sharding_strategy="FULL_SHARD"),
            trial("--mode grads", sharding_strategy="SHARD_GRAD_OP"),
        )
        assert bindings(text) == {"sharding_strategy": "--mode"}
        assert set(parse_space(text, where="starter").parameters[0].choices) == {"whole", "grads"}
        assert "whole: FULL_SHARD" in text
        assert "grads: SHARD_GRAD_OP" in text

    def test_one_word_that_is_no_standard_one_tells_nothing(self) -> None:
        assert bindings(starter("--mode whole", trial("--mode whole", sharding_strategy="FULL_SHARD"))) == {}

    def test_a_word_that_showed_two_strategies_tells_nothing(self) -> None:
        shown = [trial("--mode whole", sharding_strategy=name) for name in ("FULL_SHARD", "SHARD_GRAD_OP")]
        assert bindings(starter("--mode whole", *shown)) == {}

    def test_a_switch_of_checkpointing(self) -> None:
        shown = [
            trial("--thrifty", activation_checkpointing="full"),
            trial("", activation_checkpointing="none"),
        ]
        text = starter("--thrifty", *shown)
        assert bindings(text) == {"activation_checkpointing": "--thrifty"}
        assert parse_space(text, where="starter").parameters[0].choices == (False, True)
        assert "--thrifty went with the observed activation checkpointing (on, off)" in text

    @pytest.mark.parametrize(("one", "other"), [("--layers 12", "--layers 24"), ("--tag a", "--tag b")])
    def test_a_number_or_a_word_that_the_source_does_not_hold_is_no_sharding(self, one: str, other: str) -> None:
        shown = [trial(one, sharding_strategy="FULL_SHARD"), trial(other, sharding_strategy="SHARD_GRAD_OP")]
        assert starter(one, *shown) == starter(one)

    def test_a_flag_with_a_value_is_not_off_where_it_is_absent(self) -> None:
        shown = [trial("--seed 1", activation_checkpointing="full"), trial("", activation_checkpointing="none")]
        assert starter("--seed 1", *shown) == starter("--seed 1")

    def test_a_number_that_changed_too_leaves_open_which_flag_it_was(self) -> None:
        shown = [
            trial("--mode whole --layers 12", sharding_strategy="FULL_SHARD"),
            trial("--mode grads --layers 24", sharding_strategy="SHARD_GRAD_OP"),
        ]
        assert starter("--mode whole --layers 12", *shown) == starter("--mode whole --layers 12")

    @pytest.mark.parametrize(
        "launches",
        [
            [("--lavish", "none"), ("", "full")],  # it turns checkpointing off
            [("--lavish", "full"), ("--lavish", "full")],  # never without it
        ],
    )
    def test_a_switch_that_may_be_on_by_chance_tells_nothing(self, launches: list[tuple[str, str]]) -> None:
        shown = [trial(command, activation_checkpointing=value) for command, value in launches]
        assert starter("--lavish", *shown) == starter("--lavish")


def test_a_comment_lists_few_values() -> None:
    shown = [batch(f"--chunk {size}", size, 1) for size in range(1, 101)]
    assert "In 100 recorded launches, --chunk was the observed micro batch size (1, 2, 3, 4, 5, 6, 7, 8, ...).\n" in (
        starter("--chunk 4", *shown)
    )


class TestSizes:
    OFFER = "# [parameters.rounds]"
    REASON = "# In recorded launches, the number of parameters changed with --rounds."

    def test_a_flag_that_changed_the_number_of_parameters_is_not_offered(self) -> None:
        text = starter("--rounds 4", trial("--rounds 4", n_params=100), trial("--rounds 8", n_params=200))
        assert self.REASON in text.splitlines()
        assert self.OFFER not in text

    @pytest.mark.parametrize(
        "trials",
        [
            [trial("--rounds 4", n_params=100), trial("--rounds 8", n_params=100)],
            [trial("--rounds 4", n_params=100), trial("--rounds 4 --other 1", n_params=200)],
            [trial("--rounds 4", n_params=100)],
            [trial("--rounds 4"), trial("--rounds 8")],
        ],
        ids=["the same number", "another flag", "one launch", "no number"],
    )
    def test_any_other_flag_is(self, trials: list[Trial]) -> None:
        text = starter("--rounds 4", *trials)
        assert self.OFFER in text
        assert self.REASON not in text

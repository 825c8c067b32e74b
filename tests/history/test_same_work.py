"""Commands that differ from those of earlier launches: what keeps a launch as typed, and which trials stay."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx_cubicml.history.history import History
from torchx_cubicml.history.present_command import PresentCommand, program_digest
from torchx_cubicml.history.same_work import ComparedTrials, with_same_work
from torchx_cubicml.launch import Launch
from torchx_cubicml.launch.config_io import present_command, read_config
from torchx_cubicml.records.arguments import digested_arguments, text_digest
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import Origin, State, Trial
from torchx_cubicml.space.toml import parse_space

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torchx_cubicml.records.values import Value
    from torchx_cubicml.space import SearchSpace

KEY = "0123456789abcdef" * 2
WORKLOAD: dict[str, Value] = {"program": "train.py", "world_size": 2}
SPACE = parse_space(
    """
    [parameters.micro_batch_size]
    choices = [1, 2, 4, 8]
    flag = "--batch_size"

    [workload.n_layers]
    flag = "--layers"
    default = 2

    [tune.args]
    "--dump" = "{scratch}"
    """,
    where="space.toml",
)


def compared(
    trials: Sequence[Trial], command: PresentCommand, *, keys: Sequence[str], space: SearchSpace = SPACE
) -> ComparedTrials:
    """What is compared of trials with a command."""
    given = {"workload": WORKLOAD, "current": {}, "command": command, "keys": tuple(keys)}
    return with_same_work(History(space=space, trials=trials, **given))


@dataclass
class Launches:
    """Launches of one script in a row; each observes what its command makes of it."""

    key: str = KEY

    def __post_init__(self) -> None:
        self.trials: list[Trial] = []

    def ran(
        self,
        *arguments: str,
        seq_len: int | None = 64,
        n_params: int = 1000,
        speed: float = 100.0,
        batch: int = 1,
        texts: Mapping[str, str] | None = None,
        **changes: object,
    ) -> Trial:
        number = len(self.trials)
        trial = Trial(
            trial_id=f"t{number:03}",
            workload=WORKLOAD,
            config={"micro_batch_size": batch},
            state=State.COMPLETED,
            observed={"n_params": n_params, **({"seq_len": seq_len} if seq_len else {})},
            measurement=Measurement(tokens_per_second=speed * batch),
            arguments=digested_arguments(arguments, self.key),
            digests={name: text_digest(text, self.key) for name, text in (texts or {}).items()} if self.key else None,
            started_at=f"2026-01-01T00:{number:02}:00+00:00",
            ended_at=f"2026-01-01T00:{number:02}:30+00:00",
        )
        self.trials.append(replace(trial, **changes))
        return self.trials[-1]

    def compared(self, *arguments: str, texts: Mapping[str, str] | None = None) -> ComparedTrials:
        command = present_command(Launch(program="absent.py", script_args=arguments), SPACE)
        command = replace(command, texts=texts or {})
        return compared(self.trials, command, keys=(self.key,) if self.key else ())


@pytest.mark.parametrize("key", [KEY, ""], ids=["keyed", "earlier release"])
def test_another_value_of_an_undeclared_flag_keeps_the_launch_as_typed(key: str) -> None:
    history = Launches(key)
    history.ran("--seq_len", "64", "--data", "c4")
    same = history.compared("--data=c4", "--seq-len", "64")
    assert (same.unseen, same.trials) == ((), history.trials)
    assert history.compared("--seq_len", "512", "--data", "c4").unseen == ("--seq_len",)
    assert history.compared("--seq_len", "64", "--data", "pile").unseen == ("--data",)
    assert history.compared("--seq_len", "64", "--data", "c4", "--flash").unseen == ("--flash",)
    assert history.compared("--seq_len", "64").unseen == ("--data",)


def test_a_file_that_a_checkpoint_is_written_to_makes_no_other_work() -> None:
    history = Launches()
    history.ran("--width", "64", "--ckpt", "one.pt")
    for words in (("--ckpt", "two.pt"), ("--ckpt=/mnt/run7",), ()):
        assert history.compared("--width", "64", *words).unseen == ()
    for words in (("--checkpoint",), ("--ckpt", "selective"), ("--ckpt",)):
        assert history.compared("--width", "64", *words).unseen != ()


def test_a_record_of_an_earlier_release_lacks_suffixes_of_checkpoints() -> None:
    history = Launches()
    history.ran(arguments=tuple(word.removesuffix(".pt") for word in digested_arguments(("--ckpt", "one.pt"), KEY)))
    assert history.compared("--ckpt", "one.pt").unseen == ()
    assert history.compared("--ckpt", "two.pt").unseen == ()


def test_what_ran_out_of_memory_is_not_tried_before_the_work_is_known() -> None:
    history = Launches()
    history.ran("--seq_len", "64")
    lost = history.ran("--seq_len", "64", batch=8, state=State.OUT_OF_MEMORY, measurement=None)
    observed = {"micro_batch_size": 2, "caught_out_of_memory": "CUDA out of memory"}
    caught = history.ran("--seq_len", "64", batch=4, observed=observed)
    compared = history.compared("--seq_len", "512")
    assert (compared.unseen, compared.certain) == (("--seq_len",), [lost, caught])


def test_the_reason_names_the_word_and_how_to_declare_it() -> None:
    history = Launches()
    history.ran("--model.seq_len", "64", texts={"program": "a", "$ATTN": "math", "--config:model.depth": "2"})
    reason = history.compared("--model.seq_len", "512", texts={"program": "a", "$ATTN": "math"}).reason
    assert reason.startswith("no recorded launch had this value of --model.seq_len: this launch runs as typed")
    assert 'space file: model_seq_len = { flag = "--model.seq_len" })' in reason
    texts = {"program": "a", "$ATTN": "flash", "--config:model.depth": "3"}
    reason = history.compared("--model.seq_len", "64", texts=texts).reason
    assert "this value of $ATTN, model.depth in the file of --config:" in reason
    edited = history.compared("--model.seq_len", "64", texts={**texts, "program": "b"} | {"$ATTN": "math"})
    assert edited.unseen == ("--config:model.depth", "program")
    edited = history.compared("--model.seq_len", "64", texts={"program": "b", "$ATTN": "math"})
    assert edited.reason.startswith("the program's file has changed since its last recorded launch")
    assert history.compared("--model.seq_len", "64", texts={"program": "a", "$ATTN": "math"}).reason == ""


def test_flags_are_named_as_typed() -> None:
    history = Launches()
    history.ran("--hidden-size", "64", "--old-flag", texts={"--config_file:depth": "2"})
    new = history.compared("--hidden-size=128", "--config-file", "a.json", texts={"--config_file:depth": "3"})
    assert new.unseen == ("--config-file:depth", "--hidden-size", "--old-flag")
    assert "this value of depth in the file of --config-file, --hidden-size, --old-flag:" in new.reason
    assert 'space file: hidden_size = { flag = "--hidden-size" })' in new.reason
    history.ran("--hidden_size", "128", n_params=5)
    (line,) = history.compared("--hidden-size", "64", "--old-flag").lines
    assert line.startswith("1 launch left out: another value of --hidden-size, --old-flag, and n_params was 5")


def test_a_flag_declared_as_the_reason_says_is_compared_no_more() -> None:
    history = Launches()
    history.ran("--hidden-size", "64")
    command = Launch(program="absent.py", script_args=("--hidden-size", "128"), env={"B": "1"})
    for declared in ("--hidden-size", "--hidden_size"):
        text = f'{{ flag = "{declared}", default = 64 }}\n[parameters]\nb = {{ choices = [1], env = "B" }}'
        space = parse_space(f"[workload]\nhidden_size = {text}", where="space.toml")
        assert read_config(command, space)[0]["hidden_size"] == 128
        present = present_command(command, space)
        same = compared(history.trials, present, space=space, keys=(KEY,))
        assert (same.unseen, same.reason) == ((), "")


def test_what_was_observed_decides_once_the_command_has_run() -> None:
    history = Launches()
    short = [history.ran("--seq_len", "64", batch=batch) for batch in (1, 8)]
    long = history.ran("--seq_len", "512", seq_len=512)
    again = history.compared("--seq_len", "512")
    assert (again.unseen, again.trials) == ((), [long])
    assert again.lines == ("2 launches left out: another value of --seq_len, and seq_len was 64, not 512",)
    back = history.compared("--seq_len", "64")
    assert (back.unseen, back.trials) == ((), short)
    assert history.compared("--seq_len", "128").unseen == ("--seq_len",)


def test_a_word_whose_last_change_left_the_work_as_it_was_is_harmless() -> None:
    history = Launches()
    history.ran("--data", "a")
    history.ran("--data", "b")
    new = history.compared("--data", "c")
    assert (new.unseen, new.trials) == ((), history.trials)
    history.ran("--data", "long", seq_len=512)
    assert history.compared("--data", "d").unseen == ("--data",)


def test_an_edited_script_is_rewritten_only_if_its_last_change_did_no_harm() -> None:
    history = Launches()
    history.ran(texts={"program": "one"})
    assert history.compared(texts={"program": "two"}).unseen == ("program",)
    history.ran(texts={"program": "two"})
    assert history.compared(texts={"program": "three"}).unseen == ()
    history.ran(texts={"program": "three"}, n_params=9000)
    assert history.compared(texts={"program": "four"}).unseen == ("program",)
    kept = history.compared(texts={"program": "three"})
    assert [trial.trial_id for trial in kept.trials] == ["t002"]
    assert history.compared().unseen == ()  # the launcher cannot read the file


def test_a_change_that_shows_in_the_speed_of_one_config_is_other_work() -> None:
    history = Launches()
    fast = history.ran("--attn", "flash", seq_len=None)
    slow = history.ran("--attn", "math", seq_len=None, speed=30.0)
    assert history.compared("--attn", "math").trials == [slow]
    assert history.compared("--attn", "flash").trials == [fast]
    assert history.compared("--attn", "other").unseen == ("--attn",)


def test_a_change_that_shows_in_nothing_that_can_be_compared_is_not_taken_for_harmless() -> None:
    history = Launches()
    history.ran("--image", "224", seq_len=None, batch=8)
    history.ran("--image", "448", seq_len=None, batch=1)
    assert history.compared("--image", "336").unseen == ("--image",)
    assert [trial.config["micro_batch_size"] for trial in history.compared("--image", "448").trials] == [1]


def paced(step_s: float = 0.1) -> Measurement:
    """Return a measurement of which nothing but the steps could be counted."""
    return Measurement(mean_step_time_s=step_s, statistic="mean")


@pytest.mark.parametrize("flag", ["--bsz", "--train.seq-len", "--global_batch_size"])
@pytest.mark.parametrize("counts", [True, False])
def test_launches_of_which_steps_alone_were_counted_are_kept_apart_by_their_batch(flag: str, counts: bool) -> None:
    history = Launches()
    for size in ("4", "8"):
        history.ran(flag, size, seq_len=None, **({} if counts else {"measurement": paced()}))
    known = history.compared(flag, "8")
    assert known.unseen == ()
    assert [trial.trial_id for trial in known.trials] == (["t000", "t001"] if counts else ["t001"])
    why = f"1 launch left out: another value of {flag}, and steps alone were counted, which do not tell it"
    assert known.lines == (() if counts else (why,))
    assert history.compared(flag, "16").unseen == (() if counts else (flag,))


def test_steps_tell_the_work_of_other_settings_where_nothing_else_was_counted() -> None:
    history = Launches()
    history.ran("--workers", "4", measurement=paced())
    history.ran("--workers", "8", measurement=paced(0.12))
    assert history.compared("--workers", "2").unseen == ()
    slow = history.ran("--workers", "1", measurement=paced(0.4))
    assert history.compared("--workers", "1").trials == [slow]
    assert history.compared("--workers", "2").unseen == ("--workers",)


def test_what_was_declared_or_redirected_is_not_compared() -> None:
    history = Launches()
    history.ran("--batch_size", "4", "--layers", "2", "--dump", "/scratch/1", origin=Origin.TUNE)
    assert history.compared("--batch_size=1", "--layers", "3").unseen == ()
    assert history.compared("--dump", "home").unseen == ("--dump",)


def test_launches_that_say_too_little_count_as_before() -> None:
    history = Launches()
    unknown = history.ran(arguments=None)
    assert history.compared("--seq_len", "512").trials == [unknown]
    running = history.ran("--seq_len", "64", state=State.RUNNING, measurement=None, ended_at="")
    assert history.compared("--seq_len", "512").trials == [unknown, running]
    assert history.compared("--seq_len", "512").unseen == ()


def test_a_text_with_a_macro_is_not_compared() -> None:
    history = Launches()
    history.ran("--cache", "/job/7")
    assert history.compared("--cache", "${app_id}/x").unseen == ()
    assert history.compared("--cache", "job8").unseen == ("--cache",)


def test_keys_of_a_file_count_instead_of_its_path(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("model: {depth: 2}\nseed: 1\napi_key: hunter2\n")
    command = present_command(Launch(program="absent.py", script_args=("--config", str(file))), SPACE)
    assert command.texts == {"--config:model.depth": "2", "--config:seed": "1"}
    history = Launches()
    history.ran("--config", str(file), texts=command.texts)
    moved = {name.replace("--config", "--config"): text for name, text in command.texts.items()}
    assert history.compared("--config", "/copy.yaml", texts={**moved, "--config:seed": "2"}).unseen == ()
    assert history.compared("--config", "/copy.yaml").unseen == ("--config",)
    assert history.compared("--config", "/copy.yaml", texts={"--config:model.depth": "3"}).unseen == (
        "--config:model.depth",
    )


NAMES = st.sampled_from(["--seq_len", "--depth", "--data", "--attn", "--image_size", "--workers"])
HARMLESS = st.sampled_from(["--seed", "--run_name", "--output_dir", "--lr", "--max_steps", "--log_every"])
VALUES = st.sampled_from(["1", "2", "3", "a", "b"])
COMMANDS = st.lists(st.dictionaries(NAMES, VALUES, max_size=3), min_size=1, max_size=6)


def words(command: Mapping[str, str]) -> Sequence[str]:
    return [word for pair in sorted(command.items()) for word in pair]


@given(commands=COMMANDS, harmless=st.dictionaries(HARMLESS, VALUES), present=st.integers(0, 5))
def test_no_launch_of_other_work_is_used_and_no_new_word_is_taken_for_known(
    commands: list[dict[str, str]], harmless: dict[str, str], present: int
) -> None:
    """The work is the command's: each launch observes sizes that its words alone decide."""
    history, sizes = Launches(), {}
    for command in commands:
        size = sizes.setdefault(tuple(sorted(command.items())), 64 * 2 ** len(sizes))
        history.ran(*words(command), seq_len=size)
    typed = commands[present % len(commands)]
    found = history.compared(*words(typed), *words(harmless))
    assert found.unseen == ()
    assert {trial.observed["seq_len"] for trial in found.trials} == {sizes[tuple(sorted(typed.items()))]}
    new = history.compared(*words({**typed, "--depth": "new"}))
    assert new.unseen
    assert not new.reason.endswith(" ")


@given(changes=st.lists(st.tuples(NAMES, VALUES), max_size=8), harmless=st.dictionaries(HARMLESS, VALUES))
def test_words_that_change_nothing_cost_at_most_one_launch_each(
    changes: list[tuple[str, str]], harmless: dict[str, str]
) -> None:
    """No word changes the work: a word that has changed on its own is harmless from then on."""
    history = Launches()
    history.ran()
    command: dict[str, str] = {}
    changed: set[str] = set()
    for name, value in changes:
        command = {**command, name: value}
        found = history.compared(*words(command), *words(harmless))
        assert set(found.unseen) <= {name} - changed
        assert found.trials == history.trials
        history.ran(*words(command))
        changed.add(name)


def test_two_changes_at_once_show_nothing() -> None:
    history = Launches()
    history.ran("--attn", "flash", "--width", "2")
    history.ran("--attn", "math", "--width", "1")  # they cancel each other out
    assert history.compared("--attn", "flash", "--width", "1").unseen
    assert history.compared("--attn", "other", "--width", "1").unseen == ("--attn",)


def test_versions_of_a_script_with_different_work_stay_apart_when_later_edits_do_no_harm() -> None:
    history = Launches()
    old = history.ran(texts={"program": "old"})
    for version in ("grown", "renamed"):
        history.ran(texts={"program": version}, n_params=2000)
    assert history.compared(texts={"program": "next"}).trials == history.trials[1:]
    assert history.compared(texts={"program": "old"}).trials == [old]


def test_a_script_that_the_job_reads_otherwise_is_compared_as_the_job_read_it() -> None:
    history = Launches()
    here, there = {"program": "here", "program:n": "1"}, {"program": "there"}
    launched = {**there, "launched": program_digest(here)}
    history.ran("--seq_len", "64", texts=there)
    assert history.compared("--seq_len", "64", texts=here).unseen == ("program", "program:n")
    history.ran("--seq_len", "64", texts=launched)
    again = history.compared("--seq_len", "64", texts=here)
    assert (again.unseen, again.trials) == ((), history.trials)
    assert again.lines[0].startswith("the script here differs from the one in the job")
    assert history.compared("--seq_len", "512", texts=here).unseen == ("--seq_len",)
    assert history.compared("--seq_len", "64", texts={"program": "edited"}).unseen == ("program",)
    history.ran("--seq_len", "64", texts={"program": "edited", "launched": program_digest(here)}, n_params=9000)
    newest = history.compared("--seq_len", "64", texts=here)
    assert (newest.unseen, newest.trials) == ((), history.trials[-1:])
    same = {**here, "launched": program_digest(here)}
    history.ran("--seq_len", "64", texts=same)
    assert not any("differs" in line for line in history.compared("--seq_len", "64", texts=here).lines)


def test_launches_of_other_work_are_left_out_however_many_commands_there_were_since() -> None:
    history = Launches()
    foreign = [history.ran("--depth", "24", "--data", f"old {number}", n_params=9000) for number in range(30)]
    own = [history.ran("--depth", "12", "--data", f"new {number}") for number in range(45)]
    found = history.compared("--depth", "12", "--data", "new 7")
    assert (found.unseen, len(found.trials)) == ((), len(own))
    assert not set(map(id, foreign)) & set(map(id, found.trials))
    back = history.compared("--depth", "24", "--data", "old 0")
    assert (back.unseen, back.trials[0]) == ((), foreign[0])
    assert not set(map(id, own)) & set(map(id, back.trials))


def test_each_key_of_a_store_is_recognised() -> None:
    one, two = Launches("a" * 32), Launches("b" * 32)
    texts = {"program": "code", "$NCCL_ALGO": "Ring"}
    one.ran("--data", "c4", "--depth", "2", texts={**texts, "key": ""})
    two.trials = one.trials
    two.ran("--data", "c4", "--depth", "2", texts={**texts, "key": ""})
    for keys in ((one.key, two.key), (two.key, one.key)):
        command = PresentCommand(("--data", "c4", "--depth", "2"), texts)
        found = compared(two.trials, command, keys=keys)
        assert (found.unseen, found.trials) == ((), two.trials)
        # Two digests of one text are no change of a setting that did no harm.
        command = PresentCommand(("--data", "pile", "--depth", "2"), texts)
        assert compared(two.trials, command, keys=keys).unseen == ("--data",)
    lost = compared(two.trials, command, keys=("c" * 32,))
    assert "--data" in lost.unseen


def test_recorded_digests_without_a_key_at_hand_keep_the_launch_as_typed() -> None:
    history = Launches()
    history.ran("--data", "c4", texts={"program": "a"})
    found = compared(history.trials, PresentCommand(("--data", "c4")), keys=())
    assert found.reason.startswith("the key of the store's digests was not read")

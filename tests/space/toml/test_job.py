from __future__ import annotations

import pytest

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.records.job_time import Job
from torchx_cubicml.space.toml import parse_space

SPACE = """
objective = "soonest_done"
[job]
steps = 1000
[parameters.compile]
choices = [false, true]
flag = "--compile"
"""
BATCH = """
[parameters.micro_batch_size]
choices = [1, 2]
flag = "--batch_size"
changes_training = true
"""


@pytest.mark.parametrize("unit", ["steps", "samples", "tokens"])
def test_the_work_of_a_job_gives_the_throughput_that_is_predicted(unit: str) -> None:
    space = parse_space(SPACE.replace("steps", unit), where="x.toml")
    assert (space.objective, space.rate) == ("soonest_done", f"{unit}_per_second")
    assert space.job == Job(unit=unit, amount=1000)


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("steps = 1000", "steps = 0", "must be the number of steps of the whole job, from 1 to 1e18"),
        ("steps = 1000", "steps = 0.3", "must be the number of steps of the whole job, from 1 to 1e18"),
        ("steps = 1000", "steps = 1e300", "must be the number of steps of the whole job, from 1 to 1e18"),
        ("steps = 1000", "", "needs one of steps, samples and tokens, such as steps = 1000, got 0"),
        (
            "steps = 1000",
            "steps = 1\ntokens = 9",
            "of steps, samples and tokens, such as steps = 1000, got 2",
        ),
        ("steps = 1000", "epochs = 3", "unknown key 'epochs'"),
        ("[job]\nsteps = 1000", "", r"objective soonest_done needs one of .*, in a table \[job\]"),
        ('objective = "soonest_done"', "", r'a table \[job\] counts for objective = "soonest_done" only'),
    ],
)
def test_an_illegal_job_is_one_sentence(old: str, new: str, rule: str) -> None:
    with pytest.raises(SpaceError, match=rule):
        parse_space(SPACE.replace(old, new), where="x.toml")


def test_steps_of_different_work_do_not_count_a_job() -> None:
    with pytest.raises(SpaceError, match=r"of 1,000 steps compares .*; count the job in samples or tokens"):
        parse_space(SPACE + BATCH, where="x.toml")
    assert parse_space((SPACE + BATCH).replace("steps", "samples"), where="x.toml").job is not None

from __future__ import annotations

from dataclasses import replace

import pytest

from torchx_cubicml.errors import RecordError, SpaceError
from torchx_cubicml.records.device_prices import PRICE, Prices
from torchx_cubicml.records.objective_units import PER_COST, cost_per_second
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.space.toml import parse_space

PRICES = Prices(name="partition", of_value={"fast": 4.0, "slow": 0.5})
SPACE = """
objective = "tokens_per_currency"
[prices]
partition = { fast = 4.0, slow = 0.5 }
[parameters.partition]
choices = ["fast", "slow"]
scheduler = "partition"
"""


def trial(partition: str, *, world_size: int | None = 2) -> Trial:
    workload = {} if world_size is None else {"world_size": world_size}
    return Trial.completed(workload=workload, config={"partition": partition}, tokens_per_second=100.0)


def test_throughput_per_device_hour_and_per_currency() -> None:
    fast = trial("fast").priced(PRICES)
    assert fast.observed[PRICE] == 4.0
    assert fast.throughput("tokens_per_second") == 100.0
    assert fast.throughput("tokens_per_device_hour") == 100.0 * 3600 / 2
    assert fast.throughput("tokens_per_currency") == 100.0 * 3600 / 2 / 4.0
    assert fast.throughput("samples_per_currency") is None


def test_what_is_unknown_gives_no_throughput() -> None:
    assert trial("other").priced(PRICES).throughput("tokens_per_currency") is None
    assert trial("fast").throughput("tokens_per_currency") is None
    assert trial("fast", world_size=None).throughput("tokens_per_device_hour") is None
    with pytest.raises(RecordError, match="unknown objective"):
        trial("fast").throughput("tokens_per_mile")
    assert [cost_per_second(name, devices=0, price=1.0) for name in PER_COST] == [None] * len(PER_COST)


def test_throughput_per_joule_needs_a_recorded_power() -> None:
    run = trial("fast")
    assert run.throughput("tokens_per_joule") is None
    assert run.measurement is not None
    powered = replace(run, measurement=replace(run.measurement, power_watts=50.0, power_of="GPUs"))
    assert powered.throughput("tokens_per_joule") == 2.0
    assert powered.throughput("samples_per_joule") is None


@pytest.mark.parametrize("watts", [1e-300, 1e300])
def test_an_impossible_power_gives_no_throughput_per_joule(watts: float) -> None:
    run = trial("fast")
    assert run.measurement is not None
    powered = replace(run, measurement=replace(run.measurement, power_watts=watts, mean_step_time_s=1.0))
    assert powered.throughput("tokens_per_joule") is None
    assert powered.measurement is not None
    assert powered.measurement.joules_per_step is None


def test_prices_of_a_space_file() -> None:
    assert parse_space(SPACE, where="x.toml").prices == PRICES


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        (", slow = 0.5", "", "the choice 'slow' has no price"),
        ("slow = 0.5", "slow = 0", "a number above 0"),
        ("{ fast = 4.0, slow = 0.5 }", "{}", "has no price"),
        ("{ fast = 4.0, slow = 0.5 }", "4.0", "must be a table"),
        ("partition = { fast", "queue = { fast", r"prices.queue: must be a parameter or a workload fact"),
        ("[prices]\npartition = { fast = 4.0, slow = 0.5 }", "", r"needs a table \[prices\]"),
        ("[prices]", "[prices]\nqueue = { a = 1 }", "needs one table"),
    ],
)
def test_an_illegal_table_is_one_sentence(old: str, new: str, rule: str) -> None:
    with pytest.raises(SpaceError, match=rule):
        parse_space(SPACE.replace(old, new), where="x.toml")

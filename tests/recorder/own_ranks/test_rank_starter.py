from __future__ import annotations

import time

import pytest

from torchx_cubicml.errors import ContractError
from torchx_cubicml.recorder.own_ranks.rank_starter import LAST_SEQUENCE, RankStarter
from torchx_cubicml.recorder.process.assignment import rank_assignment, read_assignment
from torchx_cubicml.recorder.process.run_program import Program
from torchx_cubicml.records.contract import CONTRACT_VARIABLE, Contract, FilePatch, decode_contract
from torchx_cubicml.settings import STARTER_VARIABLE

CONTRACT = Contract(store="/s", config={"a": 1}, files=(FilePatch(path="c.json", argument=1),))


def starter(trial_id: str = "t-1", contract: Contract = CONTRACT) -> RankStarter:
    return RankStarter.of(contract, trial_id=trial_id, pid=7)


def test_a_rank_is_of_the_trial_of_its_starter() -> None:
    found = rank_assignment(starter(), rank=1, world_size=2, environment={})
    assert (found.trial_id, found.leads, found.job.rank, found.job.world_size) == ("t-1", False, 1, 2)
    assert (found.contract.config, found.contract.files, found.program) == ({"a": 1}, (), None)
    assert rank_assignment(starter(), rank=0, world_size=2, environment={}).leads


def test_a_second_attempt_keeps_its_name() -> None:
    second = Contract(store="/s", is_second_attempt=True)
    own = starter("t-1-as-typed", second)
    assert rank_assignment(own, rank=0, world_size=2, environment={}).trial_id == "t-1-as-typed"


def test_a_program_that_is_a_rank_knows_its_starter() -> None:
    own = starter()
    environment = {CONTRACT_VARIABLE: own.contract, STARTER_VARIABLE: own.encode(), "RANK": "1", "WORLD_SIZE": "2"}
    found = read_assignment(Program(name="t.py"), environment)
    assert found.trial_id == "t-1"
    assert found.starter is not None
    assert (found.starter.pid, found.starter.began) == (7, pytest.approx(own.began, abs=0.001))
    another = {**environment, CONTRACT_VARIABLE: starter("t-2").contract}
    assert read_assignment(Program(name="t.py"), another).starter is None, "a launch inside of the launch"
    for text in ("seven", "7 nan t-1", "7 -inf t-1"):
        damaged = {**environment, STARTER_VARIABLE: text}
        assert read_assignment(Program(name="t.py"), damaged).starter is None


def test_events_of_ranks_lie_between_those_of_the_starter(monkeypatch: pytest.MonkeyPatch) -> None:
    own = starter()
    monkeypatch.setattr(time, "time", lambda: own.began + 2.5)
    first = own.first_sequence()
    monkeypatch.setattr(time, "time", lambda: own.began + 3.5)
    assert 0 < first < own.first_sequence() < LAST_SEQUENCE
    monkeypatch.setattr(time, "time", lambda: own.began - 100)
    assert own.first_sequence() == 1, "a clock may be set back"


def test_a_contract_that_is_too_large_is_refused() -> None:
    with pytest.raises(ContractError, match="the limit is"):
        starter("".join(map(str, range(9000))))
    assert decode_contract(starter().contract).trial_id == "t-1"

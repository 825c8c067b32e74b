from __future__ import annotations

import base64
import json
import random
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_cubicml.errors import ContractError
from torchx_cubicml.records.contract import (
    MAX_BYTES,
    Contract,
    FilePatch,
    TypedCommand,
    decode_contract,
    encode_contract,
)
from torchx_cubicml.records.trial import Origin

FULL = Contract(
    store="s3://team/cubicml",
    workload={"program": "examples/train_gpt.py", "world_size": 2, "n_layers": 12},
    config={"micro_batch_size": 4, "sharding_strategy": ("FULL_SHARD", "NO_SHARD"), "compile": False, "lr": 0.1},
    objective="samples_per_second",
    origin=Origin.TUNE,
    launch_id="tune-0123",
    scheduler="local_cwd",
    suggestion={"throughput": 41_000.0, "reason": "schneller, größer, 更快"},
    step_limit=20,
    files=(
        FilePatch(path="ds.json", argument=3, digest="0" * 64, values=((("zero", "stage"), 3), (("a",), (1, 2)))),
        FilePatch(path="c d.yaml", variable="CONFIG"),
    ),
    hooks={"fsdp": ("FULL_SHARD", "NO_SHARD")},
    as_typed=TypedCommand(args=("--a", "b c"), env={"A": None, "B": "x"}, config={"micro_batch_size": 2}),
)


def packed(payload: object) -> str:
    text = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return base64.urlsafe_b64encode(zlib.compress(text)).decode()


@pytest.mark.parametrize("contract", [FULL, Contract(store="/data/cubicml")], ids=["full", "least"])
def test_a_contract_survives_the_round_trip(contract: Contract) -> None:
    assert decode_contract(encode_contract(contract)) == contract


def test_the_typed_contract_keeps_the_launch() -> None:
    typed = FULL.typed()
    assert (typed.config, typed.origin, typed.suggestion) == ({"micro_batch_size": 2}, Origin.USER, None)
    assert (typed.files, typed.hooks, typed.as_typed) == ((), {}, None)
    assert (typed.store, typed.launch_id, typed.step_limit) == (FULL.store, FULL.launch_id, FULL.step_limit)


@pytest.mark.parametrize(
    "damage",
    [
        {"files": 3},
        {"files": [3]},
        {"files": [{"path": "a", "argument": -1}]},
        {"files": [{"path": "a", "values": [[3, 4]]}]},
        {"files": [{"path": "a", "values": [[["a"], {}]]}]},
        {"hooks": []},
        {"as_typed": []},
        {"as_typed": {"args": [1]}},
        {"as_typed": {"env": {"A": 1}}},
    ],
    ids=repr,
)
def test_damaged_changes_of_the_job_are_refused(damage: dict[str, object]) -> None:
    with pytest.raises(ContractError, match="damaged"):
        decode_contract(packed({"version": 1, "store": "/data", **damage}))


@given(st.dictionaries(st.text(min_size=1, max_size=20), st.text(max_size=40) | st.integers(-9, 9), max_size=4))
@settings(max_examples=50)
def test_any_text_of_a_command_line_travels(config: dict[str, str | int]) -> None:
    contract = Contract(store="/data", config={**config, "path": "no\udcff utf-8"})
    assert decode_contract(encode_contract(contract)) == contract


def test_the_value_is_safe_in_every_scheduler() -> None:
    assert set(encode_contract(FULL)) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_=")


def test_a_contract_over_its_limit_is_refused_on_both_sides() -> None:
    noise = base64.b85encode(random.Random(7).randbytes(20_000)).decode()
    with pytest.raises(ContractError, match=str(MAX_BYTES)):
        encode_contract(Contract(store="/data", config={str(i): noise[i : i + 4000] for i in range(0, 20_000, 4000)}))
    with pytest.raises(ContractError, match=str(MAX_BYTES)):
        decode_contract("A" * (MAX_BYTES + 1))


@pytest.mark.parametrize("version", [0, 2, None, "1"], ids=repr)
def test_another_version_is_refused_with_both_named(version: object) -> None:
    with pytest.raises(ContractError, match=r"version .*reads 1"):
        decode_contract(packed({"version": version, "store": "/data"}))


@pytest.mark.parametrize("suggestion", [{"throughput": float("nan")}, {"throughput": object()}], ids=["nan", "object"])
def test_a_value_outside_of_json_is_refused(suggestion: dict[str, object]) -> None:
    with pytest.raises(ContractError, match="JSON"):
        encode_contract(Contract(store="/data", suggestion=suggestion))


DAMAGED = {
    "empty": "",
    "no base64": "%%%",
    "not ascii": "größer",
    "not compressed": base64.urlsafe_b64encode(b"{}").decode(),
    "cut": encode_contract(FULL)[:-8],
    "no JSON": packed(b"{"),
    "no UTF-8": packed(b'"\xff\xfe\xfd"'),
    "a list": packed([1]),
    "too deep": packed(b"[" * 100_000),
    "a bomb": packed(b" " * 3_000_000),
    "no store": packed({"version": 1}),
    "store of another type": packed({"version": 1, "store": 5}),
    "config of another type": packed({"version": 1, "store": "/data", "config": [1]}),
    "value of another type": packed({"version": 1, "store": "/data", "config": {"a": {"b": 1}}}),
    "unknown origin": packed({"version": 1, "store": "/data", "origin": "mars"}),
    "suggestion of another type": packed({"version": 1, "store": "/data", "suggestion": "fast"}),
    "step limit of another type": packed({"version": 1, "store": "/data", "step_limit": "20"}),
    "step limit of zero": packed({"version": 1, "store": "/data", "step_limit": 0}),
}


@pytest.mark.parametrize("value", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_contract_raises_only_our_error(value: str) -> None:
    with pytest.raises(ContractError, match="damaged"):
        decode_contract(value)


def test_fields_of_a_later_release_are_ignored() -> None:
    assert decode_contract(packed({"version": 1, "store": "/data", "colour": "red"})) == Contract(store="/data")

from __future__ import annotations

import base64
import json
import random
import re
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_cubicml.errors import ContractError
from torchx_cubicml.records.contract import (
    CONTRACT_VARIABLE,
    MAX_BYTES,
    Contract,
    FilePatch,
    TypedCommand,
    decode_contract,
    encode_contract,
)
from torchx_cubicml.records.log_pattern import LogPattern
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
    checked_hooks={"torchrec": "row_wise"},
    as_typed=TypedCommand(args=("--a", "b c"), env={"A": None, "B": "x"}, config={"micro_batch_size": 2}),
    provenance={"commit": "0" * 40},
    kept_variables=("DEPTH",),
)


WRITTEN = {
    "version": 1,
    "store": "s3://team/cubicml",
    "workload": {"program": "examples/train_gpt.py", "world_size": 2, "n_layers": 12},
    "config": {"micro_batch_size": 4, "sharding_strategy": ["FULL_SHARD", "NO_SHARD"], "compile": False, "lr": 0.1},
    "objective": "samples_per_second",
    "origin": "tune",
    "launch_id": "tune-0123",
    "scheduler": "local_cwd",
    "suggestion": {"throughput": 41_000.0, "reason": "schneller, größer, 更快"},
    "step_limit": 20,
    "trial_id": "",
    "hooks": {"fsdp": ["FULL_SHARD", "NO_SHARD"]},
    "checked_hooks": {"torchrec": "row_wise"},
    "files": [
        {
            "path": "ds.json",
            "argument": 3,
            "variable": "",
            "digest": "0" * 64,
            "values": [[["zero", "stage"], 3], [["a"], [1, 2]]],
        },
        {"path": "c d.yaml", "argument": None, "variable": "CONFIG", "digest": "", "values": []},
    ],
    "as_typed": {"args": ["--a", "b c"], "env": {"A": None, "B": "x"}, "config": {"micro_batch_size": 2}},
    "log": None,
    "refused": "",
    "is_second_attempt": False,
    "variables": [],
    "program": "",
    "provenance": {"commit": "0" * 40},
    "kept_variables": ["DEPTH"],
}


def packed(payload: object) -> str:
    text = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return base64.urlsafe_b64encode(zlib.compress(text)).decode()


@pytest.mark.parametrize("contract", [FULL, Contract(store="/data/cubicml")], ids=["full", "least"])
def test_a_contract_survives_the_round_trip(contract: Contract) -> None:
    assert decode_contract(encode_contract(contract)) == contract


def test_a_contract_is_compact_json_under_its_field_names() -> None:
    text = zlib.decompress(base64.urlsafe_b64decode(encode_contract(FULL)))
    assert text == json.dumps(WRITTEN, separators=(",", ":"), ensure_ascii=False).encode()
    assert decode_contract(packed(WRITTEN)) == FULL
    assert CONTRACT_VARIABLE == "TORCHX_CUBICML_LAUNCH"


def test_all_fields_but_the_store_can_be_missing() -> None:
    least = decode_contract(packed({"version": 1, "store": "/data"}))
    assert least == Contract(store="/data")
    assert (least.objective, least.origin, least.step_limit) == ("tokens_per_second", Origin.USER, None)
    assert (least.launch_id, least.scheduler, least.trial_id, least.refused) == ("", "", "", "")
    assert decode_contract(packed({"version": 1, "store": "/data", "files": None})) == least
    command = decode_contract(packed({"version": 1, "store": "/data", "as_typed": {}})).as_typed
    assert command == TypedCommand(args=(), env={}, config={})
    (patch,) = decode_contract(packed({"version": 1, "store": "/data", "files": [{"path": "a"}]})).files
    assert patch == FilePatch(path="a", argument=None, variable="", digest="", values=())


@pytest.mark.parametrize(
    "change",
    [
        {"trial_id": "slurm://torchx/7"},
        {"refused": "the file changed"},
        {"is_second_attempt": True},
        {"variables": ("OMP_NUM_THREADS",)},
        {"program": "0123456789abcdef"},
        {"step_limit": 1},
        {"log": LogPattern(pattern="speed (.)", groups={"step_time_s": 1})},
        {"files": (FilePatch(path="a", argument=0),)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_other_fields_survive_the_round_trip(change: dict[str, object]) -> None:
    contract = Contract(store="/data", **change)
    decoded = decode_contract(encode_contract(contract))
    assert decoded == contract
    assert decoded != Contract(store="/data")


def test_the_typed_contract_keeps_the_launch() -> None:
    typed = FULL.typed()
    assert (typed.config, typed.origin, typed.suggestion) == ({"micro_batch_size": 2}, Origin.USER, None)
    assert (typed.files, typed.hooks, typed.as_typed) == ((), {}, None)
    assert (typed.store, typed.launch_id, typed.step_limit) == (FULL.store, FULL.launch_id, FULL.step_limit)


def test_a_contract_without_changes_of_files_keeps_its_config() -> None:
    contract = Contract(store="/data", config={"tp_degree": 2}, origin=Origin.REWRITE, hooks={"fsdp": "NO_SHARD"})
    assert contract.typed() == Contract(store="/data", config={"tp_degree": 2})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"store": 5}, "store must be a string, got 5"),
        ({"workload": 5}, "contract.workload must map names to values, got int"),
        ({"config": 5}, "contract.config must map names to values, got int"),
        ({"hooks": 5}, "contract.hooks must map names to values, got int"),
        ({"objective": 5}, "objective must be a string, got 5"),
        ({"origin": 5}, "origin must be a string, got 5"),
        ({"launch_id": 5}, "launch_id must be a string, got 5"),
        ({"scheduler": 5}, "scheduler must be a string, got 5"),
        ({"trial_id": 5}, "trial_id must be a string, got 5"),
        ({"refused": 5}, "refused must be a string, got 5"),
        ({"suggestion": 5}, "suggestion must be a JSON object, got 5"),
        ({"step_limit": True}, "step_limit must be a whole number >= 1, got True"),
        ({"step_limit": 1.5}, "step_limit must be a whole number >= 1, got 1.5"),
        ({"step_limit": 0}, "step_limit must be a whole number >= 1, got 0"),
        ({"log": 5}, "log must hold a pattern and its groups, got 5"),
        ({"log": {"pattern": "x (.)"}}, "log must hold a pattern and its groups, got {'pattern': 'x (.)'}"),
        ({"log": {"groups": {}}}, "log must hold a pattern and its groups, got {'groups': {}}"),
        ({"files": 5}, "files must be a list, got 5"),
        ({"files": [5]}, "a file must be a JSON object, got 5"),
        ({"files": [{}]}, "path must be a string, got None"),
        ({"files": [{"path": "a", "variable": 5}]}, "variable must be a string, got 5"),
        ({"files": [{"path": "a", "digest": 5}]}, "digest must be a string, got 5"),
        ({"files": [{"path": "a", "argument": -1}]}, "argument must be a position, got -1"),
        ({"files": [{"path": "a", "argument": True}]}, "argument must be a position, got True"),
        ({"files": [{"path": "a", "argument": 1.5}]}, "argument must be a position, got 1.5"),
        ({"files": [{"path": "a", "values": 5}]}, "values must be a list, got 5"),
        ({"files": [{"path": "a", "values": [5]}]}, "values must be pairs of key and value, got 5"),
        ({"files": [{"path": "a", "values": ["ab"]}]}, "values must be pairs of key and value, got 'ab'"),
        ({"files": [{"path": "a", "values": [["a", 1]]}]}, "values must be pairs of key and value, got ['a', 1]"),
        ({"files": [{"path": "a", "values": [[[], 1]]}]}, "values must be pairs of key and value, got [[], 1]"),
        ({"files": [{"path": "a", "values": [[[5], 1]]}]}, "values must be pairs of key and value, got [[5], 1]"),
        ({"files": [{"path": "a", "values": [[["a"]]]}]}, "values must be pairs of key and value, got [['a']]"),
        (
            {"files": [{"path": "a", "values": [[["a"], 1, 2]]}]},
            "values must be pairs of key and value, got [['a'], 1, 2]",
        ),
        ({"files": [{"path": "a", "values": [[["a"], "x" * 4097]]}]}, "contract.files has 4097 characters; the limit"),
        ({"as_typed": 5}, "as_typed must be a JSON object, got 5"),
        ({"as_typed": {"args": 5}}, "as_typed.args must be a list, got 5"),
        ({"as_typed": {"env": 5}}, "env must be a JSON object, got 5"),
        ({"as_typed": {"env": {"A": "x", "B": 5}}}, "as_typed.env must hold strings"),
        ({"as_typed": {"config": 5}}, "contract.as_typed must map names to values, got int"),
    ],
    ids=lambda value: repr(value)[:48] if isinstance(value, dict) else None,
)
def test_damage_is_reported_with_the_field_and_the_rule(damage: dict[str, object], message: str) -> None:
    with pytest.raises(ContractError, match=f"^the launch contract is damaged: {re.escape(message)}"):
        decode_contract(packed({"version": 1, "store": "/data", **damage}))


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


def test_a_contract_of_exactly_the_limit_is_read() -> None:
    noise = random.Random(7).randbytes(4_000).hex()
    encoded: list[str] = []

    def grow() -> None:
        for length in range(7_000, 8_000):
            config = {"a": noise[:4_000], "b": noise[4_000:length]}
            encoded.append(encode_contract(Contract(store="/data", config=config)))

    with pytest.raises(ContractError, match=r"has 61\d\d bytes; the limit is 6144$"):
        grow()
    assert len(encoded[-1]) == 6144
    assert decode_contract(encoded[-1]).config["a"] == noise[:4_000]
    with pytest.raises(ContractError, match=r"has 6148 bytes; the limit is 6144$"):
        decode_contract(encoded[-1] + "AAAA")


def test_a_contract_without_its_checksum_is_damaged() -> None:
    whole = base64.urlsafe_b64decode(packed({"version": 1, "store": "/data"}))
    with pytest.raises(ContractError, match="damaged: not a complete JSON object"):
        decode_contract(base64.urlsafe_b64encode(whole[:-4]).decode())


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

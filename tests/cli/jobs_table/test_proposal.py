from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.cli.jobs_table.proposal import propose_columns
from torchx_cubicml.cli.jobs_table.source import read_source

if TYPE_CHECKING:
    from pathlib import Path

    from torchx_cubicml.cli.jobs_table.proposal import ColumnPlan


def plans_of(folder: Path, text: str, **given: str) -> dict[str, ColumnPlan]:
    path = folder / "jobs.csv"
    path.write_text(text.replace(" | ", ","))
    return {plan.heading.text: plan for plan in propose_columns(read_source(path), given)}


SETTLED = {
    "global-batch": ("GPUs,mbs,GA,batch size\n8,2,4,64\n16,2,4,128\n", "batch size", "global_batch_size"),
    "micro-batch": ("GPUs,gbs,GA,batch size\n8,64,4,2\n16,128,4,2\n", "batch size", "micro_batch_size"),
    "neither": ("GPUs,mbs,GA,batch size\n8,2,4,8\n16,2,4,8\n", "batch size", ""),
    "device": ("mbs,System\n2,DGX H100\n4,A100\n", "System", "device"),
    "no-device": ("mbs,System\n2,linux\n4,linux2\n", "System", ""),
    "kernel": ("mbs,kernel\n2,flash\n4,eager\n", "kernel", "attention_kernel"),
    "other-kernel": ("mbs,kernel\n2,gemm\n4,conv\n", "kernel", ""),
    "model-parallel": ("PP,model_parallel_size\n1,2\n2,4\n", "model_parallel_size", "tp_degree"),
    "model-parallel-by-product": ("GPUs,DP,mp\n8,4,2\n8,2,4\n", "mp", "tp_degree"),
    "model-parallel-alone": ("GPUs,model_parallel_size\n8,2\n8,4\n", "model_parallel_size", ""),
    "sharding": ("mbs,fsdp\n1,FULL_SHARD\n2,SHARD_GRAD_OP\n", "fsdp", "sharding_strategy"),
    "shards": ("mbs,fsdp\n1,8\n2,16\n", "fsdp", "dp_shard_degree"),
    "switch": ("mbs,fsdp\n1,yes\n2,no\n", "fsdp", ""),
    "used-memory": ("mbs,memory\n" + "".join(f"{n},{n}.5\n" for n in range(1, 9)), "memory", "peak_memory_gib"),
    "some-memory": ("mbs,memory\n1,80\n2,80\n", "memory", ""),
    "per-node": ("nodes,GPUs\n1,8\n2,8\n4,8\n", "GPUs", "nproc_per_node"),
    "of-the-job": ("nodes,GPUs\n1,8\n2,16\n4,32\n", "GPUs", "world_size"),
    "zero": ("mbs,sharding\n1,ZeRO-3\n2,ZeRO-1\n", "sharding", "zero_stage"),
    "sequence-degree": ("mbs,sequence parallelism\n1,1\n2,4\n", "sequence parallelism", "cp_degree"),
    "seconds": ("mbs,step time\n1,2.5 s\n2,350 ms\n", "step time", "seconds_per_step"),
    "model-size": ("mbs,parameters\n1,7B\n2,13B\n", "parameters", "n_params"),
    "not-attention": ("mbs,attention\n1,MHA\n2,GQA\n", "attention", ""),
    "remarks": ("mbs,notes\n1,\n2,did not finish\n", "notes", "status"),
    "other-remarks": ("mbs,notes\n1,\n2,on the new cluster\n", "notes", ""),
}


@pytest.mark.parametrize("case", SETTLED)
def test_the_rows_settle_what_the_heading_does_not(tmp_path: Path, case: str) -> None:
    text, column, name = SETTLED[case]
    plan = plans_of(tmp_path, text)[column]
    assert plan.name == name
    if not name:
        assert plan.reason


@pytest.mark.parametrize(("cell", "name"), [("10", "seconds_per_step"), ("10000", "milliseconds_per_step")])
def test_only_one_unit_of_a_step_time_gives_a_possible_share_of_the_peak(tmp_path: Path, cell: str, name: str) -> None:
    text = f"GPU type,GPUs,n_params,seq_len,gbs,step_time\nH100,8,1.3e9,4096,256,{cell}\n"
    assert plans_of(tmp_path, text)["step_time"].name == name
    assert plans_of(tmp_path, f"GPUs,gbs,step_time\n8,256,{cell}\n")["step_time"].choices


def test_equal_columns_count_once_and_others_are_asked_for(tmp_path: Path) -> None:
    plans = plans_of(tmp_path, "world size,GPUs,dtype,param dtype,x\n8,8,bf16,fp32,1\n16,16,fp16,fp32,2\n")
    assert [plans[name].name for name in ("world size", "GPUs")] == ["world_size", ""]
    assert "is read from 'world size'" in plans["GPUs"].reason
    assert plans["param dtype"].choices == ("precision",)


def test_the_same_number_in_two_roundings_counts_once(tmp_path: Path) -> None:
    plans = plans_of(tmp_path, "Params (B),n_params\n1.34,1342177280\n8.86,8858370048\n")
    assert [plan.name for plan in plans.values()] == ["", "n_params"]


def test_one_throughput_is_chosen_and_the_others_are_outcomes(tmp_path: Path) -> None:
    plans = plans_of(tmp_path, "GPUs,mbs,tok/s/GPU,tok/s,samples/s,throughput\n8,1,10,80,,5\n8,2,20,160,0,5\n")
    assert {text: plan.name for text, plan in plans.items() if plan.name == "outcome"}.keys() == {
        "tok/s/GPU",
        "samples/s",
        "throughput",
    }
    assert plans["tok/s"].name == "tokens_per_second"


def test_a_rate_that_cannot_be_turned_into_throughput_is_not_chosen(tmp_path: Path) -> None:
    plans = plans_of(tmp_path, "mbs,s/it,tok/s/GPU,samples/s\n1,10,80,4\n")
    assert plans["samples/s"].name == "samples_per_second"


def test_what_the_user_says_counts(tmp_path: Path) -> None:
    text = "tp,batch size,note,mfu\n1,2,a,3\n2,4,b,4\n"
    plans = plans_of(tmp_path, text, note="network", tp="", **{"batch size": "micro_batch_size"})
    assert {heading: plan.name for heading, plan in plans.items()} == {
        "tp": "",
        "batch size": "micro_batch_size",
        "note": "network",
        "mfu": "outcome",
    }
    assert plans["tp"].reason == "left out as asked"


def test_an_empty_column_and_a_constant_one_are_told(tmp_path: Path) -> None:
    plans = plans_of(tmp_path, "tp,odd,note,other,Shard params\n1,,x,1,1\n2,,x,2,0\n")
    assert [plans[name].reason for name in ("odd", "note", "other", "Shard params")] == [
        *("empty", "always 'x'", "unknown heading"),
        "unknown heading; it may concern sharding_strategy",
    ]

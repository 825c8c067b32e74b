from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.cli.jobs_table.proposal import propose_columns
from torchx_cubicml.cli.table_formats.registry import read_source

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
    "verdict": ("mbs,did it run?\n1,yes\n2,OOM\n4,crash\n", "did it run?", "status"),
    "no-verdict": ("mbs,did it run?\n1,yes\n2,no\n4,yes\n", "did it run?", ""),
    "words": ("mbs,os\n1,linux\n2,windows\n", "os", ""),
    "device-memory": ("mbs,GPU mem\n" + "1,80\n2,80\n4,80\n8,40\n9,40\n" * 2, "GPU mem", "device_memory_gib"),
    "odd-memory": ("mbs,GPU mem\n" + "1,80\n2,80\n4,80\n8,41\n9,41\n" * 2, "GPU mem", ""),
    "batch-in-tokens": ("DP,mbs,GA,seq,gbs\n4,2,4,4k,131072\n8,2,4,4k,262144\n", "gbs", "global_batch_tokens"),
    "batch-in-samples": ("DP,mbs,GA,seq,gbs\n4,2,4,4k,32\n8,2,4,4k,64\n", "gbs", "global_batch_size"),
    "accumulation": ("DP,mbs,acc,gbs\n4,2,4,32\n8,2,2,32\n", "acc", "gradient_accumulation_steps"),
    "accuracy": ("DP,mbs,acc,gbs\n4,2,71,32\n8,2,72,32\n", "acc", ""),
    "trainer-sharding": ("mbs,fsdp\n1,full_shard auto_wrap\n2,shard_grad_op auto_wrap\n", "fsdp", "sharding_strategy"),
    "sharding-switch": ("mbs,Shard params\n1,1\n2,0\n", "Shard params", "sharding_strategy"),
    "strategy-numbers": ("mbs,fsdp_sharding_strategy\n1,1\n2,2\n", "fsdp_sharding_strategy", "sharding_strategy"),
    "amp": ("mbs,AMP\n1,bf16\n2,fp16\n", "AMP", "precision"),
    "amp-switch": ("mbs,AMP\n1,on\n2,off\n", "AMP", ""),
    "parameters-without-unit": ("mbs,parameters\n1,7\n2,13\n", "parameters", ""),
    "checkpoint-path": ("mbs,checkpoint\n1,/a/1\n2,/a/2\n", "checkpoint", ""),
    "formats": ("mbs,fp\n1,bf16\n2,fp8\n", "fp", "precision"),
    "no-formats": ("mbs,fp\n1,16 bit\n2,odd\n", "fp", ""),
    "notation": ("mbs,m\n1,8\n2,4\n", "m", ""),
    "taken": ("mbs,GPU type,Cluster\n1,H100,JUWELS\n2,A100,JUWELS\n", "Cluster", ""),
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
    plans = plans_of(tmp_path, "tp,odd,note,other,shards in use\n1,,x,1,1\n2,,x,2,0\n")
    assert [plans[name].reason for name in ("odd", "note", "other", "shards in use")] == [
        *("empty", "always 'x'", "unknown heading"),
        "unknown heading; it may concern sharding_strategy",
    ]


def test_a_question_offers_only_what_the_cells_can_be(tmp_path: Path) -> None:
    plans = plans_of(tmp_path, "mbs,checkpoint,Cluster,GPU type,checkpointing\n1,/a/1,x,H100,on\n2,/a/2,y,H100,off\n")
    assert plans["checkpoint"].choices == ()
    assert "may be activation_checkpointing, but holds /a/1" in plans["checkpoint"].reason
    assert (plans["Cluster"].choices, plans["Cluster"].reason) == ((), "device is read from 'GPU type'")
    assert plans["checkpointing"].choices == ("activation_checkpointing",)


def test_two_columns_of_statuses_that_agree_count_once(tmp_path: Path) -> None:
    text = "mbs,State,ExitCode\n1,COMPLETED,0:0\n2,OUT_OF_MEMORY,0:125\n4,FAILED,1:0\n"
    plans = plans_of(tmp_path, text)
    assert (plans["State"].name, plans["ExitCode"].reason) == ("status", "status is read from 'State'")
    assert plans_of(tmp_path, text.replace("1:0", "0:0"))["ExitCode"].choices == ("status",)


def test_numbers_with_points_and_a_decimal_comma_are_a_throughput(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("mbs;tok/s\n1;26.274,0\n2;11.962,5\n")
    assert [plan.name for plan in propose_columns(read_source(path), {})] == ["micro_batch_size", "tokens_per_second"]


@pytest.mark.parametrize("heading", ["s/it", "iteration time (ms)"])
def test_the_time_of_an_iteration_is_asked_for_where_a_step_has_several_micro_batches(
    tmp_path: Path, heading: str
) -> None:
    plan = plans_of(tmp_path, f"GPUs,mbs,GA,{heading}\n8,2,4,3.5\n8,2,1,2.5\n")[heading]
    assert plan.choices == ("seconds_per_step", "seconds_per_micro_batch")
    assert plan.reason == "may be the time of a step or of one of its micro batches"


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("GPUs,mbs,GA,s/it", "8,2,1,3.5"),  # a step is one micro batch
        ("GPUs,mbs,s/it", "8,2,3.5"),
        ("GPUs,mbs,GA,step time (s)", "8,2,4,3.5"),  # the heading says it
    ],
)
def test_a_clear_step_time_is_not_asked_for(tmp_path: Path, header: str, row: str) -> None:
    plan = plans_of(tmp_path, f"{header}\n{row}\n")[header.rpartition(",")[2]]
    assert (plan.name, plan.choices) == ("seconds_per_step", ())


def test_a_throughput_beside_the_time_of_an_iteration_is_read_without_a_question(tmp_path: Path) -> None:
    plans = plans_of(tmp_path, "GPUs,mbs,GA,s/it,tok/s\n8,2,4,3.5,100\n8,2,2,2.5,120\n")
    assert (plans["tok/s"].name, plans["s/it"].name) == ("tokens_per_second", "outcome")

"""Hooks in front of TorchRec's planner, launched for real on two processes: the plan is what was requested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from torchx_cubicml.records.contract import CONTRACT_VARIABLE, Contract, encode_contract
from torchx_cubicml.records.trial import State
from torchx_cubicml.store import TrialStore

if TYPE_CHECKING:
    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.values import Value

pytestmark = [
    pytest.mark.launch,
    pytest.mark.skipif(find_spec("torchrec") is None, reason="torchrec not installed: make test-torchrec"),
]

JOB = Path(__file__).parent / "jobs" / "plan_torchrec.py"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
MIXED = ("row_wise", "planner", "data_parallel")


def launched(
    folder: Path, how: str, requested: dict[str, Value], checked: dict[str, Value] | None = None
) -> tuple[Trial, dict[str, Any], list[str]]:
    """Return the trial, what the job says of its plan, and our warnings."""
    contract = Contract(store=f"file://{folder}", hooks=requested, checked_hooks=checked or {})
    ended = subprocess.run(
        [*TORCHRUN, "-m", "torchx_cubicml.recorder", "--", str(JOB), how],
        env={**os.environ, "OMP_NUM_THREADS": "1", CONTRACT_VARIABLE: encode_contract(contract)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    (trial,) = TrialStore(str(folder))
    assert trial.state is State.COMPLETED
    (report,) = [line.removeprefix("REPORT ") for line in ended.stdout.splitlines() if line.startswith("REPORT ")]
    warnings = [line for line in ended.stderr.splitlines() if line.startswith("torchx-cubicml: warning")]
    return trial, json.loads(report), warnings


@pytest.mark.parametrize("how", ["collective", "each-rank", "dmp", "subclass"])
def test_the_plan_is_the_request(tmp_path: Path, how: str) -> None:
    trial, report, warnings = launched(tmp_path, how, {"torchrec": MIXED})
    assert (report["sharding"][0], report["sharding"][2]) == ("row_wise", "data_parallel")
    assert report["n_shards"][0] == 2
    assert "torchrec_hook" not in trial.observed
    assert trial.observed["torchrec_hook_illegal"] == ("table_row_wise", "grid_shard")
    assert (report["pooling"], report["min_partition"], warnings) == ([3.0], 8, [])


def test_observed_are_the_requested_values(tmp_path: Path) -> None:
    requested = {
        "torchrec": ("column_wise", "table_wise", "row_wise"),
        "torchrec_kernel": "fused",
        "torchrec_reserved": 0.25,
    }
    trial, report, warnings = launched(tmp_path, "shares", requested)
    assert report["sharding"] == list(requested["torchrec"])
    assert report["kernels"] == ["fused"] * 3
    assert report["reserved"] == 0.25
    assert warnings == []
    observed = {name: trial.observed.get(name) for name in ("embedding_sharding", "embedding_kernel", "reserved_share")}
    assert observed == {
        "embedding_sharding": requested["torchrec"],
        "embedding_kernel": ("fused",) * 3,
        "reserved_share": 0.25,
    }


REFUSED = {
    "no plan fits": (
        "tight",
        {"torchrec": ("planner", "planner", "data_parallel"), "torchrec_reserved": 0.5},
        "values refused: TorchRec's planner finds no plan with these values: insufficient storage",
    ),
    "another number of tables": (
        "collective",
        {"torchrec": ("row_wise", "row_wise")},
        "refused: 2 tables were requested, but the model has 3",
    ),
    "not offered": (
        "collective",
        {"torchrec": ("row_wise", "row_wise", "grid_shard"), "torchrec_kernel": "fused"},
        "values refused: the sharder of the table c does not offer grid_shard on cpu",
    ),
    "a plan by hand": (
        "by-hand",
        {"torchrec": "row_wise"},
        "refused: the program shards its tables without TorchRec's planner",
    ),
    "no share": (
        "absolute",
        {"torchrec": "row_wise", "torchrec_reserved": 0.3},
        "refused: the program's reservation FixedAbsoluteStorageReservation keeps no share of the memory",
    ),
}


@pytest.mark.parametrize(("how", "requested", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_refusal_keeps_the_programs_own_plan(
    tmp_path: Path, how: str, requested: dict[str, Value], reason: str
) -> None:
    trial, report, warnings = launched(tmp_path, how, requested)
    assert report["sharding"] == (["column_wise"] * 3 if how == "by-hand" else report["sharding"])
    assert report["types"] == {"a": ["table_wise"], "c": None}
    assert report["reserved"] == (0.0 if how == "absolute" else 0.15)
    assert {trial.observed[f"{name}_hook"] for name in requested} == {reason}
    (warning,) = warnings
    assert warning.endswith(reason.partition("refused: ")[2])


def test_a_check_leaves_the_plan_and_tells_what_could_be_set(tmp_path: Path) -> None:
    own = {"torchrec": ("planner",) * 3, "torchrec_kernel": "planner", "torchrec_reserved": 0.15}
    trial, report, warnings = launched(tmp_path, "collective", {}, own)
    assert report["types"] == {"a": ["table_wise"], "c": None}
    assert {name for name in trial.observed if name.endswith("_hook")} == set()
    assert trial.observed["torchrec_kernel_hook_illegal"] == (
        *("fused_uvm", "fused_uvm_caching", "fused_triton", "key_value"),
    )
    assert warnings == []

from __future__ import annotations

from dataclasses import replace

import pytest

from torchx_cubicml.recorder.events.writer import KILLED_BY_HOST
from torchx_cubicml.records.memory_failure import CAUGHT, OUT_OF_MEMORY, as_asked, proves_too_large, share_of_others
from torchx_cubicml.records.trial import State, Trial

LOST = Trial.infeasible(workload={"program": "a.py"}, config={"micro_batch_size": 8})
ON_DEVICE = {"devices_per_node": 8}
BUSY = {"host_cpus": 2, "other_busy_cpus": 1.9, "idle_cpus": 0.0}


def message(own: str) -> str:
    return (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
        f"80.00 GiB of which 1024.00 MiB is free. Including non-PyTorch memory, this process has {own} memory in use. "
        "Of the allocated memory 38.00 GiB is allocated by PyTorch"
    )


@pytest.mark.parametrize(
    ("observed", "reason", "expected"),
    [
        ({}, "", True),
        (ON_DEVICE, message("78.50 GiB"), True),
        (ON_DEVICE, message("39.00 GiB"), False),  # others held half of the device
        (ON_DEVICE, message("40000.00 MiB"), False),
        ({**ON_DEVICE, "other_device_share": 0.02}, "", True),
        ({**ON_DEVICE, "other_device_share": 0.4}, "", False),
        (ON_DEVICE, "the process sent no end event; the host ran out of memory and killed processes", False),
        (ON_DEVICE, KILLED_BY_HOST, False),
        (ON_DEVICE, "the scheduler ended the job: out of memory", False),
        ({}, "the scheduler ended the job: out of memory", True),
        (ON_DEVICE, "CUDA out of memory. Tried to allocate 2.00 GiB", True),
        ({**ON_DEVICE, **BUSY}, "CUDA out of memory. Tried to allocate 2.00 GiB", True),
        (BUSY, "CUDA out of memory. Tried to allocate 2.00 GiB", True),
        (BUSY, "DefaultCPUAllocator: can't allocate memory", False),
        (BUSY, "", False),
    ],
    ids=str,
)
def test_only_a_device_of_its_own_proves_anything(observed: dict[str, object], reason: str, expected: bool) -> None:
    assert proves_too_large(replace(LOST, observed=observed, reason=reason)) is expected


def test_other_failures_prove_nothing() -> None:
    assert not proves_too_large(Trial.infeasible(workload={}, config={}, reason="unknown"))


@pytest.mark.parametrize(("own", "share"), [("39.00 GiB", 0.5), ("0.00 KiB", 0.9875), ("90.00 GiB", 0.0)])
def test_the_share_of_others_is_what_is_neither_free_nor_own(own: str, share: float) -> None:
    assert share_of_others(message(own)) == pytest.approx(share)
    assert share_of_others(message(own).replace("total capacity", "size")) == 0.0


# Messages as people reported them, with where; a cut one ends in three dots.
OF_THE_DEVICE = (
    # github.com/Comfy-Org/ComfyUI/issues/9529
    "HIP out of memory. Tried to allocate 432.00 MiB. GPU 0 has a total capacity of 15.92 GiB of which 7.12 GiB is ...",
    # github.com/pytorch/pytorch/issues/130112
    "MPS backend out of memory (MPS allocated: 5.50 GB, other allocations: 14.76 GB, max allowed: 20.40 GB). Tried ...",
    # github.com/vllm-project/vllm-omni/issues/1199
    "NPU out of memory. Tried to allocate 52.00 MiB (NPU 0; 60.96 GiB total capacity; 59.36 GiB already allocated; ...",
    # github.com/open-edge-platform/physical-ai-studio/issues/440
    "level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
    # github.com/JDAI-CV/fast-reid/issues/625
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    # github.com/pytorch/pytorch/issues/6511
    "cuFFT error: CUFFT_ALLOC_FAILED",
    # codes of cusolver_common.h, cusparse.h, cudnn_graph.h, hipblas-common.h, driver_types.h and hip_runtime_api.h
    "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
    "CUDA error: CUSPARSE_STATUS_ALLOC_FAILED when calling `cusparseCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`",
    "cudaErrorMemoryAllocation: out of memory",
    "HIP error: hipErrorOutOfMemory",
    # github.com/PKU-YuanGroup/Open-Sora-Plan/issues/386, github.com/NVIDIA/nccl/issues/1235
    "NCCL error in: NCCLUtils.hpp:275, unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'",
    "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nFailed to CUDA calloc 6291456 bytes",
    # github.com/pytorch/xla/issues/3470, github.com/pytorch/xla/issues/9524
    "RESOURCE_EXHAUSTED: Attempting to reserve 6.48G at the bottom of memory. That was not possible.",
    "Bad StatusOr access: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm.",
    # accelerate/utils/memory.py, for Habana
    "FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::402653184 (384)MB",
)
OF_THE_HOST = (
    # github.com/HaoMood/blinear-cnn-faster/issues/4
    "[enforce fail at CPUAllocator.cpp:64] . DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "6576668672 bytes. Error code 12 (Cannot allocate memory)",
    # the same on Windows
    "[enforce fail at alloc_cpu.cpp:114] data. DefaultCPUAllocator: not enough memory: you tried to allocate 64 bytes.",
    # github.com/pytorch/pytorch/issues/62029, and what a C++ program prints
    "std::bad_alloc",
    "terminate called after throwing an instance of 'std::bad_alloc'",
    # github.com/pytorch/pytorch/issues/87861
    "unable to mmap 29764 bytes from file </torch_10182_3020184674_63991>: Cannot allocate memory (12)",
    # torch/utils/data/_utils/signal_handling.py, where the kernel has ended a worker
    "DataLoader worker (pid 46794) is killed by signal: Killed. ",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
)
NEAR_MISSES = (
    # github.com/pytorch/pytorch/issues/108861: shared memory is a setting of the container, and no size of the host
    "DataLoader worker (pid 11011) is killed by signal: Bus error. It is possible that dataloader's workers are out of "
    "shared memory. Please try to raise your shared memory limit.",
    "DataLoader worker (pid 7) is killed by signal: Segmentation fault. ",
    # github.com/JingwenWang95/KinectFusion/issues/4, github.com/nerdyrodent/VQGAN-CLIP/issues/143
    "cusolver error: CUSOLVER_STATUS_EXECUTION_FAILED, when calling `cusolverDnSgetrf( handle, m, n, dA, ldda, ...",
    "cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(handle)`",
    # these two have many causes
    "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
    "UR backend failed. UR backend returns:40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)",  # intel/torch-xpu-ops/issues/1526
    # a kernel that needs more than a multiprocessor has, of any batch size
    "out of resource: shared memory, Required: 147456, Hardware limit: 101376. Reducing block sizes may help.",
    "NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory",  # the limit of locked memory
    "please lower --batch so that you do not run out of memory",
    "unknown policy 'out_of_memory'",
    "no such file: /data/alloc_failed/resource_exhausted.txt",
    "CUDA error: an illegal memory access was encountered",
    "malloc(): memory corruption",
    "the cache does not allocate",
)


@pytest.mark.parametrize("text", [*OF_THE_DEVICE, *OF_THE_HOST], ids=lambda text: text[:40])
def test_failures_for_want_of_memory_are_told_by_their_texts(text: str) -> None:
    assert OUT_OF_MEMORY.search(text)
    on_device = replace(LOST, observed=ON_DEVICE, reason=f"RuntimeError: {text}")
    assert proves_too_large(on_device) is (text in OF_THE_DEVICE)
    assert proves_too_large(replace(on_device, observed={}))


@pytest.mark.parametrize("text", NEAR_MISSES, ids=lambda text: text[:40])
def test_other_texts_are_no_failures_for_want_of_memory(text: str) -> None:
    assert not OUT_OF_MEMORY.search(text)


def launch(asked: int, ran: int | None, *, dp: int = 1, rounds: int = 1, caught: bool = False) -> Trial:
    """Return a launch that was asked for micro batches of ``asked`` samples, and ran ``ran``."""
    observed: dict[str, object] = {"device": "H100", "devices_per_node": 8, "dp_degree": dp}
    if ran is not None:
        observed |= {"micro_batch_size": ran, "gradient_accumulation_steps": rounds}
        observed |= {"global_batch_size": ran * rounds * dp}
    observed |= {CAUGHT: "torch.OutOfMemoryError: CUDA out of memory"} if caught else {}
    config = {"micro_batch_size": asked, "workers": 2}
    return replace(Trial.completed(workload={}, config=config, samples_per_second=9.0), observed=observed)


@pytest.mark.parametrize(
    ("trial", "others", "state"),
    [
        (launch(48, 24, caught=True), [], State.OUT_OF_MEMORY),
        (launch(48, 24, dp=2, caught=True), [], State.OUT_OF_MEMORY),
        (launch(48, 24, caught=True), [launch(24, 24), launch(12, 12)], State.OUT_OF_MEMORY),
        (launch(48, 48, caught=True), [], State.COMPLETED),  # a search before the training
        (launch(2, 64, caught=True), [], State.COMPLETED),  # a search that began with what was asked for
        (launch(48, None, caught=True), [], State.COMPLETED),
        (launch(48, 12, dp=4, caught=True), [launch(32, 8, dp=4)], State.COMPLETED),  # the flag is of all ranks
        (launch(48, 48), [launch(24, 24)], State.COMPLETED),
    ],
)
def test_a_caught_failure_is_of_the_config_that_was_asked_for(trial: Trial, others: list[Trial], state: State) -> None:
    evidence = as_asked([*others, trial])[-1]
    assert evidence.state is state
    assert evidence.config == trial.config
    if state is State.COMPLETED:
        assert evidence is trial
    else:
        assert evidence.measurement is None
        assert proves_too_large(evidence)
        assert evidence.observed.keys() == {"device", "devices_per_node", "dp_degree", CAUGHT}
        assert "CUDA out of memory" in evidence.reason


@pytest.mark.parametrize(
    ("trial", "others", "is_kept"),
    [
        (launch(40, 20), [], True),  # the parameter may mean something else
        (launch(40, 20), [launch(10, 10)], False),
        (launch(40, 20), [launch(40, 20)], True),
        (launch(40, 20, dp=2), [launch(10, 10)], True),
        (launch(40, 10, dp=2, rounds=2), [launch(10, 10)], True),
        (launch(40, 20, rounds=2), [launch(10, 10)], True),
        (launch(40, 20, dp=4, rounds=2), [launch(10, 10)], True),
        (launch(40, 80), [launch(10, 10)], True),  # two views of each sample
        (launch(40, None), [launch(10, 10)], True),
    ],
)
def test_a_speed_is_of_the_batch_that_ran(trial: Trial, others: list[Trial], is_kept: bool) -> None:
    evidence = as_asked([trial, *others])
    assert evidence[0].state is State.COMPLETED
    assert (evidence[0].measurement is not None) is is_kept
    assert evidence[1:] == others


def test_a_launch_under_way_is_not_judged() -> None:
    running = replace(launch(48, 24, caught=True), state=State.RUNNING)
    assert as_asked([running]) == [running]

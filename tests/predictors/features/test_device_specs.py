from __future__ import annotations

import pytest

from torchx_cubicml.predictors.features.device_specs import find_hardware


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("h100_80gb", "h100"),
        ("H100-80GB", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H200", "h200"),
        ("A100-SXM4-40GB", "a100-40"),
        ("NVIDIA A100-SXM4-80GB", "a100-80"),
        ("Tesla V100-SXM2-16GB", "v100-16"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B200", "b200"),
        ("AMD Instinct MI300X", "mi300x"),
        ("cpu", "cpu"),
    ],
)
def test_a_device_is_found_by_any_of_its_names(device: str, name: str) -> None:
    found = find_hardware(device)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize("device", ["", "h1000", "TPU v5p", "mps"])
def test_an_unknown_device_has_no_facts(device: str) -> None:
    assert find_hardware(device) is None


def test_a_foreign_precision_runs_as_the_next_wider_one() -> None:
    v100, a100 = find_hardware("V100"), find_hardware("A100")
    assert v100 is not None
    assert a100 is not None
    assert v100.peak("bf16") == v100.peak("fp32") < v100.peak("fp16")
    assert a100.peak("fp8") == a100.peak("bf16") == 2 * a100.peak("tf32")


def test_all_devices_have_positive_facts() -> None:
    for device in ("v100", "a100", "h100", "h200", "b200", "gb300", "mi250x", "mi355x", "l4", "t4", "cpu"):
        facts = find_hardware(device)
        assert facts is not None
        assert facts.fp32 <= facts.peak("bf16") or facts.peak("bf16") == facts.fp32
        assert min(facts.memory, facts.memory_bandwidth, facts.link, facts.network, facts.per_node) > 0
        assert facts.link >= facts.network


@pytest.mark.parametrize(
    ("device", "bf16", "fp8", "memory", "bandwidth", "link"),
    [
        ("NVIDIA A100-SXM4-80GB", 312, 312, 80, 2039, 300),
        ("NVIDIA H100 80GB HBM3", 989.4, 1978.9, 80, 3352, 450),
        ("NVIDIA B200", 2250, 4500, 180, 7700, 900),
        ("NVIDIA B300", 2250, 4500, 270, 7700, 900),
        ("NVIDIA GB200", 2500, 5000, 186, 8000, 900),
        ("NVIDIA GB300", 2500, 5000, 279, 8000, 900),
    ],
)
def test_data_sheets_keep_their_checked_values(
    device: str, bf16: float, fp8: float, memory: float, bandwidth: float, link: float
) -> None:
    facts = find_hardware(device)
    assert facts is not None
    found = (facts.peak("bf16"), facts.peak("fp8"), facts.memory * 1e3, facts.memory_bandwidth * 1e3, facts.link * 1e3)
    assert [value / 1e12 for value in found] == pytest.approx([bf16, fp8, memory, bandwidth, link])

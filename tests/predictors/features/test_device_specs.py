from __future__ import annotations

import pytest

from torchx_cubicml.predictors.features.device_specs import find_hardware, hardware_names, precision_word


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


# Dense TFLOP/s in fp32, tf32, bf16, fp8 and fp16 (0: none of its own); GB and GB/s of memory; GB/s to a device of the
# same and of another node, and devices per node. As the data sheets have them: a changed number shows here.
SHEETS = {
    "gb300": ((80, 1250, 2500, 5000, 0), (279, 8000), (900, 100, 72)),
    "gb200": ((80, 1250, 2500, 5000, 0), (186, 8000), (900, 50, 72)),
    "b300": ((75, 1125, 2250, 4500, 0), (270, 7700), (900, 100, 8)),
    "b200": ((75, 1125, 2250, 4500, 0), (180, 7700), (900, 50, 8)),
    "gh200": ((66.9, 494.7, 989.4, 1978.9, 0), (96, 4000), (450, 50, 1)),
    "h200": ((66.9, 494.7, 989.4, 1978.9, 0), (141, 4800), (450, 50, 8)),
    "h100-pcie": ((51.2, 378, 756, 1513, 0), (80, 2000), (64, 25, 8)),
    "h100-nvl": ((60, 417.5, 835, 1670, 0), (94, 3900), (64, 25, 8)),
    "h100": ((66.9, 494.7, 989.4, 1978.9, 0), (80, 3352), (450, 50, 8)),
    "h800": ((66.9, 494.7, 989.4, 1978.9, 0), (80, 3352), (200, 50, 8)),
    "h20": ((44, 74, 148, 296, 0), (96, 4000), (450, 50, 8)),
    "a100-pcie-40": ((19.5, 156, 312, 0, 0), (40, 1555), (32, 12.5, 8)),
    "a100-40": ((19.5, 156, 312, 0, 0), (40, 1555), (300, 25, 8)),
    "a100-pcie": ((19.5, 156, 312, 0, 0), (80, 1935), (32, 12.5, 8)),
    "a100-80": ((19.5, 156, 312, 0, 0), (80, 2039), (300, 25, 8)),
    "a800": ((19.5, 156, 312, 0, 0), (80, 2039), (200, 25, 8)),
    "a10g": ((31.2, 35, 70, 0, 0), (24, 600), (32, 6.25, 8)),
    "a10": ((31.2, 62.5, 125, 0, 0), (24, 600), (32, 6.25, 8)),
    "l40s": ((91.6, 183, 362, 733, 0), (48, 864), (32, 12.5, 8)),
    "l4": ((30.3, 60, 121, 242, 0), (24, 300), (32, 6.25, 8)),
    "v100-16": ((15.7, 0, 0, 0, 125), (16, 900), (150, 6.25, 8)),
    "v100": ((15.7, 0, 0, 0, 125), (32, 900), (150, 6.25, 8)),
    "t4": ((8.1, 0, 0, 0, 65), (16, 320), (16, 3, 8)),
    "mi355x": ((157.3, 0, 2516.6, 5033.2, 0), (288, 8000), (537, 50, 8)),
    "mi325x": ((163.4, 653.7, 1307.4, 2614.9, 0), (256, 6000), (448, 50, 8)),
    "mi300x": ((163.4, 653.7, 1307.4, 2614.9, 0), (192, 5300), (448, 50, 8)),
    "mi250x": ((47.9, 0, 191.5, 0, 0), (64, 1638), (100, 12.5, 8)),
    "mi250": ((45.3, 0, 181, 0, 0), (64, 1638), (100, 12.5, 8)),
    "cpu": ((0.1, 0.1, 0.1, 0, 0), (16, 20), (4, 1, 64)),
}


def test_every_device_keeps_its_data_sheet() -> None:
    found = {}
    for name in hardware_names():
        facts = find_hardware(name)
        assert facts is not None
        peaks = (facts.fp32, facts.tf32, facts.bf16, facts.fp8, facts.fp16)
        memory, links = (facts.memory, facts.memory_bandwidth), (facts.link, facts.network)
        found[name] = (
            tuple(round(each / 1e12, 3) for each in peaks),
            tuple(round(each / 1e9, 3) for each in memory),
            (*(round(each / 1e9, 3) for each in links), facts.per_node),
        )
    assert found == SHEETS


@pytest.mark.parametrize(
    ("word", "texts"),
    [
        ("fp8", ("fp8", "float8_e4m3", "amp_fp8")),
        ("bf16", ("bf16", "torch.bfloat16", "bf16-mixed", "BF16")),
        ("fp16", ("fp16", "float16", "half", "16-mixed")),
        ("tf32", ("tf32", "TF32")),
        ("fp32", ("fp32", "float32", "32-true", "32")),
        (None, ("int4", "", "double")),
    ],
)
def test_a_precision_is_found_by_any_of_its_names(word: str | None, texts: tuple[str, ...]) -> None:
    assert [precision_word(text) for text in texts] == [word] * len(texts)


@pytest.mark.parametrize(
    ("device", "tflops"),
    [
        ("h100", {"fp32": 66.9, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4, "fp8": 1978.9, "int4": 66.9}),
        ("a100", {"fp32": 19.5, "tf32": 156.0, "bf16": 312.0, "fp16": 312.0, "fp8": 312.0}),
        ("v100", {"fp32": 15.7, "tf32": 15.7, "bf16": 15.7, "fp16": 125.0, "fp8": 15.7}),
        ("mi250", {"fp32": 45.3, "tf32": 45.3, "bf16": 181.0, "fp16": 181.0, "fp8": 181.0}),
    ],
)
def test_a_precision_runs_at_its_own_peak_or_the_next(device: str, tflops: dict[str, float]) -> None:
    facts = find_hardware(device)
    assert facts is not None
    assert {word: facts.peak(word) / 1e12 for word in tflops} == pytest.approx(tflops)


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("A100 40GiB", "a100-40"),
        ("A100 40G", "a100-40"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA GH200 480GB", "gh200"),
    ],
)
def test_units_and_suffixes_belong_to_the_name(device: str, name: str) -> None:
    found = find_hardware(device)
    assert found is not None
    assert found.name == name

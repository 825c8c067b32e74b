from __future__ import annotations

import torch
from torch import nn

from torchx_cubicml.recorder.model.size import count_parameters, device_kind, parameter_format


def test_parameters_are_counted_once_and_trained_ones_apart() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    assert count_parameters(model) == (20, 16)


def test_the_format_is_that_of_most_parameters() -> None:
    model = nn.Sequential(nn.Linear(8, 8).bfloat16(), nn.LayerNorm(8))
    assert parameter_format(model) == "bf16"
    assert parameter_format(nn.ReLU()) == ""


def test_the_kind_of_device() -> None:
    assert device_kind(nn.Linear(2, 2)) == "cpu"
    assert device_kind(nn.Linear(2, 2, device=torch.device("meta"))) == "meta"
    assert device_kind(nn.ReLU()) == ""

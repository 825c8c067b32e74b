"""Small models with mixtures of experts, under names that say nothing."""

from __future__ import annotations

import torch
from torch import nn

WIDTH, HIDDEN = 8, 12


class Bank(nn.Module):
    """Grouped experts."""

    def __init__(self, n_experts: int) -> None:
        super().__init__()
        self.into = nn.Parameter(torch.zeros(n_experts, WIDTH, HIDDEN))
        self.back = nn.Parameter(torch.zeros(n_experts, HIDDEN, WIDTH))


class Feed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.back = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(HIDDEN, WIDTH, bias=False)


class Block(nn.Module):
    """Dense layer and grouped experts, with their scores."""

    def __init__(self, n_experts: int) -> None:
        super().__init__()
        self.norm, self.dense = nn.LayerNorm(WIDTH), Feed()
        self.scores, self.bank = nn.Linear(WIDTH, n_experts, bias=False), Bank(n_experts)


class SparseModel(nn.Module):
    def __init__(self, n_experts: int = 8, n_layers: int = 2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(n_experts) for _ in range(n_layers))

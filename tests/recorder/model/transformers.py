"""Random transformers in the styles of many authors, whose heads are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    import numpy as np

CALLS = ("sdpa", "gqa", "manual", "grouped", "einsum", "merged", "baddbmm", "flash")
PROJECTIONS = ("separate", "fused", "kv", "grouped", "einsum")
POSITIONS = ("none", "halves", "pairs", "norm")
N_SAMPLES, SEQUENCE, N_WORDS = 3, 12, 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How a transformer is written."""

    heads: int
    kv_heads: int
    head_width: int
    width: int
    call: str
    projection: str
    position: str
    layers: int = 2
    crossed: bool = False
    sequence_first: bool = False


def draw(rng: np.random.Generator) -> Style:
    """Return a random style."""
    heads = int(rng.choice([2, 4, 6, 8]))
    kv_heads = int(rng.choice([each for each in (1, 2, 4, heads) if heads % each == 0]))
    head_width = int(rng.choice([4, 6, 8]))
    return Style(
        heads=heads,
        kv_heads=kv_heads,
        head_width=head_width,
        width=int(rng.choice([heads * head_width, 40])),
        call=str(rng.choice(CALLS)),
        projection=str(rng.choice(PROJECTIONS)),
        position=str(rng.choice(POSITIONS)),
        layers=int(rng.integers(2, 4)),
        crossed=bool(rng.random() < 0.2),
        sequence_first=bool(rng.random() < 0.2),
    )


class FlashAttnFunc(torch.autograd.Function):
    """The signature of the library of that name: ``[samples, sequence, heads, width]``; it repeats keys itself."""

    @staticmethod
    def forward(ctx: object, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(q, k, v)
        return q + v.repeat_interleave(q.shape[2] // v.shape[2], 2)[:, : q.shape[1]].mean()

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.zeros_like(each) for each in ctx.saved_tensors)


class Attention(nn.Module):
    """Attention without any attribute that names the number of heads."""

    def __init__(self, style: Style) -> None:
        super().__init__()
        self.style = (style,)  # not an attribute that anything reads
        wide, narrow = style.heads * style.head_width, style.kv_heads * style.head_width
        if style.projection in {"fused", "grouped"}:
            self.mix = nn.Linear(style.width, wide + 2 * narrow)
        elif style.projection == "einsum":
            self.wq = nn.Parameter(torch.randn(style.width, style.heads, style.head_width) * 0.1)
            self.wk = nn.Parameter(torch.randn(style.width, style.kv_heads, style.head_width) * 0.1)
            self.wv = nn.Parameter(torch.randn(style.width, style.kv_heads, style.head_width) * 0.1)
        elif style.projection == "kv":
            self.to_q, self.to_kv = nn.Linear(style.width, wide, bias=False), nn.Linear(style.width, 2 * narrow)
        else:
            self.a, self.b, self.c = (nn.Linear(style.width, each) for each in (wide, narrow, narrow))
        self.norm = nn.LayerNorm(style.head_width)
        self.out = nn.Linear(wide, style.width)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        style = self.style[0]
        q, k, v = (_positioned(each, style.position, self.norm) for each in self.project(x, memory))
        mixed = _CALLS[style.call](q, k, v)  # [samples, sequence, heads, width]
        return self.out(mixed.reshape(*x.shape[:2], -1))

    def project(self, x: torch.Tensor, memory: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return queries, keys and values, ``[samples, sequence, heads, width]``."""
        style = self.style[0]
        h, g, d = style.heads, style.kv_heads, style.head_width
        if style.projection == "einsum":
            return tuple(
                torch.einsum("bsm,mhd->bshd", each, weight)
                for each, weight in ((x, self.wq), (memory, self.wk), (memory, self.wv))
            )
        if style.projection in {"fused", "grouped"}:
            both = [self.mix(each) for each in ([x] if x is memory else [x, memory])]
            if style.projection == "grouped":  # [..., groups, queries of the group + key + value, width]
                both = [each.view(*each.shape[:2], g, h // g + 2, d) for each in both]
                q = both[0][:, :, :, :-2].reshape(*x.shape[:2], h, d)
                return q, both[-1][:, :, :, -2], both[-1][:, :, :, -1]
            split = [each.split([h * d, g * d, g * d], -1) for each in both]
            q, k, v = split[0][0], split[-1][1], split[-1][2]
        elif style.projection == "kv":
            q, (k, v) = self.to_q(x), self.to_kv(memory).chunk(2, -1)
        else:
            q, k, v = self.a(x), self.b(memory), self.c(memory)
        return q.unflatten(-1, (h, d)), k.unflatten(-1, (g, d)), v.unflatten(-1, (g, d))


def _positioned(x: torch.Tensor, position: str, norm: nn.Module) -> torch.Tensor:
    angle = torch.ones(x.shape[-1])
    if position == "halves":
        left, right = x.chunk(2, -1)
        return x * angle + torch.cat((-right, left), -1) * angle
    if position == "pairs":
        left, right = x.unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack((left - right, left + right), -1).flatten(-2)
    return norm(x) if position == "norm" else x


def _repeated(q: torch.Tensor, *others: torch.Tensor) -> list[torch.Tensor]:
    return [each.repeat_interleave(q.shape[2] // each.shape[2], 2) for each in others]


def _sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    k, v = (
        each[:, :, :, None].expand(-1, -1, -1, q.shape[2] // each.shape[2], -1).flatten(2, 3).transpose(1, 2)
        for each in (k, v)
    )
    return functional.scaled_dot_product_attention(q.transpose(1, 2), k, v).transpose(1, 2)


def _gqa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2)


def _manual(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = (each.transpose(1, 2) for each in (q, *_repeated(q, k, v)))
    scores = q @ k.transpose(-1, -2) / 8.0
    mask = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return functional.dropout(scores.masked_fill(mask, -1e9).softmax(-1), 0.1) @ v.contiguous().view(v.shape)


def _grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    queries = q.unflatten(1, (k.shape[1], -1))
    mixed = (queries @ k[:, :, None].mT).softmax(-1) @ v[:, :, None]
    return mixed.flatten(1, 2)


def _einsum(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    queries = q.unflatten(2, (k.shape[2], -1))
    weights = torch.einsum("bqgrd,bkgd->bgrqk", queries, k).softmax(-1)
    return torch.einsum("bgrqk,bkgd->bqgrd", weights, v).flatten(2, 3)


def _merged(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attend with samples and heads in one dimension."""
    samples, _, heads, _ = q.shape
    q, k, v = (each.transpose(1, 2).flatten(0, 1) for each in (q, *_repeated(q, k, v)))
    return torch.bmm(torch.bmm(q, k.mT).softmax(-1), v).unflatten(0, (samples, heads)).transpose(1, 2)


def _baddbmm(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    samples, _, heads, _ = q.shape
    q, k, v = (each.transpose(1, 2).flatten(0, 1) for each in (q, *_repeated(q, k, v)))
    bias = torch.zeros(q.shape[0], q.shape[1], k.shape[1])
    weights = torch.baddbmm(bias, q, k.mT, alpha=0.3).softmax(-1)
    return (weights @ v).unflatten(0, (samples, heads)).transpose(1, 2)


_CALLS = {
    "sdpa": _sdpa,
    "gqa": _gqa,
    "manual": lambda *each: _manual(*each).transpose(1, 2),
    "grouped": lambda *each: _grouped(*each).transpose(1, 2),
    "einsum": _einsum,
    "merged": _merged,
    "baddbmm": _baddbmm,
    "flash": FlashAttnFunc.apply,
}


class Block(nn.Module):
    """Attention and an MLP."""

    def __init__(self, style: Style) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(style.width), nn.LayerNorm(style.width)
        self.mixing = Attention(style)
        self.crossing = Attention(style) if style.crossed else None
        self.mlp = nn.Sequential(
            nn.Linear(style.width, 4 * style.width), nn.GELU(), nn.Linear(4 * style.width, style.width)
        )

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        normed = self.one(x)
        x = x + self.mixing(normed, normed)
        if self.crossing is not None:
            x = x + self.crossing(x, memory)
        return x + self.mlp(self.two(x))


class Transformer(nn.Module):
    """A language model of a style, or an encoder and a decoder."""

    def __init__(self, style: Style) -> None:
        super().__init__()
        self.words = nn.Embedding(N_WORDS, style.width)
        self.stack = nn.ModuleList(Block(style) for _ in range(style.layers))
        self.head = nn.Linear(style.width, N_WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        memory = self.words(tokens[:, : SEQUENCE // 2])
        for block in self.stack:
            x = block(x, memory)
        return self.head(x)

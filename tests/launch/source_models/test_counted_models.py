"""Parameters of models are counted in the source as torch counts them, or not at all."""

from __future__ import annotations

import runpy
import sys
from typing import TYPE_CHECKING

import pytest
import torch

from torchx_cubicml.launch.command_facts.stated_settings import StatedSettings
from torchx_cubicml.launch.launch import Launch
from torchx_cubicml.launch.source_files import source_files
from torchx_cubicml.launch.source_models.counted_models import counted_model

if TYPE_CHECKING:
    from pathlib import Path

BLOCKS = """
import math, argparse
from dataclasses import dataclass, field
from functools import partial
import torch
from torch import nn
import torch.nn.functional as F

@dataclass
class Sizes:
    depth: int = 2
    width: int = 16
    words: int = 50
    bias: bool = True

class Attention(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.qkv = nn.Linear(sizes.width, 3 * sizes.width, bias=sizes.bias)
        self.out = nn.Linear(sizes.width, sizes.width, bias=sizes.bias)
        self.register_buffer("mask", torch.ones(4, 4))

class Block(nn.Module):
    def __init__(self, sizes: Sizes, norm=nn.LayerNorm):
        super().__init__()
        inner = int(sizes.width * 8 / 3)
        self.norms = nn.ModuleList([norm(sizes.width), norm(sizes.width)])
        self.attention = Attention(sizes)
        self.mlp = nn.Sequential(nn.Linear(sizes.width, inner), nn.GELU(), nn.Linear(inner, sizes.width))
        self.head_dim = sizes.width // 4
"""
LOOP = """
class Model(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.embedding = nn.Embedding(sizes.words, sizes.width)
        self.positions = nn.Parameter(torch.zeros(1, 8, sizes.width))
        self.blocks = nn.ModuleList()
        for _ in range(sizes.depth):
            self.blocks.append(Block(sizes))
        self.head = nn.Linear(sizes.width, sizes.words, bias=False)
        self.head.weight = self.embedding.weight
"""
PROGRAMS = {
    "tied_and_appended": LOOP + "model = Model(Sizes(depth=3))",
    "keywords_of_a_table": LOOP + "model = Model(Sizes(**dict(depth=1, bias=False)))",
    "replaced_sizes": LOOP + "sizes = Sizes()\nsizes.width = 8 * 4\nmodel = Model(sizes)",
    "comprehension": """
class Model(nn.Module):
    def __init__(self, depth=2, sizes=None):
        super().__init__()
        sizes = sizes if sizes is not None else Sizes()
        norm = partial(nn.RMSNorm, eps=1e-6)
        self.blocks = nn.ModuleDict({str(i): Block(sizes, norm=norm) for i in range(depth)})
        self.tail = nn.ModuleList(nn.Linear(4, 4 + i) for i in range(3) if i != 1)
model = Model(depth=4)
""",
    "layers_of_torch": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, dim_feedforward=48, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=3, norm=nn.LayerNorm(16))
        self.decoder = nn.TransformerDecoderLayer(d_model=16, nhead=2, bias=False)
        self.attention = nn.MultiheadAttention(16, 4, bias=False)
        self.convolution = nn.Conv2d(3, 8, kernel_size=(3, 5), bias=False)
        self.norm = nn.BatchNorm1d(8)
model = Model()
""",
    "inherited": """
class Base(nn.Module):
    width = 12
    def __init__(self, depth):
        super().__init__()
        self.layers = self.make(depth)
    def make(self, depth):
        return nn.Sequential(*[nn.Linear(self.width, self.width) for _ in range(depth)])
class Model(Base):
    def __init__(self, depth, words):
        super().__init__(depth)
        self.words = words
        self.add_module("head", nn.Linear(self.width, self.n_words))
    @property
    def n_words(self):
        return self.words + 1
model = Model(2, words=9)
""",
    "sizes_by_arithmetic": """
def rounded(value, multiple=32):
    return multiple * math.ceil(value / multiple)
class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        if width % 4 != 0:
            raise ValueError("the width must be a multiple of 4")
        widths = [width, *(width * 2**i for i in range(3))]
        self.layers = nn.ModuleList([nn.Linear(a, rounded(b)) for a, b in zip(widths[:-1], widths[1:])])
model = Model(12)
""",
    "loops_that_end": """
class Model(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.layers = nn.ModuleList()
        for i in range(10):
            if i == 1:
                continue
            if i == depth:
                break
            self.layers.append(nn.Linear(4, i + 1))
def main():
    if not torch.ones(1).sum():
        return None
    return Model(5)
model = main()
""",
    "either_branch_is_the_same": LOOP
    + "if torch.cuda.is_available():\n    model = Model(Sizes()).cuda()\nelse:\n    model = Model(Sizes())",
    "flags": LOOP
    + """
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--no-bias", dest="bias", action="store_false")
    args = parser.parse_args()
    return Model(Sizes(depth=args.depth, width=args.width))
if __name__ == "__main__":
    model = main()
""",
}
UNKNOWN = {
    "size_of_data": LOOP + "import json\nmodel = Model(Sizes(words=len(json.load(open('words.json')))))",
    "unknown_branch": LOOP.replace(
        "        self.blocks = nn",
        "        if torch.cuda.is_available():\n            self.more = nn.Linear(2, 2)\n        self.blocks = nn",
    )
    + "model = Model(Sizes())",
    "unknown_depth": LOOP + "import os\nmodel = Model(Sizes(depth=int(os.environ['DEPTH'])))",
    "other_library": LOOP.replace("self.head = nn.Linear(", "self.head = somewhere.Head(")
    + "import somewhere\nmodel = Model(Sizes())",
    "changed_by_a_library": LOOP.replace("self.head.weight =", "self.blocks = adapted(self.blocks); self.head.weight =")
    + "from somewhere import adapted\nmodel = Model(Sizes())",
    "unknown_keywords": LOOP + "from somewhere import sizes\nmodel = Model(Sizes(**sizes))",
    "either_of_two_models": LOOP
    + "if torch.cuda.is_available():\n    model = Model(Sizes(depth=9))\nelse:\n    model = Model(Sizes(depth=1))",
    "subclass_of_a_layer": "class Model(nn.Linear):\n    def __init__(self):\n        super().__init__(4, 4)\n"
    "model = Model()",
    "either_value_is_returned": LOOP
    + "def make():\n    if torch.cuda.is_available():\n        return nn.Linear(2, 2)\n    return nn.Linear(3, 3)\n"
    + "class Whole(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.part = make()\n"
    + "model = Whole()",
    "rounds_may_be_left_out": LOOP.replace(
        "self.blocks.append", "if torch.cuda.is_available(): continue\n            self.blocks.append"
    )
    + "model = Model(Sizes())",
    "depth_after_an_unknown_loop": LOOP
    + "import os\nsizes = Sizes()\nfor _ in os.listdir():\n    sizes.depth += 1\nmodel = Model(sizes)",
    "no_python": "model = (",
    "no_model": "print('nothing')",
}


def counted(script: Path, *words: str) -> int | None:
    launch = Launch(program=str(script), script_args=words, scheduler="local_cwd")
    found = counted_model(list(source_files(launch)), StatedSettings.of(launch))
    return None if found is None else found.n_params


@pytest.mark.parametrize("name", PROGRAMS)
def test_counted_as_torch_counts(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, words = tmp_path / "train.py", ("--depth", "3", "--no-bias") if name == "flags" else ()
    script.write_text(BLOCKS + PROGRAMS[name])
    monkeypatch.setattr(sys, "argv", [str(script), *words])
    model = runpy.run_path(str(script), run_name="__main__")["model"]
    assert isinstance(model, torch.nn.Module)
    assert counted(script, *words) == sum(each.numel() for each in model.parameters())


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_sizes_are_not_counted(name: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(BLOCKS + UNKNOWN[name])
    assert counted(script) is None


def test_an_endless_program_still_tells_its_model(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    loops = "for a in range(900):\n    for b in range(900):\n        c = a * b\n"
    script.write_text(BLOCKS + LOOP + "model = Model(Sizes())\n" + loops)
    assert counted(script) is not None


def test_modules_beside_the_script_are_followed(tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text(BLOCKS + LOOP)
    script = tmp_path / "train.py"
    script.write_text("from parts import Model, Sizes\nmodel = Model(Sizes(width=24))\n")
    whole = tmp_path / "whole.py"
    whole.write_text(BLOCKS + LOOP + "model = Model(Sizes(width=24))\n")
    assert counted(script) == counted(whole) is not None

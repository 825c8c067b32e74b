"""Parameters of models are counted in the source as torch counts them, or not at all."""

from __future__ import annotations

import runpy
import sys
import tracemalloc
from typing import TYPE_CHECKING

import pytest
import torch

from torchx_cubicml.launch.command_facts.command_facts import stated_settings
from torchx_cubicml.launch.launch import Launch
from torchx_cubicml.launch.source_files import source_files
from torchx_cubicml.launch.source_models import builtin_calls
from torchx_cubicml.launch.source_models.counted_models import followed_program

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
    "flags_of_a_dataclass": LOOP
    + """
from dataclasses import fields
def main():
    parser = argparse.ArgumentParser()
    for each in fields(Sizes):
        parser.add_argument(f"--{each.name.replace('_', '-')}", type=type(each.default), default=each.default)
    parser.add_argument("--times", dest="factor", type=int, default=2)
    args = parser.parse_args()
    sizes = {name: value for name, value in vars(args).items() if name != "factor"}
    return Model(Sizes(**{**sizes, "bias": True, "width": args.width * args.factor}))
if __name__ == "__main__":
    model = main()
""",
    "tables_and_texts": """
import os, copy
WIDTHS = {"small": 8, "large": 16}
class Model(nn.Module):
    def __init__(self, name, count=None, **more):
        super().__init__()
        width = WIDTHS[name] if name in WIDTHS else 4
        width = WIDTHS.get(name, width) + len(f"{name}{width}") - len(name)
        count = count or int("3")
        layers = []
        for index, each in enumerate(reversed([2, 4])):
            layers.append(nn.Linear(width, each + index))
        layers.extend([nn.Linear(width, 1) for _ in range(max(1, count))])
        layers += [nn.Linear(1, 2)]
        layers[0] = nn.Linear(width, 7)
        self.layers = nn.Sequential(*layers)
        self.layers[1] = nn.Linear(9, 9)
        self.table = nn.ModuleDict()
        for part in "norm,head".split(","):
            self.table[part] = nn.LayerNorm(width)
        self.head = self.table["head"]
        self.bias = nn.Parameter(torch.full((width, 2), 0.0)) if more.get("bias", True) else None
        self.scale = nn.Parameter(torch.ones(1)) if not os.path.exists("nowhere.bin") else None
        count -= 1
        if count > 1 and (count < 5 or torch.cuda.is_available()):
            self.add_module("last", nn.Linear(count, abs(-width)))
        first, (second, *_) = 1, [2, 3]
        sizes = {key: value * second for key, value in WIDTHS.items() if value > 8}
        self.rest = nn.ModuleList([nn.Linear(first, size) for size in sizes.values()] if False else [])
with torch.no_grad():
    try:
        model = Model("large", bias=False)
    except OSError:
        model = None
""",
    "methods_of_classes": """
@dataclass
class Shape:
    width: int
    depth: int = 2
    @classmethod
    def named(cls, name):
        return cls(width={"a": 8, "b": 12}[name])
    @staticmethod
    def inner(width):
        return 4 * width
    @property
    def heads(self):
        return self.width // 4
class Model(nn.Module):
    def __init__(self, shape):
        super().__init__()
        make = lambda rows, columns=3: nn.Linear(rows, columns)
        self.layers = nn.ModuleList()
        self.layers.extend([make(shape.width), make(shape.heads, columns=Shape.inner(shape.width))])
        self.norm = nn.GroupNorm(2, getattr(shape, "width"), affine=True)
        self.bag = nn.EmbeddingBag(num_embeddings=10, embedding_dim=shape.depth)
        self.plain = nn.LayerNorm(8, elementwise_affine=False)
        self.tokens = nn.Parameter(torch.empty(2, shape.width))
        self.register_parameter("extra", nn.Parameter(torch.zeros(3)))
    def forward(self, x):
        return x
model = Model(Shape.named("b")).to("cpu")
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
    "copied_by_a_library": LOOP + "import copy\nsizes = Sizes()\nclass Twice(nn.Module):\n"
    "    def __init__(self):\n        super().__init__()\n        self.one = Model(sizes)\n"
    "        self.two = copy.deepcopy(self.one)\nmodel = Twice()",
    "unknown_name_of_a_child": LOOP
    + "import os\nmodel = Model(Sizes())\nmodel.add_module(os.environ['NAME'], nn.Linear(2, 2))",
    "unknown_entry": LOOP + "import os\nmodel = Model(Sizes())\nmodel.blocks[int(os.environ['N'])] = nn.Linear(2, 2)",
    "class_of_a_library": "from somewhere import Base\nclass Part(nn.Module, Base):\n    def __init__(self):\n"
    "        super().__init__()\n        self.layer = nn.Linear(2, 2)\nmodel = Part()",
    "no_python": "model = (",
    "no_size": "model = nn.Linear(-3, 4)",
    "no_model_is_so_large": "model = nn.Linear(10**14, 10**14)",
    "no_model": "print('nothing')",
}


HEAD = "import argparse, contextlib\nimport torch\nfrom torch import nn\np = argparse.ArgumentParser()\n"
CHANGED = {
    "dict_update2": """
c = {'w': 32}
c.update({'w': 64})
model = nn.Linear(c['w'], 4)
""",
    "dict_ior": """
c = {'w': 32}
d = c
d |= {'w': 64}
model = nn.Linear(c['w'], 4)
""",
    "setattr": """
p.add_argument('--w', type=int, default=32)
a = p.parse_args()
setattr(a, 'w', 64)
model = nn.Linear(a.w, 4)
""",
    "vars_update": """
p.add_argument('--w', type=int, default=32)
a = p.parse_args()
vars(a).update({'w': 64})
model = nn.Linear(a.w, 4)
""",
    "dunder2": """
p.add_argument('--w', type=int, default=32)
a = p.parse_args()
a.__dict__.update(w=64)
model = nn.Linear(a.w, 4)
""",
    "set_defaults": """
p.add_argument('--w', type=int, default=32)
p.set_defaults(w=64)
a = p.parse_args()
model = nn.Linear(a.w, 4)
""",
    "set_defaults2": """
p.add_argument('--w', type=int, default=32)
d = dict(w=64)
p.set_defaults(**d)
a = p.parse_args()
model = nn.Linear(a.w, 4)
""",
    "iadd": """
class M(nn.Module):

    def __init__(s):
        super().__init__()
        s.l = nn.ModuleList()
        s.l += [nn.Linear(3, 4)]
        s.h = nn.Linear(4, 4)
model = M()
""",
    "list_iadd": """
l = []
k = l
k += [nn.Linear(3, 4)]
model = nn.Sequential(nn.Linear(3, 3), *l)
""",
    "modset": """
class M(nn.Module):

    def __init__(s):
        super().__init__()
        for i in range(3):
            setattr(s, f'l{i}', nn.Linear(3, 4))
        s.z = nn.Linear(2, 2)
model = M()
""",
    "walrus": """
w = 1
if (w := 64):
    pass
model = nn.Linear(w, 4)
""",
    "globals": """
w = 32
globals()['w'] = 64
model = nn.Linear(w, 4)
""",
    "post": """
from dataclasses import dataclass

@dataclass
class C:
    w: int = 32

    def __post_init__(self):
        self.w = 64
model = nn.Linear(C().w, 4)
""",
    "newcls": """
class C:
    w = 32
C.w = 64
model = nn.Linear(C.w, 4)
""",
    "clsattr": """
class M(nn.Module):
    w = 32

    def __init__(s):
        super().__init__()
        s.l = nn.Linear(s.w, 4)

class N(M):
    w = 64
model = N()
""",
    "pruned": """
model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4))
model[1] = nn.Identity()
""",
    "fchead": """
class M(nn.Module):

    def __init__(s):
        super().__init__()
        s.a = nn.Linear(3, 4)
        s.fc = nn.Linear(30, 40)
model = M()
model.fc = nn.Linear(3, 2)
""",
    "branch_global": """
width = 32

def build():
    return nn.Linear(width, 4)
if torch.get_num_threads() > 0:
    width = 64
    model = build()
""",
}
"""Programs that change a size, or a module, after it was first set."""
NOT_FOLLOWED = {
    "global": """
width = 32

def s():
    global width
    width = 64
s()
model = nn.Linear(width, 4)
""",
    "nonlocal": """
def f():
    width = 32

    def s():
        nonlocal width
        width = 64
    s()
    return nn.Linear(width, 4)
model = f()
""",
    "dict_doubt": """
c = {'w': 32}
if torch.get_num_threads() > 0:
    c['w'] = 64
model = nn.Linear(c['w'], 4)
""",
    "pop": """
l = [nn.Linear(3, 3), nn.Linear(3, 3)]
l.pop()
model = nn.Sequential(*l)
""",
    "moddel": """
model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
del model[1]
""",
    "moddelattr": """
class M(nn.Module):

    def __init__(s):
        super().__init__()
        s.a = nn.Linear(3, 4)
        s.b = nn.Linear(3, 4)
        del s.b
model = M()
""",
    "loop_else": """
w = 1
for i in range(3):
    pass
else:
    w = 64
model = nn.Linear(w, 4)
""",
    "match": """
w = 1
match w:
    case 1:
        w = 64
model = nn.Linear(w, 4)
""",
    "try": """
w = 32
try:
    w = 64
    int('x')
except ValueError:
    w = 128
model = nn.Linear(w, 4)
""",
    "with_suppress": """
import contextlib
w = 32
with contextlib.suppress(ValueError):
    int('x')
    w = 64
model = nn.Linear(w, 4)
""",
    "deco": """
def double(f):
    return lambda *a: f(*a) * 2

@double
def w():
    return 32
model = nn.Linear(w(), 4)
""",
    "gen3": """
class M(nn.Module):

    def __init__(s):
        super().__init__()
        s.a = nn.Linear(3, 4)
        s.b = nn.ModuleList(s.g())

    def g(s):
        yield nn.Linear(5, 5)
model = M()
""",
    "forbreak": """
for w in (32, 64, 128):
    if torch.get_num_threads() > 0:
        break
model = nn.Linear(w, 4)
""",
    "partial_open": """
class M(nn.Module):

    def __init__(s):
        super().__init__()
        s.a = nn.Linear(3, 4)
        for i in range(1000):
            for j in range(1000):
                k = i * j
        s.b = nn.Linear(30, 40)
model = M()
""",
    "setdefault": """
d = {}
d.setdefault('w', 64)
model = nn.Linear(d.get('w', 32), 4)
""",
    "del": """
w = 64
d = {'w': 32, 'v': 1}
del d['w']
model = nn.Linear(d.get('w', 64), 4)
""",
}
"""Programs with a change that is not followed: a count would be false."""
SPELLINGS = {
    "short": ("-w", "64"),
    "short_glued": ("-w64",),
    "abbreviated": ("--wid", "64"),
    "abbreviated2": ("--wid=64",),
}

WORDS = {"flags": ("--depth", "3", "--no-bias"), "flags_of_a_dataclass": ("--width", "8", "--times=4")}


def counted(script: Path, *words: str) -> int | None:
    launch = Launch(program=str(script), script_args=words, scheduler="local_cwd")
    files = list(source_files(launch))
    found = followed_program(files, stated_settings(launch, files)).model
    return None if found is None else found.n_params


@pytest.mark.parametrize("name", PROGRAMS)
def test_counted_as_torch_counts(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, words = tmp_path / "train.py", WORDS.get(name, ())
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


@pytest.mark.parametrize("name", CHANGED)
def test_changes_after_the_first_value_are_followed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    monkeypatch.setattr(sys, "argv", [str(script)])
    script.write_text(HEAD + CHANGED[name] + "\n")
    model = runpy.run_path(str(script))["model"]
    assert counted(script) == sum(each.numel() for each in model.parameters())


@pytest.mark.parametrize("name", NOT_FOLLOWED)
def test_a_change_that_is_not_followed_leaves_nothing_to_tell(name: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(HEAD + NOT_FOLLOWED[name] + "\n")
    assert counted(script) is None


@pytest.mark.parametrize("name", SPELLINGS)
def test_short_and_abbreviated_flags_count(name: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    add = "p.add_argument('-w', '--width', type=int, default=32)\n"
    script.write_text(HEAD + add + "model = nn.Linear(p.parse_args().width, 4)\n")
    assert counted(script, *SPELLINGS[name]) == 4 * 64 + 4


@pytest.mark.parametrize(
    "growth",
    ["x = x + x", "x = [x, x]", "x.extend(x)", "x = f'{x}{x}'", "x = x * 1000", "y = (x := [x, x]) == x", "x = str(x)"],
)
def test_values_that_grow_without_end_stay_small(growth: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    start = "'ab'" if "f'" in growth else "[1]"
    lines = f"x = {start}\nfor i in range(100):\n    {growth}\ny = sum(range(10**12))\nz = '%9999999999d' % 5\n"
    script.write_text(f"{HEAD}{lines}model = nn.Linear(3, 4)\n")
    tracemalloc.start()
    found = counted(script)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == 16
    assert peak < 50_000_000


def test_an_endless_program_still_tells_its_model(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    loops = "for a in range(900):\n    for b in range(900):\n        c = a * b\n"
    script.write_text(BLOCKS + LOOP + "model = Model(Sizes())\n" + loops)
    assert counted(script) is not None


def test_operations_on_many_entries_end_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation on a thousand entries takes a hundred times as long as one on a number."""
    n_passed = 0

    def largest(entries: list[int]) -> int:
        nonlocal n_passed
        n_passed += len(entries)
        return max(entries)

    monkeypatch.setitem(builtin_calls._PLAIN, "max", largest)
    script = tmp_path / "train.py"
    loops = "x = [0] * 900\nfor a in range(900):\n    for b in range(900):\n        c = max(x)\n"
    script.write_text(f"{HEAD}model = nn.Linear(3, 4)\n{loops}")
    assert counted(script) == 16
    assert 10**6 < n_passed < 10**7


def test_modules_beside_the_script_are_followed(tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text(BLOCKS + LOOP)
    script = tmp_path / "train.py"
    script.write_text("from parts import Model, Sizes\nmodel = Model(Sizes(width=24))\n")
    whole = tmp_path / "whole.py"
    whole.write_text(BLOCKS + LOOP + "model = Model(Sizes(width=24))\n")
    assert counted(script) == counted(whole) is not None

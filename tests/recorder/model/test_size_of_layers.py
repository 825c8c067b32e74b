from __future__ import annotations

from types import SimpleNamespace

from torch import nn

from torchx_cubicml.recorder.model.size import read_widths


class Block(nn.Module):
    def __init__(self, width: int, **attributes: object) -> None:
        super().__init__()
        self.attention = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        for name, value in attributes.items():
            setattr(self.attention, name, value)


class Model(nn.Module):
    def __init__(self, width: int = 8, inside: int = 8, **attributes: object) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(50, width), nn.Embedding(16, width)
        self.blocks = nn.ModuleList(Block(inside, **attributes) for _ in range(2))


def test_widths_of_a_transformer() -> None:
    assert read_widths(Model(n_head=4)) == {"vocab_size": 50, "d_model": 8, "d_ff": 32, "n_heads": 4}
    assert read_widths(Model(num_heads=8, num_key_value_heads=2))["n_kv_heads"] == 2


def test_heads_of_a_configuration() -> None:
    model = Model()
    model.config = SimpleNamespace(num_attention_heads=2, num_key_value_heads=1)
    found = read_widths(model)
    assert (found["n_heads"], found["n_kv_heads"]) == (2, 1)
    model.config = SimpleNamespace(num_attention_heads="many")
    assert "n_heads" not in read_widths(model)


def test_missing_sizes_are_left_out() -> None:
    assert read_widths(Model(width=8, inside=6)) == {}
    assert read_widths(nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5))) == {}
    assert read_widths(nn.ModuleList(Block(4) for _ in range(2))) == {}

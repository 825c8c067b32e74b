from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from torchx_cubicml.recorder.forwards import Forwards, ModuleHook, Work

if TYPE_CHECKING:
    from collections.abc import Callable


def bare(hook: Callable[..., Any]) -> Callable[..., Any]:
    return hook


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, tokens: torch.Tensor, *, extra: torch.Tensor | None = None) -> torch.Tensor:
        return self.head(self.embedding(tokens))


TOKENS = torch.zeros(3, 5, dtype=torch.int64)


def test_the_first_module_called_in_training_is_the_model() -> None:
    inner = Tagger()
    model, never_called = nn.Sequential(inner), nn.Sequential(inner)
    forwards = Forwards(bare)
    forwards.watch([inner.head, inner, never_called, model], [])
    model.eval()
    model(TOKENS)
    assert forwards.model is None
    model.train()
    with torch.no_grad():
        model(TOKENS)
    assert forwards.model is None
    assert forwards.take() is None
    model(TOKENS)
    assert forwards.model is model
    model(TOKENS[:2])
    assert forwards.take() == Work(forwards=2, samples=5, tokens=25)
    assert forwards.take() is None
    assert (forwards.samples_per_forward, forwards.tokens_per_forward) == (3, 15)
    assert [len(each._forward_pre_hooks) for each in (inner, inner.head, never_called, model)] == [0, 0, 0, 1]
    forwards.release()
    assert not model._forward_pre_hooks


def test_a_model_is_not_kept_alive() -> None:
    forwards, model = Forwards(bare), Tagger()
    forwards.watch([model], [])
    model(TOKENS)
    del model
    assert forwards.model is None
    forwards.watch([], [])


def test_something_is_done_once_within_the_next_training_forward() -> None:
    forwards, model = Forwards(bare), Tagger()
    seen: list[object] = []
    forwards.on_training = lambda: seen.append(forwards.model)
    forwards.watch([model], [])
    model(TOKENS)
    model(TOKENS)
    assert seen == [model]


def test_a_batch_that_cannot_be_read_leaves_the_work_unknown() -> None:
    forwards, model = Forwards(bare), nn.Sequential(Tagger())
    forwards.watch([model], [])
    model(TOKENS)
    model[0].register_forward_pre_hook(lambda module, args: (TOKENS,))
    model([TOKENS])
    assert forwards.take() == Work(forwards=2, samples=None, tokens=None)


def test_a_module_compiled_in_place_is_counted_from_outside() -> None:
    forwards, model = Forwards(bare), Tagger()
    model.compile(backend="eager", fullgraph=True)
    compiled = model._compiled_call_impl
    forwards.watch([model], [])
    for _ in range(3):
        model(TOKENS)
    assert not model._forward_pre_hooks
    assert forwards.take() == Work(forwards=3, samples=9, tokens=45)
    forwards.release()
    assert model._compiled_call_impl is compiled


def test_a_hook_does_not_travel_with_the_model() -> None:
    model, calls = Tagger(), []
    model.register_forward_pre_hook(ModuleHook(lambda *_: calls.append(1)), with_kwargs=True)
    written = pickle.dumps(model)
    assert b"cubicml" not in written
    for other in (pickle.loads(written), copy.deepcopy(model)):
        assert other(TOKENS).shape == (3, 5, 2)
    assert not calls
    model(TOKENS)
    assert calls

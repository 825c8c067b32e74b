from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.recorder.bare import bare
from torchx_cubicml.recorder.steps.forwards import Forwards, Work
from torchx_cubicml.recorder.steps.pauses import Pauses
from torchx_cubicml.recorder.steps.torch_hooks import ModuleHook


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
    forwards = Forwards(bare, Pauses(bare))
    forwards.watch([inner.head, inner, never_called, model], [])
    model.eval()
    model(TOKENS)
    assert forwards.model is None
    model.train()
    with torch.no_grad():
        model(TOKENS)
    assert forwards.model is None
    assert forwards.take() is None
    model(TOKENS).sum().backward()
    assert forwards.model is model
    model(TOKENS[:2]).sum().backward()
    assert forwards.take() == Work(forwards=2, samples=5, tokens=25)
    assert forwards.take() is None
    assert (forwards.samples_per_forward, forwards.tokens_per_forward) == (3, 15)
    assert [len(each._forward_pre_hooks) for each in (inner, inner.head, never_called, model)] == [0, 0, 0, 1]
    forwards.release()
    assert [len(hooks) for hooks in (model._forward_pre_hooks, model._forward_hooks)] == [0, 0]


def test_a_model_is_not_kept_alive() -> None:
    forwards, model = Forwards(bare, Pauses(bare)), Tagger()
    forwards.watch([model], [])
    model(TOKENS)
    del model
    assert forwards.model is None
    forwards.watch([], [])


def test_something_is_done_once_within_the_next_training_forward() -> None:
    forwards, model = Forwards(bare, Pauses(bare)), Tagger()
    seen: list[object] = []
    forwards.on_training = lambda: seen.append(forwards.model)
    forwards.watch([model], [])
    model(TOKENS)
    model(TOKENS)
    assert seen == [model]


def test_a_batch_that_cannot_be_read_leaves_the_work_unknown() -> None:
    forwards, model = Forwards(bare, Pauses(bare)), nn.Sequential(Tagger())
    forwards.watch([model], [])
    model(TOKENS).sum().backward()
    model[0].register_forward_pre_hook(lambda module, args: (TOKENS,))
    model([TOKENS])
    assert forwards.take() == Work(forwards=2, samples=None, tokens=None)


def test_a_module_compiled_in_place_is_counted_from_outside() -> None:
    forwards, model = Forwards(bare, Pauses(bare)), Tagger()
    model.compile(backend="eager", fullgraph=True)
    compiled = model._compiled_call_impl
    forwards.watch([model], [])
    for _ in range(3):
        model(TOKENS).sum().backward()
    assert not model._forward_pre_hooks
    assert forwards.take() == Work(forwards=3, samples=9, tokens=45)
    forwards.release()
    assert model._compiled_call_impl is compiled


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
def test_forwards_that_share_a_backward_leave_work_unknown(compiled: bool) -> None:
    forwards, model = Forwards(bare, Pauses(bare)), Tagger()
    if compiled:
        model.compile(backend="eager")
    forwards.watch([model], [])
    (model(TOKENS) - model(TOKENS)).square().sum().backward()
    assert forwards.take() == Work(forwards=None, samples=None, tokens=None)
    forwards.watch([model], [])
    for _ in range(2):
        model(TOKENS).sum().backward()
    assert forwards.take() == Work(forwards=2, samples=6, tokens=30)


def test_a_known_batch_size_finds_the_batch_dimension() -> None:
    model = Tagger()
    for forwards, loader in (
        (Forwards(bare, Pauses(bare), requested=3), None),
        (Forwards(bare, Pauses(bare)), DataLoader([0] * 9, batch_size=3)),
    ):
        forwards.watch([model], [])
        model(TOKENS.T).sum().backward()
        assert forwards.take() == Work(forwards=1, samples=3, tokens=15)
        assert (forwards.samples_per_forward, forwards.tokens_per_forward) == (3, 15)
        forwards.release()
        del loader


def test_parts_of_a_loaded_batch_must_add_up_to_it() -> None:
    forwards, model, loader = Forwards(bare, Pauses(bare)), Tagger(), DataLoader([0] * 18, batch_size=9)
    for parts, samples in ((3, 9), (2, None)):
        forwards.watch([model], [])
        for _ in range(parts):
            model(TOKENS).sum().backward()
        assert forwards.take() == Work(forwards=parts, samples=samples, tokens=15 * parts)
        assert forwards.samples_per_forward == (3 if samples else None)
    model(TOKENS)
    assert forwards.take() == Work(forwards=1, samples=None, tokens=15)
    assert loader.batch_size == 9


def test_a_forward_may_return_any_object() -> None:
    class Answering(Tagger):
        def forward(self, tokens: torch.Tensor) -> dict[str, object]:
            return {"text": "", "loss": super().forward(tokens).sum()}

    forwards, model = Forwards(bare, Pauses(bare)), Answering()
    forwards.watch([model], [])
    for _ in range(2):
        model(TOKENS)["loss"].backward()
    assert forwards.take() == Work(forwards=2, samples=6, tokens=30)


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


def test_a_weight_written_in_a_forward_keeps_the_samples_known() -> None:
    forwards, model = Forwards(bare, Pauses(bare)), Tagger()
    model.embedding = nn.Embedding(8, 4, max_norm=0.1)
    forwards.watch([model], list(model.parameters()))
    for _ in range(2):
        model(TOKENS).sum().backward()
    assert forwards.take() == Work(forwards=2, samples=6, tokens=30)
    for _ in range(2):
        model(TOKENS).sum().backward()
        with torch.no_grad():
            model.embedding.weight.mul_(0.5)  # as LBFGS and SAM do
    assert forwards.take() == Work(forwards=None, samples=None, tokens=None)

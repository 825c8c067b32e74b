"""Ensemble of small MLPs trained with the margin ranking loss; one matrix product evaluates all members."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch
    from numpy.typing import NDArray

_ROWS_AT_ONCE = 4096
_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingSettings:
    """Hyper-parameters of the networks and of their training.

    The defaults had the best mean rank correlation, each setting varied by itself. The data were public tables of
    language-model trainings and the simulated layer-wise FSDP spaces of ``benchmarks/lib/simulator.py``. Of the tables,
    30, 100 and 80 % of the jobs were known, or the jobs on few devices, with and without ten larger ones.

    Args:
        networks: members of the ensemble, which differ in their initial weights, dropout and bag of trials.
        hidden: units of the one hidden layer.
        dropout: share of the hidden units dropped in each step.
        margin: by which the score of the faster of two jobs should be higher.
        learning_rate: of AMSGrad.
        weight_decay: of AMSGrad.
        epochs: passes over the trials at most.
        most_steps: batches at most, for long histories.
        batch_size: trials in a batch, all of whose pairs are compared.
        bag: share of the trials that each network is fitted on; the others calibrate it.
        knots: indicators of a number in each set; see ``OneHot``.
    """

    networks: int = 10
    hidden: int = 32
    dropout: float = 0.05
    margin: float = 0.5
    learning_rate: float = 0.01
    weight_decay: float = 3e-3
    epochs: int = 150
    most_steps: int = 1500
    batch_size: int = 64
    bag: float = 0.9
    knots: tuple[int, ...] = (2, 4, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Networks:
    """Weights of a trained ensemble: ``score = relu(inputs @ first + bias) . second`` for each member.

    Args:
        first: weights of the hidden layers side by side, ``[n_inputs, networks * hidden]``.
        bias: of the hidden layers, ``[networks * hidden]``.
        second: ``[networks, hidden]``.
    """

    first: NDArray[np.float32]
    bias: NDArray[np.float32]
    second: NDArray[np.float32]

    def scores(self, inputs: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the score of each row by each member, float64 ``[n, networks]``; higher is faster."""
        parts = [self._scores(inputs[start : start + _ROWS_AT_ONCE]) for start in range(0, len(inputs), _ROWS_AT_ONCE)]
        return np.vstack(parts) if parts else np.empty((0, len(self.second)))

    def _scores(self, inputs: NDArray[np.float32]) -> NDArray[np.float64]:
        hidden = inputs @ self.first
        hidden += self.bias
        np.maximum(hidden, 0.0, out=hidden)
        networks, width = self.second.shape
        scores = np.einsum("neh,eh->ne", hidden.reshape(-1, networks, width), self.second)
        return np.asarray(scores, dtype=np.float64)


def train_networks(
    inputs: NDArray[np.float32],
    target: NDArray[np.float64],
    bags: NDArray[np.float64],
    *,
    settings: RankingSettings,
    seed: int,
) -> Networks:
    """Return networks trained to rank ``inputs`` in the order of ``target``.

    Args:
        inputs: float32 ``[n, n_inputs]``, n >= 2.
        target: values to rank by, ``[n]``.
        bags: weight of each trial for each network, 0 where the trial is left out, ``[networks, n]``.
        settings: of the training.
        seed: of all randomness.
    """
    import torch

    with _torch_settings():
        generator = torch.Generator("cpu").manual_seed(seed)
        rows, targets = torch.from_numpy(inputs), torch.from_numpy(target)
        member = torch.from_numpy(np.ascontiguousarray(bags.T)).to(torch.float32)
        first, bias, second = weights = _weights(inputs.shape[1], settings, generator)
        optimizer = AMSGrad(weights, learning_rate=settings.learning_rate, weight_decay=settings.weight_decay)
        for batch in _batches(len(rows), settings, generator):
            hidden = torch.relu(rows[batch] @ first + bias)
            mask = torch.rand(hidden.shape, generator=generator, device="cpu") >= settings.dropout
            hidden = (hidden * mask / (1.0 - settings.dropout)).view(len(batch), settings.networks, settings.hidden)
            scores = (hidden * second).sum(dim=2)
            loss = ranking_loss(scores, targets[batch], member[batch], margin=settings.margin)
            optimizer.step(torch.autograd.grad(loss, weights))
        arrays = [item.detach().numpy() for item in weights]
    return Networks(first=arrays[0], bias=arrays[1], second=arrays[2])


class AMSGrad:
    """AMSGrad optimizer of Reddi et al. (arXiv 1904.09237), as in ``torch.optim.Adam(amsgrad=True)``.

    Torch's implementation imports the compiler at the first step, which takes longer than the whole training.

    Args:
        weights: to be changed in place.
        learning_rate: of each step.
        weight_decay: multiple of the weights that is added to their gradient.
    """

    def __init__(self, weights: Sequence[torch.Tensor], *, learning_rate: float, weight_decay: float) -> None:
        import torch

        self._weights, self._learning_rate, self._weight_decay = weights, learning_rate, weight_decay
        self._steps = 0
        self._first, self._second, self._largest = ([torch.zeros_like(item) for item in weights] for _ in range(3))

    def step(self, gradients: Sequence[torch.Tensor]) -> None:
        """Update the weights by one step with ``gradients``, one per weight tensor."""
        import torch

        self._steps += 1
        rate = self._learning_rate / (1.0 - _BETA1**self._steps)
        moments = zip(self._weights, gradients, self._first, self._second, self._largest, strict=True)
        with torch.no_grad():
            for weights, gradient, first, second, largest in moments:
                slope = gradient + self._weight_decay * weights
                first.mul_(_BETA1).add_(slope, alpha=1.0 - _BETA1)
                second.mul_(_BETA2).addcmul_(slope, slope, value=1.0 - _BETA2)
                torch.maximum(largest, second, out=largest)
                width = (largest.sqrt() / (1.0 - _BETA2**self._steps) ** 0.5).add_(_EPSILON)
                weights.addcdiv_(first, width, value=-rate)


def ranking_loss(scores: torch.Tensor, target: torch.Tensor, member: torch.Tensor, *, margin: float) -> torch.Tensor:
    """Return the margin ranking loss over all pairs of a batch that differ, summed over the networks.

    The loss of a pair is ``max(0, margin - (score of the faster - score of the slower))`` (the paper's A.1.1). Each
    network takes the mean over its pairs, weighted by the product of both trials' weights.

    Args:
        scores: ``[n, networks]``.
        target: ``[n]``.
        member: weight of each trial for each network, ``[n, networks]``.
        margin: by which the faster should lead.
    """
    import torch

    left, right = torch.triu_indices(len(target), len(target), offset=1, device=scores.device)
    sign = torch.sign(target[left] - target[right]).to(scores.dtype)
    counts = member[left] * member[right] * (sign != 0)[:, None]
    losses = torch.relu(margin - sign[:, None] * (scores[left] - scores[right])) * counts
    return (losses.sum(dim=0) / counts.sum(dim=0).clamp(min=1e-9)).sum()


def _weights(n_inputs: int, settings: RankingSettings, generator: torch.Generator) -> list[torch.Tensor]:
    """Return initial weights with the distribution that ``torch.nn.Linear`` uses."""
    import torch

    units = settings.networks * settings.hidden
    shapes = {(n_inputs, units): n_inputs, (units,): n_inputs, (settings.networks, settings.hidden): settings.hidden}
    tensors = [
        (torch.rand(shape, generator=generator, device="cpu") * 2.0 - 1.0) / max(fan_in, 1) ** 0.5
        for shape, fan_in in shapes.items()
    ]
    return [weights.requires_grad_() for weights in tensors]


def _batches(n_trials: int, settings: RankingSettings, generator: torch.Generator) -> Iterator[torch.Tensor]:
    import torch

    n_batches = 0
    for _ in range(settings.epochs):
        for batch in torch.split(torch.randperm(n_trials, generator=generator, device="cpu"), settings.batch_size):
            if len(batch) < 2:
                continue
            if n_batches == settings.most_steps:
                return
            n_batches += 1
            yield batch


@contextmanager
def _torch_settings() -> Iterator[None]:
    """Return a context with one thread and gradients enabled, which restores the settings of the host program."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.enable_grad():
            yield
    finally:
        torch.set_num_threads(threads)

"""An ensemble of small networks that learn in which order jobs stand, all members in one matrix product."""

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
    """How the networks are made and taught.

    The defaults had the best mean rank correlation over public tables of language-model trainings (30, 100 and 80 % of
    the jobs known, jobs on few devices known, with and without ten larger ones) and the simulated layer-wise FSDP
    spaces of ``benchmarks/simulator.py``, each setting varied by itself.

    Args:
        networks: identical ones in the ensemble, which differ in their first weights, dropout and bag of trials.
        hidden: units of the one hidden layer.
        dropout: share of the hidden units left out in each step.
        margin: by which the score of the faster of two jobs should be higher.
        learning_rate: of AMSGrad.
        weight_decay: of AMSGrad.
        epochs: passes over the trials at most.
        most_steps: batches at most, for long histories.
        batch_size: trials in a batch, all of whose pairs are compared.
        bag: share of the trials that each network learns from; the others calibrate it.
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
    """What was learned: ``score = relu(inputs @ first + bias) . second`` for each member.

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


def teach(
    inputs: NDArray[np.float32],
    target: NDArray[np.float64],
    bags: NDArray[np.float64],
    *,
    settings: RankingSettings,
    seed: int,
) -> Networks:
    """Return networks that put ``inputs`` in the order of ``target``.

    Args:
        inputs: float32 ``[n, n_inputs]``, n >= 2.
        target: what they are ordered by, ``[n]``.
        bags: how much each trial counts for each network, 0 where it does not learn from it, ``[networks, n]``.
        settings: of the training.
        seed: of all randomness.
    """
    import torch

    with _own_torch():
        source = torch.Generator("cpu").manual_seed(seed)
        rows, wanted = torch.from_numpy(inputs), torch.from_numpy(target)
        member = torch.from_numpy(np.ascontiguousarray(bags.T)).to(torch.float32)
        first, bias, second = weights = _weights(inputs.shape[1], settings, source)
        optimizer = AMSGrad(weights, learning_rate=settings.learning_rate, weight_decay=settings.weight_decay)
        for batch in _batches(len(rows), settings, source):
            hidden = torch.relu(rows[batch] @ first + bias)
            kept = torch.rand(hidden.shape, generator=source, device="cpu") >= settings.dropout
            hidden = (hidden * kept / (1.0 - settings.dropout)).view(len(batch), settings.networks, settings.hidden)
            scores = (hidden * second).sum(dim=2)
            loss = ranking_loss(scores, wanted[batch], member[batch], margin=settings.margin)
            optimizer.step(torch.autograd.grad(loss, weights))
        learned = [item.detach().numpy() for item in weights]
    return Networks(first=learned[0], bias=learned[1], second=learned[2])


class AMSGrad:
    """The optimizer of Reddi et al. (arXiv 1904.09237), as ``torch.optim.Adam(amsgrad=True)`` does it.

    Torch's own loads its compiler at the first step, which takes longer than the whole training.

    Args:
        weights: to be changed in place.
        learning_rate: of each step.
        weight_decay: share of the weights that is added to their gradient.
    """

    def __init__(self, weights: Sequence[torch.Tensor], *, learning_rate: float, weight_decay: float) -> None:
        import torch

        self._weights, self._learning_rate, self._weight_decay = weights, learning_rate, weight_decay
        self._steps = 0
        self._first, self._second, self._largest = ([torch.zeros_like(item) for item in weights] for _ in range(3))

    def step(self, gradients: Sequence[torch.Tensor]) -> None:
        """Change the weights by one step along ``gradients``, one for each."""
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

    ``max(0, margin - (score of the faster - score of the slower))``, the mean over the pairs that a network learns
    from, each counting by both trials; the paper's A.1.1.

    Args:
        scores: ``[n, networks]``.
        target: ``[n]``.
        member: how much a trial counts for a network, ``[n, networks]``.
        margin: by which the faster should lead.
    """
    import torch

    one, other = torch.triu_indices(len(target), len(target), offset=1, device=scores.device)
    sign = torch.sign(target[one] - target[other]).to(scores.dtype)
    counts = member[one] * member[other] * (sign != 0)[:, None]
    losses = torch.relu(margin - sign[:, None] * (scores[one] - scores[other])) * counts
    return (losses.sum(dim=0) / counts.sum(dim=0).clamp(min=1e-9)).sum()


def _weights(n_inputs: int, settings: RankingSettings, source: torch.Generator) -> list[torch.Tensor]:
    """Return the weights before the first step, as ``torch.nn.Linear`` draws them."""
    import torch

    units = settings.networks * settings.hidden
    shapes = {(n_inputs, units): n_inputs, (units,): n_inputs, (settings.networks, settings.hidden): settings.hidden}
    drawn = [
        (torch.rand(shape, generator=source, device="cpu") * 2.0 - 1.0) / max(fan_in, 1) ** 0.5
        for shape, fan_in in shapes.items()
    ]
    return [weights.requires_grad_() for weights in drawn]


def _batches(n_trials: int, settings: RankingSettings, source: torch.Generator) -> Iterator[torch.Tensor]:
    import torch

    taken = 0
    for _ in range(settings.epochs):
        for batch in torch.split(torch.randperm(n_trials, generator=source, device="cpu"), settings.batch_size):
            if len(batch) < 2:
                continue
            if taken == settings.most_steps:
                return
            taken += 1
            yield batch


@contextmanager
def _own_torch() -> Iterator[None]:
    """Work on one thread with gradients, whatever the surrounding program has set, and leave its settings as found."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.enable_grad():
            yield
    finally:
        torch.set_num_threads(threads)

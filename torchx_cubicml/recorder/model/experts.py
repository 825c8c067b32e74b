"""Layers of experts (mixture of experts, MoE) of a live model: their router, their weights, and experts on this rank.

The structure tells a layer: a router maps the width of a token to one score per expert, and the experts' weights have
the same width. They are either grouped, in tensors of three dimensions with one expert in each row of the first, or a
list of modules of one class.

Source of the layer: Shazeer et al., https://arxiv.org/abs/1701.06538.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchx_cubicml.recorder.model.layers import unwrap, user_class

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import nn

_LEVELS = 3  # modules from experts up to the one that holds their router too
_MOST_EXPERTS = 16_384
_EXPERT_NAME = re.compile(r"expert|moe|mixture", re.IGNORECASE)
_ROUTER_NAME = re.compile(r"rout|gate\b|wg\b|Gate", re.ASCII)
_COUNT_NAMES = ("num_experts", "n_experts", "n_routed_experts", "num_moe_experts", "num_total_experts", "experts")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLayer:
    """Layer of experts.

    Args:
        outer: module that holds the router and the experts.
        router: module that holds the router's weight.
        experts: module that holds the weights of experts.
        n_experts: scores that the router gives to a token.
        n_held: experts whose weights this process names; distributed weights name all experts.
        is_grouped: whether one tensor holds several experts.
    """

    outer: nn.Module
    router: nn.Module
    experts: nn.Module
    n_experts: int
    n_held: int
    is_grouped: bool

    @property
    def degree(self) -> int:
        """Number of groups of ranks that each hold other experts as plain weights; 1 for distributed weights."""
        return self.n_experts // self.n_held

    def parameters(self) -> list[nn.Parameter]:
        """Return the weights of experts."""
        return list(self.experts.parameters(recurse=not self.is_grouped))

    def holders(self) -> Iterator[nn.Module]:
        """Yield the modules whose attributes describe the layer."""
        seen = {}
        for module in (self.outer, self.router, self.experts, *self.outer.children(), *self.router.children()):
            seen[id(module)] = module
        yield from seen.values()


@dataclass(frozen=True, slots=True, kw_only=True)
class _PossibleExperts:
    """Modules that may be experts.

    Args:
        name: path of ``module``.
        module: the experts.
        n_held: experts whose weights it names.
        widths: possible widths of a token.
        is_grouped: whether one tensor holds several experts.
        is_alike: whether the structure tells experts without a name.
    """

    name: str
    module: nn.Module
    n_held: int
    widths: set[int]
    is_grouped: bool
    is_alike: bool


def find_expert_layers(root: nn.Module) -> list[ExpertLayer]:
    """Return the layers of experts of a model, in order; empty without any."""
    parents = {id(child): module for module in root.modules() for child in module.children()}
    found: list[ExpertLayer] = []
    inside: set[int] = set()
    for name, module in root.named_modules():
        if id(module) in inside:
            continue
        above = _above(module, parents)
        candidate = _grouped(name, module) or _listed(name, module, above)
        layer = _routed(candidate, above) if candidate is not None else None
        if layer is not None:
            found.append(layer)
            inside |= {id(each) for each in module.modules()}
    return found


def _grouped(name: str, module: nn.Module) -> _PossibleExperts | None:
    own = [parameter for parameter in module.parameters(recurse=False) if parameter.dim() == 3]
    if not own or len({parameter.shape[0] for parameter in own}) != 1 or _is_of_torch(module):
        return None
    return _PossibleExperts(
        name=name,
        module=module,
        n_held=own[0].shape[0],
        # One product leads into the experts' own width and one back, so that all have the width of a token.
        widths=set.intersection(*(set(parameter.shape[1:]) for parameter in own)),
        is_grouped=True,
        is_alike=len(own) > 1,
    )


def _listed(name: str, module: nn.Module, above: Sequence[nn.Module]) -> _PossibleExperts | None:
    from torch.nn import ModuleDict, ModuleList

    if not isinstance(module, ModuleList | ModuleDict):
        return None
    children = [unwrap(child) for child in module.children()]
    if not children or len({user_class(child) for child in children}) != 1:
        return None
    return _PossibleExperts(
        name=name,
        module=module,
        n_held=len(children),
        widths={size for weight in children[0].parameters() if weight.dim() == 2 for size in weight.shape},
        is_grouped=False,
        # Without a name, a list of few layers beside a classifier of as many classes would pass, unless it repeats.
        is_alike=any(_repeats(each) for each in above),
    )


def _routed(candidate: _PossibleExperts, above: Sequence[nn.Module]) -> ExpertLayer | None:
    """Return the layer of experts with its router; ``None`` if no module around scores that many experts."""
    for outer in above[:_LEVELS]:
        ranked: dict[int, list[tuple[nn.Module, int]]] = {}
        for rank, router, n_experts in _ranked_routers(candidate, outer):
            ranked.setdefault(rank, []).append((router, n_experts))
        best = ranked[min(ranked)] if ranked else []
        if len({n_experts for _, n_experts in best}) > 1:
            return None
        if best:
            router, n_experts = best[0]
            return ExpertLayer(
                outer=outer,
                router=router,
                experts=candidate.module,
                n_experts=n_experts,
                n_held=candidate.n_held,
                is_grouped=candidate.is_grouped,
            )
    return None


def _ranked_routers(candidate: _PossibleExperts, outer: nn.Module) -> Iterator[tuple[int, nn.Module, int]]:
    """Yield the possible routers of experts: certainty, smallest first, module, and number of experts."""
    is_named, counts = _is_named(candidate, outer), _stated_counts(outer)
    inside = {id(each) for each in candidate.module.modules()}
    for path, router, n_experts in _routers(outer, inside, candidate.widths):
        whole, rest = divmod(n_experts, candidate.n_held)
        if rest or whole < 1 or not 1 < n_experts <= _MOST_EXPERTS:
            continue
        # A part of the experts is less certain than all of them.
        if n_experts in counts and (is_named or whole == 1):
            yield 0, router, n_experts
        elif whole == 1 and (is_named or candidate.is_alike):
            yield 1, router, n_experts
        elif is_named and _ROUTER_NAME.search(f"{path}.{user_class(router).__name__}"):
            yield 2, router, n_experts


def _routers(outer: nn.Module, inside: set[int], widths: set[int]) -> Iterator[tuple[str, nn.Module, int]]:
    """Yield the modules with a matrix from the width of a token to scores: path, module and number of scores."""
    for path, module in _outside_lists(outer):
        if id(module) in inside or _is_table(module):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.dim() == 2 and parameter.shape[1] in widths:
                yield f"{path}.{name}", module, parameter.shape[0]
            elif parameter.dim() == 2 and parameter.shape[0] in widths and not hasattr(module, "in_features"):
                yield f"{path}.{name}", module, parameter.shape[1]


def _outside_lists(outer: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield a module and those inside it, with their paths, but no layers in lists, which have routers of their own."""
    from torch.nn import ModuleList

    pending = [("", outer)]
    while pending:
        path, module = pending.pop()
        if not isinstance(module, ModuleList):
            yield path, module
            pending += [(f"{path}.{name}", child) for name, child in module.named_children()]


def _repeats(container: nn.Module) -> bool:
    """Return whether a list of modules holds several of one class alone, as a model holds its layers."""
    from torch.nn import ModuleDict, ModuleList

    kinds = [user_class(unwrap(child)) for child in container.children()]
    return isinstance(container, ModuleList | ModuleDict) and len(kinds) > 1 and len(set(kinds)) == 1


def _stated_counts(outer: nn.Module) -> set[int]:
    """Return the numbers of experts that attributes around a layer state."""
    return {
        value
        for module in outer.modules()
        for name, value in vars(module).items()
        if name in _COUNT_NAMES and isinstance(value, int) and not isinstance(value, bool)
    }


def _is_named(candidate: _PossibleExperts, outer: nn.Module) -> bool:
    own = candidate.name.rpartition(".")[2]
    texts = (own, user_class(candidate.module).__name__, user_class(outer).__name__)
    return any(_EXPERT_NAME.search(text) for text in texts)


def _is_table(module: nn.Module) -> bool:
    from torch.nn import Embedding

    return isinstance(module, Embedding)


def _is_of_torch(module: nn.Module) -> bool:
    """Return whether torch defines a module, such as a convolution."""
    return user_class(module).__module__.startswith("torch.")


def _above(module: nn.Module, parents: Mapping[int, nn.Module]) -> Sequence[nn.Module]:
    above: list[nn.Module] = []
    while (parent := parents.get(id(module))) is not None and len(above) < 100:
        above.append(parent)
        module = parent
    return above

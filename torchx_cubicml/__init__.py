"""Autotuning of PyTorch training launches: records the throughput of each, and gives the next a better config.

Public names are imported on first use: importing the package is cheap and loads neither torch nor scikit-learn.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # in place of typing's: in a job, the program's folder may hide the module typing
if TYPE_CHECKING:
    from torchx_cubicml.advisor import ProposalMethod, suggest
    from torchx_cubicml.errors import CubicMLError
    from torchx_cubicml.plots.space_plots import plot_memory, plot_parameter_worth
    from torchx_cubicml.plots.trial_plots import plot_frontier, plot_predicted
    from torchx_cubicml.predictors.evaluation import ReportCard, evaluate
    from torchx_cubicml.recorder.steps.measure_api import measure
    from torchx_cubicml.records.measurement import Measurement
    from torchx_cubicml.records.suggestion import Suggestion
    from torchx_cubicml.records.trial import Origin, State, Trial
    from torchx_cubicml.space import SearchSpace
    from torchx_cubicml.space.toml import load_space
    from torchx_cubicml.store import TrialStore

__all__ = [
    "CubicMLError",
    "Measurement",
    "Origin",
    "ProposalMethod",
    "ReportCard",
    "SearchSpace",
    "State",
    "Suggestion",
    "Trial",
    "TrialStore",
    "evaluate",
    "load_space",
    "measure",
    "plot_frontier",
    "plot_memory",
    "plot_parameter_worth",
    "plot_predicted",
    "suggest",
]

_MODULES = {
    "CubicMLError": "errors",
    "Measurement": "records.measurement",
    "ProposalMethod": "advisor",
    "Origin": "records.trial",
    "ReportCard": "predictors.evaluation",
    "SearchSpace": "space",
    "State": "records.trial",
    "Suggestion": "records.suggestion",
    "Trial": "records.trial",
    "TrialStore": "store",
    "evaluate": "predictors.evaluation",
    "load_space": "space.toml",
    "measure": "recorder.steps.measure_api",
    "plot_frontier": "plots.trial_plots",
    "plot_memory": "plots.space_plots",
    "plot_parameter_worth": "plots.space_plots",
    "plot_predicted": "plots.trial_plots",
    "suggest": "advisor",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)

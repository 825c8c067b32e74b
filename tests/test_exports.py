from __future__ import annotations

import subprocess
import sys

import pytest

import torchx_cubicml

PUBLIC = {
    "CubicMLError",
    "Measurement",
    "ProposalMethod",
    "Origin",
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
}

HEAVY = {"torch", "sklearn", "pandas", "scipy", "numpy", "fsspec"}


def test_the_public_list_is_exactly_what_is_public() -> None:
    assert set(torchx_cubicml.__all__) == PUBLIC
    assert len(PUBLIC) <= 20


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_each_public_name_is_there_and_documented(name: str) -> None:
    assert (getattr(torchx_cubicml, name).__doc__ or "").strip()


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = torchx_cubicml.nothing


@pytest.mark.parametrize(
    "module", ["torchx_cubicml", "torchx_cubicml.components.cubicml", "torchx_cubicml.cli", "torchx_cubicml.recorder"]
)
def test_importing_loads_no_heavy_package(module: str) -> None:
    code = (
        f"import sys, {module}; heavy = {HEAVY} & set(sys.modules); sys.exit(f'{{heavy}} came with it' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

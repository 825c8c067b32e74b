"""The example notebook, executed on a store of simulated launches: each cell shows what it is there for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
from nbclient import NotebookClient

from tests.plots.simulated import launches
from torchx_cubicml import TrialStore
from torchx_cubicml.report.figure import VEGA_LITE

if TYPE_CHECKING:
    import pytest

NOTEBOOK = Path(__file__).resolve().parent.parent / "examples" / "notebook.ipynb"
SPACE = """
[parameters.micro_batch_size]
choices = [1, 2, 4, 8, 16]
flag = "--batch_size"
changes_training = true
[parameters.sharding_strategy]
choices = ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"]
flag = "--sharding"
[parameters.activation_checkpointing]
choices = ["none", "full"]
flag = "--checkpointing"
[parameters.compile]
choices = [false, true]
flag = "--compile"
"""
HTML = {"text/html", "text/plain"}
FIGURE = {VEGA_LITE, "image/svg+xml", "text/plain"}
SHOWN = {
    "store": (HTML, "trials in"),
    "frame.groupby": (HTML, "SHARD_GRAD_OP"),
    "store.to_arrow()": ({"text/plain"}, "tokens_per_second: double"),
    "plot_frontier": (FIGURE, "40 launches"),
    "plot_predicted": (FIGURE, "Predicted and measured throughput"),
    "trials[0]": (HTML, "measurement.tokens_per_second"),
    "space": (HTML, "flag --sharding"),
    "best": (HTML, "probability to fit in memory"),
    "plot_parameter_worth": (FIGURE, "the best value of each parameter"),
    "memory": (FIGURE, "Probability to fit in memory"),
    "evaluate": (HTML, "Kendall&#x27;s tau"),
}
"""Begin of the last line of each cell -> MIME types that it shows, and a text in each but the plain one."""


def test_the_notebook_is_kept_without_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
    nbformat.validate(notebook)


def test_each_cell_shows_its_representation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = TrialStore(str(tmp_path / "store"))
    for trial in launches(40):
        store.add(trial)
    (tmp_path / "gpt.toml").write_text(SPACE)
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    shown = [cell for cell in notebook.cells if cell.cell_type == "code" and "import" not in cell.source]
    assert len(shown) == len(SHOWN)
    for cell, (begin, (types, text)) in zip(shown, SHOWN.items(), strict=True):
        assert cell.source.splitlines()[-1].startswith(begin)
        (output,) = cell.outputs
        data: dict[str, Any] = output.data
        assert data.keys() == types, begin
        assert all(text in str(data[each]) for each in types - {"text/plain"} or types), begin
    assert (tmp_path / "memory.html").read_text().startswith("<!DOCTYPE html>")

"""Trials as a table of pandas or of Arrow, with a type for each column; see ``records/trial_columns.py``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from torchx_cubicml.errors import StoreError
from torchx_cubicml.records.trial_columns import ColumnKind, trial_columns

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas
    import pyarrow

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.records.trial_columns import TrialColumn

_PANDAS_TYPES = {
    ColumnKind.BOOLEAN: "boolean",
    ColumnKind.WHOLE: "Int64",
    ColumnKind.REAL: "Float64",
    ColumnKind.TEXT: "string",
    ColumnKind.TIME: "datetime64[us, UTC]",
    ColumnKind.LIST: "object",
}


def data_frame(trials: Iterable[Trial]) -> pandas.DataFrame:
    """Return the trials as a data frame of pandas.

    Raises:
        StoreError: pandas is not installed.
    """
    pd = _package("pandas", extra="pandas", method="to_pandas")

    def series(column: TrialColumn) -> Any:
        if column.kind is ColumnKind.CHOICE:
            return pd.Categorical(column.values, categories=list(column.choices))
        return pd.Series(list(column.values), dtype=_PANDAS_TYPES[column.kind])

    return pd.DataFrame({column.name: series(column) for column in trial_columns(trials)})


def arrow_table(trials: Iterable[Trial]) -> pyarrow.Table:
    """Return the trials as a table of Arrow.

    Raises:
        StoreError: pyarrow is not installed.
    """
    pa = _package("pyarrow", extra="arrow", method="to_arrow")
    types = {
        ColumnKind.BOOLEAN: pa.bool_(),
        ColumnKind.WHOLE: pa.int64(),
        ColumnKind.REAL: pa.float64(),
        ColumnKind.TEXT: pa.string(),
        ColumnKind.TIME: pa.timestamp("us", tz="UTC"),
        ColumnKind.CHOICE: pa.dictionary(pa.int8(), pa.string()),
    }

    def array(column: TrialColumn) -> Any:
        kind = pa.list_(types[column.items]) if column.kind is ColumnKind.LIST else types[column.kind]
        return pa.array(column.values, type=kind)

    return pa.table({column.name: array(column) for column in trial_columns(trials)})


def _package(name: str, *, extra: str, method: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise StoreError(f"{method} needs {name}: pip install 'torchx-cubicml[{extra}]' ({error})") from error

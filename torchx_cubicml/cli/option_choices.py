"""Options with a fixed set of values, which ``--help`` lists and the parser checks.

The tables that these names are keys of import scikit-learn and the like, too slow for each start of TorchX.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

SEARCHER_NAMES = ("exhaustive", "random", "evolution", "reinforce")
ACQUISITION_NAMES = ("expected_improvement", "mean", "upper_bound", "thompson")
PREDICTOR_NAMES = ("greybox", "boosting", "roofline", "gaussian_process", "ranking_mlp")
TABLE_FORMATS = ("text", "json", "jsonl", "parquet", "xlsx", "mlflow", "wandb", "deepspeed", "paddle", "logs")
REPORT_FORMATS = ("html", "md", "png", "json", "csv", "parquet")


def add_choice(
    parser: argparse.ArgumentParser,
    flag: str,
    names: Iterable[str],
    text: str,
    *,
    note: str = "",
    metavar: str = "NAME",
    **more: Any,
) -> None:
    """Declare an option with a fixed set of values.

    Args:
        parser: of the sub-command.
        flag: the option.
        names: its legal values.
        text: what it chooses.
        note: what follows the legal values in the help, such as the default.
        metavar: word for a value.
        more: further arguments of ``add_argument``.
    """
    legal = [str(name) for name in names]
    ending = f" ({note})" if note else ""
    parser.add_argument(flag, choices=legal, metavar=metavar, help=f"{text}: {', '.join(legal)}{ending}", **more)

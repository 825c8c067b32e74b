"""Model of a recommender, as the options of its program tell it: embedding tables, dense layers, parameters.

Two families of options are known. Those of TorchRec's DLRM example (``--num_embeddings``, ``--embedding_dim``,
``--dense_arch_layer_sizes``), which build the classes of ``torchrec.models.dlrm``; and those of
facebookresearch/dlrm (``--arch-embedding-size``, ``--arch-mlp-bot``). The layers follow from the options as these
programs build them (DLRM: Naumov et al., arXiv 1906.00091). A program of the user's own may use the same names and
build another dense part, which is why the dense part is an assumption wherever the source does not show these classes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise
from math import comb
from typing import TYPE_CHECKING

from torchx_cubicml.records.standard_names import LEFT_TO_PLANNER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.records.values import Value

CRITEO_TABLES, CRITEO_NUMBERS = 26, 13
"""Features of the Criteo data set: categories, each with a table, and numbers (``torchrec.datasets.criteo``)."""

_TABLE_OPTIONS = ("num_embeddings_per_feature", "num_embeddings")
_COUNT_OPTIONS = ("num_tables", "n_tables", "num_sparse_features")
_DENSE_INPUTS = ("dense_in_features", "num_dense_features", "n_dense_features", "dense_features")
_NUMBERS_OF_CRITEO, _CATEGORIES_OF_CRITEO = "default_int_names", "default_cat_names"
_POOLING_OPTIONS = ("multi_hot_sizes", "pooling_factors", "pooling_factor")
_MOST_TABLES = 1000  # as the recorder lists
IMPORTS_TORCHREC = re.compile(r"^\s*(?:from|import)\s+torchrec\b", re.MULTILINE)
_IMPORTS_DLRM = re.compile(r"^\s*from\s+torchrec\.models(?:\.dlrm\s+import|\s+import\s+dlrm)\b", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommenderModel:
    """Facts of a recommender that its command and its source tell.

    Args:
        facts: standard name -> value.
        origins: fact -> the options that it follows from; none where the source tells it.
        assumed: fact -> the assumption behind it, as the rest of a sentence; facts that are certain are left out.
        unknown: fact that could not be known -> what would tell it.
    """

    facts: Mapping[str, Value]
    origins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    assumed: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)


def recommender_model(
    options: Mapping[str, object], *, source: str = "", world_size: int | None = None
) -> RecommenderModel | None:
    """Return the model of a recommender; ``None`` where the options are not those of one.

    Args:
        options: name without dashes, with underscores -> value, of the command or a default in the source.
        source: text of the program in lower case; empty where it cannot be read.
        world_size: processes of the job; ``None`` where that is unknown.

    >>> options = {"num_embeddings_per_feature": "1000,10", "embedding_dim": 4, "dense_in_features": 2}
    >>> found = recommender_model({**options, "dense_arch_layer_sizes": "4", "over_arch_layer_sizes": "2,1"})
    >>> found.facts["embedding_rows"], found.facts["layer_n_params"], found.facts["n_params"]
    ((1000, 10), (12, 16, 3), 4071)
    """
    if "arch_embedding_size" in options and "arch_sparse_feature_size" in options:
        return _of_research_dlrm(options, world_size=world_size)
    if "embedding_dim" in options and any(name in options for name in _TABLE_OPTIONS):
        return _of_torchrec_dlrm(options, source=source)
    return None


@dataclass(slots=True)
class _Draft:
    """Model under construction."""

    facts: dict[str, Value] = field(default_factory=dict)
    origins: dict[str, tuple[str, ...]] = field(default_factory=dict)
    assumed: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, value: Value, *origins: str, assumed: str = "") -> None:
        self.facts[name], self.origins[name] = value, origins
        if assumed:
            self.assumed[name] = assumed

    def add_tables(self, rows: Sequence[int], width: int, *origins: str, assumed: str = "") -> None:
        self.add("n_embedding_tables", len(rows), *origins, assumed=assumed)
        self.add("embedding_rows", tuple(rows), *origins, assumed=assumed)
        self.add("embedding_dims", (width,) * len(rows), *origins, assumed=assumed)

    def add_layers(self, layers: Sequence[int], *origins: str, assumed: str = "") -> None:
        """Add the dense layers, and with the tables the number of parameters."""
        self.add("layer_n_params", tuple(layers), *origins, assumed=assumed)
        rows, widths = self.facts.get("embedding_rows"), self.facts.get("embedding_dims")
        if isinstance(rows, tuple) and isinstance(widths, tuple):
            tables = sum(int(row) * int(width) for row, width in zip(rows, widths, strict=True))
            of_tables = self.origins["embedding_rows"]
            doubt = assumed or self.assumed.get("embedding_rows", "")
            self.add("n_params", tables + sum(layers), *of_tables, *origins, assumed=doubt)

    def done(self) -> RecommenderModel:
        return RecommenderModel(facts=self.facts, origins=self.origins, assumed=self.assumed, unknown=self.unknown)


def _of_torchrec_dlrm(options: Mapping[str, object], *, source: str) -> RecommenderModel | None:
    """Return the model of the options of TorchRec's example; ``None`` if a size among them is none."""
    draft, width = _Draft(), _size(options["embedding_dim"])
    if not width:
        return None
    rows = _tables_of_torchrec(draft, options, source)
    if rows:
        _add_placement(draft, len(rows), source)
        _add_pooling(draft, options, len(rows), source)
        told_by = (
            "num_embeddings_per_feature" if _sizes(options.get("num_embeddings_per_feature")) else "num_embeddings"
        )
        draft.add_tables(rows, width, told_by, "embedding_dim", assumed=draft.assumed.pop("tables", ""))
        _add_dense_part(draft, options, source, n_tables=len(rows), width=width)
    return draft.done()


def _tables_of_torchrec(draft: _Draft, options: Mapping[str, object], source: str) -> tuple[int, ...]:
    """Return the rows of each table; none where their number is unknown, which is noted."""
    if rows := _sizes(options.get("num_embeddings_per_feature")):
        return rows
    each = _size(options.get("num_embeddings"))
    count = next(
        (_size(options[name]) for name in ("num_tables", "n_tables", "num_sparse_features") if name in options), 0
    )
    count = count or (CRITEO_TABLES if _CATEGORIES_OF_CRITEO in source else 0)
    if each and 0 < count <= _MOST_TABLES:
        return (each,) * count
    draft.unknown["embedding_rows"] = "--num_embeddings_per_feature"
    return ()


def _add_placement(draft: _Draft, n_tables: int, source: str) -> None:
    """Add how the tables are placed on the ranks, as far as the source shows it."""
    if "distributedmodelparallel" in source:
        draft.add("embedding_sharding", (LEFT_TO_PLANNER,) * n_tables)
    elif not IMPORTS_TORCHREC.search(source) and "embeddingbag" in source:
        is_sparse = re.search(r"embeddingbag\([^()]*sparse\s*=\s*true", source) is not None
        if not is_sparse:
            draft.add("embedding_sharding", ("data_parallel",) * n_tables)
    else:
        draft.unknown["embedding_sharding"] = "a recorded launch"


def _add_pooling(draft: _Draft, options: Mapping[str, object], n_tables: int, source: str) -> None:
    """Add the rows that a sample looks up in each table."""
    name = next((name for name in _POOLING_OPTIONS if options.get(name) not in (None, "")), "")
    sizes = _numbers(options.get(name))
    if len(sizes) in {1, n_tables}:
        draft.add("embedding_pooling", sizes if len(sizes) == n_tables else sizes * n_tables, name)
    else:
        is_criteo = _CATEGORIES_OF_CRITEO in source
        doubt = "" if is_criteo else "one row is looked up per table and sample"
        draft.add("embedding_pooling", (1.0,) * n_tables, assumed=doubt)


def _add_dense_part(draft: _Draft, options: Mapping[str, object], source: str, *, n_tables: int, width: int) -> None:
    """Add the layers of the classes of ``torchrec.models.dlrm``, or name what is not known of them."""
    inputs, doubt = _dense_inputs(options, source)
    bottom, top = (_sizes(options.get(f"{name}_arch_layer_sizes")) for name in ("dense", "over"))
    if not inputs or not bottom or not top:
        missing = [("--dense_in_features", inputs), ("--dense_arch_layer_sizes", bottom)]
        missing.append(("--over_arch_layer_sizes", top))
        draft.unknown["layer_n_params"] = next(name for name, value in missing if not value)
        return
    kind = str(options.get("interaction_type", "original")).rpartition(".")[2].lower()
    between = _interaction(kind, options, n_tables=n_tables, width=width)
    if between is None:
        draft.unknown["layer_n_params"] = "--interaction_type"
        return
    middle, joined = between
    doubt = doubt or ("" if _IMPORTS_DLRM.search(source) else "the dense part is that of DLRM")
    layers = (*_linear(inputs, *bottom), *middle, *_linear(joined, *top))
    draft.add_layers(layers, "dense_arch_layer_sizes", "over_arch_layer_sizes", assumed=doubt)


def _dense_inputs(options: Mapping[str, object], source: str) -> tuple[int, str]:
    """Return the numbers of a sample, and the doubt about them; 0 where they are unknown."""
    told = next((_size(options[name]) for name in _DENSE_INPUTS if name in options), 0)
    if told:
        return told, ""
    if _NUMBERS_OF_CRITEO in source:
        return CRITEO_NUMBERS, ""
    found = re.search(r"dense_in_features\s*=\s*(\d{1,9})\b", source)
    return (int(found[1]), "") if found else (0, "")


def _interaction(
    kind: str, options: Mapping[str, object], *, n_tables: int, width: int
) -> tuple[tuple[int, ...], int] | None:
    """Return the parameters of the interaction's layers and the width of its output; ``None`` for an unknown one."""
    joined = (n_tables + 1) * width
    if kind == "original":
        return (), width + n_tables + comb(n_tables, 2)
    if kind == "dcn":
        layers, rank = _size(options.get("dcn_num_layers", 3)), _size(options.get("dcn_low_rank_dim", 512))
        # Two factors and a bias per layer; each kind in a list of its own.
        factor = layers * joined * rank
        return ((factor, factor, layers * joined), joined) if factor else None
    if kind == "projection":
        branches = [_sizes(options.get(f"interaction_branch{number}_layer_sizes")) for number in (1, 2)]
        if all(branches):
            layers_of = tuple(size for branch in branches for size in _linear(joined, *branch))
            return layers_of, width + (branches[0][-1] // width) * (branches[1][-1] // width)
    return None


def _of_research_dlrm(options: Mapping[str, object], *, world_size: int | None) -> RecommenderModel | None:
    """Return the model of the options of facebookresearch/dlrm; ``None`` if a size among them is none."""
    draft, width = _Draft(), _size(options["arch_sparse_feature_size"])
    bottom, top = (_sizes(options.get(f"arch_mlp_{name}"), allow_zero=True) for name in ("bot", "top"))
    if not width or len(bottom) < 2 or not top:
        return None
    _add_batch(draft, options, world_size)
    is_from_data = str(options.get("data_generation", "random")) == "dataset"
    rows = _sizes(options["arch_embedding_size"])
    changed = next((name for name in ("qr_flag", "md_flag") if _is_on(options.get(name))), "")
    if is_from_data or changed or not rows:
        reason = "a recorded launch: the data set decides" if is_from_data else "a recorded launch"
        draft.unknown |= {"embedding_rows": reason, "layer_n_params": reason}
        return draft.done()
    draft.add_tables(rows, width, "arch_embedding_size", "arch_sparse_feature_size")
    lookups, is_fixed = (
        _size(options.get("num_indices_per_lookup", 10)),
        _is_on(options.get("num_indices_per_lookup_fixed")),
    )
    pooling = tuple(float(min(lookups, row)) if is_fixed else max(1.0, min(lookups, row) / 2.0) for row in rows)
    draft.add("embedding_pooling", pooling, "num_indices_per_lookup", assumed="" if is_fixed else "half on average")
    # Sparse gradients: no copy of a table is made, and each table lies whole on one rank.
    draft.add("embedding_sharding", ("table_wise",) * len(rows))
    count = len(rows) + 1
    if str(options.get("arch_interaction_op", "dot")) == "cat":
        joined = count * bottom[-1]
    else:
        pairs = comb(count + 1, 2) if _is_on(options.get("arch_interaction_itself")) else comb(count, 2)
        joined = pairs + bottom[-1]
    draft.add_layers((*_linear(*bottom), *_linear(joined, *top)), "arch_mlp_bot", "arch_mlp_top")
    return draft.done()


def _add_batch(draft: _Draft, options: Mapping[str, object], world_size: int | None) -> None:
    """Add the samples of one rank: the option is of all ranks together."""
    batch = _size(options.get("mini_batch_size", 1))
    if batch and world_size and batch % world_size == 0:
        draft.add("micro_batch_size", batch // world_size, "mini_batch_size")


def _linear(*widths: int) -> tuple[int, ...]:
    """Return the parameters of linear layers with a bias, one after the other.

    >>> _linear(13, 4, 1)
    (56, 5)
    """
    return tuple((inputs + 1) * outputs for inputs, outputs in pairwise(widths))


def _numbers(value: object) -> tuple[float, ...]:
    """Return the numbers of an option that lists some; none where one of its entries is no number.

    >>> _numbers("512-256"), _numbers("1,2.5"), _numbers([3, 4]), _numbers("a,b"), _numbers(7)
    ((512.0, 256.0), (1.0, 2.5), (3.0, 4.0), (), (7.0,))
    """
    if isinstance(value, bool) or value is None:
        return ()
    if isinstance(value, list | tuple):
        words = [str(each) for each in value]
    else:
        words = [word for word in re.split(r"[,\s-]+", str(value).strip().strip("[]()\"'")) if word]
    if not all(re.fullmatch(r"\d{1,15}(?:_\d+)*(?:\.\d*)?", word) for word in words):
        return ()
    return tuple(float(word) for word in words)


def _sizes(value: object, *, allow_zero: bool = False) -> tuple[int, ...]:
    found = _numbers(value)
    least = 0.0 if allow_zero else 1.0
    return tuple(map(int, found)) if all(each >= least and each.is_integer() for each in found) else ()


def _size(value: object) -> int:
    """Return a size, 0 where the value is none."""
    found = _sizes(value)
    return found[0] if len(found) == 1 else 0


def _is_on(value: object) -> bool:
    return str(value).lower() in {"true", "1", "yes", "on", ""} if value is not None else False

"""Free constants of the recommenders' formulas, with log-normal priors: a default and a log standard deviation each.

They stand beside those of ``constants``, of which these formulas read a few. All are positive. Bandwidths are shares of
the value in the hardware's data sheet, or times such a share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torchx_cubicml.predictors.roofline.constants import PRIORS as TRANSFORMER_PRIORS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torchx_cubicml.predictors.roofline.constants import Constants

_SHARED = ("gemm_efficiency", "half_tokens", "link_dp", "network_dp", "memory_bandwidth", "step_s")

# name -> (default, standard deviation of its logarithm, in words)
RECOMMENDER_PRIORS: dict[str, tuple[float, float, str]] = {
    **{name: TRANSFORMER_PRIORS[name] for name in _SHARED},
    "slowdown": (1.0, 1.0, "times that everything takes longer on this machine, as where its devices are shared"),
    "row_bytes": (64.0, 1.0, "bytes that could be read in the latency of one row at a random address"),
    "cache_bytes": (32e6, 1.0, "bytes of the tables of one device that its cache holds"),
    "cache_speed": (3.0, 0.5, "bandwidth of the cache over that of the memory"),
    "all_to_all": (0.7, 0.5, "bandwidth of an all-to-all over that of the data-parallel collectives"),
    "reduce_scatter": (1.0, 0.5, "bandwidth of a reduce-scatter of embeddings over that of these collectives"),
    "exchange_s": (0.2e-3, 1.0, "per step and kind of sharding: latency of one of its collectives"),
    "table_s": (20e-6, 1.0, "per step and shard of a table: the host issues its kernels"),
    "replica_passes": (5.0, 1.0, "passes of a replicated table through memory: gradient, buckets, optimizer"),
    "bucket_bytes": (64.0, 1.0, "bytes of memory as long as which one index takes to be sorted by the rank of its row"),
    "hidden_exchange": (0.1, 1.0, "share of the dense part under which the exchange of embeddings hides"),
}
RECOMMENDER_NAMES = tuple(RECOMMENDER_PRIORS)
RECOMMENDER_CENTRE: NDArray[np.float64] = np.log([default for default, _, _ in RECOMMENDER_PRIORS.values()])
RECOMMENDER_WIDTH: NDArray[np.float64] = np.array([width for _, width, _ in RECOMMENDER_PRIORS.values()])
RECOMMENDER_DEFAULTS: Constants = {name: default for name, (default, _, _) in RECOMMENDER_PRIORS.items()}

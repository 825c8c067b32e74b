"""Degrees that Megatron Core itself set up, where it can be imported, on fake ranks."""

from __future__ import annotations

import pytest

from tests.recorder.model.fake_ranks import fake_ranks
from torchx_cubicml.recorder.model.megatron import megatron_facts


@pytest.mark.parametrize(("tp", "pp", "cp", "ep", "etp"), [(2, 1, 1, 4, 1), (2, 2, 1, 2, 2), (1, 1, 2, 8, 1)])
def test_degrees_of_initialised_groups(tp: int, pp: int, cp: int, ep: int, etp: int) -> None:
    parallel_state = pytest.importorskip("megatron.core.parallel_state")
    with fake_ranks(16):
        assert megatron_facts() == {}
        parallel_state.initialize_model_parallel(
            tp,
            pp,
            context_parallel_size=cp,
            expert_model_parallel_size=ep,
            expert_tensor_parallel_size=etp,
            create_gloo_process_groups=False,
        )
        try:
            assert megatron_facts() == {
                "dp_degree": 16 // (tp * pp * cp),
                "tp_degree": tp,
                "pp_degree": pp,
                "cp_degree": cp,
                "ep_degree": ep,
                "expert_tp_degree": etp,
            }
        finally:
            parallel_state.destroy_model_parallel()

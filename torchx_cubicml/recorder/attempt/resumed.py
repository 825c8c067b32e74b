"""Rewritten launches that turn out to go on with a training that was begun with another config."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from torchx_cubicml.errors import CubicMLError
from torchx_cubicml.records.resumption import LOADED_FROM, digested, has_same_state, savers
from torchx_cubicml.store.deadline import read_with_deadline, within
from torchx_cubicml.store.digest_key import digest_keys

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.records.contract import Contract
    from torchx_cubicml.records.values import Config, Value

_READ_S = 5.0


def begun_with_other_config(contract: Contract, typed: Config, facts: Mapping[str, Value]) -> bool:
    """Return whether a launch should go on as typed: nothing shows that its checkpoint is of its own config.

    Args:
        contract: contract of this launch, which was rewritten.
        typed: config of the launch as typed.
        facts: ids of the folders that were read, under ``LOADED_FROM``.
    """
    ids = facts[LOADED_FROM]
    if has_same_state(typed, contract.config):
        return False
    with suppress(CubicMLError):
        keys = within(_READ_S, lambda: digest_keys(contract.store), what="reading the key of the digests")
        trials = read_with_deadline(contract.store, deadline_s=_READ_S).trials
        found = savers(trials, contract.workload, digested(map(str, ids), keys) if isinstance(ids, tuple) else ())
        return not (found and has_same_state(found[-1].config, contract.config))
    return True

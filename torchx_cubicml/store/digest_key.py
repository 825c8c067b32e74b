"""Key of the digests in a store, kept beside its events: random, made by the first writer, and in no export."""

from __future__ import annotations

import json
import re
import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from torchx_cubicml.store.trial_store import TrialStore

if TYPE_CHECKING:
    from torchx_cubicml.store.backend import Backend

_FOLDER = "digest-key"
_SCHEMA = 1
_KEY = re.compile(r"[0-9a-f]{32}")


def digest_key(url: str) -> str:
    """Return the key of the store at ``url``; empty where there is none.

    If two first writers each made a key, the one whose name sorts first counts. A digest with the other key equals
    nothing, like the digest of an unknown text.

    Raises:
        StoreError: the store cannot be reached or read.
    """
    return _first(_folder(url))


def made_digest_key(url: str) -> str:
    """Return the key of the store at ``url``, and make one where there is none.

    Raises:
        StoreError: the store cannot be read or written.
    """
    folder = _folder(url)
    if found := _first(folder):
        return found
    now, key = datetime.now(UTC), secrets.token_hex(16)
    data = json.dumps({"schema": _SCHEMA, "key": key}).encode() + b"\n"
    folder.publish(f"{now:%Y-%m-%d}", f"{now:%Y%m%dT%H%M%S.%fZ}-{secrets.token_hex(8)}.json", data)
    return _first(folder) or key


def _first(folder: Backend) -> str:
    for _, content in folder.read(folder.list_objects().places()):
        if not isinstance(content, Exception) and (key := _key(content)):
            return key
    return ""


def _key(content: bytes) -> str:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return ""
    key = found.get("key") if isinstance(found, dict) else None
    return key if isinstance(key, str) and _KEY.fullmatch(key) else ""


def _folder(url: str) -> Backend:
    return TrialStore(f"{url.rstrip('/')}/{_FOLDER}").folder

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
_MOST_KEYS = 16  # each present text has a digest with each key
_KEY = re.compile(r"[0-9a-f]{32}")


def digest_keys(url: str) -> tuple[str, ...]:
    """Return the keys of the store at ``url``; none where it has none.

    New digests are made with the first one. There are several where two first writers each made one, or where the files
    of two stores were copied into one.

    Raises:
        StoreError: the store cannot be reached or read.
    """
    return _keys(_folder(url))


def made_digest_key(url: str) -> str:
    """Return the first key of the store at ``url``, and make one where there is none.

    Raises:
        StoreError: the store cannot be read or written.
    """
    folder = _folder(url)
    if found := _keys(folder):
        return found[0]
    key = secrets.token_hex(16)
    _publish(folder, key)
    return next(iter(_keys(folder)), key)


def copy_digest_keys(source: str, target: str, *, is_own: bool) -> None:
    """Add the keys of one store to those of another; new digests are still made with the other's own key.

    Args:
        source: URL of the store whose keys are copied.
        target: URL of the other store.
        is_own: whether a target without a key takes the source's as its own; else it makes one first.

    Raises:
        StoreError: a store cannot be read, or the target cannot be written.
    """
    keys = digest_keys(source)
    if not keys:
        return
    known = digest_keys(target) if is_own else (made_digest_key(target), *digest_keys(target))
    missing = [key for key in keys if key not in known]
    for key in missing[: max(_MOST_KEYS - len({*known}), 0)]:
        _publish(_folder(target), key)


def _publish(folder: Backend, key: str) -> None:
    now = datetime.now(UTC)
    data = json.dumps({"schema": _SCHEMA, "key": key}).encode() + b"\n"
    folder.publish(f"{now:%Y-%m-%d}", f"{now:%Y%m%dT%H%M%S.%fZ}-{secrets.token_hex(8)}.json", data)


def _keys(folder: Backend) -> tuple[str, ...]:
    contents = (content for _, content in folder.read(folder.list_objects().places()))
    keys = (_key(content) for content in contents if not isinstance(content, Exception))
    return tuple(dict.fromkeys(filter(None, keys)))[:_MOST_KEYS]


def _key(content: bytes) -> str:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return ""
    key = found.get("key") if isinstance(found, dict) else None
    return key if isinstance(key, str) and _KEY.fullmatch(key) else ""


def _folder(url: str) -> Backend:
    return TrialStore(f"{url.rstrip('/')}/{_FOLDER}").folder

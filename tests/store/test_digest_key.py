"""Keys of the digests in a store."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from torchx_cubicml.store.digest_key import digest_keys, made_digest_key

if TYPE_CHECKING:
    from pathlib import Path


def test_a_store_has_one_key_from_its_first_writer_on(tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    assert digest_keys(url) == ()
    key = made_digest_key(url)
    assert len(key) == 32
    assert made_digest_key(url) == key
    assert digest_keys(url) == (key,)


def test_stores_that_were_copied_into_one_keep_their_keys(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    keys = [made_digest_key(str(store)) for store in (one, two)]
    shutil.copytree(two, one, dirs_exist_ok=True)
    assert sorted(digest_keys(str(one))) == sorted(keys)
    assert made_digest_key(str(one)) == digest_keys(str(one))[0]


def test_damaged_keys_are_none(tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    key = made_digest_key(url)
    place = next((tmp_path / "store").rglob("digest-key/**/*.json"))
    for number, text in enumerate(("{", "[1]", '{"key": "short"}', '{"key": 1}', '{"key": "' + key + '"}')):
        place.with_name(f"0{number}-{place.name}").write_text(text)
    assert digest_keys(url) == (key,)

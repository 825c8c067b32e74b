from __future__ import annotations

import json
from typing import TYPE_CHECKING

from torchx_cubicml.launch.command_texts import command_texts
from torchx_cubicml.records.event import digests_of

if TYPE_CHECKING:
    from pathlib import Path


def texts_of_files(folder: Path, contents: list[str]) -> dict[str, str]:
    arguments = []
    for index, content in enumerate(contents):
        (folder / f"{index}.json").write_text(content)
        arguments += [f"--file{index}", f"{index}.json"]
    return command_texts(None, arguments, environment={}, folder=str(folder))


def test_keys_of_a_file_are_texts_of_their_own(tmp_path: Path) -> None:
    content = json.dumps({"model": {"depth": 2, "name": "x"}, "api_key": "hunter2"})
    assert texts_of_files(tmp_path, [content]) == {"--file0:model.depth": "2", "--file0:model.name": '"x"'}


def test_a_file_with_a_very_long_key_counts_as_a_whole(tmp_path: Path) -> None:
    content = json.dumps({"k" * 70_000: 1, "depth": 2})
    assert texts_of_files(tmp_path, [content]) == {"--file0:*": content}


def test_many_large_files_fit_a_record(tmp_path: Path) -> None:
    content = json.dumps({f"width{index}": index for index in range(256)})
    texts = texts_of_files(tmp_path, [content] * 17)
    assert texts["--file0:width255"] == "255"
    assert texts["--file16:*"] == content
    assert len(digests_of(dict.fromkeys(texts, "01234567"))) < 17 * 256

"""Fenced blocks of the pages, and the rules that a comment before a block states of its test.

A block of commands, of TOML or of Python is executed as it stands. A comment changes that, with rules between
semicolons::

    <!-- test: dry run; 2x8 -> 1x1 -->

========================  ==================================================================================
``dry run``               ``torchx run`` prints the job and submits nothing: it needs a cluster or GPUs
``A -> B``                B, which may be nothing, stands for A in the test
``exit N``                the exit status of the last command
``in NAME``               with the programs of the environment ``.venv-NAME``, where it is there
``file NAME``             written as this file, not executed; TOML is also read as a space file
``fragment``              TOML: the block is a part of a space file
``printed``               text: each line is in what the block before has printed; numbers may differ
``skip: REASON``          not tested; ``test_documented_blocks.py`` counts the reasons
========================  ==================================================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts)])
EXECUTED = ("bash", "python", "toml")
WRITTEN = ("ini", "json", "yaml")
SHOWN = ("mermaid", "text")
FENCE = re.compile(
    r"(?:^ *<!-- (?P<kind>test|output): (?P<rules>(?:(?!-->).)*?) -->\n)?"
    r"^(?P<indent> *)```(?P<language>\S*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
KNOWN = re.compile(r"dry run|fragment|printed|(exit|in|file|skip:) \S.*")
SWAP = re.compile(r"(?P<old>\S.*?) -> ?(?P<new>.*)")


def spaced(words: str) -> re.Pattern[str]:
    """Return the pattern of words between which a block may have any space, and ends of lines."""
    return re.compile(r"[\s\\]+".join(map(re.escape, words.split())))


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: Path
    line: int  # of its fence, from 1
    language: str
    text: str
    rules: tuple[str, ...]
    output_of: str = ""  # the command of `make readme` that wrote it

    @property
    def place(self) -> str:
        """Page and line."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_command(self) -> bool:
        """Whether something is executed."""
        return self.language in ("bash", "python") and not self.skipped and not self.argument("file")

    @property
    def skipped(self) -> str:
        """The reason why the block is not tested."""
        return self.argument("skip:")

    def argument(self, name: str) -> str:
        """Return what follows the name of a rule, or nothing where the block has no such rule."""
        found = [rule.removeprefix(name).strip() for rule in self.rules if rule.startswith(f"{name} ")]
        return found[0] if found else ""

    @property
    def tested(self) -> str:
        """The text as it is tested: with what stands for parts of it."""
        text = self.text
        for rule in self.rules:
            if swap := SWAP.fullmatch(rule):
                text = spaced(swap["old"]).sub(lambda _, new=swap["new"]: new, text)
        if "dry run" in self.rules:
            text = re.sub(r"\btorchx run\b", 'torchx run --dryrun --workspace ""', text)
        return text

    def faults(self) -> list[str]:
        """Return what is wrong with the block and its rules."""
        found = []
        if self.language not in (*EXECUTED, *WRITTEN, *SHOWN):
            found.append(f"language {self.language or 'missing'}: choose from {EXECUTED + WRITTEN + SHOWN}")
        has_rule = bool(self.argument("file") or self.skipped)
        if self.language in WRITTEN and not has_rule:
            found.append("give it the rule `file NAME`, or `skip: REASON`")
        if self.language == "text" and not (has_rule or "printed" in self.rules or self.output_of):
            found.append("give it the rule `printed`, `file NAME`, or `skip: REASON`")
        found += [
            f"unknown rule {rule!r}" for rule in self.rules if not (KNOWN.fullmatch(rule) or SWAP.fullmatch(rule))
        ]
        for rule in self.rules:
            if (swap := SWAP.fullmatch(rule)) and not spaced(swap["old"]).search(self.text):
                found.append(f"{swap['old']!r} is not in the block")
        return [f"{self.place}: {fault}" for fault in found]


def blocks_of(page: Path) -> list[Block]:
    """Return the fenced blocks of a page in their order."""
    text = page.read_text()
    return [
        Block(
            page=page,
            line=text.count("\n", 0, found.start("indent")) + 1,
            language=found["language"],
            text=re.sub(rf"^{found['indent']}", "", found["text"], flags=re.MULTILINE),
            rules=rules_in(found["rules"] or "") if found["kind"] == "test" else (),
            output_of=found["rules"] if found["kind"] == "output" else "",
        )
        for found in FENCE.finditer(text)
    ]


def rules_in(text: str) -> tuple[str, ...]:
    """Return the rules of a comment; the reason of a skipped block may hold semicolons."""
    text = " ".join(text.split())
    if text.startswith("skip:"):
        return (text,)
    return tuple(rule.strip() for rule in text.split(";"))


def indented_code(page: Path) -> list[str]:
    """Return the lines by which code without a fence begins, which no test would see."""
    text = FENCE.sub(lambda found: "\n" * found[0].count("\n"), page.read_text())
    found, in_list, before = [], False, ""
    for number, line in enumerate(text.splitlines(), start=1):
        if line and not line.startswith(" "):
            in_list = bool(re.match(r"[-*]|\d+\.", line))
        if line.startswith("    ") and not before and not in_list:
            found.append(f"{page.relative_to(ROOT)}:{number}: fence this code: {line.strip()}")
        before = line
    return found

"""The share of random small faults that each package's own tests find: `make test-mutants`."""

from __future__ import annotations

import argparse
import random
import re
import signal
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from mutations import mutants
from trials import PACKAGE, Copy

if TYPE_CHECKING:
    from mutations import Mutant

ROOT = Path(__file__).resolve().parents[2]
EQUAL = Path(__file__).with_name("equal.toml")
DECIDING = (
    "facts",
    "records",
    "space",
    "store",
    "launch",
    "predictors",
    "searchers",
    "advisor",
    "recorder",
    "rewrite",
    "tuner",
)
LEAST_SHARE = 0.9


def main() -> int:
    """Draw faults in each package, run its tests with each, and print those that no test finds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", nargs="*", default=DECIDING, help=f"packages (default: {' '.join(DECIDING)})")
    parser.add_argument("--count", type=int, default=40, help="faults for each package (default: 40)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    parser.add_argument(
        "--only",
        nargs="+",
        default=(),
        metavar="NAME",
        help="faults, by the names in brackets that an earlier run printed",
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # the copy is removed, and the fork ended
    shares = {}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Copy(ROOT, Path(folder))
        for package in options.packages:
            every = mutants_of(package, root=copy.root)
            named = {name.partition(":")[0] for name in options.only}
            drawn = [each for each in every if each.path.partition("/")[2] in named and each.identity in options.only]
            if not options.only:
                drawn = draw(every, count=options.count, seed=f"{options.seed} {package}")
            if drawn:
                shares[package] = (found_of(drawn, package, copy), len(drawn))
    print(f"\n{'package':12}found")
    for package, (found, count) in shares.items():
        print(f"{package:12}{found} of {count} ({found / count:.0%})")
    return int(any(found < LEAST_SHARE * count for found, count in shares.values()))


def mutants_of(package: str, *, root: Path) -> list[Mutant]:
    """Return every mutant of a package."""
    files = sorted((root / PACKAGE / package).rglob("*.py"))
    if not files:
        sys.exit(f"no package {PACKAGE}/{package}")
    return [mutant for file in files for mutant in mutants(file, root=root)]


def draw(every: list[Mutant], *, count: int, seed: str) -> list[Mutant]:
    """Return so many of them at random, in the order of files and lines, without the equal programs."""
    equal = equal_programs()
    drawn: list[Mutant] = []
    for mutant in random.Random(seed).sample(every, len(every)):
        if len(drawn) < count and mutant.name not in equal:
            drawn.append(mutant)
    return sorted(drawn, key=lambda mutant: (mutant.path, mutant.line))


def equal_programs() -> dict[str, str]:
    """Return the reasons why some mutants do what the program does, by their names."""
    listed = tomllib.loads(EQUAL.read_text())["equal"]
    return {
        "\n".join((f"{each['file']} {each['function']}".strip(), *each["change"])): each["reason"] for each in listed
    }


def found_of(drawn: list[Mutant], package: str, copy: Copy) -> int:
    """Return how many mutants the tests of their modules find."""
    begin = time.monotonic()
    files = {mutant.path: files_testing(mutant.path, root=copy.root) for mutant in drawn}
    every = {str(file.relative_to(copy.root)) for file in (copy.root / "tests" / package).rglob("test_*.py")}
    baseline = copy.baseline(sorted(every.union(*files.values())), modules=files)
    print(
        f"== {package}: {len(baseline.seconds)} tests in {time.monotonic() - begin:.0f} s without a fault", flush=True
    )
    begin = time.monotonic()
    found = 0
    for mutant in drawn:
        if copy.finds(mutant, baseline.of(mutant, files[mutant.path]), baseline):
            found += 1
        else:
            print(f"{mutant.path}:{mutant.line} {mutant.function} [{mutant.identity}]", flush=True)
            print(*(f"    {line}" for line in mutant.changed_lines), sep="\n", flush=True)
    print(f"{found} of {len(drawn)} found, {(time.monotonic() - begin) / len(drawn):.1f} s each", flush=True)
    return found


def files_testing(path: str, *, root: Path) -> list[str]:
    """Return the test files of a module: those of its name and those of its package that import it, else all of it.

    Those of the contracts, and examples in the module's own docstrings, come with each.
    """
    module = Path(path)
    package = Path(*module.parts[1:2])
    every = sorted((root / "tests" / package).rglob("test_*.py"))
    folder = root / "tests" / Path(*module.parts[1:-1])
    stem = module.parent.name if module.stem == "__init__" else module.stem
    named = [*folder.glob(f"test_{stem}.py"), *folder.glob(f"test_{stem}_*.py")]
    parts = module.parent.parts if module.stem == "__init__" else module.with_suffix("").parts
    importing = re.compile(rf"from {'.'.join(parts)} import|from {'.'.join(parts[:-1])} import .*\b{stem}\b")
    files = [file for file in every if file in named or importing.search(file.read_text())] or every
    contracts = root / "tests" / "contracts" / f"test_{package}.py"
    if contracts.exists():
        files.append(contracts)
    examples = [path] if ">>> " in (root / path).read_text() else []
    return [*(str(file.relative_to(root)) for file in files), *examples]


if __name__ == "__main__":
    sys.exit(main())

"""Texts of a command beside its arguments: the program's file, environment variables, and keys of config files.

The launcher and the job read the same texts. A record holds their digests only (``records/arguments``).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.history.present_command import PROGRAM
from torchx_cubicml.history.program_parts import program_parts
from torchx_cubicml.launch.checkout import commit_of
from torchx_cubicml.launch.config_text import flat_keys, is_document, parse_document
from torchx_cubicml.records.argument_words import argument_words
from torchx_cubicml.records.provenance import COMMIT, SPACE
from torchx_cubicml.records.redaction import names_secret
from torchx_cubicml.user_files import MAX_BYTES, read_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torchx_cubicml.records.values import Value

_MOST_KEYS = 256  # of one file; the text of a larger file counts as a whole
_LONGEST_KEY = 256  # characters; the text of a file with a longer one counts as a whole
_MOST_TEXTS = 2048  # of one command; after that, the text of each further file counts as a whole
_WHOLE = "*"
_MOST_OF_CONSOLE_SCRIPT = 1500  # bytes
_RUNS_ENTRY_POINT = re.compile(r"sys\.exit\(\w+\(")
_MENTIONED = re.compile(r"environ(?:\.get\(|\.setdefault\(|\[)\s*['\"](\w+)['\"]|getenv\(\s*['\"](\w+)['\"]")
# A folder changes no work.
_TUNES_SPEED = re.compile(
    r"(?:CUDA|CUDNN|CUBLAS|NCCL|GLOO|OMP|KMP|GOMP|MKL|OPENBLAS|PYTORCH|TORCH|TORCHINDUCTOR|TRITON|NVTE"
    r"|XLA|HSA|HIP|HIPBLASLT|ROCBLAS|MIOPEN|RCCL|UCX|FI|NEURON)_(?!(?:\w+_)?(?:HOME|PATH|DIR|DIRECTORY)$)\w+"
)
_OF_THE_LAUNCHER = re.compile(
    r"(?:LOCAL_|GROUP_|ROLE_)?(?:RANK|WORLD_SIZE|NAME)|MASTER_(?:ADDR|PORT)|TORCHELASTIC_\w+|TORCHX_\w+|SLURM_\w+"
    r"|(?:CUDA|HIP)_VISIBLE_DEVICES|NEURON_RT_VISIBLE_CORES|TORCH_NCCL_ASYNC_ERROR_HANDLING"
)


def program_path(name: str, *, is_module: bool, folder: str = "") -> Path | None:
    """Return the path of the file of a script or module; ``None`` where it is not found.

    Args:
        name: path of the script, or dotted name of the module.
        is_module: whether the program is started with ``-m``.
        folder: working folder of the launch; empty for that of this process.
    """
    start = Path(folder or Path.cwd())
    if not is_module:
        return start / name if (start / name).is_file() else None
    inner = name.replace(".", "/")
    candidates = (start / f"{inner}.py", start / inner / "__main__.py")
    return next((path for path in candidates if path.is_file()), None)


def user_program(name: str, arguments: Sequence[str]) -> str:
    """Return the program of the user: a script itself, or what a console script such as ``fabric`` is told to run.

    A console script is the few lines that an installer writes for an entry point. Without a Python file among its
    arguments, its name and its first words that are no options stand for the program: ``litgpt pretrain``. A word
    right behind an option is the option's value.

    Args:
        name: path of the script that Python runs.
        arguments: of the script.
    """
    path = None if name.endswith(".py") else program_path(name, is_module=False)
    text = _text_of(path, most=_MOST_OF_CONSOLE_SCRIPT)
    if path is None or text is None or not _RUNS_ENTRY_POINT.search(text):
        return name
    ran = next((word for word in arguments if word.endswith(".py") and program_path(word, is_module=False)), "")
    pairs = zip(["", *arguments], arguments, strict=False)
    words = [word for before, word in pairs if not word.startswith("-") and not re.match(r"-[^=]*$", before)]
    return ran or " ".join([path.name, *words][:3])


def recorded_variables(program: Path | None, environment: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the environment variables of a command whose values are recorded as digests.

    They are those that the program's file reads, and those that are known to change the speed of torch. Variables that
    a launcher sets for each process, and those whose name tells of a secret, are left out.

    Args:
        program: file of the program; ``None`` where unknown.
        environment: names of the variables that the command sets.
    """
    text = _text_of(program)
    mentioned = {first or second for first, second in _MENTIONED.findall(text or "")}
    wanted = (name for name in environment if name in mentioned or _TUNES_SPEED.fullmatch(name))
    return tuple(sorted(name for name in wanted if not (_OF_THE_LAUNCHER.fullmatch(name) or names_secret(name))))


def command_texts(
    program: Path | None,
    arguments: Sequence[str],
    *,
    variables: Iterable[str] = (),
    environment: Mapping[str, str],
    folder: str = "",
) -> dict[str, str]:
    """Return the texts of a command beside its arguments by name; a file that cannot be read is left out.

    Args:
        program: file of the program; ``None`` where unknown.
        arguments: of the program.
        variables: names of variables, as ``recorded_variables`` gives them.
        environment: their values.
        folder: working folder of the launch; empty for that of this process.

    Returns:
        ``program``: code of the program's file. ``program:NAME``: a constant in it, or the default of a flag.
        ``$NAME``: value of a variable. ``--flag:key``: value of a key in a config file that a flag names, as JSON.
        ``--flag:*``: content of a file with too many or too long keys, or of no format.
    """
    texts = program_texts(program)
    texts |= {f"${name}": environment[name] for name in variables if name in environment}
    for name, value in argument_words(arguments).items():
        path = Path(folder or Path.cwd()) / value if value else None
        if path is None or names_secret(name) or not (is_document(value) or path.suffix == ".py"):
            continue
        content = _text_of(path)
        if content is not None:
            texts |= {f"{name}:{key}": text for key, text in _file_texts(content, value, room=_MOST_TEXTS - len(texts))}
    return texts


def launcher_provenance(program: Path | None, space: str = "") -> dict[str, Value]:
    """Return the source of a launch, as far as its launcher knows: the commit of the program, and its space file.

    Args:
        program: path of the program's file; ``None`` where unknown.
        space: digest of the space file; empty without one.
    """
    found = {COMMIT: commit_of(program), SPACE: space}
    return {name: text for name, text in found.items() if text}


def program_texts(program: Path | None) -> dict[str, str]:
    """Return the texts of a program's file as ``command_texts`` does; none if it is unknown or cannot be read."""
    content = _text_of(program)
    parts = program_parts(content) if content is not None else {}
    return {f"{PROGRAM}:{name}" if name else PROGRAM: text for name, text in parts.items() if not names_secret(name)}


def _file_texts(content: str, path: str, *, room: int) -> list[tuple[str, str]]:
    most = min(_MOST_KEYS, room)
    try:
        if path.endswith(".py"):
            texts = [(name or _WHOLE, text) for name, text in program_parts(content).items()]
        else:
            keys = flat_keys(parse_document(content, path=path))
            texts = [(name, json.dumps(value, default=str, sort_keys=True)) for name, value in keys]
    except (LaunchError, RecursionError):
        return [(_WHOLE, content)]
    found = [(name, text) for name, text in texts if not names_secret(name)]
    is_bounded = 0 < len(found) <= most and all(len(name) <= _LONGEST_KEY for name, _ in found)
    return found if is_bounded else [(_WHOLE, content)]


def _text_of(path: Path | None, *, most: int = MAX_BYTES) -> str | None:
    """Return the text of a file; ``None`` where it is unknown, cannot be read, or has more than ``most`` bytes."""
    try:
        return None if path is None else read_text(path, most=most, errors="surrogateescape")
    except LaunchError:
        return None

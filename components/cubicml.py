"""The TorchX component ``cubicml``: one word in front of the component that you run."""

# TorchX 0.7 evaluates annotations and knows no newer forms: no `from __future__ import annotations`, no `X | None`.
# Every function in this module counts as a component, imported ones too.
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Optional

from torchx.specs import AppDef

if find_spec("torchx_cubicml") is None:
    # `torchx run CHECKOUT/components/cubicml.py:cubicml` without an installation. TorchX 0.7 runs the text of this file
    # inside a module of its own, where __file__ is not ours; then the command line says where we are.
    for name in (__file__, *(word[: -len(":cubicml")] for word in sys.argv if word.endswith("cubicml.py:cubicml"))):
        checkout = Path(name).resolve().parent.parent
        if (checkout / "torchx_cubicml" / "cubicrun.py").is_file():
            sys.path.append(str(checkout))


def cubicml(
    *args: str,
    space: Optional[str] = None,
    store: Optional[str] = None,
    mode: Optional[str] = None,
    keep_command: Optional[str] = None,
) -> AppDef:
    """Records the throughput of a training launch, and starts the next one with a better config.

    Put this one word in front of the component that you run:

        torchx run cubicml --space gpt.toml dist.ddp -j 1x2 --script train.py -- --batch_size 4

    The component and the script stay as they are. If the component has an option of the same name as one below, put
    `--` between: `cubicml --space gpt.toml -- dist.ddp ...`. Each option can also be set under [component:cubicml] in
    .torchxconfig, or as TORCHX_CUBICML_SPACE, TORCHX_CUBICML_STORE, TORCHX_CUBICML_MODE and
    TORCHX_CUBICML_KEEP_COMMAND.

    Args:
        args: component to run and its arguments, as after `torchx run`
        space: search space file (TOML): what may change, and where it is in the command
        store: fsspec URL of the trial store (default: ~/.torchx-cubicml)
        mode: rewrite, record (change nothing) or off (default: rewrite with a space, else record)
        keep_command: yes to keep the command in the record, with secrets masked (default: no)
    """
    from torchx.specs.finder import ComponentValidationException

    from torchx_cubicml import errors
    from torchx_cubicml.rewrite import rewriter

    options = rewriter.Options.resolved(
        space=space or "", store=store or "", mode=mode or "", keep_command=keep_command or ""
    )
    try:
        return rewriter.rewrite_component(args, options)
    except errors.LaunchError as error:
        raise ComponentValidationException(str(error)) from None  # TorchX prints it without a traceback

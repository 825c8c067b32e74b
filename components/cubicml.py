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
    # as a part of its own module, so __file__ is not ours; the command line names it.
    sys.path += [
        str(folder)
        for folder in (Path(word.partition(".py:")[0]).resolve().parent.parent for word in (*sys.argv, __file__))
        if (folder / "torchx_cubicml" / "__init__.py").is_file()
    ]


def cubicml(*args: str, space: Optional[str] = None, store: Optional[str] = None, mode: Optional[str] = None) -> AppDef:
    """
    Records how fast a training launch ran, and starts the next one with a better config.

    Put this one word in front of the component that you run:

        torchx run cubicml --space gpt.toml dist.ddp -j 1x2 --script train.py -- --batch_size 4

    The component and the script stay as they are. Where an option of the component has the name of one below, put
    `--` between: `cubicml --space gpt.toml -- dist.ddp ...`. Every option can be set once, under [component:cubicml]
    in .torchxconfig, or as TORCHX_CUBICML_SPACE, TORCHX_CUBICML_STORE and TORCHX_CUBICML_MODE.

    Args:
        args: the component to run and its arguments, as they follow `torchx run`
        space: search space file (TOML) that says what may be changed, and where it stands in the command
        store: fsspec URL of the store of trials; ~/.torchx-cubicml where none is given
        mode: rewrite (record, and change arguments after what was learnt), record (change nothing) or off; rewrite where there is a space, else record
    """
    from torchx_cubicml import rewriter

    return rewriter.rewrite_component(
        list(args), rewriter.Options(space=space or "", store=store or "", mode=mode or "")
    )

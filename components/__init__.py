"""TorchX components."""

from importlib.util import find_spec

if find_spec("torchx") is None:
    raise ModuleNotFoundError(
        "the components need TorchX, which is absent: pip install 'torchx-cubicml[torchx]', or launch by cubicrun",
        name="torchx",
    )

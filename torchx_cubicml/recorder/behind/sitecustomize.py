"""Module that each Python of the command loads at its start, whatever its version: it looks for the launch's words."""

import json
import os
import sys

_VARIABLE = "TORCHX_CUBICML_BEHIND"
_FOLDER = os.path.dirname(__file__)
_WORDS = getattr(sys, "orig_argv", [])


def _start(plan):
    """Replace this process with the recorded command if it is the launch; else return."""
    typed = plan["typed"]
    at = len(_WORDS) - len(typed)
    head = _WORDS[: at - 1] if plan["script"] else _WORDS[:at]
    if not head or _WORDS[at:] != typed or not all(word.startswith("-") for word in head[1:]):
        return
    script = _WORDS[len(head) : at]
    if script and os.path.basename(script[0]) != plan["script"]:
        return
    _forget()
    environment = dict(os.environ, **plan["variables"])
    recorded = [script[0] if word is None else word for word in plan["recorded"]]
    from torchx_cubicml.recorder.behind import become

    become(head + recorded, environment, version=plan["version"])


def _forget():
    """Remove our variables from the environment."""
    del os.environ[_VARIABLE]
    places = os.environ.pop("PYTHONPATH").split(os.pathsep)
    places.remove(_FOLDER)
    if places:
        os.environ["PYTHONPATH"] = os.pathsep.join(places)


def _load_next():
    """Load the module of this name that Python would have found without us."""
    own = sys.modules.pop(__name__, None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if getattr(error, "name", __name__) != __name__:
            raise
    finally:
        sys.modules.setdefault(__name__, own)


if __name__ == "sitecustomize":
    sys.path[:] = [place for place in sys.path if place != _FOLDER]
    try:
        if _VARIABLE in os.environ and "cubicrun" in map(os.path.basename, _WORDS[1:2]):
            _forget()  # it records the launch itself
        elif _VARIABLE in os.environ:
            _start(json.loads(os.environ[_VARIABLE]))
    except Exception as error:
        sys.stderr.write(
            "torchx-cubicml: running your command as typed, without recording it: "
            "its Python cannot load the recorder: %s\n" % error
        )
    _load_next()

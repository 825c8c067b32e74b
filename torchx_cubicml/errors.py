"""Error types that this package raises for a caller to handle.

::

    CubicMLError
    ├── SpaceError (ValueError)     a space file, a search space or an expression breaks a rule
    ├── RecordError (ValueError)    a trial, a measurement or an event breaks a rule
    ├── StoreError (OSError)        a store cannot be reached, read or written
    ├── LaunchError (ValueError)    a command cannot be read, or a value cannot be written into it
    └── ContractError (ValueError)  a launch contract is unreadable, too large or of another version
"""

from __future__ import annotations


class CubicMLError(Exception):
    """Root of all deliberate errors; the message is one sentence: the problem, its place and the legal values."""


class SpaceError(CubicMLError, ValueError):
    """A space file, a search space or an expression breaks a rule."""


class RecordError(CubicMLError, ValueError):
    """A trial, a measurement or an event breaks a rule."""


class StoreError(CubicMLError, OSError):
    """A store cannot be reached, read or written."""


class LaunchError(CubicMLError, ValueError):
    """A command cannot be read, or a value cannot be written into it."""


class ContractError(CubicMLError, ValueError):
    """A launch contract is unreadable, too large or of another version."""

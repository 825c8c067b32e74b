"""Records: what is stored of a launch, and the standard names in which it is said."""

from __future__ import annotations

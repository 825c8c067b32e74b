"""Config values applied inside the job: copies of config files, and hooks for values that no flag sets."""

from __future__ import annotations

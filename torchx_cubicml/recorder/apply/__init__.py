"""What is applied in the job: config files and hooks."""

from __future__ import annotations

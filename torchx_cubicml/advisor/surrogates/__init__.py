"""Surrogates: models of the throughput of one workload's configs, each fitted to a different set of trials."""

from __future__ import annotations

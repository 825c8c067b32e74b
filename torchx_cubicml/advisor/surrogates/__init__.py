"""Surrogates: models of the throughput of one workload's configs, each from other trials."""

from __future__ import annotations

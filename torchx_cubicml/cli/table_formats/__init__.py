"""Readers of foreign formats: each turns a file or a folder of past jobs into one table of texts."""

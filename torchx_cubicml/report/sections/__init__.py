"""Sections of the report, one module each: a function from plain rows or texts to HTML."""

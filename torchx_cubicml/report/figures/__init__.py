"""Figures, one module each: a function from plain rows to a Vega-Lite specification with the data in it.

Colours, fonts and sizes are those of ``report/style.py``, so that one specification serves light and dark pages.
"""

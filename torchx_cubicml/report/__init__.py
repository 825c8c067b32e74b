"""Report of a store as one HTML page, and figures as Vega-Lite specifications, rendered as HTML, SVG or PNG.

A figure holds its data; nothing is fetched. Texts of a store are values of the data or titles of a whole figure, never
expressions or markup. Titles of axes and legends are this package's own words: Vega-Lite puts them into expressions.
"""

"""What a report draws, for a page, a notebook and a paper.

Start with `chart`: a chart as data. `matplotlib_renderer` and `bokeh_renderer` draw it.
"""

"""What a report draws, for a page, a notebook and a paper.

Start with `drawing`.
"""

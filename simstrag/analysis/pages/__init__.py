"""HTML pages, their templates, and files for other viewers.

Start with `report`.
"""

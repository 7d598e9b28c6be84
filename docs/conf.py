"""The documentation site: `sphinx-build -W docs build/site`, offline in and offline out."""

import sys
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

project = "simstrag"
version = release = installed("simstrag")
project_copyright = "the simstrag authors, Apache-2.0"
html_title = f"simstrag {release}"

extensions = ["myst_parser"]
myst_heading_anchors = 3
html_theme = "furo"
html_show_copyright = False
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]


def setup(app: Any) -> None:
    """Write the pages of the policies before any is read."""
    from reference import name_folders, write_pages

    app.connect("builder-inited", lambda app: write_pages(HERE / "policy"))
    app.connect("doctree-read", name_folders)

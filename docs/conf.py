project = "ergo_py"
author = "ergo_py contributors"
copyright = "2026, ergo_py contributors"

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
# What is included in performance.md is no page of its own.
exclude_patterns = ["_build", "performance"]

# Nothing is fetched while building, and a reference that leads nowhere fails the build.
nitpicky = True

myst_heading_anchors = 3

html_theme = "furo"
html_title = "ergo_py"
html_theme_options = {"top_of_page_buttons": []}
html_copy_source = False
html_show_sphinx = False

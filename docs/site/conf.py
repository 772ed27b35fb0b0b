"""How `make docs` builds the documents and the API reference as pages: Sphinx's settings.

The sources are the Markdown files as they stand in the repository, so their links work in both places. The list of pages comes from the tables of
docs/index.md. Pages load nothing from elsewhere: the theme's fonts are the system's, and diagrams are drawn when the pages are built.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pygments.lexers.sql import SqlLexer

from penstock.version import __version__

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]

project = "penstock"
version = release = __version__
copyright = "the penstock authors"  # noqa: A001  Sphinx's name
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinxcontrib.mermaid",
]
root_doc = "docs/index"
include_patterns = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**.md", "docs/**.rst"]
exclude_patterns = [".*", "build", "src", "tests", "benchmarks", "examples"]

# Markdown as in the repository
myst_heading_anchors = 5
myst_fence_as_directive = ["mermaid"]

suppress_warnings = ["misc.highlighting_failure"]  # colours only: queries shown as SQL, Java with parts left out

# API
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
add_module_names = False
python_use_unqualified_type_names = True
maximum_signature_line_length = 90
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

# Diagrams, drawn by Mermaid without a browser
mermaid_output_format = "svg"
mermaid_cmd = shlex.quote(str(Path(sys.executable).parent / "mermaidx"))
mermaid_params = ["--quiet", "--background", "white"]

default_role = "py:obj"  # `names` in docstrings are links where there is something to link to

html_theme = "furo"
html_title = f"penstock {__version__}"
html_static_path = ["static"]
html_css_files = ["pages.css"]
html_extra_path = ["pages"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}


def _contents(_app: Sphinx, page: str, source: list[str]) -> None:
    """Give the root page and the list of decisions their tables of contents, from the links that they already have."""
    if page == root_doc:
        parts = re.split(r"^## (.+)$", source[0], flags=re.MULTILINE)
        for caption, text in zip(parts[1::2], parts[2::2], strict=True):
            source[0] += _toctree(caption, re.findall(r"^\| \[[^]]+\]\(([^)]+)\)", text, re.MULTILINE))
    elif page == "docs/decisions/README":
        source[0] += _toctree("", re.findall(r"^\| \[\d+\]\(([^)]+)\)", source[0], re.MULTILINE))


def _toctree(caption: str, pages: list[str]) -> str:
    first = ["../README.md"] if caption == "Use it" else []
    last = ["site/api.rst"] if caption == "Use it" else []
    head = "\n\n```{toctree}\n:hidden:\n" + (f":caption: {caption}\n" if caption else "")
    return head + "\n" + "\n".join(first + pages + last) + "\n```\n"


def setup(app: Sphinx) -> dict[str, Any]:
    """Sphinx calls this."""
    app.add_lexer("ceql", SqlLexer)  # near enough: its keywords are SQL's
    app.connect("source-read", _contents)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

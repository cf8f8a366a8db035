"""Sphinx: Markdown pages, and an API reference from the docstrings."""

from importlib.util import find_spec

from matrix_adagrad import __version__

project = "matrix-adagrad"
author = "the matrix-adagrad authors"
release = version = __version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx-mathjax-offline",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
html_theme = "furo"
html_title = f"matrix-adagrad {version}"
html_show_copyright = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["versions.js"]
exclude_patterns = ["_build"]
default_role = "py:obj"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
# Modules that need other packages are documented without them.
others = ["fbgemm_gpu", "lightning", "pytorch_lightning", "torchrec", "transformers"]
autodoc_mock_imports = [*others, *(name for name in ("jax", "optax") if find_spec(name) is None)]
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

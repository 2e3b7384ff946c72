"""How Sphinx builds the site: `make docs`, from the root of the repository, without the network.

The sources are the Markdown files and notebooks where they lie, so that the links between them
work on a code host as well; notebooks are shown with the outputs they hold, none is run.
"""

import importlib.metadata
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE / "_extensions"), str(ROOT)]

project = "jaxsmi"
author = "The jaxsmi developers"
copyright = author
release = version = importlib.metadata.version("jaxsmi")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.linkcode",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "sphinxcontrib.bibtex",
    "articles",
    "citations",
    "docstrings",
    "formulas",
    "names",
    "sources",
]
root_doc = "docs/index"
include_patterns = ["docs/**", "notebooks/*.ipynb", "CHANGELOG.md", "CONTRIBUTING.md"]
exclude_patterns = [".*", "**/.*", "out", "build", "dist", "jaxsmi", "tests", "docs/_*"]
exclude_patterns += ["docs/gallery/*.ipynb", "notebooks/figures"]

# The figure scripts are shown with the pictures in assets/figures: running them takes half an hour
sphinx_gallery_conf = {
    "examples_dirs": "notebooks/figures",
    "gallery_dirs": "docs/gallery",
    "plot_gallery": False,
    "ignore_pattern": r"_common\.py",
    "thumbnail_size": (480, 220),  # most figures have two panels
    "within_subsection_order": "families.FamilyOrder",
    "download_all_examples": False,
    "show_signature": False,
    "remove_config_comments": True,
    "write_computation_times": False,
}
# a new script has no picture until one is stored
suppress_warnings = ["config.cache", "sphinx_gallery.thumbnail"]

# Markdown and notebooks
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
myst_dmath_double_inline = True
nb_execution_mode = "off"
nb_merge_streams = True

# Articles: their keys are those that pages and docstrings cite
bibtex_bibfiles = ["../references.bib"]
bibtex_default_style = "keys"
bibtex_cite_id = "{key}"

# Docstrings
autodoc_default_options = {"show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True
autodoc_type_aliases = {name: name for name in ("ArrayLike", "DTypeLike", "PRNGKeyArray", "PyTree")}
maximum_signature_line_length = 80
add_module_names = False
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

# Other libraries: a few names of each are kept here, for a build that fetches nothing
intersphinx_mapping = {
    name: (address, str(HERE / "_inventories" / f"{name}.txt"))
    for name, address in {
        "equinox": "https://docs.kidger.site/equinox/",
        "jax": "https://docs.jax.dev/en/latest/",
        "numpy": "https://numpy.org/doc/stable/",
        "optax": "https://optax.readthedocs.io/en/latest/",
        "python": "https://docs.python.org/3/",
        "xarray": "https://docs.xarray.dev/en/stable/",
    }.items()
}

# Pages
html_math_renderer = "formulas"
html_theme = "sphinx_book_theme"
html_title = "jaxsmi"
html_static_path = ["_static"]
html_css_files = ["katex/katex.min.css", "site.css"]
html_js_files = [("search.js", {"defer": "defer"})]
html_extra_path = ["_root"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "show_navbar_depth": 1,
    "show_toc_level": 2,
    "use_download_button": False,
    "use_fullscreen_button": False,
    "home_page_in_toc": True,
    "navbar_persistent": [],
    "footer_content_items": ["copyright"],
    "secondary_sidebar_items": {"**": ["page-toc"], "docs/equations": []},
}
html_context = {"default_mode": "auto"}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

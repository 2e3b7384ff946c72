"""The list of articles shows each under the key that pages and docstrings cite."""

from pybtex.plugin import register_plugin
from pybtex.style.formatting.unsrt import Style
from pybtex.style.labels import BaseLabelStyle


class Labels(BaseLabelStyle):
    """The key of references.bib."""

    def format_labels(self, sorted_entries):
        return (entry.key for entry in sorted_entries)


class Keys(Style):
    """Pybtex's plain style, each article under its key."""

    default_label_style = "keys"
    default_sorting_style = "author_year_title"


def setup(app):
    register_plugin("pybtex.style.labels", "keys", Labels)
    register_plugin("pybtex.style.formatting", "keys", Keys)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

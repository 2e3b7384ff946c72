"""Source files that pages link to become pages of the site, and [source] beside a documented
function leads to its line.
"""

import ast
import functools
import importlib
import inspect
from pathlib import Path

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer
from sphinx import addnodes

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "source"
FIGURES = "notebooks/figures/"


def wanted(app):
    """Paths of the files that pages link to; kept with what Sphinx keeps of pages it has read."""
    return app.env.__dict__.setdefault("linked_sources", set())


def page_of(path):
    return f"{FOLDER}/{path.removesuffix('.py')}"


@functools.cache
def lines(path):
    """Dotted name in a file: the line of its definition."""
    found = {}

    def walk(node, prefix):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                found[prefix + child.name] = child.lineno
                walk(child, prefix + child.name + ".")

    walk(ast.parse((ROOT / path).read_text(encoding="utf-8")), "")
    return found


def line_of(path, text):
    """The line of what a link's text names, or None: `a/b.py::test`, `jaxsmi.a.b.Class.method`."""
    text = text.strip("`").removesuffix(" †")
    if "::" in text:
        name = text.partition("::")[2]
    else:
        name = text.removeprefix(path.removesuffix(".py").replace("/", ".") + ".")
    return lines(path).get(name)


def replace(app, doctree):
    """Links to Python files lead to pages instead of downloads."""
    docname = app.env.docname
    for node in list(doctree.findall(addnodes.download_reference)):
        path = (Path(app.srcdir) / docname).parent.joinpath(node["reftarget"]).resolve()
        if path.suffix != ".py" or not path.is_file():
            continue
        path = path.relative_to(ROOT).as_posix()
        if path.startswith(FIGURES):  # the gallery shows it with its picture
            page, line = f"docs/gallery/{Path(path).stem}", None
        else:
            wanted(app).add(path)
            page, line = page_of(path), line_of(path, node.astext())
        uri = app.builder.get_relative_uri(docname, page) + (f"#L-{line}" if line else "")
        node.replace_self(nodes.reference("", "", *node.children, refuri=uri, internal=True))


def source_of(app, info):
    """The source of a documented name, from a page of docs/reference."""
    names = f"{info['module']}.{info['fullname']}".split(".")
    thing = functools.reduce(getattr, names[1:], importlib.import_module(names[0]))
    thing = getattr(thing, "fget", None) or inspect.unwrap(getattr(thing, "func", thing))
    try:
        path = Path(inspect.getsourcefile(thing)).resolve().relative_to(ROOT).as_posix()
        line = inspect.getsourcelines(thing)[1]
    except (TypeError, ValueError, OSError):
        return None
    wanted(app).add(path)
    return f"../../{page_of(path)}.html#L-{line}"


PAGE = """<!doctype html>
<html lang="en" data-theme="light">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{path}</title>
<link rel="icon" href="data:,">
<script>
  // as the rest of the site
  const dark = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const mode = localStorage.getItem("mode");
  document.documentElement.dataset.theme = mode === "dark" || mode === "light" ? mode : dark;
</script>
<link rel="stylesheet" href="{root}_static/pygments.css">
<link rel="stylesheet" href="{root}_static/source.css">
</head>
<body>
<h1><a href="{root}docs/index.html">jaxsmi</a> / {path}</h1>
{code}
</body>
</html>
"""


def write(app, error):
    """The pages, without the site's navigation: they are looked into, not read."""
    if error or app.builder.format != "html":
        return
    style = HtmlFormatter(linenos="inline", lineanchors="L", anchorlinenos=True, wrapcode=True)
    for path in sorted(wanted(app)):
        code = highlight((ROOT / path).read_text(encoding="utf-8"), PythonLexer(), style)
        target = Path(app.outdir) / f"{page_of(path)}.html"
        target.parent.mkdir(parents=True, exist_ok=True)
        root = "../" * len(target.relative_to(app.outdir).parent.parts)
        target.write_text(PAGE.format(path=path, root=root, code=code), encoding="utf-8")


def setup(app):
    app.config.linkcode_resolve = lambda domain, info: source_of(app, info)
    app.connect("doctree-read", replace, priority=100)
    app.connect("build-finished", write)
    return {"parallel_read_safe": False, "parallel_write_safe": True}

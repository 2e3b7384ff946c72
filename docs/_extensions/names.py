"""Names in code spans and in signatures are links to the reference: `smi.gamp` in a page, `gamp` or
`Solution` in a docstring, and names of other libraries that the stored inventories know.
"""

import functools
import importlib
import inspect
import re

from docutils import nodes
from sphinx.ext.intersphinx import InventoryAdapter

MODULES = ("priors", "links", "losses", "sgd", "baselines", "models")
SHORT = {
    "smi.": "jaxsmi.",
    "jnp.": "jax.numpy.",
    "eqx.": "equinox.",
    "np.": "numpy.",
    "xr.": "xarray.",
}
# where other libraries define what they show under a shorter name
ELSEWHERE = {
    "Array": "jax.Array",
    "ArrayLike": "jax.typing.ArrayLike",
    "PRNGKeyArray": "jax.random.key",
    "jax.jaxlib._jax.Array": "jax.Array",
    "optax._src.base.GradientTransformation": "optax.GradientTransformation",
    "base.GradientTransformation": "optax.GradientTransformation",
    "equinox._module._module.Module": "equinox.Module",
    "eqx.Module": "equinox.Module",
    "np.ndarray": "numpy.ndarray",
    "xarray.core.dataset.Dataset": "xarray.Dataset",
}


@functools.cache
def public():
    """Every public name under which something is documented, and that name."""
    package = importlib.import_module("jaxsmi")
    names = {}
    for module in MODULES:
        for name in getattr(package, module).__all__:
            if not inspect.ismodule(getattr(getattr(package, module), name)):
                names[f"{module}.{name}"] = f"jaxsmi.{module}.{name}"
    for name in package.__all__:
        names[name] = f"jaxsmi.{name}"
    return names


@functools.cache
def defined():
    """Where something public is defined, and its public name."""
    package = importlib.import_module("jaxsmi")
    places = {}
    for short, name in public().items():
        thing = functools.reduce(getattr, short.split("."), package)
        if hasattr(thing, "__qualname__"):
            places[f"{thing.__module__}.{thing.__qualname__}"] = name
    return places


def full(text):
    """The full name that a code span may stand for."""
    text = text.removesuffix("()")
    for short, name in SHORT.items():
        if text.startswith(short):
            return name + text.removeprefix(short)
    return text


def place(app, docname, name):
    """The address of a documented name, and whether it is of this site."""
    objects = app.env.domains["py"].objects
    for candidate in (name, defined().get(name, ""), public().get(name, "")):
        if candidate in objects:
            entry = objects[candidate]
            uri = app.builder.get_relative_uri(docname, entry.docname)
            return f"{uri}#{entry.node_id}", True
    for kind, entries in InventoryAdapter(app.env).main_inventory.items():
        if kind.startswith("py:") and name in entries:
            return entries[name].uri, False
    return None, False


def resolve(app, doctree, docname):
    if app.builder.format != "html":
        return
    for literal in list(doctree.findall(nodes.literal)):
        if isinstance(literal.parent, nodes.reference) or not literal.parent:
            continue
        text = literal.astext()
        if not re.fullmatch(r"[A-Za-z][\w.]*(\(\))?", text):
            continue
        if "." not in text and not docname.startswith("docs/reference/"):
            continue
        uri, here = place(app, docname, full(text))
        if uri:
            link = nodes.reference("", "", refuri=uri, internal=here)
            literal.parent.replace(literal, link)
            link += literal


def missing(app, env, node, content):
    """Types of signatures, which are named by the place where they are defined."""
    target = node.get("reftarget", "")
    name = defined().get(target) or ELSEWHERE.get(target, target)
    uri, here = place(app, node.get("refdoc", ""), name)
    if uri is None:
        return None
    return nodes.reference("", "", content, refuri=uri, internal=here)


def breakable(app, page, template, context, doctree):
    """A long name may break after its dots and underscores."""
    code = re.compile(r'(?<=<span class="pre">)[^<]+')
    joint = re.compile(r"(?<=[._:/])(?<!smi\.)(?=[A-Za-z])")
    if "body" in context:
        context["body"] = code.sub(lambda m: joint.sub("<wbr>", m.group()), context["body"])


def setup(app):
    app.connect("doctree-resolved", resolve)
    app.connect("html-page-context", breakable)
    app.connect("missing-reference", missing, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

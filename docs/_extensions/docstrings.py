"""Docstrings of this library as reStructuredText.

Their order is fixed (CONTRIBUTING.md): prose, with formulas set off by indentation, then Args,
Attributes, Returns, Raises, Example, Cost, Source. Everything but code between backticks is meant
as it stands, so that a star or a bar of an equation is escaped.
"""

import inspect
import re

from sphinx.util.inspect import signature, stringify_signature

SECTION = re.compile(r"(Args|Attributes|Returns|Raises|Example|Cost|Source):$")
ITEM = re.compile(r"    (?! )(\*{0,2}\w[\w., *]*): ?(.*)")
TITLES = {"Args": "Parameters"}


def escaped(text):
    """Lines of prose: code spans as literals, the rest without a meaning of its own."""
    parts = re.split(r"`([^`]+)`", text)
    for k, part in enumerate(parts):
        if k % 2:  # reStructuredText wants a boundary on both sides of a literal
            before = r"\ " if re.search(r"\w$", parts[k - 1]) else ""
            after = r"\ " if re.match(r"\w", parts[k + 1]) else ""
            parts[k] = f"{before}``{part}``{after}"
        else:
            part = re.sub(r"([\\*|])", r"\\\1", part)
            parts[k] = re.sub(r"(?<=\w)_(?!\w)", r"\\_", part)
    return "".join(parts)


def depth(line):
    return len(line) - len(line.lstrip())


def prose(lines):
    """Paragraphs; what is indented below one, or a table, is shown as it stands."""
    out, k = [], 0
    while k < len(lines):
        line = lines[k]
        table = line.startswith("|")
        after_blank = k == 0 or not lines[k - 1].strip()
        if table or (after_blank and depth(line) > 0 and line.strip()):
            block = []
            while k < len(lines) and (
                not lines[k].strip() or depth(lines[k]) > 0 or (table and lines[k][0] == "|")
            ):
                block.append(lines[k])
                k += 1
            while not block[-1].strip():
                block.pop()
            common = min(depth(one) for one in block if one.strip())
            out += ["", ".. code-block:: text", ""]
            out += ["   " + one[common:] for one in block] + [""]
            continue
        paragraph = [line]  # a code span may begin in one line and end in the next
        while line.strip() and k + 1 < len(lines) and re.match(r"[^\s|]", lines[k + 1]):
            k += 1
            paragraph.append(lines[k])
        out += escaped("\n".join(paragraph)).split("\n")
        k += 1
    return out


def dedented(lines):
    return inspect.cleandoc("\n".join(["", *lines])).splitlines()


def items(lines):
    """`name: text` one below the other, as a list."""
    found = []
    for line in lines:
        match = ITEM.match(line)
        if match:
            found.append(list(match.groups()))
        elif line.strip():
            found[-1][1] += "\n  " + line.strip()
    return [
        line
        for name, text in found
        for line in f"* **{escaped(name)}** – {escaped(text)}".split("\n")
    ]


def converted(lines):
    """A docstring in the house's order as reStructuredText."""
    sections = [("", [])]
    for line in lines:
        match = SECTION.match(line)
        if match:
            sections.append((match.group(1), []))
        else:
            sections[-1][1].append(line)
    out = [*prose(sections[0][1]), ""]
    for title, content in sections[1:]:
        if title in ("Args", "Attributes", "Raises"):
            body = items(content)
        elif title == "Example":
            blocks = "\n".join(dedented(content)).split("\n\n")
            blocks = [one if one.startswith(">>>") else escaped(one) for one in blocks]
            body = "\n\n".join(blocks).splitlines()
        else:
            body = prose(dedented(content))
        out += [f":{TITLES.get(title, title)}:", ""] + ["   " + line for line in body] + [""]
    return out


def process(app, what, name, thing, options, lines):
    if not name.startswith("jaxsmi"):  # a docstring of another library, inherited
        lines[:] = []
        return
    lines[:] = converted(lines)


def constructor(app, what, name, thing, options, arguments, returned):
    """The signature of a class is that of its constructor, not of its metaclass; names of types
    stand for themselves in a union, too."""
    if what == "class" and inspect.isfunction(getattr(thing, "__init__", None)):
        aliases = app.config.autodoc_type_aliases
        shown = signature(thing.__init__, bound_method=True, type_aliases=aliases)
        text = stringify_signature(shown, show_return_annotation=False, unqualified_typehints=True)
        return plain(text), None
    return plain(arguments), plain(returned)


def plain(text):
    """Names for what Python shows as no expression: an alias, or a function as a default."""
    return text and re.sub(r"TypeAliasForwardRef\('(\w+)'\)|<function (\w+)>", r"\1\2", text)


def setup(app):
    app.connect("autodoc-process-docstring", process)
    app.connect("autodoc-process-signature", constructor)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

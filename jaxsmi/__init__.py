"""jaxsmi: solvable models of learning with attention in high dimension, solved in JAX.

Message passing (`gamp`), its exact asymptotics (`state_evolution`), and the models, links, priors
and channels they share. Importing starts no device and sets no flag; theory is meant for double
precision: `smi.setup()` sets it for the process.

A name is imported when it is first used (SPEC 1 of Scientific Python); `__init__.pyi` lists where
each comes from.
"""

import difflib
import importlib.metadata

import lazy_loader

_import_name, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

_MODULES = ("links", "priors", "losses", "sgd")  # whose names are looked for in the package
# Names of earlier versions, and what to use now.
_REMOVED: dict[str, str] = {
    "Batches": "smi.Gradient",
    "Stop": "smi.Monitor",
    "text": "the notebook 07_text",
}


def _version() -> str:
    try:
        return importlib.metadata.version("jaxsmi")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"  # a bare folder on the path


def __getattr__(name: str) -> object:
    if name == "__version__":  # the version is stated in pyproject.toml alone
        return _version()
    if name in __all__:
        return _import_name(name)
    close = "".join(difflib.get_close_matches(name, __all__, 1, 0.5))
    hint = f"did you mean {close!r}?" if close else "dir(jaxsmi) lists the names."
    # Python itself asks for names such as __wrapped__: not worth four imports
    modules = () if name.startswith("_") else _MODULES
    if module := next((m for m in modules if name in dir(_import_name(m))), ""):
        hint = f"it is smi.{module}.{name}."
    if name in _REMOVED:
        hint = f"it is now {_REMOVED[name]}."
    # with a name, and no object, Python adds no second guess of its own
    raise AttributeError(f"module 'jaxsmi' has no attribute {name!r}; {hint}", name=name)

"""jaxsmi: solvable models of learning with attention in high dimension, solved in JAX.

Message passing (`gamp`), its exact asymptotics (`state_evolution`), and the models, links, priors
and channels they share. Importing starts no device and sets no flag; theory is meant for float64:
jax.config.update("jax_enable_x64", True).

A name is loaded with its room when it is first used (SPEC 1 of Scientific Python): `__init__.pyi`
says where each of them lies.
"""

import importlib

import lazy_loader

from jaxsmi.core.words import nearest

_room_of, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    if name == "__version__":  # of the installed package: pyproject.toml is the one place
        return importlib.import_module("jaxsmi.core.provenance").version()
    if name in __all__:
        return _room_of(name)
    near = nearest(name, __all__)
    meant = f"; did you mean {near!r}?" if near else "; dir(jaxsmi) lists those there are."
    # with a name, and no object, Python adds no second guess of its own
    raise AttributeError(f"module 'jaxsmi' has no attribute {name!r}{meant}", name=name)

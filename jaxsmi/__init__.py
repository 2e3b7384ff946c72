"""jaxsmi: solvable models of learning with attention in high dimension, solved in JAX.

Message passing (`gamp`), its exact asymptotics (`state_evolution`), and the models, links, priors
and channels they share. Importing starts no device and sets no flag; theory is meant for float64:
jax.config.update("jax_enable_x64", True).

A name is loaded with its room when it is first used (SPEC 1 of Scientific Python): `__init__.pyi`
says where each of them lies.
"""

import importlib

import lazy_loader

_room_of, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    if name == "__version__":  # of the installed package: pyproject.toml is the one place
        return importlib.import_module("jaxsmi.core.provenance").version()
    return _room_of(name)

"""jaxsmi: solvable models of learning with attention in high dimension, solved in JAX.

Message passing (`gamp`), its exact asymptotics (`state_evolution`), and the models, links, priors
and channels they share. Importing starts no device and sets no flag; theory is meant for float64:
jax.config.update("jax_enable_x64", True).

A name is loaded with its room when it is first used (SPEC 1 of Scientific Python): `__init__.pyi`
says where each of them lies.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

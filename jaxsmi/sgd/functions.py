"""Functions of the fields made from other functions of the fields: products, derivatives, norms.

Each is a module, that is a tree of arrays, so that it can be differentiated in the numbers of the
function inside it.
"""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxsmi.core.arrays import PyTree


class Flat(eqx.Module):
    """z -> f(z), flattened: (k,)."""

    inner: Callable[[Array], Array]

    def __call__(self, z: Array) -> Array:
        return jnp.ravel(self.inner(z))


class SquaredNorm(eqx.Module):
    """z -> ‖f(z)‖²: ()."""

    inner: Callable[[Array], Array]

    def __call__(self, z: Array) -> Array:
        return jnp.sum(self.inner(z) ** 2)


class Scaled(eqx.Module):
    """z -> a f(z): (k,)."""

    inner: Callable[[Array], Array]
    factor: Array

    def __call__(self, z: Array) -> Array:
        return self.factor * self.inner(z)


class LinearTimes(eqx.Module):
    """z -> (a z_l + b_l) f(z) for all l: (L k,)."""

    inner: Callable[[Array], Array]
    a: Array
    b: Array

    def __call__(self, z: Array) -> Array:
        return jnp.ravel((self.a * z + self.b)[:, None] * self.inner(z))


class Slopes(eqx.Module):
    """z -> ∂_l f(z) for all l: (L k,)."""

    inner: Callable[[Array], Array]

    def __call__(self, z: Array) -> Array:
        return jnp.ravel(jax.jacfwd(self.inner)(z).T)


class Laplacian(eqx.Module):
    """z -> Δf(z): (k,)."""

    inner: Callable[[Array], Array]

    def __call__(self, z: Array) -> Array:
        def second(direction: Array) -> Array:
            along = lambda x: jax.jvp(self.inner, (x,), (direction,))[1]
            return jax.jvp(along, (z,), (direction,))[1]

        return jnp.sum(jax.vmap(second)(jnp.eye(len(z), dtype=z.dtype)), axis=0)


class Tangent(eqx.Module):
    """z -> the change of f(z) along a direction of the numbers inside f: (k,)."""

    inner: Callable[[Array], Array]
    direction: PyTree

    def __call__(self, z: Array) -> Array:
        return eqx.filter_jvp(lambda f: f(z), (self.inner,), (self.direction,))[1]


class Joined(eqx.Module):
    """z -> the answers of several functions, one after the other."""

    parts: tuple[Callable[[Array], Array], ...]

    def __call__(self, z: Array) -> Array:
        return jnp.concatenate([part(z) for part in self.parts])

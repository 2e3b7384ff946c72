"""Passes over many rows: the products, whichever way they are computed, and transposes of each
other."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from jaxsmi.design.index import IndexOperator
from jaxsmi.design.rectangular import RectangularOperator

ROUNDING = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-24}  # of the products
ROWS, LENGTH = 1103, 1001  # more than 2^20 numbers, a prime number of rows: loops, and a rest


def drawn(dtype, indices, tokens=1):
    x, W, g = (
        np.random.default_rng(k).standard_normal(shape)
        for k, shape in enumerate(
            [(ROWS, tokens, LENGTH), (indices, LENGTH), (ROWS, indices, tokens)]
        )
    )
    return jnp.asarray(x).astype(dtype), jnp.asarray(W), jnp.asarray(g)


@pytest.mark.parametrize("indices", [1, 2, 3])
@pytest.mark.parametrize("dtype", ROUNDING)
def test_both_passes_are_the_products(dtype, indices):
    """Beside NumPy in float64, from the same inputs. W and g are rounded, too: with K terms, each
    off by two roundings and its sum by K, the error is a normal number of about (2 + √K) roundings
    of √K; ten of these."""
    x, W, g = drawn(dtype, indices)
    fields, total = eqx.filter_jit(lambda s, W, g: (s.forward(W), s.adjoint(g)))(
        IndexOperator(x), W, g
    )
    flat, root = np.asarray(x[:, 0], np.float64), np.sqrt(LENGTH)
    for found, true, terms in (
        (fields[:, :, 0], flat @ np.asarray(W).T / root, LENGTH),
        (total, np.asarray(g)[:, :, 0].T @ flat / root, ROWS),
    ):
        error = 10 * ROUNDING[dtype] * (2 + np.sqrt(terms)) * np.sqrt(terms) / root
        np.testing.assert_allclose(found, true, atol=error, rtol=0)


def test_transposes_of_each_other():
    """⟨forward W, g⟩ = ⟨W, adjoint g⟩, of rows and of matrices, to the rounding of N D terms."""
    x, W, g = drawn("float64", 2, tokens=2)
    for sensing, signal, weights in (
        (IndexOperator(x), W, g),
        (RectangularOperator(x), W[None], g[:, :1, :1]),
    ):
        forward = sensing.forward(signal)
        one, other = jnp.vdot(forward, weights), jnp.vdot(signal, sensing.adjoint(weights))
        scale = jnp.linalg.norm(forward) * jnp.linalg.norm(weights)
        assert abs(float(one - other)) <= 1e-14 * float(scale)


@eqx.filter_jit
def at_once_and_alone(function, many):
    """All at once, one after the other, and the derivative along the second: it is linear."""
    alone = jax.lax.map(function, many)
    return jax.vmap(function)(many), alone, jax.jvp(function, (many[0],), (many[1],))[1]


@pytest.mark.parametrize("way", ["forward", "adjoint"])
def test_alone_or_together(way):
    x, W, g = drawn("float64", 2)
    many = jnp.stack([W, -2.0 * W + 1.0]) if way == "forward" else jnp.stack([g, g[::-1]])
    function = IndexOperator(x).forward if way == "forward" else IndexOperator(x).adjoint
    together, alone, slope = at_once_and_alone(function, many)
    size = float(jnp.max(jnp.abs(alone)))
    np.testing.assert_allclose(together, alone, atol=1e-13 * size, rtol=0)
    np.testing.assert_allclose(slope, alone[1], atol=1e-13 * size, rtol=0)


def test_no_copy_of_bfloat16_inputs():
    """Temporary arrays are far smaller than the inputs; on other devices no array in float32 is as
    large as they are."""
    shapes = [
        jax.ShapeDtypeStruct((2**16, 1, 2**10), jnp.bfloat16),
        jax.ShapeDtypeStruct((2, 2**10), jnp.float64),
        jax.ShapeDtypeStruct((2**16, 2, 1), jnp.float64),
    ]
    both = jax.jit(lambda x, W, g: (IndexOperator(x).forward(W), IndexOperator(x).adjoint(g)))
    taken = both.lower(*shapes).compile().memory_analysis()
    assert taken.temp_size_in_bytes < 0.1 * 2**26 * 2
    text = export.export(both, platforms=["cuda", "rocm", "tpu"])(*shapes).mlir_module()
    assert "tensor<8192x1024xf32>" in text
    assert "65536x1x1024xbf16" in text
    assert not re.search(r"65536x(1x)?1024xf(32|64)", text)

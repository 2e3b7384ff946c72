r"""One pass over many rows: X Wᵀ and Gᵀ X of a tall array X (R, D), for W (P, D) and G (R, P).

Both read all of X and do little with it, so that memory is the limit; P is the number of indices.
The matrix product of a CPU packs X before it multiplies. Measured on one core, P = 2, D = 16000,
in GB of X a second, where a copy of X moves 23 to 26 (read and written):

                          Gᵀ X               X Wᵀ
                    product   here     product   here
    float64             2.9   18.3        13.0   17.9
    float32            10.0   15.5        18.1   18.4
    bfloat16            0.9   12.8         1.0   17.5

That was of an earlier form. On another machine a copy moves 52 on two cores and 44 on one, and
reading alone (a maximum) reaches 32 and 24.5, so that no pass can have more than 0.6 of a copy.
There Gᵀ X, in the form before this one and in this one (256 MiB; bfloat16 P = 2 only):

                          one core                           two cores
            D, P    16000, 2  2000, 2  16000, 3     16000, 2  2000, 2  16000, 3
    float64 before      20.0     21.3      15.5         20.2     20.0      16.1
            now         21.6     20.3      20.3         28.6     28.2      27.2
    float32 before      18.9     16.8      12.8         19.2     17.4      12.8
            now         19.5     16.4      17.2         26.7     25.5      22.9
    bfloat16 before     14.5                            14.6
            now         14.0                            21.1

P = 4, a product before: float64 4.5 and 18.7 on one core, 12.0 and 25.3 on two, float32 10.9 and
15.1, 20.9 and 21.6. Where D is no multiple of sixteen (float64: eight) one core is up to a
tenth slower than before.
It compiles in a quarter to a third of the time; beside 15 MiB of float32 inputs both passes take
1.0 MiB instead of 0.1, beside 31 MiB of float64 1.5 instead of 1.4.

Of Gᵀ X twelve products are added up term by term: that is one array, which the compiler divides
among cores if it is large enough, hence so many groups of twelve rows at once. Sixteen numbers
side by side are taken with all indices before the next, so that X is read from memory once. The
sums are added to the total, in float64, in a loop of its own: in place with what makes them, the
total is read from where it is written, and the loop is a third slower (float32: half). As a
reduction over rows the sums would be given to a library, which took twenty times as long; with
sixteen rows instead of twelve the speed drops by a third.

Of X Wᵀ the P sums are P operands of one reduction: X is read once, in order, and eight rows at a
time make the body of a loop that the compiler unrolls entirely. That stays on one core (float64
21 GB/s on one and on two): the compiler divides what is one array, not a tuple, and loops beside
each other were not seen to run at once, not even sixteen. Float64 as a matrix product has 14.8 on
one core and 28.5 on two.

XLA for CPUs makes float32 of a whole bfloat16 array before a loop that reads a part of it, three
times the memory: hence its bits are read, which it leaves alone.

Other devices, short or few rows, many indices, and a single one (whose product is as fast as
memory) take the matrix product; so does X Wᵀ in float32, where nothing is gained.
"""

from __future__ import annotations

import functools
import math
import operator

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.design.blocks import Inputs, as_bits, mapped, product_dtype, summed, widened

__all__ = ["back_project", "project"]

_LONG = 512  # numbers in a row, below which a loop costs more than it saves
_MANY = 2**20  # numbers of an array, below which its compilation does
_HUGE = 2**24  # numbers of an array from which on four loops run at once, not two
_TOGETHER = 8  # rows that are multiplied by the same piece of W
_BLOCK = 2**17  # numbers of X in the body of the loop of X Wᵀ
_ROWS = 8  # of one sample, at most
_FEW = 3  # indices of X Wᵀ: with more, sums leave the registers
_ADDED = 12  # rows that are added up in the body of the loop of Gᵀ X
_SUMS = 6  # indices of Gᵀ X, at most
_SIDE = 16  # numbers of a row that are multiplied by one weight after the other
_SHARED = 2**17  # bytes of half of the sums, from which on the compiler has cores share them


def project(W: Array, inputs: Inputs) -> Array:
    """Fields W X/√D (N, P, M) of rows W (P, D), of samples of M·D numbers each; in the wider
    precision of W and of products with the inputs."""
    narrow = W.astype(product_dtype(inputs))
    wide = jnp.promote_types(W.dtype, narrow.dtype)

    def fields(x: Array) -> Array:
        rows = rows_times(x, narrow).reshape(len(x), -1, len(W))
        return jnp.swapaxes(rows, 1, 2).astype(wide)

    return mapped(fields, inputs, as_stored=True) / math.sqrt(W.shape[1])


def back_project(g: Array, inputs: Inputs) -> Array:
    """Σ_μ g_μ X_μ/√D (P, D) of vectors g (N, P, M), the transpose of `project`; in float64."""

    def add(x: Array, g: Array) -> Array:
        flat = jnp.swapaxes(g, 1, 2).reshape(-1, g.shape[1])
        return rows_combined(flat.astype(product_dtype(inputs)), x)

    total = summed(add, inputs, g, as_stored=True)
    return total / jnp.sqrt(float(total.shape[1]))


def rows_times(x: Array, W: Array) -> Array:
    """X Wᵀ (R, P) of the rows X (R, D) that samples x (N, ...) are made of, in the precision of
    W (P, D): that of x, of bfloat16 float32."""
    P, D = W.shape
    gains = x.dtype == jnp.bfloat16 or (x.dtype == jnp.float64 and P > 1)
    few = P <= _FEW and x.size // (len(x) * D) <= _ROWS
    return _by_rows(x, W) if gains and few and _large(x, D) else _times(x, W)


def rows_combined(g: Array, x: Array) -> Array:
    """Gᵀ X (P, D) of G (R, P) and the rows X (R, D) that samples x (N, ...) are made of, in the
    precision of G or wider."""
    R, P = g.shape
    gains = x.dtype == jnp.bfloat16 or P > 1
    few = P <= _SUMS and R // len(x) <= _ROWS and R >= 4 * _ADDED * _ROWS
    return _by_sums(g, x) if gains and few and _large(x, x.size // R) else _combined(g, x)


def _large(x: Array, length: int) -> bool:
    """Whether loops over a few rows gain anything."""
    return length >= _LONG and x.size >= _MANY


def _times(x: Array, W: Array) -> Array:
    """X Wᵀ, a matrix product; of bfloat16 one for each block."""
    P, D = W.shape
    product = lambda x: jnp.matmul(x.reshape(-1, D), W.T, precision="highest")
    return mapped(lambda x: product(x).reshape(len(x), -1), x).reshape(-1, P)


def _combined(g: Array, x: Array) -> Array:
    """Gᵀ X, a matrix product; of bfloat16 one for each block."""
    R, P = g.shape

    def product(x: Array, g: Array) -> Array:
        rows = x.reshape(len(x) * (R // N), -1)
        return jnp.matmul(g.reshape(-1, P).T, rows, precision="highest")

    N = len(x)
    return summed(product, x, g.reshape(N, R // N * P))


# Loops over rows have no derivative of their own in reverse mode; both passes are bilinear, and
# their derivatives are plain products.


@jax.custom_jvp
def _by_rows(x: Array, W: Array) -> Array:
    return lax.platform_dependent(x, W, cpu=_rows_on_cpu, default=_times)


_by_rows.defjvps(
    lambda dx, _, x, W: _times(dx, W),
    lambda dW, _, x, W: _times(x, dW),
)


@jax.custom_jvp
def _by_sums(g: Array, x: Array) -> Array:
    return lax.platform_dependent(g, x, cpu=_sums_on_cpu, default=_combined)


_by_sums.defjvps(
    lambda dg, _, g, x: _combined(dg, x),
    lambda dx, _, g, x: _combined(g, dx),
)


def _sums(terms: list[Array], axis: int) -> list[Array]:
    """The sums of all terms over one axis, in one pass over what they are made of."""
    zero = jnp.zeros((), terms[0].dtype)
    add = lambda a, b: tuple(map(operator.add, a, b))
    return list(lax.reduce(tuple(terms), (zero,) * len(terms), add, (axis,)))


def _rows_on_cpu(x: Array, W: Array) -> Array:
    """X Wᵀ: eight rows at a time, over blocks of samples."""
    P, D = W.shape
    N = len(x)
    bits = as_bits(x)
    each = _TOGETHER * max(_BLOCK * N // (_TOGETHER * x.size), 1)
    parts = _parts(x)
    count = N // (each * parts)

    def block(k: Array) -> Array:
        rows = lax.dynamic_slice_in_dim(bits, k * each, each).reshape(-1, _TOGETHER, D)
        terms = [widened(rows[:, i]) * W[p] for i in range(_TOGETHER) for p in range(P)]
        return jnp.stack(_sums(terms, 1), -1).reshape(-1, P)

    done = [lax.map(block, jnp.arange(s * count, (s + 1) * count)) for s in range(parts)]
    fields = [part.reshape(-1, P) for part in done]
    samples = parts * count * each
    return jnp.concatenate(fields + ([_times(x[samples:], W)] if samples < N else []))


def _sums_on_cpu(g: Array, x: Array) -> Array:
    """Gᵀ X: twelve rows at a time, of many groups of twelve at once."""
    R, P = g.shape
    D = x.size // R
    per_sample = R // len(x)
    bits = as_bits(x)
    # whole samples, groups in two halves for two cores, and not less of them than cores share
    unit = math.lcm(4 * _ADDED, per_sample)
    units = R // unit
    least = min(-(-2 * _ADDED * _SHARED // (unit * P * D * g.dtype.itemsize)), units)
    # few rows are left over: they take a product
    size = min(range(least, min(2 * least, units) + 1), key=lambda size: units % size)
    count = units // size
    each = size * unit
    groups = each // (2 * _ADDED)
    samples = each // per_sample
    side = _SIDE // 2 if g.dtype == jnp.float64 and D % _SIDE else _SIDE
    whole = D // side * side
    # the last columns once more, of which those that are left over count
    columns = [(0, whole)] + ([(D - side, D)] if whole < D else [])

    def add(k: Array, totals: list[Array]) -> list[Array]:
        x = widened(lax.dynamic_slice_in_dim(bits, k * samples, samples)).reshape(each, D)
        weights = lax.dynamic_slice_in_dim(g, k * each, each)
        weights = weights.reshape(2 * groups, _ADDED, 1, P, 1)

        def sums(first: int, last: int) -> Array:
            rows = x[:, first:last].reshape(2 * groups, _ADDED, -1, 1, side)
            terms = [rows[:, i] * weights[:, i] for i in range(_ADDED)]
            return functools.reduce(operator.add, terms).reshape(groups, 2, -1, P, side)

        made = [sums(*part) for part in columns]
        half = lambda sums, i: lax.dynamic_index_in_dim(sums, i, 1, keepdims=False)

        def put(i: Array, totals: list[Array]) -> list[Array]:
            return [t + half(s, i).astype(t.dtype) for t, s in zip(totals, made, strict=True)]

        return lax.fori_loop(0, 2, put, totals)

    form = lambda part: (groups, (part[1] - part[0]) // side, P, side)
    start = [jnp.zeros(form(part), theory_dtype()) for part in columns]
    totals = [jnp.sum(total, axis=0) for total in lax.fori_loop(0, count, add, start)]
    totals = [jnp.swapaxes(total, 0, 1).reshape(P, -1) for total in totals]
    total = jnp.concatenate([totals[0]] + [tail[:, whole - D :] for tail in totals[1:]], axis=1)
    done = count * each
    return total + _combined(g[done:], x[count * samples :]) if done < R else total


def _parts(x: Array) -> int:
    """How many loops run at once: by the size of the array, not by the number of cores, so that
    the order of sums is the same everywhere."""
    return 4 if x.size >= _HUGE else 2

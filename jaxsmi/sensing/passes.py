r"""One pass over many rows: X Wᵀ and Gᵀ X of a tall array X (R, D), for W (P, D) and G (R, P).

Both read all of X and do little with it, so that memory is the limit; P is the number of indices.
The matrix product of a CPU packs X before it multiplies. Measured on one core, P = 2, D = 16000,
in GB of X a second, where a copy of X moves 23 to 26 (read and written):

                          Gᵀ X               X Wᵀ
                    product   here     product   here
    float64             2.9   18.3        13.0   17.9
    float32            10.0   15.5        18.1   18.4
    bfloat16            0.9   12.8         1.0   17.5

That was of blocks of rows. Of the blocks of samples here, float32 Gᵀ X of 1536 rows: 16.8 to 18.5
where a copy moves 22 to 24; blocks of columns, so that sums stay in the first cache, gave 11 to 17.
On two cores, where a copy moves 36, D = 16000: float64 20.3 and 20.6, float32 18.4 and 26.9,
bfloat16 13.9 and 12.4 GB/s (as many numbers as of float32). On another machine, where a copy moves
52 on two cores and 44 on one, reading alone (a maximum) reaches 32 and 24.5, so that no pass can
have more than 0.6 of a copy: here float64 20.1 and 20.0, float32 18.0 and 30.0 on two cores, and
20.1, 20.1, 18.2, 18.5 on one. The older emitters of the compiler keep a loop to one core; with the
others float64 X Wᵀ has 28.7 on two cores, but float32 Gᵀ X 14.2 and bfloat16 2.5 (programs.py).

Here the P sums are P operands of one reduction: X is read once, in order, and a few rows at a time
make the body of a loop that the compiler unrolls entirely. Several loops run at once, and sums over
rows are added up in float64.

XLA for CPUs makes float32 of a whole bfloat16 array before a loop that reads a part of it, three
times the memory: hence its bits are read, which it leaves alone.

Other devices, short rows, many indices, and a single one (whose product is as fast as memory) take
the matrix product; so does X Wᵀ in float32, where nothing is gained.
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
from jaxsmi.sensing.blocks import as_bits, mapped, summed, widened

__all__ = ["rows_combined", "rows_times"]

_LONG = 512  # numbers in a row, below which a loop costs more than it saves
_MANY = 2**20  # numbers of an array, below which its compilation does
_HUGE = 2**24  # numbers of an array from which on four loops run at once, not two
_TOGETHER = 8  # rows that are multiplied by the same piece of W
_BLOCK = 2**17  # numbers of X in the body of the loop of X Wᵀ
_ROWS = 8  # of one sample, at most
_FEW = 3  # indices of X Wᵀ: with more, sums leave the registers
_ADDED = 12  # rows that are added up in the body of the loop of Gᵀ X: 16 are not vectorised
_SUMS = 6  # indices of Gᵀ X, at most
_SIDE = 16  # numbers of a row that are multiplied by one weight after the other
_SHARED = 2**16  # float64 numbers of a result, from which on the compiler has cores share them


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
    few = P <= _SUMS and R // len(x) <= _ROWS and R >= 2 * _ADDED * _ROWS
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


@jax.custom_jvp
def _by_rows(x: Array, W: Array) -> Array:
    return lax.platform_dependent(x, W, cpu=_rows_on_cpu, default=_times)


@_by_rows.defjvp
def _(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    x, W = primals
    dx, dW = tangents
    return _by_rows(x, W), _times(x, dW) + _times(dx, W)


@jax.custom_jvp
def _by_sums(g: Array, x: Array) -> Array:
    return lax.platform_dependent(g, x, cpu=_sums_on_cpu, default=_combined)


@_by_sums.defjvp
def _(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    g, x = primals
    dg, dx = tangents
    return _by_sums(g, x), _combined(dg, x) + _combined(g, dx)


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
    """Gᵀ X: twelve rows at a time (module docstring)."""
    R, P = g.shape
    D = x.size // R
    per_sample = R // len(x)
    bits = as_bits(x)
    # whole samples, two groups of rows, and not less of them than cores share
    unit = math.lcm(2 * _ADDED, per_sample)
    least = -(-2 * _ADDED * _SHARED // (unit * P * D))
    count = max(R // (unit * least), 1)
    each = R // (unit * count) * unit
    groups = each // (2 * _ADDED)
    samples = each // per_sample
    side = _SIDE // 2 if g.dtype == jnp.float64 and D % _SIDE else _SIDE
    whole = D // side * side
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

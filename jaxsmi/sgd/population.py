r"""Population risk of sequence single-index models, its derivatives, and the strength of the gradient's noise.

Equations here [ALSKZ25; theory: online-sgd, Eqs. (7) to (18)], tokens independent, (z*_l, z_l) Gaussian:

    z_l = e_l + m z*_l + √(1 - m²) ξ_l
    R(m, e) = c (E‖g‖² + S(e) - 2 C(m, e)),   S = E‖F(ξ + e)‖²,   C[g, f](m, e) = E⟨g(z*), f(z)⟩
    C = Σ_i w_i g(y_i) (K^1 ⊗ .. ⊗ K^L f)(y_i),   K^l_ik = h/s φ((y_k - e_l - m y_i)/s),   s = √(1 - m²)
    ∂_{e_l} C[g, f] = C[g, ∂_l f],   ∂_m C[g, f] = Σ_l C[z_l g, ∂_l f] - m C[g, Δf]
    V = E Σ_l s_l²,   s_l = ∂ℓ/∂z_l = 2c ⟨F - g, ∂_l F⟩
    networks, target a series: C = Σ_n g_n √(|n|!/n!) c_|n| Π_l (m_l/√L)^{n_l},  c_k = E σ(u) h_k(u)

The second line of C is smoothing token by token
[theory: online-sgd, Eqs. (10), (11)]. Derivatives of C are C of derivatives, so that they exist
at m = ±1, where the noise ξ vanishes; near there C is summed over few nodes in ξ. Up to three tokens; above, and for the
unsquared loss, averages over nets with an error bar.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxsmi.core.arrays import concrete, theory_dtype
from jaxsmi.core.checks import check
from jaxsmi.core.results import Estimate
from jaxsmi.models.sequence_single_index import HermiteSeries, Network, SequenceSingleIndex
from jaxsmi.numerics.implicit import with_slope
from jaxsmi.numerics.nets import power_of_two, randomised_gaussians
from jaxsmi.numerics.quadrature import hermite
from jaxsmi.sgd.hermite import Grid, activation_coefficients, contract, has_second_moment, values

_TOKENS = 3  # on grids: two tokens take milliseconds, three seconds, four minutes


_NARROW = 1.3  # steps of the grid; a narrower kernel is under-resolved by more than 1e-14


# Nodes in ξ of each token where the kernel is narrow, by step, and where it is a quarter of that: errors of 1e-11 (three
# tokens: 1e-9), and 1e-10 on a coarse grid.
_INNER = {0.05: 12, 0.1: 6, 0.2: 8}


_FEW = 4


_NETS = 16


class _Steps(eqx.Module):
    """z -> (a z_l + b_l) g(z) for all l: (L k,)."""

    of: Any
    a: Array
    b: Array

    def __call__(self, z: Array) -> Array:
        return jnp.ravel((self.a * z + self.b)[:, None] * self.of(z))


class _Slopes(eqx.Module):
    """z -> ∂_l f(z) for all l: (L k,)."""

    of: Any

    def __call__(self, z: Array) -> Array:
        return jnp.ravel(jax.jacfwd(self.of)(z).T)


class _Scaled(eqx.Module):
    """z -> a g(z): (k,)."""

    of: Any
    a: Array

    def __call__(self, z: Array) -> Array:
        return self.a * self.of(z)


class _Laplacian(eqx.Module):
    """z -> Δf(z): (k,)."""

    of: Any

    def __call__(self, z: Array) -> Array:
        def second(direction: Array) -> Array:
            along = lambda x: jax.jvp(self.of, (x,), (direction,))[1]
            return jax.jvp(along, (z,), (direction,))[1]

        return jnp.sum(jax.vmap(second)(jnp.eye(len(z), dtype=z.dtype)), axis=0)


class _Moved(eqx.Module):
    """z -> the change of g(z) along a direction of its own arrays: (k,)."""

    of: Any
    direction: Any

    def __call__(self, z: Array) -> Array:
        return eqx.filter_jvp(lambda f: f(z), (self.of,), (self.direction,))[1]


class _Joined(eqx.Module):
    """z -> the answers of several functions, one after the other."""

    parts: tuple[Any, ...]

    def __call__(self, z: Array) -> Array:
        return jnp.concatenate([part(z) for part in self.parts])


@eqx.filter_custom_jvp
def correlation(
    g: Any, f: Any, m: Array, e: Array, *, reach: float = 1.0, stride: int = 1, coarse: bool = False
) -> Array:
    """C[g, f](m, e) = E⟨g(z*), f(z)⟩ for trees g, f: (L,) -> (k,), m in [-1, 1], e (L,); all derivatives at |m| <= 1.

    `reach`: how far e may lie from zero; `stride`: use every so many nodes in z* (an error estimate). f is smooth.
    """
    L = e.shape[0]
    grid = Grid.of(L, reach, coarse=coarse)
    nodes, step = jnp.asarray(grid.nodes), grid.step
    kept = slice(None, None, stride)
    outer, weights = nodes[kept], jnp.asarray(grid.weights[kept]) * stride
    G = values(g, outer, L)
    for axis in range(L):
        G = G * weights.reshape(-1, *(1,) * (L - axis))
    s = jnp.sqrt(jnp.maximum(1.0 - m**2, 0.0))
    narrow = s < _NARROW * step

    def smoothed() -> Array:
        width = jnp.where(narrow, 1.0, s)
        kernel = lambda shift: (
            jnp.exp(-0.5 * ((nodes - shift - m * outer[:, None]) / width) ** 2)
            * (step / (width * np.sqrt(2 * np.pi)))
        )
        return jnp.sum(G * contract(values(f, nodes, L), [kernel(e[l]) for l in range(L)], L))

    def summed(count: int) -> Array:
        inner, mass = hermite(count)
        points = np.stack(np.meshgrid(*[inner] * L, indexing="ij"), -1).reshape(-1, L)
        mass = np.prod(
            np.stack(np.meshgrid(*[mass] * L, indexing="ij"), -1).reshape(
                -1, L
            ),
            axis=1,
        )

        def one(total: Array, node: tuple[Array, Array]) -> tuple[Array, None]:
            xi, weight = node
            return total + weight * jnp.sum(
                G * values(lambda y: f(e + m * y + s * xi), outer, L)
            ), None

        return lax.scan(one, jnp.zeros((), G.dtype), (jnp.asarray(points), jnp.asarray(mass)))[0]

    def paired() -> Array:
        return jnp.sum(G * values(lambda y: f(e + m * y), outer, L))

    cases = [smoothed, lambda: summed(_INNER[step] if L < 3 else 6), lambda: summed(_FEW), paired]
    found = lax.switch(narrow.astype(int) + (s < 0.25 * _NARROW * step) + (s == 0.0), cases)
    return jnp.where(jnp.abs(m) <= 1.0, found, jnp.nan)


@correlation.def_jvp
def _correlation_jvp(
    primals: Any, tangents: Any, *, reach: float = 1.0, stride: int = 1, coarse: bool = False
) -> tuple[Array, Array]:
    """The derivative, as one more C: sums of C are C of functions side by side."""
    g, f, m, e = primals
    along_g, along_f, along_m, along_e = tangents
    of = lambda left, right: correlation(
        left, right, m, e, reach=reach, stride=stride, coarse=coarse
    )
    out = of(g, f)
    pairs: list[
        tuple[Any, Any]
    ] = []  # what is linear in the tangents stands on the left: reverse mode transposes it
    if any(x is not None for x in jax.tree.leaves(along_g)):
        pairs.append((_Moved(g, along_g), f))
    if along_m is not None or along_e is not None:
        a = jnp.zeros_like(m) if along_m is None else along_m
        pairs.append((_Steps(g, a, jnp.zeros_like(e) if along_e is None else along_e), _Slopes(f)))
    if along_m is not None:
        pairs.append((_Scaled(g, -m * along_m), _Laplacian(f)))
    change = jnp.zeros_like(out)
    if pairs:
        left, right = (_Joined(parts) for parts in zip(*pairs, strict=True))
        change = of(left, right)
    if any(x is not None for x in jax.tree.leaves(along_f)):
        change = change + of(g, _Moved(f, along_f))
    return out, change


def mean(
    f: Callable[[Array], Array],
    e: Array,
    *,
    reach: float = 1.0,
    stride: int = 1,
    coarse: bool = False,
) -> Array:
    """E f(ξ + e) of a function (L,) -> (), e (L,)."""
    L = e.shape[0]
    grid = Grid.of(L, reach, coarse=coarse)
    nodes = jnp.asarray(grid.nodes[::stride])
    table = values(f, nodes, L)
    weights = [
        (grid.step * stride / np.sqrt(2 * np.pi)) * jnp.exp(-0.5 * (nodes - e[l]) ** 2)[None]
        for l in range(L)
    ]
    return contract(table, weights, L).reshape(())


class _SquaredNorm(eqx.Module):
    of: Any

    def __call__(self, z: Array) -> Array:
        return jnp.sum(self.of(z) ** 2)


class _Flat(eqx.Module):
    of: Any

    def __call__(self, z: Array) -> Array:
        return jnp.ravel(self.of(z))


# What a user calls ---------------------------------------------------------------------------------------------------------


def overlaps(model: SequenceSingleIndex, m: Any, e: Any = 0.0) -> Array:
    """(m, e) as one vector: (1 + K,), e a number for all its K components or (K,); of an untied network m (L,), or a number.

    Raises: ValueError for other shapes, or a point outside m² + ‖e‖² <= 1 (by more than 1e-12).
    """
    m, e = jnp.asarray(m, theory_dtype()), jnp.asarray(e, theory_dtype())
    if not model.tied:
        check(
            m.shape in ((), (model.length,)),
            "m",
            m,
            f"a number, or one for each of the {model.length} directions",
        )
        check(
            e.shape == () and jnp.all(e == 0),
            "e",
            e,
            "nothing: networks have no positional overlap",
        )
        v = jnp.broadcast_to(m, (model.length,))
        check(jnp.all(jnp.abs(v) <= 1.0 + 1e-12), "m", m, "overlaps in [-1, 1]")
        return v
    K = model.encoding.shape[1]
    check(m.shape == (), "m", m, "a number in [-1, 1]")
    check(e.shape in ((), (K,)), "e", e, f"a number, or an array of shape ({K},)")
    check(K > 0 or jnp.all(e == 0), "e", e, "nothing: the model has no positional encoding")
    v = jnp.concatenate([m[None], jnp.broadcast_to(e, (K,))])
    check(
        jnp.sum(v**2) <= 1.0 + max(1e-12, 4 * float(jnp.finfo(v.dtype).eps)),
        "(m, e)",
        v,
        "m² + ‖e‖² <= 1",
    )
    return v


def on_grid(model: SequenceSingleIndex) -> bool:
    """Whether the risk is an integral on a grid or a finite sum, without sampling error."""
    return model.loss == "squared" and (
        _is_sum(model) or (model.length <= _TOKENS and not isinstance(model.student, Network))
    )


def risk(
    model: SequenceSingleIndex,
    m: Any,
    e: Any = 0.0,
    *,
    key: Array | None = None,
    samples: int = 2**14,
) -> Estimate:
    r"""Population risk, differentiable in (m, e), at |m| = 1 too, and in the model's numbers.

        R(m, e) = c E‖g(z*) - F(z)‖²,   z = C e + m z* + √(1 - m²) ξ

    Arguments: `model`; `m`, a number (of an untied network (L,)); `e`, a number or (K,); with more than three tokens,
    networks whose target is no HermiteSeries, and the unsquared loss: `key`, and the `samples` of each of 16 nets.

    Returns: Estimate(value, stderr). On grids `stderr` is what half of the nodes would change: for smooth functions of size one
    it is about 1e-13 for one and two tokens and 1e-10 for three. NaN under jit where m² + ‖e‖² > 1, as is the derivative of
    a sampled risk at |m| = 1.

    Raises: ValueError for a point outside m² + ‖e‖² <= 1, other shapes, or a missing key.

    Example:
    >>> import jaxsmi as smi
    >>> round(float(smi.sgd.risk(smi.sgd.semantic_positional(0.67), 0.5, 0.4).value), 10)
    0.1175037044

    Cost: 2 L n^{L+1} operations, n = 201 nodes for two tokens (2 ms), 81 for three (0.5 s); for |m| so close to one that
    √(1 - m²) < 1.3 steps, 10^L n^L evaluations of F. Many points at once by `jax.lax.map`: vmap takes all rules for each.
    Source: [ALSKZ25]; [theory: online-sgd, Eqs. (8) to (11)].
    """
    v = overlaps(model, m, e)
    if concrete((model, v)) and on_grid(model) and not isinstance(model.target, HermiteSeries):
        check(
            has_second_moment(model.target, model.length),
            "target",
            model.target,
            "a function of finite second moment",
        )
    return eqx.filter_jit(risk_at)(model, v, key, samples)


def risk_at(
    model: SequenceSingleIndex,
    v: Array,
    key: Array | None = None,
    samples: int = 2**14,
    coarse: bool = False,
) -> Estimate:
    """The risk at overlaps v: see `risk`."""
    inside = (jnp.sum(v**2) if model.tied else jnp.max(v**2)) <= 1.0 + max(
        1e-9, 10 * float(jnp.finfo(v.dtype).eps)
    )
    if not on_grid(model):
        check(key is not None, "key", key, "a key: the risk of this model is sampled")
        assert key is not None
        found = _sampled(model, v, key, samples)
        return Estimate(jnp.where(inside, found.value, jnp.nan), found.stderr)
    if _is_sum(model):
        return Estimate(jnp.where(inside, _network_risk(model, v), jnp.nan), jnp.zeros(()))
    m, e = _clipped(v[0]), model.split(v)[1]
    g, F, reach = _Flat(model.target), _Flat(model.student), model.reach

    def value(stride: int, e: Array, m: Array) -> Array:
        own = mean(_SquaredNorm(g), jnp.zeros_like(e), stride=stride, coarse=coarse)
        student = mean(_SquaredNorm(F), e, reach=reach, stride=stride, coarse=coarse)
        return model.loss_factor * (
            own + student - 2.0 * correlation(g, F, m, e, reach=reach, stride=stride, coarse=coarse)
        )

    fine = value(1, e, m)
    halved = lax.stop_gradient(value(2, *lax.stop_gradient((e, m))))
    return Estimate(jnp.where(inside, fine, jnp.nan), jnp.abs(lax.stop_gradient(fine) - halved))


def gradient(
    model: SequenceSingleIndex,
    v: Array,
    key: Array | None = None,
    samples: int = 2**14,
    coarse: bool = False,
) -> Array:
    """∂R/∂v at overlaps v (module docstring)."""
    return jax.jacfwd(lambda v: risk_at(model, v, key, samples, coarse).value)(v)


def hessian(
    model: SequenceSingleIndex,
    m: Any = 0.0,
    e: Any = 0.0,
    *,
    key: Array | None = None,
    samples: int = 2**14,
) -> Array:
    """Hessian of the population risk in (m, e_1..e_K), (1 + K, 1 + K); of an untied network in m_1..m_L.

    At the origin it equals `sgd.hessian_at_origin`, which has it from Hermite coefficients.

    Arguments, Raises: as `risk`. Returns: an array. Cost: 20 times that of `risk`, and seconds to compile.
    Example:
    >>> import jax.numpy as jnp, jaxsmi as smi
    >>> jnp.diag(smi.sgd.hessian(smi.sgd.semantic_positional(0.64))).round(
    ...     6
    ... ).tolist()  # R_mm, R_ee  # doctest: +SKIP
    [-0.079381, -0.07885]

    Source: [theory: online-sgd, Eqs. (12), (24)].
    """
    return _hessian(model, overlaps(model, m, e), key, samples)


@eqx.filter_jit
def _hessian(model: SequenceSingleIndex, v: Array, key: Array | None, samples: int) -> Array:
    return jax.jacfwd(jax.jacfwd(lambda v: risk_at(model, v, key, samples).value))(v)


class _NoiseSquares(eqx.Module):
    """z -> Σ_l ⟨F, ∂_l F⟩²: ()."""

    of: Any

    def __call__(self, z: Array) -> Array:
        F, slopes = _value_and_slopes(self.of, z)
        return jnp.sum((slopes @ F) ** 2)


class _NoiseCross(eqx.Module):
    """z -> Σ_l ⟨F, ∂_l F⟩ ∂_l F, and Σ_l ∂_l F ⊗ ∂_l F: (k + k²,)."""

    of: Any

    def __call__(self, z: Array) -> Array:
        F, slopes = _value_and_slopes(self.of, z)
        return jnp.concatenate([-2.0 * (slopes @ F) @ slopes, jnp.ravel(slopes.T @ slopes)])


class _WithSquares(eqx.Module):
    """z -> g and g ⊗ g: (k + k²,)."""

    of: Any

    def __call__(self, z: Array) -> Array:
        g = self.of(z)
        return jnp.concatenate([g, jnp.ravel(g[:, None] * g)])


def _value_and_slopes(f: Any, z: Array) -> tuple[Array, Array]:
    return f(z), jax.jacfwd(f)(z).T


def gradient_noise(
    model: SequenceSingleIndex,
    m: Any = 0.0,
    e: Any = 0.0,
    *,
    key: Array | None = None,
    samples: int = 2**14,
) -> Estimate:
    """V = E Σ_l s_l², s_l = ∂ℓ/∂z_l: a step of online SGD has squared length about γ² V.

    Arguments, Returns, Raises: as `risk`.
    Source: [theory: online-sgd, Eqs. (13), (14)].
    """
    return eqx.filter_jit(noise_at)(model, overlaps(model, m, e), key, samples)


def noise_at(
    model: SequenceSingleIndex,
    v: Array,
    key: Array | None = None,
    samples: int = 2**14,
    coarse: bool = False,
) -> Estimate:
    """V at overlaps v."""
    if model.loss == "squared" and _is_sum(model):
        return Estimate(_network_noise(model, v), jnp.zeros(()))
    if not on_grid(model):
        check(key is not None, "key", key, "a key: the noise of this model is sampled")
        assert key is not None
        slopes = jax.grad(model.sample_loss, argnums=1)
        return _averaged(
            model, v, key, samples, lambda hidden, fields: jnp.sum(slopes(hidden, fields) ** 2)
        )
    m, e = _clipped(v[0]), model.split(v)[1]
    g, F, reach = _Flat(model.target), _Flat(model.student), model.reach

    def value(stride: int) -> Array:
        own = mean(_NoiseSquares(F), e, reach=reach, stride=stride, coarse=coarse)
        return (
            4.0
            * model.loss_factor**2
            * (
                own
                + correlation(
                    _WithSquares(g), _NoiseCross(F), m, e, reach=reach, stride=stride, coarse=coarse
                )
            )
        )

    fine = value(1)
    return Estimate(fine, jnp.abs(fine - value(2)))


# Sampled, and networks -----------------------------------------------------------------------------------------------------


def _clipped(m: Array) -> Array:
    """m, rounding beyond ±1 taken off, without halving its derivative there."""
    return m + lax.stop_gradient(jnp.clip(m, -1.0, 1.0) - m)


def _averaged(
    model: SequenceSingleIndex, v: Array, key: Array, samples: int, of: Callable[..., Array]
) -> Estimate:
    """Mean of a function of (z*, z) over nets, common to all v."""
    points = randomised_gaussians(key, power_of_two(samples), _NETS, 2 * model.length)
    hidden, xi = points[..., : model.length], points[..., model.length :]
    m, e = model.split(v)
    inside = jnp.abs(m) < 1.0
    s = jnp.where(inside, jnp.sqrt(jnp.where(inside, 1.0 - m**2, 1.0)), 0.0)
    found = jnp.mean(jax.vmap(jax.vmap(of))(hidden, e + m * hidden + s * xi), axis=1)
    smooth = jnp.where(
        jnp.all(inside), 1.0, jnp.nan
    )  # at |m| = 1 the noise is gone, and with it half of the derivative
    return Estimate(with_slope(jnp.mean(found), smooth), jnp.std(found, ddof=1) / np.sqrt(_NETS))


def _sampled(model: SequenceSingleIndex, v: Array, key: Array, samples: int) -> Estimate:
    return _averaged(model, v, key, samples, model.sample_loss)


def _is_sum(model: SequenceSingleIndex) -> bool:
    return isinstance(model.student, Network) and isinstance(model.target, HermiteSeries)


def projected(series: HermiteSeries, rho: Array, c: Array) -> Array:
    """E g(z*) φ(u) for u ~ N(0, 1) with E z*_l u = ρ_l: Σ_n g_n √(|n|!/n!) c_|n| Π_l ρ_l^{n_l}, orthonormal g_n and c_k = E
    φ h_k.
    """
    factorial = np.cumprod([1.0, *range(1, len(c) + 1)])
    powers = jnp.stack([jnp.ones_like(rho)] + [rho] * (len(c) - 1)).cumprod(axis=0)  # (k, L)
    each = jnp.prod(jnp.take_along_axis(powers, jnp.asarray(series.degrees), axis=0), axis=1)
    size = [np.sqrt(factorial[sum(n)] / np.prod(factorial[list(n)])) for n in series.degrees]
    return jnp.sum(
        series.orthonormal
        * jnp.asarray(size)
        * c[np.array([sum(n) for n in series.degrees])]
        * each
    )


def _top(series: HermiteSeries) -> int:
    return max(sum(n) for n in series.degrees)


def network_overlap(model: SequenceSingleIndex, v: Array) -> Array:
    """Φ(m) = E g F of a network whose target is a series."""
    rho = model.split(v)[0] / np.sqrt(model.length)
    return projected(
        model.target, rho, activation_coefficients(model.student.activation, _top(model.target))
    )


def _network_risk(model: SequenceSingleIndex, v: Array) -> Array:
    own = jnp.sum(model.target.orthonormal**2)
    student = activation_coefficients(lambda x: model.student.activation(x) ** 2, 0)[0]
    return model.loss_factor * (own + student - 2.0 * network_overlap(model, v))


def _network_noise(model: SequenceSingleIndex, v: Array) -> Array:
    """V = 4c² E σ'(u)² (σ(u) - g)², from the series of g and of g²."""
    rho = model.split(v)[0] / np.sqrt(model.length)
    activation, series = model.student.activation, model.target
    square = series.squared()
    slope = lambda x: jax.grad(activation)(x) ** 2
    own = activation_coefficients(lambda x: slope(x) * activation(x) ** 2, 0)[0]
    cross = projected(
        series, rho, activation_coefficients(lambda x: slope(x) * activation(x), _top(series))
    )
    return (
        4.0
        * model.loss_factor**2
        * (own - 2.0 * cross + projected(square, rho, activation_coefficients(slope, _top(square))))
    )

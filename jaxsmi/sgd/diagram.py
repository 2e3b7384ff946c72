r"""Phase diagram of the semantic/positional problem of two tokens, `semantic_positional(omega, a)`.

Equations here [ALSKZ25; theory: online-sgd, Eqs. (37) to (44)],
p(z) = σ(z_1 (z_1 - z_2)), β = σ(2a²), c = 1/2, paired encoding e_1 =
-e_2 = e:

    R = 2 {(1-ω)² E p² + ω² β² + 2 ω (1-ω) β E p + S(e) - 2 (1-ω) C(m, e) - 2 ω β M(e)}
    S = E p(ξ + (e, -e))²,   M = E p(ξ + (e, -e)),   C = E p(z*) p(z)

so that three functions of (m, e) serve the whole plane (ω, a), and every boundary that is told by a corner or by the origin
is linear in
ω:

    transition:           R_mm(0, 0) = R_ee(0, 0)
    positional corner:    R_mm(0, 1) = R_e(0, 1) < 0, from which ω on (0, 1) is a local minimum on the disc
    equal depth:          R(1, 0) = R(0, 1)
    semantic corner:      R_ee(1, 0) = R_m(1, 0) < 0, up to which ω (1, 0) is a local minimum on the disc
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array
from tqdm import tqdm

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.checks import check
from jaxsmi.sgd.population import correlation, mean

# By glob + 2 dyn + 4 multi, each 0 for semantic or one minimum, 1 for positional or several.
LABELS = (
    "unique semantic",
    "unique positional, semantic dynamics",
    "unique semantic, misaligned dynamics",
    "unique positional",
    "global semantic",
    "global positional, semantic dynamics",
    "global semantic, positional dynamics",
    "global positional",
)


BOUNDARIES = ("positional minimum", "transition", "equal depth", "semantic minimum")


ANGLES, RADII = 91, 21


class _P(eqx.Module):
    def __call__(self, z: Array) -> Array:
        return jax.nn.sigmoid(z[:1] * (z[:1] - z[1:]))


class _P2(eqx.Module):
    def __call__(self, z: Array) -> Array:
        return _P()(z) ** 2


def _three(v: Array, coarse: bool = False) -> Array:
    """(C, S, M) at v = (m, e)."""
    e = jnp.stack([v[1], -v[1]])
    p = lambda f: mean(f, e, coarse=coarse)
    return jnp.stack([correlation(_P(), _P(), v[0], e, coarse=coarse), p(_P2()), p(_P())])


def _derivatives() -> dict[str, np.ndarray]:
    """What `_derivatives_in` computes, in the precision of now."""
    return _derivatives_in(theory_dtype())


@functools.cache
def _derivatives_in(dtype: Any) -> dict[str, np.ndarray]:
    """Values, gradients and Hessians of (C, S, M) at the origin and at the corners, and (E p, E p²); computed once."""
    points = {"origin": (0.0, 0.0), "semantic": (1.0, 0.0), "positional": (0.0, 1.0)}
    found = jax.jit(lambda v: (_three(v), jax.jacfwd(_three)(v), jax.jacfwd(jax.jacfwd(_three))(v)))
    with jax.ensure_compile_time_eval():
        table = {}
        for name, point in points.items():
            for what, value in zip(
                ("value", "gradient", "hessian"), found(jnp.asarray(point, dtype)), strict=True
            ):
                table[f"{name} {what}"] = np.asarray(value)
        table["moments"] = np.asarray([mean(_P(), jnp.zeros(2)), mean(_P2(), jnp.zeros(2))])
    return table


def _combined(table: Any, omega: Any, beta: Any) -> Any:
    """R less its constant, or a derivative of it, from those of (C, S, M) in front: linear in ω."""
    C, S, M = table[0], table[1], table[2]
    return 2.0 * S - 4.0 * (1.0 - omega) * C - 4.0 * omega * beta * M


def _root(lower: Any, upper: Any) -> Any:
    """Where a function linear in ω, `lower` at ω = 0 and `upper` at ω = 1, vanishes; NaN outside [0, 1]."""
    omega = lower / (lower - upper)
    return jnp.where((omega >= 0.0) & (omega <= 1.0), omega, jnp.nan)


def _conditions(omega: Any, a: Any) -> dict[str, Any]:
    """What vanishes on each boundary."""
    d, beta = _derivatives(), jax.nn.sigmoid(2.0 * jnp.asarray(a, theory_dtype()) ** 2)
    at = lambda name: _combined(d[name], omega, beta)
    H = lambda point, i: _combined(d[f"{point} hessian"][:, i, i], omega, beta)
    G = lambda point, i: _combined(d[f"{point} gradient"][:, i], omega, beta)
    return {
        "transition": H("origin", 0) - H("origin", 1),
        "positional minimum": H("positional", 0) - G("positional", 1),
        "equal depth": at("semantic value") - at("positional value"),
        "semantic minimum": H("semantic", 1) - G("semantic", 0),
    }


def boundaries(a: Any) -> dict[str, Array]:
    """ω(a) of the four boundaries (module docstring), elementwise and differentiable; NaN where there is none in [0, 1].

    Arguments: `a` in (0, 1]. Returns: by the names of `BOUNDARIES`. Raises: ValueError for a out of range.
    Source: [theory: online-sgd, Eqs. (40) to (43), Table 5]; exact to 1e-12.
    """
    a = jnp.asarray(a, theory_dtype())
    check(jnp.all((a > 0.0) & (a <= 1.0)), "a", a, "numbers in (0, 1]")
    lower, upper = _conditions(0.0, a), _conditions(1.0, a)
    return {name: _root(lower[name], upper[name]) for name in BOUNDARIES}


def transition(a: Any) -> Array:
    r"""ω at which the steepest direction at the origin turns from semantic to positional (squared loss), elementwise.

        R_mm(0, 0; ω) = R_ee(0, 0; ω, a)

    Arguments: `a` in (0, 1]. Returns: ω, differentiable in a; NaN for a < 0.724390881, where there is none below 1.
    Raises: ValueError for a out of range.
    Example:
    >>> import jaxsmi as smi
    >>> round(float(smi.sgd.transition(1.0)), 9)
    0.640962618

    Cost: seconds at the first call, microseconds after it. Source: [ALSKZ25];
    [theory: online-sgd, Eq. (40), Table 4].
    """
    return boundaries(a)["transition"]


class PhaseDiagram(NamedTuple):
    """`omega` (W,), `a` (A,); `label` (W, A), into `LABELS`: glob + 2 dyn + 4 multi; `hessian` (W, A, 2): (R_ee, R_mm) at the
    origin; `minima`: for each cell its minima (m, e, R), a list of lists of arrays (count, 3); `boundaries` by name, (A,)."""

    omega: np.ndarray
    a: np.ndarray
    label: np.ndarray
    hessian: np.ndarray
    minima: list[list[np.ndarray]]
    boundaries: dict[str, np.ndarray]

    def counts(self) -> dict[str, int]:
        """Cells of each label."""
        return {name: int(np.sum(self.label == k)) for k, name in enumerate(LABELS)}


_POLAR: dict[Any, tuple[np.ndarray, np.ndarray]] = {}


def _polar(angles: int, radii: int, progress: bool) -> tuple[np.ndarray, np.ndarray]:
    """What `_polar_of` computes, once for each grid and precision."""
    grid = (angles, radii, theory_dtype())
    if grid not in _POLAR:
        _POLAR[grid] = _polar_of(angles, radii, progress)
    return _POLAR[grid]


def _polar_of(angles: int, radii: int, progress: bool) -> tuple[np.ndarray, np.ndarray]:
    """Points (radii, angles, 2) of the quadrant, radii > 0, and (C, S, M) there (3, radii, angles)."""
    theta, r = np.linspace(0.0, np.pi / 2, angles), np.linspace(0.0, 1.0, radii)[1:]
    points = np.stack([r[:, None] * np.cos(theta), r[:, None] * np.sin(theta)], axis=-1)
    points[np.abs(points) < 1e-15] = 0.0
    points[-1, 0], points[-1, -1] = (1.0, 0.0), (0.0, 1.0)
    row = jax.jit(lambda p: lax.map(lambda v: _three(v, coarse=True), p))
    rows = [
        np.asarray(row(jnp.asarray(p)))
        for p in tqdm(points, desc="risk", disable=not progress, leave=False)
    ]
    return points, np.moveaxis(np.stack(rows), -1, 0)


def phase_diagram(
    a: Any, omega: Any, *, angles: int = ANGLES, radii: int = RADII, progress: bool = False
) -> PhaseDiagram:
    r"""Minima of the population risk, which of them SGD sets out for, and the label of each (ω, a).

    `glob`: whether the lowest minimum is positional, e > 1/2; `dyn`: whether R_ee < R_mm at the origin; `multi`: whether
    there is more than one minimum on the disc m² + e² <= 1, m, e >= 0. The corners are tested exactly, the rest of the disc
    on a polar grid.

    Arguments: `a` (A,) in (0, 1]; `omega` (W,) in [0, 1); `angles`, `radii` of the grid; `progress`: a bar.
    Returns: PhaseDiagram. Raises: ValueError for numbers out of range (at ω = 1 the risk does not depend on m), or a grid of
    fewer than 9 angles or 5 radii.

    Example:
    >>> import jaxsmi as smi
    >>> found = smi.sgd.phase_diagram(1.0, [0.5, 0.6, 0.7], angles=19, radii=6)  # doctest: +SKIP
    >>> [smi.sgd.LABELS[k] for k in found.label[:, 0]]  # doctest: +SKIP
    ['unique semantic', 'global semantic', 'global semantic, positional dynamics']

    Cost: 2000 integrals, 10 s at the first call; then microseconds a cell. Source: [ALSKZ25, Fig. 4];
    [theory: online-sgd, Eq. (44)].
    """
    a, omega = np.atleast_1d(np.asarray(a, float)), np.atleast_1d(np.asarray(omega, float))
    check(np.all((a > 0) & (a <= 1)), "a", a, "numbers in (0, 1]")
    check(np.all((omega >= 0) & (omega < 1)), "omega", omega, "numbers in [0, 1)")
    check(angles >= 9, "angles", angles, "an integer >= 9")
    check(radii >= 5, "radii", radii, "an integer >= 5")
    points, three = _polar(int(angles), int(radii), progress)
    d, (Ep, Ep2) = _derivatives(), _derivatives()["moments"]
    label, hessian = np.zeros((len(omega), len(a)), int), np.zeros((len(omega), len(a), 2))
    minima: list[list[np.ndarray]] = []
    for i, w in enumerate(omega):
        minima.append([])
        for j, one in enumerate(a):
            beta = 1.0 / (1.0 + np.exp(-2.0 * one**2))
            constant = 2.0 * ((1 - w) ** 2 * Ep2 + w**2 * beta**2 + 2 * w * (1 - w) * beta * Ep)
            H, G = ({p: _combined(d[f"{p} {what}"], w, beta) for p in ("origin", "semantic", "positional")}
                    for what in ("hessian", "gradient"))  # fmt: skip
            hessian[i, j] = H["origin"][1, 1], H["origin"][0, 0]
            corners = np.array([
                G["semantic"][0] < 0 and H["semantic"][1, 1] - G["semantic"][0] > 0,
                G["positional"][1] < 0 and H["positional"][0, 0] - G["positional"][1] > 0,
            ])  # fmt: skip
            found = _minima(points, constant + _combined(three, w, beta), corners)
            minima[-1].append(found)
            glob = found[np.argmin(found[:, 2]), 1] > 0.5
            dyn = hessian[i, j, 0] < hessian[i, j, 1]
            label[i, j] = int(glob) + 2 * int(dyn) + 4 * int(len(found) > 1)
    lines = {name: np.asarray(value) for name, value in boundaries(a).items()}
    return PhaseDiagram(omega, a, label, hessian, minima, lines)


def _minima(points: np.ndarray, R: np.ndarray, corners: np.ndarray) -> np.ndarray:
    """Local minima (m, e, R) on the quadrant: points of the polar grid lower than their eight neighbours, reflected at the
    axes, infinite outside the disc; the corners by their own test, not by the grid's."""
    padded = np.pad(R, ((0, 0), (1, 1)), mode="reflect")
    padded = np.pad(padded, ((1, 1), (0, 0)), constant_values=np.inf)
    padded[0] = -np.inf  # the origin: a saddle wherever ω < 1, and no minimum next to it
    rows, columns = R.shape
    around = [
        padded[1 + i : 1 + i + rows, 1 + j : 1 + j + columns]
        for i in (-1, 0, 1)
        for j in (-1, 0, 1)
        if i or j
    ]
    low = np.all([x > R for x in around], axis=0)
    low[-1, 0], low[-1, -1] = corners
    if not low.any():
        low.flat[np.argmin(R)] = True
    return np.column_stack([points[low], R[low]])

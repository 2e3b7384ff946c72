r"""Phase diagram of the semantic/positional problem of two tokens, `semantic_positional(omega, a)`.

Equations here [ALSKZ25; theory: online-sgd, Eqs. (37) to (44)], p(z) = σ(z_1 (z_1 - z_2)), β =
σ(2a²), c = 1/2, paired encoding:

    R = 2 {(1-ω)² E p² + ω² β² + 2 ω (1-ω) β E p + S(e) - 2 (1-ω) C(m, e) - 2 ω β M(e)}
    S = E p(ξ + (e, -e))²,   M = E p(ξ + (e, -e)),   C = E p(z*) p(z)

so that three functions of (m, e) serve the whole plane (ω, a), and each boundary is linear in ω:

    transition:           R_mm(0, 0) = R_ee(0, 0)
    positional corner:    R_mm(0, 1) = R_e(0, 1) < 0, from there on (0, 1) is a local minimum
    equal depth:          R(1, 0) = R(0, 1)
    semantic corner:      R_ee(1, 0) = R_m(1, 0) < 0, up to there (1, 0) is a local minimum
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.border import checked, either, flag, numbers, optional, scalar, whole
from jaxsmi.core.checks import FRACTION, Arguments, Interval
from jaxsmi.core.progress import tqdm
from jaxsmi.sgd.correlation import correlation
from jaxsmi.sgd.grid import expectation

# Labels of a cell by glob + 2 dyn + 4 multi, each 0 for semantic or one minimum, 1 for positional
# or several.
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

# The polar grid of the disc.
ANGLES = 91
RADII = 21

_POINTS = {"origin": (0.0, 0.0), "semantic": (1.0, 0.0), "positional": (0.0, 1.0)}


class _P(eqx.Module):
    """p(z) = σ(z_1 (z_1 - z_2)): (1,)."""

    def __call__(self, z: Array) -> Array:
        return jax.nn.sigmoid(z[:1] * (z[:1] - z[1:]))


class _P2(eqx.Module):
    """p(z)²: (1,)."""

    def __call__(self, z: Array) -> Array:
        return _P()(z) ** 2


# The three functions, in front of every table here: C, S, M


def _three(v: Array, coarse: bool = False) -> Array:
    """(C, S, M) at v = (m, e)."""
    e = jnp.stack([v[1], -v[1]])
    C = correlation(_P(), _P(), v[0], e, coarse=coarse)
    S, M = (expectation(f, e, coarse=coarse) for f in (_P2(), _P()))
    return jnp.stack([C, S, M])


class _Corner(NamedTuple):
    """(C, S, M) at one point: values (3,), gradients (3, 2) and Hessians (3, 2, 2)."""

    value: np.ndarray
    gradient: np.ndarray
    hessian: np.ndarray


class _Corners(NamedTuple):
    """(C, S, M) and their derivatives at three points, and the moments E p and E p²."""

    origin: _Corner
    semantic: _Corner
    positional: _Corner
    p: np.ndarray
    p2: np.ndarray


def _corners() -> _Corners:
    """What `_corners_in` computes, in the precision of now."""
    return _corners_in(theory_dtype())


@functools.cache
def _corners_in(dtype: DTypeLike) -> _Corners:
    """Computed once for each precision."""
    hessian = jax.jacfwd(jax.jacfwd(_three))
    derivatives = jax.jit(lambda v: (_three(v), jax.jacfwd(_three)(v), hessian(v)))
    with jax.ensure_compile_time_eval():
        points = {
            name: _Corner(*(np.asarray(x) for x in derivatives(jnp.asarray(point, dtype))))
            for name, point in _POINTS.items()
        }
        moments = (np.asarray(expectation(f, jnp.zeros(2))) for f in (_P(), _P2()))
        return _Corners(points["origin"], points["semantic"], points["positional"], *moments)


def _combined(table: Array, omega: float, beta: Array | float) -> Array:
    """R less its constant, or a derivative of it, from those of (C, S, M) in front: linear in ω."""
    C = table[0]
    S = table[1]
    M = table[2]
    return 2.0 * S - 4.0 * (1.0 - omega) * C - 4.0 * omega * beta * M


def _root(lower: Array, upper: Array) -> Array:
    """Where a function linear in ω, given at ω = 0 and ω = 1, vanishes; NaN outside [0, 1]."""
    omega = lower / (lower - upper)
    return jnp.where((omega >= 0.0) & (omega <= 1.0), omega, jnp.nan)


def _conditions(omega: float, a: Array) -> dict[str, Array]:
    """What vanishes on each boundary."""
    origin, semantic, positional, _, _ = _corners()
    beta = jax.nn.sigmoid(2.0 * a**2)
    at = lambda table: _combined(jnp.asarray(table), omega, beta)
    return {
        "transition": at(origin.hessian[:, 0, 0]) - at(origin.hessian[:, 1, 1]),
        "positional minimum": at(positional.hessian[:, 0, 0]) - at(positional.gradient[:, 1]),
        "equal depth": at(semantic.value) - at(positional.value),
        "semantic minimum": at(semantic.hessian[:, 1, 1]) - at(semantic.gradient[:, 0]),
    }


_WIDTHS = Interval("numbers in (0, 1]", low=0.0, high=1.0, open_low=True)
_LINE = either("numbers in [0, 1)", scalar(FRACTION), numbers("", FRACTION, 1))
_LINE_OF_WIDTHS = either("numbers in (0, 1]", scalar(_WIDTHS), numbers("", _WIDTHS, 1))


@checked(a=numbers("numbers in (0, 1]", _WIDTHS))
def boundaries(a: ArrayLike) -> dict[str, Array]:
    r"""The four boundaries ω(a) of the phase diagram, elementwise and differentiable.

        ω = l_0/(l_0 - l_1),   l_0, l_1: what vanishes on the boundary, at ω = 0 and ω = 1

    Args:
        a: Numbers in (0, 1], of any shape.

    Returns:
        ω by the names of `BOUNDARIES`, each of the shape of `a`, exact to 1e-12; NaN where there is
        none in [0, 1].

    Raises:
        ValueError: For an a out of range.

    Example:
        >>> import jaxsmi as smi
        >>> round(float(smi.sgd.boundaries(1.0)["equal depth"]), 6)
        0.737607

    Cost:
        Seconds at the first call, microseconds after it.

    Source:
        [theory: online-sgd, Eqs. (40) to (43), Table 5].
    """
    arguments = Arguments()
    allowed = "numbers in (0, 1]"
    widths = arguments.array("a", a, allowed)
    inside = (widths > 0.0) & (widths <= 1.0)
    arguments.condition(jnp.all(inside), "a", a, allowed)
    lower = _conditions(0.0, widths)
    upper = _conditions(1.0, widths)
    return {
        name: jnp.where(inside, _root(lower[name], upper[name]), jnp.nan) for name in BOUNDARIES
    }


@checked(a=numbers("numbers in (0, 1]", _WIDTHS))
def transition(a: ArrayLike) -> Array:
    r"""ω at which the steepest direction at the origin turns from semantic to positional.

        R_mm(0, 0; ω) = R_ee(0, 0; ω, a)

    Args:
        a: Numbers in (0, 1], of any shape.

    Returns:
        ω, differentiable in a; NaN for a < 0.724390881, where there is none below 1.

    Raises:
        ValueError: For an a out of range.

    Example:
        >>> import jaxsmi as smi
        >>> round(float(smi.sgd.transition(1.0)), 9)
        0.640962618

    Cost:
        Seconds at the first call, microseconds after it.

    Source:
        [ALSKZ25]; [theory: online-sgd, Eq. (40), Table 4].
    """
    return boundaries(a)["transition"]


class PhaseDiagram(NamedTuple):
    """What `phase_diagram` returns.

    Attributes:
        omega: (W,).
        a: (A,).
        label: Indices into `LABELS`, glob + 2 dyn + 4 multi (W, A).
        hessian: (R_ee, R_mm) at the origin (W, A, 2).
        minima: For each cell its minima (m, e, R), a list of lists of arrays (count, 3).
        boundaries: ω(a) by name, (A,).
    """

    omega: np.ndarray
    a: np.ndarray
    label: np.ndarray
    hessian: np.ndarray
    minima: list[list[np.ndarray]]
    boundaries: dict[str, np.ndarray]

    def counts(self) -> dict[str, int]:
        """Cells of each label."""
        return {name: int(np.sum(self.label == k)) for k, name in enumerate(LABELS)}


class _Disc(NamedTuple):
    """Points (radii, angles, 2) of the quadrant, and (C, S, M) there (3, radii, angles)."""

    points: np.ndarray
    three: np.ndarray


_DISCS: dict[tuple[int, int, DTypeLike], _Disc] = {}


def _disc(angles: int, radii: int, progress: bool) -> _Disc:
    """The polar grid, computed once for each size and precision."""
    size = (angles, radii, theory_dtype())
    if size not in _DISCS:
        _DISCS[size] = _new_disc(angles, radii, progress)
    return _DISCS[size]


def _new_disc(angles: int, radii: int, progress: bool) -> _Disc:
    theta = np.linspace(0.0, np.pi / 2, angles)
    r = np.linspace(0.0, 1.0, radii)[1:]
    points = np.stack([r[:, None] * np.cos(theta), r[:, None] * np.sin(theta)], axis=-1)
    points[np.abs(points) < 1e-15] = 0.0
    points[-1, 0] = _POINTS["semantic"]
    points[-1, -1] = _POINTS["positional"]
    row = jax.jit(lambda p: lax.map(lambda v: _three(v, coarse=True), p))
    bar = tqdm(points, desc="risk", disable=not progress, leave=False)
    rows = [np.asarray(row(jnp.asarray(p))) for p in bar]
    return _Disc(points, np.moveaxis(np.stack(rows), -1, 0))


@checked(
    a=_LINE_OF_WIDTHS,
    omega=_LINE,
    angles=whole(9),
    radii=whole(5),
    progress=optional(flag),
)
def phase_diagram(
    a: ArrayLike,
    omega: ArrayLike,
    *,
    angles: int = ANGLES,
    radii: int = RADII,
    progress: bool = False,
) -> PhaseDiagram:
    r"""Minima of the population risk, which of them SGD sets out for, and the label of each (ω, a).

        label = glob + 2 dyn + 4 multi

    `glob`: whether the lowest minimum is positional, e > 1/2; `dyn`: whether R_ee < R_mm at the
    origin; `multi`: whether there is more than one minimum on the disc m² + e² <= 1, m, e >= 0. The
    corners are tested exactly, the rest of the disc on a polar grid.

    Args:
        a: Numbers in (0, 1], (A,) or one.
        omega: Numbers in [0, 1), (W,) or one (at ω = 1 the risk does not depend on m).
        angles: Angles of the grid, an integer >= 9. Default 91.
        radii: Radii of the grid, an integer >= 5. Default 21.
        progress: Whether to show a bar. Default False.

    Returns:
        A `PhaseDiagram`.

    Raises:
        ValueError: For numbers out of range, or a smaller grid.

    Example:
        >>> import jaxsmi as smi
        >>> omega = [0.5, 0.6, 0.7]
        >>> diagram = smi.sgd.phase_diagram(1.0, omega, angles=19, radii=6)  # doctest: +SKIP
        >>> [smi.sgd.LABELS[k] for k in diagram.label[:, 0]]  # doctest: +SKIP
        ['unique semantic', 'global semantic', 'global semantic, positional dynamics']

    Cost:
        2000 integrals, 10 s at the first call; then microseconds a cell.

    Source:
        [ALSKZ25, Fig. 4]; [theory: online-sgd, Eq. (44)].
    """
    arguments = Arguments()
    widths = np.atleast_1d(np.asarray(arguments.array("a", a, "numbers in (0, 1]"), float))
    arguments.condition(bool(np.all((widths > 0) & (widths <= 1))), "a", a, "numbers in (0, 1]")
    weights = np.atleast_1d(np.asarray(arguments.array("omega", omega, "numbers in [0, 1)"), float))
    inside = bool(np.all((weights >= 0) & (weights < 1)))
    arguments.condition(inside, "omega", omega, "numbers in [0, 1)")
    disc = _disc(angles, radii, progress)
    cells = [[_cell(disc, float(w), float(x)) for x in widths] for w in weights]
    shape = (len(weights), len(widths))
    return PhaseDiagram(
        omega=weights,
        a=widths,
        label=np.array([c.label for row in cells for c in row], int).reshape(shape),
        hessian=np.array([c.hessian for row in cells for c in row]).reshape(*shape, 2),
        minima=[[c.minima for c in row] for row in cells],
        boundaries={name: np.asarray(value) for name, value in boundaries(widths).items()},
    )


class _Cell(NamedTuple):
    """One (ω, a): its label, (R_ee, R_mm) at the origin, and its minima (m, e, R)."""

    label: int
    hessian: tuple[float, float]
    minima: np.ndarray


def _cell(disc: _Disc, omega: float, a: float) -> _Cell:
    origin, semantic, positional, p, p2 = _corners()
    beta = 1.0 / (1.0 + np.exp(-2.0 * a**2))
    at = lambda table: _combined(table, omega, beta)
    constant = (1 - omega) ** 2 * p2 + omega**2 * beta**2 + 2 * omega * (1 - omega) * beta * p
    R = 2.0 * constant + at(disc.three)
    H = at(origin.hessian)
    # outwards the risk must fall, along the circle it must rise
    m_slope = at(semantic.gradient)[0]
    e_slope = at(positional.gradient)[1]
    corners = np.array(
        [
            m_slope < 0 and at(semantic.hessian)[1, 1] - m_slope > 0,
            e_slope < 0 and at(positional.hessian)[0, 0] - e_slope > 0,
        ]
    )
    minima = _minima(disc.points, R, corners)
    glob = minima[np.argmin(minima[:, 2]), 1] > 0.5
    dyn = H[1, 1] < H[0, 0]
    label = int(glob) + 2 * int(dyn) + 4 * int(len(minima) > 1)
    return _Cell(label, (float(H[1, 1]), float(H[0, 0])), minima)


def _minima(points: np.ndarray, R: np.ndarray, corners: np.ndarray) -> np.ndarray:
    """Local minima (m, e, R) on the quadrant: points lower than their eight neighbours on the grid.

    The risk is reflected at the axes and infinite outside the disc; the corners have their own
    test, not the grid's.
    """
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

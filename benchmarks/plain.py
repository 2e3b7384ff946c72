r"""The same integrals in plain NumPy and SciPy, as a script for
one model would do them: the rival in `bench_side_by_side.py`.

Nothing here comes from the package; equations are those of [TCDKZ25;
theory: multi-index, Eqs. (17) to (25), (50); deep-attention, Eqs.
(4) to (14)] and [BTEZ25; theory: random-matrices, Eqs. (3) to (12)].

* two attention layers, two tokens: x = (x_1, x_2) the
  fields of layer 1, A = c I + σ(x xᵀ), v = A^{-1} u,
      Z = Σ_{s=±1} ∫ dx |det A|^{-1} N((x, s v); ω, V),   g = V^{-1} (E[z|y] - ω)
  over the box ω_1 ± 6 √V_11, by `dblquad` (five scalar integrals of a Python
  function), by `cubature` (one integral of a vector, its nodes evaluated as
  arrays) or by a trapezoidal rule of K × K nodes, K chosen by hand;
* y = sign(z_1 z_2): six integrals over z_1 by `quad`, or the
  closed form with Owen's T; phase retrieval: a closed form, and its
  state evolution by `dblquad`;
* GAMP and online SGD as loops of NumPy, logistic regression by L-BFGS;
* extensive rank: the free convolution by a cubic at each point
  (`numpy.roots`), ∫ μ³ by `quad`, the fixed point by `brentq`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import integrate, optimize, special

BOX = (
    6.0  # half-width of the box in standard deviations: 2e-9 of the mass of a Gaussian lies outside
)
SQRT2, SQRT2PI = math.sqrt(2.0), math.sqrt(2.0 * math.pi)

# Two attention layers -------------------------------------------------------------------------


def read_label(y: np.ndarray) -> np.ndarray:
    """u (2,), up to its sign, from y = σ(u uᵀ) (2, 2): log(y_ij/y_ii) = u_i (u_j - u_i)."""
    a, b = np.log(y[0, 1] / y[0, 0]), np.log(y[1, 0] / y[1, 1])
    gap = np.sqrt(-(a + b))
    return np.array([a, -b]) / gap


def attention(x1: Any, x2: Any, skip: float, exp: Callable = np.exp) -> tuple[Any, Any, Any, Any]:
    """A = c I + σ(x xᵀ), row by row."""
    p, q = 1.0 / (1.0 + exp(x1 * (x2 - x1))), 1.0 / (1.0 + exp(x2 * (x1 - x2)))
    return skip + p, 1.0 - p, 1.0 - q, skip + q


def terms(
    x1: Any, x2: Any, u: Any, omega: Any, V: Any, skip: float, exp: Callable = np.exp
) -> tuple[Any, ...]:
    """The integrand of Z, and the same times z - ω of each of the
    four fields, summed over the sign of u (up to a constant)."""
    a, b, c, d = attention(x1, x2, skip, exp)
    det = a * d - b * c
    v1, v2 = (d * u[0] - b * u[1]) / det, (a * u[1] - c * u[0]) / det
    (w11, w12), (w21, w22) = omega
    (V11, V12), (_, V22) = V
    size = V11 * V22 - V12 * V12
    P11, P12, P22 = V22 / size, -V12 / size, V11 / size
    d1, d2 = x1 - w11, x2 - w12
    total, one, two = 0.0, 0.0, 0.0
    for sign in (1.0, -1.0):
        e1, e2 = sign * v1 - w21, sign * v2 - w22
        exponent = (
            P11 * (d1 * d1 + d2 * d2) + 2.0 * P12 * (d1 * e1 + d2 * e2) + P22 * (e1 * e1 + e2 * e2)
        )
        weight = exp(-0.5 * exponent) / abs(det)
        total, one, two = total + weight, one + weight * e1, two + weight * e2
    return total, total * d1, total * d2, one, two


def trapezoid(
    u: np.ndarray, omega: np.ndarray, V: np.ndarray, skip: float, nodes: int, box: float = BOX
) -> np.ndarray:
    """The five integrals on nodes × nodes points, some rows
    at a time: what fits a cache is several times as fast."""
    t, step = np.linspace(-box, box, nodes, retstep=True)
    scale, total = math.sqrt(V[0, 0]), np.zeros(5)
    x1, x2 = omega[0, 0] + scale * t[:, None], omega[0, 1] + scale * t[None, :]
    rows = max(4096 // nodes, 1)
    for k in range(0, nodes, rows):
        total += [np.sum(f) for f in terms(x1[k : k + rows], x2, u, omega, V, skip)]
    return total * (step * scale) ** 2


def by_grid(
    u: np.ndarray, omega: np.ndarray, V: np.ndarray, skip: float, nodes: float
) -> np.ndarray:
    """g (2, 2) with K = `nodes` points an axis."""
    return response(trapezoid(u, omega, V, skip, int(nodes)), V)


def by_dblquad(
    u: np.ndarray, omega: np.ndarray, V: np.ndarray, skip: float, tolerance: float
) -> np.ndarray:
    """g (2, 2) by QUADPACK: five scalar integrals, each to
    `tolerance` of Z (times √V for the moments)."""
    scale, mass = np.sqrt(np.diag(V)), trapezoid(u, omega, V, skip, 64)[0]
    box = [end for w in omega[0] for end in (w - BOX * scale[0], w + BOX * scale[0])]
    numbers = (
        u.tolist(),
        omega.tolist(),
        V.tolist(),
        skip,
        math.exp,
    )  # floats: several times as fast as NumPy's scalars
    found = []
    for k, unit in enumerate((1.0, scale[0], scale[0], scale[1], scale[1])):
        inner = lambda x2, x1, k=k: terms(x1, x2, *numbers)[k]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", integrate.IntegrationWarning)  # its error is measured
            found.append(
                integrate.dblquad(inner, *box, epsabs=tolerance * mass * unit, epsrel=tolerance)[0]
            )
    return response(np.array(found), V)


def by_cubature(
    u: np.ndarray, omega: np.ndarray, V: np.ndarray, skip: float, tolerance: float
) -> np.ndarray:
    """g (2, 2) by adaptive cubature: one vector of five integrals,
    each to `tolerance` of Z (times √V for the moments)."""
    scale, mass = np.sqrt(np.diag(V)), trapezoid(u, omega, V, skip, 64)[0]
    unit = np.array([1.0, scale[0], scale[0], scale[1], scale[1]])
    together = lambda x: np.stack(terms(x[:, 0], x[:, 1], u, omega, V, skip), axis=1) / unit
    low, high = omega[0] - BOX * scale[0], omega[0] + BOX * scale[0]
    found = integrate.cubature(
        together, low, high, rule="gk21", rtol=tolerance, atol=tolerance * mass
    )
    return response(found.estimate * unit, V)


def response(integrals: np.ndarray, V: np.ndarray) -> np.ndarray:
    """g = V^{-1} (E[z|y] - ω) (2, 2) from the five integrals."""
    return np.linalg.solve(V, (integrals[1:] / integrals[0]).reshape(2, 2))


def draw(
    rng: np.random.Generator, Q: np.ndarray, skip: float, samples: int
) -> tuple[np.ndarray, np.ndarray]:
    """(u, ω), (N, 2) and (N, 2, 2), of labels drawn at overlap Q."""
    root, rest = (np.linalg.cholesky(S + 1e-15 * np.eye(2)) for S in (Q, np.eye(2) - Q))
    xi, eta = rng.standard_normal((2, samples, 2, 2))
    omega = root @ xi
    z = omega + rest @ eta
    a, b, c, d = attention(z[:, 0, 0], z[:, 0, 1], skip)
    return np.stack(
        [a * z[:, 1, 0] + b * z[:, 1, 1], c * z[:, 1, 0] + d * z[:, 1, 1]], axis=1
    ), omega


def picard(
    step: Callable[[np.ndarray], np.ndarray],
    alpha: float,
    Q: np.ndarray,
    damping: float,
    tolerance: float,
) -> list:
    """Damped iteration of Q ← Q̂ (I + Q̂)^{-1}, Q̂ = α step(Q),
    until it moves by less than `tolerance`: all Q on the way."""
    path = [Q]
    while len(path) < 500 and (
        len(path) < 2 or np.abs(path[-1] - path[-2]).max() > tolerance * (1.0 - damping)
    ):
        Qhat = alpha * step(path[-1])
        path.append(damping * path[-1] + (1.0 - damping) * Qhat @ np.linalg.inv(np.eye(2) + Qhat))
    return path


# One-dimensional channels ---------------------------------------------------------------------


def sign_product_by_quad(
    y: float, omega: np.ndarray, V: np.ndarray, tolerance: float
) -> np.ndarray:
    """g (2,) of y = sign(z_1 z_2), one sample: Z, E z_1 and
    E z_2 as integrals over either half-line of z_1."""
    (w1, w2), (V11, V12, V22) = omega.tolist(), (float(V[0, 0]), float(V[0, 1]), float(V[1, 1]))
    slope, width, rest = V12 / V11, math.sqrt(V11), math.sqrt(V22 - V12 * V12 / V11)

    def moments(x: float, sign: float) -> tuple[float, float, float]:
        """φ(z_1) times (1, z_1 - ω_1, E[z_2 - ω_2]) on sign z_2 > 0."""
        density = math.exp(-0.5 * ((x - w1) / width) ** 2) / (width * SQRT2PI)
        shift = slope * (x - w1)
        t = sign * (w2 + shift) / rest
        mass = 0.5 * math.erfc(-t / SQRT2)
        edge = sign * rest * math.exp(-0.5 * t * t) / SQRT2PI
        return density * mass, density * mass * (x - w1), density * (shift * mass + edge)

    def integral(k: int, sign: float, low: float, high: float) -> float:
        return integrate.quad(
            lambda x: moments(x, sign)[k], low, high, epsabs=0.1 * tolerance, epsrel=tolerance
        )[0]

    total = np.zeros(3)
    for side in (1.0, -1.0):
        low, high = sorted((0.0, side * max(side * w1 + 8.0 * width, 2.0 * width)))
        total += [integral(k, y * side, low, high) for k in range(3)]
    return np.linalg.solve(V, total[1:] / total[0])


def sign_product_closed(y: np.ndarray, omega: np.ndarray, V: np.ndarray) -> np.ndarray:
    """g (N, 2) of y = sign(z_1 z_2), all samples at once: two quadrants by Owen's T."""
    scale = np.sqrt(np.diag(V))
    h, k = (omega / scale).T
    k = y * k
    rho = y * V[0, 1] / (scale[0] * scale[1])
    root = np.sqrt(1.0 - rho**2)
    cut = 0.5 * (h * k < 0.0)
    owen = special.owens_t(h, (k / h - rho) / root) + special.owens_t(k, (h / k - rho) / root)
    mass = (0.5 * (special.ndtr(h) + special.ndtr(k)) - owen - cut) + (
        0.5 * (special.ndtr(-h) + special.ndtr(-k)) - owen - cut
    )
    density = lambda x: np.exp(-0.5 * x**2) / SQRT2PI
    slope = lambda a, b: density(a) * special.erf((b - rho * a) / (root * SQRT2))
    return np.stack([slope(h, k) / (mass * scale[0]), y * slope(k, h) / (mass * scale[1])], axis=1)


def phase_retrieval(y: np.ndarray, omega: np.ndarray, V: float) -> np.ndarray:
    """g (N,) of y = |z|."""
    return (y * np.tanh(y * omega / V) - omega) / V


def phase_retrieval_error(alpha: float, tolerance: float) -> float:
    """V of state evolution of y = |z|: at each step one double integral by `dblquad`, as the
    research scripts of this field do it, until V stands to the tolerance."""
    V, moved = 0.9, 1.0
    while abs(moved) > tolerance:
        q = 1.0 - V

        def power(z: float, x: float, V: float = V, q: float = q) -> float:
            omega = math.sqrt(q) * x
            t = (z - omega) / math.sqrt(V)
            g = (abs(z) * math.tanh(abs(z) * omega / V) - omega) / V
            return g**2 * math.exp(-0.5 * (x**2 + t**2)) / (2.0 * math.pi * math.sqrt(V))

        edges = [
            lambda x, s=s, V=V, q=q: math.sqrt(q) * x + s * BOX * math.sqrt(V) for s in (-1, 1)
        ]
        mean, _ = integrate.dblquad(power, -BOX, BOX, *edges, epsabs=tolerance)
        moved = 1.0 / (1.0 + alpha * mean) - V
        V += moved
    return V


# Learners -------------------------------------------------------------------------------------


def message_passing(x: np.ndarray, y: np.ndarray, w: np.ndarray, steps: int) -> np.ndarray:
    """Ŵ (D,) after so many steps of GAMP of y = |z|, prior N(0, 1): a loop in NumPy."""
    x, V, onsager = x / math.sqrt(x.shape[1]), 1.0, 0.0
    for _ in range(steps):
        omega = x @ w - onsager
        tanh = np.tanh(y * omega / V)
        g = (y * tanh - omega) / V
        A = -np.sum((y**2 * (1.0 - tanh**2) / V - 1.0) / V) / len(w)
        w, V = (x.T @ g + A * w) / (1.0 + A), 1.0 / (1.0 + A)
        onsager = V * g
    return w


def online_sgd(dimension: int, runs: int, steps: int, rate: float, overlap: float) -> np.ndarray:
    """Cosines (runs,) of online SGD on (|w·x|/√D - y)², a fresh x at every step, from a w of norm
    √D with this overlap: a loop in NumPy."""
    rng, D = np.random.default_rng(0), dimension
    teacher, noise = np.linalg.qr(rng.standard_normal((D, 2)))[0].T * math.sqrt(D)
    w = np.tile(overlap * teacher + math.sqrt(1.0 - overlap**2) * noise, (runs, 1))
    for _ in range(steps):
        x = rng.standard_normal((runs, D)) / math.sqrt(D)
        z = np.sum(w * x, axis=1)
        w -= 2.0 * rate * ((np.abs(z) - np.abs(x @ teacher)) * np.sign(z))[:, None] * x
    return w @ teacher / (np.linalg.norm(w, axis=1) * math.sqrt(D))


def logistic_regression(x: np.ndarray, y: np.ndarray, ridge: float, tolerance: float) -> np.ndarray:
    """The minimiser (D,) of Σ log(1 + exp(-y w·x/√D)) + λ/2 |w|², by SciPy's L-BFGS."""
    x = x / math.sqrt(x.shape[1])

    def risk(w: np.ndarray) -> tuple[float, np.ndarray]:
        z = y * (x @ w)
        slope = -y * special.expit(-z)
        return np.logaddexp(0.0, -z).sum() + 0.5 * ridge * w @ w, x.T @ slope + ridge * w

    options = {"maxiter": 10000, "maxfun": 20000, "ftol": 0.0, "gtol": tolerance}
    return optimize.minimize(
        risk, np.zeros(x.shape[1]), jac=True, method="L-BFGS-B", options=options
    ).x


# Extensive rank -------------------------------------------------------------------------------


def density(x: float, rho: float, delta: float) -> float:
    """μ(x) = Im g/π of the free convolution: (Δ/a) g³ - (Δ
    + x/a) g² + (x - a + 1/a) g - 1 = 0, a = √ρ."""
    a = math.sqrt(rho)
    return (
        float(np.max(np.roots([delta / a, -(delta + x / a), x - a + 1.0 / a, -1.0]).imag)) / math.pi
    )


def bands(rho: float, delta: float) -> list[tuple[float, float]]:
    """The intervals of the support: its edges are z(g) where z'(g)
    = Δ - 1/g² + ρ/(g - a)² = 0, times g² (g - a)² a quartic."""
    a = math.sqrt(rho)
    roots = np.roots([delta, -2.0 * a * delta, a * a * delta + rho - 1.0, 2.0 * a, -a * a])
    g = roots[np.abs(roots.imag) < 1e-7 * np.abs(roots)].real
    edges = np.sort(-rho / (g - a) + delta * g + 1.0 / g)
    return list(zip(edges[::2], edges[1::2], strict=True))


def mmse(rho: float, qhat: float, tolerance: float) -> float:
    """V = Δ - (4π²/3) Δ² ∫ μ³, Δ = 1/q̂."""
    delta = 1.0 / qhat
    cubed = sum(
        integrate.quad(
            lambda x: density(x, rho, delta) ** 3, low, high, epsabs=0.0, epsrel=tolerance
        )[0]
        for low, high in bands(rho, delta)
    )
    return delta - 4.0 * math.pi**2 / 3.0 * delta**2 * cubed


def softmax_error(rho: float, alpha: float, tolerance: float, tokens: int = 2) -> float:
    """V of softmax attention of extensive rank at α = n/d²:
    the root of q̂ V(q̂) = α (T² + T - 2)."""
    goal = alpha * (tokens**2 + tokens - 2)
    above = lambda l: math.exp(l) * mmse(rho, math.exp(l), tolerance) - goal
    l = optimize.brentq(
        above, math.log(goal), math.log(goal) + 12.0, xtol=tolerance, rtol=max(tolerance, 1e-15)
    )
    return goal / math.exp(l)

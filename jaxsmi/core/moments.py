r"""Tests of inputs against iid entries of mean zero and variance one, by second moments.

Equations here [theory: inputs, Eqs. (9) to (14)]: a sum of squares T over entries x_{μmd}, its mean
and variance when the entries are iid of any symmetric law, and the tail of a chi-square of both:

    T ~ a χ²_h,   a = Var T/(2 E T),   h = 2 (E T)²/Var T,   z = (T - E T)/√Var T

Moments of T are those of random signs of the entries themselves, or of random groups of their
squares, so that they hold for heavy tails and for ±1. NumPy, not JAX: nothing is compiled.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

# A quick test takes so many features, tokens and numbers: some hundredths of a second, beside
# seconds of message passing on the same data.
_FEATURES = 64
_TOKENS = 8
_NUMBERS = 2**17
_RUN = 8  # features in a row: neighbours may be correlated where others are not
_RARE = 1e-8  # p-value of one of six statistics: no false alarm in a lifetime
_LARGE = 0.05  # below this relative size message passing does not notice (empirical)
_EXACT = 1e-12  # relative variance of a statistic that is constant up to rounding


class Moment(NamedTuple):
    """One statistic of the inputs.

    Attributes:
        name: What it measures.
        size: How large the departure is, relative to what message passing assumes.
        z: How far it is from its mean for iid entries, in standard deviations.
        p_value: Of iid entries: how likely they are so far from it.
        remedy: What to do where it fails.
    """

    name: str
    size: float
    z: float
    p_value: float
    remedy: str

    @property
    def fails(self) -> bool:
        """True where it is beyond chance and large enough to matter."""
        return self.p_value < _RARE and self.size > _LARGE


class SecondMoments(NamedTuple):
    """Statistics of inputs (`Dataset.second_moments`).

    Attributes:
        moments: The statistics.
        features: Largest eigenvalue of the sample covariance of features; NaN in a quick test.
        edge: Its mean and its standard deviation for iid entries.
        tokens: Covariance of the tokens (M, M), averaged over features.
    """

    moments: tuple[Moment, ...]
    features: float
    edge: tuple[float, float]
    tokens: np.ndarray

    @property
    def failing(self) -> tuple[Moment, ...]:
        """The statistics that fail."""
        return tuple(moment for moment in self.moments if moment.fails)

    @property
    def message(self) -> str:
        """The statistics that fail, with their sizes and remedies; empty where none does."""
        return "; ".join(
            f"{moment.name} (size {moment.size:.2g}, z = {moment.z:.1f}: {moment.remedy})"
            for moment in self.failing
        )

    def __str__(self) -> str:
        lines = [f"{'':28}{'size':>9}{'z':>9}{'p':>10}"]
        for moment in self.moments:
            row = f"{moment.name:28}{moment.size:9.3f}{moment.z:9.1f}{moment.p_value:10.1e}"
            lines.append(row + ("  fails" if moment.fails else ""))
        low = f"{self.edge[0]:.3f} ± {self.edge[1]:.3f}"
        lines.append(f"largest eigenvalue of the features: {self.features:.3f}; iid: {low}")
        return "\n".join(lines)


def second_moments(
    inputs: np.ndarray, dimension: int | None = None, eigenvalue: bool = True
) -> SecondMoments:
    """The statistics of inputs (N, M, D), or of a block of them of total dimension `dimension`.
    `eigenvalue`: with the largest eigenvalue of the features, which costs D³."""
    x = np.asarray(inputs, np.float64)
    D = x.shape[2] if dimension is None else dimension
    N, M, _ = x.shape
    means = _means(x)
    # else a mean would show in every other statistic, and hide which assumption fails
    if means.fails:
        x = x - np.mean(x, axis=0)
    squares = x**2
    mean = float(np.mean(squares))
    tokens = np.einsum("nmd,nkd->mk", x, x, optimize=True) / (N * x.shape[2])
    if mean == 0.0:
        nothing = Moment("variance of the entries", 1.0, -np.inf, 0.0, "inputs do not vary")
        return SecondMoments((nothing,), 0.0, (np.nan, np.nan), tokens)
    deviation = squares - mean
    moments = (
        means,
        _variance(mean, squares),
        _groups("variances of the features", deviation, mean, (0, 1), "whiten, or scale each"),
        _groups("norms of the tokens", deviation, mean, (2,), "divide each token by its norm"),
        # one token a sample: those of one sample may be correlated, and the rows must not be
        _correlations(x[np.arange(N), np.arange(N) % M], D),
        *([_tokens(x, tokens)] if M > 1 else []),
    )
    top = _largest(x.reshape(N * M, -1)) if eigenvalue else np.nan
    return SecondMoments(moments, top, _edge(N * M, x.shape[2], mean), tokens)


def block_of(shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Samples, tokens and features of a block of inputs (N, M, D) for a quick test."""
    N, M, D = shape
    runs = -(-min(D, _FEATURES) // _RUN)
    starts = np.linspace(0, max(D - _RUN, 0), runs).astype(int)
    features = np.unique((starts[:, None] + np.arange(_RUN)).ravel())
    features = np.arange(D) if D <= _FEATURES else features
    tokens = np.unique(np.linspace(0, M - 1, min(M, _TOKENS)).astype(int))
    most = max(_NUMBERS // (len(features) * len(tokens)), 2)
    samples = np.unique(np.linspace(0, N - 1, min(N, most)).astype(int))
    return samples, tokens, features


def _moment(name: str, size: float, T: float, law: tuple[float, float], remedy: str) -> Moment:
    """A sum of squares beside its mean and variance (module docstring). A lower tail is that of the
    normal law, which is the wider one there."""
    mean, variance = law
    if variance <= _EXACT * mean**2 or mean == 0.0:
        return Moment(name, 0.0, 0.0, 1.0, remedy)
    from scipy.special import gammaincc  # here: importing it takes longer than the sums

    z = (T - mean) / np.sqrt(variance)
    scale = 0.5 * variance / mean
    upper = float(gammaincc(mean**2 / variance, max(T, 0.0) / (2.0 * scale)))
    p_value = min(1.0, 2.0 * upper if z > 0.0 else _two_sided(z))
    return Moment(name, float(size), float(z), p_value, remedy)


def _two_sided(z: float) -> float:
    return math.erfc(abs(z) / math.sqrt(2.0))


def _variance(mean: float, squares: np.ndarray) -> Moment:
    """Mean square of all entries: one."""
    name = "variance of the entries"
    remedy = "divide the inputs by its root, or give the prior the second moment of the fields"
    kurtosis = float(np.mean(squares**2)) / mean**2
    # of ±1 the mean square does not fluctuate, and single precision rounds it to 1e-7
    spread = max(np.sqrt(max(kurtosis - 1.0, 0.0) / squares.size), 1e-7)
    z = float((mean - 1.0) / spread)
    return Moment(name, abs(mean - 1.0), z, _two_sided(z), remedy)


def _means(x: np.ndarray) -> Moment:
    """Σ of the squared means over samples of each entry (m, d): moments of random signs."""
    N = x.shape[0]
    squares = x**2
    second = np.sum(squares, axis=0)
    fourth = np.sum(squares**2, axis=0)
    T = float(np.sum(np.sum(x, axis=0) ** 2))
    expected = float(np.sum(second))
    variance = float(np.sum(2.0 * second**2 - 2.0 * fourth))
    size = (T - expected) / max(N * expected, np.finfo(float).tiny)
    return _moment("means", size, T, (expected, variance), "subtract the means from the inputs")


def _groups(
    name: str, deviation: np.ndarray, mean: float, axes: tuple[int, ...], remedy: str
) -> Moment:
    """Σ of the squared means of x² - ⟨x²⟩ over groups of entries: the analysis of variance."""
    values = np.mean(deviation, axis=axes).ravel()
    K = values.size
    each = deviation.size // K
    second = float(np.mean(deviation**2))
    if second <= _EXACT * mean**2 or K < 2:
        return Moment(name, 0.0, 0.0, 1.0, remedy)
    excess = float(np.mean(deviation**4)) / second**2 - 3.0
    expected = (K - 1) * second / each
    variance = 2.0 * (K - 1) * (second / each) ** 2 * max(1.0 + 0.5 * excess / each, 0.0)
    T = float(np.sum(values**2))
    size = (T - expected) / (K * mean**2)
    return _moment(name, size, T, (expected, variance), remedy)


def _correlations(rows: np.ndarray, dimension: int) -> Moment:
    """Σ of the squared correlations of pairs of features over one token a sample; both tails."""
    remedy = "data.whiten(covariance)"
    name = "correlations of the features"
    norms = np.sum(rows**2, axis=0)
    units = rows[:, norms > 0.0] / np.sqrt(norms[norms > 0.0])
    K = units.shape[1]
    if K < 2 or len(rows) < 2:
        return Moment(name, 0.0, 0.0, 1.0, remedy)
    T, law = _over_pairs(units)
    size = abs(T - law[0]) / (0.5 * K) * (dimension - 1) / (K - 1)
    if law[0] > T:
        remedy = "smaller than chance: whiten by a covariance from other samples, many more than D"
    return _moment(name, size, T, law, remedy)


def _tokens(x: np.ndarray, covariance: np.ndarray) -> Moment:
    """Σ of the squared covariances of pairs of tokens."""
    T, law = _over_pairs(np.swapaxes(x, 1, 2).reshape(-1, x.shape[1]))
    roots = np.sqrt(np.maximum(np.diagonal(covariance), np.finfo(float).tiny))
    size = float(np.max(np.abs(np.tril(covariance / np.outer(roots, roots), -1))))
    remedy = "data.whiten(covariance, tokens=..) and model.mixed(..)"
    return _moment("correlations of the tokens", size, T, law, remedy)


def _over_pairs(columns: np.ndarray) -> tuple[float, tuple[float, float]]:
    """Σ over pairs of columns of their squared scalar product; its mean and variance for entries of
    random signs."""
    squares = columns**2
    common = squares.T @ squares
    # each column with itself is no pair: the diagonal is taken off, and each pair counted once
    total = lambda matrix: 0.5 * float(np.sum(matrix) - np.trace(matrix))
    fourth = 0.5 * float(np.sum(np.sum(squares**2, axis=1) ** 2) - np.sum(squares**4))
    variance = 2.0 * (total(common**2) - fourth)
    return total((columns.T @ columns) ** 2), (total(common), variance)


def _largest(rows: np.ndarray) -> float:
    """The largest eigenvalue of the sample covariance of rows (n, D)."""
    n, D = rows.shape
    # both have the same largest eigenvalue, and the smaller is cheaper
    gram = rows.T @ rows if n >= D else rows @ rows.T
    return float(np.linalg.eigvalsh(gram)[-1]) / n


def _edge(n: int, D: int, mean: float) -> tuple[float, float]:
    """Mean and standard deviation of that eigenvalue for iid entries: the edge of Marchenko and
    Pastur, and the law of Tracy and Widom around it."""
    low = np.sqrt(max(n - 1, 1))
    high = np.sqrt(D)
    edge = (low + high) ** 2 / n
    scale = (low + high) * (1.0 / low + 1.0 / high) ** (1.0 / 3.0) / n
    return float(mean * (edge - 1.2065336 * scale)), float(mean * 1.2679814 * scale)

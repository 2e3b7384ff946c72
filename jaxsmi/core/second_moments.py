"""A test that inputs have iid entries of mean zero and variance one.

Equations [theory: inputs, Eqs. (9) to (13)]: a sum of squares T over entries x_{μmd}, its mean and
variance when the entries are iid of any symmetric law, and the tail of a chi-square of both:

    T ~ a χ²_h,   a = Var T/(2 E T),   h = 2 (E T)²/Var T,   z = (T - E T)/√Var T

Moments of T are those of random signs of the entries themselves, or of random groups of their
squares, so that they hold for heavy tails and for ±1.

Letters of the shapes: N samples, M tokens, D dimension of a token.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

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
        size: How far the inputs are from iid entries, 0 where they are not; above 0.05 message
            passing notices. It is: mean² over variance; |mean square - 1|; the relative variance of
            the features' variances, of the tokens' square norms, and of the eigenvalues of the
            features' correlations, beyond chance; the largest correlation of two tokens.
        z: The same in standard deviations of the statistic of iid entries.
        p_value: Probability that iid entries are so far from its mean.
        remedy: What to do where it fails.
    """

    name: str
    size: float
    z: float
    p_value: float
    remedy: str

    @property
    def fails(self) -> bool:
        """True if it is beyond chance and large enough to matter."""
        return self.p_value < _RARE and self.size > _LARGE


class SecondMoments(NamedTuple):
    """Statistics of inputs (`Dataset.second_moments`)."""

    moments: tuple[Moment, ...]

    @property
    def failing(self) -> tuple[Moment, ...]:
        """The statistics that fail."""
        return tuple(moment for moment in self.moments if moment.fails)

    @property
    def message(self) -> str:
        """The statistics that fail, with their sizes and remedies; empty if none does."""
        return "; ".join(f"{x.name} (size {x.size:.3f}: {x.remedy})" for x in self.failing)

    def __str__(self) -> str:
        lines = [f"{'':28}{'size':>9}{'z':>9}{'p':>10}"]
        for moment in self.moments:
            row = f"{moment.name:28}{moment.size:9.3f}{moment.z:9.1f}{moment.p_value:10.1e}"
            lines.append(row + ("  fails" if moment.fails else ""))
        lines.append(
            f"size: distance from iid entries (0: none). fails: size > {_LARGE:g} and p < {_RARE:g}"
        )
        return "\n".join(lines)


def second_moments(inputs: ArrayLike, mean: np.ndarray, quick: bool = False) -> SecondMoments:
    """The statistics of inputs (N, M, D) without their mean (M, D); `quick`: of a block of them."""
    D = np.shape(inputs)[2]
    if quick:
        block = block_of(np.shape(inputs))
        # known inputs stay known inside jit, and so must a block of them
        with jax.ensure_compile_time_eval():
            inputs = _part(inputs, np.ix_(*block))
        mean = mean[np.ix_(*block[1:])]
    x = np.asarray(inputs, np.float64) - mean
    N, M, _ = x.shape
    means = _means(x)
    # a mean would show in every other statistic, and hide which assumption fails
    if means.fails:
        x = x - np.mean(x, axis=0)
    square = float(np.mean(x**2))
    if square == 0.0:
        nothing = Moment("variance of the entries", 1.0, -np.inf, 0.0, "the inputs do not vary")
        return SecondMoments((nothing,))
    deviation = x**2 / square - 1.0
    # one token a sample: those of one sample may be correlated, and the rows must not be
    rows = x[np.arange(N), np.arange(N) % M]
    moments = (
        means,
        _variance(square, deviation),
        _groups("variances of the features", deviation, (0, 1), "data.standardise()"),
        _groups("norms of the tokens", deviation, (2,), "divide each by its norm over √D"),
        _correlations(rows, D),
        _tokens(np.swapaxes(x, 1, 2).reshape(-1, M)),
    )
    return SecondMoments(moments[:-1] if M == 1 else moments)


# compiled: from outside jit one program, not one an operation
_part = jax.jit(lambda inputs, block: jnp.asarray(inputs)[block])


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


class _Law(NamedTuple):
    """A sum of squares T, its mean and variance for iid entries."""

    T: float
    mean: float
    variance: float


def _of_random_signs(sums: np.ndarray, second: np.ndarray, fourth: np.ndarray) -> _Law:
    """T = Σ_k (Σ_i p_ki)², from Σ_i p_ki, Σ_i p_ki² and Σ_i p_ki⁴."""
    variance = 2.0 * float(np.sum(second**2 - fourth))
    return _Law(float(np.sum(sums**2)), float(np.sum(second)), variance)


def _over_pairs(columns: np.ndarray) -> _Law:
    """Law of T, the sum of the squared scalar products of pairs of columns."""
    # entries above the diagonal: each pair once, and no column with itself
    return _of_random_signs(*(np.triu(p.T @ p, 1) for p in (columns, columns**2, columns**4)))


def _moment(name: str, size: float, law: _Law, remedy: str) -> Moment:
    """Compare a sum of squares with its law. The lower tail is that of the normal law, which is the
    wider one there."""
    T, mean, variance = law
    if variance <= _EXACT * mean**2 or mean == 0.0:
        return Moment(name, 0.0, 0.0, 1.0, remedy)
    from scipy.special import gammaincc  # here: importing it takes longer than the sums

    z = (T - mean) / np.sqrt(variance)
    upper = float(gammaincc(mean**2 / variance, max(T, 0.0) * mean / variance))
    p_value = min(1.0, 2.0 * upper if z > 0.0 else _two_sided(z))
    return Moment(name, float(size), float(z), p_value, remedy)


def _two_sided(z: float) -> float:
    return math.erfc(abs(z) / math.sqrt(2.0))


def _variance(square: float, deviation: np.ndarray) -> Moment:
    """Compare the mean square of all entries with one."""
    remedy = "data.standardise()"
    # the mean square of ±1 does not fluctuate, and single precision rounds it to 1e-7
    spread = max(np.sqrt(np.mean(deviation**2) / deviation.size), 1e-7)
    z = float((square - 1.0) / spread)
    return Moment("variance of the entries", abs(square - 1.0), z, _two_sided(z), remedy)


def _means(x: np.ndarray) -> Moment:
    """Σ of the squared means over samples of each entry (m, d)."""
    law = _of_random_signs(*(np.sum(x**power, axis=0) for power in (1, 2, 4)))
    size = (law.T - law.mean) / max(len(x) * law.mean, np.finfo(float).tiny)
    return _moment("means", size, law, "data.standardise()")


def _groups(name: str, deviation: np.ndarray, axes: tuple[int, ...], remedy: str) -> Moment:
    """Σ of the squared means of x²/⟨x²⟩ - 1 over groups of entries: the analysis of variance."""
    values = np.mean(deviation, axis=axes).ravel()
    K = values.size
    each = deviation.size // K
    second = float(np.mean(deviation**2))
    if second <= _EXACT:
        return Moment(name, 0.0, 0.0, 1.0, remedy)
    excess = float(np.mean(deviation**4)) / second**2 - 3.0
    scale = second / each
    T, mean = float(np.sum(values**2)), (K - 1) * scale
    variance = 2.0 * scale * mean * max(1.0 + 0.5 * excess / each, 0.0)
    return _moment(name, (T - mean) / K, _Law(T, mean, variance), remedy)


def _correlations(rows: np.ndarray, dimension: int) -> Moment:
    """Σ of the squared correlations of pairs of features over one token a sample; both tails."""
    norms = np.sum(rows**2, axis=0)
    units = rows[:, norms > 0.0] / np.sqrt(norms[norms > 0.0])
    law = _over_pairs(units)
    pairs = max(units.shape[1] * (units.shape[1] - 1), 1)
    size = 2.0 * abs(law.T - law.mean) * (dimension - 1) / pairs
    remedy = "data.whiten()"
    if law.mean > law.T:
        remedy = "smaller than chance: data.whiten(other_inputs), of many more samples than D"
    return _moment("correlations of the features", size, law, remedy)


def _tokens(columns: np.ndarray) -> Moment:
    """Σ of the squared covariances of pairs of tokens (samples and features, M)."""
    covariance = columns.T @ columns
    roots = np.sqrt(np.maximum(np.diagonal(covariance), np.finfo(float).tiny))
    size = float(np.max(np.abs(np.tril(covariance / np.outer(roots, roots), -1))))
    remedy = "data.whiten(tokens=C), and a link of z @ C^(1/2)"
    return _moment("correlations of the tokens", size, _over_pairs(columns), remedy)

r"""Inputs whose tokens have means: fixed directions such as positional encodings.

Equations here [CBKZ24; theory: empirical-risk, section 1], token m of a sample, U (K, D):

    x_m = ξ_m + Σ_k E_mk u_k/√D,      ξ iid N(0, 1),   G = U Uᵀ/D,   R* = W* Uᵀ/D
    U = R*ᵀ S^{-1} W* + (G - R*ᵀ S^{-1} R*)^{1/2} N(0, 1)

The mean of a token has norm O(1): it is lost among the D entries, but moves the fields by R* Eᵀ.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import symmetric, theory_dtype
from jaxsmi.core.validate import check
from jaxsmi.numerics.linear_algebra import sqrt_psd

_ROUNDING = 1e-9  # relative error of eigenvalues and of symmetry: some 1e6 roundings in float64
# standard deviations by which overlaps of directions may differ from the model's: beyond them
# (p < 1e-14) they belong to another model
_MAX_DEVIATIONS = 8.0


class Directions(NamedTuple):
    """Fixed directions of inputs: `vectors` U (K, D), and the `encoding` E (M, K)."""

    vectors: Array
    encoding: Array

    @property
    def mean(self) -> Array:
        """E U/√D (M, D)."""
        return self.encoding @ self.vectors / jnp.sqrt(float(self.vectors.shape[1]))


class Tokens(eqx.Module):
    """Tokens around fixed directions: the `inputs=` of a `MultiIndex`.

    Args:
        encoding: E (M, K), coefficients of the tokens along K directions; (M,) for one direction.
        gram: G = U Uᵀ/D (K, K) of the directions, positive semi-definite. Default: I.
        cross: R* = W* Uᵀ/D (P, K), overlap of the teacher with the directions; (P,) for one
            direction. Default: zero.

    Raises:
        ValueError: For arrays of other shapes, or a G that is not positive semi-definite.

    Example:
        >>> import jax, jaxsmi as smi
        >>> inputs = smi.Tokens(encoding=[[2.0], [-2.0]])
        >>> model = smi.MultiIndex(lambda z: z[0, 0] * z[0, 1], indices=1, tokens=2, inputs=inputs)
        >>> model.sample(jax.random.key(0), dimension=50, alpha=2.0).directions.shape
        (1, 50)

    Source:
        [CBKZ24], [theory: empirical-risk, section 1].
    """

    encoding: Array
    gram: Array
    cross: Array | None

    def __init__(
        self, encoding: ArrayLike, gram: ArrayLike | None = None, cross: ArrayLike | None = None
    ):
        allowed = "E of shape (tokens M, directions K), or (M,)"
        E = validate.array("encoding", encoding, allowed)
        check(E.ndim in (1, 2), "encoding", encoding, allowed)
        self.encoding = E.reshape(len(E), -1)
        K = self.encoding.shape[1]
        self.gram = validate.semidefinite("gram", np.eye(K) if gram is None else gram, K)
        self.cross = None
        if cross is not None:
            allowed = f"R* of shape (indices P, {K}){', or (P,)' if K == 1 else ''}"
            R = validate.array("cross", cross, allowed)
            R = R[:, None] if R.ndim == 1 and K == 1 else R
            check(R.ndim == 2 and R.shape[1] == K, "cross", cross, allowed)
            self.cross = R

    def teacher_direction_overlap(self, indices: int) -> Array:
        """Return R* (P, K); zero without `cross`."""
        if self.cross is None:
            return jnp.zeros((indices, len(self.gram)), self.gram.dtype)
        return self.cross

    def check_fit(self, indices: int, tokens: int, second_moment: Array) -> None:
        """Raise a ValueError for shapes that differ from the model's, or overlaps that no teacher
        of this S (P, P) can have."""
        K = len(self.gram)
        allowed = f"E of shape ({tokens}, {K}): one row for each token"
        check(len(self.encoding) == tokens, "encoding", self.encoding, allowed)
        if self.cross is None:
            return
        check(self.cross.shape == (indices, K), "cross", self.cross, f"shape ({indices}, {K})")
        joint = self.joint_gram(second_moment)
        definite = jnp.linalg.eigvalsh(symmetric(joint))[0] >= -_ROUNDING * jnp.max(jnp.abs(joint))
        check(definite, "cross", self.cross, "R* with [[S, R*], [R*ᵀ, G]] positive semi-definite")

    def joint_gram(self, second_moment: Array) -> Array:
        """Return [[S, R*], [R*ᵀ, G]], the expected Gram matrix of teacher and directions."""
        R = self.teacher_direction_overlap(len(second_moment)).astype(second_moment.dtype)
        return jnp.block([[second_moment, R], [R.T, self.gram]])

    def directions(
        self,
        key: PRNGKeyArray | None,
        teacher: Array,
        second_moment: Array,
        vectors: ArrayLike | None,
    ) -> Directions:
        """Return the directions `vectors`, or draw some with these overlaps on average."""
        shape = (len(self.gram), teacher.shape[1])
        allowed = f"U of shape {shape}: rows of squared norm D and of the overlaps of {self}"
        if vectors is not None:
            U = validate.array("directions", vectors, allowed, shape=shape)
            self._check_overlaps(U, teacher, second_moment)
            return Directions(U, self.encoding)
        if key is None:
            raise ValueError(f"directions: got None; allowed: {allowed}.")
        return Directions(self._draw(key, teacher, second_moment), self.encoding)

    def _check_overlaps(self, U: Array, teacher: Array, second_moment: Array) -> None:
        """Raise a ValueError for directions with overlaps, among themselves or with the teacher,
        that differ from G and R* by more than fluctuations of drawn directions."""
        D = teacher.shape[1]
        rows = jnp.concatenate([teacher, U]).astype(theory_dtype())
        expected = self.joint_gram(second_moment)
        if len(rows) != len(expected):  # a teacher of other rows than the model
            rows, expected = U.astype(theory_dtype()), self.gram
        # an overlap of two Gaussian rows fluctuates by √(S_aa S_bb/D), the norm of one by √2 times
        # that
        size = jnp.diagonal(expected)
        allowance = _MAX_DEVIATIONS * jnp.sqrt(2.0 * jnp.outer(size, size) / D)
        within = (jnp.abs(rows @ rows.T / D - expected) <= allowance + _ROUNDING)[-len(U) :]
        allowed = f"U with U Uᵀ/D = G and W* Uᵀ/D = R* up to O(1/√D), of {self}"
        check(jnp.all(within), "directions", U, allowed)

    def _draw(self, key: PRNGKeyArray, teacher: Array, second_moment: Array) -> Array:
        """Draw U (K, D) (module docstring)."""
        normal = jax.random.normal(key, (len(self.gram), teacher.shape[1]), theory_dtype())
        if self.cross is None:
            # without R*, S is not inverted, and may be singular
            return sqrt_psd(self.gram) @ normal
        # the part of U that the teacher fixes, and a rest that is independent of it
        into = jnp.linalg.solve(second_moment, self.cross).T
        rest = symmetric(self.gram - into @ self.cross)
        return into @ teacher + sqrt_psd(rest) @ normal

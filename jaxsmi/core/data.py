"""Data sets: inputs, labels and teacher; inputs that are stored, or drawn again at each read; a
test of their covariance, and coordinates in which it is the identity.

Letters of the shapes: N samples, M tokens, D dimension of a token, P indices.

    α = N/D, or what the model that made the data counts by (matrices: n/d², n/(dL))

Equations of whitening [theory: inputs, Eqs. (1) to (4)], features of covariance Σ (D, D), tokens of
C (M, M):

    Σ = U diag(s) Uᵀ,   x = C^{1/2} x' diag(s)^{1/2} Uᵀ,   W' = W U diag(s)^{1/2}
    W x^T/√D = (W' x'^T/√D) C^{1/2}

x' has iid entries where x is Gaussian, and iid weights have columns of variances s.

Equations of the test [theory: inputs, Eqs. (9) to (13)]: a sum of squares T over entries x_{μmd},
its mean and variance when the entries are iid of any symmetric law, and the tail of a chi-square of
both:

    T ~ a χ²_h,   a = Var T/(2 E T),   h = 2 (E T)²/Var T,   z = (T - E T)/√Var T

Moments of T are those of random signs of the entries themselves, or of random groups of their
squares, so that they hold for heavy tails and for ±1.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import concrete, theory_dtype
from jaxsmi.core.display import describe, safe_repr
from jaxsmi.core.validate import check

# Data sets


class HasTeacher(Protocol):
    """Data with a teacher: a `Dataset` or a `Stream`."""

    @property
    def teacher(self) -> Array | None:
        """The teacher's weights; None for a user's own data."""

    @property
    def model(self) -> Any:
        """The model that made the labels; None: taken to be the one that learns."""

    @property
    def dimension(self) -> int:
        """D."""
        ...

    @property
    def directions(self) -> Array | None:
        """U (K, D), the fixed directions of the inputs; None: they have none."""

    @property
    def encoding(self) -> Array | None:
        """E (M, K), what every token has of them."""


def _finite_numbers(
    name: str, value: ArrayLike, allowed: str, shape: Sequence[int | None] | None = None
) -> Array:
    """Finite real numbers in their own precision."""
    own = np.dtype(getattr(value, "dtype", object))
    # without 64 bits JAX takes the nearest precision that it has
    dtype = None if own.kind == "O" else jax.dtypes.canonicalize_dtype(own)
    check(validate.is_real(value), name, value, allowed)
    return validate.array(name, value, allowed, shape=shape, dtype=dtype)


def _as_inputs(inputs: ArrayLike) -> Array:
    allowed = "real numbers (N, M, D): samples, tokens, entries; of one token (N, D)"
    array = _finite_numbers("inputs", inputs, allowed)
    check(array.ndim in (2, 3) and array.size > 0, "inputs", inputs, allowed)
    array = array[:, None] if array.ndim == 2 else array
    # estimates are rounded to the precision of the inputs: integers would lose them
    # (one-hot tokens arrive as integers)
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(theory_dtype())


class Regenerated(eqx.Module):
    """Inputs (N, M, D) that are not stored: each read draws a block again from the key and the
    number of the block.

    `model.sample(.., store=False)` makes it. Memory: that of one block while it is read.

    Attributes:
        numbers: Numbers of the blocks, (K,).
        key: Random key of all blocks.
        law: law(key, shape, dtype) draws one block.
        block_size: Samples in a block, N/K.
        input_shape: Shape (M, D) of one input.
        dtype: Precision of the inputs.
        mean: Mean of every input (M, D); None: zero.
    """

    numbers: Array
    key: PRNGKeyArray
    law: Callable[[PRNGKeyArray, tuple[int, ...], DTypeLike], Array] = eqx.field(static=True)
    block_size: int = eqx.field(static=True)
    input_shape: tuple[int, ...] = eqx.field(static=True)
    dtype: jnp.dtype = eqx.field(static=True)
    mean: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, M, D)."""
        return (len(self.numbers) * self.block_size, *self.input_shape)

    def block(self, k: Array | int) -> Array:
        """The k-th block (N/K, M, D)."""
        # the key of a block is that of its number: the same inputs in any order, on any device
        key = jax.random.fold_in(self.key, self.numbers[k])
        drawn = self.law(key, (self.block_size, *self.input_shape), self.dtype)
        return drawn if self.mean is None else drawn + self.mean.astype(self.dtype)

    def stored(self) -> Array:
        """All inputs, as an array."""
        # one block after the other: vmapped, the random bits of all would be in memory at once
        return lax.map(self.block, jnp.arange(len(self.numbers))).reshape(self.shape)


class Dataset(eqx.Module):
    """Inputs, labels and, for synthetic data, the teacher that made them.

    Args:
        inputs: (N, M, D), or (N, D) of one token, float64, float32 or bfloat16 (products are then
            float32), or `Regenerated`. Integers become the theory's precision, to which estimates
            are rounded.
        labels: (N, ...), float64 for noiseless attention.
        teacher: (P, D), or None for a user's own data (errors are then NaN).
        model: The model that made the labels (set by `sample`). None: taken to be the model that
            learns.
        directions: U (K, D), the fixed directions around which tokens lie (set by `sample`).
        encoding: E (M, K), how much of each every token has: inputs have the mean E U/√D.
        whitening: How the inputs were transformed (set by `whiten` and `standardise`).

    Raises:
        ValueError: For inputs that are not (N, M, D) or (N, D), a number of labels other than N,
            directions without an encoding, or non-finite entries.

    Example:
        >>> import jax.numpy as jnp, jaxsmi as smi
        >>> smi.Dataset(jnp.ones((6, 3)), jnp.ones(6)).alpha
        2.0
    """

    inputs: Array | Regenerated
    labels: Float[Array, "N ..."]
    teacher: Float[Array, "P D"] | None = None
    model: Any = None  # an AbstractModel: models are above this package
    directions: Float[Array, "K D"] | None = None
    encoding: Float[Array, "M K"] | None = None
    whitening: Whitening | None = None

    def __init__(
        self,
        inputs: ArrayLike | Regenerated,
        labels: ArrayLike,
        teacher: ArrayLike | None = None,
        model: Any = None,
        directions: ArrayLike | None = None,
        encoding: ArrayLike | None = None,
        whitening: Whitening | None = None,
    ):
        # regenerated inputs are the package's own: reading them to validate would cost a pass
        self.inputs = inputs if isinstance(inputs, Regenerated) else _as_inputs(inputs)
        N, M, D = self.inputs.shape
        allowed = f"one label for each of the {N} inputs: finite numbers ({N},) or ({N}, ..)"
        self.labels = _finite_numbers("labels", labels, allowed)
        check(self.labels.shape[:1] == (N,), "labels", labels, allowed)
        if self.labels.dtype == bool:  # arithmetic on labels needs numbers
            self.labels = self.labels.astype(theory_dtype())
        allowed = f"an array of shape (indices P, {D})"
        self.teacher = validate.optional(
            _finite_numbers, "teacher", teacher, allowed, shape=(None, D)
        )
        allowed = "the model that made the labels"
        self.model = validate.optional(validate.instance, "model", model, eqx.Module, allowed)
        allowed = "that of data.whiten() or data.standardise()"
        self.whitening = validate.optional(
            validate.instance, "whitening", whitening, Whitening, allowed
        )
        allowed = f"U of shape (directions K, {D}), beside encoding="
        self.directions = validate.optional(
            validate.array, "directions", directions, allowed, shape=(None, D)
        )
        K = None if self.directions is None else len(self.directions)
        allowed = f"E of shape ({M} tokens, {K or 'K'} directions)"
        self.encoding = validate.optional(
            validate.array, "encoding", encoding, allowed, shape=(M, K)
        )
        # one without the other has no meaning: the mean of the inputs is their product
        both = (directions is None) == (encoding is None)
        check(both, "directions", directions, "both directions= and encoding=, or neither")

    def __repr__(self) -> str:
        return safe_repr(self, self._text)

    def _text(self) -> str:
        N, M, D = self.inputs.shape
        storage = "drawn again when they are read" if self.regenerated else "stored"
        facts = [
            f"inputs {self.inputs.dtype} ({N}, {M}, {D}), {storage}",
            f"labels {self.labels.dtype} {self.labels.shape}",
            "no teacher" if self.teacher is None else f"teacher {self.teacher.shape}",
        ]
        if self.model is not None:
            facts.append(f"made by {self.model!r}")
        title = f"Dataset: N = {N} samples of M = {M} tokens, D = {D}, α = {self.alpha:.4g}"
        return describe(title, facts)

    @property
    def samples(self) -> int:
        """N, the number of samples."""
        return self.inputs.shape[0]

    @property
    def dimension(self) -> int:
        """D, the dimension of a token."""
        return self.inputs.shape[2]

    @property
    def alpha(self) -> float:
        """The sample complexity, by the convention of the model; N/D without a model."""
        if self.model is None:
            return self.samples / self.dimension
        return self.samples / self.model.design.entries(self.dimension)

    @property
    def regenerated(self) -> bool:
        """True where inputs are drawn again instead of stored."""
        return isinstance(self.inputs, Regenerated)

    @property
    def stored_inputs(self) -> Array:
        """The inputs as an array; a ValueError where they are not stored."""
        if isinstance(self.inputs, Regenerated):
            raise ValueError("data: got regenerated inputs; allowed: stored ones: data.stored().")
        return self.inputs

    @property
    def of_samples(self) -> list[Array]:
        """The arrays whose leading axis, of samples or blocks, is spread over devices."""
        inputs = self.inputs
        return [inputs.numbers if isinstance(inputs, Regenerated) else inputs, self.labels]

    def stored(self) -> Dataset:
        """The same data with all inputs in memory (itself, where they are)."""
        if not isinstance(self.inputs, Regenerated):
            return self
        return dataclasses.replace(self, inputs=self.inputs.stored())

    @property
    def mesh(self) -> Mesh | None:
        """The devices that the samples are spread over; None: one device, or inside jit."""
        # a tracer has no devices: inside jit the caller's shardings decide
        if not concrete(self.labels):
            return None
        sharding = self.labels.sharding
        if not isinstance(sharding, NamedSharding) or sharding.mesh.size == 1:
            return None
        spread = sharding.spec and sharding.spec[0]
        return sharding.mesh if spread and isinstance(sharding.mesh, Mesh) else None

    def sharded(self, mesh: Mesh | None = None) -> Dataset:
        """The same samples, spread evenly over devices: `gamp` and `train` then work on all of them
        at once, with the same numbers up to rounding (of a spectral start up to 1e-6).

        Args:
            mesh: The devices. None: all there are.

        Returns:
            A `Dataset` on these devices.

        Raises:
            ValueError: Where N (regenerated: the number of blocks) is no multiple of the number of
                devices.

        Example:
            >>> import jax, jaxsmi as smi
            >>> data = smi.links.sign().sample(jax.random.key(0), dimension=50, alpha=2.0)
            >>> data.sharded().samples
            100
        """
        validate.optional(validate.instance, "mesh", mesh, Mesh, "a jax.sharding.Mesh")
        if mesh is None:
            mesh = Mesh(np.asarray(jax.devices()), ("samples",))
        # a block is drawn from one key: it cannot lie on two devices
        parts = len(self.of_samples[0])
        found = f"{mesh.size} devices for {parts} {'blocks' if self.regenerated else 'samples'}"
        allowed = f"a number of devices that divides it, or data.first({parts - parts % mesh.size})"
        check(parts % mesh.size == 0, "mesh", found, allowed)
        spread = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        placed = [jax.device_put(x, spread) for x in self.of_samples]
        return eqx.tree_at(lambda data: data.of_samples, self, placed)

    def first(self, samples: int) -> Dataset:
        """The first N samples (all, where there are no more). Raises a ValueError for N < 1, or
        inputs that are not stored."""
        samples = validate.count("samples", samples)
        inputs = self.stored_inputs[:samples]
        return dataclasses.replace(self, inputs=inputs, labels=self.labels[:samples])

    def second_moments(self, quick: bool = False) -> SecondMoments:
        r"""Test the inputs against the assumption of message passing: iid entries of mean zero and
        variance one.

        Sums of squares beside their law for iid entries: of the mean, of variances of features and
        tokens, of correlations of features and of tokens; fixed directions are taken off first.

        Args:
            quick: Use 64 features and 2^17 numbers at most. Default False: all.

        Returns:
            `SecondMoments`: `print` shows a table; `.failing`, and `.message` with remedies.

        Raises:
            ValueError: For inputs that are not stored.

        Example:
            >>> import jax, jaxsmi as smi
            >>> data = smi.links.sign().sample(jax.random.key(0), dimension=50, alpha=2.0)
            >>> data.second_moments().failing
            ()

        Cost:
            N D² + D³ operations; quick ones 2^24 at most.

        Source:
            [theory: inputs, section 3].
        """
        mean = np.zeros(self.inputs.shape[1:])
        # the directions are part of the model, and the rest of the inputs is tested
        if self.directions is not None and self.encoding is not None:
            mean = np.asarray(self.encoding @ self.directions) / np.sqrt(self.dimension)
        return second_moments(self.stored_inputs, mean, validate.flag("quick", quick))

    def whiten(
        self, covariance: ArrayLike | None = None, *, tokens: ArrayLike | None = None
    ) -> Dataset:
        r"""The same samples in coordinates in which their inputs have the identity for a
        covariance.

            Σ = U diag(s) Uᵀ,   x' = C^{-1/2} x U diag(s)^{-1/2},   W' = W U diag(s)^{1/2}

        The teacher goes with them, `unwhiten` maps estimates back. What the model's prior must say
        is the law of W': of iid Gaussian W it is `priors.GaussianProfile(whitening.variances)`,
        Bayes-optimal; `priors.Gaussian([[mean of s]])` follows the theory of that prior, too, but
        does not use what it knows. With `tokens`, the link of the new inputs is link(z C^{1/2}).
        Means are not subtracted: `data.standardise().whiten()` does both, and maps weights back
        through both.

        Args:
            covariance: Σ (D, D) of the features; or other inputs (N', M, D) or (N', D), labelled or
                not, many more than D tokens, from which it is estimated: the covariance left has
                eigenvalues of relative variance c = D/(N' M). Default: estimated from these inputs,
                which is good only for N M >> D: they then have Σ̂ = I exactly, which iid ones do
                not, and overlaps are off by O(D/(N M)).
            tokens: C (M, M) of the tokens. Default: they are not correlated.

        Returns:
            A `Dataset` with a `whitening`.

        Raises:
            ValueError: For a covariance that is not positive definite or of another size, too few
                tokens to estimate it, inputs that are not stored, have fixed directions or were
                whitened already (standardised ones are allowed), and the teacher of a matrix model.

        Example:
            >>> import jax, jax.numpy as jnp, jaxsmi as smi
            >>> x = jnp.linspace(0.5, 2.0, 50) * jax.random.normal(jax.random.key(0), (100, 1, 50))
            >>> data = smi.Dataset(x, jnp.sign(x[:, 0, 0]), jnp.eye(1, 50))
            >>> white = data.whiten(jnp.diag(jnp.linspace(0.5, 2.0, 50) ** 2))
            >>> len(data.second_moments().failing) > 0, white.second_moments().failing
            (True, ())

        Cost:
            D³ + N M D² operations.

        Source:
            [theory: inputs, sections 1 and 2].
        """
        before = self.whitening
        whitened = before is not None and before.basis is not None
        check(not whitened, "data", "whitened inputs", "inputs that are not whitened yet")
        self._check_rows()
        return self._in(whitening_of(self.stored_inputs, covariance, tokens))

    def standardise(self) -> Dataset:
        r"""Return the same samples with inputs of mean zero and variance one, column by column.

            x' = (x - x̄) / s,   W' = W diag(s)

        x̄ (M, D) are the means of the samples, s (D,) the standard deviations of the features. The
        teacher is transformed too, and `unwhiten` maps estimates back. Fields lose the constant
        W x̄/√D, an offset that labels of a link without one do not have. New inputs:
        `data.whitening.whitened(inputs)`.

        Returns:
            A `Dataset` with a `whitening`.

        Raises:
            ValueError: For columns that do not vary, inputs that are not stored or have fixed
                directions, and the teacher of a matrix model.

        Example:
            >>> import jax, jax.numpy as jnp, jaxsmi as smi
            >>> x = 3.0 + 10.0 * jax.random.normal(jax.random.key(0), (100, 50))
            >>> smi.Dataset(x, jnp.sign(x[:, 0] - 3.0)).standardise().second_moments().failing
            ()

        Cost:
            Three passes over the inputs.

        Source:
            [theory: inputs, section 1].
        """
        self._check_rows()
        wide = self.stored_inputs.astype(theory_dtype())
        mean = jnp.mean(wide, axis=0)
        variances = jnp.mean((wide - mean) ** 2, axis=(0, 1))
        # a constant column differs from its mean by rounding
        varies = variances > (_CONSTANT * jnp.max(jnp.abs(mean), axis=0)) ** 2
        count = np.sum(~np.asarray(varies)) if concrete(varies) else "some"
        D = self.dimension
        allowed = f"columns that vary: inputs[..., inputs.reshape(-1, {D}).std(0) > 0]"
        check(jnp.all(varies), "inputs", f"{count} of {D} columns that do not vary", allowed)
        return self._in(Whitening(variances, None, mean=mean))

    def _check_rows(self) -> None:
        """Raise a ValueError for data whose coordinates cannot be changed."""
        allowed = "inputs without fixed directions"
        check(self.directions is None, "data", "inputs with directions", allowed)
        rows = self.model is None or self.model.design.has_rows
        check(rows, "data", "the teacher of a matrix model", "a teacher of rows W (P, D)")

    def _in(self, whitening: Whitening) -> Dataset:
        """The data in other coordinates."""
        # fields W x/√D stay the same numbers, so that the labels do
        teacher = None if self.teacher is None else whitening.into(self.teacher)
        # in the new coordinates the link is link(z C^{1/2}), not that of this model
        model = self.model if whitening.tokens is None else None
        inputs = whitening.whitened(self.stored_inputs)
        whole = dataclasses.replace(whitening, before=self.whitening)
        return Dataset(inputs, self.labels, teacher, model, whitening=whole)

    def unwhiten(self, weights: ArrayLike) -> Array:
        """Return weights (P, D) of the inputs as they came, W' diag(s)^{-1/2} Uᵀ; a ValueError for
        data that were neither whitened nor standardised."""
        allowed = "those of data.whiten(..) or data.standardise()"
        check(self.whitening is not None, "data", "inputs as they came", allowed)
        assert self.whitening is not None
        allowed = f"weights of shape (P, {self.dimension})"
        rows = validate.array("weights", weights, allowed, shape=(None, self.dimension))
        return self.whitening.back(rows)


# Whitening

# Relative size of an eigenvalue below which rounding of `eigh`, 1e-16 times the largest one and
# amplified by its inverse, exceeds 1e-6 of the whitened inputs.
_SINGULAR = 1e-10
# Standard deviation over mean of a column that counts as constant: rounding of float32 inputs
_CONSTANT = 1e-6


class Whitening(eqx.Module):
    """How inputs were whitened or standardised: what maps weights and inputs there and back.

    Attributes:
        variances: s (D,), the eigenvalues of Σ, or the variances of the features: the variances of
            iid weights in the new coordinates, of which the mean is their second moment.
        basis: U (D, D), the eigenvectors of Σ; None: the features themselves.
        tokens: C (M, M); None: tokens were left as they were.
        mean: What was subtracted, (M, D); None: nothing.
        before: The change of coordinates before this one; None: there was none.
    """

    variances: Array
    basis: Array | None
    tokens: Array | None = None
    mean: Array | None = None
    before: Whitening | None = None

    def whitened(self, inputs: Array) -> Array:
        """Return x' = C^{-1/2} (x - x̄) U diag(s)^{-1/2} of inputs (N, M, D), in their precision."""
        inputs = inputs if self.before is None else self.before.whitened(inputs)
        wide = inputs.astype(jnp.promote_types(inputs.dtype, jnp.float32))
        if self.mean is not None:
            wide = wide - self.mean.astype(wide.dtype)
        if self.tokens is not None:
            wide = jnp.einsum("mk,nkd->nmd", _inverse_root(self.tokens).astype(wide.dtype), wide)
        root = jnp.sqrt(self.variances)
        if self.basis is None:
            flat = wide / root.astype(wide.dtype)
        else:
            flat = jnp.matmul(wide, (self.basis / root).astype(wide.dtype), precision="highest")
        return flat.astype(inputs.dtype)

    def into(self, weights: Array) -> Array:
        """Return W' = W U diag(s)^{1/2} of weights (P, D)."""
        rotated = weights if self.basis is None else weights @ self.basis
        return rotated * jnp.sqrt(self.variances)

    def back(self, weights: Array) -> Array:
        """Return W = W' diag(s)^{-1/2} Uᵀ of weights (P, D), in the coordinates as they came."""
        scaled = weights / jnp.sqrt(self.variances)
        rotated = scaled if self.basis is None else scaled @ self.basis.T
        return rotated if self.before is None else self.before.back(rotated)


def covariance_of(inputs: Array) -> Array:
    """XᵀX/(NM) (D, D) of inputs (N, M, D)."""
    rows = inputs.reshape(-1, inputs.shape[2]).astype(theory_dtype())
    return rows.T @ rows / rows.shape[0]


def whitening_of(
    inputs: Array, covariance: ArrayLike | None, tokens: ArrayLike | None
) -> Whitening:
    """Validate the arguments of `Dataset.whiten`; estimate a covariance that is None."""
    N, M, D = inputs.shape
    C = None if tokens is None else _definite("tokens", tokens, M)
    if covariance is None:
        allowed = f"data of more than D = {D} tokens in all, or a covariance of other inputs"
        check(N * M > D, "covariance", f"None for {N * M} tokens", allowed)
        # the covariance of features is that of tokens without correlations
        independent = inputs
        if C is not None:
            independent = jnp.einsum("mk,nkd->nmd", _inverse_root(C), inputs.astype(theory_dtype()))
        covariance = covariance_of(independent)
    elif len(shape := np.shape(covariance)) == 3 or (len(shape) == 2 and shape[0] > D):
        allowed = f"inputs (N', M', {D}), or (N', {D}), of more than {D} tokens in all"
        others = validate.array("covariance", covariance, allowed)
        others = others[:, None] if others.ndim == 2 else others
        check(others.shape[-1] == D, "covariance", covariance, allowed)
        share = D * D / others.size
        check(share < 1.0, "covariance", covariance, allowed)
        # Σ̂^{-1} of other samples has the mean Σ^{-1}/(1 - c), c = D over their tokens
        covariance = covariance_of(others) / (1.0 - share)
    Sigma = _definite("covariance", covariance, D)
    variances, basis = jnp.linalg.eigh(Sigma)
    return Whitening(variances, basis, C)


def _definite(name: str, value: ArrayLike, size: int) -> Array:
    allowed = f"a symmetric positive definite array ({size}, {size})"
    matrix = validate.array(name, value, allowed, shape=(size, size))
    # a covariance that was computed in single precision is symmetric to 1e-6 only
    gap = jnp.max(jnp.abs(matrix - matrix.T)) <= 1e-6 * jnp.max(jnp.abs(matrix))
    check(gap, name, value, allowed)
    matrix = 0.5 * (matrix + matrix.T)
    values = jnp.linalg.eigvalsh(matrix)
    check(values[0] > _SINGULAR * values[-1], name, value, allowed)
    return matrix


def _inverse_root(matrix: Array) -> Array:
    values, vectors = jnp.linalg.eigh(matrix)
    return (vectors / jnp.sqrt(values)) @ vectors.T


# Tests of the covariance of inputs

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
        return "; ".join(
            f"{moment.name} (size {moment.size:.3f}: {moment.remedy})" for moment in self.failing
        )

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
        # inside jit the inputs may be known all the same, and a block of them then is, too
        with jax.ensure_compile_time_eval():
            inputs = jnp.asarray(inputs)[np.ix_(*block)]
        mean = mean[np.ix_(*block[1:])]
    x = np.asarray(inputs, np.float64) - mean
    N, M, _ = x.shape
    means = _means(x)
    # else a mean would show in every other statistic, and hide which assumption fails
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
        _groups(
            "norms of the tokens",
            deviation,
            (2,),
            "divide each by its norm over √D",
        ),
        _correlations(rows, D),
        _tokens(np.swapaxes(x, 1, 2).reshape(-1, M)),
    )
    return SecondMoments(moments[:-1] if M == 1 else moments)


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
    """T over pairs of columns, of their squared scalar product."""
    # above the diagonal: each pair once, and no column with itself
    return _of_random_signs(*(np.triu(p.T @ p, 1) for p in (columns, columns**2, columns**4)))


def _moment(name: str, size: float, law: _Law, remedy: str) -> Moment:
    """A sum of squares beside its law. A lower tail is that of the normal law, which is the wider
    one there."""
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
    """Mean square of all entries: one."""
    remedy = "data.standardise()"
    # of ±1 the mean square does not fluctuate, and single precision rounds it to 1e-7
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

"""Data sets: inputs, labels and teacher; inputs that are stored, or drawn again at each read.

Letters of the shapes: N samples, M tokens, D dimension of a token, P indices.

    α = N/D, or what the model that made the data counts by (matrices: n/d², n/(dL))
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

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
from jaxsmi.core.display import Described, describe
from jaxsmi.core.second_moments import SecondMoments, second_moments
from jaxsmi.core.validate import check, optional
from jaxsmi.core.whitening import CONSTANT, Whitening, whitening_of


class HasTeacher(eqx.Module):
    """Data with a teacher: a `Dataset` or a `Stream`.

    Attributes:
        teacher: The teacher's weights; None for a user's own data.
        model: The model that made the labels; None: taken to be the one that learns.
        directions: U (K, D), the fixed directions of the inputs; None: they have none.
        encoding: E (M, K), what every token has of them.
    """

    teacher: eqx.AbstractVar[Array | None]
    model: eqx.AbstractVar[Any]
    directions: eqx.AbstractVar[Array | None]
    encoding: eqx.AbstractVar[Array | None]

    @property
    @abc.abstractmethod
    def dimension(self) -> int:
        """D."""


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


class Dataset(Described, HasTeacher):
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
        encoding: E (M, K), coefficients of the tokens along the directions: inputs have the mean
            E U/√D.
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
        transposed = M == 1 and self.labels.shape[:1] == (D,)
        allowed += "; inputs come as (samples, features), so give X.T" * transposed
        check(self.labels.shape[:1] == (N,), "labels", labels, allowed)
        if self.labels.dtype == bool:  # arithmetic on labels needs numbers
            self.labels = self.labels.astype(theory_dtype())
        allowed = f"an array of shape (indices P, {D})"
        single = teacher is not None and np.shape(teacher) == (D,)
        allowed += ", of one index teacher[None]" * single
        self.teacher = optional(_finite_numbers, "teacher", teacher, allowed, shape=(None, D))
        allowed = "the model that made the labels"
        self.model = optional(validate.instance, "model", model, eqx.Module, allowed)
        allowed = "that of data.whiten() or data.standardise()"
        self.whitening = optional(validate.instance, "whitening", whitening, Whitening, allowed)
        allowed = f"U of shape (directions K, {D}), beside encoding="
        self.directions = optional(
            validate.array, "directions", directions, allowed, shape=(None, D)
        )
        K = None if self.directions is None else len(self.directions)
        allowed = f"E of shape ({M} tokens, {K or 'K'} directions)"
        self.encoding = optional(validate.array, "encoding", encoding, allowed, shape=(M, K))
        # one without the other has no meaning: the mean of the inputs is their product
        both = (directions is None) == (encoding is None)
        check(both, "directions", directions, "both directions= and encoding=, or neither")

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
        optional(validate.instance, "mesh", mesh, Mesh, "a jax.sharding.Mesh")
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

        Sums of squares are compared with their law for iid entries: of means, of variances of
        features and tokens, of correlations of features and of tokens. Fixed directions are
        subtracted first.

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

        The teacher is transformed too, and `unwhiten` maps estimates back. Set the prior to the law
        of W': for iid Gaussian W, `priors.GaussianProfile(whitening.variances)` is Bayes-optimal;
        `priors.Gaussian([[mean of s]])` follows its own theory, but ignores the variances. With
        `tokens`, the link of the new inputs is link(z C^{1/2}). Means are not subtracted:
        `data.standardise().whiten()` does both, and maps weights back through both.

        Args:
            covariance: Σ (D, D) of the features; or other inputs (N', M, D) or (N', D), labelled or
                not, many more than D tokens, from which it is estimated: the covariance that
                remains has eigenvalues of relative variance c/(1 - c), c = D/(N' M). Default:
                estimated from these inputs, which is good only for N M >> D: they then have Σ̂ = I
                exactly, which iid ones do not, and overlaps are off by O(D/(N M)).
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
        teacher is transformed too, and `unwhiten` maps estimates back. Fields lose the constant W
        x̄/√D: if labels depend on the raw inputs, the link of the new ones needs this offset. New
        inputs: `data.whitened(inputs)`.

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
        varies = variances > (CONSTANT * jnp.max(jnp.abs(mean), axis=0)) ** 2
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
        # the link of the new coordinates is link(z C^{1/2}), not that of this model
        model = self.model if whitening.tokens is None else None
        inputs = whitening.whitened(self.stored_inputs)
        whole = dataclasses.replace(whitening, before=self.whitening)
        return Dataset(inputs, self.labels, teacher, model, whitening=whole)

    def whitened(self, inputs: ArrayLike) -> Array:
        """Return new inputs, (N, M, D) or (N, D), in the coordinates of these: x' (N, M, D), as
        `predict` takes them; a ValueError for data that were neither whitened nor standardised."""
        new, (_, M, D) = _as_inputs(inputs), self.inputs.shape
        check(new.shape[1:] == (M, D), "inputs", inputs, f"inputs of shape (N, {M}, {D})")
        return self._whitening().whitened(new)

    def unwhiten(self, weights: ArrayLike) -> Array:
        """Return weights (P, D) of the inputs as they came, W' diag(s)^{-1/2} Uᵀ; a ValueError for
        data that were neither whitened nor standardised."""
        allowed = f"weights of shape (P, {self.dimension})"
        rows = validate.array("weights", weights, allowed, shape=(None, self.dimension))
        return self._whitening().back(rows)

    def _whitening(self) -> Whitening:
        allowed = "those of data.whiten(..) or data.standardise()"
        check(self.whitening is not None, "data", "inputs as they came", allowed)
        assert self.whitening is not None
        return self.whitening

r"""The staircase: what is learned first, and at which sample complexity what is learned next.

Equations here [TDDZLK24; TCDKZ25; theory: multi-index, Eqs. (55), (56)]; F and N as in `growth`:

* α λ_max(F_{Q(α)}) = 1 along the stable fixed point Q(α) that has only the subspace Π learned,
      V = S - Π [S - prior.mmse(α Π response(Q) Π)] Π;
* N E[g gᵀ] N ≠ 0 at that fixed point: those directions are learned at once;
* a scan in α finds where to look (`scan`), and `crossing` the root of each replica, whose spread is
  the error bar.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import frozen
from jaxsmi.core.border import anything, checked, flag, optional, random_key, scalar, whole
from jaxsmi.core.checks import POSITIVE, Arguments
from jaxsmi.core.codes import INACCURATE_SHARE, Result, worst
from jaxsmi.core.progress import Bar
from jaxsmi.core.results import Threshold
from jaxsmi.models.base import AbstractModel, is_model
from jaxsmi.numerics.nets import power_of_two
from jaxsmi.thresholds.branch import NETS, refuse_oblique
from jaxsmi.thresholds.crossing import SearchRegion, crossings
from jaxsmi.thresholds.growth import checked_sizes
from jaxsmi.thresholds.scan import Known, Lost, Place, Scan
from jaxsmi.thresholds.weak import weak_recovery

__all__ = ["staircase"]

_LEARNED = 0.05  # eigenvalues of a subspace below this part of the largest are errors


@checked(
    model=is_model,
    key=random_key,
    alpha_max=scalar(POSITIVE),
    samples=whole(),
    replicas=whole(2),
    guess=anything,
    steps=optional(whole()),
    progress=optional(flag),
)
def staircase(
    model: AbstractModel,
    *,
    key: PRNGKeyArray,
    alpha_max: ArrayLike = 10.0,
    samples: int = 2**14,
    replicas: int = 16,
    guess: Sequence[Threshold] | None = None,
    steps: int | None = None,
    progress: bool | None = None,
) -> list[Threshold]:
    r"""Thresholds in the order of learning, with what is learned at each and the overlap below it.

    α λ_max(F_{Q(α)}) = 1 along the fixed point Q(α) with only the earlier subspaces learned

    Args:
        model: Any index model with a channel and a prior of mean zero, its second moment
            proportional to the identity.
        key: Random key, common random numbers: two calls with one key differ smoothly.
        alpha_max: How far to look, a number > 0. Default 10.
        samples: Points of the average, over all replicas. Default 2^14.
        replicas: Independent searches for the root, whose spread is the error bar. Default 16.
        guess: The stairs of a model nearby, which save the scan in α, e.g. along a curve or a
            search. Default None.
        steps: Stop after so many thresholds. Default all.
        progress: Whether to show a bar on stderr. Default None: on a terminal and in a notebook.

    Returns:
        A list of `Threshold` with α <= alpha_max. It is shorter than P where several indices are
        learned together or some never; directions that labels tell as soon as others are known
        belong to the step that makes them known. `alpha` and `replicas` have one derivative,
        forwards and backwards, in every array of the model; overlap and subspace are held, and
        links with jumps have NaN after the first threshold. Codes: SUCCESS, INACCURATE, MAX_STEPS
        (a replica found no root: `alpha` is NaN, and its replicas say which; raise `samples`, or
        lower `replicas`), NONFINITE.

    Raises:
        ValueError: For an argument out of its range, a model without inference, a prior with a
            mean, or one that ties unlearned directions to learned ones: a prior that is not
            Gaussian, where the link learns directions oblique to the coordinates.

    Example:
        >>> import jax, jaxsmi as smi
        >>> model = smi.links.sign_product(2)
        >>> stairs = smi.staircase(model, key=jax.random.key(0), samples=2**10)  # doctest: +SKIP
        >>> [round(float(threshold.alpha), 1) for threshold in stairs]  # doctest: +SKIP
        [2.5]

    Cost:
        About fifteen times `samples` posteriors a step, and a scan; of inner integrals on random
        nodes (four variables and more) about four times: 200 s for three layers of attention. It
        runs outside jit and vmap; grad and jvp are fine.

    Source:
        [TDDZLK24], [TCDKZ25], [theory: multi-index, Eqs. (52) to (56), (60), (74) to (76)].
    """
    limits = _checked(model, key, alpha_max, samples, replicas, guess, steps)
    first = weak_recovery(model, key=key, samples=samples, randomisations=replicas)
    lowest = float(lax.stop_gradient(first.alpha))
    if lowest > limits.alpha_max:
        return []
    if np.isnan(lowest):
        return [first]
    stairs = [first]
    still = frozen(model)
    learned = _directions_of(first.subspace)
    title = "staircase: directions learned"
    P = model.indices
    with Bar(P, title, Arguments().shown(progress), "compiling") as bar:
        while (learned.shape[1] < P) and (steps is None or len(stairs) < steps):
            bar.update(learned.shape[1] - bar.count, {"α": f"{lowest:.4g}"})
            scan = Scan.of(
                still, learned, lowest, stairs, limits.key, limits.alpha_max, limits.samples
            )
            refuse_oblique(still, scan.learned)
            outcome = scan.next(limits.guess_of(len(stairs)))
            if outcome is None:
                break
            if isinstance(outcome, Lost):
                stairs.append(_lost(model, limits.replicas))
                break
            if isinstance(outcome, Known):  # with the others, and so part of the last step
                learned = _joined(learned, outcome.directions)
                new = learned if len(stairs) == 1 else outcome.directions
                stairs[-1] = _with_directions(stairs[-1], new)
                continue
            threshold = _threshold(model, scan, outcome, limits)
            lowest = float(lax.stop_gradient(threshold.alpha))
            if lowest > limits.alpha_max:
                break
            stairs.append(threshold)
            if np.isnan(lowest):
                break
            learned = _joined(learned, _directions_of(threshold.subspace))
    return stairs


class _Limits(NamedTuple):
    """The checked arguments of a staircase."""

    key: PRNGKeyArray
    alpha_max: float
    samples: int
    replicas: int
    guess: Sequence[Threshold]

    def guess_of(self, number: int) -> Threshold | None:
        """The guess of a step, where there is a finite one."""
        if len(self.guess) <= number or not np.isfinite(float(self.guess[number].alpha)):
            return None
        return self.guess[number]

    @property
    def keys(self) -> PRNGKeyArray:
        """One key for each replica."""
        fold = jax.vmap(lambda k: jax.random.fold_in(self.key, 100 + k))
        return fold(jnp.arange(self.replicas))


def _checked(
    model: AbstractModel,
    key: PRNGKeyArray,
    alpha_max: ArrayLike,
    samples: int,
    replicas: int,
    guess: Sequence[Threshold] | None,
    steps: int | None,
) -> _Limits:
    """The arguments of `staircase`, or a ValueError."""
    arguments = Arguments()
    samples, replicas = checked_sizes(arguments, model, samples, replicas, "replicas")
    key = arguments.key("key", key)
    most = float(lax.stop_gradient(arguments.number("alpha_max", alpha_max, POSITIVE)))
    if steps is not None:
        arguments.count("steps", steps)
    listed = guess is None or (
        isinstance(guess, Sequence) and all(isinstance(t, Threshold) for t in guess)
    )
    allowed = "a list of Threshold, as `staircase` returns it"
    arguments.condition(listed, "guess", guess, allowed)
    S = lax.stop_gradient(model.prior.second_moment(model.indices))
    equal = jnp.max(jnp.abs(S - S[0, 0] * jnp.eye(len(S)))) <= 1e-9 * S[0, 0]
    allowed = "a prior with second moment proportional to the identity"
    arguments.condition(equal, "model", model.prior, allowed)
    return _Limits(key, most, samples, replicas, list(guess or []))


def _lost(model: AbstractModel, replicas: int) -> Threshold:
    """What a staircase ends with where the scan for its next step failed."""
    nothing = jnp.full_like(model.prior.second_moment(model.indices), jnp.nan)
    alphas = jnp.full((replicas,), jnp.nan, nothing.dtype)
    code = jnp.asarray(int(Result.NONFINITE))
    return Threshold(alphas[0], alphas[0], alphas, nothing, nothing, code)


def _threshold(model: AbstractModel, scan: Scan, place: Place, limits: _Limits) -> Threshold:
    """The threshold near a place of the scan, by the roots of all replicas."""
    dtype = scan.learned.dtype
    region = SearchRegion(
        scan.learned,
        jnp.asarray(place.alpha, dtype),
        jnp.asarray(max(scan.lowest * 1.0005, 1e-6), dtype),
        place.V,
        limits.keys,
        power_of_two(max(limits.samples // (limits.replicas * NETS), 2)),
        place.X,
    )
    roots = crossings(model, region)
    code = Result(int(worst(roots.code)))
    if code == Result.SUCCESS and place.inaccurate > INACCURATE_SHARE:
        code = Result.INACCURATE
    valid = jnp.where(code in (Result.SUCCESS, Result.INACCURATE), 1.0, jnp.nan)
    alphas = jnp.where(roots.code == Result.SUCCESS, roots.alpha, jnp.nan)
    X = np.mean(np.asarray(lax.stop_gradient(roots.X)), axis=0)
    V = jnp.mean(lax.stop_gradient(roots.V), axis=0)
    below = region.branch(scan.model, region.guess, scan.key)
    return Threshold(
        jnp.mean(alphas) * valid,
        jnp.std(lax.stop_gradient(alphas), ddof=1) / np.sqrt(limits.replicas),
        alphas,
        jnp.asarray(X / max(np.trace(X), np.finfo(X.dtype).tiny)),
        below.overlaps(V)[0],
        jnp.asarray(code),
    )


def _directions_of(subspace: Array) -> np.ndarray:
    """Orthonormal basis of the range of a positive semi-definite matrix, but for its errors."""
    values, vectors = np.linalg.eigh(np.asarray(lax.stop_gradient(subspace)))
    return vectors[:, values > _LEARNED * max(values[-1], np.finfo(values.dtype).tiny)]


def _joined(learned: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Orthonormal basis of learned and new directions."""
    if not new.shape[1]:
        return learned
    rest = new - learned @ (learned.T @ new)
    basis, sizes, _ = np.linalg.svd(rest, full_matrices=False)
    return np.concatenate([learned, basis[:, sizes > 1e-6]], axis=1)


def _with_directions(step: Threshold, directions: np.ndarray) -> Threshold:
    """The threshold with more directions in its subspace."""
    projector = jnp.asarray(directions @ directions.T, step.subspace.dtype)
    subspace = step.subspace + projector / max(directions.shape[1], 1)
    return eqx.tree_at(lambda t: t.subspace, step, subspace / jnp.trace(subspace))

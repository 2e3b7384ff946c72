r"""The staircase: what is learned first, and at which sample complexity what is learned next.

Equations here [TDDZLK24; TCDKZ25; theory: multi-index, Eqs. (62), (63)]; 𝒢 and N as in weak.py:

* α λ_max(𝒢_{Q(α)}) = 1 along the stable fixed point Q(α) that has only the subspace Π learned,
      V = S - Π [S - prior.mmse(α Π response(Q) Π)] Π;
* N E[g gᵀ] N ≠ 0 at that fixed point: those directions are learned at once;
* a scan in α (branch.py) gives the start for the root of each independent threshold (root.py),
  whose spread is the error bar.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core import validate
from jaxsmi.core.arrays import frozen, missing
from jaxsmi.core.driver import Bar
from jaxsmi.core.options import Averages
from jaxsmi.core.results import INACCURATE_SHARE, Result, worst
from jaxsmi.core.solution import Threshold, index_names, load_workbench
from jaxsmi.core.validate import POSITIVE, check
from jaxsmi.models.base import AbstractModel
from jaxsmi.numerics.quadrature import power_of_two, standard_error
from jaxsmi.thresholds.branch import NETS, BranchPoint, check_oblique, next_crossing, scan_branch
from jaxsmi.thresholds.root import SearchRegion, roots
from jaxsmi.thresholds.weak import check_model, weak_recovery

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# eigenvalues of a subspace below this part of the largest are statistical errors
_MIN_EIGENVALUE = 0.05
_MIN_NEW_LENGTH = 1e-6  # length of a new direction outside of the learned ones that is not rounding
_MIN_RISE = 1.0005  # least ratio of a threshold to the one before: above the accuracy of roots


class Stairs(list[Threshold]):
    """Thresholds in the order of learning, and a sentence on why there are no more of them.

    Attributes:
        message: "" where all directions are learned, or as many as were asked for.
        names: Of the indices.
    """

    def __init__(
        self, thresholds: Sequence[Threshold] = (), message: str = "", names: Sequence[str] = ()
    ):
        super().__init__(thresholds)
        self.message = message
        self.names = tuple(names)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the thresholds as stairs over α: one step for each, from its α, with its 95 %
        interval, named by the index that is learned there, or the shares of indices in one
        direction.

        Args:
            ax: Axes over α, such as those of `smi.curve(..).plot()`: the thresholds are vertical
                lines there, with bands. Default None: new ones.

        Returns:
            The axes.

        Raises:
            ImportError: Without matplotlib, with the remedy.
        """
        return load_workbench("plotting.curves").staircase(self, ax)

    def __repr__(self) -> str:
        return "\n".join(filter(None, [*map(repr, self), self.message]))


# a list subclass is no pytree by itself
jax.tree_util.register_pytree_node(
    Stairs, lambda x: (tuple(x), (x.message, x.names)), lambda words, parts: Stairs(parts, *words)
)


def staircase(
    model: AbstractModel,
    *,
    key: PRNGKeyArray,
    alpha_max: ArrayLike = 10.0,
    averages: Averages | None = None,
    guess: Sequence[Threshold] | None = None,
    max_thresholds: int | None = None,
    progress: bool | None = None,
) -> Stairs:
    r"""Compute the thresholds in the order of learning, with what is learned at each.

    α λ_max(𝒢_{Q(α)}) = 1 along the fixed point Q(α) with only the earlier subspaces learned

    Args:
        model: An index model with a channel and a prior of mean zero, its second moment
            proportional to the identity.
        key: Random key, common random numbers: two calls with one key differ smoothly.
        alpha_max: Largest α, a number > 0. Default 10.
        averages: `smi.Averages(points, nets)`: points of all averages together, and independent
            searches for the root, whose spread is the error bar. Default 2^14 points, 16 nets.
        guess: The thresholds of a similar model: the search then starts from them, without a scan
            in α. Default None.
        max_thresholds: Largest number of thresholds. Default all.
        progress: Show a bar on stderr. Default None: on a terminal and in a notebook.

    Returns:
        A list of `Threshold` with α <= alpha_max, which `.plot()` draws. It is shorter than P if
        several indices are learned together, some never, or some beyond alpha_max, which `.message`
        says. If labels depend linearly on a direction once others are learned, it is learned in the
        same step as these, whose `subspace` is then half the direction that grows, half the
        projector on all that is learned with it. `alpha` and `replicas` have one derivative,
        forwards and backwards, in every array of the model; overlap and subspace are constant.
        After the first threshold derivatives are NaN for links that jump and are integrated
        numerically (not those of `smi.links` whose labels have few values, with noise or without):
        take differences at one key. Codes: SUCCESS, INACCURATE, MAX_STEPS (a search found no root:
        `alpha` is NaN, and `replicas` say which; take more points, or fewer nets), NONFINITE.

    Raises:
        ValueError: For a model without inference, a prior with a mean, or one under which unlearned
            directions depend on learned ones: a prior that is not Gaussian, where the link learns
            directions oblique to the coordinates.

    Example:
        >>> import jax, jaxsmi as smi
        >>> model, few = smi.links.sign_product(2), smi.Averages(points=2**10)
        >>> stairs = smi.staircase(model, key=jax.random.key(0), averages=few)  # doctest: +SKIP
        >>> [round(float(threshold.alpha), 1) for threshold in stairs]  # doctest: +SKIP
        [2.5]

    Cost:
        About eight posteriors per point and threshold, after a scan in α: 6 s for two layers of
        attention, 40 s for three, after compilation (13 s and 50 s). It runs outside jit and vmap;
        grad and jvp are fine.

    Source:
        [TDDZLK24], [TCDKZ25], [theory: multi-index, Eqs. (59) to (63), (65) to (67), (71)].
    """
    validate.outside_jit("model", model)
    key = validate.key("key", key)
    most = float(lax.stop_gradient(validate.number("alpha_max", alpha_max, POSITIVE)))
    points_per_net, nets = Averages.of(averages).sizes(2**14, 16, 2)
    points = points_per_net * nets
    max_thresholds = validate.optional(validate.count, "max_thresholds", max_thresholds)
    progress = validate.optional(validate.flag, "progress", progress)
    allowed = "a list of Threshold, as `staircase` returns it"
    guess = [] if guess is None else guess
    arguments = (validate.instance, Threshold, allowed)
    guesses = validate.sequence("guess", guess, allowed, *arguments, empty=True)
    check_model(model)
    S = lax.stop_gradient(model.prior.second_moment(model.indices))
    # projectors on learned directions commute with S only where S is a multiple of I
    equal = jnp.max(jnp.abs(S - S[0, 0] * jnp.eye(len(S)))) <= 1e-9 * S[0, 0]
    allowed = "a prior with second moment proportional to the identity"
    check(equal | (max_thresholds == 1), "model", model.prior, allowed)

    first = weak_recovery(model, key=key, averages=Averages(points, nets))
    lowest = float(lax.stop_gradient(first.alpha))
    names = index_names(model, model.indices)
    if lowest > most:
        only = "Nothing is learned from the labels alone"
        beyond = f"{only} up to α = {most:g} (alpha_max)." if np.isfinite(lowest) else f"{only}."
        return Stairs((), beyond, names)
    stairs = Stairs([first], "", names)
    constant = frozen(model)
    learned = _directions_of(first.subspace)
    P = model.indices
    title = "staircase: directions learned"
    with Bar(P, title, progress) as bar:
        while np.isfinite(lowest) and learned.shape[1] < P and len(stairs) != max_thresholds:
            bar.update(learned.shape[1] - bar.count, {"α": f"{lowest:.4g}"})
            # apart from the keys of weak recovery (key) and of the roots (100 + k)
            scan_key = jax.random.fold_in(key, 7 + len(stairs))
            alpha, basis = jnp.asarray(lowest, S.dtype), jnp.asarray(learned, S.dtype)
            branch = scan_branch(constant, basis, alpha, scan_key, points)
            check_oblique(constant, basis)
            guessed = guesses[len(stairs)] if len(stairs) < len(guesses) else None
            Q = lax.stop_gradient(stairs[-1].overlap)
            point = next_crossing(branch, Q, guessed, most)
            left = P - learned.shape[1]
            beyond = f"{left} of {P} directions are not learned up to α = {most:g} (alpha_max)."
            if point is None:  # nothing grows up to alpha_max
                stairs.message = beyond
                break
            vectors, at_once = point.growth.linear_directions()
            new = np.asarray(vectors)[:, np.asarray(at_once)]
            if new.shape[1]:  # learned with the others, and so part of the last step
                learned = _joined(learned, new)
                stairs[-1] = _with_directions(stairs[-1], learned if len(stairs) == 1 else new)
                continue
            if not np.isfinite(float(point.log_growth)):
                # the thresholds before stay valid: a code, not an exception
                stairs.append(_failed(S, nets))
                break
            keys = jax.vmap(lambda k: jax.random.fold_in(key, 100 + k))(jnp.arange(nets))
            region = SearchRegion(
                learned=basis,
                guess=point.alpha,
                floor=jnp.maximum(_MIN_RISE * alpha, 1e-6),
                V0=point.V,
                eigenmatrix=point.growth.subspace,
                keys=keys,
                points_per_net=power_of_two(max(points_per_net // NETS, 2)),
            )
            threshold = _threshold(model, region, point, scan_key)
            lowest = float(lax.stop_gradient(threshold.alpha))
            if lowest > most:
                stairs.message = beyond
                break
            stairs.append(threshold)
            learned = _joined(learned, _directions_of(threshold.subspace))
    return stairs


def _failed(S: Array, nets: int) -> Threshold:
    """The last threshold of a staircase whose scan ended in a growth rate that is not finite."""
    unknown, alphas = jnp.full_like(S, missing()), jnp.full((nets,), missing(), S.dtype)
    code = jnp.asarray(int(Result.NONFINITE))
    return Threshold(alphas[0], alphas[0], alphas, unknown, unknown, code)


def _threshold(
    model: AbstractModel, region: SearchRegion, point: BranchPoint, key: PRNGKeyArray
) -> Threshold:
    """The threshold near a point of the scan, by the roots of all independent searches."""
    ends = roots(model, region)
    code = Result(int(worst(ends.result)))
    if code == Result.SUCCESS and float(point.growth.inaccurate) > INACCURATE_SHARE:
        code = Result.INACCURATE
    valid = jnp.where(code in (Result.SUCCESS, Result.INACCURATE), 1.0, missing())
    # a failed search shows as NaN among the replicas
    alphas = jnp.where(ends.result == Result.SUCCESS, ends.alpha, missing())
    X = np.mean(np.asarray(lax.stop_gradient(ends.eigenmatrix)), axis=0)
    V = jnp.mean(lax.stop_gradient(ends.V), axis=0)
    below = region.branch(frozen(model), region.guess, key)
    return Threshold(
        jnp.mean(alphas) * valid,
        standard_error(lax.stop_gradient(alphas)),
        alphas,
        jnp.asarray(X / max(np.trace(X), np.finfo(X.dtype).tiny)),
        below.overlaps(V)[0],
        jnp.asarray(code),
    )


def _directions_of(subspace: Array) -> np.ndarray:
    """Orthonormal basis of the range of a positive semi-definite matrix."""
    values, vectors = np.linalg.eigh(np.asarray(lax.stop_gradient(subspace)))
    return vectors[:, values > _MIN_EIGENVALUE * max(values[-1], np.finfo(values.dtype).tiny)]


def _joined(learned: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Orthonormal basis of learned and new directions."""
    rest = new - learned @ (learned.T @ new)
    basis, sizes, _ = np.linalg.svd(rest, full_matrices=False)
    return np.concatenate([learned, basis[:, sizes > _MIN_NEW_LENGTH]], axis=1)


def _with_directions(step: Threshold, directions: np.ndarray) -> Threshold:
    projector = jnp.asarray(directions @ directions.T, step.subspace.dtype)
    subspace = step.subspace + projector / max(directions.shape[1], 1)
    return eqx.tree_at(lambda t: t.subspace, step, subspace / jnp.trace(subspace))

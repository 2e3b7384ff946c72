"""Models of indices: rows W (P, D) seen through the fields of M tokens.

Equations here [TCDKZ25; theory: multi-index, Eqs. (1) to (3), (77) to (81)]:

    Z = W* x/√D (P, M),   y = link(Z) (+ noise),   α = N/D
    cosine_p = |M_pp| / √(Q_pp ρ_p),   M = Ŵ W*ᵀ/D,   Q = Ŵ Ŵᵀ/D,   ρ = W* W*ᵀ/D
        (up to the symmetries of the model: models/base.py)
    plug-in error:  E ‖link(z) - link(ω)‖²,   (z, ω) Gaussian of covariance [[ρ, Mᵀ], [M, Q]]
    Bayes error:    E ‖link(z) - E[link(z)|ω]‖² = ½ E ‖link(z) - link(z')‖²,
                    z, z' independent given ω

`MultiIndex` is the model of any link, a JAX function of an array (P, M). Outputs of matrices have
the same field laws, and so the same channels: y = φ(z) + √Δ ξ of one field z, or of symmetric
scores h (T, T) [theory: bilinear, Eq. (14); attention-indexed, Eq. (25)].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.channels.base import AbstractChannel
from jaxsmi.channels.likelihood import IntegratedChannel, Likelihood, NoInference
from jaxsmi.channels.orthants import orthant_channel, values_on_orthants
from jaxsmi.channels.pullback import frame
from jaxsmi.core import validate
from jaxsmi.core.arrays import (
    as_module,
    check_closure,
    concrete,
    is_zero,
    missing_array,
    theory_dtype,
)
from jaxsmi.core.data import HasTeacher
from jaxsmi.core.solution import Estimate, Solution
from jaxsmi.core.validate import POSITIVE, VARIANCE, check
from jaxsmi.design.designs import IndexDesign, IndexOperator
from jaxsmi.design.products import Inputs
from jaxsmi.design.tokens import Tokens
from jaxsmi.models.base import (
    RUN_POINTS,
    AbstractMetric,
    AbstractModel,
    AbstractStudent,
    Prediction,
    label_shape,
    posterior_covariance,
    title,
)
from jaxsmi.models.prediction import error_of_rows, posterior_labels, prediction_error
from jaxsmi.models.symmetry import AbstractSymmetry, Block, symmetries_of, symmetry_of
from jaxsmi.models.teacher_student import (
    AbstractTeacher,
    StudentLoss,
    TeacherStudent,
    squared_loss,
)
from jaxsmi.numerics.quadrature import power_of_two
from jaxsmi.numerics.refining import Budget
from jaxsmi.priors.iid import AbstractIidPrior, iid_prior

_ERROR_POINTS = 4096  # least points a net: the error of signs at α = 10 to 1 %


class IndexModel(AbstractModel, AbstractTeacher):
    """A sequence multi-index model: prior on W (P, D), fields Z = W x/√D (P, M), channel p(y|Z).

    `inputs`: fixed directions of the inputs; None: they are centred.
    """

    prior: AbstractIidPrior
    symmetry: tuple[AbstractSymmetry, ...]
    inputs: Tokens | None = eqx.field(default=None, kw_only=True)

    @property
    def tokens(self) -> int:
        """M, the number of tokens."""
        return self.channel.tokens

    @property
    def design(self) -> IndexDesign:
        """Inputs (N, M, D), teachers W (P, D), α = N/D."""
        return IndexDesign(self.prior, self.indices, self.tokens, self.inputs)

    @property
    def student(self) -> IndexStudent:
        """Rows (P, D)."""
        return IndexStudent(self)

    @property
    def metric(self) -> IndexMetric:
        """Cosines up to the symmetries, and prediction errors."""
        return IndexMetric(self, self.symmetry)

    @property
    def recovery_alpha(self) -> Array:
        """d/k, for noiseless labels that fix k combinations of the fields, under a prior whose
        columns have d continuous numbers on average: P, of a sparse prior P times its density."""
        fixed = self.channel.constraints
        allowed = (
            "labels without noise of phase retrieval, a product, ReLU, or attention with one head "
            "in the last layer, tied of rank one or two or untied of rank one (of other links, and "
            "of weights of few values, ask smi.first_order)"
        )
        given = f"{title(self)}, whose labels fix no combination of its fields"
        check(fixed is not None, "model", given, allowed)
        assert fixed is not None
        traits = self.prior.traits
        allowed = "a prior with a continuous part (of a discrete one ask smi.first_order)"
        check(not traits.discrete, "model", self.prior, allowed)
        free = jnp.asarray(self.indices, theory_dtype())
        if not traits.continuous:
            column = self.prior.column(self.indices)
            free = jnp.sum(jnp.exp(column.log_weight) * jnp.linalg.matrix_rank(column.factor))
        return free / fixed

    def predict_proba(self, solution: Solution, inputs: ArrayLike) -> Array:
        r"""Predict the probabilities of the labels of new inputs, label noise included.

        With ω = Ŵ x/√D and the posterior covariance V of the run,

            P(y|x) = E P(y|z),   z_m ~ N(ω_m, V) for each token m.

        Args:
            solution: The solution of `gamp` or `spectral`, or one that `smi.load` reads.
            inputs: New inputs (N, M, D), or (N, D) of one token.

        Returns:
            (N, K), one column a label: numbers in ascending order (-1, then +1), others in the
            order of `model.channel.outcomes`, which of `smi.links.softmax` is that of classes.

        Raises:
            ValueError: For labels that are not a few known values, shapes that do not fit, or a
                solution without a posterior, as of a learner other than smi.Bayes().

        Example:
            >>> import jax, jaxsmi as smi
            >>> model, key = smi.links.sign(noise=0.1), jax.random.key(0)
            >>> data = model.sample(key, dimension=200, alpha=3.0)
            >>> model.predict_proba(smi.gamp(model, data, key=key), data.inputs).shape
            (600, 2)

        Cost:
            K posteriors an input.

        Source:
            [TCDKZ25], [theory: multi-index, section 8].
        """
        labels = self.channel.outcomes
        allowed = "labels of a few known values, such as signs, or those of outcomes="
        check(labels is not None, "model", title(self), allowed)
        assert labels is not None
        omega, V = self._fields_of(solution, inputs), posterior_covariance(solution)
        each = self.channel.statistic(jnp.sort(labels) if labels.ndim == 1 else labels)
        tiled = [jnp.broadcast_to(y, (len(omega), *y.shape)) for y in each]
        odds = [self.channel.respond(y, omega, V).log_partition for y in tiled]
        return jax.nn.softmax(jnp.stack(odds, axis=1), axis=1)

    def unsupported_reason(self, purpose: str = "inference") -> str | None:
        """Add three refusals: a teacher that overlaps with directions of its inputs, which its
        prior does not know; averages of runs; and directions under a prior whose columns differ,
        of which S does not say which direction grows first."""
        if self.inputs is not None and self.inputs.cross is not None:
            return (
                f"inputs: got {title(self)} with cross=, weights that overlap with directions of "
                "their inputs; allowed: none (smi.Tokens(encoding=..)), or a learner: "
                "smi.state_evolution(.., learner=smi.Erm(..))."
            )
        if purpose == "averages":
            return (
                f"fit: got runs of {title(self)}; allowed: runs of a matrix model (weights are "
                "known up to symmetries)."
            )
        if purpose == "directions" and not self.prior.traits.identical:
            return (
                "model: got a prior whose columns have different laws; allowed: one of iid "
                "columns, such as smi.priors.Gaussian() (state_evolution takes both)."
            )
        return super().unsupported_reason(purpose)

    def teacher_student(
        self,
        student: AbstractTeacher | None = None,
        loss: Callable[[Array, Array], Array] | None = None,
    ) -> TeacherStudent:
        """Pair the model with a student, any index model of as many tokens and the same labels."""
        allowed = f"an index model of {self.tokens} tokens"
        learner = self if student is None else student
        learner = validate.instance("student", learner, IndexModel, allowed)
        check(learner.tokens == self.tokens, "student", title(learner), allowed)
        check(self.channel.drawable, "model", title(self), "one whose labels can be drawn")
        shapes = [label_shape(self), label_shape(learner)]
        allowed = f"one with predictions of the labels' shape {shapes[0]}"
        # one number is one number, whatever its axes
        same = shapes[0] == shapes[1] or set(shapes) == {(), (1,)}
        check(same, "student", f"predictions of shape {shapes[1]}", allowed)
        S = self.prior.second_moment(self.indices)
        # without directions the fixed rows are those of the teacher alone
        gram, encoding = S, jnp.zeros((self.tokens, 0), S.dtype)
        if self.inputs is not None:
            gram, encoding = self.inputs.joint_gram(S), self.inputs.encoding
        return TeacherStudent(
            label=self.channel.label,
            loss=StudentLoss(learner.link, loss or squared_loss),
            agreement=_Cosines(learner, self.indices),
            draw_gram=eqx.Partial(self.prior.gram, indices=self.indices),
            encoding=encoding,
            gram=gram,
            targets=self.indices,
            rows=learner.indices,
            groups=1,
            tokens=self.tokens,
            noise_size=self.channel.noise_size,
            sized=not self.prior.traits.wishart,
        )

    def link_of_fields(self) -> tuple[Callable[[Array], Array], int, int]:
        """Return the link, or the probabilities of the outcomes if a noisy channel has few."""
        shape = (self.indices, self.tokens)
        channel = self.channel
        outcomes = channel.outcomes
        if outcomes is None or not channel.noise_size:
            return lambda z: jnp.ravel(channel.link(z.reshape(shape))), *shape
        V = 1e-8 * jnp.eye(shape[0])  # a channel smooths labels by V: here hardly at all

        def odds(z: Array) -> Array:
            omega = jnp.broadcast_to(z.reshape(shape), (len(outcomes), *shape))
            return jnp.exp(channel.respond(channel.statistic(outcomes), omega, V).log_partition)

        return odds, *shape


class IndexStudent(AbstractStudent):
    """Rows (P, D), seen as the teacher's."""

    model: IndexModel

    def shape(self, dimension: int) -> tuple[int, int]:
        """(P, D)."""
        return (self.model.indices, dimension)

    def fields(self, weights: Array, inputs: Inputs) -> Array:
        """Z = W x/√D (N, P, M)."""
        return IndexOperator(inputs).forward(weights)

    def signal(self, estimate: Array) -> Array:
        """Return the rows themselves."""
        P = self.model.indices
        rows = estimate.ndim == 2 and len(estimate) == P
        check(rows, "solution", estimate, f"weights of shape ({P}, D)")
        return estimate

    def draw_teacher(self, key: PRNGKeyArray, dimension: int) -> Array:
        """Draw rows (P, D) from the prior."""
        return self.model.prior.sample(key, self.model.indices, dimension)

    def check_teacher(self, teacher: Array, dimension: int) -> None:
        """Check that the teacher has finite rows (P, D)."""
        shape = self.shape(dimension)
        check(teacher.shape == shape, "teacher", teacher, f"shape {shape}")
        check(jnp.all(jnp.isfinite(teacher)), "teacher", teacher, "finite numbers")


class IndexMetric(AbstractMetric):
    """Overlaps of rows, cosines up to the symmetries, prediction errors."""

    model: IndexModel

    def comparable(self, teacher: Array) -> bool:
        """Return True if the teacher has P rows."""
        return teacher.shape[0] == self.model.indices

    def error(
        self, weights: Array, data: HasTeacher, *, key: PRNGKeyArray, points: int = RUN_POINTS
    ) -> Array:
        """Compute the plug-in prediction error of an estimate (P, D) on new Gaussian inputs, with
        noiseless labels of the data's teacher; NaN without a teacher."""
        if data.teacher is None:
            return missing_array((), theory_dtype())
        return error_of_rows(self.model, weights, data, key=key, points=points).value

    def prediction_error(
        self, Q: Array, *, bayes: bool, key: PRNGKeyArray | None, points: int
    ) -> Estimate:
        """Compute the error by eight randomised nets of about `points` points in all."""
        # nets of a power of two are balanced; eight of them give the spread to 27 %
        size = power_of_two(points // 8)
        key = validate.key("key", key)
        return prediction_error(self.model, Q, key=key, bayes=bayes, points=size)

    def posterior_labels(self, omega: Array, V: Array) -> Prediction:
        """Average over z ~ N(ω, V), for each token."""
        return posterior_labels(self.model, omega, V)

    def theory_error(self, V: Array, *, key: PRNGKeyArray, points: int) -> Estimate:
        """Compute the plug-in prediction error."""
        # at a Bayes-optimal fixed point M = Q = S - V
        Q = self.model.prior.second_moment(self.model.indices) - V
        # links are cheap, while a posterior in closed form needs few points
        points = max(points, _ERROR_POINTS)
        return prediction_error(self.model, Q, key=key, points=points)


class _Cosines(eqx.Module):
    """Cosines (P,) of a student's rows with those of the teacher, the first ones of M and ρ."""

    student: IndexModel
    targets: int = eqx.field(static=True)

    def __call__(self, cross: Array, Q: Array, gram: Array) -> Array:
        n = self.targets
        return self.student.metric.cosines(cross[:, :n], Q, gram[:n, :n])


def align(estimate: ArrayLike, teacher: ArrayLike, model: IndexModel) -> Array:
    r"""Bring an estimate onto a teacher by the symmetries of its model.

    Minimises ‖R Ŵ - W*‖_F over the group: signs of M_pp; the best signed permutation; Procrustes
    R = U Vᵀ of M_bᵀ. For two groups the minimum is approximate: for query and key the query is
    brought closest, and the key follows; for an even group of more than six rows the order is the
    best one for arbitrary signs.

    Args:
        estimate: Rows Ŵ (P, D).
        teacher: Rows W* (P, D).
        model: The index model whose symmetries may be used.

    Returns:
        The aligned estimate (P, D).

    Raises:
        ValueError: Where the shapes differ from each other or from P.

    Example:
        >>> import jax, jax.numpy as jnp, jaxsmi as smi
        >>> W = jax.random.normal(jax.random.key(0), (2, 5))
        >>> bool(jnp.allclose(smi.align(-W, W, smi.DeepAttention(2, 2)), W))
        True

    Cost:
        O(P² D).

    Source:
        [theory: multi-index, section 9].
    """
    allowed = "an index model, such as smi.DeepAttention(2, 2)"
    model = validate.instance("model", model, IndexModel, allowed)
    truth = validate.array("teacher", teacher, f"rows ({model.indices}, D)")
    P = model.indices
    check(truth.ndim == 2 and len(truth) == P, "teacher", teacher, f"({P}, D)")
    aligned = validate.array("estimate", estimate, f"rows {truth.shape}")
    check(aligned.shape == truth.shape, "estimate", estimate, f"the teacher's shape {truth.shape}")
    # symmetries act on different rows: their order does not matter
    for symmetry in model.symmetry:
        block = np.asarray(symmetry.indices)
        aligned = aligned.at[block].set(symmetry.align(aligned[block], truth[block]))
    return aligned


_MAX_NODES = 2**20  # empirical: bounds time and memory of one label
# error of the sum of probabilities that counts as rounding: float32 likelihoods, many outcomes
_SUM_ROUNDING = 1e-4
_ANONYMOUS = ("<lambda>", "log_p", "log_prob", "log_likelihood")  # names that say nothing
_LABEL_FIRST = "(y, z), in this order (fields z of shape {})"


class MultiIndex(IndexModel):
    r"""Sequence multi-index model y = link(Z) + √Δ ξ with Z = W x/√D ∈ R^{P×M}.

    A noiseless link without a channel can be sampled and trained; `noiseless_limit` and
    `weak_recovery(noises=..)` extrapolate to zero noise, and `gamp` raises a ValueError.

    Args:
        link: array (P, M) -> array, any JAX function (an equinox Module keeps its arrays
            differentiable). None with `channel`, which has its own.
        indices: P. Default: that of `channel`.
        tokens: M. Default: that of `channel`, else 1.
        noise: Variance Δ >= 0 of the label noise. Default 0.
        prior: Prior of the rows of W. Default: iid N(0, 1).
        log_likelihood: log p(y|Z) as a function of (y, Z), instead of Gaussian noise. A constant
            factor of p changes the free entropy only; with `outcomes` none is allowed: the
            probabilities must add up to one. Beside a link it serves `gamp` on data of your own;
            `sample` and `state_evolution` must draw labels, by one of the next two.
        sampler: Draws a label from (key, Z), beside a link, E[y|Z].
        outcomes: All labels (K, ...), if they are few: drawn with the probabilities of
            log_likelihood. The link is then E[y|Z] unless it is given.
        channel: An exact channel, with its own link, in place of a link and its noise.
        inputs: Fixed directions around which tokens lie, such as positional encodings:
            `smi.Tokens(encoding=..)`. Default: inputs are centred.
        symmetry: Groups that leave every label unchanged: pairs (indices, kind), with a kind of
            `models.base.SYMMETRIES` ("sign", "signed permutation", "rotation", ..), or
            symmetries themselves; () for none. Default: found at the labels of random fields,
            among signs, orders and rotations of rows (for a prior that is not even, orders only:
            the prior determines signs).
        name: Name of the model. Default: the name of the link, f(z) of a lambda.
        tolerance: Error of g, relative to 1 + max|g|, that the numerical channel aims at (the
            tolerance of `smi.Iteration` is another one, of the end of an iteration). Default 1e-3,
            1e-2 for more than three fields.
        max_nodes: Nodes that the numerical channel may spend on one sample. Default 2^20.

    Raises:
        ValueError: For P < 1, M < 1, Δ < 0, a link that fails on an array (P, M) or returns none (a
            list: jnp.stack makes an array of it), a log_likelihood whose outcomes' probabilities do
            not add up to one, or an unknown symmetry.

    Example:
        >>> import jax.numpy as jnp, jaxsmi as smi
        >>> smi.MultiIndex(lambda z: jnp.sum(jnp.tanh(z)), indices=2, tokens=1, noise=0.1).indices
        2
    """

    name: str = eqx.field(static=True)

    def __init__(
        self,
        link: Callable[[Array], Array] | None = None,
        *,
        indices: int | None = None,
        tokens: int | None = None,
        noise: ArrayLike = 0.0,
        prior: AbstractIidPrior | None = None,
        log_likelihood: Callable[[Array, Array], Array] | None = None,
        sampler: Callable[[PRNGKeyArray, Array], Array] | None = None,
        outcomes: ArrayLike | None = None,
        channel: AbstractChannel | None = None,
        inputs: Tokens | None = None,
        symmetry: Sequence[AbstractSymmetry | tuple[Block, str]] | None = None,
        name: str | None = None,
        tolerance: float | None = None,
        max_nodes: int = _MAX_NODES,
    ):
        labels = _likelihood(log_likelihood, sampler, outcomes)
        validate.optional(validate.instance, "name", name, str, "a word")
        max_nodes = validate.count("max_nodes", max_nodes)
        if channel is None:
            P = validate.count("indices", indices)
            M = validate.count("tokens", 1 if tokens is None else tokens)
            function, found = _link_or_mean(link, labels, P, M, name)
            self.name = found
            variance = validate.number("noise", noise, VARIANCE)
            allowed = "0 beside a log_likelihood=, which already has the noise of the labels"
            check(log_likelihood is None or is_zero(noise), "noise", noise, allowed)
            validate.optional(validate.number, "tolerance", tolerance, POSITIVE)
            error = default_tolerance(P * M) if tolerance is None else tolerance
            noiseless, budget = is_zero(noise), Budget(error, max_nodes)
            self.channel = _channel_of(function, labels, P, M, variance, noiseless, budget, found)
        else:
            allowed = "an AbstractChannel"
            self.channel = validate.instance("channel", channel, AbstractChannel, allowed)
            self.name = name or _name_of(type(channel))
            # a setting that the channel does not use is refused: nobody would notice that it was
            # ignored
            unused = {
                "link": (link, None),
                "indices": (indices, channel.indices),
                "tokens": (tokens, channel.tokens),
                "noise": (noise, 0.0),
                "log_likelihood": (log_likelihood, None),
                "tolerance": (tolerance, None),
                "max_nodes": (max_nodes, _MAX_NODES),
            }
            for word, (value, default) in unused.items():
                same = value is None or (concrete(value) and value == default)
                check(same, word, value, f"{default}, as this channel= has its own")
        self.prior = iid_prior(prior)
        allowed = "smi.Tokens(encoding=..)"
        self.inputs = validate.optional(validate.instance, "inputs", inputs, Tokens, allowed)
        if self.inputs is not None:
            self.inputs.check_fit(self.indices, self.tokens, self.prior.second_moment(self.indices))
        self.symmetry = _symmetry(symmetry, self.channel, labels, self.prior.traits.even)


def _link_or_mean(
    link: Callable[[Array], Array] | None, labels: Likelihood, P: int, M: int, name: str | None
) -> tuple[Callable[[Array], Array], str]:
    """Return the link as a Module (by default the mean of finitely many labels) and its name."""
    argument = "link"
    if link is None and labels.outcomes is not None:
        link, argument = labels.mean, "log_likelihood"
        name = name or _name_of(labels.log_likelihood, "own law p(y|z)")
    alone = link is None and labels.log_likelihood is not None
    allowed = "a link, E[y|z], beside it, or outcomes=, all labels, if they are few"
    check(not alone, "log_likelihood", "it without a link", allowed)
    allowed = (
        "a JAX function of the fields, or a channel=; smi.links.sign() and the like are "
        "models, and need no MultiIndex"
    )
    check(not validate.uncalled(link), "link", link, allowed)
    link = validate.function("link", link, allowed)
    name, function = name or _name_of(link), as_module(link)
    # NumPy: inside jit an array of JAX would be traced, and an index out of range no error
    fields = np.zeros((P, M))
    of = "an array of shape {}" if argument == "link" else _LABEL_FIRST
    output_shape(argument, function, of.format(fields.shape), fields, called=name)
    check_closure("link", function, fields)
    return function, name


def _channel_of(
    link: Callable[[Array], Array],
    labels: Likelihood,
    P: int,
    M: int,
    variance: Array,
    noiseless: bool,
    budget: Budget,
    name: str,
) -> AbstractChannel:
    """The channel of a link: in closed form if it is constant on orthants, else by integrals."""
    if labels.log_likelihood is None:
        values = values_on_orthants(link, P, M)
        if values is not None:
            return orthant_channel(values, None if noiseless else variance, P)
        # the law of other noiseless labels is a delta function of the fields, which no numerical
        # integral resolves
        if noiseless:
            return NoInference(link_function=link, budget=budget, name=name, indices=P, tokens=M)
    _check_likelihood(labels, link, P, M)
    return IntegratedChannel(P, M, budget, link, variance, labels)


class _OfFields(eqx.Module):
    """A user's function of one number, or of a symmetric matrix (T, T), as a function of fields
    (1, M), its last argument."""

    function: Callable[..., Array]
    size: int | None = eqx.field(static=True)

    def __call__(self, *arguments: Array) -> Array:
        *before, fields = arguments
        if self.size is None:
            return jnp.asarray(self.function(*before, fields[0, 0]))
        # channels see T(T+1)/2 independent coordinates, users symmetric matrices
        basis = jnp.asarray(frame(self.size), fields.dtype)
        return jnp.asarray(self.function(*before, (basis @ fields[0]).reshape(self.size, -1)))


def output_model(
    output: Callable[..., Any] | None,
    noise: ArrayLike,
    labels: Mapping[str, Any],
    size: int | None = None,
    tolerance: float | None = None,
) -> MultiIndex:
    """Build the model of one index with the channel of an output of a matrix.

    Args:
        output: A function of one field, or of scores; None: the mean of the law of few labels.
        noise: Δ >= 0.
        labels: The arguments `log_likelihood`, `sampler` and `outcomes`, of the same fields.
        size: T of symmetric scores (T, T); None: one field.
        tolerance: Error of g that the numerical channel aims at.
    """
    wrapped = lambda f: None if f is None else _OfFields(as_module(f), size)
    name = None
    if output is not None:
        shape = () if size is None else (size, size)
        arguments = "one number" if size is None else f"symmetric scores {shape}"
        name = _name_of(output)
        output_shape("output", output, arguments, np.zeros(shape), called=name)
    return MultiIndex(
        wrapped(output),
        indices=1,
        tokens=1 if size is None else size * (size + 1) // 2,
        noise=noise,
        log_likelihood=wrapped(labels["log_likelihood"]),
        sampler=wrapped(labels["sampler"]),
        outcomes=labels["outcomes"],
        name=name,
        tolerance=tolerance,
    )


def check_no_law(labels: Mapping[str, Any]) -> None:
    """Raise a ValueError for a law of labels beside an output that has its own."""
    for name, value in labels.items():
        check(value is None, name, value, "None beside a named output, or a link of smi.links")


def _name_of(function: Any, anonymous: str = "f(z)") -> str:
    """Return the name of a function without its bound arguments, or of its type; of a lambda, and
    of a law whose name says no more than log p, `anonymous`."""
    while hasattr(function, "func"):
        function = function.func
    name = getattr(function, "__name__", type(function).__name__).rpartition(".")[2]
    return anonymous if name in _ANONYMOUS else name


def _symmetry(
    symmetry: Sequence[AbstractSymmetry | tuple[Block, str]] | None,
    channel: AbstractChannel,
    labels: Likelihood,
    even: bool,
) -> tuple[AbstractSymmetry, ...]:
    """Validate the argument `symmetry`; None: found at the labels of random fields, given whether
    the prior is `even`."""
    P = channel.indices
    if symmetry is None:
        return symmetries_of(_Observed(channel, labels), P, channel.tokens, even)
    allowed = "symmetries, such as [((0, 1), 'sign')]"
    kinds = (AbstractSymmetry, tuple)
    parts = validate.sequence("symmetry", symmetry, allowed, empty=True)
    parts = [validate.instance("symmetry", part, kinds, allowed) for part in parts]
    return tuple(
        part if isinstance(part, AbstractSymmetry) else symmetry_of(part[0], part[1], P)
        for part in parts
    )


class _Observed(eqx.Module):
    """The function that a symmetry must leave unchanged: the label, with the user's likelihood."""

    channel: AbstractChannel
    labels: Likelihood

    def __call__(self, fields: Array) -> Array:
        # not the link alone: a likelihood can determine signs that its mean does not
        label = jnp.asarray(self.channel.link(fields))
        if self.labels.log_likelihood is None:
            return jnp.ravel(label)
        # few labels: their probabilities are the law itself, without a link
        if self.labels.outcomes is not None:
            return self.labels.odds(fields)
        return jnp.append(jnp.ravel(label), self.labels.log_likelihood(label, fields))


def _likelihood(
    log_likelihood: Callable[[Array, Array], Array] | None,
    sampler: Callable[[PRNGKeyArray, Array], Array] | None,
    outcomes: ArrayLike | None,
) -> Likelihood:
    """Return the law of labels that the arguments describe."""
    if log_likelihood is None:
        allowed = "None without a log_likelihood=, the law that it draws from"
        check(sampler is None, "sampler", sampler, allowed)
        check(outcomes is None, "outcomes", outcomes, allowed)
        return Likelihood()
    allowed = "a function log p(y|z) of (label, fields)"
    law = as_module(validate.function("log_likelihood", log_likelihood, allowed))
    if outcomes is not None:
        check(sampler is None, "sampler", sampler, "None beside outcomes=, which draw labels")
        allowed = "all labels (K, ...), two or more"
        values = validate.array("outcomes", outcomes, allowed)
        check(values.ndim >= 1 and len(values) > 1, "outcomes", outcomes, allowed)
        return Likelihood(law, None, values)
    if sampler is None:
        return Likelihood(law)
    return Likelihood(law, as_module(validate.function("sampler", sampler, "one of (key, fields)")))


def _check_likelihood(
    labels: Likelihood, link: Callable[[Array], Array], indices: int, tokens: int
) -> None:
    """Raise a ValueError for a sampler or a likelihood that fails, or probabilities of the outcomes
    that do not add up to one."""
    if labels.log_likelihood is None:
        return
    z = np.cos(1.0 + 2.4 * np.arange(indices * tokens)).reshape(indices, tokens)  # generic fields
    if labels.sampler is not None:
        key = jax.random.key(0)
        output_shape("sampler", labels.sampler, f"(key, fields {z.shape})", key, z)
        check_closure("sampler", labels.sampler, key, z)
    label = np.zeros(labels.shape(link, (indices, tokens)))
    arguments = _LABEL_FIRST.format(z.shape)
    shape = output_shape("log_likelihood", labels.log_likelihood, arguments, label, z)
    check_closure("log_likelihood", labels.log_likelihood, label, z)
    allowed = f"a JAX function of {arguments} that returns one number"
    check(shape == (), "log_likelihood", f"an answer of shape {shape}", allowed)
    if labels.sampler is not None:
        labels.check_sampler(indices, tokens)
    if labels.outcomes is None:
        return
    # counts that are cut off too low lose labels at large fields
    sizes = np.array([-4.0, -2.0, -1.0, 1.0, 2.0, 4.0])
    fields = sizes[:, None, None] * z / np.max(np.abs(z))
    totals = jax.vmap(lambda z: jnp.sum(labels.odds(z)))(jnp.asarray(fields))
    if not concrete(totals):  # odds of traced numbers
        return
    k = np.argmax(np.nan_to_num(np.abs(np.asarray(totals) - 1.0), nan=np.inf))
    allowed = (
        "probabilities of the outcomes that add up to one at fields up to four in size (of counts, "
        "list more of them)"
    )
    found = f"{float(totals[k]):.4g} in all at a field {sizes[k]:g}"
    check(jnp.abs(totals[k] - 1.0) <= _SUM_ROUNDING, "log_likelihood", found, allowed)


def output_shape(
    name: str, function: Callable[..., Array], arguments: str, *values: Any, called: str = "one"
) -> tuple[int, ...]:
    """Return the shape of the result of a user's function; raise a ValueError if it fails, or
    returns another object than one array of real numbers (a list, say)."""
    allowed = f"a JAX function of {arguments}"
    result = validate.call_user_function(name, _abstract_result, allowed, function, *values)
    one = isinstance(result, jax.ShapeDtypeStruct)
    kind = f"complex numbers {result.shape}" if one else f"a {type(result).__name__}"
    real = one and not jnp.issubdtype(result.dtype, jnp.complexfloating)
    allowed += " that returns one array of real numbers, such as jnp.stack([...])"
    check(real, name, f"{called} that returns {kind}", allowed)
    return result.shape


def _abstract_result(function: Callable[..., Array], *values: Any) -> Any:
    """Evaluate a function by shape; raise an IndexError if it reads fields out of range, where
    JAX would read the last one and NumPy does not."""
    result = jax.eval_shape(function, *values)
    try:
        jax.eval_shape(lambda: jnp.asarray(function(*values)))
    except IndexError:
        raise
    except Exception:  # functions written for JAX's arrays alone cannot be tested so
        pass
    return result


def default_tolerance(inner: int) -> float:
    """Return the default error of g: 1e-3 if grids reach it (up to three inner variables), else
    1e-2."""
    return 1e-3 if inner <= 3 else 1e-2

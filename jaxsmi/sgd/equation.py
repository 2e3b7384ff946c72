r"""The limit of many dimensions: the differential equation of the overlaps.

Equations here [ALSKZ25, Eq. 11, Prop. 2; theory: online-sgd, Eqs. (28) to (31), (66), (67)], κ the
learning rate for each sample, t = κ α, λ_t the weight decay for a unit of t, averages A_T, A_Z, V
of averages.py:

    dM/dt = -A_T - λ_t M,   dQ/dt = -(A_Z + A_Zᵀ) + κ V - 2 λ_t Q
    sphere: a = diag(dQ)/(2 diag Q),   dM -= a M,   dQ -= a Q + Q a

κ → 0 is (projected) gradient flow. Of one direction on the sphere this is

    dv/dt = -(I - v vᵀ) ∇R(v) - (γ/2) V(v) v,   v = (m, e),   γ = κ

The V term is what normalisation costs: without it the flow is too fast already at γ = 0.1 and ends
at |m| = 1, where SGD does not. Integrated by diffrax, Tsitouras' method of order five with adaptive
steps; each net of an average by itself, so that the spread of the answers is the error of the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from jaxsmi.core.arrays import concrete, is_zero
from jaxsmi.core.checks import NON_NEGATIVE, POSITIVE, Arguments, check
from jaxsmi.models.sequence_single_index import SequenceSingleIndex
from jaxsmi.models.teacher_student import TeacherStudent
from jaxsmi.numerics.nets import power_of_two
from jaxsmi.numerics.triangular import triangular_root
from jaxsmi.sgd.averages import AbstractAverages, Averages, SphereAverages, net_averages
from jaxsmi.sgd.population import in_range, sampling
from jaxsmi.sgd.problem import check_gradient, check_start, frame_of, guarded, overlaps_of, pair_of

if TYPE_CHECKING:
    import diffrax  # takes a second: it is imported where a flow is solved

__all__ = [
    "Equation",
    "Options",
    "Path",
    "Point",
    "Problem",
    "passages",
    "problem_of",
    "trajectories",
    "velocity",
]

_START = "a point away from the origin, which is at rest: about 1/√d"
_OLDER = "one of the two: gamma= (of a SequenceSingleIndex) or rate="

_Found = TypeVar("_Found")


class Point(NamedTuple):
    """Overlaps M (P, k) and Q (P, P), or how fast they move."""

    M: Array
    Q: Array


def velocity(
    averages: Averages, M: Array, Q: Array, kappa: Array, decay: Array | float, projected: bool
) -> tuple[Array, Array]:
    """dM/dt and dQ/dt (module docstring)."""
    dM = -averages.fixed - decay * M
    dQ = -(averages.own + averages.own.T) + kappa * averages.square - 2.0 * decay * Q
    if not projected:
        return dM, dQ
    a = jnp.diagonal(dQ) / (2.0 * jnp.diagonal(Q))
    return dM - a[:, None] * M, dQ - a[:, None] * Q - Q * a


class Equation(eqx.Module):
    """The differential equation of one pair at one learning rate, and the accuracy asked for."""

    averages: AbstractAverages
    kappa: Array
    decay: Array
    noisy: bool = eqx.field(static=True)
    projected: bool = eqx.field(static=True)
    rtol: float = eqx.field(static=True)
    max_steps: int = eqx.field(static=True)

    def drift(self, x: Point) -> Point:
        """dM/dt and dQ/dt."""
        averages = self.averages.at(x.M, x.Q, self.noisy)
        return Point(*velocity(averages, x.M, x.Q, self.kappa, self.decay, self.projected))

    def solve(
        self,
        x: Point,
        last: Array,
        saveat: diffrax.SaveAt,
        event: diffrax.Event | None = None,
    ) -> diffrax.Solution:
        """From x at t = 0 to `last`, or to an event."""
        import diffrax

        return diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, x, equation: equation.drift(x)),
            diffrax.Tsit5(),
            t0=jnp.zeros_like(last),
            t1=last,
            dt0=None,
            y0=x,
            args=self,
            saveat=saveat,
            stepsize_controller=diffrax.PIDController(rtol=self.rtol, atol=1e-2 * self.rtol),
            max_steps=self.max_steps,
            event=event,
            throw=False,
        )


class Path(NamedTuple):
    """M, Q, cosines and risk along a path, and whether all of it was reached."""

    M: Array
    Q: Array
    cosine: Array
    risk: Array
    complete: Array


@eqx.filter_jit
def trajectories(
    equations: Equation, pair: TeacherStudent, gram: Array, x: Point, times: Array
) -> Path:
    """The paths of all nets (leading axis) at the times."""
    import diffrax

    def one(equation: Equation) -> Path:
        solution = equation.solve(x, times[-1], diffrax.SaveAt(ts=times))
        assert solution.ys is not None
        path = solution.ys
        cosine = jax.vmap(lambda M, Q: pair.agreement(M, Q, gram))(path.M, path.Q)
        risk = jnp.full(len(times), jnp.nan, times.dtype)
        if not pair.spherical:
            risk = lax.map(lambda y: equation.averages.at(*y).risk, (path.M, path.Q))
        complete = solution.result == diffrax.RESULTS.successful
        return Path(path.M, path.Q, cosine, risk, complete)

    return _each(one, equations)


@eqx.filter_jit
def passages(
    equations: Equation,
    pair: TeacherStudent,
    gram: Array,
    x: Point,
    level: Array,
    last: Array,
) -> tuple[Array, Array]:
    """Times (nets, n) at which each agreement has the level (inf: not until `last`), and whether
    they are known."""
    import diffrax
    import optimistix

    sizes = lambda y: jnp.atleast_1d(pair.agreement(y.M, y.Q, gram))

    def passage(equation: Equation, index: int) -> tuple[Array, Array]:
        height = lambda t, y, args, **_: sizes(y)[index] - level
        event = diffrax.Event(height, optimistix.Newton(1e-10, 1e-10))
        solution = equation.solve(x, last, diffrax.SaveAt(t1=True), event)
        happened = solution.result == diffrax.RESULTS.event_occurred
        assert solution.ts is not None
        time = jnp.where(happened, solution.ts[-1], jnp.inf)
        known = happened | (solution.result == diffrax.RESULTS.successful)
        there = sizes(x)[index] >= level
        return jnp.where(there, 0.0, time), known | there

    def one(equation: Equation) -> tuple[Array, Array]:
        found = [passage(equation, p) for p in range(len(sizes(x)))]
        return jnp.stack([t for t, _ in found]), jnp.stack([k for _, k in found])

    return _each(one, equations)


def _each(function: Callable[[Equation], _Found], equations: Equation) -> _Found:
    """A function of each of the equations, that share all but the points of their averages."""
    numbers, rest = eqx.partition(equations, eqx.is_array)
    return lax.map(lambda part: function(eqx.combine(part, rest)), numbers)


class Problem(NamedTuple):
    """What a call asks for: equations of all nets, teacher and student, ρ, and where to begin."""

    equations: Equation
    pair: TeacherStudent
    gram: Array
    start: Point


class Options(NamedTuple):
    """What `flow` and `recovery_time` are asked beside the start, as a user writes it."""

    rate: ArrayLike | None
    gamma: ArrayLike | None
    student: object
    loss: Callable[[Array, Array], Array] | None
    decay: ArrayLike
    projection: str | None
    teacher: object
    encoding: ArrayLike | None
    key: PRNGKeyArray | None
    samples: int
    nets: int
    rtol: float
    max_steps: int

    def pair(self, arguments: Arguments, model: object) -> TeacherStudent:
        """Teacher and student."""
        return pair_of(arguments, model, self.student, self.loss, self.encoding)

    def kappa(self, arguments: Arguments) -> Array:
        """κ, under either of its names; where it is out of range inside jit zero: the answer is
        masked, and NaN would take all steps."""
        check(self.rate is None or self.gamma is None, "gamma", self.gamma, _OLDER)
        name = "rate" if self.gamma is None else "gamma"
        value = self.rate if self.gamma is None else self.gamma
        kappa = arguments.number(name, 0.0 if value is None else value, NON_NEGATIVE)
        return jnp.where(jnp.isnan(kappa), 0.0, kappa)


def problem_of(
    arguments: Arguments, model: object, m: object, e: ArrayLike, options: Options
) -> Problem:
    """The equations of a call, its arguments checked."""
    o = options
    pair = o.pair(arguments, model)
    kappa = o.kappa(arguments)
    shrink = arguments.number("decay", o.decay, NON_NEGATIVE)
    check(o.projection in (None, "sphere"), "projection", o.projection, "'sphere' or None")
    arguments.number("rtol", o.rtol, POSITIVE)
    max_steps = arguments.count("max_steps", o.max_steps)
    gram = frame_of(arguments, pair, o.teacher)
    start = _overlaps(arguments, model, pair, m, e)
    make = _sphere if pair.spherical else _nets
    averages = make(arguments, model, pair, gram, start, o)
    check_gradient(pair)
    number = 1 if pair.spherical else o.nets
    # the V term costs as much as the gradient, so it is left out where it is known to vanish
    noisy = not (concrete(kappa) and float(kappa) == 0.0)
    per_time = shrink / jnp.where(kappa > 0.0, kappa, 1.0)
    allowed = "0 without a learning rate: it is that for a unit of α"
    arguments.condition((kappa > 0.0) | (shrink == 0.0), "decay", o.decay, allowed)
    spread = lambda x: jnp.broadcast_to(x, (number, *jnp.shape(x)))
    equations = Equation(
        averages,
        spread(kappa),
        spread(per_time),
        noisy,
        pair.spherical or o.projection == "sphere",
        float(o.rtol),
        max_steps,
    )
    if not pair.spherical:
        start = Point(*guarded(pair, gram, *start))
    return Problem(equations, pair, gram, start)


def _sphere(
    arguments: Arguments,
    model: object,
    pair: TeacherStudent,
    gram: Array,
    start: Point,
    options: Options,
) -> AbstractAverages:
    """Averages of one direction on the sphere, exact or sampled as its risk is."""
    del gram
    named = options.teacher is None or isinstance(options.teacher, str)
    check(named, "teacher", options.teacher, "None: it is one direction of norm one")
    check(is_zero(options.decay), "decay", options.decay, "0: directions stay on the sphere")
    single = arguments.instance("model", model, SequenceSingleIndex, "a SequenceSingleIndex")
    v = start.M[0] if pair.tied else start.M[:, 0]
    arguments.condition(jnp.any(v != 0.0), "(m, e)", v, _START)
    arguments.condition(in_range(single, v), "(m, e)", v, _START)
    count = sampling(arguments, single, options.key, options.samples)
    averages = SphereAverages(single, options.key, count)
    return jax.tree.map(lambda x: x[None] if eqx.is_array(x) else x, averages)


def _nets(
    arguments: Arguments,
    model: object,
    pair: TeacherStudent,
    gram: Array,
    start: Point,
    options: Options,
) -> AbstractAverages:
    """Averages on nets, with a leading axis."""
    del model
    check_start(arguments, pair, gram, start)
    _check_moving(pair, start.M)
    key = options.key
    check(key is not None, "key", key, "a key: averages of this model are sampled")
    nets = arguments.count("nets", options.nets, at_least=2)
    count = power_of_two(arguments.count("samples", options.samples))
    return net_averages(pair, triangular_root(gram), arguments.key("key", key), count, nets)


def _overlaps(
    arguments: Arguments, model: object, pair: TeacherStudent, given: object, e: ArrayLike
) -> Point:
    """M and Q of the start, from (M, Q), or (m, e) of one direction."""
    pairs = isinstance(given, tuple) and not pair.spherical
    allowed = "(M, Q), of one direction on the sphere a number m"
    check(pairs or pair.spherical, "m", given, allowed)
    if pairs:
        start = overlaps_of(arguments, model, pair, given, None, e)
    else:
        start = overlaps_of(arguments, model, pair, None, jnp.asarray(given), e)  # pyright: ignore
    assert start is not None
    return Point(*start)


def _check_moving(pair: TeacherStudent, M: Array) -> None:
    """Raise a ValueError for a start at rest: M = 0 of a loss that is even in every field."""
    if not concrete((pair, M)) or bool(jnp.any(M != 0.0)):
        return
    tokens = pair.tokens * pair.groups
    point = jnp.cos(1.0 + 2.4 * jnp.arange(float(pair.targets * tokens))).reshape(-1, tokens)
    own = jnp.sin(1.0 + 1.7 * jnp.arange(float(pair.rows * tokens))).reshape(-1, tokens)
    noise = jnp.zeros(pair.noise_size)
    even = all(
        jnp.allclose(
            pair.sample_loss(point, own * flip, noise), pair.sample_loss(point, own, noise)
        )
        for flip in 1.0 - 2.0 * jnp.eye(pair.rows)[:, :, None]
    )
    allowed = "M of order 1/√D: at M = 0 the flow is at rest (simulate leaves it by its noise)"
    check(not even, "M", M, allowed)

r"""Online SGD on the sphere: of whole weight vectors, and exactly of their overlaps alone at a cost that does not know d.

Equations here [ALSKZ25; theory: online-sgd, Eqs. (5), (33) to (35)], one fresh sample a step, s_l = ∂ℓ/∂z_l:

    w ← √d (w - γ g)/‖w - γ g‖,   g = Σ_l s_l (x_l + u_l/√d);   untied: each row w_l by itself, with g_l = s_l x_l

The overlaps are a Markov chain at any d. With a, b, c ~ N(0, 1) (components of √d x_l along w*, the K directions of the
encoding, and the rest of w), r² = 1 - m² - ‖e‖², q = γ/d:

    z*_l = a_l,   z_l = m a_l + b_l·e + r c_l + (C e)_l
    v_m = m - q Σ s_l a_l,   v_e = e - q Σ s_l (b_l + C_l),   v_r = r - q Σ s_l c_l,   v_4² = q² (Σ s_l²) χ²_{d-K-2}
    (m, e, r) ← (v_m, v_e, √(v_r² + v_4²))/‖(v_m, v_e, v_r, v_4)‖

χ² comes from Marsaglia and Tsang's rejection with a fixed number of tries, more of them for small d; to stop there moves
its law by less than 1e-6 in total variation.
"""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array
from tqdm import tqdm

from jaxsmi.core.arrays import concrete, theory_dtype
from jaxsmi.core.checks import check
from jaxsmi.core.codes import Result
from jaxsmi.descent.loop import Descent, TrainState, descend
from jaxsmi.models.sequence_single_index import SequenceSingleIndex
from jaxsmi.sgd.population import overlaps as overlaps_of

BLOCK = 64  # steps whose random numbers are drawn at once


_CHUNK = 512  # blocks between two looks at the progress bar


class Simulation(eqx.Module):
    """Runs of online SGD.

    `step` (records,), `overlaps` (runs, records, n): (m, e_1..e_K), of an untied network m_1..m_L; NaN after a run has stopped;
    `end` (runs, n), where each run ended; `steps` (runs,), how many it took; `reached` (runs,): the first step with
    ‖(m, e)‖ >= η (of an untied network ‖m‖/√L; inf: never, 0: at the start); `result` (runs,): SUCCESS (stopped as asked, or all
    steps taken where nothing was asked), MAX_STEPS, NONFINITE; `gamma`, `dimension`.
    """

    step: Array
    overlaps: Array
    end: Array
    steps: Array
    reached: Array
    result: Array
    gamma: Array
    dimension: int = eqx.field(static=True)
    tied: bool = eqx.field(static=True)

    @property
    def time(self) -> Array:
        """t = γ τ/d of the records."""
        return self.step * self.gamma / self.dimension

    @property
    def m(self) -> Array:
        """Semantic overlaps (runs, records), of an untied network (runs, records, L)."""
        return self.overlaps[..., 0] if self.tied else self.overlaps

    @property
    def e(self) -> Array:
        """Positional overlaps (runs, records, K)."""
        return self.overlaps[..., 1:] if self.tied else self.overlaps[..., :0]

    @property
    def semantic(self) -> Array:
        """Whether each run ended nearer to its semantic than to its positional solution, |m| > ‖e‖ (runs,)."""
        check(
            self.tied and self.end.shape[-1] > 1,
            "simulation",
            "without positional overlaps",
            "one of a student with a positional encoding",
        )
        return jnp.abs(self.end[..., 0]) > jnp.linalg.norm(self.end[..., 1:], axis=-1)


def length_of(model: SequenceSingleIndex, v: Array) -> Array:
    """‖(m, e)‖, of an untied network ‖m‖/√L: what weak recovery is measured by (last axis)."""
    size = jnp.linalg.norm(v, axis=-1)
    return size if model.tied else size / np.sqrt(model.length)


def simulate(
    model: SequenceSingleIndex,
    key: Array,
    *,
    dimension: int,
    gamma: Any,
    steps: int,
    m: Any = None,
    e: Any = 0.0,
    eta: Any = None,
    until: Any = None,
    every: int | None = None,
    method: str = "reduced",
    progress: bool = False,
) -> Simulation:
    r"""Online spherical SGD of the student, run by run the chain of the module's docstring.

        w ← √d (w - γ ∇ℓ)/‖w - γ ∇ℓ‖,   one fresh sample a step,   t = γ τ/d

    Arguments: `model`; `key`, or keys (runs,) for several runs at once (the answer of each depends on its own key alone);
    `dimension` d; learning rate `gamma` γ (c γ is what matters); `steps`, at most; `m`, `e`: the overlaps at the start
    (default: uniform on the sphere); `eta`: the level of `reached` (default 1/2); `until`: a run stops at ‖(m, e)‖ >= until;
    `every`: steps between records (default: a hundred records); `method`: "reduced", the overlaps alone, exact at any d, or
    "full", whole weight vectors (`reached` and `until` then to the resolution of the records); `progress`: a bar.

    Returns: Simulation. Raises: ValueError for d < K + 3, γ <= 0, steps < 1, η outside (0, 1) or not above the start, `until`
    outside (0, 1], every < 1, an unknown method, or a start outside m² + ‖e‖² <= 1.

    Example:
    >>> import jax, jaxsmi as smi
    >>> model, keys = smi.sgd.semantic_positional(0.3), jax.random.split(jax.random.key(0), 8)
    >>> runs = smi.sgd.simulate(model, keys, dimension=100, gamma=1.0, steps=20_000, until=0.9)
    >>> bool(runs.semantic.all())
    True

    Cost: 0.3 to 0.5 µs a step of a reduced run, many at once; L d random numbers a step of a full one.
    Source: [ALSKZ25]; [theory: online-sgd, Eqs. (33) to (35)].
    """
    if jnp.issubdtype(key.dtype, jnp.uint32):  # words of keys of the old kind
        key = jax.random.wrap_key_data(key)
    gamma, runs = jnp.asarray(gamma, theory_dtype()), 1 if key.ndim == 0 else key.shape[0]
    K = model.encoding.shape[1]
    check(
        isinstance(dimension, (int, np.integer)) and dimension >= K + 3,
        "dimension",
        dimension,
        f"an integer d >= {K + 3}",
    )
    check(gamma.shape == () and jnp.isfinite(gamma) & (gamma > 0), "gamma", gamma, "a number > 0")
    check(isinstance(steps, (int, np.integer)) and steps >= 1, "steps", steps, "an integer >= 1")
    every = max(-(-steps // 100), 1) if every is None else every
    check(isinstance(every, (int, np.integer)) and every >= 1, "every", every, "an integer >= 1")
    check(
        eta is None or (isinstance(eta, (int, float, np.number)) and 0 < float(eta) < 1),
        "eta",
        eta,
        "a number in (0, 1)",
    )
    number = isinstance(until, (int, float, np.number))
    check(
        until is None or (number and 0 < float(until) <= 1),
        "until",
        until,
        "a number in (0, 1], or None",
    )
    check(method in ("reduced", "full"), "method", method, "'reduced' or 'full'")
    check(m is not None or not np.any(np.asarray(e)), "e", e, "nothing without m")
    start = None
    if m is not None:
        start = overlaps_of(model, m, e)
        if eta is not None and concrete(start):
            check(
                length_of(model, start) < eta,
                "eta",
                eta,
                f"a number above the start, {float(length_of(model, start)):.3g}",
            )
    eta = 0.5 if eta is None else eta
    keys = jnp.reshape(key, (runs,))
    stop = jnp.asarray(np.inf if until is None else until, theory_dtype())
    if method == "full":
        return _full(model, keys, dimension, gamma, steps, start, eta, stop, every, progress)
    begin = jax.vmap(lambda k: _reduced_start(model, k, dimension, start))(keys)
    chain = _begin(model, begin, -(-steps // every), jnp.asarray(eta, theory_dtype()), stop)
    blocks = -(-steps // BLOCK)
    per = _CHUNK if progress else blocks
    with tqdm(total=steps * runs, desc="SGD", disable=not progress, leave=False) as bar:
        for block in range(0, blocks, per):
            chain = _advance(
                model, keys, chain, jnp.asarray(dimension, theory_dtype()), gamma, jnp.asarray(steps), jnp.asarray(every),
                jnp.asarray([block, min(block + per, blocks)]), _tries(dimension - K - 2),
            )  # fmt: skip
            if progress:
                bar.update(int(jnp.sum(chain.steps)) - bar.n)
                if bool(jnp.all(chain.result >= 0)):
                    break
    unmet = Result.SUCCESS if until is None else Result.MAX_STEPS
    return Simulation(
        step=jnp.minimum(jnp.arange(chain.history.shape[0]) * every, steps),
        overlaps=jnp.moveaxis(chain.history, 0, 1),
        end=chain.state[:, : model.overlaps],
        steps=chain.steps,
        reached=chain.reached,
        result=jnp.where(chain.result < 0, unmet, chain.result),
        gamma=gamma,
        dimension=int(dimension),
        tied=model.tied,
    )


def semantic_fraction(simulation: Simulation) -> tuple[float, float, int]:
    """(P, its standard error, runs): the part of the runs that stopped as asked which is semantic, √(P (1 - P)/runs).

    Conditional on having stopped: where many runs have not arrived in their steps, those that have are not a fair sample."""
    done = np.asarray(simulation.result) == Result.SUCCESS
    count = int(done.sum())
    P = float(np.mean(np.asarray(simulation.semantic)[done])) if count else float("nan")
    return P, float(np.sqrt(P * (1 - P) / count)) if count else float("nan"), count


# The chain of the overlaps -------------------------------------------------------------------------------------------------


class _Chain(eqx.Module):
    """Runs on their way: overlaps and rests (runs, n + rests), history (records, runs, n), steps, first passage, result."""

    state: Array
    history: Array
    steps: Array
    reached: Array
    result: Array
    eta: Array
    stop: Array


def _rests(model: SequenceSingleIndex) -> int:
    return 1 if model.tied else model.length


def _reduced_start(
    model: SequenceSingleIndex, key: Array, dimension: int, start: Array | None
) -> Array:
    """Overlaps and rests r, as asked or of a weight uniform on the sphere."""
    n, rows = model.overlaps, _rests(model)
    if start is None:
        a, b = jax.random.split(jax.random.fold_in(key, 2**31 - 1))
        along = jax.random.normal(a, (n,), theory_dtype())
        rest = 2.0 * jax.random.gamma(
            b, 0.5 * (dimension - (n if model.tied else 1)), (rows,), theory_dtype()
        )
        size = jnp.sqrt(jnp.sum(along**2) + rest) if model.tied else jnp.sqrt(along**2 + rest)
        return jnp.concatenate([along / size, jnp.sqrt(rest) / size])
    square = jnp.sum(start**2)[None] if model.tied else start**2
    return jnp.concatenate([start, jnp.sqrt(jnp.maximum(1.0 - square, 0.0))])


def _begin(model: SequenceSingleIndex, state: Array, slots: int, eta: Array, stop: Array) -> _Chain:
    runs, n = len(state), model.overlaps
    history = jnp.full((slots + 1, runs, n), jnp.nan, state.dtype).at[0].set(state[:, :n])
    size = length_of(model, state[:, :n])
    reached = jnp.where(size >= eta, 0.0, jnp.inf)
    result = jnp.where(size >= stop, int(Result.SUCCESS), -1)
    return _Chain(state, history, jnp.zeros(runs, int), reached, result, eta, stop)


def _tries(freedom: int) -> int:
    return 2 if freedom >= 57 else 8


def _chi_square(count: Array, normals: Array, uniforms: Array) -> Array:
    """χ² with `count` degrees of freedom, from tries (.., tries): Marsaglia and Tsang's, the first that is accepted."""
    d = 0.5 * count - 1.0 / 3.0
    v = (1.0 + normals / jnp.sqrt(9.0 * d)) ** 3
    safe = jnp.where(v > 0.0, v, 1.0)
    accepted = (v > 0.0) & (jnp.log(uniforms) < 0.5 * normals**2 + d * (1.0 - safe + jnp.log(safe)))
    found = safe[..., -1]
    for k in range(normals.shape[-1] - 2, -1, -1):
        found = jnp.where(accepted[..., k], safe[..., k], found)
    return 2.0 * d * found


def _step(
    model: SequenceSingleIndex, q: Array, dimension: Array, state: Array, noise: Array, chi: Array
) -> Array:
    """One step of one run (module docstring): its overlaps and rests."""
    L, n = model.length, model.overlaps
    v, r = state[:n], state[n:]
    a, c, b = noise[:L], noise[L : 2 * L], noise[2 * L :].reshape(L, -1)
    m, means = model.split(v)
    s = jax.grad(model.sample_loss, argnums=1)(
        a, m * a + b @ v[1:] + r * c + means if model.tied else m * a + r * c
    )
    if model.tied:
        new = jnp.concatenate([v[:1] - q * jnp.sum(s * a), v[1:] - q * s @ (b + model.encoding)])
        rest = (r - q * jnp.sum(s * c)) ** 2 + q**2 * jnp.sum(s**2) * chi
        size = jnp.sqrt(jnp.sum(new**2) + rest)
    else:
        new, rest = v - q * s * a, (r - q * s * c) ** 2 + (q * s) ** 2 * chi
        size = jnp.sqrt(new**2 + rest)
    return jnp.concatenate([new / size, jnp.sqrt(rest) / size])


@eqx.filter_jit
def _advance(
    model: SequenceSingleIndex, keys: Array, chain: _Chain, dimension: Array, gamma: Array, steps: Array, every: Array,
    blocks: Array, tries: int,
) -> _Chain:  # fmt: skip
    """Blocks blocks[0] to blocks[1] - 1, or until all runs have stopped."""
    L, n, K, rows = model.length, model.overlaps, model.encoding.shape[1], _rests(model)
    dtype, width = chain.state.dtype, 2 * L + (L * K if model.tied else 0)
    q, freedom = gamma / dimension, dimension - K - 2.0

    def draw(key: Array, block: Array) -> tuple[Array, Array]:
        a, b = jax.random.split(jax.random.fold_in(key, block))
        normals = jax.random.normal(a, (BLOCK, width + rows * tries), dtype)
        uniforms = jax.random.uniform(b, (BLOCK, rows * tries), dtype)
        chi = _chi_square(
            freedom, *(x.reshape(BLOCK, rows, tries) for x in (normals[:, width:], uniforms))
        )
        return normals[:, :width], chi

    def body(carry: tuple[Array, _Chain]) -> tuple[Array, _Chain]:
        block, at = carry
        noise, chi = jax.vmap(draw, in_axes=(0, None), out_axes=1)(keys, block)

        def one(
            c: tuple[Array, ...], given: tuple[Array, Array, Array]
        ) -> tuple[tuple[Array, ...], Array]:
            state, count, reached, result = c
            noise, chi, i = given
            moved = jax.vmap(lambda s, z, x: _step(model, q, dimension, s, z, x))(state, noise, chi)
            going = (result < 0) & (block * BLOCK + i < steps)
            state = jnp.where(going[:, None], moved, state)
            count = count + going
            size = length_of(model, state[:, :n])
            reached = jnp.where((size >= at.eta) & jnp.isinf(reached), count.astype(dtype), reached)
            result = jnp.where(going & (size >= at.stop), int(Result.SUCCESS), result)
            result = jnp.where(going & ~jnp.isfinite(size), int(Result.NONFINITE), result)
            return (state, count, reached, result), jnp.where(going[:, None], state[:, :n], jnp.nan)

        start = (at.state, at.steps, at.reached, at.result)
        (state, count, reached, result), seen = lax.scan(
            one, start, (noise, chi, jnp.arange(BLOCK))
        )
        after = block * BLOCK + jnp.arange(BLOCK) + 1
        due = ((after % every == 0) | (after == steps)) & (
            after <= steps
        )  # the last record may come early
        slots = jnp.where(due, -(-after // every), at.history.shape[0])
        history = at.history.at[slots].set(seen, mode="drop")
        return block + 1, _Chain(state, history, count, reached, result, at.eta, at.stop)

    def going(carry: tuple[Array, _Chain]) -> Array:
        return (carry[0] < blocks[1]) & jnp.any(carry[1].result < 0)

    return lax.while_loop(going, body, (blocks[0], chain))[1]


# Whole weight vectors ------------------------------------------------------------------------------------------------------


def spherical_sgd(gamma: Any) -> optax.GradientTransformation:
    """w ← ‖w‖ (w - γ ∇ℓ)/‖w - γ ∇ℓ‖, row by row."""

    def init(params: Any) -> Any:
        del params
        return optax.EmptyState()

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        def one(g: Array, w: Array) -> Array:
            moved = w - gamma * g
            norm = lambda x: jnp.linalg.norm(x, axis=-1, keepdims=True)
            return norm(w) * moved / norm(moved) - w

        return jax.tree.map(one, updates, params), state

    return optax.GradientTransformation(init, update)


class _Online(Descent):
    """Whole weight vectors: w* is √d times the first unit vector, the encoding's frame are the next K."""

    model: SequenceSingleIndex
    dimension: int = eqx.field(static=True)
    patience: ClassVar[int | None] = None
    target: ClassVar[Any] = None

    def fields(self, weights: Array, inputs: Array) -> Array:
        """z (L,) of weights (rows, d), rows 1 or L, and √d x (L, d)."""
        m = jnp.concatenate(
            [jnp.zeros((self.model.length, 1)), self.model.encoding], axis=1
        ).astype(inputs.dtype)
        seen = inputs.at[:, : m.shape[1]].add(m)  # √d x + u: both over √d below
        return jnp.sum(seen * weights, axis=1) / np.sqrt(self.dimension)

    def objective(self, weights: Array, batch: Any) -> Array:
        """ℓ of one sample."""
        return self.model.sample_loss(batch[:, 0], self.fields(weights, batch))

    def start(self, key: Array, step: Array) -> Array:
        """Nothing is carried."""
        return jnp.zeros((0,), jnp.int32)

    def batch(self, key: Array, carried: Array, step: Array) -> tuple[Array, Any]:
        """One fresh input √d x (L, d)."""
        return carried, jax.random.normal(
            jax.random.fold_in(key, step), (self.model.length, self.dimension), theory_dtype()
        )

    def observe(self, weights: Array) -> dict[str, Any]:
        """The overlaps."""
        n = self.model.overlaps if self.model.tied else 1
        v = jnp.ravel(weights[:, :n]) / np.sqrt(self.dimension)
        return {"overlaps": v, "watched": jnp.zeros((), v.dtype)}


def _full(
    model: SequenceSingleIndex, keys: Array, dimension: int, gamma: Array, steps: int, start: Array | None, eta: Any, stop: Array,
    every: int, progress: bool,
) -> Simulation:  # fmt: skip
    n = model.overlaps if model.tied else 1

    def weights(key: Array) -> Array:
        rows = _rests(model)
        w = jax.random.normal(jax.random.fold_in(key, 2**31 - 1), (rows, dimension), theory_dtype())
        if start is None:
            return w * np.sqrt(dimension) / jnp.linalg.norm(w, axis=1, keepdims=True)
        v = start[None] if model.tied else start[:, None]
        rest = w[:, n:] / jnp.linalg.norm(w[:, n:], axis=1, keepdims=True)
        rest = rest * jnp.sqrt(jnp.maximum(1.0 - jnp.sum(v**2, axis=1, keepdims=True), 0.0))
        return np.sqrt(dimension) * jnp.concatenate([v, rest], axis=1)

    task, optimizer = _Online(model, int(dimension)), spherical_sgd(gamma)
    begin = jax.vmap(weights)(keys)
    memory = jax.vmap(optimizer.init)(begin)
    state = TrainState(begin, memory, jnp.zeros(len(keys), int), jax.random.key_data(keys))
    end = descend(
        task, optimizer, state, steps=steps, every=every, label="SGD" if progress else None
    )
    seen, step = end.history["overlaps"], end.history["step"][0]
    size = length_of(model, seen)
    first = lambda over: jnp.where(jnp.any(over, axis=1), step[jnp.argmax(over, axis=1)], jnp.inf)
    stopped = first(size >= stop)
    last = jnp.where(jnp.isfinite(stopped), jnp.searchsorted(step, stopped), len(step) - 1)
    after = jnp.arange(len(step)) > last[:, None]
    reached = jnp.any(size >= stop, axis=1) | jnp.isinf(stop)
    finite = jnp.all(jnp.isfinite(seen[:, -1]), axis=-1)
    return Simulation(
        step=step,
        overlaps=jnp.where(after[..., None], jnp.nan, seen),
        end=jnp.take_along_axis(seen, last[:, None, None], axis=1)[:, 0],
        steps=step[last].astype(int),
        reached=first(size >= eta),
        result=jnp.where(
            finite,
            jnp.where(reached, int(Result.SUCCESS), int(Result.MAX_STEPS)),
            int(Result.NONFINITE),
        ),
        gamma=gamma,
        dimension=int(dimension),
        tied=model.tied,
    )

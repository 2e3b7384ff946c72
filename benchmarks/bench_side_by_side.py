"""Side by side: the package, and the same integrals in plain
NumPy and SciPy (`plain.py`), in one run, at matched error.

    python benchmarks/bench_side_by_side.py          # the table
    python -m pytest benchmarks/bench_side_by_side.py --benchmark-only

How it is counted:

* Time is processor time on one core (all threads of the process are pinned to it), so
  that other jobs disturb it little; for ours, compiled, and what compiling took stands
  beside it. `both cores` is wall time, and is meaningful on an idle machine only.
* Errors of a denoiser are max|g - g_true|/(1 + max|g_true|), the largest over the same samples for
  all; g_true by a trapezoidal rule of 800² nodes. Of the settings of a plain method the tightest
  counts that is still no better than ours (errors below 1e-8 count as 1e-8): the ratio is then a
  lower bound. Where even the loosest is better, it counts, and the row says so.
* Ours returns g, ∂g and the error estimates of both, and finds its nodes itself;
  plain methods return g alone, and their setting is chosen knowing the error.
* A ratio is plain/ours: below one, plain is faster. `pays from`: how many samples
  (updates, calls, points) it takes to have back what compiling cost. Plain times marked
  ~ are extrapolated: seconds a label times labels needed for our standard error.
"""

import contextlib
import functools
import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsmi as smi

sys.path.insert(0, str(Path(__file__).resolve().parent))
import plain

jax.config.update("jax_enable_x64", True)

MODEL, SKIP = smi.DeepAttention(2, 2), 1.0
BATCH, CHECKED = 4096, 12  # samples ours is timed on, and those that all are compared on
POINTS = {
    "nothing learned": (0.0, 0.0),
    "layer 2 half learned": (0.0, 0.5),
    "nearly recovered": (0.5, 0.998),
}
METHODS = {  # and their settings, from loose to tight
    "dblquad": (plain.by_dblquad, (1.0, 0.1, 0.01)),
    "cubature": (plain.by_cubature, (1.0, 0.1, 0.01, 1e-3)),
    "grid by hand": (plain.by_grid, (16, 24, 32, 48, 64, 96, 128)),
}
FLOOR = 1e-8


class Row(NamedTuple):
    """One comparison; times in seconds a unit (a sample, an update, a call, a point)."""

    task: str
    method: str
    setting: str
    ours_s: float
    plain_s: float
    ours_error: float
    plain_error: float
    compile_s: float
    all_cores_s: float
    extrapolated: bool = False
    note: str = ""

    @property
    def ratio(self) -> float:
        """Plain over ours."""
        return self.plain_s / self.ours_s

    @property
    def pays_from(self) -> float:
        """Units after which compilation is paid; infinite where plain is faster."""
        gain = self.plain_s - self.ours_s
        return self.compile_s / gain if gain > 0.0 else float("inf")

    @property
    def remarks(self) -> str:
        """What one should know of the row."""
        better = self.plain_error < self.ours_error and self.ours_error > FLOOR
        return ", ".join(filter(None, [self.note, "plain is the more accurate" if better else ""]))


HEADER = (
    f"{'task':32} {'plain method (setting)':36} {'ours':>8} {'all cores':>9} {'plain':>9}"
    f" {'ratio':>8} {'err ours':>9} {'err plain':>9} {'compile':>8} {'pays from':>9}"
)


def shown(row: Row) -> str:
    """A line of the table."""
    mark = "~" if row.extrapolated else ""
    return (
        f"{row.task:32} {f'{row.method} ({row.setting})':36}"
        f" {seconds(row.ours_s):>8} {seconds(row.all_cores_s):>9}"
        f" {mark + seconds(row.plain_s):>9} {row.ratio:8.3g}"
        f" {row.ours_error:9.1e} {row.plain_error:9.1e}"
        f" {row.compile_s:6.1f} s {row.pays_from:9.2g}  {row.remarks}"
    )


def seconds(t: float) -> str:
    """Three digits and a unit."""
    if t >= 1e3:
        return f"{t:.0f} s"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if t >= size:
            return f"{t / size:.3g} {unit}"
    return f"{t * 1e9:.3g} ns"


# Clocks ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def one_core():
    """All threads of this process on one core (Linux; elsewhere nothing is pinned)."""
    tasks, before = Path("/proc/self/task"), None
    if hasattr(os, "sched_setaffinity") and tasks.is_dir():
        before = os.sched_getaffinity(0)
        pin(tasks, {min(before)})
    try:
        yield
    finally:
        if before is not None:
            pin(tasks, before)


def pin(tasks: Path, cores: set[int]) -> None:
    """Every thread; one may end meanwhile."""
    for task in tasks.iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), cores)


def best(run: Any, clock: Any = time.process_time, rounds: int = 3) -> float:
    """Shortest of some rounds."""
    times = []
    for _ in range(rounds):
        begin = clock()
        jax.block_until_ready(run())
        times.append(clock() - begin)
    return min(times)


def ours(run: Any) -> tuple[Any, float, float, float]:
    """Result, seconds on one core, wall seconds on all, and what
    compiling took (processor time of the first call, less one)."""
    begin = time.process_time()
    result = jax.block_until_ready(run())
    first = time.process_time() - begin
    with one_core():
        alone = best(run)
    return result, alone, best(run, time.perf_counter), max(first - alone, 0.0)


def timed(run: Any) -> tuple[Any, float]:
    """Result, and seconds on one core: what plain code is timed with, once."""
    with one_core():
        begin = time.process_time()
        return run(), time.process_time() - begin


# The denoiser ---------------------------------------------------------------------------------


def largest(found: np.ndarray, true: np.ndarray) -> float:
    """Largest relative error over samples (leading axis)."""
    found, true = found.reshape(len(true), -1), true.reshape(len(true), -1)
    return float((np.abs(found - true).max(1) / (1 + np.abs(true).max(1))).max())


def matched(run: Any, settings: Any, true: np.ndarray, goal: float) -> tuple[Any, float, float]:
    """(setting, seconds, error) of the tightest of the settings
    whose error is not below `goal`; else of the loosest."""
    chosen, goal = None, max(goal, FLOOR)
    for setting in settings:
        found, spent = timed(functools.partial(run, setting))
        error = largest(found, true)
        if chosen is None or max(error, FLOOR) >= goal:
            chosen = (setting, spent, error)
        if max(error, FLOOR) <= goal:
            break
    assert chosen is not None
    return chosen


respond = eqx.filter_jit(MODEL.channel.respond)


@functools.cache
def compiling() -> float:
    """Seconds to compile the denoiser at this batch, once for all points."""
    u, omega = plain.draw(np.random.default_rng(1), np.zeros((2, 2)), SKIP, BATCH)
    return ours(lambda: respond(jnp.asarray(u), jnp.asarray(omega), jnp.eye(2)))[3]


def denoiser(point: str) -> list[Row]:
    """g of two-layer attention at one overlap, a sample."""
    Q = np.diag(POINTS[point])
    V = np.eye(2) - Q
    u, omega = plain.draw(np.random.default_rng(0), Q, SKIP, BATCH)
    arguments = [jnp.asarray(x) for x in (u, omega, V)]
    compile_s = compiling()
    post, alone, both, _ = ours(lambda: respond(*arguments))
    some = range(CHECKED)
    true = np.array(
        [plain.response(plain.trapezoid(u[n], omega[n], V, SKIP, 800, 8.0), V) for n in some]
    )
    error = largest(np.asarray(post.g)[:CHECKED], true)
    rows = []
    for name, (method, settings) in METHODS.items():
        each = lambda setting, method=method: np.array(
            [method(u[n], omega[n], V, SKIP, setting) for n in some]
        )
        setting, spent, plain_error = matched(each, settings, true, error)
        label = f"K = {setting}" if "grid" in name else f"{setting:g}"
        times = alone / BATCH, spent / CHECKED
        rows.append(
            Row(
                f"denoiser, {point}",
                name,
                label,
                *times,
                error,
                plain_error,
                compile_s,
                both / BATCH,
            )
        )
    return rows


# State evolution ------------------------------------------------------------------------------

ALPHA, HALF = 0.4, jnp.diag(jnp.array([0.0, 0.5]))
UPDATE_POINTS, NETS = 256, 8
LOOSE = {
    "dblquad": 1.0,
    "cubature": 0.1,
    "grid by hand": 24,
}  # inner errors of 1e-3 or less: far below the statistical ones


@eqx.filter_jit
def update(Q: jax.Array, key: jax.Array) -> jax.Array:
    """Q̂(Q) = α E Σ_m g gᵀ (2, 2)."""
    V = jnp.eye(2) - Q
    found = MODEL.channel.response(Q, V, key=key, points=UPDATE_POINTS, nets=NETS, tangents=False)
    return ALPHA * found.mean


def deviation(Q: np.ndarray) -> float:
    """Standard deviation of α Σ_m g_2m² over independent labels
    at overlap Q: 4096 of them, by our denoiser (the same g)."""
    u, omega = plain.draw(np.random.default_rng(2), Q, SKIP, BATCH)
    g = np.asarray(respond(jnp.asarray(u), jnp.asarray(omega), jnp.asarray(np.eye(2) - Q)).g)
    return float(ALPHA * np.std(np.sum(g[:, 1] ** 2, axis=-1)))


def monte_carlo(
    task: str, Q: np.ndarray, labels: float, steps: int, stderr: float, times: tuple, note: str
) -> list[Row]:
    """Rows of plain Monte-Carlo, extrapolated from the
    seconds that a few labels at overlap Q take."""
    V = np.eye(2) - Q
    u, omega = plain.draw(np.random.default_rng(0), Q, SKIP, CHECKED)
    rows, (alone, both, compile_s) = [], times
    for name, setting in LOOSE.items():
        run = lambda name=name, setting=setting: [
            METHODS[name][0](u[n], omega[n], V, SKIP, setting) for n in range(CHECKED)
        ]
        each = timed(run)[1] / CHECKED
        label = f"{steps} × {labels:.0f} labels" if steps > 1 else f"{labels:.0f} labels"
        rows.append(
            Row(
                task,
                name,
                label,
                alone,
                steps * labels * each,
                stderr,
                stderr,
                compile_s,
                both,
                True,
                note,
            )
        )
    return rows


def one_update() -> list[Row]:
    """Q̂(Q) at Q = diag(0, 0.5), α = 0.4: our standard
    error of Q̂_22 is the spread over 16 keys."""
    keys = jax.random.split(jax.random.key(0), 16)
    _, alone, both, compile_s = ours(lambda: update(HALF, keys[0]))
    stderr = float(np.std([update(HALF, key)[1, 1] for key in keys], ddof=1))
    Q, times = np.asarray(HALF), (alone, both, compile_s)
    labels = (deviation(Q) / stderr) ** 2
    return monte_carlo(
        "state evolution, one update",
        Q,
        labels,
        1,
        stderr,
        times,
        f"ours: {NETS * UPDATE_POINTS} labels",
    )


def whole() -> list[Row]:
    """The fixed point at α = 0.4, to a standard error of Q_22
    below 0.02: the larger of what 8 keys report and their spread.

    Plain is given: a start at Q = 0.1 (ours: at 0.001), damping 0.5, a stop when Q moves by our
    standard error, one set of labels kept for the whole run (no noise between iterations), and no
    more labels than the error of its fixed point asks for, which is deviation (1 - Q_22)²/((1 - ρ)
    √N), with ρ, the slope of the map, from our solutions.
    """
    keys = jax.random.split(jax.random.key(0), 8)
    run = lambda key: smi.state_evolution(MODEL, ALPHA, key=key, averages=smi.Averages(1024))
    found, alone, both, compile_s = ours(lambda: run(keys[0]))
    all_keys = [
        (float(f.overlap[1, 1]), float(f.stderr[1, 1]), float(f.spectral_radius))
        for f in map(run, keys)
    ]
    values, reported, slopes = np.array(all_keys).T
    q, rho, stderr = (
        np.mean(values),
        np.mean(slopes),
        float(max(np.std(values, ddof=1), np.sqrt(np.mean(reported**2)))),
    )
    step = lambda Q: np.asarray(update(jnp.asarray(Q), jax.random.key(1))) / ALPHA
    steps = len(plain.picard(step, ALPHA, 0.1 * np.eye(2), 0.5, stderr)) - 1
    Q, times = np.diag([0.0, q]), (alone, both, compile_s)
    labels = float(deviation(Q) * (1.0 - q) ** 2 / (stderr * (1.0 - rho))) ** 2
    note = f"ours: {int(found.steps)} steps of 1024 labels, Q22 = {q:.3f}"
    return monte_carlo("state evolution, whole", Q, labels, steps, stderr, times, note)


# One-dimensional channels ---------------------------------------------------------------------

BETWEEN = "errors: the difference of the two"
COUPLED = np.array([[0.6, 0.2], [0.2, 0.5]])


def sign_product() -> list[Row]:
    """g of y = sign(z_1 z_2): quad for each sample, and the
    closed form by Owen's T, which is also the truth."""
    rng, channel = np.random.default_rng(3), smi.links.sign_product(2).channel
    omega = rng.standard_normal((BATCH, 2))
    z = omega + rng.standard_normal((BATCH, 2)) @ np.linalg.cholesky(COUPLED).T
    y = np.where(z[:, 0] * z[:, 1] >= 0.0, 1.0, -1.0)
    arguments = [jnp.asarray(x) for x in (y, omega[:, :, None], COUPLED)]
    run = eqx.filter_jit(channel.respond)
    post, alone, both, compile_s = ours(lambda: run(*arguments))
    true = plain.sign_product_closed(y, omega, COUPLED)
    error, some = largest(np.asarray(post.g), true), 64
    each = lambda setting: np.array(
        [plain.sign_product_by_quad(y[n], omega[n], COUPLED, setting) for n in range(some)]
    )
    setting, spent, plain_error = matched(each, (1e-2, 1e-4, 1e-6, 1e-8), true[:some], error)
    task, shared = "y = sign(z1 z2)", (compile_s, both / BATCH)
    rows = [
        Row(task, "quad", f"{setting:g}", alone / BATCH, spent / some, error, plain_error, *shared)
    ]
    with one_core():
        closed = best(lambda: plain.sign_product_closed(y, omega, COUPLED))
    return [
        *rows,
        Row(
            task,
            "Owen's T",
            "closed form",
            alone / BATCH,
            closed / BATCH,
            error,
            error,
            *shared,
            note=BETWEEN,
        ),
    ]


def phase_retrieval() -> list[Row]:
    """g of y = |z|, a closed form on both sides."""
    rng, channel, V = np.random.default_rng(4), smi.links.phase_retrieval().channel, 0.4
    omega = rng.standard_normal(BATCH)
    y = np.abs(omega + np.sqrt(V) * rng.standard_normal(BATCH))
    arguments = [jnp.asarray(x) for x in (y, omega[:, None, None], V * np.eye(1))]
    run = eqx.filter_jit(channel.respond)
    post, alone, both, compile_s = ours(lambda: run(*arguments))
    error = largest(np.asarray(post.g), plain.phase_retrieval(y, omega, V))
    with one_core():
        closed = best(lambda: plain.phase_retrieval(y, omega, V))
    times = alone / BATCH, closed / BATCH
    return [
        Row(
            "y = |z|",
            "NumPy",
            "closed form",
            *times,
            error,
            error,
            compile_s,
            both / BATCH,
            note=BETWEEN,
        )
    ]


# Extensive rank -------------------------------------------------------------------------------

CURVE = np.linspace(0.01, 0.18, 60)


@jax.jit
def curve(alphas: jax.Array) -> jax.Array:
    """V of softmax attention, two tokens, ρ = 0.5."""
    return jax.vmap(
        lambda alpha: smi.state_evolution(smi.AttentionIndexed(2, 0.5, "softmax"), alpha).error
    )(alphas)


def extensive_rank() -> list[Row]:
    """State evolution of attention of extensive rank, a point
    of a curve of 60; errors: difference from plain at 1e-11."""
    found, alone, both, compile_s = ours(lambda: curve(jnp.asarray(CURVE)))
    some = slice(5, 60, 10)
    true = np.array([plain.softmax_error(0.5, alpha, 1e-11) for alpha in CURVE[some]])
    error = float(np.abs(np.asarray(found)[some] - true).max())
    each = lambda setting: np.array(
        [plain.softmax_error(0.5, alpha, setting) for alpha in CURVE[some]]
    )
    setting, spent, plain_error = matched(each, (1e-2, 1e-4, 1e-6, 1e-8), true, error)
    times, shared = (alone / len(CURVE), spent / len(true)), (compile_s, both / len(CURVE))
    return [
        Row(
            "extensive rank, a point of 60",
            "roots, quad, brentq",
            f"{setting:g}",
            *times,
            error,
            plain_error,
            *shared,
        )
    ]


# Learners -------------------------------------------------------------------------------------


def phase_retrieval_theory() -> list[Row]:
    """V of phase retrieval at α = 0.9; errors: difference from plain at 1e-9."""
    model = smi.links.phase_retrieval()
    run = lambda: smi.state_evolution(model, 0.9, key=jax.random.key(0)).covariance[0, 0]
    found, alone, both, compile_s = ours(run)
    true = plain.phase_retrieval_error(0.9, 1e-9)
    error = abs(float(found) - true)
    each = lambda setting: np.array([plain.phase_retrieval_error(0.9, setting)])
    setting, spent, plain_error = matched(each, (1e-2, 1e-3, 1e-4), np.array([true]), error)
    row = ("state evolution of |z|", "dblquad", f"{setting:g}", alone, spent, error, plain_error)
    return [Row(*row, compile_s, both)]


def message_passing() -> list[Row]:
    """Twenty steps of GAMP of phase retrieval, D = 2000, α = 1.5."""
    model, key = smi.links.phase_retrieval(), jax.random.key(0)
    data = model.sample(key, dimension=2000, alpha=1.5)
    start = 0.5 * data.teacher + jax.random.normal(key, data.teacher.shape)
    settings = {
        "learner": smi.Bayes("divergence", calibrate=False),
        "iteration": smi.Iteration(20, tolerance=1e-12, damping=0.0),
    }
    run = lambda: smi.gamp(model, data, key=key, start=start, **settings).weights
    found, alone, both, compile_s = ours(run)
    x, y, w = (np.asarray(a) for a in (data.inputs[:, 0], data.labels, start[0]))
    with one_core():
        spent = best(lambda: plain.message_passing(x, y, w, 20))
    error = float(np.abs(plain.message_passing(x, y, w, 20) - np.asarray(found[0])).max())
    row = ("GAMP of |z|, 20 steps, D = 2000", "loop in NumPy", "", alone, spent, error, error)
    return [Row(*row, compile_s, both, note=BETWEEN)]


def online_sgd() -> list[Row]:
    """A step and run of online SGD of y = |z|, D = 1000, up to α = 4; errors: standard errors of
    the mean cosine² over 64 runs, and the note has the difference."""
    D, runs, rate, overlap = 1000, 64, 0.1, 0.3
    keys = jax.random.split(jax.random.key(0), runs)
    start = (jnp.full((1, 1), overlap), jnp.eye(1))
    last = smi.Monitor(every=4 * D)
    settings = {"dimension": D, "rate": rate, "alpha": 4.0, "start": start, "monitor": last}
    model = smi.links.phase_retrieval()
    run = lambda: smi.sgd.simulate(model, keys, **settings).cosine[:, -1, 0]
    found, alone, both, compile_s = ours(run)
    known, spent = timed(lambda: plain.online_sgd(D, runs, 4 * D, rate, overlap))
    squares = np.square([np.asarray(found), known])
    bars = squares.std(axis=1, ddof=1) / np.sqrt(runs)
    gap = (squares[0].mean() - squares[1].mean()) / np.hypot(*bars)
    units = runs * 4 * D
    row = ("online SGD of |z|, D = 1000", "loop in NumPy", "", alone / units, spent / units, *bars)
    note = f"cosine² {squares[0].mean():.3f}, {gap:+.1f} standard errors apart"
    return [Row(*row, compile_s, both / units, note=note)]


def logistic_regression() -> list[Row]:
    """The minimiser of a logistic loss with a ridge, D = 1000, α = 4, by message passing; errors:
    largest difference of a weight from plain at a gradient of 1e-10."""
    model, key = smi.links.logistic(2.0), jax.random.key(0)
    data = model.sample(key, dimension=1000, alpha=4.0)
    learner = smi.Erm(smi.links.linear(), loss=smi.losses.logistic, ridge=1.0)
    run = lambda: smi.gamp(model, data, key=key, learner=learner).weights[0]
    found, alone, both, compile_s = ours(run)
    x, y = np.asarray(data.inputs[:, 0]), np.asarray(data.labels)
    true = plain.logistic_regression(x, y, 1.0, 1e-10)[None]
    error = largest(np.asarray(found)[None], true)
    each = lambda setting: plain.logistic_regression(x, y, 1.0, setting)[None]
    setting, spent, plain_error = matched(each, (1e-1, 1e-2, 1e-3, 1e-4, 1e-6), true, error)
    row = ("logistic regression, D = 1000", "L-BFGS", f"{setting:g}", alone, spent, error)
    return [Row(*row, plain_error, compile_s, both)]


# The table ------------------------------------------------------------------------------------

TASKS = {f"denoiser, {point}": functools.partial(denoiser, point) for point in POINTS} | {
    "one update": one_update,
    "whole": whole,
    "sign product": sign_product,
    "phase retrieval": phase_retrieval,
    "extensive rank": extensive_rank,
    "theory of phase retrieval": phase_retrieval_theory,
    "message passing": message_passing,
    "online SGD": online_sgd,
    "logistic regression": logistic_regression,
}


@pytest.mark.parametrize("task", TASKS)
def bench_side_by_side(benchmark, task, request):
    """The rows of a task, in the JSON and on the terminal; the
    time that the fixture reports is that of all of them."""
    if jax.default_backend() != "cpu":
        pytest.skip("processor time says nothing of an accelerator")
    rows = benchmark.pedantic(TASKS[task], rounds=1)
    assert all(
        np.isfinite([row.ours_s, row.plain_s, row.ours_error, row.plain_error]).all()
        for row in rows
    )
    for row in rows:
        benchmark.extra_info[f"{row.task}: {row.method}"] = row._asdict() | {
            "ratio": row.ratio,
            "pays_from": row.pays_from,
        }
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print("\n" + "\n".join([HEADER, *map(shown, rows)]))


if __name__ == "__main__":
    print(HEADER)
    for make in TASKS.values():
        for line in make():
            print(shown(line), flush=True)

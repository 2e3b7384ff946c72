"""Both thresholds of two-layer attention (two tokens, skip
1) by three independent routes, with error bars.

    python benchmarks/threshold_routes.py [stability] [evolution] [gamp]

* stability: α λ_max(F) = 1 along the fixed point (`smi.staircase`);
* evolution: converged state evolution at four α above the threshold, α as a
  quadratic in the overlap, continued to overlap zero, for each of eight keys;
* gamp: does a small overlap grow or fall at finite D? Four steps of message passing from W = Q w* +
  √(Q(1-Q)) ξ, C = 1 - Q (layer 2 as on the branch, for the first layer); the α at which the mean
  overlap stays, for three Q and two D over many teachers, continued linearly to Q = 0 and 1/D = 0;
  errors by bootstrap over teachers.
"""

import sys
import time

import jax
import numpy as np

import jaxsmi as smi
from jaxsmi.inference.message_passing import GampState

jax.config.update("jax_enable_x64", True)
MODEL = smi.DeepAttention(2, 2)
# layer (of the overlap), α above its threshold
STEPS = {"layer 2": (1, (0.19, 0.195, 0.2, 0.21)), "layer 1": (0, (0.73, 0.74, 0.75, 0.77))}
# layer, α around the threshold, overlaps tried (of both layers,
# on the branch of state evolution), dimensions, teachers
GAMP = {
    "layer 2": (
        1,
        (0.17, 0.19, 0.21),
        ((1e-6, 0.02), (1e-6, 0.04), (1e-6, 0.07)),
        (2000, 6000),
        48,
    ),
    "layer 1": (
        0,
        (0.69, 0.74, 0.79),
        ((0.04, 0.9773), (0.07, 0.9793), (0.1, 0.981)),
        (1000, 3000),
        48,
    ),
}


def continued(overlaps, alphas, degree=2):
    """α where the overlap vanishes, α a polynomial of the overlap."""
    return np.polynomial.Polynomial.fit(overlaps, alphas, degree)(0.0)


def stability():
    for name, step in zip(
        STEPS,
        smi.staircase(MODEL, key=jax.random.key(1), averages=smi.Averages(points=2**15)),
        strict=True,
    ):
        yield name, float(step.alpha), float(step.stderr)


def evolution():
    for name, (p, alphas) in STEPS.items():
        found = []
        for k in range(8):
            q = []
            start = 0.3
            for alpha in reversed(alphas):  # from above, each from the one before
                settings = {"key": jax.random.key(100 + k), "averages": smi.Averages(2**13)}
                settings |= {"iteration": smi.Iteration(200)}
                solution = smi.state_evolution(MODEL, alpha, start=start, **settings)
                q.append(float(solution.overlap[p, p]))
                start = np.asarray(solution.overlap) * 0.999
            found.append(continued(q[::-1], alphas))
        print(name, "last key:", np.round(q[::-1], 4), flush=True)
        yield name, float(np.mean(found)), float(np.std(found, ddof=1) / np.sqrt(len(found)))


def grown(D, alpha, Q, p, seed, steps=4):
    """Overlap M_pp before and after a few steps from a
    Bayes-consistent start with overlap Q (diagonal)."""
    data_key, key = jax.random.split(jax.random.fold_in(jax.random.key(seed), round(alpha * 1e4)))
    data = MODEL.sample(data_key, dimension=D, alpha=alpha, dtype="float32")
    Q = np.asarray(Q)[:, None]
    W = Q * data.teacher + np.sqrt(Q * (1 - Q)) * jax.random.normal(
        jax.random.fold_in(key, 7), data.teacher.shape
    )
    C = jax.numpy.diag(1.0 - Q[:, 0])
    start = GampState.start(W, C, (data.samples, 2, 2))
    history = smi.gamp(
        MODEL, data, key=key, iteration=smi.Iteration(steps, tolerance=1e-12), start=start
    ).history
    return np.asarray(history["teacher_overlap"])[[0, steps], p, p]


def gamp():
    random = np.random.default_rng(0)
    for name, (p, alphas, starts, dimensions, count) in GAMP.items():
        tables = {}
        for D in dimensions:
            for Q in starts:
                tables[D, Q[p]] = np.array(
                    [[grown(D, alpha, Q, p, seed) for alpha in alphas] for seed in range(count)]
                )

        def still(chosen, tables=tables, alphas=alphas):
            """α at which the mean overlap stays, at each D and Q."""
            ends = []
            for table in tables.values():
                mean = np.maximum(table[chosen].mean(0), 1e-6)
                slope, offset = np.polyfit(np.log(alphas), np.log(mean[:, 1] / mean[:, 0]), 1)
                ends.append(np.exp(-offset / slope))
            return np.array(ends)

        values, draws = (
            still(np.arange(count)),
            np.array([still(random.integers(0, count, count)) for _ in range(400)]),
        )
        errors = 0.74 * np.subtract(
            *np.quantile(draws, (0.75, 0.25), axis=0)
        )  # of a normal law; the tails are heavy
        for (D, q), value, error in zip(tables, values, errors, strict=True):
            print(
                f"{name}, D = {D}, Q = {q}: the overlap stays at {value:.4f} ± {error:.4f}",
                flush=True,
            )
        design = np.array([(1.0, q, 1000.0 / D) for D, q in tables]) / errors[:, None]
        ends = [
            np.linalg.lstsq(design, each / errors, rcond=None)[0][0] for each in (values, *draws)
        ]
        yield name, ends[0], 0.74 * float(np.subtract(*np.quantile(ends[1:], (0.75, 0.25))))


if __name__ == "__main__":
    for route in sys.argv[1:] or ("stability", "evolution", "gamp"):
        begin = time.perf_counter()
        for name, alpha, stderr in globals()[route]():
            seconds = time.perf_counter() - begin
            print(f"{route}, {name}: {alpha:.4f} ± {stderr:.4f}  ({seconds:.0f} s)", flush=True)

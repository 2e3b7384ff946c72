"""Both thresholds of two-layer attention (two tokens, skip 1) by three independent routes, with error bars.

    python benchmarks/threshold_routes.py [stability] [evolution] [gamp]

* stability: α λ_max(F) = 1 along the fixed point (`smi.staircase`);
* evolution: converged state evolution at four α above the threshold, α as a quadratic in the overlap, continued to
  overlap zero, for each of eight keys;
* gamp: runs from a random start at two dimensions, several teachers each; the mean squared cosine at four α, continued to
  zero in the same way, errors by bootstrap over teachers, then to 1/D → 0.
"""

import sys
import time

import jax
import numpy as np

import jaxsmi as smi

jax.config.update("jax_enable_x64", True)
MODEL = smi.DeepAttention(2, 2)
# layer (of the overlap), α above its threshold
STEPS = {"layer 2": (1, (0.19, 0.195, 0.2, 0.21)), "layer 1": (0, (0.73, 0.74, 0.75, 0.77))}
GAMP_STEPS = {"layer 2": (1, (0.21, 0.225, 0.24, 0.26, 0.28, 0.31)), "layer 1": (0, (0.76, 0.78, 0.8, 0.83, 0.86))}
DIMENSIONS = {"layer 2": (2000, 8000), "layer 1": (1000, 2000)}
TEACHERS = {"layer 2": 6, "layer 1": 4}


def continued(overlaps, alphas, degree=2):
    """α where the overlap vanishes, α a polynomial of the overlap."""
    return np.polynomial.Polynomial.fit(overlaps, alphas, degree)(0.0)


def stability():
    for name, step in zip(STEPS, smi.staircase(MODEL, key=jax.random.key(1), samples=2**15), strict=True):
        yield name, float(step.alpha), float(step.stderr)


def evolution():
    for name, (p, alphas) in STEPS.items():
        found = []
        for k in range(8):
            q = []
            start = 0.3
            for alpha in reversed(alphas):  # from above, each from the one before
                settings = {"key": jax.random.key(100 + k), "samples": 2**13, "max_steps": 200}
                solution = smi.state_evolution(MODEL, alpha, q0=start, **settings)
                q.append(float(solution.overlap[p, p]))
                start = np.asarray(solution.overlap) * 0.999
            found.append(continued(q[::-1], alphas))
        print(name, "last key:", np.round(q[::-1], 4), flush=True)
        yield name, float(np.mean(found)), float(np.std(found, ddof=1) / np.sqrt(len(found)))


def gamp():
    random = np.random.default_rng(0)
    for name, (p, alphas) in GAMP_STEPS.items():
        ends = []
        for D in DIMENSIONS[name]:
            count = TEACHERS[name]
            cosines = np.zeros((count, len(alphas)))
            for seed in range(count):
                for i, alpha in enumerate(alphas):
                    data_key, key = jax.random.split(jax.random.fold_in(jax.random.key(seed), i))
                    data = MODEL.sample(data_key, dimension=D, alpha=alpha, dtype="float32")
                    solution = smi.gamp(MODEL, data, key=key, max_steps=100 if p else 200)
                    past = (
                        np.asarray(solution.trajectory["cosine"])[-20:, p] ** 2
                    )  # the unlearned layer keeps it fluctuating
                    cosines[seed, i] = np.nanmean(past)
            means, errors = cosines.mean(0), cosines.std(0, ddof=1) / np.sqrt(count)
            print(name, f"D={D}: cosine²", means.round(3), "±", errors.round(3), flush=True)
            draws = [continued(means + errors * random.standard_normal(len(alphas)), alphas) for _ in range(400)]
            curve = [continued(means, alphas), np.std(draws)]
            ends.append(curve)
        (a, da), (b, db) = ends
        x, y = (1.0 / D for D in DIMENSIONS[name])
        print(name, f"continued: {a:.4f}({da:.4f}), {b:.4f}({db:.4f})", flush=True)
        yield name, b + (b - a) * y / (x - y), float(np.hypot(db * x, da * y) / (x - y))


if __name__ == "__main__":
    for route in sys.argv[1:] or ("stability", "evolution", "gamp"):
        begin = time.perf_counter()
        for name, alpha, stderr in globals()[route]():
            print(f"{route}, {name}: {alpha:.4f} ± {stderr:.4f}  ({time.perf_counter() - begin:.0f} s)", flush=True)

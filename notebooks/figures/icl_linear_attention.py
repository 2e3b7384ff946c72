r"""
In-context learning of linear regression
========================================

.. image:: /assets/figures/icl_linear_attention.png
   :alt: Errors on fresh and on training tasks against contexts and task diversity; published runs.

Errors of linear attention trained in context, on fresh and on training tasks.

Linear attention reads :math:`\ell=\alpha d` pairs of a linear task and predicts the next label; it is
trained without a ridge on :math:`n=\tau d^2` contexts of :math:`\kappa d` tasks, label noise
:math:`\rho`. Left: error on fresh tasks (ICL) and on training tasks (IDG) against :math:`\tau`, with
double descent at one; dots are fits at :math:`d=24`. Right: their difference against :math:`\kappa`,
with a transition at one; dots are published runs (Lu et al., PNAS 2025).
"""

# sphinx_gallery_thumbnail_path = 'assets/figures/icl_linear_attention.png'
import numpy as np

from _common import DOTS, QUICK, axes, compare, error_bars, mean_and_stderr, published, save
from jaxsmi.workbench.plotting import colour, legend, shades


def resolvent(k, x):
    """M_k(x), the positive root of (x/k) M² + (x + 1 - 1/k) M = 1."""
    b = x + 1.0 - 1.0 / k
    return 2.0 / (b + np.sqrt(b**2 + 4.0 * x / k))


def errors(tau, alpha, kappa, rho):
    """Errors on fresh and on training tasks, in the limit d → ∞."""
    x = (1.0 + rho) / alpha
    if tau < 1.0:
        mu = x * resolvent(kappa / tau, x)
        rest = 1.0 - tau * (1.0 - mu) ** 2 - (x - rho) * mu / x
        fresh = tau * (1.0 + x) / (1.0 - tau) * rest - 2.0 * tau * (1.0 - mu) + rho + 1.0
        e = (1.0 - tau) * x / (tau * mu)
        c = 1.0 / (1.0 - kappa / (1.0 + kappa * e / (1.0 - tau)) ** 2)
        top = rho + x - 2.0 * x * (1.0 - tau) * (x / e + 1.0)
        return fresh, tau * ((x + e) ** 2 / e + top / (1.0 - tau - c * (1.0 - tau) ** 2))
    m, over = resolvent(kappa, x), 1.0 / (tau - 1.0)
    k = 1.0 / (1.0 - kappa * (m / (kappa + m)) ** 2)
    fresh = (k - over) * (1.0 + x) * (x * m) ** 2 + (3.0 - 2.0 * tau) * m * x**2 * over
    fresh += ((1.0 + rho) * m * over + 1.0) * x + rho * m * over + rho
    return fresh, tau * over * (rho + x * (1.0 - x * m))


def contexts(rng, tasks, count, d, alpha, rho):
    """Features x ⊗ [d/l Σ y_i x_i, Σ y_i²/l] (count, d (d + 1)) of contexts, and their labels."""
    w = tasks[rng.integers(len(tasks), size=count)]
    x = rng.normal(size=(count, round(alpha * d) + 1, d)) / np.sqrt(d)
    y = np.einsum("nld,nd->nl", x, w) + np.sqrt(rho) * rng.normal(size=x.shape[:2])
    last, x, y, label = x[:, -1], x[:, :-1], y[:, :-1], y[:, -1]
    mean = d * np.einsum("nl,nld->nd", y, x) / y.shape[1]
    summary = np.concatenate([mean, np.mean(y**2, axis=1, keepdims=True)], axis=1)
    return (last[:, :, None] * summary[:, None]).reshape(count, -1), label


def fit_errors(seed, tau, alpha, kappa, rho, d):
    """Errors of the least-squares fit of least norm on fresh and on training tasks."""
    rng = np.random.default_rng(seed)
    tasks = rng.normal(size=(round(kappa * d), d))
    H, y = contexts(rng, tasks, round(tau * d * d), d, alpha, rho)
    weights = np.linalg.lstsq(H, y, rcond=None)[0]
    tests = (contexts(rng, w, 2000, d, alpha, rho) for w in (rng.normal(size=(2000, d)), tasks))
    return [np.mean((label - features @ weights) ** 2) for features, label in tests]


for k, x in ((0.5, 0.1), (3.0, 0.7)):
    root = np.max(np.roots([x / k, x + 1.0 - 1.0 / k, -1.0]))
    compare("root", resolvent(k, x), root, 1e-10)
compare("no data", errors(1e-9, 2.0, 1.5, 0.1)[0], 1.1, 1e-7)  # E y²
left, right = ax = axes(2)
alpha, kappa, rho, d, runs = 2.0, 2.0, 0.1, 12 if QUICK else 24, 3
taus = np.concatenate([np.linspace(0.05, 0.95, 40), np.linspace(1.05, 4.0, 60)])
at = np.array([0.25, 0.5, 2.0, 3.0])
known, theory = (np.array([errors(t, alpha, kappa, rho) for t in grid]).T for grid in (at, taus))
fits = [[fit_errors(seed, t, alpha, kappa, rho, d) for seed in range(runs)] for t in at]
for k, name in enumerate(("fresh tasks", "training tasks")):
    left.plot(taus, theory[k], color=colour(k), label=name)
    dots = np.array(fits)[:, :, k]
    error_bars(left, at, dots, color=colour(k))
    mean, stderr = mean_and_stderr(dots)
    # finite d: a few per cent below one, 10 to 30 % above at τ = 2, d = 24
    compare(name, mean, known[k], 3.0 * stderr + (5.0 + 3.0 * at**2) / d * known[k])
left.set(xlabel=r"contexts $\tau = n/d^2$", ylabel="error", ylim=(0.0, 6.0))
legend(left)

# %%
# Task diversity: the published difference, data over theory at κ = 1 1.63, 1.17, 1.07.
kappas = np.geomspace(0.2, 40.0, 80)
gap = np.array([np.subtract(*errors(10.0, 10.0, k, 0.01)) for k in kappas])
right.plot(kappas, gap, color="0.15", label=r"$d\to\infty$")
for d, ratio, tint in zip((10, 32, 64), (1.63, 1.17, 1.07), shades(3), strict=True):
    if table := published("peers", "icl", f"d{d}_gamma.csv"):
        right.plot(table["kappa"], table["gtask_mean"], color=tint, label=f"$d={d}$", **DOTS)
        theory = [np.subtract(*errors(10.0, 10.0, k, 0.01)) for k in table["kappa"]]
        quotient = table["gtask_mean"] / theory
        one = np.argmin(np.abs(table["kappa"] - 1.0))
        compare(f"data over theory at κ = 1, d = {d}", quotient[one], ratio, 0.006)
        if d == 64:
            compare("κ >= 4", quotient[table["kappa"] >= 4.0], 1.0, 0.03)
right.set(xlabel=r"tasks $\kappa = k/d$", ylabel="fresh - training", xscale="log", yscale="log")
legend(right)
save(ax, "icl_linear_attention")

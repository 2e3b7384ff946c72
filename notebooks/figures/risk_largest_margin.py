r"""
Classifiers of a sign teacher: logistic regression and the largest margin
=========================================================================

.. image:: /assets/figures/risk_largest_margin.png
   :alt: Share of wrong labels against samples; the largest margin against samples.

Error of logistic regression, of the largest margin and of Bayes on labels of a sign teacher.

Left: share of wrong labels of the logistic loss, of the hinge with a small ridge (whose minimum has
the largest margin where labels can be separated), and of Bayes. Right: the largest margin
:math:`\kappa = 1/\sqrt Q`, also of random labels, which are separable up to :math:`\alpha = 2`; grey:
:math:`\min_m \{\alpha E(\kappa - t)_+^2 - (1 - m^2)\} = 0`, t of density
:math:`2 \Phi(m t/\sqrt{1 - m^2}) \varphi(t)`, m the cosine (0 for random labels).
"""

# sphinx_gallery_thumbnail_path = 'assets/figures/risk_largest_margin.png'
import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import quad
from scipy.optimize import minimize_scalar, root_scalar
from scipy.special import log_ndtr

import jaxsmi as smi
from _common import GREY, INK, QUICK, axes, compare, error_bars, gamp_runs, mean_and_stderr, save
from jaxsmi.workbench.plotting import colour, legend, line

key, student = jax.random.key(0), smi.links.linear()
logistic = smi.Erm(student, loss=smi.losses.logistic, ridge=0.1)
hinge = smi.Erm(student, loss=smi.losses.hinge, ridge=1e-4)


def theory(model, alphas, learner):
    """State evolution, each point from the one before: V is far from any other start."""
    curve, start = [], None
    for alpha in alphas:
        point = smi.state_evolution(model, alpha, learner=learner, key=key, start=start)
        start = smi.Start(point.overlap, point.teacher_overlap, point.covariance)
        curve.append(point)
    Q, M = (
        np.array([float(x[0, 0]) for x in xs])
        for xs in zip(*((p.overlap, p.teacher_overlap) for p in curve), strict=True)
    )
    return Q, M / np.sqrt(Q), np.array([float(point.stderr[0, 0]) for point in curve])


def shortfall(margin, cosine):
    """E(κ - t)₊² of the density above."""
    steepness = cosine / np.sqrt(1.0 - cosine**2)
    density = lambda t: 2.0 * np.exp(log_ndtr(steepness * t) - 0.5 * t * t) / np.sqrt(2.0 * np.pi)
    return quad(lambda t: (margin - t) ** 2 * density(t), -12.0, margin, points=[0.0])[0]


def lowest(alpha, margin):
    """The minimum over the cosine, at which the largest margin is zero."""
    height = lambda m: alpha * shortfall(margin, m) - (1.0 - m * m)
    options = {"bounds": (0.0, 1.0 - 1e-9), "method": "bounded", "options": {"xatol": 1e-10}}
    return minimize_scalar(height, **options).fun


def largest(height):
    """The margin at which an increasing function of it is zero."""
    return root_scalar(height, bracket=(1e-3, 10.0), xtol=1e-12).root


alphas = np.geomspace(0.5, 10.0, 13)[: 4 if QUICK else None]
random = np.linspace(0.4, 1.6, 3 if QUICK else 7)
left, right = ax = axes(2)
_, cosine, _ = theory(smi.links.sign(), alphas, logistic)
left.loglog(alphas, np.arccos(cosine) / np.pi, color=colour(0), label=r"logistic, $\lambda = 0.1$")
teachers = (
    ("sign teacher", 0.0, alphas, [largest(lambda x, a=a: lowest(a, x)) for a in alphas]),
    (
        "random labels",
        jnp.inf,
        random,
        [largest(lambda x, a=a: a * shortfall(x, 0.0) - 1.0) for a in random],
    ),
)
for k, (name, noise, at, exact) in enumerate(teachers, 1):
    Q, cosine, stderr = theory(smi.links.sign(noise=noise), at, hinge)
    right.plot(at, exact, color=GREY, lw=2.8, zorder=0.5)
    right.plot(at, Q**-0.5, color=colour(k), label=name, **line(k))
    # five standard errors, and 1e-6 for the ridge, which is not zero
    compare(f"largest margin, {name}", Q**-0.5, exact, 2.5 * stderr / Q**1.5 + 1e-6)
    if k == 1:
        left.loglog(
            at, np.arccos(cosine) / np.pi, color=colour(1), label="largest margin", **line(1)
        )
bayes = [
    smi.state_evolution(smi.links.sign(), alpha, key=key, start=0.5).overlap[0, 0]
    for alpha in alphas
]
left.loglog(alphas, np.arccos(np.sqrt(bayes)) / np.pi, color=INK, ls="-.", label="Bayes-optimal")

# %%
# Message passing of the logistic loss.
at, dimension = alphas[1:3], 200
dots = gamp_runs(smi.links.sign(), at, dimension, 4, lambda run: run.cosine[0], learner=logistic)
error_bars(left, at, np.arccos(dots) / np.pi, color=colour(0), label="GAMP, logistic")
mean, stderr = mean_and_stderr(dots)
_, expected, _ = theory(smi.links.sign(), at, logistic)
compare("cosine, logistic", mean, expected, 3.0 * stderr + 5.0 / dimension)
left.set(xlabel=r"sample complexity $\alpha$", ylabel="share of wrong labels")
right.axvline(2.0, color=INK, ls=":", lw=0.9, label="random labels separable")
right.set(xlabel=r"sample complexity $\alpha$", ylabel=r"largest margin $\kappa = 1/\sqrt{Q}$")
right.set_ylim(bottom=0.0)
legend(left)
legend(right)
save(ax, "risk_largest_margin")

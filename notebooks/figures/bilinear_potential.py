r"""
Bilinear sequence regression: the free entropy
==============================================

.. image:: /assets/figures/bilinear_potential.png
   :alt: Free entropy against 1 - q at several sample complexities; dots at the maxima.

Free entropy against the distance :math:`1 - q` from the signal, with its maximum
at the Bayes-optimal error.

The constant of each curve is arbitrary; dots are the maxima.
"""

# sphinx_gallery_thumbnail_path = 'assets/figures/bilinear_potential.png'
import jax
import numpy as np

import jaxsmi as smi
from _common import axes, compare, save
from jaxsmi.workbench.plotting import colour, legend, line

distance = np.logspace(-4, np.log10(0.9), 40)
cases = (
    (1.0, 1.0, (0.5, 0.95, 0.99)),
    (2.0, 1.0, (0.5, 0.95, 0.99)),
    (1.0, 0.5, (0.35, 0.7, 0.74)),
    (2.0, 0.5, (0.2, 0.575, 0.615)),
)


@jax.jit
def potential(beta, rho, alpha, q):
    """Free entropy at several overlaps q."""
    model = smi.Bilinear(beta, rho)
    return jax.vmap(lambda q: smi.free_entropy(model, alpha, q).value)(q)


ax = axes(2, 2)
for panel, (beta, rho, alphas) in zip(ax, cases, strict=True):
    for k, alpha in enumerate(alphas):
        phi = potential(beta, rho, alpha, 1.0 - distance)
        error = smi.state_evolution(smi.Bilinear(beta, rho), alpha).error
        peak = potential(beta, rho, alpha, 1.0 - error[None])[0]
        panel.semilogx(distance, phi, color=colour(k), label=rf"$\alpha = {alpha:g}$", **line(k))
        panel.plot(error, peak, "o", color=colour(k))
        # the maximum between two points of the grid is up to 2e-3 higher than at them
        compare(f"maximum, β = {beta:g}, ρ = {rho:g}, α = {alpha:g}", np.max(phi), peak, 2e-3)
    panel.set(title=rf"$\beta = {beta:g}$, $\rho = {rho:g}$", xlabel="$1 - q$")
    panel.set_ylabel("free entropy, up to a constant")
    legend(panel, {"Bayes-optimal error": {"marker": "o", "ls": "none"}})
save(ax, "bilinear_potential")

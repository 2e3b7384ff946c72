r"""
Attention-indexed model: hardmax of three and more tokens
=========================================================

.. image:: /assets/figures/hardmax_tokens.png
   :alt: Response of hardmax labels against overlap for two to five tokens; thresholds against tokens.

What hardmax labels of two to five tokens tell of their scores, and the threshold that follows.

What the label of a sequence of T tokens tells of its scores, the response :math:`f(q)` at
:math:`q + V = 1` (``docs/theory/attention-indexed.md``, Eqs. (10), (20)). Two tokens: the exact
integral of the library (line). T = 2 to 5: Monte-Carlo (circles), Eqs. (23), (24): given the scores
off the diagonal, those on it are independent, so that each draw counts for all :math:`2^T` choices
of the tokens that point at themselves. Dashed: :math:`\sqrt V f` as a polynomial in :math:`\sqrt V`.
Right: of small width nothing is learned below :math:`\bar\alpha_c = 1/f(0)`, Eq. (37). Model: arXiv
2506.01582; more than two tokens are derived for this library.
"""

# sphinx_gallery_thumbnail_path = 'assets/figures/hardmax_tokens.png'
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm
from scipy.stats import qmc

import jaxsmi as smi
from _common import DOTS, INK, QUICK, axes, compare, mean_and_stderr, save
from jaxsmi.workbench.plotting import legend, shades

KNOWN = {2: (2.4788637880, 0.0), 3: (5.702, 0.002), 4: (9.511, 0.003), 5: (13.786, 0.005)}
# numbers of ω and of draws for each: there are T^T labels, and each needs several draws
SIZES = {2: (512, 256), 3: (512, 512), 4: (128, 2048), 5: (32, 4096)}
REPLICAS = 8


def label_sums(T, V, diagonal, off, key, draws):
    """Of each label y: Σ w, Σ w², Σ ‖s‖² and Σ s over draws, s = w v, v the noise of the scores."""
    rows, columns = np.triu_indices(T, 1)
    noise = jax.random.normal(key, (draws, len(rows)))
    scores = jnp.full((draws, T, T), -jnp.inf).at[:, rows, columns].set(off + jnp.sqrt(V) * noise)
    scores = jnp.maximum(scores, jnp.swapaxes(scores, 1, 2))
    z = (diagonal - jnp.max(scores, axis=-1)) / jnp.sqrt(2.0 * V)
    # a token points at another one or at itself: (draws, 2, T), Eq. (23)
    log_p = jnp.stack([norm.logcdf(-z), norm.logcdf(z)], axis=1)
    mean = jnp.exp(norm.logpdf(z)[:, None] - log_p) * np.array([[-1.0], [1.0]])
    itself = jnp.broadcast_to(jnp.arange(T), z.shape)
    target = jnp.stack([jnp.argmax(scores, axis=-1), itself], axis=1)
    choices = np.stack(np.meshgrid(*[[0, 1]] * T), axis=-1).reshape(-1, 1, T)
    log_p, mean, target = (
        jnp.take_along_axis(x[:, None], choices[None], axis=2)[:, :, 0]
        for x in (log_p, mean, target)
    )  # (draws, 2^T, T)
    w = jnp.exp(jnp.sum(log_p, axis=-1, keepdims=True))
    noise = jnp.broadcast_to(noise[:, None], (*w.shape[:2], len(rows)))
    s = np.sqrt(2.0) * w * jnp.concatenate([mean, noise], axis=-1)
    sums = jnp.concatenate([w, w**2, jnp.sum(s**2, axis=-1, keepdims=True), s], axis=-1)
    label = jnp.sum(target * T ** np.arange(T), axis=-1)
    return jax.ops.segment_sum(sums.reshape(label.size, -1), label.ravel(), T**T)


def squared_mean(sums, draws):
    """Σ_y P_y ‖E[v|y]‖², Eq. (24)."""
    w, w2, s2, s = sums[:, 0], sums[:, 1], sums[:, 2], sums[:, 3:]
    below = w**2 - w2  # zero of a label with one draw
    ratio = (jnp.sum(s**2, axis=-1) - s2) / jnp.where(below > 1e-12 * w**2, below, jnp.inf)
    return jnp.sum(w / draws * ratio)


@functools.partial(jax.jit, static_argnums=(0, 1))
def sampled_response(T, draws, q, normals, key):
    """f(q) of T tokens at V = 1 - q, mean over ω of scaled `normals` (ω, T(T+1)/2)."""
    V = 1.0 - q

    def squared_gamma(sample):
        normal, key = sample
        omega = jnp.sqrt(2.0 * q) * normal[:T], jnp.sqrt(q) * normal[T:]
        one_half = lambda key: label_sums(T, V, *omega, key, draws // 2)
        halves = jax.lax.map(one_half, jax.random.split(key))
        each = jax.vmap(squared_mean, (0, None))(halves, draws // 2)
        # twice all draws less the mean of halves: no bias of order 1/draws
        return 2.0 * squared_mean(jnp.sum(halves, axis=0), draws) - jnp.mean(each)

    # one ω after the other: memory
    return jnp.mean(jax.lax.map(squared_gamma, (normals, jax.random.split(key, len(normals))))) / V


def replicas(T, q):
    """Independent estimates of f(q), ω from shifted nets."""
    count, draws = (32, 512) if QUICK else SIZES[T]
    if q == 0.0 and not QUICK:  # every ω is zero: more draws at fewer of them
        count, draws = count // 8, draws * 8
    net = qmc.Sobol(T * (T + 1) // 2, scramble=False).random(count)

    def one(key):
        shift_key, key = jax.random.split(key)
        shift = jax.random.uniform(shift_key, net.shape[1:])
        return float(sampled_response(T, draws, q, norm.ppf((net + shift) % 1.0), key))

    return [one(key) for key in jax.random.split(jax.random.key(T), REPLICAS)]


left, right = axes(2)
tokens = (2, 3) if QUICK else (2, 3, 4, 5)
u = np.linspace(1.0, 0.2, 5 if QUICK else 7)  # √V; below, few ω leave a label uncertain
fine = np.linspace(1.0, u[-1], 100)
exact = smi.AttentionIndexed(2, 1.0, "hardmax").channel.information
compare("f(0), T = 2, library", exact(0.0, 1.0), KNOWN[2][0], 1e-8)
for T, tint in zip(tokens, shades(len(tokens)), strict=True):
    f, stderr = mean_and_stderr(np.stack([replicas(T, 1.0 - v**2) for v in u]))
    known, error = KNOWN[T]
    print(f"T = {T}: f(0) = {f[0]:.4f} ± {stderr[0]:.4f}, 1/f(0) = {1.0 / f[0]:.5f}")
    compare(f"f(0), T = {T}", f[0], known, 4.0 * np.hypot(stderr[0], error))
    fit = np.polynomial.Polynomial.fit(u, u * f, 4, w=1.0 / (u * stderr))
    line = fit(fine) / fine
    if T == 2:
        line = exact(1.0 - fine**2, fine**2)
        compare("Monte-Carlo against the library", f, exact(1.0 - u**2, u**2), 4.0 * stderr)
    left.semilogy(1.0 - fine**2, line, color=tint, ls="-" if T == 2 else "--")
    left.errorbar(1.0 - u**2, f, stderr, color=tint, label=f"$T = {T}$", **DOTS)
    right.errorbar(T, 1.0 / f[0], stderr[0] / f[0] ** 2, color=tint, zorder=3, **DOTS)
left.set(xlabel="overlap $q$, with $q + V = 1$", ylabel="response $f(q)$ per sample")
legend(left, {"exact": {}, "polynomial fit": {"ls": "--"}})
T = np.arange(2, tokens[-1] + 1)
right.semilogy(T, 1.0 / (T**2 + T - 2.0), color=INK, ls="--", label="softmax")
right.semilogy(T, 1.0 / (T * (T + 1.0)), color=INK, ls=":", label="linear")
right.set(xlabel="tokens $T$", ylabel=r"threshold $\bar\alpha_c = 1/f(0)$", xticks=T)
for ax, ticks in ((left, [3, 10, 30]), (right, [0.03, 0.1, 0.3])):
    ax.set_yticks(ticks, [str(tick) for tick in ticks])
    ax.minorticks_off()
legend(right, {"hardmax": DOTS})
save(left, "hardmax_tokens")

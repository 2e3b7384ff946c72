"""Thresholds of three and four layers of attention by a route that shares nothing with the library.

    python benchmarks/deep_thresholds.py [--layers 3] [--samples 16384] [--V .02] [--first .8]

Two tokens, skip 1, beta 1, ranks one; V = diag(V_1, 1, .., 1, V_L): the last layer is learned, and
with --first layer 1 as well.
By symmetry the unlearned layers then have E[z_l|y] = 0 and no cross moments, so that only second
moments are needed:

    f_l(V)      = E sum_m g_m^2, g = (E[z_l|y] - omega_l)/V_l        alpha(V) = (1 - V_l)/(V_l f_l),
                                                                     the same for all learned l
    lambda_l(V) = E sum_mn (E[z_l z_l^T|y] - I)_mn^2                 layer l is learned where
                                                                     alpha(V) lambda_l(V) = 1
    V = 1:        weak recovery at 1/max_l lambda_l

A posterior mean is a quotient of sums over plain Monte-Carlo nodes of two kinds (the last two
layers drawn one from its Gaussian and the other solved for, either way, weighted by the sum of both
densities). Squares of posterior means are products of independent estimates (8 sets of nodes), so
that nodes bias them only by what a quotient is biased.
"""

import argparse
import json

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import norm, qmc

jax.config.update("jax_enable_x64", True)

SETS = 8
SKIP = 1.0


def attention(h):
    """p, q of A = [[c + p, 1 - p], [1 - q, c + q]]."""
    a, b = h[..., 0], h[..., 1]
    return jax.nn.sigmoid(a * (a - b)), jax.nn.sigmoid(b * (b - a))


def product(A, x):
    p, q = A
    first = (SKIP + p) * x[..., 0] + (1 - p) * x[..., 1]
    return jnp.stack([first, (1 - q) * x[..., 0] + (SKIP + q) * x[..., 1]], -1)


def determinant(A):
    p, q = A
    return (SKIP + p) * (SKIP + q) - (1 - p) * (1 - q)


def solution(A, x):
    p, q = A
    first = (SKIP + q) * x[..., 0] - (1 - p) * x[..., 1]
    rest = (SKIP + p) * x[..., 1] - (1 - q) * x[..., 0]
    return jnp.stack([first, rest], -1) / determinant(A)[..., None]


def chain(matrices, x):
    for A in matrices:
        x = product(A, x)
    return x


def unchain(matrices, x):
    for A in reversed(matrices):
        x = solution(A, x)
    return x


def moments(u, first, omega, V, t, layers):
    """Sums of one label over nodes t (sets, n, 2(L-1)): mass, E z_l z_l^T of each hidden layer,
    E z_1, E z_L; and the effective number of nodes. `first` is omega of layer 1, `omega` that of
    layer L, and V holds their variances."""
    V_first, V = V
    free = [t[..., 2 * k : 2 * k + 2] for k in range(layers - 1)]
    free[0] = first + jnp.sqrt(V_first) * free[0]
    given = free[:-1]
    matrices = []
    for z in given:
        matrices.append(attention(chain(matrices, z)))
    inner = jnp.prod(jnp.stack([determinant(A) for A in matrices]), 0)

    def weigh(z, h, A, inside):
        w = solution(A, jnp.broadcast_to(u, h.shape))
        last = unchain(matrices, w)
        logs = jnp.stack([-0.5 * jnp.sum((s * last - omega) ** 2, -1) / V for s in (1, -1)], -1)
        signs = jnp.exp(logs)
        density = signs.sum(-1) / (2 * jnp.pi * V)
        p, q = A
        gap = (w[..., 0] - w[..., 1]) ** 2 * 2 * (h[..., 0] - h[..., 1]) ** 2
        jacobian = gap * p * (1 - p) * q * (1 - q) / determinant(A)
        prior = jnp.exp(-0.5 * jnp.sum(z**2, -1)) / (2 * jnp.pi)
        target = prior * density / (inner * determinant(A))
        weight = target / (0.5 * prior + 0.125 * density * jacobian)
        weight = jnp.where(inside & jnp.isfinite(weight), weight, 0.0)
        signed = (signs[..., 0] - signs[..., 1]) / jnp.maximum(signs.sum(-1), 1e-300)
        return weight, z, last * signed[..., None]

    h = chain(matrices, free[-1])
    one = weigh(free[-1], h, attention(h), True)
    # the other way: z_L drawn; u's sign and the side of h by the number of the node
    sign = jnp.where(jnp.arange(t.shape[1]) % 2 == 0, 1.0, -1.0)[:, None]
    w = chain(matrices, omega + jnp.sqrt(V) * free[-1])
    su = sign * u
    gap = w[..., 0] - w[..., 1]
    p = (su[..., 0] - SKIP * w[..., 0] - w[..., 1]) / gap
    q = -(su[..., 1] - SKIP * w[..., 1] - w[..., 0]) / gap
    inside = (p > 0) & (p < 1) & (q > 0) & (q < 1)
    p, q = (jnp.where(inside, x, 0.6) for x in (p, q))
    logits = [jnp.log(x) - jnp.log1p(-x) for x in (p, q)]
    inside = inside & (logits[0] + logits[1] > 0)
    side = jnp.sqrt(jnp.where(inside, logits[0] + logits[1], 1.0))
    h = jnp.stack([logits[0] / side, -logits[1] / side], -1)
    two = weigh(unchain(matrices, h), h, (p, q), inside)
    total = 0.0
    for weight, z, last in (one, two):
        seconds = [jnp.einsum("kn,kni,knj->kij", weight, x, x).reshape(-1, 4) for x in (*given, z)]
        means = [jnp.einsum("kn,kni->ki", weight, x) for x in (free[0], last)]
        total = total + jnp.concatenate([weight.sum(1)[:, None], *seconds, *means], 1)
    squares = (one[0] ** 2).sum() + (two[0] ** 2).sum()
    return total, total[:, 0].sum() ** 2 / squares


def last_squared(u, t, layers):
    """Sums of one label over nodes of the first kind at V = 1: mass, E z_L z_L^T."""
    matrices = []
    for k in range(layers - 1):
        matrices.append(attention(chain(matrices, t[..., 2 * k : 2 * k + 2])))
    last = unchain(matrices, jnp.broadcast_to(u, (*t.shape[:2], 2)))
    inner = jnp.prod(jnp.stack([determinant(A) for A in matrices]), 0)
    weight = jnp.exp(-0.5 * jnp.sum(last**2, -1)) / inner
    second = jnp.einsum("kn,kni,knj->kij", weight, last, last).reshape(-1, 4)
    return jnp.concatenate([weight.sum(1)[:, None], second], 1)


def squared(estimates):
    """Unbiased squares (N,) of means, from independent estimates (N, sets, d) of them."""
    sets = estimates.shape[1]
    whole = np.sum(estimates.sum(1) ** 2, -1) - np.sum(estimates**2, (1, 2))
    return whole / (sets * (sets - 1))


def measured(layers, V, samples, nodes, seed, V_first=1.0):
    """lambda_l of the hidden layers, f of the last layer, the smallest number of effective nodes,
    and f of layer 1, at V = diag(V_first, 1, .., 1, V)."""
    dimension = 2 * (layers - 1)
    net = qmc.Sobol(2 * layers + 4, seed=seed).random(samples)
    x = norm.ppf(np.clip(net, 1e-15, 1 - 1e-15)).reshape(samples, layers + 2, 2)
    omega = np.sqrt(1 - V) * x[:, 0]
    first = np.sqrt(1 - V_first) * x[:, -1]
    z = [*np.moveaxis(x[:, 1:-2], 1, 0), omega + np.sqrt(V) * x[:, -2]]
    z[0] = first + np.sqrt(V_first) * z[0]
    matrices = []
    for block in z[:-1]:
        matrices.append(attention(chain(matrices, block)))
    u = chain(matrices, z[-1])
    points = [qmc.Sobol(dimension, seed=1000 * seed + k).random(nodes) for k in range(SETS)]
    t = jnp.asarray(norm.ppf(np.clip(np.stack(points), 1e-15, 1 - 1e-15)))
    run = jax.jit(lambda *s: jax.lax.map(lambda s: moments(*s, (V_first, V), t, layers), s))
    total, ess = (np.asarray(x) for x in run(u, jnp.asarray(first), jnp.asarray(omega)))
    means = total[..., 1:] / total[..., :1]
    identity = np.eye(2).ravel()
    rates = [squared(means[..., 4 * k : 4 * k + 4] - identity).mean() for k in range(layers - 1)]
    if V == 1.0:
        each = jax.jit(lambda u: jax.lax.map(lambda u: last_squared(u, t, layers), u))
        total = np.asarray(each(u))
        rates.append(squared(total[..., 1:] / total[..., :1] - identity).mean())
        return rates, np.nan, np.min(ess), np.nan
    ends = means[..., 4 * (layers - 1) :]
    g = (ends[..., 2:] - omega[:, None]) / V
    g_first = (ends[..., :2] - first[:, None]) / V_first
    return rates, squared(g).mean(), np.min(ess), squared(g_first).mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--samples", type=int, default=2**11, help="labels of each seed")
    parser.add_argument("--nodes", type=int, default=512, help="of each of the eight sets")
    parser.add_argument("--seeds", type=int, default=8, help="their spread is the error bar")
    parser.add_argument("--first", type=float, default=1.0, help="V of layer 1")
    parser.add_argument("--V", type=float, nargs="+", default=[1.0, 0.03, 0.02, 0.015, 0.01])
    arguments = parser.parse_args()
    for V in arguments.V:
        runs = [
            measured(arguments.layers, V, arguments.samples, arguments.nodes, seed, arguments.first)
            for seed in range(1, arguments.seeds + 1)
        ]
        rates = np.array([run[0] for run in runs])
        f = np.array([run[1] for run in runs])
        alpha = np.ones_like(f) if V == 1.0 else (1 - V) / (V * f)
        root = np.sqrt(len(runs))
        row = {"V": V, "V_first": arguments.first, "lambda": rates.mean(0).tolist()}
        row["lambda_stderr"] = (rates.std(0, ddof=1) / root).tolist()
        if V < 1.0:
            scaled = alpha[:, None] * rates
            row["alpha"] = alpha.mean()
            row["alpha_stderr"] = alpha.std(ddof=1) / root
            if arguments.first < 1.0:
                f_first = np.array([run[3] for run in runs])
                other = (1 - arguments.first) / (arguments.first * f_first)
                row["alpha_of_first"] = other.mean()
                row["alpha_of_first_stderr"] = other.std(ddof=1) / root
            row["alpha_lambda"] = scaled.mean(0).tolist()
            row["alpha_lambda_stderr"] = (scaled.std(0, ddof=1) / root).tolist()
        row["smallest_ess"] = min(run[2] for run in runs)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()

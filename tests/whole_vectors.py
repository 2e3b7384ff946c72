"""Online SGD of whole weight vectors, on which the chain of the overlaps is tested. The steps are
written from [theory: online-sgd, Eqs. (51), (52)]; starts and losses are the library's."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxsmi.sgd.problem import Initial, Rule, pair_of
from jaxsmi.sgd.simulation import RunStart, start_chains


def whole_vectors(model, keys, *, dimension, rate, alpha, start=None, student=None):
    """M (runs, P, k) and Q (runs, P, P) where such runs of `smi.sgd.simulate` end."""
    rule = Rule.of(rate)
    pair = pair_of(model, student, rule.gradient.loss)
    projected = pair.spherical or rule.projection == "sphere"
    run_start = RunStart.of(pair, Initial.of(start), dimension)
    begin = start_chains(pair, run_start, keys, dimension, projected, pair.rows)
    steps = round(alpha * dimension / rule.batch_size)
    batches = jax.vmap(lambda k: jax.random.fold_in(k, 1))(keys)
    return _runs(pair, rule, projected, dimension, steps, begin, batches)


@eqx.filter_jit
def _runs(pair, rule, projected, D, steps, begin, keys):
    B = rule.batch_size
    k = pair.fixed
    eta = jnp.broadcast_to(rule.rate, (pair.rows,))[:, None, None]
    scale = {"mean": B, "sum": 1, "sum/D": D}[rule.gradient.reduction or "mean"]
    decay = 0.0 if rule.weight_decay is None else rule.weight_decay * B / (eta * D)
    beta = 0.0 if rule.momentum is None else rule.momentum
    norm = lambda W: jnp.linalg.norm(W, axis=-1, keepdims=True)

    def run(begin, key):
        L = begin.frame
        rows = jnp.moveaxis(jnp.concatenate([begin.along, begin.across], axis=1), 1, -1)
        W = jnp.sqrt(D) * jnp.pad(rows, ((0, 0), (0, 0), (0, D - rows.shape[-1])))  # (P, g, D)
        means = (pair.encoding @ L[pair.targets :]).reshape(pair.tokens, pair.groups, k)

        def loss(W, x, noise):
            inputs = x.at[..., :k].add(means)
            hidden = jnp.einsum("qj,bmgj->bqmg", L[: pair.targets], inputs[..., :k])
            z = jnp.einsum("pgd,bmgd->bpmg", W, inputs) / np.sqrt(D)
            flat = lambda y: y.reshape(*y.shape[:2], -1)
            return jnp.sum(jax.vmap(pair.sample_loss)(flat(hidden), flat(z), noise)) / scale

        def step(state, key):
            inputs, labels = jax.random.split(key)
            x = jax.random.normal(inputs, (B, pair.tokens, pair.groups, D))
            noise = jax.random.normal(labels, (B, pair.noise_size))
            for _ in range(rule.gradient.repeats):
                W, V = state
                V = beta * V + decay * W + jax.grad(loss)(W, x, noise)
                new = W - eta * V
                state = (norm(W) / norm(new) * new if projected else new), V
            return state, None

        W = jax.lax.scan(step, (W, jnp.zeros_like(W)), jax.random.split(key, steps))[0][0]
        rows = jnp.moveaxis(W, 1, 0).reshape(-1, D) / np.sqrt(D)
        return rows[:, :k] @ L.T, rows @ rows.T

    return jax.vmap(run, in_axes=(-1, 0))(begin, keys)

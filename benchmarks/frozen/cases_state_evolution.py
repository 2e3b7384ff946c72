"""State evolution, its derivatives and its potential."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from adapters import evolve, free_entropy
from cases_message_passing import FEW
from recording import group
from shared import INDEX_MODELS, key, pair_link, steep, user_model

import jaxsmi as smi


@group
def evolution_index(add):
    """State evolution of index models."""
    phase = smi.links.phase_retrieval()
    add("phase", lambda: evolve(phase, 0.8, key=key(1), **FEW))
    add("phase, not learned", lambda: evolve(phase, 0.3, key=key(1), **FEW))
    add("phase, recovered", lambda: evolve(phase, 1.4, key=key(1), **FEW))
    add(
        "phase, plain iteration",
        lambda: evolve(phase, 0.8, key=key(1), newton=False, max_steps=40, **FEW),
    )
    add("phase, too few steps", lambda: evolve(phase, 0.55, key=key(1), max_steps=5, **FEW))
    add("phase, informed", lambda: evolve(phase, 0.8, key=key(1), q0=0.95, **FEW))
    add(
        "phase, side information",
        lambda: evolve(phase, 0.4, key=key(1), side_information=0.05, **FEW),
    )
    add("phase, tolerance", lambda: evolve(phase, 0.8, key=key(1), tolerance=1e-8, **FEW))
    add("phase, progress", lambda: evolve(phase, 0.8, key=key(1), progress=True, **FEW))
    add(
        "phase, other key, 8 nets",
        lambda: evolve(phase, 0.8, key=key(7), samples=2**11, randomisations=8),
    )
    add(
        "phase, vmap",
        lambda: jax.vmap(lambda a: evolve(phase, a, key=key(1), **FEW))(
            jnp.asarray([0.4, 0.7, 1.3])
        ),
    )
    add(
        "phase, jit, bad alpha",
        lambda: jax.jit(lambda a: evolve(phase, a, key=key(1), **FEW))(-1.0),
    )
    add("linear, 2 tokens", lambda: evolve(smi.links.linear(0.1, tokens=2), 0.6, key=key(1), **FEW))
    add(
        "linear, variance",
        lambda: evolve(
            smi.links.linear(0.3, prior=smi.priors.Gaussian([[0.6]])), 1.0, key=key(1), **FEW
        ),
    )
    add(
        "linear, noiseless, recovered",
        lambda: evolve(smi.links.linear(0.0), 1.5, key=key(1), **FEW),
    )
    add("sign", lambda: evolve(smi.links.sign(), 1.5, key=key(1), **FEW))
    add(
        "sign, Rademacher",
        lambda: evolve(smi.links.sign(smi.priors.Rademacher()), 1.2, key=key(1), **FEW),
    )
    add(
        "phase, sparse",
        lambda: evolve(
            smi.links.phase_retrieval(prior=smi.priors.BernoulliGauss(0.4)), 0.7, key=key(1), **FEW
        ),
    )
    add("sign product 2, covariance", lambda: evolve(
        smi.links.sign_product(2, smi.priors.Gaussian([[1.0, 0.3], [0.3, 0.8]])), 4.0, key=key(1), **FEW))  # fmt: skip
    add("sign product 2, q0 a matrix", lambda: evolve(
        smi.links.sign_product(2), 3.5, key=key(1), q0=np.array([[0.5, 0.1], [0.1, 0.3]]), **FEW))  # fmt: skip
    add(
        "sign product 3",
        lambda: evolve(
            smi.links.sign_product(3),
            4.0,
            key=key(1),
            q0=0.3,
            max_steps=20,
            samples=2**9,
            randomisations=4,
        ),
    )
    add(
        "product 2",
        lambda: evolve(
            smi.links.product(2), 1.2, key=key(1), max_steps=30, samples=2**8, randomisations=4
        ),
    )
    add(
        "square plus sign parity",
        lambda: evolve(
            smi.links.square_plus_sign_parity(),
            2.0,
            key=key(1),
            max_steps=20,
            samples=2**9,
            randomisations=4,
        ),
    )
    add("user, noise", lambda: evolve(user_model(), 1.0, key=key(1), **FEW))
    add("user, two indices and tokens", lambda: evolve(
        smi.MultiIndex(pair_link, indices=2, tokens=2, noise=0.1, tolerance=5e-2), 1.0, key=key(1), q0=0.4, max_steps=4, samples=2**6, randomisations=2))  # fmt: skip


@group
def evolution_attention(add):
    """State evolution of deep attention."""
    add("1 layer, 2 tokens", lambda: evolve(smi.DeepAttention(1, 2), 0.4, key=key(1), **FEW))
    add(
        "1 layer, 3 tokens",
        lambda: evolve(smi.DeepAttention(1, 3, beta=1.4), 0.25, key=key(1), **FEW),
    )
    add("1 layer, recovered", lambda: evolve(smi.DeepAttention(1, 2), 0.7, key=key(1), **FEW))
    two = smi.DeepAttention(2, 2, skip=1.0)
    small = {"samples": 2**9, "randomisations": 4}
    add("2 layers, 0.5", lambda: evolve(two, 0.5, key=key(1), **small))
    add("2 layers, 0.8", lambda: evolve(two, 0.8, key=key(1), **small))
    add(
        "2 layers, plain", lambda: evolve(two, 0.5, key=key(1), newton=False, max_steps=10, **small)
    )
    tiny = {"samples": 2**6, "randomisations": 2, "max_steps": 4}
    add(
        "heads",
        lambda: evolve(
            smi.DeepAttention(2, 2, 0.7, heads=(2, 1), tolerance=5e-2, max_nodes=2**14),
            0.9,
            key=key(1),
            q0=0.3,
            **tiny,
        ),
    )
    add(
        "untied",
        lambda: evolve(
            smi.DeepAttention(2, 2, 0.7, tied=(False, True), tolerance=5e-2, max_nodes=2**14),
            0.9,
            key=key(1),
            q0=0.3,
            **tiny,
        ),
    )
    add("noise", lambda: evolve(smi.DeepAttention(1, 2, noise=0.05), 0.6, key=key(1), **small))


MATRIX_POINTS = {
    "softmax 2": (lambda: smi.AttentionIndexed(2, 0.5), (0.05, 0.1, 0.3)),
    "softmax 3, beta": (lambda: smi.AttentionIndexed(3, 1.5, beta=2.0), (0.03, 0.08)),
    "hardmax 2": (lambda: smi.AttentionIndexed(2, 0.5, "hardmax"), (0.1, 1.0)),
    "linear 2, noise": (lambda: smi.AttentionIndexed(2, 0.5, "linear", noise=0.2), (0.1, 1.0)),
    "linear 1": (lambda: smi.AttentionIndexed(1, 0.5, "linear"), (0.1, 0.5)),
    "bilinear": (lambda: smi.Bilinear(1.0, 0.2), (0.1, 0.3, 0.5)),
    "bilinear, long, noise": (lambda: smi.Bilinear(3.0, 0.4, 0.1), (0.1, 0.8)),
    "bilinear, short": (lambda: smi.Bilinear(0.3, 0.2), (0.3,)),
    "bilinear, infinite": (lambda: smi.Bilinear(np.inf, 0.4), (0.1, 0.3)),
    "quadratic, noise": (lambda: smi.Bilinear(1.0, 0.5, 0.1, symmetric=True), (0.1, 0.6)),
}


@group
def evolution_matrix(add):
    """State evolution, free entropy, errors and thresholds of matrix models."""
    for name, (build, alphas) in MATRIX_POINTS.items():

        def one(build=build, alphas=alphas):
            model, found = build(), {}
            for alpha in alphas:
                sol = evolve(model, alpha)
                at = 0.5 * sol.overlap + 0.2
                found[f"{alpha}"] = {"sol": sol, "phi": free_entropy(model, alpha, at)}
            found["plug-in"] = smi.generalization_error(model, 0.6, key=key(3), points=2**10)
            found["bayes"] = smi.generalization_error(
                model, 0.6, key=key(3), predictor="bayes", points=2**10
            )
            return found | {"recovery": smi.recovery_threshold(model)}

        add(name, one)
    soft = smi.AttentionIndexed(2, 0.5)
    add("softmax 2, plain iteration", lambda: evolve(soft, 0.1, newton=False, max_steps=12))
    add(
        "bilinear, plain iteration",
        lambda: evolve(smi.Bilinear(1.0, 0.2), 0.3, newton=False, max_steps=12),
    )
    add(
        "softmax 2, vmap",
        lambda: jax.vmap(lambda a: evolve(soft, a))(jnp.asarray([0.05, 0.12, 0.2])),
    )
    add(
        "bilinear, vmap over width",
        lambda: jax.vmap(lambda r: evolve(smi.Bilinear(1.0, r), 0.3).error)(
            jnp.asarray([0.1, 0.2, 0.5])
        ),
    )
    add("softmax 2, jit, bad alpha", lambda: jax.jit(lambda a: evolve(soft, a))(-1.0))


@group
def derivatives(add):
    """Derivatives of state evolution and of what follows from it."""
    phase = smi.links.phase_retrieval()
    few = {"samples": 2**9, "randomisations": 4}
    q = lambda model, alpha: evolve(model, alpha, key=key(1), **few).overlap[0, 0]
    add("phase, alpha, reverse", lambda: jax.grad(lambda a: q(phase, a))(0.8))
    add(
        "phase, alpha, forward",
        lambda: jax.jvp(lambda a: evolve(phase, a, key=key(1), **few).error, (0.8,), (1.0,)),
    )
    add("phase, recovered", lambda: jax.grad(lambda a: q(phase, a))(1.4))
    add(
        "sign, alpha (jumps)",
        lambda: jax.grad(lambda a: evolve(smi.links.sign(), a, key=key(1), **few).error)(1.5),
    )
    add(
        "linear, alpha and noise",
        lambda: jax.grad(lambda a, n: q(smi.links.linear(n), a), argnums=(0, 1))(1.0, 0.3),
    )
    add(
        "linear, variance",
        lambda: jax.grad(
            lambda v: q(smi.links.linear(0.3, prior=smi.priors.Gaussian(v * jnp.eye(1))), 1.0)
        )(0.6),
    )
    add(
        "phase, density",
        lambda: jax.grad(
            lambda r: q(smi.links.phase_retrieval(prior=smi.priors.BernoulliGauss(r)), 0.7)
        )(0.4),
    )
    add("user, slope of the link", lambda: jax.grad(lambda s: q(steep(s), 1.0))(1.5))
    add(
        "attention 1, beta",
        lambda: jax.grad(lambda b: q(smi.DeepAttention(1, 2, beta=b), 0.4))(1.2),
    )
    add("attention 2, skip, alpha", lambda: jax.jacfwd(
        lambda p: evolve(smi.DeepAttention(2, 2, skip=p[0]), p[1], key=key(1), samples=2**8, randomisations=4).overlap)(jnp.asarray([1.0, 0.5])))  # fmt: skip
    V = lambda *p: evolve(smi.AttentionIndexed(2, p[1], beta=p[2]), p[0]).error
    add("softmax, all, reverse", lambda: jax.grad(V, argnums=(0, 1, 2))(0.1, 0.5, 1.3))
    add("softmax, alpha, twice", lambda: jax.jacfwd(jax.jacfwd(V))(0.1, 0.5, 1.3))
    add(
        "hardmax, alpha",
        lambda: jax.grad(lambda a: evolve(smi.AttentionIndexed(2, 0.5, "hardmax"), a).error)(0.5),
    )
    add("linear indices, noise", lambda: jax.jvp(
        lambda n: evolve(smi.AttentionIndexed(2, 0.5, "linear", noise=n), 0.2).error, (0.2,), (1.0,)))  # fmt: skip
    add(
        "bilinear, all",
        lambda: jax.grad(
            lambda a, b, r, n: evolve(smi.Bilinear(b, r, n), a).error, argnums=(0, 1, 2, 3)
        )(0.3, 2.0, 0.4, 0.1),
    )
    add(
        "bilinear, recovery",
        lambda: jax.grad(lambda r: smi.recovery_threshold(smi.Bilinear(1.0, r)).alpha)(0.2),
    )
    add(
        "free entropy, overlap",
        lambda: jax.grad(lambda x: free_entropy(phase, 0.8, x, key=key(1), **few).value)(0.5),
    )
    add(
        "free entropy, matrix",
        lambda: jax.grad(lambda x: free_entropy(smi.AttentionIndexed(2, 0.5), 0.1, x).value)(0.5),
    )
    add(
        "generalization error",
        lambda: jax.grad(
            lambda x: smi.generalization_error(phase, x, key=key(1), points=2**10).value
        )(0.5),
    )


@group
def potential(add):
    """Free entropy and prediction error of index models."""
    few = {"key": key(1), **FEW}
    phase = smi.links.phase_retrieval()
    add(
        "phase, three overlaps",
        lambda: [free_entropy(phase, 0.8, q, **few) for q in (0.0, 0.4, 0.9)],
    )
    add("linear", lambda: free_entropy(smi.links.linear(1.0), 1.0, 0.3, **few))
    add(
        "sign, Rademacher",
        lambda: free_entropy(smi.links.sign(smi.priors.Rademacher()), 1.2, 0.5, **few),
    )
    add(
        "sign product 2, a matrix",
        lambda: free_entropy(
            smi.links.sign_product(2), 3.0, np.array([[0.5, 0.1], [0.1, 0.3]]), **few
        ),
    )
    add("attention 1", lambda: free_entropy(smi.DeepAttention(1, 2), 0.4, 0.5, **few))
    add(
        "attention 2",
        lambda: free_entropy(
            smi.DeepAttention(2, 2),
            0.5,
            np.diag([0.1, 0.7]),
            key=key(1),
            samples=2**9,
            randomisations=4,
        ),
    )
    add(
        "phase, at a solution",
        lambda: free_entropy(phase, 0.8, evolve(phase, 0.8, **few), **few),
    )
    add(
        "phase, jit, out of range",
        lambda: jax.jit(lambda q: free_entropy(phase, 0.8, q, **few).value)(2.0),
    )
    for name in (
        "linear",
        "sign",
        "phase retrieval",
        "sign product 2",
        "user, two indices and tokens",
        "attention 2",
        "attention, hardmax",
    ):

        def one(name=name):
            model = INDEX_MODELS[name]()
            q = 0.6 * model.prior.second_moment(model.indices)
            return {
                p: smi.generalization_error(model, q, key=key(2), predictor=p, points=2**11)
                for p in ("plug-in", "bayes")
            }

        add(f"errors, {name}", one)
    add(
        "error at a solution",
        lambda: smi.generalization_error(
            phase, evolve(phase, 0.8, **few), key=key(2), points=2**11
        ),
    )

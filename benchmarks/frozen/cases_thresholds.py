"""Thresholds, and searches for them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from adapters import first_order_parts, search_parts
from recording import group
from shared import key, steep

import jaxsmi as smi


@group
def thresholds(add):
    """Weak recovery, staircase, perfect recovery."""
    few = {"averages": smi.Averages(2**10, 4)}
    for name, build in {
        "phase": lambda: smi.links.phase_retrieval(), "linear (at once)": lambda: smi.links.linear(0.1), "sign product 2": lambda: smi.links.sign_product(2),
        "sign product 3 (never)": lambda: smi.links.sign_product(3), "product 2": lambda: smi.links.product(2),
        "phase, Rademacher": lambda: smi.links.phase_retrieval(prior=smi.priors.Rademacher()),
        "sign product 2, covariance": lambda: smi.links.sign_product(2, smi.priors.Gaussian([[1.0, 0.3], [0.3, 0.8]])),
        "attention 1, 3 tokens": lambda: smi.DeepAttention(1, 3), "attention 2": lambda: smi.DeepAttention(2, 2),
        "user": lambda: steep(1.5), "square plus sign parity": lambda: smi.links.square_plus_sign_parity(),
    }.items():  # fmt: skip

        def one(build=build, name=name):
            return smi.weak_recovery(
                build(),
                key=key(1),
                **(few if name != "product 2" else {"averages": smi.Averages(2**8, 4)}),
            )

        add(f"weak, {name}", one)
    add(
        "weak, interval",
        lambda: smi.weak_recovery(smi.links.phase_retrieval(), key=key(1), **few).interval(0.9),
    )
    add("weak, derivative in noise", lambda: jax.grad(lambda n: smi.weak_recovery(
        smi.MultiIndex(lambda z: z[0, 0] ** 2, indices=1, noise=n), key=key(1), **few).alpha)(0.3))  # fmt: skip
    add("weak, derivative in beta and skip, forward", lambda: jax.jacfwd(lambda p: smi.weak_recovery(smi.DeepAttention(2, 2, skip=p[0], beta=p[1]), key=key(1), averages=smi.Averages(points=2**8, nets=4)).alpha)(jnp.asarray([1.0, 1.2])))  # fmt: skip
    add(
        "weak, vmap",
        lambda: jax.vmap(
            lambda b: smi.weak_recovery(smi.DeepAttention(1, 2, beta=b), key=key(1), **few).alpha
        )(jnp.asarray([0.8, 1.5])),
    )
    add("staircase, square plus sign parity", lambda: smi.staircase(smi.links.square_plus_sign_parity(), key=key(1), alpha_max=6.0, averages=smi.Averages(points=2**8, nets=2)))  # fmt: skip

    def stairs():
        first = smi.staircase(
            smi.DeepAttention(2, 2),
            key=key(1),
            alpha_max=2.0,
            averages=smi.Averages(points=2**8, nets=2),
        )
        again = smi.staircase(
            smi.DeepAttention(2, 2, skip=1.1),
            key=key(1),
            alpha_max=2.0,
            guess=first,
            steps=2,
            averages=smi.Averages(points=2**8, nets=2),
        )
        return {"first": first, "again": again}

    add("staircase, attention 2, and with a guess", stairs)
    add(
        "staircase, low alpha_max",
        lambda: {
            "none": len(
                smi.staircase(
                    smi.links.sign_product(2),
                    key=key(1),
                    alpha_max=0.1,
                    averages=smi.Averages(points=2**8, nets=2),
                )
            )
        },
    )
    for name, build in {"attention 1": lambda: smi.DeepAttention(1, 2), "attention 3": lambda: smi.DeepAttention(3, 2, ranks=(2, 1, 1)),
                        "phase": lambda: smi.links.phase_retrieval(), "product": lambda: smi.links.product(2)}.items():  # fmt: skip
        add(f"perfect, {name}", lambda build=build: smi.recovery_threshold(build()))


@group
def staircase_derivative(add):
    """The derivative of the second step of a staircase."""
    add("attention 2, skip", lambda: jax.jvp(lambda c: smi.staircase(smi.DeepAttention(2, 2, skip=c), key=key(1), alpha_max=2.0, steps=2, averages=smi.Averages(points=2**8, nets=2))[-1].alpha, (1.0,), (1.0,)))  # fmt: skip


@group
def first_order(add):
    """First-order transitions."""
    add("sign, Rademacher", lambda: first_order_parts(smi.first_order(smi.links.sign(prior=smi.priors.Rademacher()), key=key(1), alpha=np.geomspace(0.9, 2.0, 5), averages=smi.Averages(points=2**10, nets=2), iteration=smi.Iteration(max_steps=300))))  # fmt: skip
    add(
        "linear, none",
        lambda: first_order_parts(
            smi.first_order(
                smi.links.linear(0.1),
                key=key(1),
                alpha=np.geomspace(0.1, 5.0, 4),
                averages=smi.Averages(points=2**9),
            )
        ),
    )
    add("phase (perfect, continuous)", lambda: first_order_parts(smi.first_order(smi.links.phase_retrieval(), key=key(1), alpha=np.geomspace(0.7, 1.6, 5), averages=smi.Averages(points=2**10, nets=2), iteration=smi.Iteration(max_steps=300))))  # fmt: skip


@group
def search(add):
    """Threshold search."""
    noisy = lambda n: smi.MultiIndex(lambda z: z[0, 0] ** 2, indices=1, noise=jnp.exp(n))
    add(
        "target",
        lambda: search_parts(
            smi.search_threshold(
                noisy,
                -1.0,
                key=key(1),
                target=1.0,
                averages=smi.Averages(points=2**9, nets=4),
                iteration=smi.Iteration(max_steps=3),
            )
        ),
    )
    add("minimise", lambda: search_parts(smi.search_threshold(lambda p: smi.DeepAttention(1, 2, beta=jnp.exp(p["beta"])), {"beta": 0.0}, key=key(1), averages=smi.Averages(points=2**9, nets=4), iteration=smi.Iteration(max_steps=2))))  # fmt: skip

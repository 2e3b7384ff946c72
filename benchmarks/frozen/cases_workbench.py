"""Sweeps, data sets for xarray, and refusals."""

from __future__ import annotations

import os
import tempfile

import jax.numpy as jnp
import optax
from adapters import as_xarray, evolve, gamp, gamp_method, sweep, train, train_method
from cases_sgd import sequence_models
from recording import group
from shared import key, likelihood_model, norm_and_precision

import jaxsmi as smi


@group
def sweeps(add):
    """Grids of problems, in memory and in a folder."""
    linear, quick = (lambda noise: smi.links.linear(noise)), {"samples": 512, "randomisations": 4}
    add(
        "state evolution",
        lambda: sweep(linear, [0.5, 1.0, 2.0], {"noise": [0.1, 0.5]}, settings=quick, seeds=2),
    )
    add(
        "to an error bar",
        lambda: sweep(
            lambda: smi.links.phase_retrieval(),
            [0.7, 1.2],
            settings={"stderr": 0.03, "most": 2**12},
        ),
    )
    add(
        "matrix models",
        lambda: sweep(
            lambda rank_ratio: smi.AttentionIndexed(2, rank_ratio),
            [0.05, 0.1],
            {"rank_ratio": [0.2, 0.5, 1.0]},
        ),
    )
    add("a bad point", lambda: sweep(linear, [0.5, 1.0], {"noise": [0.5, -1.0]}, settings=quick))
    add(
        "gamp",
        lambda: sweep(
            linear,
            [1.0, 2.0],
            {"noise": [0.5]},
            solver="gamp",
            seeds=2,
            settings=gamp_method(dimension=60, max_steps=8),
        ),
    )
    add(
        "train",
        lambda: sweep(
            linear,
            [2.0],
            {"noise": [0.1]},
            solver="train",
            seeds=2,
            settings=train_method(dimension=40, steps=30, learning_rate=0.1),
        ),
    )

    def folder():
        with tempfile.TemporaryDirectory() as out:
            sweep(linear, [0.5, 1.0], {"noise": [0.1, 0.5]}, settings=quick, out=out)
            names = sorted(os.listdir(out))
            os.unlink(os.path.join(out, "row-00001.npz"))
            return {
                "again": sweep(linear, [0.5, 1.0], {"noise": [0.1, 0.5]}, settings=quick, out=out),
                "files": "|".join(names),
            }

    add("folder, continued", folder)

    def own():
        def solver(model, alpha, key, before, **settings):
            return evolve(model, alpha, key=key, **settings)

        return sweep(linear, [0.5, 1.0], {"noise": [0.1]}, solver=solver, settings=quick)

    add("own solver", own)


@group
def xarrays(add):
    """Solutions as xarray Datasets."""
    phase = smi.links.phase_retrieval()
    add(
        "state evolution",
        lambda: as_xarray(evolve(phase, 0.8, key=key(1), samples=2**8, randomisations=2)),
    )
    add(
        "gamp",
        lambda: as_xarray(
            gamp(
                phase,
                phase.sample(key(1), dimension=30, alpha=2.0),
                key=key(2),
                max_steps=5,
                record=norm_and_precision,
            ),
            note="x",
        ),
    )
    soft = smi.AttentionIndexed(2, 0.5)
    add(
        "matrix, gamp",
        lambda: as_xarray(
            gamp(soft, soft.sample(key(1), dimension=12, alpha=0.15), key=key(2), max_steps=5)
        ),
    )
    add("matrix, theory", lambda: as_xarray(evolve(soft, 0.1)))
    add(
        "train",
        lambda: as_xarray(
            train(
                phase,
                phase.sample(key(1), dimension=30, alpha=2.0),
                optax.adam(0.1),
                key=key(2),
                steps=5,
            )
        ),
    )

    def attributes():
        found = as_xarray(
            evolve(phase, 0.8, key=key(1), samples=2**8, randomisations=2), note="x"
        ).attrs
        return {
            name: str(value)
            for name, value in sorted(found.items())
            if name in ("kind", "message", "note", "key", "x64")
        }

    add("attributes", attributes)


@group
def refusals(add):
    """What is refused, and how (type and message)."""
    linear = smi.links.linear(0.1)
    data = linear.sample(key(1), dimension=10, alpha=2.0)
    adam = optax.adam(0.1)
    stairs = lambda: smi.staircase(
        smi.links.linear(0.1, prior=smi.priors.Gaussian([[1.0]])),
        key=key(1),
        alpha_max=-1.0,
        averages=smi.Averages(points=64, nets=2),
    )
    cases = {
        "alpha": lambda: evolve(linear, -1.0, key=key(1)), "q0": lambda: evolve(linear, 1.0, key=key(1), q0=2.0),
        "no key": lambda: evolve(linear, 1.0), "hardmax": lambda: gamp(smi.DeepAttention(1, 2, activation="hardmax"), data),
        "noiseless link": lambda: evolve(smi.links.product(3), 1.0, key=key(1)), "tokens": lambda: gamp(smi.DeepAttention(1, 2), data),
        "precision": lambda: gamp(linear, data, precision="exact"), "damping": lambda: gamp(linear, data, damping=1.0),
        "labels": lambda: gamp(smi.links.phase_retrieval(), smi.Dataset(data.inputs, -jnp.abs(data.labels[:, 0]))),
        "batch": lambda: train(linear, data, adam, batch_size=0), "sign has no gradient": lambda: train(smi.links.sign(), data, adam),
        "several layers": lambda: evolve(smi.AttentionIndexed(2, 0.5, layers=2), 0.1), "rank": lambda: smi.Bilinear(1.0, -0.1),
        "staircase": stairs, "likelihood has no sampler": lambda: likelihood_model().sample(key(1), dimension=10, alpha=1.0),
        "outside the ball": lambda: smi.sgd.risk(sequence_models()["semantic/positional"], 0.9, 0.9), "level": lambda: smi.learned_at([], 0.5),
        "regenerated inputs, train": lambda: train(linear, linear.sample(key(1), dimension=10, alpha=2.0, store=False), adam),
    }  # fmt: skip
    for name, thunk in cases.items():
        add(name, thunk)

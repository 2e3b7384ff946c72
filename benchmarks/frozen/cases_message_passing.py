"""Message passing."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from adapters import Digest, gamp
from recording import group
from shared import key, likelihood_data, likelihood_model, norm_and_precision, pair_link, user_model

import jaxsmi as smi


@group
def gamp_index(add):
    """Message passing of index models: precisions, damping, starts, continuation, record."""
    phase = smi.links.phase_retrieval()
    data = phase.sample(key(1), dimension=150, alpha=2.0)
    words = {"key": key(2), "max_steps": 12}
    add("phase, defaults", lambda: gamp(phase, data, **words))
    for precision in ("outer", "divergence", "state"):
        add(
            f"phase, {precision}",
            lambda precision=precision: gamp(phase, data, precision=precision, **words),
        )
    add("phase, damping, init 0.1", lambda: gamp(phase, data, damping=0.3, init=0.1, **words))
    add(
        "phase, not calibrated, outer",
        lambda: gamp(phase, data, calibrate=False, precision="outer", **words),
    )
    add("phase, not calibrated", lambda: gamp(phase, data, calibrate=False, **words))
    add("phase, informed", lambda: gamp(phase, data, init="informed", **words))
    add("phase, from weights", lambda: gamp(phase, data, init=0.5 * data.teacher, **words))
    add("phase, side information", lambda: gamp(phase, data, side_information=0.3, **words))
    add("phase, side information traced", lambda: jax.vmap(
        lambda s: gamp(phase, data, side_information=s, key=key(2), max_steps=4).overlap)(jnp.asarray([0.1, 0.4])))  # fmt: skip
    first = lambda: gamp(phase, data, key=key(2), max_steps=5)
    add("phase, continued", lambda: gamp(phase, data, state=first().state, key=key(2), max_steps=7))
    add(
        "phase, continued, damped, other key",
        lambda: gamp(phase, data, state=first().state, key=key(5), max_steps=4, damping=0.2),
    )
    add(
        "phase, record",
        lambda: gamp(
            phase, data, record=norm_and_precision, record_every=3, key=key(2), max_steps=10
        ),
    )
    add("phase, progress", lambda: gamp(phase, data, progress=True, **words))
    add(
        "phase, to the end",
        lambda: gamp(phase, data, key=key(2), max_steps=60, record_every=10, tolerance=1e-3),
    )
    add("phase, own data", lambda: gamp(phase, smi.Dataset(data.inputs, data.labels), **words))
    add(
        "phase, jit",
        lambda: (
            jax.jit(lambda y: gamp(phase, smi.Dataset(data.inputs, y, data.teacher), **words))(
                data.labels
            ).overlap
        ),
    )
    add(
        "phase, trajectory and cosine",
        lambda: (lambda s: {"t": s.trajectory, "c": s.cosine, "m": s.message})(
            gamp(phase, data, **words)
        ),
    )
    add(
        "phase, diverges",
        lambda: gamp(
            phase,
            data,
            init=30.0,
            precision="divergence",
            calibrate=False,
            key=key(2),
            max_steps=30,
            record_every=10,
        ),
    )
    more = {
        "linear": (lambda: smi.links.linear(0.3), 200, 2.0), "linear, 2 tokens": (lambda: smi.links.linear(0.1, tokens=2), 100, 2.0),
        "linear, variance": (lambda: smi.links.linear(0.3, prior=smi.priors.Gaussian([[0.6]])), 200, 2.0),
        "sign": (lambda: smi.links.sign(), 200, 2.0), "sign, Rademacher": (lambda: smi.links.sign(smi.priors.Rademacher()), 200, 1.7),
        "phase, sparse": (lambda: smi.links.phase_retrieval(prior=smi.priors.BernoulliGauss(0.4)), 200, 1.5),
        "phase, squared": (lambda: smi.links.phase_retrieval(squared=True), 150, 2.0),
        "sign product 2, covariance": (
            lambda: smi.links.sign_product(2, smi.priors.Gaussian([[1.0, 0.3], [0.3, 0.8]])), 150, 4.0),
        "sign product 3": (lambda: smi.links.sign_product(3), 100, 3.0),
        "product 2": (lambda: smi.links.product(2), 100, 2.0),
        "square plus sign parity": (lambda: smi.links.square_plus_sign_parity(), 100, 3.0),
        "user, noise": (user_model, 150, 2.0),
    }  # fmt: skip
    for name, (build, D, alpha) in more.items():

        def one(build=build, D=D, alpha=alpha):
            model = build()
            return gamp(
                model, model.sample(key(1), dimension=D, alpha=alpha), key=key(2), max_steps=10
            )

        add(name, one)

    def one():
        model = smi.MultiIndex(pair_link, indices=2, tokens=2, noise=0.1, tolerance=3e-2)
        return gamp(
            model, model.sample(key(1), dimension=40, alpha=2.0), key=key(2), max_steps=4, init=0.3
        )

    add("user, two indices and tokens", one)
    add(
        "user, log likelihood",
        lambda: gamp(likelihood_model(), likelihood_data(), key=key(2), max_steps=10),
    )

    def predictions():
        model = smi.links.linear(0.1)
        data = model.sample(key(1), dimension=100, alpha=3.0)
        run = gamp(model, data, key=key(2))
        return {
            "run": run,
            "predict": model.predict(run, data.inputs[:10]),
            "align": Digest(smi.align(run.weights, data.teacher, model)),
        }

    add("linear, predictions", predictions)


@group
def gamp_attention(add):
    """Message passing of deep attention."""
    cases = {
        "1 layer, 2 tokens": (lambda: smi.DeepAttention(1, 2), 150, 1.0, 12, {}),
        "1 layer, 3 tokens, beta": (lambda: smi.DeepAttention(1, 3, beta=1.7), 100, 0.5, 10, {}),
        "2 layers": (lambda: smi.DeepAttention(2, 2, skip=1.0), 100, 1.2, 10, {}),
        "2 layers, informed": (lambda: smi.DeepAttention(2, 2, skip=1.0), 100, 1.2, 6, {"init": "informed"}),
        "2 layers, side information, damped": (
            lambda: smi.DeepAttention(2, 2, skip=1.0), 100, 1.2, 6, {"side_information": 0.2, "damping": 0.2}),
        "heads": (lambda: smi.DeepAttention(2, 2, 0.7, heads=(2, 1), tolerance=5e-2, max_nodes=2**14), 30, 1.5, 3, {"side_information": 0.2}),
        "untied": (lambda: smi.DeepAttention(2, 2, 0.7, tied=(False, True), tolerance=5e-2, max_nodes=2**14), 30, 1.5, 3, {"side_information": 0.2}),
        "noise": (lambda: smi.DeepAttention(1, 2, noise=0.05), 80, 1.0, 8, {}),
    }  # fmt: skip
    for name, (build, D, alpha, steps, more) in cases.items():

        def one(build=build, D=D, alpha=alpha, steps=steps, more=more):
            model = build()
            return gamp(
                model,
                model.sample(key(1), dimension=D, alpha=alpha),
                key=key(2),
                max_steps=steps,
                **more,
            )

        add(name, one)


@group
def gamp_matrix(add):
    """Message passing of matrix models."""
    soft = smi.AttentionIndexed(2, 0.5)
    data = soft.sample(key(1), dimension=30, alpha=0.15)
    words = {"key": key(2), "max_steps": 15}
    add("softmax 2", lambda: gamp(soft, data, **words))
    add(
        "softmax 2, outer, damping",
        lambda: gamp(soft, data, precision="outer", damping=0.5, **words),
    )
    add("softmax 2, informed", lambda: gamp(soft, data, init="informed", **words))
    add("softmax 2, side information", lambda: gamp(soft, data, side_information=0.4, **words))
    add("softmax 2, continued, record", lambda: gamp(
        soft, data, state=gamp(soft, data, key=key(2), max_steps=4).state, key=key(2), max_steps=6, record=norm_and_precision, record_every=2))  # fmt: skip
    add("softmax 2, undamped", lambda: gamp(soft, data, damping=0.0, key=key(2), max_steps=25))
    add("softmax 2, restarted with more damping", lambda: gamp(
        smi.AttentionIndexed(2, 0.5, beta=3.0), smi.AttentionIndexed(2, 0.5, beta=3.0).sample(key(1), dimension=30, alpha=0.4), key=key(2), max_steps=40))  # fmt: skip
    add(
        "softmax 2, regenerated",
        lambda: gamp(
            soft,
            soft.sample(key(1), dimension=16, alpha=0.25, store=False),
            key=key(2),
            max_steps=6,
        ),
    )
    add(
        "softmax 2, float32",
        lambda: gamp(
            soft,
            soft.sample(key(1), dimension=16, alpha=0.25, dtype=jnp.float32),
            key=key(2),
            max_steps=6,
        ),
    )
    add("softmax 2, predict", lambda: soft.predict(gamp(soft, data, **words), data.inputs[:6]))
    cases = {
        "softmax 3": (lambda: smi.AttentionIndexed(3, 0.4, beta=1.5), 24, 0.1), "linear 2, noise": (lambda: smi.AttentionIndexed(2, 0.5, "linear", noise=0.1), 24, 0.15),
        "linear 1": (lambda: smi.AttentionIndexed(1, 0.5, "linear"), 24, 0.3), "hardmax 2": (lambda: smi.AttentionIndexed(2, 0.5, "hardmax"), 24, 0.3),
        "bilinear": (lambda: smi.Bilinear(1.0, 0.25), 20, 0.6), "bilinear, long, noise": (lambda: smi.Bilinear(2.0, 0.25, 0.1), 14, 0.5),
        "bilinear, short": (lambda: smi.Bilinear(0.5, 0.25), 20, 0.6), "quadratic, noise": (lambda: smi.Bilinear(1.0, 0.5, 0.1, symmetric=True), 20, 0.4),
    }  # fmt: skip
    for name, (build, d, alpha) in cases.items():

        def one(build=build, d=d, alpha=alpha):
            model = build()
            return gamp(model, model.sample(key(1), dimension=d, alpha=alpha), **words)

        add(name, one)
    bilinear = smi.Bilinear(1.0, 0.25)
    small = bilinear.sample(key(1), dimension=16, alpha=0.7)
    add(
        "bilinear, to the end",
        lambda: gamp(bilinear, small, key=key(2), max_steps=150, record_every=10),
    )
    add(
        "bilinear, outer",
        lambda: gamp(bilinear, small, key=key(2), max_steps=10, precision="outer"),
    )
    add(
        "bilinear, regenerated",
        lambda: gamp(
            bilinear,
            bilinear.sample(key(1), dimension=16, alpha=0.5, store=False),
            key=key(2),
            max_steps=6,
        ),
    )


@group
def gamp_storage(add):
    """Other precisions, inputs that are not stored, samples spread over devices (one here)."""
    model = smi.links.phase_retrieval()
    words = {"key": key(2), "max_steps": 8}
    draw = lambda **more: model.sample(key(1), dimension=160, alpha=2.0, **more)
    add("float32", lambda: gamp(model, draw(dtype=jnp.float32), **words))
    add("bfloat16", lambda: gamp(model, draw(dtype=jnp.bfloat16), **words))
    add("regenerated", lambda: gamp(model, draw(store=False), **words))
    add("regenerated, float64", lambda: gamp(model, draw(store=False, dtype=jnp.float64), **words))
    add("regenerated, then stored", lambda: gamp(model, draw(store=False).stored(), **words))
    add("sharded", lambda: gamp(model, draw().sharded(), **words))
    add("sharded, regenerated", lambda: gamp(model, draw(store=False).sharded(), **words))
    add(
        "two layers, float32",
        lambda: (
            lambda m: gamp(
                m,
                m.sample(key(1), dimension=60, alpha=1.2, dtype=jnp.float32),
                key=key(2),
                max_steps=4,
            )
        )(smi.DeepAttention(2, 2)),
    )


FEW = {"samples": 2**10, "randomisations": 4}

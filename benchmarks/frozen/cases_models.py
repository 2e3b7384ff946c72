"""Models, priors and channels by themselves."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from adapters import Digest, dataset_parts
from recording import group
from shared import INDEX_MODELS, fields_for, key, likelihood_model, posterior

import jaxsmi as smi


@group
def models_index(add):
    """Data, predictions, overlaps, alignment of index models."""
    for name, build in INDEX_MODELS.items():

        def one(build=build):
            model = build()
            data = model.sample(key(1), dimension=30, alpha=1.5)
            W = data.teacher + 0.4 * model.student.start(key(2), 30)
            x = data.inputs[:5]
            found = {"data": dataset_parts(data), "indices": model.indices, "tokens": model.tokens}
            found |= {
                "predict": model.predict(W, x),
                "outputs": model.student.outputs(W, x),
                "overlaps": model.metric.overlaps(W, data.teacher),
            }
            found["align"] = Digest(smi.align(-W, data.teacher, model))
            found["link"] = model.link(fields_for(model)[1])
            found["symmetry"] = str(model.symmetry)
            if hasattr(model, "network"):
                found["network"] = jax.vmap(lambda one: model.network(W, one))(x)
                found["names"] = "|".join(model.index_names)
            return found

        add(name, one)
    model = smi.links.sign_product(2, smi.priors.Gaussian([[1.0, 0.3], [0.3, 0.8]]))
    add("covariance", lambda: dataset_parts(model.sample(key(1), dimension=40, alpha=2.0)))
    add(
        "float32",
        lambda: dataset_parts(model.sample(key(1), dimension=40, alpha=2.0, dtype=jnp.float32)),
    )
    add(
        "bfloat16",
        lambda: dataset_parts(model.sample(key(1), dimension=40, alpha=2.0, dtype=jnp.bfloat16)),
    )
    add(
        "regenerated",
        lambda: dataset_parts(model.sample(key(1), dimension=40, alpha=2.0, store=False)),
    )
    add("teacher of another", lambda: dataset_parts(
        model.sample(key(4), dimension=40, alpha=1.0, teacher=model.sample(key(1), dimension=40, alpha=0.1).teacher)))  # fmt: skip
    add("first", lambda: dataset_parts(model.sample(key(1), dimension=40, alpha=2.0).first(7)))
    add("error against another truth", lambda: smi.DeepAttention(1, 2, beta=3.0).metric.error(
        jnp.ones((1, 30)), smi.DeepAttention(1, 2, activation="hardmax").sample(key(1), dimension=30, alpha=1.0), key=key(3)))  # fmt: skip


MATRIX_MODELS = {
    "softmax 2": (lambda: smi.AttentionIndexed(2, 0.5), 12, 0.2),
    "softmax 3": (lambda: smi.AttentionIndexed(3, 0.4, beta=1.5), 12, 0.2),
    "hardmax 2": (lambda: smi.AttentionIndexed(2, 0.5, "hardmax"), 12, 0.3),
    "hardmax 3": (lambda: smi.AttentionIndexed(3, 0.5, "hardmax"), 12, 0.3),
    "linear 2": (lambda: smi.AttentionIndexed(2, 0.5, "linear", noise=0.1), 12, 0.2),
    "linear 1": (lambda: smi.AttentionIndexed(1, 0.5, "linear"), 12, 0.2),
    "two layers": (lambda: smi.AttentionIndexed(2, 0.25, layers=2, skip=0.5), 12, 0.2),
    "three layers, hardmax": (lambda: smi.AttentionIndexed(3, 0.25, "hardmax", layers=3), 12, 0.2),
    "bilinear": (lambda: smi.Bilinear(1.0, 0.25), 12, 0.4),
    "bilinear, long": (lambda: smi.Bilinear(2.0, 0.25, 0.1), 10, 0.4),
    "bilinear, short": (lambda: smi.Bilinear(0.5, 0.25), 12, 0.4),
    "quadratic": (lambda: smi.Bilinear(1.0, 0.5, 0.1, symmetric=True), 12, 0.4),
}


@group
def models_matrix(add):
    """Data, predictions, overlaps of matrix models; what their priors say."""
    for name, (build, d, alpha) in MATRIX_MODELS.items():

        def one(build=build, d=d, alpha=alpha):
            model = build()
            data = model.sample(key(1), dimension=d, alpha=alpha)
            W, x = model.student.start(key(2), d), data.inputs[:4]
            found = {
                "data": dataset_parts(data),
                "outputs": model.student.outputs(W, x),
                "overlaps": model.metric.overlaps(W, data.teacher),
            }
            S = model.student.estimate(W)
            found |= {
                "S": Digest(S),
                "error": model.metric.estimation_error(S, data.teacher),
                "shape": list(model.student.shape(d)),
            }
            if model.indices == 1:
                found["predict"] = model.predict(S, x)
            return found

        add(name, one)
    add(
        "regenerated, float32",
        lambda: dataset_parts(
            smi.AttentionIndexed(2, 0.5).sample(key(1), dimension=12, alpha=0.5, store=False)
        ),
    )
    add(
        "regenerated, quadratic",
        lambda: dataset_parts(
            smi.Bilinear(1.0, 0.5, symmetric=True).sample(
                key(1), dimension=12, alpha=0.5, store=False
            )
        ),
    )
    for name, prior in {
        "prior of a square": lambda: smi.AttentionIndexed(2, 0.5).prior,
        "prior of a product": lambda: smi.Bilinear(2.0, 0.5).prior,
        "prior of a long product": lambda: smi.Bilinear(np.inf, 0.5).prior,
    }.items():

        def one(build=prior):
            prior, at = build(), (0.1, 0.3, 1.0, 30.0)
            found = {
                "mmse": jnp.stack([prior.mmse(q) for q in at]),
                "overlap": jnp.stack([prior.overlap(q) for q in at]),
            }
            found["information"] = jnp.stack([prior.law.mutual_information(q) for q in at])
            return found | {
                "norm": prior.norm,
                "freedom": prior.law.degrees_of_freedom,
                "second": prior.second_moment(),
            }

        add(name, one)
    R = np.random.default_rng(0).standard_normal((8, 8))
    add("denoise square", lambda: smi.AttentionIndexed(2, 0.5).prior.denoise(R + R.T, 2.0))
    add("denoise product", lambda: smi.Bilinear(1.0, 0.5).prior.denoise(R, 2.0))
    add("denoise oblong", lambda: smi.Bilinear(0.5, 0.25).prior.denoise(R[:4], 2.0))
    add("small width", lambda: {
        name: {"threshold": m.small_width_threshold, "error": m.small_width_error(np.array([0.1, 0.5, 1.0, 3.0]))}
        for name, m in {"softmax": smi.AttentionIndexed(2, 0.5), "linear": smi.AttentionIndexed(2, 0.5, "linear", noise=0.2),
                        "hardmax": smi.AttentionIndexed(2, 0.5, "hardmax"), "bilinear": smi.Bilinear(2.0, 0.5, 0.1),
                        "long": smi.Bilinear(np.inf, 0.5)}.items()})  # fmt: skip
    add("hardmax decay", lambda: smi.AttentionIndexed(2, 0.5, "hardmax").decay)


PRIORS = {
    "Gaussian": lambda: smi.priors.Gaussian(),
    "Rademacher": lambda: smi.priors.Rademacher(),
    "BernoulliGauss": lambda: smi.priors.BernoulliGauss(0.3),
}


@group
def priors(add):
    """Priors of index models, one and two indices."""
    for name, build in PRIORS.items():
        for P in (1, 2):

            def one(build=build, P=P):
                prior, rng = build(), np.random.default_rng(P)
                Q = jnp.asarray(0.7 * np.eye(P) + 0.2)
                b = jnp.asarray(rng.standard_normal((P, 7)))
                f, C = prior.posterior(b, Q)
                found = {
                    "sample": prior.sample(key(1), P, 9),
                    "overlap": prior.overlap(Q),
                    "mmse": prior.mmse(Q),
                }
                found |= {
                    "free": prior.free_entropy(Q),
                    "f": f,
                    "C": C,
                    "moment": prior.second_moment(P),
                }
                found |= {
                    "log": prior.column(len(Q)).respond(b[:, 0], Q)[0],
                    "side": prior.side_information(key(2), b, 0.3),
                }
                if P == 1:
                    found["slope"] = jax.jacfwd(prior.mmse)(Q)
                    found["free slope"] = jax.grad(prior.free_entropy)(Q)
                return found

            add(f"{name}, P = {P}", one)
    covariance = [[1.0, 0.4], [0.4, 0.5]]

    def one():
        prior, Q = smi.priors.Gaussian(covariance), jnp.asarray([[0.5, 0.1], [0.1, 2.0]])
        found = {
            "sample": prior.sample(key(1), 2, 9),
            "overlap": prior.overlap(Q),
            "mmse": prior.mmse(Q),
        }
        slope = jax.jacrev(lambda c: smi.priors.Gaussian(c).mmse(Q))(jnp.asarray(covariance))
        return found | {
            "free": prior.free_entropy(Q),
            "posterior": prior.posterior(jnp.ones((2, 3)), Q),
            "slope": slope,
        }

    add("Gaussian, covariance", one)
    add("BernoulliGauss, slope in density", lambda: jax.jacrev(
        lambda r: smi.priors.BernoulliGauss(r).mmse(jnp.asarray([[2.0]])))(0.3))  # fmt: skip
    add("Rademacher, P = 3", lambda: smi.priors.Rademacher().overlap(0.5 * jnp.eye(3) + 0.1))
    add(
        "BernoulliGauss, P = 4",
        lambda: smi.priors.BernoulliGauss(0.5).overlap(0.5 * jnp.eye(4) + 0.1),
    )


@group
def channels(add):
    """channel.posterior at fixed ω, V."""
    for name, build in INDEX_MODELS.items():
        if name in (
            "product 3",
            "attention, all untied, heads, rank 2",
            "attention, hardmax",
            "attention 3",
            "attention, ranks",
        ):
            continue
        noise = {"user, noise": 0.3, "user, two indices and tokens": 0.3, "user, vector label": 0.4, "attention, noise": 0.1,
                 "linear": 0.4, "linear, 2 tokens": 0.3}.get(name, 0.0)  # fmt: skip
        add(name, lambda build=build, noise=noise: posterior(build(), noise=noise, key=key(1)))
    add("log likelihood", lambda: posterior(likelihood_model(), y=jnp.asarray(-1.0)))
    add(
        "attention 2, small V",
        lambda: posterior(smi.DeepAttention(2, 2, tolerance=1e-4), seed=3, spread=0.01),
    )
    add(
        "attention, rank 2 below",
        lambda: posterior(smi.DeepAttention(2, 2, 0.5, ranks=(2, 1), tolerance=3e-2), seed=1),
    )
    add(
        "attention 3",
        lambda: posterior(smi.DeepAttention(3, 2, [1.0, 0.5], tolerance=5e-2, max_nodes=2**14)),
    )
    add("under vmap", lambda: jax.vmap(
        lambda w: smi.links.phase_retrieval().channel.posterior(1.3, w, 0.5 * jnp.eye(1)).g)(jnp.linspace(-1, 1, 5)[:, None, None]))  # fmt: skip

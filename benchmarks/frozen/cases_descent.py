"""Training, learning orders and baselines."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from adapters import evolve, gamp, gamp_method, order_parts, train, train_method
from cases_message_passing import FEW
from recording import group
from shared import key, keys, weight_norm

import jaxsmi as smi


@group
def train_index(add):
    """Training of index models: optimisers, batches, stopping, continuation, streams."""
    model = smi.MultiIndex(lambda z: jnp.tanh(z[0, 0]) + z[1, 0] * z[1, 1], indices=2, tokens=2)
    data = model.sample(key(1), dimension=40, alpha=4.0)
    words = {"key": key(2), "steps": 30}
    adam = optax.adam(0.05)
    add("adam, all samples", lambda: train(model, data, adam, **words))
    add("adam, batches", lambda: train(model, data, adam, batch_size=17, record_every=5, **words))
    add("momentum, decay, sum/D, repeats", lambda: train(
        model, data, optax.chain(optax.add_decayed_weights(0.01), optax.sgd(0.1, momentum=0.9)), reduction="sum/D", repeats=2, batch_size=40, **words))  # fmt: skip
    add(
        "sgd, sum, schedule",
        lambda: train(
            model,
            data,
            optax.sgd(optax.cosine_decay_schedule(0.005, 30)),
            reduction="sum",
            batch_size=20,
            **words,
        ),
    )
    add("lbfgs", lambda: train(model, data, optax.lbfgs(), key=key(2), steps=8))
    add("several keys", lambda: train(model, data, adam, batch_size=20, key=keys(3), steps=20))
    add("continued", lambda: train(model, data, adam, batch_size=17, key=key(2), steps=12, state=train(
        model, data, adam, batch_size=17, key=key(2), steps=9).state, record_every=4))  # fmt: skip
    add(
        "several keys, continued",
        lambda: train(
            model,
            data,
            adam,
            key=keys(3),
            steps=8,
            state=train(model, data, adam, key=keys(3), steps=5).state,
        ),
    )
    add(
        "patience",
        lambda: train(
            model, data, optax.sgd(3.0), patience=2, record_every=2, key=key(2), steps=40
        ),
    )
    add(
        "target",
        lambda: train(
            model, data, optax.adam(0.1), target=0.8, record_every=5, key=key(2), steps=120
        ),
    )
    add(
        "target, several keys",
        lambda: train(
            model, data, optax.adam(0.1), target=0.7, record_every=5, key=keys(3), steps=80
        ),
    )
    add("record", lambda: train(model, data, adam, record=weight_norm, record_every=10, **words))
    add(
        "test set",
        lambda: train(
            model,
            data,
            adam,
            test=model.sample(key(5), dimension=40, alpha=2.0, teacher=data.teacher),
            **words,
        ),
    )
    add(
        "own loss, init small",
        lambda: train(
            model, data, adam, loss=lambda p, y: jnp.sum(jnp.abs(p - y)), init=0.1, **words
        ),
    )
    add("from weights", lambda: train(model, data, adam, init=0.9 * data.teacher, **words))
    add("no teacher", lambda: train(model, smi.Dataset(data.inputs, data.labels), adam, **words))
    add(
        "progress",
        lambda: train(model, data, adam, progress=True, batch_size=17, record_every=5, **words),
    )
    add(
        "vmap over rates",
        lambda: jax.vmap(lambda r: train(model, data, optax.sgd(r), key=key(2), steps=10))(
            jnp.asarray([0.1, 0.5])
        ),
    )
    add("diverges", lambda: train(model, data, optax.sgd(1e6), key=key(2), steps=20))
    add(
        "float32",
        lambda: train(
            model,
            model.sample(key(1), dimension=40, alpha=4.0, dtype=jnp.float32),
            adam,
            batch_size=17,
            **words,
        ),
    )
    add("sharded", lambda: train(model, data.sharded(), adam, **words))
    phase = smi.links.phase_retrieval()
    stream = lambda **more: smi.Stream(phase, phase.student.start(key(3), 50), **more)
    add(
        "stream",
        lambda: train(phase, stream(), optax.sgd(2.0), batch_size=10, key=key(2), steps=30),
    )
    add("stream, float32, several keys, repeats", lambda: train(
        phase, stream(dtype=jnp.float32), optax.sgd(1.0), batch_size=10, repeats=2, key=keys(2), steps=20))  # fmt: skip
    add("stream, continued", lambda: train(phase, stream(), optax.sgd(2.0), batch_size=10, key=key(2), steps=10, state=train(
        phase, stream(), optax.sgd(2.0), batch_size=10, key=key(2), steps=10).state))  # fmt: skip
    cases = {
        "attention 2": lambda: smi.DeepAttention(2, 2), "attention, all untied, heads, rank 2": lambda: smi.DeepAttention(2, 3, 0.5, ranks=2, heads=2, tied=False),
        "product 3": lambda: smi.links.product(3), "square plus sign parity": lambda: smi.links.square_plus_sign_parity(),
    }  # fmt: skip
    for name, build in cases.items():

        def one(build=build):
            m = build()
            return train(
                m,
                m.sample(key(1), dimension=40, alpha=5.0),
                adam,
                batch_size=50,
                key=key(2),
                steps=30,
            )

        add(name, one)

    def student():
        hard, soft = (
            smi.DeepAttention(1, 2, activation="hardmax"),
            smi.DeepAttention(1, 2, beta=4.0),
        )
        data = hard.sample(key(1), dimension=40, alpha=10.0)
        fit = train(soft, data, adam, key=key(2), steps=40)
        return {"fit": fit, "predict": soft.predict(fit, data.inputs[:5])}

    add("softmax student of a hardmax teacher", student)


@group
def train_matrix(add):
    """Training of matrix models, and their averages."""

    def runs(model, d, alpha, **more):
        data = model.sample(key(1), dimension=d, alpha=alpha)
        return data, train(model, data, optax.adam(0.05), key=keys(3), steps=40, **more)

    def averaged(model, d, alpha):
        data, fit = runs(model, d, alpha)
        averaged = smi.averaged(fit, data.teacher)
        parts = averaged._asdict() if hasattr(averaged, "_asdict") else vars(averaged)
        return {"fit": fit, "averaged": parts}

    add("softmax 2, averaged", lambda: averaged(smi.AttentionIndexed(2, 0.5), 12, 0.3))
    add("two layers, averaged", lambda: averaged(smi.AttentionIndexed(2, 0.25, layers=2), 12, 0.4))
    add("bilinear, averaged", lambda: averaged(smi.Bilinear(1.0, 0.25), 12, 0.5))
    add(
        "bilinear, long, batches",
        lambda: runs(smi.Bilinear(2.0, 0.25, 0.1), 10, 0.5, batch_size=20, record=weight_norm)[1],
    )
    add(
        "quadratic",
        lambda: runs(smi.Bilinear(1.0, 0.5, 0.1, symmetric=True), 12, 0.5, target=0.9)[1],
    )
    add("linear 2, test set", lambda: (lambda m: train(m, m.sample(key(1), dimension=12, alpha=0.3), optax.sgd(1.0), key=key(2), steps=20,
        test=m.sample(key(4), dimension=12, alpha=0.1)))(smi.AttentionIndexed(2, 0.5, "linear", noise=0.1)))  # fmt: skip
    add(
        "stream",
        lambda: (
            lambda m: train(
                m,
                smi.Stream(m, m.student.start(key(3), 12)),
                optax.adam(0.05),
                batch_size=10,
                key=key(2),
                steps=20,
            )
        )(smi.AttentionIndexed(2, 0.5)),
    )
    add(
        "stream, bilinear",
        lambda: (
            lambda m: train(
                m,
                smi.Stream(m, m.student.start(key(3), 12)),
                optax.adam(0.05),
                batch_size=10,
                key=key(2),
                steps=20,
            )
        )(smi.Bilinear(1.0, 0.25)),
    )


@group
def learning(add):
    """Order of learning."""
    model = smi.links.linear(0.1)
    data = model.sample(key(1), dimension=60, alpha=4.0)
    methods = lambda: {"GAMP": gamp_method(alpha=2.0, max_steps=10),
                       "Adam": train_method(optimizer=optax.adam(0.05), steps=60, record_every=2, batch_size=60)}  # fmt: skip
    add(
        "order, linear",
        lambda: order_parts(
            smi.learning_order(model, data, methods(), key=key(2), seeds=2, level=0.6)
        ),
    )
    two = smi.DeepAttention(2, 2)
    far = two.sample(key(1), dimension=40, alpha=10.0)
    add("order, attention 2, other student", lambda: order_parts(smi.learning_order(
        two, far, {"Adam": train_method(optimizer=optax.adam(0.05), steps=60, batch_size=100, alpha=8.0),
                   "SGD": train_method(optimizer=optax.sgd(20.0), steps=60, model=smi.DeepAttention(2, 2, skip=0.5))}, key=key(2), seeds=2)))  # fmt: skip
    soft = smi.AttentionIndexed(2, 0.5)
    add("order, softmax 2", lambda: order_parts(smi.learning_order(soft, soft.sample(key(1), dimension=12, alpha=0.3), {
        "GAMP": gamp_method(alpha=0.2, max_steps=10), "Adam": train_method(optimizer=optax.adam(0.05), steps=30)}, key=key(2), seeds=2)))  # fmt: skip
    add(
        "learned at, a run",
        lambda: smi.learned_at(train(model, data, optax.adam(0.05), key=key(2), steps=60), 0.9),
    )
    add(
        "learned at, a batch",
        lambda: smi.learned_at(train(model, data, optax.adam(0.05), key=keys(3), steps=60)),
    )
    add(
        "learned at, state evolution",
        lambda: smi.learned_at(
            [evolve(model, a, key=key(1), **FEW) for a in (0.1, 0.2, 0.3, 0.4)], 0.5
        ),
    )
    add(
        "learned at, GAMP at several alpha",
        lambda: smi.learned_at(
            [gamp(model, data.first(n), key=key(2), max_steps=10) for n in (20, 60, 200)], 0.7
        ),
    )


@group
def baselines(add):
    """Ridge regression and nuclear norm."""
    b = lambda: smi.baselines
    add(
        "ridge",
        lambda: b().ridge_error(
            np.array([0.0, 0.5, 1.0, 2.0])[:, None], np.array([0.0, 0.1, 1.0]), 0.1
        ),
    )
    add(
        "ridge, noiseless",
        lambda: b().ridge_error(np.array([0.0, 0.5, 1.0, 2.0])[:, None], np.array([0.0, 0.1, 1.0])),
    )
    add(
        "nuclear norm threshold",
        lambda: jnp.stack(
            [
                b().nuclear_norm_threshold(x, r)
                for x in (0.5, 1.0, 3.0, np.inf)
                for r in (0.1, 0.4, 2.0)
            ]
        ),
    )
    add(
        "nuclear norm threshold, derivative",
        lambda: jax.grad(b().nuclear_norm_threshold, argnums=(0, 1))(2.0, 0.3),
    )
    model = smi.Bilinear(1.0, 0.2)
    add(
        "nuclear norm, exact",
        lambda: b().minimum_nuclear_norm(model, model.sample(key(1), dimension=10, alpha=0.9)),
    )
    add(
        "nuclear norm, too few",
        lambda: b().minimum_nuclear_norm(
            model, model.sample(key(1), dimension=10, alpha=0.4), max_steps=200
        ),
    )
    long = smi.Bilinear(2.0, 0.2)
    add(
        "nuclear norm, long, own data",
        lambda: (
            lambda d: b().minimum_nuclear_norm(
                long, smi.Dataset(d.inputs, d.labels), tolerance=1e-5
            )
        )(long.sample(key(1), dimension=8, alpha=0.8)),
    )

"""Online SGD: models, expansions, risk, flow, simulation, diagram."""

from __future__ import annotations

import adapters as old
import jax
import jax.numpy as jnp
import numpy as np
from adapters import dataset_parts, flow_parts, simulate, simulation_parts
from recording import group
from shared import key, keys

import jaxsmi as smi


def trace_problem(terms, norm="none", encoding="paired", **more):
    sgd = smi.sgd
    return smi.SequenceSingleIndex(
        sgd.HermiteSeries(terms), 2, sgd.Attention(trace_norm=norm), encoding, **more
    )


def network_problem(length=2, tied=True, **more):
    series = smi.sgd.HermiteSeries(
        {tuple(2 * (i == l) for i in range(length)): 1.0 for l in range(length)}, normalised=True
    )
    return smi.SequenceSingleIndex(
        series, length, smi.sgd.Network(jax.nn.relu, tied), loss_factor=1.0, **more
    )


HE2 = {(2, 0): 1.0, (0, 2): 1.0}
MIXED = {(0, 0): 4 / 3, (4, 0): 1.0, (0, 4): 2.0}


def sequence_models():
    sgd = smi.sgd
    left, right = np.array([1.0, 0.5]), np.array([0.2, -1.0])
    return {
        "trace, He2": trace_problem(HE2),
        "trace, He2, sqrtL, own encoding": trace_problem(HE2, "sqrtL", [[1.0, 0.2], [-0.5, 0.3]]),
        "trace, mixed": trace_problem(MIXED, encoding=None),
        "linear attention": smi.SequenceSingleIndex(sgd.HermiteSeries(HE2), 2, sgd.LinearAttention(), "orthonormal"),
        "bilinear reduction": smi.SequenceSingleIndex(lambda z: z[0] * z[1] + 0.1 * z[0] ** 3, 2, lambda z: left @ sgd.Attention("identity")(z) @ right, "paired"),
        "own student": smi.SequenceSingleIndex(lambda z: jnp.tanh(z[0] + z[1]), 2, lambda z: jnp.tanh(z[0]) + z[1], "paired"),
        "semantic/positional": sgd.semantic_positional(0.6, 0.9),
        "network, tied": network_problem(),
        "one token": smi.SequenceSingleIndex(sgd.HermiteSeries({(3,): 1.0}), 1, sgd.Network(lambda x: (x**2 - 1) / 2**0.5), loss_factor=1.0),
    }  # fmt: skip


@group
def sgd_models(add):
    """Sequence single-index models: data, targets, losses."""
    sgd = smi.sgd

    def one():
        found = {}
        for name, model in sequence_models().items():
            data = model.sample(key(1), dimension=12, samples=5)
            z = jnp.linspace(-1.0, 1.3, model.length)
            found[name] = {"data": dataset_parts(data), "target": model.target(z), "student": model.student(0.7 * z),
                           "loss": model.sample_loss(z, 0.7 * z), "encoding": model.encoding, "overlaps": 1 + model.encoding.shape[1] if model.tied else model.length}  # fmt: skip
        return found

    add("all", one)
    add(
        "float32, a teacher",
        lambda: dataset_parts(
            trace_problem(HE2).sample(
                key(1), dimension=9, samples=4, dtype=jnp.float32, teacher=jnp.ones((1, 9))
            )
        ),
    )
    add(
        "unsquared loss",
        lambda: sgd.semantic_positional(0.3, loss="frobenius").sample_loss(
            jnp.asarray([0.3, 1.0]), jnp.asarray([-0.2, 0.4])
        ),
    )
    add(
        "series",
        lambda: (
            lambda s: {
                "value": s(jnp.asarray([0.3, -1.2])),
                "squared": s.squared()(jnp.asarray([0.3, -1.2])),
                "orthonormal": s.orthonormal,
            }
        )(sgd.HermiteSeries(MIXED)),
    )


@group
def sgd_expansions(add):
    """Hermite coefficients, exponents, flatness, Taylor series."""
    sgd = smi.sgd
    softmax = lambda z: jax.nn.softmax(z[:, None] * z, axis=-1)[0, 0]
    add("coefficients, softmax", lambda: sgd.coefficients(softmax, 2, 5))
    add("coefficients, network, series, shift", lambda: {
        "network": sgd.coefficients(sgd.Network(jax.nn.relu), 2, 3), "series": sgd.coefficients(sgd.HermiteSeries(MIXED), 2, 4),
        "shift": sgd.coefficients(softmax, 2, 3, 0.5)})  # fmt: skip
    targets = {
        "product": (lambda z: z[0] * z[1], 2, {}), "He2": (sgd.HermiteSeries(HE2), 2, {}), "softmax": (softmax, 2, {"degree": 6}),
        "trace, student": (sgd.Attention(trace_norm="none"), 2, {"student": sgd.Attention(trace_norm="none")}),
        "constant": (lambda z: 0.0 * z[0] + 1.0, 1, {}), "three tokens": (lambda z: z[0] * z[1] * z[2], 3, {"degree": 4}),
        "six tokens, a series": (sgd.HermiteSeries({(1, 1, 0, 0, 0, 1): 1.0}), 6, {}),
        "five tokens, sampled": (lambda z: jnp.sum(z**2), 5, {"degree": 2, "key": key(1), "samples": 2**9}),
    }  # fmt: skip
    for name, (target, length, more) in targets.items():
        add(
            f"exponent, {name}",
            lambda t=target, L=length, more=more: old.exponent(t, L, **more),
        )
    for name in (
        "trace, He2",
        "trace, He2, sqrtL, own encoding",
        "trace, mixed",
        "semantic/positional",
    ):

        def one(name=name):
            model = sequence_models()[name]
            flat = sgd.flatness(model, 4)
            return {
                "flatness": flat._asdict(),
            }

        add(f"origin, {name}", one)


@group
def sgd_risk(add):
    """Population risk, its derivatives, and the noise of the gradient."""
    sgd = smi.sgd
    for name in (
        "trace, He2",
        "trace, He2, sqrtL, own encoding",
        "semantic/positional",
        "linear attention",
        "network, tied",
        "one token",
    ):

        def one(name=name):
            model = sequence_models()[name]
            e = 0.3 if model.encoding.shape[1] else 0.0
            found = {
                "inside": old.risk(model, 0.4, e),
                "origin": old.risk(model, 0.0),
                "edge": old.risk(model, 1.0),
            }
            return found | {"noise": old.gradient_noise(model, 0.4, e)}

        add(f"risk, {name}", one)
    for name in ("bilinear reduction", "own student"):
        add(f"risk, {name}", lambda name=name: old.risk(sequence_models()[name], 0.4, 0.2))
    add(
        "risk, derivative",
        lambda: jax.grad(
            lambda m, e, w: old.risk(sgd.semantic_positional(w, 0.9), m, e).value, argnums=(0, 1, 2)
        )(0.4, 0.3, 0.6),
    )
    add(
        "risk, three tokens",
        lambda: old.risk(smi.SequenceSingleIndex(lambda z: jnp.sum(z**2), 3), 0.3),
    )
    add(
        "risk, untied network",
        lambda: {
            "risk": old.risk(network_problem(3, False), np.array([0.1, 0.2, -0.3])),
            "noise": old.gradient_noise(network_problem(3, False), 0.2),
        },
    )
    sampled = lambda: smi.SequenceSingleIndex(lambda z: jnp.mean(z**2), 5, encoding="orthonormal")
    add(
        "risk, five tokens, sampled",
        lambda: {
            "risk": old.risk(sampled(), 0.3, 0.1, key=key(1), samples=2**9),
            "noise": old.gradient_noise(sampled(), 0.3, 0.1, key=key(1), samples=2**8),
        },
    )
    add(
        "risk, unsquared loss",
        lambda: old.risk(
            sgd.semantic_positional(0.4, loss="frobenius"), 0.3, 0.2, key=key(1), samples=2**10
        ),
    )
    add(
        "risk, kinked network, sampled",
        lambda: old.risk(
            smi.SequenceSingleIndex(lambda z: jnp.abs(z[0]) + z[1], 2, sgd.Network(jax.nn.relu)),
            0.3,
            key=key(1),
            samples=2**10,
        ),
    )
    add(
        "Hessian, semantic/positional",
        lambda: {
            "origin": old.hessian(sgd.semantic_positional(0.64)),
            "inside": old.hessian(sgd.semantic_positional(0.64), 0.3, 0.2),
        },
    )
    add(
        "Hessian, network",
        lambda: {
            "tied": old.hessian(network_problem(2), 0.2),
            "untied": old.hessian(network_problem(2, False), 0.2),
        },
    )
    add(
        "Hessian, sampled",
        lambda: old.hessian(
            sgd.semantic_positional(0.4, loss="frobenius"), 0.3, 0.2, key=key(1), samples=2**7
        ),
    )


@group
def sgd_flow(add):
    """Flow in the limit of many dimensions."""
    sgd = smi.sgd
    net, untied = network_problem(2), network_problem(2, False)
    times = [0.2, 0.5, 1.0, 2.0]
    add("network", lambda: flow_parts(old.flow(net, 0.05, times=times)))
    add("network, gamma", lambda: flow_parts(old.flow(net, 0.05, times=times, gamma=0.1)))
    add(
        "network, untied, gamma",
        lambda: flow_parts(old.flow(untied, [0.05, 0.1], times=times, gamma=0.1)),
    )
    add(
        "network, too few steps", lambda: flow_parts(old.flow(net, 0.05, times=[50.0], max_steps=4))
    )
    add("recovery time, network", lambda: {"0": old.recovery_time(net, 0.05), "0.1": old.recovery_time(net, 0.05, gamma=0.1, eta=0.3),
        "untied": old.recovery_time(untied, 0.05, gamma=0.05), "there": old.recovery_time(net, 0.7)})  # fmt: skip
    problem = lambda: sgd.semantic_positional(0.6, 1.0)
    add(
        "semantic/positional",
        lambda: flow_parts(old.flow(problem(), 0.05, 0.03, times=[2.0, 10.0, 30.0], rtol=1e-5)),
    )
    add(
        "recovery time, semantic/positional",
        lambda: old.recovery_time(problem(), 0.05, 0.03, rtol=1e-5),
    )
    add(
        "maximal rate",
        lambda: {
            "network": sgd.maximal_rate(net).value,
            "untied": sgd.maximal_rate(untied).value,
            "semantic": sgd.maximal_rate(problem()).value,
        },
    )
    add("sampled", lambda: flow_parts(old.flow(
        smi.SequenceSingleIndex(lambda z: jnp.abs(z[0]) + z[1], 2, sgd.Network(jax.nn.relu)), 0.3, times=[0.1, 0.3], key=key(1), samples=2**7, rtol=1e-4)))  # fmt: skip


@group
def sgd_simulation(add):
    """Runs of online SGD, and the gain of tying."""
    sgd = smi.sgd
    problem = lambda: sgd.semantic_positional(0.6)

    def runs():
        found = simulate(problem(), keys(4), dimension=100, gamma=1.0, steps=3000, until=0.8)
        return {
            "runs": simulation_parts(found),
            "semantic": np.abs(found[1].end[:, 0, 0]) > np.abs(found[1].end[:, 0, 1]),
        }

    add("semantic/positional", runs)
    add(
        "start, eta, every",
        lambda: simulation_parts(
            simulate(
                problem(),
                keys(3),
                dimension=50,
                gamma=2.0,
                steps=2000,
                m=0.4,
                e=0.1,
                eta=0.6,
                until=0.7,
                every=64,
            )
        ),
    )
    add(
        "one run, all steps",
        lambda: simulation_parts(
            simulate(problem(), key(3), dimension=60, gamma=0.5, steps=500, every=90)
        ),
    )
    add(
        "progress",
        lambda: simulation_parts(
            simulate(
                problem(), keys(2), dimension=100, gamma=1.0, steps=2000, until=0.8, progress=True
            )
        ),
    )
    add(
        "network, tied",
        lambda: simulation_parts(
            simulate(network_problem(2), keys(3), dimension=100, gamma=0.05, steps=1000, m=0.2)
        ),
    )
    add(
        "network, untied",
        lambda: simulation_parts(
            simulate(
                network_problem(2, False),
                keys(3),
                dimension=100,
                gamma=0.05,
                steps=1000,
                m=[0.2, 0.1],
                until=0.5,
            )
        ),
    )
    add(
        "unsquared loss",
        lambda: simulation_parts(
            simulate(
                sgd.semantic_positional(0.3, loss="frobenius"),
                keys(2),
                dimension=40,
                gamma=0.5,
                steps=500,
            )
        ),
    )
    add(
        "five tokens",
        lambda: simulation_parts(
            simulate(
                smi.SequenceSingleIndex(lambda z: jnp.mean(z**2), 5, encoding="orthonormal"),
                keys(2),
                dimension=40,
                gamma=0.5,
                steps=300,
            )
        ),
    )


@group
def sgd_diagram(add):
    """Semantic or positional: the script of the figure."""
    recipe = old.figure_script("sgd_phases")
    a = np.array([0.5, 0.75, 0.9, 1.0])
    add("boundaries", lambda: recipe.boundaries(a))
    add("transition", lambda: recipe.boundaries(a)["transition"])

    def diagram():
        widths, weights = np.array([0.8, 1.0]), np.array([0.4, 0.6, 0.7, 0.9])
        found = recipe.phase_diagram(widths, weights, angles=19, radii=6)
        hessian = np.array([[[H[1, 1], H[0, 0]] for H in row] for row in found.hessian])
        minima = {f"{i},{j}": m for i, row in enumerate(found.minima) for j, m in enumerate(row)}
        return {"label": found.label, "hessian": hessian, "boundaries": recipe.boundaries(widths), "minima": minima}  # fmt: skip

    add("phase diagram", diagram)

"""The free entropy against its exact value on a linear channel, and as the potential of state
evolution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsmi as smi

KEY = jax.random.key(0)


def test_linear_channel():
    """Exact: E log N(y; ω, V + Δ) = -½ - ½ log 2π(V + Δ), q̂ = α/(V + Δ), Φ_w = ½ q̂ - ½ log(1 +
    q̂)."""
    alpha, noise, q = 1.7, 0.3, 0.4
    found = smi.free_entropy(smi.links.linear(noise), alpha, q, key=KEY)
    v = 1 - q + noise
    qhat = alpha / v
    exact = (
        -0.5 * q * qhat
        + 0.5 * qhat
        - 0.5 * np.log1p(qhat)
        - alpha * (0.5 + 0.5 * np.log(2 * np.pi * v))
    )
    assert abs(float(found.value) - exact) < 4 * float(found.stderr) + 1e-9
    assert float(found.stderr) < 5e-3


MODELS = {
    "linear": (smi.links.linear(0.3), 1.7),
    "phase retrieval": (smi.links.phase_retrieval(), 0.9),
    "perceptron, Rademacher": (smi.links.sign(smi.priors.Rademacher()), 1.0),
    "two indices": (smi.links.sign_product(2), 3.2),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n != "linear")) for n in MODELS]
)
def test_its_gradient_is_the_residual_of_state_evolution(name):
    """dΦ = ½ tr[(F(Q̂) - Q) dQ̂] with dQ̂ by differences, away from the fixed point: sampled to the
    error that Φ reports."""
    model, alpha = MODELS[name]
    P, h, samples = model.indices, 0.05, 2**13
    S = np.eye(P)
    Q = 0.5 * S

    def of(Q):
        return smi.free_entropy(model, alpha, Q, key=KEY, averages=smi.Averages(samples))

    def qhat(Q):
        each = model.channel.response(
            jnp.asarray(Q), jnp.asarray(S - Q), key=KEY, points=samples // 8, nets=8
        )
        return alpha * np.asarray(each.mean)

    step = h * np.eye(P)
    # ∫ dΦ over [Q - h, Q + h] by Simpson's rule in Q̂
    nodes = [Q - step, Q - step / 2, Q, Q + step / 2, Q + step]
    fields = [qhat(x) for x in nodes]
    pulls = [
        0.5 * np.asarray(model.prior.overlap(jnp.asarray(f)) - x)
        for f, x in zip(fields, nodes, strict=True)
    ]
    change = sum(
        np.sum(0.5 * (p + r) * (b - a))
        for a, b, p, r in zip(fields, fields[1:], pulls, pulls[1:], strict=False)
    )
    up, down = of(nodes[-1]), of(nodes[0])
    error = np.hypot(float(up.stderr), float(down.stderr))  # generous: they share all points
    assert abs(float(up.value - down.value) - change) < 3 * error + 1e-3 * abs(change)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n != "linear")) for n in MODELS]
)
def test_it_is_stationary_at_the_fixed_point(name):
    """Second order around the fixed point: the change over ±h falls like h², and Φ there is a local
    extremum."""
    model, alpha = MODELS[name]
    solution = smi.state_evolution(model, alpha, key=KEY, start=0.3, averages=smi.Averages(2**12))
    Q = np.asarray(solution.overlap)
    value = [
        float(
            smi.free_entropy(
                model, alpha, Q + s * np.eye(len(Q)), key=KEY, averages=smi.Averages(2**15)
            ).value
        )
        for s in (-0.02, 0, 0.02)
    ]
    slope = (value[2] - value[0]) / 0.04
    # ½ tr(residual dQ̂/dQ), the residual being the statistical error of Q: 0.01 × order one
    assert abs(slope) < 0.05


def test_bad_input():
    model = smi.links.phase_retrieval()
    for kwargs, name in (
        ({"alpha": 0.0, "overlap": 0.1}, "alpha"),
        ({"alpha": 1.0, "overlap": 1.0}, "overlap"),
    ):
        with pytest.raises(ValueError, match=name):
            smi.free_entropy(model, **kwargs, key=KEY)
    with pytest.raises(ValueError, match="overlap"):
        smi.free_entropy(model, 1.0, np.eye(2), key=KEY)
    assert np.isnan(jax.jit(lambda q: smi.free_entropy(model, 1.0, q, key=KEY).value)(2.0))

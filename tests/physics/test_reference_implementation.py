"""The plain implementation of the benchmarks (benchmarks/plain.py), against stored values, closed
forms and our channels."""

import importlib
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsmi as smi
from helpers import respond

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
plain = importlib.import_module("plain")

METHODS = {
    "grid": (plain.by_grid, 192),
    "cubature": (plain.by_cubature, 1e-6),
    "dblquad": (plain.by_dblquad, 1e-4),
}


def relative(found, true):
    return np.abs(found - true).max() / (1 + np.abs(true).max())


@pytest.mark.parametrize("method", METHODS)
def test_two_layers_against_the_reference_file(reference, method):
    """Tolerance: the mass outside the box, 2e-9, times the largest posterior moment; adaptive rules
    keep what they were asked."""
    run, setting = METHODS[method]
    rows = json.loads((reference / "denoiser_2layer.json").read_text())["rows"]
    for number in {"grid": (3, 6, 13), "cubature": (0, 5, 6), "dblquad": (5,)}[method]:
        row = rows[number]
        omega, V = np.array(row["omega"]), np.array(row["V"])
        found = run(plain.read_label(np.array(row["y"])), omega, V, row["c"], setting)
        assert relative(found, np.array(row["g"])) <= (1e-4 if method == "dblquad" else 1e-7)


def test_labels_are_read_and_drawn_by_one_law():
    """u from y = σ(u uᵀ), up to its sign; at Q = I, V = 0, u is that of the fields ω: A w_2."""
    u = np.array([-0.7, 1.3])
    y = np.exp(np.outer(u, u))
    found = plain.read_label(y / y.sum(1, keepdims=True))
    # rounding of two logarithms
    np.testing.assert_allclose(found * np.sign(found[1] * u[1]), u, rtol=1e-12)
    u, omega = plain.draw(np.random.default_rng(0), (1 - 1e-14) * np.eye(2), 1.0, 5)
    for label, (x, w) in zip(u, omega, strict=True):
        scores = np.exp(np.outer(x, x))
        A = np.eye(2) + scores / scores.sum(1, keepdims=True)
        # √V = 1e-7, times the size of the fields and their squares
        np.testing.assert_allclose(label, A @ w, atol=1e-5)


def test_products_of_signs_by_two_routes():
    V = np.array([[0.6, 0.2], [0.2, 0.5]])
    omega = np.array([[0.3, -1.2], [-0.8, 0.4], [2.0, 1.0]])
    y = np.array([1.0, -1.0, -1.0])
    closed = plain.sign_product_closed(y, omega, V)
    for n in range(3):
        found = plain.sign_product_by_quad(y[n], omega[n], V, 1e-10)
        np.testing.assert_allclose(found, closed[n], rtol=1e-8)  # 8 deviations


def test_phase_retrieval_is_our_channel():
    y, omega = np.array([0.3, 1.7]), np.array([-0.6, 1.1])
    channel = smi.links.phase_retrieval().channel
    slope = jax.jit(jax.grad(channel.log_partition, argnums=1))
    found = [slope(y[n], jnp.full((1, 1), omega[n]), 0.4 * jnp.eye(1))[0, 0] for n in range(2)]
    np.testing.assert_allclose(plain.phase_retrieval(y, omega, 0.4), found, rtol=1e-13)  # rounding


def test_extensive_rank_against_stored_values():
    """V(q̂) with one band and with two, and V at α = 0.1, to the digits given
    [theory: random-matrices, section 5; attention-indexed, section 11]."""
    assert abs(plain.mmse(0.5, 1.0, 1e-6) - 0.3969486359) < 1e-8
    assert abs(plain.mmse(0.05, 1.0, 1e-6) - 0.0947203748) < 1e-8
    assert abs(plain.softmax_error(0.5, 0.1, 1e-4) - 0.39219602) < 2e-4


@pytest.mark.slow
def test_two_layers_are_our_channel():
    """Labels drawn by plain, nearly recovered: g agrees within the tolerance of ours; the mean over
    labels with its response."""
    model, V = smi.DeepAttention(2, 2, 0.5), np.diag([0.5, 0.02])
    u, omega = plain.draw(np.random.default_rng(1), np.eye(2) - V, 0.5, 2048)
    found = respond(model.channel, *map(jnp.asarray, (u, omega, V)))
    g = np.array([plain.by_grid(u[n], omega[n], V, 0.5, 160) for n in range(64)])
    for n in range(64):
        assert relative(np.asarray(found.g)[n], g[n]) <= float(model.channel.tolerance)
    # E g gᵀ = -E ∂g, sample by sample a difference of mean zero
    gap = np.einsum("npm,npm->np", found.g, found.g) + np.einsum("npmpm->np", found.dg)
    assert np.all(np.abs(gap.mean(0)) < 4 * gap.std(0) / np.sqrt(len(gap)))

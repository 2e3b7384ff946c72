"""Symmetries of models: they are found by looking, change no label and no cosine, and `align`
undoes them; against all elements of the groups, drawn by their definitions."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

import jaxsmi as smi
from helpers import slow_but
from jaxsmi.models.symmetry import SYMMETRIES, Exchange, best_order

WORDS = [word for word in SYMMETRIES if word not in ("rotation", "query and key")]


def free(indices, symmetry):
    """A model with such symmetries."""
    return smi.MultiIndex(lambda z: jnp.sum(z**2), indices=indices, symmetry=symmetry)


def signed_orders(kind, n):
    """All matrices of a group of orders and signs."""
    orders = itertools.permutations(range(n)) if "permutation" in kind else [range(n)]
    for order in orders:
        for signs in itertools.product((1.0, -1.0), repeat=n):
            fixed = kind in ("none", "permutation") and min(signs) < 0
            joint = kind == "joint sign" and len(set(signs)) > 1
            odd = "even" in kind and np.prod(signs) < 0
            moved = "first in place" in kind and order[0] != 0
            if not (fixed or joint or odd or moved):
                yield np.eye(n)[list(order)] * signs


def element(symmetry, rng):
    """One matrix of a group, at random."""
    n = len(symmetry.indices)
    if isinstance(symmetry, Exchange):
        size = n // len(symmetry.blocks)
        turn = np.zeros((n, n))
        for k, j in enumerate(rng.permutation(len(symmetry.blocks))):
            inner = element(symmetry.blocks[k], rng)
            turn[k * size : (k + 1) * size, j * size : (j + 1) * size] = inner
        return turn
    if symmetry.kind == "rotation":
        return np.linalg.qr(rng.standard_normal((n, n)))[0]
    if symmetry.kind == "query and key":
        A = rng.standard_normal((n // 2, n // 2)) + 2 * np.eye(n // 2)
        A = np.sign(A) if n == 2 else A  # of rank one, cosines are blind to a scale of q against k
        return np.block([[A, np.zeros_like(A)], [np.zeros_like(A), np.linalg.inv(A).T]])
    return rng.permutation(list(signed_orders(symmetry.kind, n)))[0]


QUICK = {
    "linear": smi.links.linear(0.0, tokens=3),
    "sign": smi.links.sign(),
    "modulus": smi.links.phase_retrieval(),
    "product": smi.links.product(3),
    "sign product": smi.links.sign_product(2),
    "staircase": smi.links.square_plus_sign_parity(),
    "two layers": smi.DeepAttention(2, 2, ranks=(2, 1)),
    "heads of rank two": smi.DeepAttention(1, 2, ranks=2, heads=2),
}
ZOO = QUICK | {
    "rank above one": smi.DeepAttention(2, 3, ranks=(2, 3)),
    "two heads inside": smi.DeepAttention(2, 3, 1.0, heads=(2, 1)),
    "untied": smi.DeepAttention(1, 3, tied=False, beta=2.0),
    "untied inside": smi.DeepAttention(2, 2, 1.5, tied=(False, True)),
    "three untied heads": smi.DeepAttention(2, 3, 0.5, ranks=2, heads=3, tied=False),
    "hardmax": smi.DeepAttention(2, 4, heads=(1, 2), tied=(False, True), activation="hardmax"),
}


@pytest.mark.parametrize("name", slow_but(ZOO, "sign"))
def test_symmetries_change_no_label_no_cosine_and_are_undone(name):
    model, rng = ZOO[name], np.random.default_rng(4)
    T = np.eye(model.indices)
    for part in model.symmetry:
        T[np.ix_(part.indices, part.indices)] = element(part, rng)
    link = jax.jit(jax.vmap(model.link))
    z = rng.standard_normal((6, model.indices, model.tokens))
    np.testing.assert_allclose(link(np.einsum("pq,nqm->npm", T, z)), link(z), atol=1e-10)
    teacher = rng.standard_normal((model.indices, 300))
    estimate = teacher + 0.3 * rng.standard_normal(teacher.shape)
    cosines = lambda W: model.metric.overlaps(jnp.asarray(W), jnp.asarray(teacher))["cosine"]
    np.testing.assert_allclose(
        np.sort(cosines(T @ estimate)), np.sort(cosines(estimate)), atol=1e-9
    )
    np.testing.assert_allclose(cosines(T @ teacher), 1.0, atol=1e-9)
    assert np.all(cosines(0.0 * teacher) == 0.0)
    # w·(w + 0.3 n)/(|w||w + 0.3 n|), up to 1/√300; principal angles are somewhat larger
    np.testing.assert_allclose(cosines(estimate), 1 / np.sqrt(1.09), atol=0.05)
    np.testing.assert_allclose(smi.align(T @ teacher, teacher, model), teacher, atol=1e-8)
    aligned = np.asarray(smi.align(T @ estimate, teacher, model))
    x = jnp.asarray(rng.standard_normal((4, model.tokens, 300)))
    np.testing.assert_allclose(model.predict(aligned, x), model.predict(estimate, x), atol=1e-9)
    assert np.linalg.norm(aligned - teacher) < 0.6 * np.linalg.norm(teacher)
    if not model.symmetry:  # the opposite predicts other labels, and must be seen to
        np.testing.assert_array_equal(smi.align(-teacher, teacher, model), -teacher)


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("n", slow_but([2, 4], 4))
def test_align_is_the_closest_of_all_signed_permutations(word, n):
    """And the cosines are the largest that the group allows, by trying every element."""
    model = free(n, [(tuple(range(n)), word)])
    (symmetry,) = model.symmetry
    rng = np.random.default_rng(n)
    group = np.array(list(signed_orders(word, n)))
    for _ in range(20):
        estimate, teacher = rng.standard_normal((2, n, 6))
        aligned = smi.align(estimate, teacher, model)
        least = np.linalg.norm(group @ estimate - teacher, axis=(1, 2)).min()
        assert np.linalg.norm(aligned - teacher) == pytest.approx(least, rel=1e-12)
        unit = [W / np.linalg.norm(W, axis=1)[:, None] for W in (estimate, teacher)]
        most = np.sum((group @ unit[0]) * unit[1], axis=(1, 2)).max()
        overlaps = (estimate @ teacher.T, estimate @ estimate.T, teacher @ teacher.T)
        cosines = symmetry.cosines(*(jnp.asarray(x) for x in overlaps))
        assert float(jnp.sum(cosines)) == pytest.approx(most, rel=1e-12, abs=1e-12)


def test_a_row_of_zeros_takes_the_odd_flip():
    model = free(3, [((0, 1, 2), "even signed permutation")])
    aligned = smi.align(np.diag([-1.0, 1.0, 0.0]), np.eye(3), model)
    np.testing.assert_array_equal(aligned, np.diag([1.0, 1.0, 0.0]))


def test_heads_are_exchanged_by_their_distance():
    """By the distance to the teacher, where a short head has the larger cosines."""
    heads = free(4, [(((0, 1), (2, 3)), "rotation")])
    kept = free(4, [((0, 1), "rotation"), ((2, 3), "rotation")])
    align = jax.jit(lambda W, teacher: smi.align(W, teacher, heads))
    rng = np.random.default_rng(5)
    for _ in range(20):
        estimate, teacher = rng.standard_normal((2, 4, 6)) * rng.uniform(0.1, 3.0, (2, 4, 1))
        both = [smi.align(W, teacher, kept) for W in (estimate, estimate[[2, 3, 0, 1]])]
        least = min(np.linalg.norm(W - teacher) for W in both)
        assert np.linalg.norm(align(estimate, teacher) - teacher) == pytest.approx(least, rel=1e-9)


@pytest.mark.slow
def test_the_best_order_is_exact_for_any_number_of_rows():
    rng = np.random.default_rng(3)
    for count in (1, 3, 6, 7, 12):
        table = rng.standard_normal((count, count))
        rows, columns = linear_sum_assignment(-table)
        np.testing.assert_array_equal(best_order(jnp.asarray(table)), columns[np.argsort(rows)])


@pytest.mark.parametrize(
    ("link", "indices", "kinds"),
    [
        (lambda z: z[0, 0] ** 2, 1, ["sign"]),
        (lambda z: z[0, 0] ** 3, 1, []),
        (lambda z: jnp.sum(jax.scipy.special.erf(z)), 2, ["permutation"]),
        (lambda z: z[0] * jnp.tanh(z[1]), 2, ["joint sign"]),
        (lambda z: z[0, 0] ** 2 + z[1, 0] ** 4, 2, ["sign"]),
        (lambda z: jnp.sum(z**2), 2, ["rotation"]),
        (lambda z: jnp.sum(jnp.cos(z)), 2, ["signed permutation"]),
        (jnp.prod, 3, ["even signed permutation"]),
        (lambda z: z[0, 0] ** 2 + z[1, 0] * z[2, 0] ** 3, 3, ["sign", "joint sign"]),
        (lambda z: z[0, 0] / 0.0, 1, []),
    ],
)
def test_symmetries_are_found_by_looking(link, indices, kinds):
    model = smi.MultiIndex(link, indices=indices)
    assert [part.kind for part in model.symmetry] == kinds
    assert smi.MultiIndex(link, indices=indices, symmetry=()).symmetry == ()


def test_a_link_of_a_traced_number_has_no_symmetry():
    made = jax.jit(lambda s: smi.MultiIndex(lambda z: s * z[0, 0] ** 2, indices=1).symmetry == ())
    assert bool(made(1.0))

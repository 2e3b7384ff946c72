"""What brings an estimate onto a teacher: against all elements of the group, tried one by one."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import jaxsmi as smi


def free(indices, symmetry):
    """A model with such symmetries."""
    return smi.MultiIndex(lambda z: jnp.sum(z**2), indices=indices, symmetry=symmetry)


def group_elements(symmetry, n):
    """All signed permutations of n rows that a finite group allows, as matrices."""
    even = symmetry.kind.startswith("even")
    first = int(symmetry.kind.endswith("the first in place"))
    for rest in itertools.permutations(range(first, n)):
        for signs in itertools.product((1.0, -1.0), repeat=n):
            if not even or np.prod(signs) > 0:
                turn = np.zeros((n, n))
                turn[(*range(first), *rest), range(n)] = signs
                yield turn


@pytest.mark.parametrize(
    "word",
    [
        "signed permutation",
        "even signed permutation",
        "even signed permutation, the first in place",
    ],
)
@pytest.mark.parametrize("n", [2, 3, 4])
def test_align_is_the_closest_of_all_signed_permutations(word, n):
    """And the cosines are the largest that the group allows, by trying every element."""
    model = free(n, [(tuple(range(n)), word)])
    (symmetry,) = model.symmetry
    rng = np.random.default_rng(n)
    for _ in range(20):
        estimate, teacher = rng.standard_normal((2, n, 6))
        aligned = smi.align(estimate, teacher, model)
        least = min(
            np.linalg.norm(turn @ estimate - teacher) for turn in group_elements(symmetry, n)
        )
        assert np.linalg.norm(aligned - teacher) == pytest.approx(least, rel=1e-12)
        unit = [W / np.linalg.norm(W, axis=1)[:, None] for W in (estimate, teacher)]
        most = max(np.sum((turn @ unit[0]) * unit[1]) for turn in group_elements(symmetry, n))
        overlaps = (estimate @ teacher.T, estimate @ estimate.T, teacher @ teacher.T)
        cosines = symmetry.cosines(*(jnp.asarray(x) for x in overlaps))
        assert float(jnp.sum(cosines)) == pytest.approx(most, rel=1e-12, abs=1e-12)


def test_the_order_of_an_even_group_counts_its_flips():
    """The best order for any signs takes an odd flip here: distance 2.00 in place of 1.13."""
    W = np.array([[1.5, 1.4], [1.4, -1.5]])
    W *= np.sqrt(2.0) / np.linalg.norm(W)
    aligned = smi.align(W, np.eye(2), smi.links.product(2))
    assert np.linalg.norm(aligned - np.eye(2)) == pytest.approx(1.127, abs=1e-3)


def test_a_row_of_zeros_takes_the_odd_flip():
    teacher = np.eye(3)
    turned = np.diag([-1.0, 1.0, 0.0])
    np.testing.assert_array_equal(
        smi.align(turned, teacher, free(3, [((0, 1, 2), "even signed permutation")])),
        np.diag([1.0, 1.0, 0.0]),
    )


def test_heads_are_exchanged_by_their_distance():
    """By the distance to the teacher, where a short head has the larger cosines."""
    model = free(4, [(((0, 1), (2, 3)), "rotation")])
    rng = np.random.default_rng(5)
    for _ in range(20):
        estimate, teacher = rng.standard_normal((2, 4, 6)) * rng.uniform(0.1, 3.0, (2, 4, 1))
        aligned = smi.align(estimate, teacher, model)
        kept = free(4, [((0, 1), "rotation"), ((2, 3), "rotation")])
        both = [
            np.linalg.norm(smi.align(each, teacher, kept) - teacher)
            for each in (estimate, estimate[[2, 3, 0, 1]])
        ]
        assert np.linalg.norm(aligned - teacher) == pytest.approx(min(both), rel=1e-9)

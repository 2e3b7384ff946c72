r"""A teacher and its student as online SGD sees them: fields of a few rows, and a sample's loss.

Equations here [theory: online-sgd, Eqs. (50) to (52)], fixed rows T = [W*; U] (k, D) of the teacher
and of the directions of the inputs, student rows W (P, D), tokens x_t:

    h_t = T x_t/√D (k,),   z_t = W x_t/√D (P,),   ℓ(z*, z),   z* = the first P* rows of h
    S_pt = ∂ℓ/∂z_pt

A student may have several groups of rows, each of which sees tokens of its own (an untied network:
one row for each token); rows of different groups never meet.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import TYPE_CHECKING

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

if TYPE_CHECKING:  # it imports this module
    from jaxsmi.models.sequence_single_index import SequenceLoss


def squared_loss(prediction: Array, label: Array) -> Array:
    """ℓ = ‖ŷ - y‖² of one sample (Frobenius)."""
    return jnp.sum((prediction - label) ** 2)


class TeacherStudent(eqx.Module):
    """Who makes labels and who learns from them (module docstring).

    Attributes:
        sample_loss: ℓ from z* (P*, tokens of a sample), z (P, tokens) and the label's noise.
        agreement: What a student has in common with the teacher, from M (P, k), Q (P, P) and the
            Gram matrix of the fixed rows (k, k): the numbers that `level` and `until` watch.
        draw_gram: Gram matrix W* W*ᵀ/D (P*, P*) of a drawn teacher, from a key and D.
        encoding: E (tokens of a sample, k - P*), of the directions of the inputs.
        gram: Expected Gram matrix of the fixed rows (k, k).
        targets: P*, rows of the teacher.
        rows: P, rows of the student in a group.
        groups: How many groups of rows there are.
        tokens: Tokens that a group sees.
        noise_size: Standard normals in the label of a sample.
        sized: Whether `draw_gram` must know D as an integer.
        spherical: Whether rows stay on the sphere, the losses of a batch are added up, and the
            overlaps of a student are written as one vector (m, e_1..e_K).
        tied: Whether every row sees all tokens. (One of an untied network of one token does, too.)
        squared: Of one direction on the sphere with the loss c ‖g(z*) - F(z)‖²: g, F and c, whose
            averages need no sampling. None: another loss.
    """

    sample_loss: Callable[[Array, Array, Array], Array]
    agreement: Callable[[Array, Array, Array], Array]
    draw_gram: Callable[[PRNGKeyArray, int | Array], Array]
    encoding: Array
    gram: Array
    targets: int = eqx.field(static=True)
    rows: int = eqx.field(static=True)
    groups: int = eqx.field(static=True)
    tokens: int = eqx.field(static=True)
    noise_size: int = eqx.field(static=True)
    # only Wishart matrices are drawn at a D that is traced
    sized: bool = eqx.field(static=True, default=False)
    spherical: bool = eqx.field(static=True, default=False)
    # not groups == 1: an untied network of one token has one group, too
    tied: bool = eqx.field(static=True, default=True)
    squared: SequenceLoss | None = None

    @property
    def fixed(self) -> int:
        """k, rows that stay: the teacher's and the directions of the inputs."""
        return len(self.gram)

    @property
    def directions(self) -> int:
        """Directions of the inputs."""
        return self.fixed - self.targets


class AbstractTeacher(eqx.Module):
    """A model whose labels a student of few rows can learn by online SGD."""

    @abc.abstractmethod
    def teacher_student(
        self,
        student: AbstractTeacher | None = None,
        loss: Callable[[Array, Array], Array] | None = None,
    ) -> TeacherStudent:
        """The model beside a student of as many tokens (default: the model itself), under a loss
        of (prediction, label) (default: that of the model, else ‖ŷ - y‖²)."""

    @abc.abstractmethod
    def link_of_fields(self) -> tuple[Callable[[Array], Array], int, int]:
        """Labels without Gaussian noise, or the probabilities of their few outcomes, as a function
        of the fields (P·M,); P and M."""

r"""Online SGD of the factors of a matrix of extensive rank, of attention S_1 = Wᵀ W/√(r_1 d).

Equations here [theory: online-sgd, Eqs. (77) to (81)]: a teacher S_2 of spectrum μ_2 (s, averages
⟨·⟩), overlaps q_kl = Tr S_k S_l/d, risk Φ(q) of one fresh sample, factors W (r_1, d) of entries
ν N(0, 1) at the start, n steps of rate η on the mean loss of B samples, κ = η/B, α = nB/d², t = κα:

    g_11 = ∂Φ/∂q_11,  g_12 = ½ ∂Φ/∂q_12:   A_T = 2 (g_11 q_12 + g_12 q_22),
                                            A_Z = 2 (g_11 q_11 + g_12 q_12)
    dW/dt = -f W (g_11 S_1 + g_12 S_2),   f = 4/√ρ_1          (κ → 0)
    S_1(t) = [K^{1/2} S_1(0)^{-1} K^{1/2} + P]^{-1},   K(s) = e^{2Bs},   dB/dt = f g_12,
    dP(s)/dt = 2 f (g_11 + g_12 s P)

S_1(0), a Wishart matrix, is free from S_2, so that every moment follows from one number m,

    m + c ⟨m P/(K + m P)⟩ = c ρ_1,   c = ν²/√ρ_1
    q_12 = ⟨s m/(K + m P)⟩,   q_11 = m² ⟨(K + mP)^{-2}⟩ + c m ⟨K/(K + mP)²⟩²/(1 + c ⟨K P/(K + mP)²⟩)

K and P stay finite where S_1 converges, K → 0 and P → -g_11/(g_12 s), and 1/K and P/K do not.

A matrix that is trained itself, S_1 ← S_1 - η ∇, is one row of d²/2 numbers: dq_12/dt = -A_T,
dq_11/dt = -2 A_Z + (κ/2) N_s is the flow of gradient_flow.py.

Letters here: B(t) the exponent of K, A_T, A_Z, N_s the averages of sample_averages.py.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxsmi.core import validate
from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.validate import POSITIVE, check
from jaxsmi.models.teacher_student import MatrixPair, TeacherStudent
from jaxsmi.numerics.roots import differentiable_root
from jaxsmi.sgd.problem import Initial, Overlaps
from jaxsmi.sgd.sample_averages import AbstractAverages, AbstractMotion

FACTOR_RATE = (
    "0, for the factors of a matrix: at κ > 0 the noise of SGD couples all moments of S_1 "
    "(allowed for the matrix itself, from overlaps (M, Q))"
)
# K below e^-600 is zero in ⟨·⟩, and 1/K above e^600 would overflow
_MAX_EXPONENT = 600.0
# (q_11 - q_12²/q_22)/q_22, the part of a student that is not the teacher's: below it g_11, a
# quotient of two such numbers, is rounding
_MIN_REST = 1e-9


class FactorState(NamedTuple):
    """B, and P (n,) at the nodes of the spectrum."""

    exponent: Array
    precision: Array


class FactorMotion(AbstractMotion):
    """Factors from a Gaussian start: B and P move, overlaps follow (module docstring).

    Attributes:
        start: B and P at t = 0.
        matrix: Spectrum of S_2, and ρ_1.
        norm: q_22.
        size: c = ν²/√ρ_1.
    """

    start: FactorState
    matrix: MatrixPair
    norm: Array
    size: Array

    def overlaps(self, state: FactorState) -> Overlaps:
        """q_12 (1, 1) and q_11 (1, 1) (module docstring)."""
        P, c = state.precision, self.size
        exponent = 2.0 * state.exponent * self.matrix.eigenvalues
        K = jnp.exp(jnp.clip(exponent, -_MAX_EXPONENT, _MAX_EXPONENT))
        mean = lambda values: jnp.sum(self.matrix.weights * values)

        def excess(log_m: Array) -> Array:
            m = jnp.exp(log_m)
            return m / c + mean(m * P / (K + m * P)) - self.matrix.width

        # m is largest at P = 0; ⟨mP/(K + mP)⟩ <= m ⟨P/K⟩
        top = jnp.log(c * self.matrix.width)
        low = top - jnp.log1p(c * mean(jnp.abs(P) / K)) - 1.0
        m = jnp.exp(differentiable_root(excess, *map(lax.stop_gradient, (low, top + 1.0))))
        rest = K + m * P
        spread = mean(K / rest**2)
        moved = c * m * spread**2 / (1.0 + c * mean(K * P / rest**2))
        q12 = m * mean(self.matrix.eigenvalues / rest)
        q11 = m**2 * mean(rest**-2.0) + moved
        return Overlaps(q12.reshape(1, 1), q11.reshape(1, 1))

    def velocity(self, averages: AbstractAverages, state: FactorState) -> FactorState:
        M, Q = self.overlaps(state)
        # both parts of g_11 vanish where the student is the teacher
        rest = jnp.maximum(Q - M**2 / self.norm, _MIN_REST * self.norm)
        moments = averages.at(M, M**2 / self.norm + rest, noise=False)
        A_T, A_Z = moments.teacher_gradient, moments.student_gradient
        g11 = 0.5 * ((A_Z - M / self.norm * A_T) / rest)[0, 0]
        g12 = ((0.5 * A_T - g11 * M) / self.norm)[0, 0]
        factor = 4.0 / jnp.sqrt(self.matrix.width)
        pull = g11 + g12 * self.matrix.eigenvalues * state.precision
        return FactorState(factor * g12, 2.0 * factor * pull)


def matrix_start(
    pair: TeacherStudent, initial: Initial
) -> tuple[TeacherStudent, Initial, FactorMotion | None]:
    """Validate the start of a matrix: the pair with the teacher's spectrum, the start as overlaps,
    and the motion of factors, None for that of overlaps."""
    assert pair.matrix is not None
    matrix, student = pair.matrix, initial.student
    gram = pair.gram
    if initial.teacher is not None:
        allowed = "eigenvalues (n,) of the teacher's matrix, or None: those of the model"
        nodes = validate.array("teacher", initial.teacher, allowed, shape=(None,))
        check(jnp.any(nodes != 0.0), "teacher", nodes, "eigenvalues that are not all zero")
        matrix = MatrixPair(nodes, jnp.full(len(nodes), 1.0 / len(nodes)), matrix.width)
        gram = jnp.mean(nodes**2).reshape(1, 1)
        pair = dataclasses.replace(pair, gram=gram, matrix=matrix)
    if isinstance(student, (tuple, list)):
        return pair, Initial(student, gram), None
    allowed = "a scale ν > 0 of factors, or overlaps (M, Q) of a matrix that is trained itself"
    kind = dataclasses.replace(POSITIVE, allowed=allowed)
    scale = validate.number("start", 1.0 if student is None else student, kind)
    size = jnp.asarray(scale**2 / jnp.sqrt(matrix.width), theory_dtype())
    zeros = jnp.zeros_like(matrix.eigenvalues)
    motion = FactorMotion(FactorState(jnp.sum(zeros), zeros), matrix, gram[0, 0], size)
    return pair, Initial(tuple(motion.overlaps(motion.start)), gram), motion

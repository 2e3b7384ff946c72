"""The one loop: counting, history, stopping, several runs, and the recovery ray."""

import itertools

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsmi as smi
from jaxsmi import Result
from jaxsmi.core.driver import AbstractSolver, advance, new_run, run_solver
from jaxsmi.core.results import RUNNING, choose
from jaxsmi.numerics.fixed_point import GeometricDecay


class Halving(AbstractSolver):
    """x ← x/2 of one number or several, until each is below a level."""

    start: jax.Array
    level: float
    budget: int = eqx.field(static=True)

    def init(self):
        return self.start

    def step(self, state, count):
        return jnp.where(state < self.level, state, 0.5 * state)

    def observe(self, state, count):
        return {"step": count.astype(float), "value": state}

    def terminate(self, state, count):
        return choose(
            (jnp.broadcast_to(count >= self.budget, state.shape), Result.MAX_STEPS),
            (state < self.level, Result.SUCCESS),
        )


def test_history_has_the_start_and_every_record_and_nothing_after_the_end():
    solver = Halving(jnp.asarray(1.0), 0.1, 20)
    run = run_solver(solver, new_run(solver, 10), 20, every=2)
    assert int(run.step) == 4  # 1/16 is the first below 0.1
    assert int(run.result) == Result.SUCCESS
    np.testing.assert_array_equal(run.history["step"][:4], [0.0, 2.0, 4.0, np.nan])
    np.testing.assert_array_equal(run.history["value"][:3], [1.0, 0.25, 0.0625])


def test_the_first_steps_and_the_next_are_one_program():
    """A run begins with the types that it goes on with, weak ones included: nothing is compiled
    again between two looks at it."""
    solver = Halving(jnp.asarray(1.0), 0.1, 20)
    start = jax.jit(new_run, static_argnums=1)(solver, 3)
    after = jax.jit(advance)(solver, start, jnp.asarray(2))
    assert jax.tree.map(jax.typeof, start) == jax.tree.map(jax.typeof, after)


def test_the_budget_ends_a_run_with_its_code():
    solver = Halving(jnp.asarray(1.0), 0.0, 5)
    run = run_solver(solver, new_run(solver, 5), 5)
    assert int(run.step) == 5
    assert int(run.result) == Result.MAX_STEPS
    stopped = run_solver(solver, new_run(solver, 5), 3)
    assert int(stopped.result) == RUNNING


def test_a_run_with_a_progress_bar_is_the_same_run(capsys):
    solver = Halving(jnp.asarray(1.0), 1e-3, 50)
    silent = run_solver(solver, new_run(solver, 50), 50)
    shown = run_solver(solver, new_run(solver, 50), 50, label="halving")
    chex.assert_trees_all_equal(silent, shown)
    captured = capsys.readouterr()
    assert "halving" in captured.err
    assert not captured.out


def test_several_runs_go_on_until_the_last_has_ended():
    solver = Halving(jnp.asarray([1.0, 4.0]), 0.1, 20)
    run = run_solver(solver, new_run(solver, 20), 20)
    np.testing.assert_array_equal(run.result, [Result.SUCCESS, Result.SUCCESS])
    assert int(run.step) == 6  # 4/64 is the first below 0.1
    np.testing.assert_array_equal(run.state, [1 / 16, 4 / 64])


def test_the_loop_is_jitted_vmapped_and_differentiated():
    def end(x):
        solver = Halving(x, 0.1, 20)
        return advance(solver, new_run(solver, 20), jnp.asarray(20)).state

    starts = jnp.asarray([1.0, 2.0, 5.0])
    alone = jnp.stack([end(x) for x in starts])
    chex.assert_trees_all_close(jax.vmap(end)(starts), alone, rtol=1e-15)
    chex.assert_trees_all_close(jax.jit(end)(starts[0]), alone[0], rtol=1e-15)
    assert float(jax.jvp(end, (1.0,), (1.0,))[1]) == 1 / 16


def test_the_strongest_code_wins():
    yes, no = jnp.asarray(True), jnp.asarray(False)
    assert int(choose((no, Result.SUCCESS))) == RUNNING
    code = choose((yes, Result.MAX_STEPS), (yes, Result.NONFINITE), (no, Result.DIVERGED))
    assert int(code) == Result.NONFINITE


def test_recovery_is_a_steady_fall_and_not_a_small_number_alone():
    ray = GeometricDecay(jnp.asarray(1.0), slowest=0.98, spread=0.1, steps=3)

    def followed(traces):
        count, previous = jnp.zeros((), int), jnp.asarray(jnp.nan)
        for before, after in itertools.pairwise(traces):
            ratio = jnp.asarray(after / before)
            count = ray.follow(count, jnp.asarray(after), ratio, previous)
            previous = ratio
        return bool(ray.reached(count, jnp.asarray(traces[-1])))

    steady = [1e-3 * 0.5**k for k in range(6)]
    assert followed(steady)
    assert not followed([1e-4] * 6)  # small, and standing still
    assert not followed([1e-3, 9e-4, 1e-4, 9e-5, 1e-5, 9e-6])  # falling, but not by one ratio
    assert not followed([0.5**k for k in range(6)])  # falling, but not small yet
    assert followed([1.0, 1e-13])  # fallen to rounding


def test_a_record_says_what_and_how_often():
    for record, every in ((jnp.sum, 7), (smi.Record(jnp.sum, every=3), 3)):
        function, found = smi.Record.of(record, 7)
        assert (float(function(jnp.ones(3))), found) == (3.0, every)
    assert smi.Record.of(None, 7) == (None, 7)


@pytest.mark.slow
def test_a_diverging_run_keeps_its_history_and_says_what_to_do():
    """Textbook GAMP with the divergence and a huge start: the estimate leaves its range."""
    model = smi.links.phase_retrieval()
    data = model.sample(jax.random.key(0), dimension=60, alpha=3.0)
    textbook = smi.Bayes(precision="divergence", calibrate=False)
    settings = {"key": jax.random.key(0), "start": 30.0, "learner": textbook}
    sol = smi.gamp(model, data, iteration=smi.Iteration(40), **settings)
    assert int(sol.result) in (Result.DIVERGED, Result.NONFINITE)
    assert "damping" in sol.message
    assert np.isfinite(sol.trajectory["overlap"][0]).all()


def test_every_code_has_a_remedy_of_its_own():
    assert len({code.remedy for code in Result if len(code.remedy) > 5}) == len(Result)

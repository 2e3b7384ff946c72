r"""Threshold search by gradients: the parameter of a link that minimises or prescribes a threshold.

Equations here, for a model built from parameters p and the threshold α_c(p) of one step of its staircase:

    minimise log α_c(p),  or ½ (log α_c(p) - log target)²,

by a quasi-Newton iteration (optax) on the derivative of `thresholds`, scaled so that the first step has length 0.2. One key
for all p: the function is smooth in p, and what is found is the optimum of that sample, off the true one by about
stderr(α_c') / α_c''.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array
from tqdm import tqdm

from jaxsmi.core.arrays import theory_dtype
from jaxsmi.core.checks import check
from jaxsmi.core.codes import Result
from jaxsmi.core.results import Threshold
from jaxsmi.thresholds.stairs import staircase
from jaxsmi.thresholds.weak import weak_recovery


class Search(eqx.Module):
    """End of a search: the best `parameters` and their `threshold`, `gradient` of the objective there, `steps` taken,
    `result` (SUCCESS, MAX_STEPS, NONFINITE), `history` with one entry an evaluation: "parameters", "alpha", "gradient"."""

    parameters: Any
    threshold: Threshold
    gradient: Any
    steps: int
    result: Array
    history: dict[str, list[Any]]

    @property
    def message(self) -> str:
        """The sentence that goes with the result code."""
        return Result(int(self.result)).remedy


def search_threshold(
    build: Callable[[Any], Any],
    start: Any,
    *,
    key: Array,
    step: int = 0,
    target: float | None = None,
    alpha_max: float = 10.0,
    samples: int = 2**12,
    replicas: int = 16,
    optimizer: optax.GradientTransformation | None = None,
    max_steps: int = 30,
    tolerance: float = 2e-3,
    progress: bool = False,
) -> Search:
    r"""The parameters that minimise a threshold, or give it a prescribed value, by gradient descent.

    Arguments: `build`: parameters to model, e.g. `lambda p: smi.DeepAttention(2, 2, skip=jnp.exp(p))` (a logarithm keeps a
    strength positive and makes one unit of it a sensible step); `start`: parameters, a number, an array or a tree of them;
    `step`: which threshold of the staircase, 0 for weak recovery; `target`: the α wanted, None to minimise; `alpha_max`,
    `samples`, `replicas` as in `staircase`; `optimizer`: any optax optimiser, by default L-BFGS with steps of at most 0.3;
    `max_steps` evaluations at most; `tolerance`: stop where a step
    in the parameters is shorter (your own optimiser: where the gradient is less than so much of the first one), or
    |log α_c/target| smaller. The default optimiser goes half way back where α_c rose.
    Returns: a `Search`. Codes: SUCCESS, MAX_STEPS, NONFINITE (the threshold or its gradient was not finite: it lies above
    alpha_max, or the step is missing there). Raises: ValueError for a bad `start`, `target`, or a threshold that is absent
    at the start. Cost: a threshold and its derivative an evaluation. Source:
    [theory: multi-index, Eqs. (60), (61)].
    Example:
    >>> import jax, jaxsmi as smi
    >>> noisy = lambda noise: smi.MultiIndex(lambda z: z[0, 0] ** 2, indices=1, noise=noise)
    >>> found = smi.search_threshold(
    ...     noisy, 0.5, key=jax.random.key(0), target=1.0, samples=2**10
    ... )  # doctest: +SKIP
    """
    check(step >= 0, "step", step, "0 for weak recovery, 1 for the next threshold, ...")
    check(
        target is None or 0 < target < np.inf,
        "target",
        target,
        "a finite number > 0, or None to minimise",
    )
    check(max_steps >= 1, "max_steps", max_steps, "at least 1")
    parameters = jax.tree.map(lambda x: jnp.asarray(x, theory_dtype()), start)
    check(
        all(bool(jnp.all(jnp.isfinite(x))) for x in jax.tree.leaves(parameters)),
        "start",
        start,
        "finite numbers",
    )
    own = optimizer is None
    if optimizer is None:
        optimizer = optax.chain(
            optax.scale_by_lbfgs(), optax.clip_by_global_norm(0.3), optax.scale(-1.0)
        )
    guess: list[Threshold] | None = None

    def objective(parameters: Any) -> tuple[Array, list[Threshold]]:
        model = build(parameters)
        if step == 0:
            first = weak_recovery(model, key=key, samples=samples, randomisations=replicas)
            stairs = [first] if float(jax.lax.stop_gradient(first.alpha)) <= alpha_max else []
        else:
            stairs = staircase(
                model,
                key=key,
                alpha_max=alpha_max,
                samples=samples,
                replicas=replicas,
                guess=guess,
                steps=step + 1,
            )
        if len(stairs) <= step:
            return jnp.asarray(jnp.nan, theory_dtype()), stairs
        height = jnp.log(stairs[step].alpha)
        return (height if target is None else 0.5 * (height - jnp.log(target)) ** 2), stairs

    slope = jax.value_and_grad(objective, has_aux=True)
    memory = optimizer.init(parameters)
    history: dict[str, list[Any]] = {"parameters": [], "alpha": [], "gradient": []}
    code, best, first_size = Result.MAX_STEPS, None, 0.0
    with tqdm(total=max_steps, desc="threshold search", leave=False, disable=not progress) as bar:
        for _ in range(max_steps):
            (value, stairs), gradient = slope(parameters)
            here = stairs[step].alpha if len(stairs) > step else jnp.nan
            for name, entry in (
                ("parameters", parameters),
                ("alpha", here),
                ("gradient", gradient),
            ):
                history[name].append(jax.tree.map(np.asarray, entry))
            bar.update()
            bar.set_postfix(alpha=f"{float(here):.4f}")
            size, height = float(optax.global_norm(gradient)), float(value)
            finite = np.isfinite(height) and np.isfinite(size)
            if best is None:
                allowed = f"parameters at which threshold {step} and its derivative exist, below alpha_max = {alpha_max:g}"
                check(finite, "start", start, allowed)
                first_size = size if size > 0 else 1.0
            elif not finite and not own:
                code = Result.NONFINITE
                break
            elif (
                own and not height <= best[0]
            ):  # uphill: half way back to the best point, with a fresh memory
                back = jax.tree.map(lambda p, b: 0.5 * (b - p), parameters, best[1])
                parameters, memory = (
                    jax.tree.map(jnp.add, parameters, back),
                    optimizer.init(parameters),
                )
                if float(optax.global_norm(back)) < tolerance:
                    code = Result.SUCCESS
                    break
                continue
            if best is None or height <= best[0]:
                best = (height, parameters, stairs[step], gradient)
            guess = stairs
            if target is not None and abs(float(jnp.log(here / target))) < tolerance:
                code = Result.SUCCESS
                break
            if not own and size < tolerance * first_size:
                code = Result.SUCCESS
                break
            scale = 0.2 / first_size if own else 1.0
            updates, memory = optimizer.update(
                jax.tree.map(lambda g, s=scale: s * g, gradient), memory, parameters
            )
            products = jax.tree.map(lambda u, g: jnp.sum(u * g), updates, gradient)
            if (
                own and float(sum(jax.tree.leaves(products))) > 0
            ):  # curvature of the wrong sign: down the gradient instead
                updates, memory = (
                    jax.tree.map(lambda g, s=scale: -s * g, gradient),
                    optimizer.init(parameters),
                )
            if own and float(optax.global_norm(updates)) < tolerance:
                code = Result.SUCCESS
                break
            parameters = jax.tree.map(jnp.add, parameters, updates)
    assert best is not None  # the first evaluation was checked
    _, parameters, end, gradient = best
    return Search(parameters, end, gradient, len(history["alpha"]), jnp.asarray(code), history)

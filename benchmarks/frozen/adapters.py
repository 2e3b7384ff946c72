"""The only places that know how keyword arguments are grouped, and which attributes a result has:
change these, and nothing else, when the API is regrouped."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import jaxsmi as smi
from jaxsmi.core.driver import Estimate
from jaxsmi.core.options import Averages, Iteration
from jaxsmi.descent.options import Monitor


def figure_script(name):
    """A script of `notebooks/figures`, as a module."""
    folder = str(Path(__file__).parents[2] / "notebooks" / "figures")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(name)


class Digest:
    """A long array, of which norm, sum, a fixed combination and the first entries are kept."""

    def __init__(self, array):
        self.array = array


def _given(**words):
    """What was given, so that defaults stay those of the library."""
    return {name: value for name, value in words.items() if value is not None}


def _averages(samples, randomisations):
    if samples is None and randomisations is None:
        return None
    return smi.Averages(samples, randomisations)


def _iteration(**words):
    return smi.Iteration(**_given(**words)) if _given(**words) else None


def gamp_words(
    *, record=None, record_every=None, init=None, state=None, side_information=None, max_steps=None, tolerance=None,
    damping=None, precision=None, calibrate=None, learner=None, **rest,
):  # fmt: skip
    """Keyword arguments of `smi.gamp`."""
    if record_every is not None:
        record = smi.Record(record, record_every)
    start = init if state is None else state
    if side_information is not None:
        start = smi.Start(weights=start, side_information=side_information)
    if precision is not None or calibrate is not None:
        learner = smi.Bayes(precision, calibrate)
    iteration = _iteration(max_steps=max_steps, tolerance=tolerance, damping=damping)
    return _given(record=record, start=start, iteration=iteration, learner=learner) | rest


def free_entropy(model, alpha, overlap, *, samples=None, randomisations=None, **rest):
    averages = _given(averages=_averages(samples, randomisations))
    return smi.free_entropy(model, alpha, overlap, **averages, **rest)


def spectral_overlap(model, alpha, *, samples=None, randomisations=None, **rest):
    return smi.spectral_overlap(
        model, alpha, **_given(averages=_averages(samples, randomisations)), **rest
    )


def train_words(
    *, repeats=None, patience=None, target=None, record=None, record_every=None, batch_size=None,
    reduction=None, loss=None, test=None, progress=None, init=None, state=None, **rest,
):  # fmt: skip
    """Keyword arguments of `smi.train`."""
    gradient = _given(loss=loss, reduction=reduction, batch_size=batch_size, repeats=repeats)
    monitor = _given(
        record=record, every=record_every, test=test, patience=patience, target=target, progress=progress
    )  # fmt: skip
    return rest | _given(
        gradient=smi.Gradient(**gradient) if gradient else None,
        start=init if state is None else state,
        monitor=smi.Monitor(**monitor) if monitor else None,
    )


def gamp(model, data, **words):
    return smi.gamp(model, data, **gamp_words(**words))


def train(model, data, optimizer, **words):
    return smi.train(model, data, optimizer, **train_words(**words))


def as_xarray(solution, **attributes):
    """A solution as an xarray.Dataset."""
    return importlib.import_module("jaxsmi.workbench.storage").to_xarray(solution, **attributes)


def gamp_method(**words):
    """A method of `smi.learning_order`, and settings of `smi.sweep(solver="gamp")`."""
    return gamp_words(**words)


def train_method(**words):
    """A method of `smi.learning_order`, and settings of `smi.sweep(solver="train")`."""
    return train_words(**words)


def evolve(model, alpha, *, samples=None, randomisations=None, max_steps=None, tolerance=None, newton=None, q0=None,
           side_information=None, progress=None, **rest):  # fmt: skip
    start = q0
    if side_information is not None:
        start = smi.Start(q0, side_information=side_information)
    return smi.state_evolution(model, alpha, **_given(
        averages=_averages(samples, randomisations), start=start, progress=progress,
        iteration=_iteration(max_steps=max_steps, tolerance=tolerance, newton=newton)), **rest)  # fmt: skip


def overlaps(model, m, e=0.0):
    """(m, e_1..e_K), of an untied network m_1..m_L."""
    if not model.tied:
        return np.broadcast_to(m, (model.length,))
    e = jnp.broadcast_to(jnp.asarray(e), (model.encoding.shape[1],))
    return jnp.concatenate([jnp.asarray(m)[None], e])


def simulate(model, key, *, dimension, gamma, steps, m=None, e=0.0, eta=0.5, until=None, every=None, progress=False):  # fmt: skip
    monitor = Monitor(target=until, level=eta, every=every, progress=progress)
    start = None if m is None else overlaps(model, m, e)
    runs = smi.sgd.simulate(model, key, dimension=dimension, rate=gamma, alpha=steps / dimension, start=start, monitor=monitor)  # fmt: skip
    return model, runs


def flow(model, m, e=0.0, *, times, gamma=0.0, key=None, samples=2**12, rtol=1e-7, max_steps=4096):
    settings = {"averages": Averages(8 * samples, 8), "iteration": Iteration(max_steps, rtol)}
    return model, smi.sgd.flow(model, overlaps(model, m, e), times, rate=gamma, key=key, **settings)


def recovery_time(model, m, e=0.0, *, gamma=0.0, eta=0.5, rtol=1e-7):
    return smi.sgd.recovery_time(model, overlaps(model, m, e), rate=gamma, level=eta, iteration=Iteration(tolerance=rtol)).value  # fmt: skip


def risk(model, m, e=0.0, **rest):
    return smi.sgd.risk(model, overlaps(model, m, e), **_sampled(**rest))


def gradient_noise(model, m, e=0.0, **rest):
    values, errors = smi.sgd.averages(model, overlaps(model, m, e), **_sampled(**rest))
    return Estimate(jnp.trace(values.square), jnp.trace(errors.square))


def hessian(model, m=0.0, e=0.0, **rest):
    return smi.sgd.hessian(model, overlaps(model, m, e), **_sampled(**rest))


def _sampled(key=None, samples=2**14):
    return {"key": key, "averages": Averages(16 * samples, 16)}


def exponent(target, length, *, samples=2**14, **rest):
    found = smi.sgd.exponents(target, length, averages=Averages(16 * samples, 16), **rest)
    return {name: getattr(found, name) for name in ("order", "status", "levels", "errors", "student_order")}  # fmt: skip


def sweep(build, alpha, parameters=None, *, settings=None, **rest):
    settings = dict(settings or {})
    sizes = [settings.pop(name, None) for name in ("samples", "randomisations")]
    return smi.sweep(
        build, alpha, parameters, **rest, **settings, **_given(averages=_averages(*sizes))
    )


def solution_parts(solution):
    """Of a Solution."""
    names = (
        "overlap",
        "stderr",
        "error",
        "covariance",
        "alpha",
        "residual",
        "steps",
        "result",
        "converged",
    )
    found = {name: getattr(solution, name) for name in names}
    found["rho"] = solution.spectral_radius
    if solution.weights is not None:
        found["weights"] = Digest(solution.weights)
    if isinstance(solution.state, dict):
        found["state"] = solution.state
    found["history"] = dict(solution.history)
    return found


def threshold_parts(threshold):
    """Of a Threshold."""
    return {
        name: getattr(threshold, name)
        for name in ("alpha", "stderr", "replicas", "subspace", "overlap", "result")
    }


def posterior_parts(posterior):
    """Of `channel.posterior`."""
    return {
        name: getattr(posterior, name)
        for name in ("log_partition", "g", "dg", "ess", "error", "dg_error")
    }


def first_order_parts(found):
    """Of `smi.first_order`."""
    names = (
        "kind",
        "algorithmic",
        "information_theoretic",
        "spinodal",
        "alpha",
        "uninformed",
        "informed",
    )
    return {name: getattr(found, name) for name in names}


def search_parts(found):
    """Of `smi.search_threshold`."""
    names = ("parameters", "threshold", "gradient", "steps", "result", "history")
    return {name: getattr(found, name) for name in names}


def order_parts(found):
    """Of `smi.learning_order` (without the seconds)."""
    medians = {name: found.median(name) for name in found.learned}
    orders = {name: found.order(name) for name in found.learned}
    return {
        "learned": found.learned,
        "alpha": found.alpha,
        "median": medians,
        "order": orders,
        "solutions": found.solutions,
    }


def _of_one_direction(model, M):
    flat = M[..., 0, :] if model.tied else M[..., 0]
    m, e = (flat[..., 0], flat[..., 1:]) if model.tied else (flat, flat[..., :0])
    return {"overlaps": flat, "m": m, "e": e}


def simulation_parts(pair):
    """Of `smi.sgd.simulate`."""
    model, runs = pair
    names = ("step", "steps", "reached", "result", "dimension", "time")
    found = {name: getattr(runs, name) for name in names} | _of_one_direction(model, runs.teacher_overlap)  # fmt: skip
    return found | {"gamma": runs.kappa, "end": _of_one_direction(model, runs.end)["overlaps"]}


def flow_parts(pair):
    """Of `smi.sgd.flow`."""
    model, path = pair
    return {"time": path.time, "result": path.result} | _of_one_direction(model, path.teacher_overlap)  # fmt: skip


def dataset_parts(data):
    """Of a Dataset with stored inputs."""
    inputs = (
        data.inputs
        if hasattr(data.inputs, "dtype") and hasattr(data.inputs, "astype")
        else data.stored().inputs
    )
    return {
        "inputs": Digest(inputs), "labels": Digest(data.labels), "teacher": None if data.teacher is None else Digest(data.teacher),
        "samples": data.samples, "dimension": data.dimension, "alpha": data.alpha, "shape": list(data.inputs.shape),
    }  # fmt: skip


def xarray_parts(dataset):
    """Of an xarray.Dataset: numbers, names and dimensions of all its variables; provenance but for
    time and versions."""
    found = {}
    for name in sorted(map(str, dataset.variables)):
        variable = dataset[name]
        name = {"spectral_radius": "rho"}.get(name, name)
        found[name] = variable.values
        found[f"{name}.dims"] = ",".join(map(str, variable.dims))
    return found

"""Numbers of the public API of jaxsmi, recorded to a file and compared between two trees.

    PYTHONPATH=TREE python frozen.py record FILE [--only GROUP ...] [--list] [--again]
    python frozen.py compare BEFORE AFTER [--rtol 1e-12] [--scale part|entry] [--quiet]

Which tree is recorded: PYTHONPATH. JAX on the CPU, one thread, float64, fixed keys. GROUP may be a
pattern ("gamp*").

An entry is one result: its parts (overlap, stderr, history/cosine ..) are nested lists of floats at
full precision. Arrays of more than `LONG` numbers are kept as a digest (norm, sum, a fixed
random-like combination, first entries). An entry that raises is kept as "raises: Type: message".
"""

from __future__ import annotations

import argparse
import fnmatch
import gc
import gzip
import json
import math
import os
import platform
import re
import sys
import time
import warnings

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# one thread; compilation, which takes most of the time, at the lowest level that vectorises
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1 --xla_cpu_parallel_codegen_split_count=1 "
    "--xla_backend_optimization_level=1 --xla_cpu_use_fusion_emitters=false")  # fmt: skip
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np

LONG, FIRST = 600, 5


#
# =========================================================================================================================
# Adapters: the only places that know how keyword arguments are grouped, and which attributes a
# result has. Change these (and
# nothing below) when the API is regrouped.
#
# =========================================================================================================================


def _given(**words):
    """What was given, so that defaults stay those of the library."""
    return {name: value for name, value in words.items() if value is not None}


def gamp_words(*, record=None, record_every=None, **rest):
    """Keyword arguments of `smi.gamp`."""
    if record_every is not None:
        record = smi.Record(record, record_every)
    return _given(record=record) | rest


def train_words(
    *, one_pass=None, repeats=None, patience=None, target=None, record=None, record_every=None, batch_size=None,
    reduction=None, loss=None, **rest,
):  # fmt: skip
    """Keyword arguments of `smi.train`."""
    if record_every is not None:
        record = smi.Record(record, record_every)
    if one_pass is not None or repeats is not None:
        batch_size = smi.Batches(batch_size, bool(one_pass), repeats or 1)
    stop = smi.Stop(patience, target) if patience is not None or target is not None else None
    return (
        _given(record=record, batch_size=batch_size, stop=stop, reduction=reduction, loss=loss)
        | rest
    )


def gamp(model, data, **words):
    return smi.gamp(model, data, **gamp_words(**words))


def train(model, data, optimizer, **words):
    return smi.train(model, data, optimizer, **train_words(**words))


def gamp_method(**words):
    """A method of `smi.learning_order`, and settings of `smi.sweep(solver="gamp")`."""
    return gamp_words(**words)


def train_method(**words):
    """A method of `smi.learning_order`, and settings of `smi.sweep(solver="train")`."""
    return train_words(**words)


def evolve(model, alpha, *, samples=None, randomisations=None, max_steps=None, tolerance=None, newton=None, q0=None,
           side_information=None, progress=None, **rest):  # fmt: skip
    return smi.state_evolution(model, alpha, **_given(
        samples=samples, randomisations=randomisations, max_steps=max_steps, tolerance=tolerance, newton=newton, q0=q0,
        side_information=side_information, progress=progress), **rest)  # fmt: skip


def simulate(model, key, *, eta=None, until=None, every=None, method=None, progress=None, **rest):
    return smi.sgd.simulate(
        model,
        key,
        **_given(eta=eta, until=until, every=every, method=method, progress=progress),
        **rest,
    )


def sweep(
    build, alpha, parameters=None, *, key=None, seeds=None, solver=None, settings=None, out=None
):
    return smi.sweep(
        build,
        alpha,
        parameters,
        **_given(key=key, seeds=seeds, solver=solver, settings=settings, out=out),
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
        "rho",
        "steps",
        "result",
        "converged",
    )
    found = {name: getattr(solution, name) for name in names}
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


def simulation_parts(runs):
    """Of `smi.sgd.simulate`."""
    names = (
        "step",
        "overlaps",
        "end",
        "steps",
        "reached",
        "result",
        "gamma",
        "dimension",
        "time",
        "m",
        "e",
    )
    return {name: getattr(runs, name) for name in names}


def flow_parts(found):
    """Of `smi.sgd.flow`."""
    return {name: getattr(found, name) for name in ("time", "overlaps", "result", "m", "e")}


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
        found[name] = variable.values
        found[f"{name}.dims"] = ",".join(map(str, variable.dims))
    return found


def text_parts(run):
    """Of `smi.text.classify`."""
    names = (
        "step",
        "epoch",
        "similarity",
        "train_loss",
        "accuracy",
        "test_accuracy",
        "classes",
        "length",
    )
    return {name: getattr(run, name) for name in names} | {
        "result": int(run.result),
        "words": len(run.vocabulary),
    }


#
# =========================================================================================================================
# Parts of a result
#
# =========================================================================================================================


class Digest:
    """A long array, of which norm, sum, a fixed combination and the first entries are kept."""

    def __init__(self, array):
        self.array = array


def parts_of(value, path=""):
    """A flat dictionary of arrays and strings."""
    join = lambda name: f"{path}/{name}" if path else str(name)
    if value is None:
        return {path or "value": "none"}
    if isinstance(value, str):
        return {path or "value": value}
    if isinstance(value, Digest):
        return digest(np.asarray(plain(value.array)), path)
    if isinstance(value, dict):
        found = {}
        for name, entry in value.items():
            found |= parts_of(entry, join(name if isinstance(name, str) else str(name)))
        return found
    if hasattr(value, "history") and hasattr(value, "covariance"):
        return parts_of(solution_parts(value), path)
    if hasattr(value, "replicas") and hasattr(value, "subspace"):
        return parts_of(threshold_parts(value), path)
    if hasattr(value, "data_vars"):
        return parts_of(xarray_parts(value), path)
    if hasattr(value, "_fields"):
        return parts_of({name: getattr(value, name) for name in value._fields}, path)
    if isinstance(value, (list, tuple)) and any(
        x is None
        or isinstance(x, (str, dict, list, tuple))
        or hasattr(x, "shape")
        or hasattr(x, "history")
        or hasattr(x, "replicas")
        for x in value
    ):
        found = {}
        for n, entry in enumerate(value):
            found |= parts_of(entry, join(n))
        return found
    array = np.asarray(plain(value))
    if array.dtype.kind in "US" or array.dtype == object:
        return {path or "value": "|".join(map(str, array.ravel().tolist()))}
    if array.size > LONG:
        return digest(array, path)
    return {path or "value": array}


def plain(value):
    """Something that NumPy reads."""
    dtype = getattr(value, "dtype", None)
    if dtype is not None and "key" in str(dtype):
        return np.asarray(jax.random.key_data(value))
    if dtype is not None and str(dtype) == "bfloat16":
        return np.asarray(value.astype("float32"))
    return value


def digest(array, path):
    flat = np.asarray(array, np.float64).ravel()
    finite = np.where(np.isfinite(flat), flat, 0.0)
    mix = np.cos(1.0 + 12.9898 * np.arange(flat.size) % 78.233)
    at = f"{path}/" if path else ""
    return {
        f"{at}shape": np.asarray(np.shape(array)), f"{at}dtype": str(array.dtype),
        f"{at}norm": np.asarray(math.sqrt(math.fsum(finite * finite))), f"{at}sum": np.asarray(math.fsum(finite)),
        f"{at}mix": np.asarray(math.fsum(finite * mix)), f"{at}nans": np.asarray(int(np.sum(~np.isfinite(flat)))),
        f"{at}first": flat[:FIRST],
    }  # fmt: skip


def written(value):
    """For JSON: floats by repr, NaN and infinities as strings."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return [written(x) for x in value]
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, complex):
        return [written(value.real), written(value.imag)]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value


#
# =========================================================================================================================
# Recording
#
# =========================================================================================================================

GROUPS = {}


def group(function):
    GROUPS[function.__name__] = function
    return function


class Recorder:
    """add(name, thunk): one entry."""

    def __init__(self):
        self.entries = {}

    def add(self, name, thunk):
        assert name not in self.entries, name
        begin = time.process_time()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = parts_of(thunk())
            entry = {"values": {}, "dtypes": {}}
            for part, value in found.items():
                if isinstance(value, str):
                    entry["values"][part], entry["dtypes"][part] = value, "str"
                else:
                    entry["values"][part] = written(np.asarray(value).tolist())
                    entry["dtypes"][part] = f"{np.asarray(value).dtype}{list(np.shape(value))}"
        except Exception as failure:  # the rest goes on
            message = re.sub(
                r"0x[0-9a-f]+", "0x..", f"{type(failure).__name__}: {failure}".splitlines()[0]
            )
            entry = {"raises": f"raises: {message}"}
        entry["seconds"] = round(time.process_time() - begin, 3)  # of the processor: it is shared
        self.entries[name] = entry
        shown = entry.get("raises", "")
        print(f"    {entry['seconds']:7.2f} s  {name}  {shown[:150]}", flush=True)


def record(path, only, again):
    known = {"meta": {}, "groups": {}}
    if os.path.exists(path):
        with open(path) as handle:
            known = json.load(handle)
    names = [
        name
        for name in GROUPS
        if not only or any(fnmatch.fnmatch(name, pattern) for pattern in only)
    ]
    unknown = [pattern for pattern in only or [] if not fnmatch.filter(GROUPS, pattern)]
    if unknown:
        sys.exit(f"no such group: {unknown}; there are {', '.join(GROUPS)}")
    known["meta"] = {
        "jaxsmi": smi.__file__, "jax": jax.__version__, "numpy": np.__version__, "python": platform.python_version(),
        "device": str(jax.devices()[0]), "xla_flags": os.environ.get("XLA_FLAGS", ""), "cores": os.cpu_count(),
    }  # fmt: skip
    begin, clock = time.process_time(), time.perf_counter()
    for name in names:
        if name in known["groups"] and not again:
            print(f"{name}: there already")
            continue
        print(f"{name}", flush=True)
        recorder, start = Recorder(), (time.process_time(), time.perf_counter())
        try:
            GROUPS[name](recorder.add)
        except Exception as failure:  # something outside an entry
            recorder.entries["whole group"] = {
                "raises": f"raises: {type(failure).__name__}: {failure}".splitlines()[0],
                "seconds": 0,
            }
            print(f"    GROUP FAILED: {failure!r}")
        seconds, wall = (
            round(time.process_time() - start[0], 2),
            round(time.perf_counter() - start[1], 2),
        )
        known["groups"][name] = {"seconds": seconds, "wall": wall, "entries": recorder.entries}
        with open(f"{path}.new", "w") as handle:
            json.dump(known, handle, indent=None, separators=(",", ":"))
        os.replace(f"{path}.new", path)
        # a process can hold some thousands of compiled programs (vm.max_map_count)
        jax.clear_caches()
        gc.collect()
        print(
            f"  {len(recorder.entries)} entries, {seconds:.1f} s of the processor; in all {time.process_time() - begin:.1f} s, {time.perf_counter() - clock:.1f} s by the clock",
            flush=True,
        )
    entries = [e for g in known["groups"].values() for e in g["entries"].values()]
    total = sum(g["seconds"] for g in known["groups"].values())
    print(
        f"{len(entries)} entries in {len(known['groups'])} groups, {sum('raises' in e for e in entries)} raise, {total:.0f} s: {path}"
    )


#
# =========================================================================================================================
# Comparing
#
# =========================================================================================================================


def read_number(x):
    return float(x) if isinstance(x, str) else x


def as_array(value):
    flat = lambda x: [flat(y) for y in x] if isinstance(x, list) else float(read_number(x))
    return np.asarray(flat(value), np.float64)


def difference(before, after, scale):
    """(largest relative difference, part, note): inf where shapes, NaN, texts or parts differ."""
    if "raises" in before or "raises" in after:
        one, two = before.get("raises", "a value"), after.get("raises", "a value")
        return (
            (0.0, "", "raises in both")
            if one == two
            else (math.inf, "raises", f"{one[:200]} -> {two[:200]}")
        )
    worst, part, notes = 0.0, "", []
    ours, theirs = before["values"], after["values"]
    for name in [n for n in ours if n not in theirs]:
        worst, part = math.inf, name
        notes.append(f"{name} is missing")
    new = [n for n in theirs if n not in ours]
    if new:
        notes.append(f"new parts {', '.join(new[:4])}")
    arrays = {
        n: (as_array(ours[n]), as_array(theirs[n])) for n in ours
        if n in theirs and before["dtypes"][n] != "str" and after["dtypes"][n] != "str"
    }  # fmt: skip
    largest = lambda a: float(np.max(np.abs(a[np.isfinite(a)]), initial=0.0))
    whole = max((largest(a) for a, _ in arrays.values()), default=0.0)
    for n in ours:
        if n not in theirs:
            continue
        if n not in arrays:
            if ours[n] != theirs[n]:
                worst, part = math.inf, n
                notes.append(f"{n}: {str(ours[n])[:60]} -> {str(theirs[n])[:60]}")
            continue
        a, b = arrays[n]
        if a.shape != b.shape:
            worst, part = math.inf, n
            notes.append(f"{n}: shape {a.shape} -> {b.shape}")
            continue
        if before["dtypes"][n] != after["dtypes"][n]:
            notes.append(f"{n}: {before['dtypes'][n]} -> {after['dtypes'][n]}")
        finite = np.isfinite(a) & np.isfinite(b)
        same = np.all((a == b) | (np.isnan(a) & np.isnan(b)) | finite)
        if not same:
            worst, part = math.inf, n
            notes.append(f"{n}: other NaN or infinite entries")
            continue
        gap = float(np.max(np.abs(a[finite] - b[finite]), initial=0.0))
        size = whole if scale == "entry" else max(largest(a), largest(b))
        relative = 0.0 if gap == 0.0 else (gap / size if size > 0 else math.inf)
        if relative > worst:
            worst, part = relative, n
    return worst, part, "; ".join(notes)


def _recorded(path):
    """A recording, compressed or not."""
    opened = gzip.open if str(path).endswith(".gz") else open
    with opened(path, "rt") as file:
        return json.load(file)


def compare(before_path, after_path, rtol, scale, quiet):
    before, after = (_recorded(path) for path in (before_path, after_path))
    for name in sorted({*before["meta"], *after["meta"]}):
        one, two = before["meta"].get(name), after["meta"].get(name)
        print(f"{name:>10}: {one}" if one == two else f"{name:>10}: {one} -> {two}")
    table = lambda file: {
        f"{g}: {n}": e for g, body in file["groups"].items() for n, e in body["entries"].items()
    }
    ours, theirs = table(before), table(after)
    rows, missing = [], [name for name in ours if name not in theirs]
    for name, entry in ours.items():
        if name in theirs:
            rows.append(
                (
                    name,
                    *difference(entry, theirs[name], scale),
                    entry["seconds"],
                    theirs[name]["seconds"],
                )
            )
    if not quiet:
        for name, worst, part, note, one, two in rows:
            what = "same" if worst == 0 else f"{worst:.2e}"
            print(
                f"{what:>9}  {one:6.2f} -> {two:6.2f} s  {name}{f'  [{part}]' if worst else ''}{f'  ({note})' if note else ''}"
            )
    beyond = sorted((row for row in rows if row[1] > rtol), key=lambda row: -row[1])
    equal = sum(row[1] == 0 for row in rows)
    if beyond:
        print(f"\nbeyond {rtol:g}, worst first:")
        for name, worst, part, note, *_ in beyond:
            print(f"{worst:9.2e}  {name}  [{part}]{f'  {note}' if note else ''}")
    if missing:
        print("\nmissing:\n  " + "\n  ".join(missing))
    noted = [row for row in rows if row[3] and row[1] <= rtol and row[3] != "raises in both"]
    if noted:
        print("\nremarks on entries that agree:")
        for name, _, _, note, *_ in noted:
            print(f"  {name}: {note}")
    new = [name for name in theirs if name not in ours]
    both = sum(row[3] == "raises in both" for row in rows)
    slow = [sum(e["seconds"] for e in t.values()) for t in (ours, theirs)]
    print(
        f"\n{len(ours)} entries: {equal} equal bit for bit ({both} of them raise in both), {len(rows) - equal - len(beyond)} within "
        f"{rtol:g}, {len(beyond)} beyond, {len(missing)} missing; {len(new)} only in the second; {slow[0]:.0f} s -> {slow[1]:.0f} s"
    )
    return 1 if beyond or missing else 0


#
# =========================================================================================================================
# Models, data and functions that the entries share
#
# =========================================================================================================================


def key(n=0):
    return jax.random.key(n)


def keys(n, seed=0):
    return jax.random.split(jax.random.key(seed), n)


def soft_link(z):
    return jnp.tanh(2.0 * z[0, 0]) + 0.3 * z[0, 0]


def pair_link(z):
    return jnp.sum(z[0] * jnp.tanh(z[1]))


def vector_link(z):
    return jnp.stack([jnp.tanh(z[0, 0] + z[1, 0]), z[0, 0] * z[1, 0]])


def logistic(y, z):
    return jax.nn.log_sigmoid(3.0 * y * z[0, 0])


def jump_link(z):
    return jnp.where(z[0, 0] >= 0.0, 1.0, -1.0)


def steep_class():
    import equinox as eqx

    class Steep(eqx.Module):
        """A link with a number in it, to be differentiated."""

        slope: object

        def __call__(self, z):
            return jnp.tanh(self.slope * z[0, 0]) + 0.5 * z[0, 0] ** 2

    return Steep


STEEP = None


def steep(slope, noise=0.2):
    global STEEP
    STEEP = STEEP or steep_class()
    return smi.MultiIndex(STEEP(jnp.asarray(slope, float)), indices=1, noise=noise)


def user_model(noise=0.2):
    return smi.MultiIndex(soft_link, indices=1, noise=noise)


def likelihood_model():
    return smi.MultiIndex(jump_link, indices=1, log_likelihood=logistic, name="logistic")


def likelihood_data(D=120, N=300):
    rng = np.random.default_rng(5)
    W, x = rng.standard_normal((1, D)), rng.standard_normal((N, 1, D))
    z = (x[:, 0] @ W[0]) / np.sqrt(D)
    y = np.where(rng.random(N) < 1.0 / (1.0 + np.exp(-3.0 * z)), 1.0, -1.0)
    return smi.Dataset(x, y, W)


def fields_for(model, seed=0):
    """ω, fields z ~ N(ω, V), V, of one sample."""
    rng, P, M = np.random.default_rng(seed), model.indices, model.tokens
    V = 0.35 * np.eye(P) + 0.1 * np.ones((P, P))
    omega = 0.8 * rng.standard_normal((P, M))
    z = omega + np.linalg.cholesky(V) @ rng.standard_normal((P, M))
    return jnp.asarray(omega), jnp.asarray(z), jnp.asarray(V)


def posterior(model, seed=0, y=None, noise=0.0, spread=1.0, **words):
    omega, z, V = fields_for(model, seed)
    y = model.link(z) if y is None else y
    y = y + noise * np.random.default_rng(9).standard_normal(np.shape(y)) if noise else y
    return posterior_parts(model.channel.posterior(y, omega, spread * V, **words))


def norm_and_precision(state):
    """What GAMP is asked to record."""
    return {"norm": jnp.sum(state.weights**2), "precision": state.precision, "step": state.step}


def weight_norm(weights):
    """What training is asked to record."""
    return {"norm": jnp.sum(weights**2), "count": jnp.asarray(weights.size)}


INDEX_MODELS = {
    "linear": lambda: smi.links.linear(0.3),
    "linear, 2 tokens": lambda: smi.links.linear(0.1, tokens=2),
    "sign": lambda: smi.links.sign(),
    "sign, Rademacher": lambda: smi.links.sign(smi.priors.Rademacher()),
    "phase retrieval": lambda: smi.links.phase_retrieval(),
    "phase retrieval, squared": lambda: smi.links.phase_retrieval(squared=True),
    "phase retrieval, sparse": lambda: smi.links.phase_retrieval(
        prior=smi.priors.BernoulliGauss(0.4)
    ),
    "sign product 2": lambda: smi.links.sign_product(2),
    "sign product 3": lambda: smi.links.sign_product(3),
    "product 2": lambda: smi.links.product(2),
    "product 3": lambda: smi.links.product(3),
    "square plus sign parity": lambda: smi.links.square_plus_sign_parity(),
    "user, noise": user_model,
    "user, two indices and tokens": lambda: smi.MultiIndex(
        pair_link, indices=2, tokens=2, noise=0.1
    ),
    "user, vector label": lambda: smi.MultiIndex(vector_link, indices=2, noise=0.3),
    "attention 1, 2 tokens": lambda: smi.DeepAttention(1, 2, beta=1.3),
    "attention 1, 3 tokens": lambda: smi.DeepAttention(1, 3),
    "attention 2": lambda: smi.DeepAttention(2, 2, skip=1.0),
    "attention 3": lambda: smi.DeepAttention(3, 2, skip=[1.0, 0.5]),
    "attention, heads": lambda: smi.DeepAttention(2, 2, 0.7, heads=(2, 1)),
    "attention, untied": lambda: smi.DeepAttention(2, 2, 0.7, tied=(False, True)),
    "attention, all untied, heads, rank 2": lambda: smi.DeepAttention(
        2, 3, 0.5, ranks=2, heads=2, tied=False
    ),
    "attention, ranks": lambda: smi.DeepAttention(2, 3, 0.5, ranks=(2, 1)),
    "attention, noise": lambda: smi.DeepAttention(1, 2, noise=0.05),
    "attention, hardmax": lambda: smi.DeepAttention(2, 3, activation="hardmax"),
}


#
# =========================================================================================================================
# The groups
#
# =========================================================================================================================


@group
def models_index(add):
    """Data, predictions, overlaps, alignment of index models."""
    for name, build in INDEX_MODELS.items():

        def one(build=build):
            model = build()
            data = model.sample(key(1), dimension=30, alpha=1.5)
            W = data.teacher + 0.4 * model.start(key(2), 30)
            x = data.inputs[:5]
            found = {"data": dataset_parts(data), "indices": model.indices, "tokens": model.tokens}
            found |= {
                "predict": model.predict(W, x),
                "outputs": model.outputs(W, x),
                "overlaps": model.overlaps(W, data.teacher),
            }
            found["align"] = Digest(smi.align(-W, data.teacher, model))
            found["link"] = model.link(fields_for(model)[1])
            found["symmetry"] = str(model.symmetry)
            if hasattr(model, "network"):
                found["network"] = jax.vmap(lambda one: model.network(W, one))(x)
                found["names"] = "|".join(model.index_names)
            return found

        add(name, one)
    model = smi.links.sign_product(2, smi.priors.Gaussian([[1.0, 0.3], [0.3, 0.8]]))
    add("covariance", lambda: dataset_parts(model.sample(key(1), dimension=40, alpha=2.0)))
    add(
        "float32",
        lambda: dataset_parts(model.sample(key(1), dimension=40, alpha=2.0, dtype=jnp.float32)),
    )
    add(
        "bfloat16",
        lambda: dataset_parts(model.sample(key(1), dimension=40, alpha=2.0, dtype=jnp.bfloat16)),
    )
    add(
        "regenerated",
        lambda: dataset_parts(model.sample(key(1), dimension=40, alpha=2.0, store=False)),
    )
    add("teacher of another", lambda: dataset_parts(
        model.sample(key(4), dimension=40, alpha=1.0, teacher=model.sample(key(1), dimension=40, alpha=0.1).teacher)))  # fmt: skip
    add("first", lambda: dataset_parts(model.sample(key(1), dimension=40, alpha=2.0).first(7)))
    add("error against another truth", lambda: smi.DeepAttention(1, 2, beta=3.0).error_of(
        jnp.ones((1, 30)), smi.DeepAttention(1, 2, activation="hardmax").sample(key(1), dimension=30, alpha=1.0), key=key(3)))  # fmt: skip


MATRIX_MODELS = {
    "softmax 2": (lambda: smi.AttentionIndexed(2, 0.5), 12, 0.2),
    "softmax 3": (lambda: smi.AttentionIndexed(3, 0.4, beta=1.5), 12, 0.2),
    "hardmax 2": (lambda: smi.AttentionIndexed(2, 0.5, "hardmax"), 12, 0.3),
    "hardmax 3": (lambda: smi.AttentionIndexed(3, 0.5, "hardmax"), 12, 0.3),
    "linear 2": (lambda: smi.AttentionIndexed(2, 0.5, "linear", noise=0.1), 12, 0.2),
    "linear 1": (lambda: smi.AttentionIndexed(1, 0.5, "linear"), 12, 0.2),
    "two layers": (lambda: smi.AttentionIndexed(2, 0.25, layers=2, skip=0.5), 12, 0.2),
    "three layers, hardmax": (lambda: smi.AttentionIndexed(3, 0.25, "hardmax", layers=3), 12, 0.2),
    "bilinear": (lambda: smi.Bilinear(1.0, 0.25), 12, 0.4),
    "bilinear, long": (lambda: smi.Bilinear(2.0, 0.25, 0.1), 10, 0.4),
    "bilinear, short": (lambda: smi.Bilinear(0.5, 0.25), 12, 0.4),
    "quadratic": (lambda: smi.Bilinear(1.0, 0.5, 0.1, symmetric=True), 12, 0.4),
}


@group
def models_matrix(add):
    """Data, predictions, overlaps of matrix models; what their priors say."""
    for name, (build, d, alpha) in MATRIX_MODELS.items():

        def one(build=build, d=d, alpha=alpha):
            model = build()
            data = model.sample(key(1), dimension=d, alpha=alpha)
            W, x = model.start(key(2), d), data.inputs[:4]
            found = {
                "data": dataset_parts(data),
                "outputs": model.outputs(W, x),
                "overlaps": model.overlaps(W, data.teacher),
            }
            S = model.estimate(W)
            found |= {
                "S": Digest(S),
                "error": model.estimation_error(S, data.teacher),
                "shape": list(model.student_shape(d)),
            }
            if model.indices == 1:
                found["predict"] = model.predict(S, x)
            return found

        add(name, one)
    add(
        "regenerated, float32",
        lambda: dataset_parts(
            smi.AttentionIndexed(2, 0.5).sample(key(1), dimension=12, alpha=0.5, store=False)
        ),
    )
    add(
        "regenerated, quadratic",
        lambda: dataset_parts(
            smi.Bilinear(1.0, 0.5, symmetric=True).sample(
                key(1), dimension=12, alpha=0.5, store=False
            )
        ),
    )
    for name, prior in {
        "prior of a square": lambda: smi.AttentionIndexed(2, 0.5).prior,
        "prior of a product": lambda: smi.Bilinear(2.0, 0.5).prior,
        "prior of a long product": lambda: smi.Bilinear(np.inf, 0.5).prior,
    }.items():

        def one(build=prior):
            prior, at = build(), (0.1, 0.3, 1.0, 30.0)
            found = {
                "mmse": jnp.stack([prior.mmse(q) for q in at]),
                "overlap": jnp.stack([prior.overlap(q) for q in at]),
            }
            found["information"] = jnp.stack([prior.mutual_information(q) for q in at])
            return found | {
                "norm": prior.norm,
                "freedom": prior.degrees_of_freedom,
                "second": prior.second_moment(),
            }

        add(name, one)
    R = np.random.default_rng(0).standard_normal((8, 8))
    add("denoise square", lambda: smi.AttentionIndexed(2, 0.5).prior.denoise(R + R.T, 2.0))
    add("denoise product", lambda: smi.Bilinear(1.0, 0.5).prior.denoise(R, 2.0))
    add("denoise oblong", lambda: smi.Bilinear(0.5, 0.25).prior.denoise(R[:4], 2.0))
    add("small width", lambda: {
        name: {"threshold": m.small_width_threshold, "error": m.small_width_error(np.array([0.1, 0.5, 1.0, 3.0]))}
        for name, m in {"softmax": smi.AttentionIndexed(2, 0.5), "linear": smi.AttentionIndexed(2, 0.5, "linear", noise=0.2),
                        "hardmax": smi.AttentionIndexed(2, 0.5, "hardmax"), "bilinear": smi.Bilinear(2.0, 0.5, 0.1),
                        "long": smi.Bilinear(np.inf, 0.5)}.items()})  # fmt: skip
    add("hardmax decay", lambda: smi.AttentionIndexed(2, 0.5, "hardmax").decay)


PRIORS = {
    "Gaussian": lambda: smi.priors.Gaussian(),
    "Rademacher": lambda: smi.priors.Rademacher(),
    "BernoulliGauss": lambda: smi.priors.BernoulliGauss(0.3),
}


@group
def priors(add):
    """Priors of index models, one and two indices."""
    for name, build in PRIORS.items():
        for P in (1, 2):

            def one(build=build, P=P):
                prior, rng = build(), np.random.default_rng(P)
                Q = jnp.asarray(0.7 * np.eye(P) + 0.2)
                b = jnp.asarray(rng.standard_normal((P, 7)))
                f, C = prior.posterior(b, Q)
                found = {
                    "sample": prior.sample(key(1), P, 9),
                    "overlap": prior.overlap(Q),
                    "mmse": prior.mmse(Q),
                }
                found |= {
                    "free": prior.free_entropy(Q),
                    "f": f,
                    "C": C,
                    "moment": prior.second_moment(P),
                }
                found |= {
                    "log": prior.log_partition(b[:, 0], Q),
                    "side": prior.side_information(key(2), b, 0.3),
                }
                if P == 1:
                    found["slope"] = jax.jacfwd(prior.mmse)(Q)
                    found["free slope"] = jax.grad(prior.free_entropy)(Q)
                return found

            add(f"{name}, P = {P}", one)
    covariance = [[1.0, 0.4], [0.4, 0.5]]

    def one():
        prior, Q = smi.priors.Gaussian(covariance), jnp.asarray([[0.5, 0.1], [0.1, 2.0]])
        found = {
            "sample": prior.sample(key(1), 2, 9),
            "overlap": prior.overlap(Q),
            "mmse": prior.mmse(Q),
        }
        slope = jax.jacrev(lambda c: smi.priors.Gaussian(c).mmse(Q))(jnp.asarray(covariance))
        return found | {
            "free": prior.free_entropy(Q),
            "posterior": prior.posterior(jnp.ones((2, 3)), Q),
            "slope": slope,
        }

    add("Gaussian, covariance", one)
    add("BernoulliGauss, slope in density", lambda: jax.jacrev(
        lambda r: smi.priors.BernoulliGauss(r).mmse(jnp.asarray([[2.0]])))(0.3))  # fmt: skip
    add("Rademacher, P = 3", lambda: smi.priors.Rademacher().overlap(0.5 * jnp.eye(3) + 0.1))
    add(
        "BernoulliGauss, P = 4",
        lambda: smi.priors.BernoulliGauss(0.5).overlap(0.5 * jnp.eye(4) + 0.1),
    )


@group
def channels(add):
    """channel.posterior at fixed ω, V."""
    for name, build in INDEX_MODELS.items():
        if name in (
            "product 3",
            "attention, all untied, heads, rank 2",
            "attention, hardmax",
            "attention 3",
            "attention, ranks",
        ):
            continue
        noise = {"user, noise": 0.3, "user, two indices and tokens": 0.3, "user, vector label": 0.4, "attention, noise": 0.1,
                 "linear": 0.4, "linear, 2 tokens": 0.3}.get(name, 0.0)  # fmt: skip
        add(name, lambda build=build, noise=noise: posterior(build(), noise=noise, key=key(1)))
    add("log likelihood", lambda: posterior(likelihood_model(), y=jnp.asarray(-1.0)))
    add(
        "attention 2, small V",
        lambda: posterior(smi.DeepAttention(2, 2, tolerance=1e-4), seed=3, spread=0.01),
    )
    add(
        "attention, rank 2 below",
        lambda: posterior(smi.DeepAttention(2, 2, 0.5, ranks=(2, 1), tolerance=3e-2), seed=1),
    )
    add(
        "attention 3",
        lambda: posterior(smi.DeepAttention(3, 2, [1.0, 0.5], tolerance=5e-2, max_nodes=2**14)),
    )
    add("under vmap", lambda: jax.vmap(
        lambda w: smi.links.phase_retrieval().channel.posterior(1.3, w, 0.5 * jnp.eye(1)).g)(jnp.linspace(-1, 1, 5)[:, None, None]))  # fmt: skip


@group
def gamp_index(add):
    """Message passing of index models: precisions, damping, starts, continuation, record."""
    phase = smi.links.phase_retrieval()
    data = phase.sample(key(1), dimension=150, alpha=2.0)
    words = {"key": key(2), "max_steps": 12}
    add("phase, defaults", lambda: gamp(phase, data, **words))
    for precision in ("outer", "divergence", "state"):
        add(
            f"phase, {precision}",
            lambda precision=precision: gamp(phase, data, precision=precision, **words),
        )
    add("phase, damping, init 0.1", lambda: gamp(phase, data, damping=0.3, init=0.1, **words))
    add(
        "phase, not calibrated, outer",
        lambda: gamp(phase, data, calibrate=False, precision="outer", **words),
    )
    add("phase, not calibrated", lambda: gamp(phase, data, calibrate=False, **words))
    add("phase, informed", lambda: gamp(phase, data, init="informed", **words))
    add("phase, from weights", lambda: gamp(phase, data, init=0.5 * data.teacher, **words))
    add("phase, side information", lambda: gamp(phase, data, side_information=0.3, **words))
    add("phase, side information traced", lambda: jax.vmap(
        lambda s: gamp(phase, data, side_information=s, key=key(2), max_steps=4).overlap)(jnp.asarray([0.1, 0.4])))  # fmt: skip
    first = lambda: gamp(phase, data, key=key(2), max_steps=5)
    add("phase, continued", lambda: gamp(phase, data, state=first().state, key=key(2), max_steps=7))
    add(
        "phase, continued, damped, other key",
        lambda: gamp(phase, data, state=first().state, key=key(5), max_steps=4, damping=0.2),
    )
    add(
        "phase, record",
        lambda: gamp(
            phase, data, record=norm_and_precision, record_every=3, key=key(2), max_steps=10
        ),
    )
    add("phase, progress", lambda: gamp(phase, data, progress=True, **words))
    add(
        "phase, to the end",
        lambda: gamp(phase, data, key=key(2), max_steps=60, record_every=10, tolerance=1e-3),
    )
    add("phase, own data", lambda: gamp(phase, smi.Dataset(data.inputs, data.labels), **words))
    add(
        "phase, jit",
        lambda: (
            jax.jit(lambda y: gamp(phase, smi.Dataset(data.inputs, y, data.teacher), **words))(
                data.labels
            ).overlap
        ),
    )
    add(
        "phase, trajectory and cosine",
        lambda: (lambda s: {"t": s.trajectory, "c": s.cosine, "m": s.message})(
            gamp(phase, data, **words)
        ),
    )
    add(
        "phase, diverges",
        lambda: gamp(
            phase,
            data,
            init=30.0,
            precision="divergence",
            calibrate=False,
            key=key(2),
            max_steps=30,
            record_every=10,
        ),
    )
    more = {
        "linear": (lambda: smi.links.linear(0.3), 200, 2.0), "linear, 2 tokens": (lambda: smi.links.linear(0.1, tokens=2), 100, 2.0),
        "linear, variance": (lambda: smi.links.linear(0.3, prior=smi.priors.Gaussian([[0.6]])), 200, 2.0),
        "sign": (lambda: smi.links.sign(), 200, 2.0), "sign, Rademacher": (lambda: smi.links.sign(smi.priors.Rademacher()), 200, 1.7),
        "phase, sparse": (lambda: smi.links.phase_retrieval(prior=smi.priors.BernoulliGauss(0.4)), 200, 1.5),
        "phase, squared": (lambda: smi.links.phase_retrieval(squared=True), 150, 2.0),
        "sign product 2, covariance": (
            lambda: smi.links.sign_product(2, smi.priors.Gaussian([[1.0, 0.3], [0.3, 0.8]])), 150, 4.0),
        "sign product 3": (lambda: smi.links.sign_product(3), 100, 3.0),
        "product 2": (lambda: smi.links.product(2), 100, 2.0),
        "square plus sign parity": (lambda: smi.links.square_plus_sign_parity(), 100, 3.0),
        "user, noise": (user_model, 150, 2.0),
    }  # fmt: skip
    for name, (build, D, alpha) in more.items():

        def one(build=build, D=D, alpha=alpha):
            model = build()
            return gamp(
                model, model.sample(key(1), dimension=D, alpha=alpha), key=key(2), max_steps=10
            )

        add(name, one)

    def one():
        model = smi.MultiIndex(pair_link, indices=2, tokens=2, noise=0.1, tolerance=3e-2)
        return gamp(
            model, model.sample(key(1), dimension=40, alpha=2.0), key=key(2), max_steps=4, init=0.3
        )

    add("user, two indices and tokens", one)
    add(
        "user, log likelihood",
        lambda: gamp(likelihood_model(), likelihood_data(), key=key(2), max_steps=10),
    )

    def predictions():
        model = smi.links.linear(0.1)
        data = model.sample(key(1), dimension=100, alpha=3.0)
        run = gamp(model, data, key=key(2))
        return {
            "run": run,
            "predict": model.predict(run, data.inputs[:10]),
            "align": Digest(smi.align(run.weights, data.teacher, model)),
        }

    add("linear, predictions", predictions)


@group
def gamp_attention(add):
    """Message passing of deep attention."""
    cases = {
        "1 layer, 2 tokens": (lambda: smi.DeepAttention(1, 2), 150, 1.0, 12, {}),
        "1 layer, 3 tokens, beta": (lambda: smi.DeepAttention(1, 3, beta=1.7), 100, 0.5, 10, {}),
        "2 layers": (lambda: smi.DeepAttention(2, 2, skip=1.0), 100, 1.2, 10, {}),
        "2 layers, informed": (lambda: smi.DeepAttention(2, 2, skip=1.0), 100, 1.2, 6, {"init": "informed"}),
        "2 layers, side information, damped": (
            lambda: smi.DeepAttention(2, 2, skip=1.0), 100, 1.2, 6, {"side_information": 0.2, "damping": 0.2}),
        "heads": (lambda: smi.DeepAttention(2, 2, 0.7, heads=(2, 1), tolerance=5e-2, max_nodes=2**14), 30, 1.5, 3, {"side_information": 0.2}),
        "untied": (lambda: smi.DeepAttention(2, 2, 0.7, tied=(False, True), tolerance=5e-2, max_nodes=2**14), 30, 1.5, 3, {"side_information": 0.2}),
        "noise": (lambda: smi.DeepAttention(1, 2, noise=0.05), 80, 1.0, 8, {}),
    }  # fmt: skip
    for name, (build, D, alpha, steps, more) in cases.items():

        def one(build=build, D=D, alpha=alpha, steps=steps, more=more):
            model = build()
            return gamp(
                model,
                model.sample(key(1), dimension=D, alpha=alpha),
                key=key(2),
                max_steps=steps,
                **more,
            )

        add(name, one)


@group
def gamp_matrix(add):
    """Message passing of matrix models."""
    soft = smi.AttentionIndexed(2, 0.5)
    data = soft.sample(key(1), dimension=30, alpha=0.15)
    words = {"key": key(2), "max_steps": 15}
    add("softmax 2", lambda: gamp(soft, data, **words))
    add(
        "softmax 2, outer, damping",
        lambda: gamp(soft, data, precision="outer", damping=0.5, **words),
    )
    add("softmax 2, informed", lambda: gamp(soft, data, init="informed", **words))
    add("softmax 2, side information", lambda: gamp(soft, data, side_information=0.4, **words))
    add("softmax 2, continued, record", lambda: gamp(
        soft, data, state=gamp(soft, data, key=key(2), max_steps=4).state, key=key(2), max_steps=6, record=norm_and_precision, record_every=2))  # fmt: skip
    add("softmax 2, undamped", lambda: gamp(soft, data, damping=0.0, key=key(2), max_steps=25))
    add("softmax 2, restarted with more damping", lambda: gamp(
        smi.AttentionIndexed(2, 0.5, beta=3.0), smi.AttentionIndexed(2, 0.5, beta=3.0).sample(key(1), dimension=30, alpha=0.4), key=key(2), max_steps=40))  # fmt: skip
    add(
        "softmax 2, regenerated",
        lambda: gamp(
            soft,
            soft.sample(key(1), dimension=16, alpha=0.25, store=False),
            key=key(2),
            max_steps=6,
        ),
    )
    add(
        "softmax 2, float32",
        lambda: gamp(
            soft,
            soft.sample(key(1), dimension=16, alpha=0.25, dtype=jnp.float32),
            key=key(2),
            max_steps=6,
        ),
    )
    add("softmax 2, predict", lambda: soft.predict(gamp(soft, data, **words), data.inputs[:6]))
    cases = {
        "softmax 3": (lambda: smi.AttentionIndexed(3, 0.4, beta=1.5), 24, 0.1), "linear 2, noise": (lambda: smi.AttentionIndexed(2, 0.5, "linear", noise=0.1), 24, 0.15),
        "linear 1": (lambda: smi.AttentionIndexed(1, 0.5, "linear"), 24, 0.3), "hardmax 2": (lambda: smi.AttentionIndexed(2, 0.5, "hardmax"), 24, 0.3),
        "bilinear": (lambda: smi.Bilinear(1.0, 0.25), 20, 0.6), "bilinear, long, noise": (lambda: smi.Bilinear(2.0, 0.25, 0.1), 14, 0.5),
        "bilinear, short": (lambda: smi.Bilinear(0.5, 0.25), 20, 0.6), "quadratic, noise": (lambda: smi.Bilinear(1.0, 0.5, 0.1, symmetric=True), 20, 0.4),
    }  # fmt: skip
    for name, (build, d, alpha) in cases.items():

        def one(build=build, d=d, alpha=alpha):
            model = build()
            return gamp(model, model.sample(key(1), dimension=d, alpha=alpha), **words)

        add(name, one)
    bilinear = smi.Bilinear(1.0, 0.25)
    small = bilinear.sample(key(1), dimension=16, alpha=0.7)
    add(
        "bilinear, to the end",
        lambda: gamp(bilinear, small, key=key(2), max_steps=150, record_every=10),
    )
    add(
        "bilinear, outer",
        lambda: gamp(bilinear, small, key=key(2), max_steps=10, precision="outer"),
    )
    add(
        "bilinear, regenerated",
        lambda: gamp(
            bilinear,
            bilinear.sample(key(1), dimension=16, alpha=0.5, store=False),
            key=key(2),
            max_steps=6,
        ),
    )


@group
def gamp_storage(add):
    """Other precisions, inputs that are not stored, samples spread over devices (one here)."""
    model = smi.links.phase_retrieval()
    words = {"key": key(2), "max_steps": 8}
    draw = lambda **more: model.sample(key(1), dimension=160, alpha=2.0, **more)
    add("float32", lambda: gamp(model, draw(dtype=jnp.float32), **words))
    add("bfloat16", lambda: gamp(model, draw(dtype=jnp.bfloat16), **words))
    add("regenerated", lambda: gamp(model, draw(store=False), **words))
    add("regenerated, float64", lambda: gamp(model, draw(store=False, dtype=jnp.float64), **words))
    add("regenerated, then stored", lambda: gamp(model, draw(store=False).stored(), **words))
    add("sharded", lambda: gamp(model, draw().sharded(), **words))
    add("sharded, regenerated", lambda: gamp(model, draw(store=False).sharded(), **words))
    add(
        "two layers, float32",
        lambda: (
            lambda m: gamp(
                m,
                m.sample(key(1), dimension=60, alpha=1.2, dtype=jnp.float32),
                key=key(2),
                max_steps=4,
            )
        )(smi.DeepAttention(2, 2)),
    )


FEW = {"samples": 2**10, "randomisations": 4}


@group
def evolution_index(add):
    """State evolution of index models."""
    phase = smi.links.phase_retrieval()
    add("phase", lambda: evolve(phase, 0.8, key=key(1), **FEW))
    add("phase, not learned", lambda: evolve(phase, 0.3, key=key(1), **FEW))
    add("phase, recovered", lambda: evolve(phase, 1.4, key=key(1), **FEW))
    add(
        "phase, plain iteration",
        lambda: evolve(phase, 0.8, key=key(1), newton=False, max_steps=40, **FEW),
    )
    add("phase, too few steps", lambda: evolve(phase, 0.55, key=key(1), max_steps=5, **FEW))
    add("phase, informed", lambda: evolve(phase, 0.8, key=key(1), q0=0.95, **FEW))
    add(
        "phase, side information",
        lambda: evolve(phase, 0.4, key=key(1), side_information=0.05, **FEW),
    )
    add("phase, tolerance", lambda: evolve(phase, 0.8, key=key(1), tolerance=1e-8, **FEW))
    add("phase, progress", lambda: evolve(phase, 0.8, key=key(1), progress=True, **FEW))
    add(
        "phase, other key, 8 nets",
        lambda: evolve(phase, 0.8, key=key(7), samples=2**11, randomisations=8),
    )
    add(
        "phase, vmap",
        lambda: jax.vmap(lambda a: evolve(phase, a, key=key(1), **FEW))(
            jnp.asarray([0.4, 0.7, 1.3])
        ),
    )
    add(
        "phase, jit, bad alpha",
        lambda: jax.jit(lambda a: evolve(phase, a, key=key(1), **FEW))(-1.0),
    )
    add("linear, 2 tokens", lambda: evolve(smi.links.linear(0.1, tokens=2), 0.6, key=key(1), **FEW))
    add(
        "linear, variance",
        lambda: evolve(
            smi.links.linear(0.3, prior=smi.priors.Gaussian([[0.6]])), 1.0, key=key(1), **FEW
        ),
    )
    add(
        "linear, noiseless, recovered",
        lambda: evolve(smi.links.linear(0.0), 1.5, key=key(1), **FEW),
    )
    add("sign", lambda: evolve(smi.links.sign(), 1.5, key=key(1), **FEW))
    add(
        "sign, Rademacher",
        lambda: evolve(smi.links.sign(smi.priors.Rademacher()), 1.2, key=key(1), **FEW),
    )
    add(
        "phase, sparse",
        lambda: evolve(
            smi.links.phase_retrieval(prior=smi.priors.BernoulliGauss(0.4)), 0.7, key=key(1), **FEW
        ),
    )
    add("sign product 2, covariance", lambda: evolve(
        smi.links.sign_product(2, smi.priors.Gaussian([[1.0, 0.3], [0.3, 0.8]])), 4.0, key=key(1), **FEW))  # fmt: skip
    add("sign product 2, q0 a matrix", lambda: evolve(
        smi.links.sign_product(2), 3.5, key=key(1), q0=np.array([[0.5, 0.1], [0.1, 0.3]]), **FEW))  # fmt: skip
    add(
        "sign product 3",
        lambda: evolve(
            smi.links.sign_product(3),
            4.0,
            key=key(1),
            q0=0.3,
            max_steps=20,
            samples=2**9,
            randomisations=4,
        ),
    )
    add(
        "product 2",
        lambda: evolve(
            smi.links.product(2), 1.2, key=key(1), max_steps=30, samples=2**8, randomisations=4
        ),
    )
    add(
        "square plus sign parity",
        lambda: evolve(
            smi.links.square_plus_sign_parity(),
            2.0,
            key=key(1),
            max_steps=20,
            samples=2**9,
            randomisations=4,
        ),
    )
    add("user, noise", lambda: evolve(user_model(), 1.0, key=key(1), **FEW))
    add("user, two indices and tokens", lambda: evolve(
        smi.MultiIndex(pair_link, indices=2, tokens=2, noise=0.1, tolerance=5e-2), 1.0, key=key(1), q0=0.4, max_steps=4, samples=2**6, randomisations=2))  # fmt: skip


@group
def evolution_attention(add):
    """State evolution of deep attention."""
    add("1 layer, 2 tokens", lambda: evolve(smi.DeepAttention(1, 2), 0.4, key=key(1), **FEW))
    add(
        "1 layer, 3 tokens",
        lambda: evolve(smi.DeepAttention(1, 3, beta=1.4), 0.25, key=key(1), **FEW),
    )
    add("1 layer, recovered", lambda: evolve(smi.DeepAttention(1, 2), 0.7, key=key(1), **FEW))
    two = smi.DeepAttention(2, 2, skip=1.0)
    small = {"samples": 2**9, "randomisations": 4}
    add("2 layers, 0.5", lambda: evolve(two, 0.5, key=key(1), **small))
    add("2 layers, 0.8", lambda: evolve(two, 0.8, key=key(1), **small))
    add(
        "2 layers, plain", lambda: evolve(two, 0.5, key=key(1), newton=False, max_steps=10, **small)
    )
    tiny = {"samples": 2**6, "randomisations": 2, "max_steps": 4}
    add(
        "heads",
        lambda: evolve(
            smi.DeepAttention(2, 2, 0.7, heads=(2, 1), tolerance=5e-2, max_nodes=2**14),
            0.9,
            key=key(1),
            q0=0.3,
            **tiny,
        ),
    )
    add(
        "untied",
        lambda: evolve(
            smi.DeepAttention(2, 2, 0.7, tied=(False, True), tolerance=5e-2, max_nodes=2**14),
            0.9,
            key=key(1),
            q0=0.3,
            **tiny,
        ),
    )
    add("noise", lambda: evolve(smi.DeepAttention(1, 2, noise=0.05), 0.6, key=key(1), **small))


MATRIX_POINTS = {
    "softmax 2": (lambda: smi.AttentionIndexed(2, 0.5), (0.05, 0.1, 0.3)),
    "softmax 3, beta": (lambda: smi.AttentionIndexed(3, 1.5, beta=2.0), (0.03, 0.08)),
    "hardmax 2": (lambda: smi.AttentionIndexed(2, 0.5, "hardmax"), (0.1, 1.0)),
    "hardmax 3": (lambda: smi.AttentionIndexed(3, 0.5, "hardmax"), (0.1, 1.0)),
    "linear 2, noise": (lambda: smi.AttentionIndexed(2, 0.5, "linear", noise=0.2), (0.1, 1.0)),
    "linear 1": (lambda: smi.AttentionIndexed(1, 0.5, "linear"), (0.1, 0.5)),
    "bilinear": (lambda: smi.Bilinear(1.0, 0.2), (0.1, 0.3, 0.5)),
    "bilinear, long, noise": (lambda: smi.Bilinear(3.0, 0.4, 0.1), (0.1, 0.8)),
    "bilinear, short": (lambda: smi.Bilinear(0.3, 0.2), (0.3,)),
    "bilinear, infinite": (lambda: smi.Bilinear(np.inf, 0.4), (0.1, 0.3)),
    "quadratic, noise": (lambda: smi.Bilinear(1.0, 0.5, 0.1, symmetric=True), (0.1, 0.6)),
}


@group
def evolution_matrix(add):
    """State evolution, free entropy, errors and thresholds of matrix models."""
    for name, (build, alphas) in MATRIX_POINTS.items():

        def one(build=build, alphas=alphas):
            model, found = build(), {}
            for alpha in alphas:
                sol = evolve(model, alpha)
                at = 0.5 * sol.overlap + 0.2
                found[f"{alpha}"] = {"sol": sol, "phi": smi.free_entropy(model, alpha, at)}
            found["plug-in"] = smi.generalization_error(model, 0.6, key=key(3), samples=2**10)
            found["bayes"] = smi.generalization_error(
                model, 0.6, key=key(3), predictor="bayes", samples=2**10
            )
            return found | {"recovery": smi.recovery_threshold(model)}

        add(name, one)
    soft = smi.AttentionIndexed(2, 0.5)
    add("softmax 2, plain iteration", lambda: evolve(soft, 0.1, newton=False, max_steps=12))
    add(
        "bilinear, plain iteration",
        lambda: evolve(smi.Bilinear(1.0, 0.2), 0.3, newton=False, max_steps=12),
    )
    add(
        "softmax 2, vmap",
        lambda: jax.vmap(lambda a: evolve(soft, a))(jnp.asarray([0.05, 0.12, 0.2])),
    )
    add(
        "bilinear, vmap over width",
        lambda: jax.vmap(lambda r: evolve(smi.Bilinear(1.0, r), 0.3).error)(
            jnp.asarray([0.1, 0.2, 0.5])
        ),
    )
    add("softmax 2, jit, bad alpha", lambda: jax.jit(lambda a: evolve(soft, a))(-1.0))


@group
def derivatives(add):
    """Derivatives of state evolution and of what follows from it."""
    phase = smi.links.phase_retrieval()
    few = {"samples": 2**9, "randomisations": 4}
    q = lambda model, alpha: evolve(model, alpha, key=key(1), **few).overlap[0, 0]
    add("phase, alpha, reverse", lambda: jax.grad(lambda a: q(phase, a))(0.8))
    add(
        "phase, alpha, forward",
        lambda: jax.jvp(lambda a: evolve(phase, a, key=key(1), **few).error, (0.8,), (1.0,)),
    )
    add("phase, recovered", lambda: jax.grad(lambda a: q(phase, a))(1.4))
    add(
        "sign, alpha (jumps)",
        lambda: jax.grad(lambda a: evolve(smi.links.sign(), a, key=key(1), **few).error)(1.5),
    )
    add(
        "linear, alpha and noise",
        lambda: jax.grad(lambda a, n: q(smi.links.linear(n), a), argnums=(0, 1))(1.0, 0.3),
    )
    add(
        "linear, variance",
        lambda: jax.grad(
            lambda v: q(smi.links.linear(0.3, prior=smi.priors.Gaussian(v * jnp.eye(1))), 1.0)
        )(0.6),
    )
    add(
        "phase, density",
        lambda: jax.grad(
            lambda r: q(smi.links.phase_retrieval(prior=smi.priors.BernoulliGauss(r)), 0.7)
        )(0.4),
    )
    add("user, slope of the link", lambda: jax.grad(lambda s: q(steep(s), 1.0))(1.5))
    add(
        "attention 1, beta",
        lambda: jax.grad(lambda b: q(smi.DeepAttention(1, 2, beta=b), 0.4))(1.2),
    )
    add("attention 2, skip, alpha", lambda: jax.jacfwd(
        lambda p: evolve(smi.DeepAttention(2, 2, skip=p[0]), p[1], key=key(1), samples=2**8, randomisations=4).overlap)(jnp.asarray([1.0, 0.5])))  # fmt: skip
    V = lambda *p: evolve(smi.AttentionIndexed(2, p[1], beta=p[2]), p[0]).error
    add("softmax, all, reverse", lambda: jax.grad(V, argnums=(0, 1, 2))(0.1, 0.5, 1.3))
    add("softmax, alpha, twice", lambda: jax.jacfwd(jax.jacfwd(V))(0.1, 0.5, 1.3))
    add(
        "hardmax, alpha",
        lambda: jax.grad(lambda a: evolve(smi.AttentionIndexed(2, 0.5, "hardmax"), a).error)(0.5),
    )
    add("linear indices, noise", lambda: jax.jvp(
        lambda n: evolve(smi.AttentionIndexed(2, 0.5, "linear", noise=n), 0.2).error, (0.2,), (1.0,)))  # fmt: skip
    add(
        "bilinear, all",
        lambda: jax.grad(
            lambda a, b, r, n: evolve(smi.Bilinear(b, r, n), a).error, argnums=(0, 1, 2, 3)
        )(0.3, 2.0, 0.4, 0.1),
    )
    add(
        "bilinear, recovery",
        lambda: jax.grad(lambda r: smi.recovery_threshold(smi.Bilinear(1.0, r)).alpha)(0.2),
    )
    add(
        "free entropy, overlap",
        lambda: jax.grad(lambda x: smi.free_entropy(phase, 0.8, x, key=key(1), **few).value)(0.5),
    )
    add(
        "free entropy, matrix",
        lambda: jax.grad(lambda x: smi.free_entropy(smi.AttentionIndexed(2, 0.5), 0.1, x).value)(
            0.5
        ),
    )
    add(
        "generalization error",
        lambda: jax.grad(
            lambda x: smi.generalization_error(phase, x, key=key(1), samples=2**10).value
        )(0.5),
    )


@group
def potential(add):
    """Free entropy and prediction error of index models."""
    few = {"key": key(1), **FEW}
    phase = smi.links.phase_retrieval()
    add(
        "phase, three overlaps",
        lambda: [smi.free_entropy(phase, 0.8, q, **few) for q in (0.0, 0.4, 0.9)],
    )
    add("linear", lambda: smi.free_entropy(smi.links.linear(1.0), 1.0, 0.3, **few))
    add(
        "sign, Rademacher",
        lambda: smi.free_entropy(smi.links.sign(smi.priors.Rademacher()), 1.2, 0.5, **few),
    )
    add(
        "sign product 2, a matrix",
        lambda: smi.free_entropy(
            smi.links.sign_product(2), 3.0, np.array([[0.5, 0.1], [0.1, 0.3]]), **few
        ),
    )
    add("attention 1", lambda: smi.free_entropy(smi.DeepAttention(1, 2), 0.4, 0.5, **few))
    add(
        "attention 2",
        lambda: smi.free_entropy(
            smi.DeepAttention(2, 2),
            0.5,
            np.diag([0.1, 0.7]),
            key=key(1),
            samples=2**9,
            randomisations=4,
        ),
    )
    add(
        "phase, at a solution",
        lambda: smi.free_entropy(phase, 0.8, evolve(phase, 0.8, **few), **few),
    )
    add(
        "phase, jit, out of range",
        lambda: jax.jit(lambda q: smi.free_entropy(phase, 0.8, q, **few).value)(2.0),
    )
    for name in (
        "linear",
        "sign",
        "phase retrieval",
        "sign product 2",
        "user, two indices and tokens",
        "attention 2",
        "attention, hardmax",
    ):

        def one(name=name):
            model = INDEX_MODELS[name]()
            q = 0.6 * model.prior.second_moment(model.indices)
            return {
                p: smi.generalization_error(model, q, key=key(2), predictor=p, samples=2**11)
                for p in ("plug-in", "bayes")
            }

        add(f"errors, {name}", one)
    add(
        "error at a solution",
        lambda: smi.generalization_error(
            phase, evolve(phase, 0.8, **few), key=key(2), samples=2**11
        ),
    )


@group
def thresholds(add):
    """Weak recovery, staircase, perfect recovery."""
    few = {"samples": 2**10, "randomisations": 4}
    for name, build in {
        "phase": lambda: smi.links.phase_retrieval(), "linear (at once)": lambda: smi.links.linear(0.1), "sign product 2": lambda: smi.links.sign_product(2),
        "sign product 3 (never)": lambda: smi.links.sign_product(3), "product 2": lambda: smi.links.product(2),
        "phase, Rademacher": lambda: smi.links.phase_retrieval(prior=smi.priors.Rademacher()),
        "sign product 2, covariance": lambda: smi.links.sign_product(2, smi.priors.Gaussian([[1.0, 0.3], [0.3, 0.8]])),
        "attention 1, 3 tokens": lambda: smi.DeepAttention(1, 3), "attention 2": lambda: smi.DeepAttention(2, 2),
        "user": lambda: steep(1.5), "square plus sign parity": lambda: smi.links.square_plus_sign_parity(),
    }.items():  # fmt: skip

        def one(build=build, name=name):
            return smi.weak_recovery(
                build(),
                key=key(1),
                **(few if name != "product 2" else {"samples": 2**8, "randomisations": 4}),
            )

        add(f"weak, {name}", one)
    add(
        "weak, interval",
        lambda: smi.weak_recovery(smi.links.phase_retrieval(), key=key(1), **few).interval(0.9),
    )
    add("weak, derivative in noise", lambda: jax.grad(lambda n: smi.weak_recovery(
        smi.MultiIndex(lambda z: z[0, 0] ** 2, indices=1, noise=n), key=key(1), **few).alpha)(0.3))  # fmt: skip
    add("weak, derivative in beta and skip, forward", lambda: jax.jacfwd(lambda p: smi.weak_recovery(
        smi.DeepAttention(2, 2, skip=p[0], beta=p[1]), key=key(1), samples=2**8, randomisations=4).alpha)(jnp.asarray([1.0, 1.2])))  # fmt: skip
    add(
        "weak, vmap",
        lambda: jax.vmap(
            lambda b: smi.weak_recovery(smi.DeepAttention(1, 2, beta=b), key=key(1), **few).alpha
        )(jnp.asarray([0.8, 1.5])),
    )
    add("staircase, square plus sign parity", lambda: smi.staircase(
        smi.links.square_plus_sign_parity(), key=key(1), samples=2**8, replicas=2, alpha_max=6.0))  # fmt: skip

    def stairs():
        first = smi.staircase(
            smi.DeepAttention(2, 2), key=key(1), samples=2**8, replicas=2, alpha_max=2.0
        )
        again = smi.staircase(
            smi.DeepAttention(2, 2, skip=1.1),
            key=key(1),
            samples=2**8,
            replicas=2,
            alpha_max=2.0,
            guess=first,
            steps=2,
        )
        return {"first": first, "again": again}

    add("staircase, attention 2, and with a guess", stairs)
    add(
        "staircase, low alpha_max",
        lambda: {
            "none": len(
                smi.staircase(
                    smi.links.sign_product(2), key=key(1), samples=2**8, replicas=2, alpha_max=0.1
                )
            )
        },
    )
    for name, build in {"attention 1": lambda: smi.DeepAttention(1, 2), "attention 3": lambda: smi.DeepAttention(3, 2, ranks=(2, 1, 1)),
                        "phase": lambda: smi.links.phase_retrieval(), "product": lambda: smi.links.product(2)}.items():  # fmt: skip
        add(f"perfect, {name}", lambda build=build: smi.recovery_threshold(build()))


@group
def staircase_derivative(add):
    """The derivative of the second step of a staircase."""
    add("attention 2, skip", lambda: jax.jvp(lambda c: smi.staircase(
        smi.DeepAttention(2, 2, skip=c), key=key(1), samples=2**8, replicas=2, alpha_max=2.0, steps=2)[-1].alpha, (1.0,), (1.0,)))  # fmt: skip


@group
def first_order(add):
    """First-order transitions."""
    add("sign, Rademacher", lambda: first_order_parts(smi.first_order(
        smi.links.sign(prior=smi.priors.Rademacher()), key=key(1), alpha_min=0.9, alpha_max=2.0, points=5, samples=2**10, replicas=2, max_steps=300)))  # fmt: skip
    add(
        "linear, none",
        lambda: first_order_parts(
            smi.first_order(smi.links.linear(0.1), key=key(1), points=4, samples=2**9)
        ),
    )
    add("phase (perfect, continuous)", lambda: first_order_parts(smi.first_order(
        smi.links.phase_retrieval(), key=key(1), alpha_min=0.7, alpha_max=1.6, points=5, samples=2**10, replicas=2, max_steps=300)))  # fmt: skip


@group
def search(add):
    """Threshold search."""
    noisy = lambda n: smi.MultiIndex(lambda z: z[0, 0] ** 2, indices=1, noise=jnp.exp(n))
    add(
        "target",
        lambda: search_parts(
            smi.search_threshold(
                noisy, -1.0, key=key(1), target=1.0, samples=2**9, replicas=4, max_steps=3
            )
        ),
    )
    add("minimise, Adam", lambda: search_parts(smi.search_threshold(
        lambda p: smi.DeepAttention(1, 2, beta=jnp.exp(p["beta"])), {"beta": 0.0}, key=key(1), samples=2**9, replicas=4, max_steps=2,
        optimizer=optax.adam(0.1))))  # fmt: skip


@group
def train_index(add):
    """Training of index models: optimisers, batches, stopping, continuation, streams."""
    model = smi.MultiIndex(lambda z: jnp.tanh(z[0, 0]) + z[1, 0] * z[1, 1], indices=2, tokens=2)
    data = model.sample(key(1), dimension=40, alpha=4.0)
    words = {"key": key(2), "steps": 30}
    adam = optax.adam(0.05)
    add("adam, all samples", lambda: train(model, data, adam, **words))
    add("adam, batches", lambda: train(model, data, adam, batch_size=17, record_every=5, **words))
    add("momentum, decay, sum/D, repeats", lambda: train(
        model, data, optax.chain(optax.add_decayed_weights(0.01), optax.sgd(0.1, momentum=0.9)), reduction="sum/D", repeats=2, batch_size=40, **words))  # fmt: skip
    add(
        "sgd, sum, schedule",
        lambda: train(
            model,
            data,
            optax.sgd(optax.cosine_decay_schedule(0.005, 30)),
            reduction="sum",
            batch_size=20,
            **words,
        ),
    )
    add("lbfgs", lambda: train(model, data, optax.lbfgs(), key=key(2), steps=8))
    add(
        "one pass",
        lambda: train(
            model, data, optax.sgd(0.5), batch_size=16, one_pass=True, key=key(2), steps=9
        ),
    )
    add("several keys", lambda: train(model, data, adam, batch_size=20, key=keys(3), steps=20))
    add("continued", lambda: train(model, data, adam, batch_size=17, key=key(2), steps=12, state=train(
        model, data, adam, batch_size=17, key=key(2), steps=9).state, record_every=4))  # fmt: skip
    add(
        "several keys, continued",
        lambda: train(
            model,
            data,
            adam,
            key=keys(3),
            steps=8,
            state=train(model, data, adam, key=keys(3), steps=5).state,
        ),
    )
    add(
        "patience",
        lambda: train(
            model, data, optax.sgd(3.0), patience=2, record_every=2, key=key(2), steps=40
        ),
    )
    add(
        "target",
        lambda: train(
            model, data, optax.adam(0.1), target=0.8, record_every=5, key=key(2), steps=120
        ),
    )
    add(
        "target, several keys",
        lambda: train(
            model, data, optax.adam(0.1), target=0.7, record_every=5, key=keys(3), steps=80
        ),
    )
    add("record", lambda: train(model, data, adam, record=weight_norm, record_every=10, **words))
    add(
        "test set",
        lambda: train(
            model,
            data,
            adam,
            test=model.sample(key(5), dimension=40, alpha=2.0, teacher=data.teacher),
            **words,
        ),
    )
    add(
        "own loss, init small",
        lambda: train(
            model, data, adam, loss=lambda p, y: jnp.sum(jnp.abs(p - y)), init=0.1, **words
        ),
    )
    add("from weights", lambda: train(model, data, adam, init=0.9 * data.teacher, **words))
    add("no teacher", lambda: train(model, smi.Dataset(data.inputs, data.labels), adam, **words))
    add(
        "progress",
        lambda: train(model, data, adam, progress=True, batch_size=17, record_every=5, **words),
    )
    add(
        "vmap over rates",
        lambda: jax.vmap(lambda r: train(model, data, optax.sgd(r), key=key(2), steps=10))(
            jnp.asarray([0.1, 0.5])
        ),
    )
    add("diverges", lambda: train(model, data, optax.sgd(1e6), key=key(2), steps=20))
    add(
        "float32",
        lambda: train(
            model,
            model.sample(key(1), dimension=40, alpha=4.0, dtype=jnp.float32),
            adam,
            batch_size=17,
            **words,
        ),
    )
    add("sharded", lambda: train(model, data.sharded(), adam, **words))
    phase = smi.links.phase_retrieval()
    stream = lambda **more: smi.Stream(phase, phase.start(key(3), 50), **more)
    add(
        "stream",
        lambda: train(phase, stream(), optax.sgd(2.0), batch_size=10, key=key(2), steps=30),
    )
    add("stream, float32, several keys, repeats", lambda: train(
        phase, stream(dtype=jnp.float32), optax.sgd(1.0), batch_size=10, repeats=2, key=keys(2), steps=20))  # fmt: skip
    add("stream, continued", lambda: train(phase, stream(), optax.sgd(2.0), batch_size=10, key=key(2), steps=10, state=train(
        phase, stream(), optax.sgd(2.0), batch_size=10, key=key(2), steps=10).state))  # fmt: skip
    cases = {
        "attention 2": lambda: smi.DeepAttention(2, 2), "attention, all untied, heads, rank 2": lambda: smi.DeepAttention(2, 3, 0.5, ranks=2, heads=2, tied=False),
        "product 3": lambda: smi.links.product(3), "square plus sign parity": lambda: smi.links.square_plus_sign_parity(),
    }  # fmt: skip
    for name, build in cases.items():

        def one(build=build):
            m = build()
            return train(
                m,
                m.sample(key(1), dimension=40, alpha=5.0),
                adam,
                batch_size=50,
                key=key(2),
                steps=30,
            )

        add(name, one)

    def student():
        hard, soft = (
            smi.DeepAttention(1, 2, activation="hardmax"),
            smi.DeepAttention(1, 2, beta=4.0),
        )
        data = hard.sample(key(1), dimension=40, alpha=10.0)
        fit = train(soft, data, adam, key=key(2), steps=40)
        return {"fit": fit, "predict": soft.predict(fit, data.inputs[:5])}

    add("softmax student of a hardmax teacher", student)


@group
def train_matrix(add):
    """Training of matrix models, and their averages."""

    def runs(model, d, alpha, **more):
        data = model.sample(key(1), dimension=d, alpha=alpha)
        return data, train(model, data, optax.adam(0.05), key=keys(3), steps=40, **more)

    def averaged(model, d, alpha):
        data, fit = runs(model, d, alpha)
        averaged = smi.averaged(fit, data.teacher)
        parts = averaged._asdict() if hasattr(averaged, "_asdict") else vars(averaged)
        return {"fit": fit, "averaged": parts}

    add("softmax 2, averaged", lambda: averaged(smi.AttentionIndexed(2, 0.5), 12, 0.3))
    add("two layers, averaged", lambda: averaged(smi.AttentionIndexed(2, 0.25, layers=2), 12, 0.4))
    add("bilinear, averaged", lambda: averaged(smi.Bilinear(1.0, 0.25), 12, 0.5))
    add(
        "bilinear, long, batches",
        lambda: runs(smi.Bilinear(2.0, 0.25, 0.1), 10, 0.5, batch_size=20, record=weight_norm)[1],
    )
    add(
        "quadratic",
        lambda: runs(smi.Bilinear(1.0, 0.5, 0.1, symmetric=True), 12, 0.5, target=0.9)[1],
    )
    add("linear 2, test set", lambda: (lambda m: train(m, m.sample(key(1), dimension=12, alpha=0.3), optax.sgd(1.0), key=key(2), steps=20,
        test=m.sample(key(4), dimension=12, alpha=0.1)))(smi.AttentionIndexed(2, 0.5, "linear", noise=0.1)))  # fmt: skip
    add(
        "stream",
        lambda: (
            lambda m: train(
                m,
                smi.Stream(m, m.start(key(3), 12)),
                optax.adam(0.05),
                batch_size=10,
                key=key(2),
                steps=20,
            )
        )(smi.AttentionIndexed(2, 0.5)),
    )
    add(
        "stream, bilinear",
        lambda: (
            lambda m: train(
                m,
                smi.Stream(m, m.start(key(3), 12)),
                optax.adam(0.05),
                batch_size=10,
                key=key(2),
                steps=20,
            )
        )(smi.Bilinear(1.0, 0.25)),
    )


@group
def learning(add):
    """Order of learning."""
    model = smi.links.linear(0.1)
    data = model.sample(key(1), dimension=60, alpha=4.0)
    methods = lambda: {"GAMP": gamp_method(alpha=2.0, max_steps=10),
                       "Adam": train_method(optimizer=optax.adam(0.05), steps=60, record_every=2, batch_size=60)}  # fmt: skip
    add(
        "order, linear",
        lambda: order_parts(
            smi.learning_order(model, data, methods(), key=key(2), seeds=2, level=0.6)
        ),
    )
    two = smi.DeepAttention(2, 2)
    far = two.sample(key(1), dimension=40, alpha=10.0)
    add("order, attention 2, other student", lambda: order_parts(smi.learning_order(
        two, far, {"Adam": train_method(optimizer=optax.adam(0.05), steps=60, batch_size=100, alpha=8.0),
                   "SGD": train_method(optimizer=optax.sgd(20.0), steps=60, model=smi.DeepAttention(2, 2, skip=0.5))}, key=key(2), seeds=2)))  # fmt: skip
    soft = smi.AttentionIndexed(2, 0.5)
    add("order, softmax 2", lambda: order_parts(smi.learning_order(soft, soft.sample(key(1), dimension=12, alpha=0.3), {
        "GAMP": gamp_method(alpha=0.2, max_steps=10), "Adam": train_method(optimizer=optax.adam(0.05), steps=30)}, key=key(2), seeds=2)))  # fmt: skip
    add(
        "learned at, a run",
        lambda: smi.learned_at(train(model, data, optax.adam(0.05), key=key(2), steps=60), 0.9),
    )
    add(
        "learned at, a batch",
        lambda: smi.learned_at(train(model, data, optax.adam(0.05), key=keys(3), steps=60)),
    )
    add(
        "learned at, state evolution",
        lambda: smi.learned_at(
            [evolve(model, a, key=key(1), **FEW) for a in (0.1, 0.2, 0.3, 0.4)], 0.5
        ),
    )
    add(
        "learned at, GAMP at several alpha",
        lambda: smi.learned_at(
            [gamp(model, data.first(n), key=key(2), max_steps=10) for n in (20, 60, 200)], 0.7
        ),
    )


@group
def baselines(add):
    """Ridge regression and nuclear norm."""
    b = lambda: smi.baselines
    add(
        "ridge",
        lambda: b().ridge_error(
            np.array([0.0, 0.5, 1.0, 2.0])[:, None], np.array([0.0, 0.1, 1.0]), 0.1
        ),
    )
    add(
        "ridge, noiseless",
        lambda: b().ridge_error(np.array([0.0, 0.5, 1.0, 2.0])[:, None], np.array([0.0, 0.1, 1.0])),
    )
    add(
        "nuclear norm threshold",
        lambda: jnp.stack(
            [
                b().nuclear_norm_threshold(x, r)
                for x in (0.5, 1.0, 3.0, np.inf)
                for r in (0.1, 0.4, 2.0)
            ]
        ),
    )
    add(
        "nuclear norm threshold, derivative",
        lambda: jax.grad(b().nuclear_norm_threshold, argnums=(0, 1))(2.0, 0.3),
    )
    model = smi.Bilinear(1.0, 0.2)
    add(
        "nuclear norm, exact",
        lambda: b().minimum_nuclear_norm(model, model.sample(key(1), dimension=10, alpha=0.9)),
    )
    add(
        "nuclear norm, too few",
        lambda: b().minimum_nuclear_norm(
            model, model.sample(key(1), dimension=10, alpha=0.4), max_steps=200
        ),
    )
    long = smi.Bilinear(2.0, 0.2)
    add(
        "nuclear norm, long, own data",
        lambda: (
            lambda d: b().minimum_nuclear_norm(
                long, smi.Dataset(d.inputs, d.labels), tolerance=1e-5
            )
        )(long.sample(key(1), dimension=8, alpha=0.8)),
    )


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
        "bilinear reduction": smi.SequenceSingleIndex(lambda z: z[0] * z[1] + 0.1 * z[0] ** 3, 2, sgd.Attention("bilinear", left=left, right=right), "paired"),
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
                           "loss": model.sample_loss(z, 0.7 * z), "encoding": model.encoding, "overlaps": model.overlaps}  # fmt: skip
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
            lambda t=target, L=length, more=more: sgd.information_exponent(t, L, **more),
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
                "taylor": sgd.taylor(model, 4),
                "hessian": sgd.hessian_at_origin(model),
            }

        add(f"origin, {name}", one)
    add("sample complexity", lambda: {
        "positive": sgd.sample_complexity(trace_problem(MIXED, encoding=None), 1000, 0.1),
        "quadratic": sgd.sample_complexity(trace_problem(HE2), 1000, np.array([0.1, 0.2]), eta=0.4, start=0.05)})  # fmt: skip


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
                "inside": sgd.risk(model, 0.4, e),
                "origin": sgd.risk(model, 0.0),
                "edge": sgd.risk(model, 1.0),
            }
            return found | {"noise": sgd.gradient_noise(model, 0.4, e)}

        add(f"risk, {name}", one)
    for name in ("bilinear reduction", "own student"):
        add(f"risk, {name}", lambda name=name: sgd.risk(sequence_models()[name], 0.4, 0.2))
    add(
        "risk, derivative",
        lambda: jax.grad(
            lambda m, e, w: sgd.risk(sgd.semantic_positional(w, 0.9), m, e).value, argnums=(0, 1, 2)
        )(0.4, 0.3, 0.6),
    )
    add(
        "risk, three tokens",
        lambda: sgd.risk(smi.SequenceSingleIndex(lambda z: jnp.sum(z**2), 3), 0.3),
    )
    add(
        "risk, untied network",
        lambda: {
            "risk": sgd.risk(network_problem(3, False), np.array([0.1, 0.2, -0.3])),
            "noise": sgd.gradient_noise(network_problem(3, False), 0.2),
        },
    )
    sampled = lambda: smi.SequenceSingleIndex(lambda z: jnp.mean(z**2), 5, encoding="orthonormal")
    add(
        "risk, five tokens, sampled",
        lambda: {
            "risk": sgd.risk(sampled(), 0.3, 0.1, key=key(1), samples=2**9),
            "noise": sgd.gradient_noise(sampled(), 0.3, 0.1, key=key(1), samples=2**8),
        },
    )
    add(
        "risk, unsquared loss",
        lambda: sgd.risk(
            sgd.semantic_positional(0.4, loss="frobenius"), 0.3, 0.2, key=key(1), samples=2**10
        ),
    )
    add(
        "risk, kinked network, sampled",
        lambda: sgd.risk(
            smi.SequenceSingleIndex(lambda z: jnp.abs(z[0]) + z[1], 2, sgd.Network(jax.nn.relu)),
            0.3,
            key=key(1),
            samples=2**10,
        ),
    )
    add(
        "Hessian, semantic/positional",
        lambda: {
            "origin": sgd.hessian(sgd.semantic_positional(0.64)),
            "inside": sgd.hessian(sgd.semantic_positional(0.64), 0.3, 0.2),
        },
    )
    add(
        "Hessian, network",
        lambda: {
            "tied": sgd.hessian(network_problem(2), 0.2),
            "untied": sgd.hessian(network_problem(2, False), 0.2),
        },
    )
    add(
        "Hessian, sampled",
        lambda: sgd.hessian(
            sgd.semantic_positional(0.4, loss="frobenius"), 0.3, 0.2, key=key(1), samples=2**7
        ),
    )


@group
def sgd_flow(add):
    """Flow in the limit of many dimensions."""
    sgd = smi.sgd
    net, untied = network_problem(2), network_problem(2, False)
    times = [0.2, 0.5, 1.0, 2.0]
    add("network", lambda: flow_parts(sgd.flow(net, 0.05, times=times)))
    add("network, gamma", lambda: flow_parts(sgd.flow(net, 0.05, times=times, gamma=0.1)))
    add(
        "network, untied, gamma",
        lambda: flow_parts(sgd.flow(untied, [0.05, 0.1], times=times, gamma=0.1)),
    )
    add(
        "network, too few steps", lambda: flow_parts(sgd.flow(net, 0.05, times=[50.0], max_steps=4))
    )
    add("recovery time, network", lambda: {"0": sgd.recovery_time(net, 0.05), "0.1": sgd.recovery_time(net, 0.05, gamma=0.1, eta=0.3),
        "untied": sgd.recovery_time(untied, 0.05, gamma=0.05), "there": sgd.recovery_time(net, 0.7), "never": sgd.recovery_time(net, 0.01, longest=0.1)})  # fmt: skip
    problem = lambda: sgd.semantic_positional(0.6, 1.0)
    add(
        "semantic/positional",
        lambda: flow_parts(sgd.flow(problem(), 0.05, 0.03, times=[2.0, 10.0, 30.0], rtol=1e-5)),
    )
    add(
        "recovery time, semantic/positional",
        lambda: sgd.recovery_time(problem(), 0.05, 0.03, rtol=1e-5),
    )
    add(
        "maximal rate",
        lambda: {
            "network": sgd.maximal_rate(net),
            "untied": sgd.maximal_rate(untied),
            "semantic": sgd.maximal_rate(problem()),
        },
    )
    add("sampled", lambda: flow_parts(sgd.flow(
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
            "semantic": found.semantic,
            "fraction": sgd.semantic_fraction(found),
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
        "full",
        lambda: simulation_parts(
            simulate(
                problem(),
                keys(2),
                dimension=30,
                gamma=0.5,
                steps=300,
                every=50,
                method="full",
                until=0.6,
            )
        ),
    )
    add(
        "full, network",
        lambda: simulation_parts(
            simulate(
                network_problem(2, False),
                keys(2),
                dimension=30,
                gamma=0.05,
                steps=200,
                m=0.3,
                method="full",
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
    add("gain", lambda: sgd.gain(key(0), (1, 2), dimension=60, gamma=0.05, runs=(3, 3)))
    add(
        "gain, sqrt",
        lambda: sgd.gain(
            key(0), (2,), dimension=60, gamma=0.05, runs=(2, 2), schedule="sqrt", patience=0.5
        ),
    )


@group
def sgd_diagram(add):
    """Semantic or positional."""
    sgd = smi.sgd
    a = np.array([0.5, 0.75, 0.9, 1.0])
    add("boundaries", lambda: sgd.boundaries(a))
    add("transition", lambda: sgd.transition(a))
    add("transition, derivative", lambda: jax.grad(lambda x: sgd.transition(x))(0.9))

    def diagram():
        found = sgd.phase_diagram([0.8, 1.0], [0.4, 0.6, 0.7, 0.9], angles=19, radii=6)
        return {"label": found.label, "hessian": found.hessian, "boundaries": found.boundaries, "counts": found.counts(),
                "minima": {f"{i},{j}": m for i, row in enumerate(found.minima) for j, m in enumerate(row)}, "names": "|".join(sgd.LABELS)}  # fmt: skip

    add("phase diagram", diagram)


@group
def sweeps(add):
    """Grids of problems, in memory and in a folder."""
    linear, quick = (lambda noise: smi.links.linear(noise)), {"samples": 512, "randomisations": 4}
    add(
        "state evolution",
        lambda: sweep(linear, [0.5, 1.0, 2.0], {"noise": [0.1, 0.5]}, settings=quick, seeds=2),
    )
    add(
        "list of points, key",
        lambda: sweep(linear, [0.5, 1.0], [{"noise": 0.1}, {"noise": 0.5}], settings=quick, key=3),
    )
    add(
        "to an error bar",
        lambda: sweep(
            lambda: smi.links.phase_retrieval(),
            [0.7, 1.2],
            settings={"stderr": 0.03, "most": 2**12},
        ),
    )
    add(
        "matrix models",
        lambda: sweep(
            lambda rank_ratio: smi.AttentionIndexed(2, rank_ratio),
            [0.05, 0.1],
            {"rank_ratio": [0.2, 0.5, 1.0]},
        ),
    )
    add("a bad point", lambda: sweep(linear, [0.5, 1.0], {"noise": [0.5, -1.0]}, settings=quick))
    add(
        "gamp",
        lambda: sweep(
            linear,
            [1.0, 2.0],
            {"noise": [0.5]},
            solver="gamp",
            seeds=2,
            settings=gamp_method(dimension=60, max_steps=8),
        ),
    )
    add(
        "train",
        lambda: sweep(
            linear,
            [2.0],
            {"noise": [0.1]},
            solver="train",
            seeds=2,
            settings=train_method(dimension=40, steps=30, learning_rate=0.1),
        ),
    )

    def folder():
        import tempfile

        with tempfile.TemporaryDirectory() as out:
            sweep(linear, [0.5, 1.0], {"noise": [0.1, 0.5]}, settings=quick, out=out)
            names = sorted(os.listdir(out))
            os.unlink(os.path.join(out, "row-00001.npz"))
            return {
                "again": sweep(linear, [0.5, 1.0], {"noise": [0.1, 0.5]}, settings=quick, out=out),
                "files": "|".join(names),
            }

    add("folder, continued", folder)

    def own():
        def solver(model, alpha, key, before, **settings):
            return smi.state_evolution(model, alpha, key=key, **settings)

        return sweep(linear, [0.5, 1.0], {"noise": [0.1]}, solver=solver, settings=quick)

    add("own solver", own)


@group
def xarrays(add):
    """Solutions as xarray Datasets."""
    phase = smi.links.phase_retrieval()
    add(
        "state evolution",
        lambda: evolve(phase, 0.8, key=key(1), samples=2**8, randomisations=2).to_xarray(),
    )
    add(
        "gamp",
        lambda: gamp(
            phase,
            phase.sample(key(1), dimension=30, alpha=2.0),
            key=key(2),
            max_steps=5,
            record=norm_and_precision,
        ).to_xarray(note="x"),
    )
    soft = smi.AttentionIndexed(2, 0.5)
    add(
        "matrix, gamp",
        lambda: gamp(
            soft, soft.sample(key(1), dimension=12, alpha=0.15), key=key(2), max_steps=5
        ).to_xarray(),
    )
    add("matrix, theory", lambda: evolve(soft, 0.1).to_xarray())
    add(
        "train",
        lambda: train(
            phase,
            phase.sample(key(1), dimension=30, alpha=2.0),
            optax.adam(0.1),
            key=key(2),
            steps=5,
        ).to_xarray(),
    )

    def attributes():
        found = (
            evolve(phase, 0.8, key=key(1), samples=2**8, randomisations=2).to_xarray(note="x").attrs
        )
        return {
            name: str(value)
            for name, value in sorted(found.items())
            if name in ("kind", "message", "note", "key", "x64")
        }

    add("attributes", attributes)


@group
def text(add):
    """The text classifier."""

    def one():
        questions = smi.text.synthetic_questions(60)
        run = smi.text.classify(
            questions,
            key=key(1),
            epochs=3,
            width=16,
            hidden=8,
            records=6,
            optimizer=optax.adam(1e-2),
        )
        return text_parts(run) | {
            "settled": smi.text.settled_at(run),
            "predict": run.predict([q.text for q in questions[:6]]),
        }

    add("classify", one)
    add(
        "questions", lambda: "|".join(" ".join(q) for q in smi.text.synthetic_questions(14, seed=2))
    )


@group
def refusals(add):
    """What is refused, and how (type and message)."""
    linear = smi.links.linear(0.1)
    data = linear.sample(key(1), dimension=10, alpha=2.0)
    adam = optax.adam(0.1)
    stairs = lambda: smi.staircase(
        smi.links.linear(0.1, prior=smi.priors.Gaussian([[1.0]])),
        key=key(1),
        alpha_max=-1.0,
        samples=64,
        replicas=2,
    )
    cases = {
        "alpha": lambda: smi.state_evolution(linear, -1.0, key=key(1)), "q0": lambda: smi.state_evolution(linear, 1.0, key=key(1), q0=2.0),
        "no key": lambda: smi.state_evolution(linear, 1.0), "hardmax": lambda: smi.gamp(smi.DeepAttention(1, 2, activation="hardmax"), data),
        "noiseless link": lambda: smi.state_evolution(smi.links.product(3), 1.0, key=key(1)), "tokens": lambda: smi.gamp(smi.DeepAttention(1, 2), data),
        "precision": lambda: smi.gamp(linear, data, precision="exact"), "damping": lambda: smi.gamp(linear, data, damping=1.0),
        "labels": lambda: smi.gamp(smi.links.phase_retrieval(), smi.Dataset(data.inputs, -jnp.abs(data.labels[:, 0]))),
        "batch": lambda: train(linear, data, adam, batch_size=0), "sign has no gradient": lambda: train(smi.links.sign(), data, adam),
        "several layers": lambda: smi.state_evolution(smi.AttentionIndexed(2, 0.5, layers=2), 0.1), "rank": lambda: smi.Bilinear(1.0, -0.1),
        "staircase": stairs, "likelihood has no sampler": lambda: likelihood_model().sample(key(1), dimension=10, alpha=1.0),
        "outside the ball": lambda: smi.sgd.risk(sequence_models()["semantic/positional"], 0.9, 0.9), "level": lambda: smi.learned_at([], 0.5),
        "regenerated inputs, train": lambda: train(linear, linear.sample(key(1), dimension=10, alpha=2.0, store=False), adam),
    }  # fmt: skip
    for name, thunk in cases.items():
        add(name, thunk)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("record")
    one.add_argument("file", nargs="?")
    one.add_argument("--only", nargs="*")
    one.add_argument("--list", action="store_true")
    one.add_argument("--again", action="store_true")
    one.add_argument(
        "--cache",
        help="a folder of compiled programs: those that did not change are not compiled again",
    )
    two = commands.add_parser("compare")
    two.add_argument("before")
    two.add_argument("after")
    two.add_argument("--rtol", type=float, default=1e-12)
    two.add_argument(
        "--scale",
        choices=("part", "entry"),
        default="part",
        help="what a difference is relative to",
    )
    two.add_argument("--quiet", action="store_true", help="only what is beyond, and the counts")
    given = parser.parse_args()
    if given.command == "compare":
        return compare(given.before, given.after, given.rtol, given.scale, given.quiet)
    if given.list:
        for name, function in GROUPS.items():
            print(f"{name:22s} {function.__doc__}")
        return 0
    if not given.file:
        parser.error("record needs a FILE")
    global jax, jnp, optax, smi
    import jax
    import jax.numpy as jnp
    import optax

    jax.config.update("jax_enable_x64", True)
    if given.cache:
        jax.config.update("jax_compilation_cache_dir", os.path.abspath(given.cache))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    import jaxsmi as smi

    print(f"jaxsmi: {smi.__file__}", flush=True)
    record(given.file, given.only, given.again)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Sweeps and files: what they hold, what they keep, and how a killed sweep goes on."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsmi as smi
import synthetic
from helpers import linear_overlap
from jaxsmi.core.results import Result
from jaxsmi.core.solution import Threshold, index_names
from jaxsmi.thresholds.transitions import FirstOrder
from jaxsmi.workbench import plotting, storage
from jaxsmi.workbench.rows import OPTIMIZERS, Grid, make_optimizer
from jaxsmi.workbench.storage import atomic_write
from jaxsmi.workbench.sweeps import unconverged

xarray = pytest.importorskip("xarray")
pytest.importorskip("h5py")

ALPHAS, NOISES = [0.5, 1.0, 2.0], [0.1, 0.5]


def linear(noise):
    return smi.links.linear(noise)


def table(**more):
    return smi.sweep(linear, ALPHAS, {"noise": NOISES}, **more)


def same(one, other):
    """Bit for bit, NaN included."""
    assert set(one.data_vars) == set(other.data_vars)
    for name in one.data_vars:
        np.testing.assert_array_equal(one[name].values, other[name].values)


def evolve(model, alpha, key, previous, **settings):
    return smi.state_evolution(model, alpha, key=key, **settings)


# Sweeps


def test_a_grid_is_its_points():
    found = table(seeds=2)
    assert found.overlap.dims == ("noise", "seed", "alpha", "index", "index_")
    assert (found.result.values == Result.SUCCESS).all()
    exact = [[linear_overlap(alpha, noise) for alpha in ALPHAS] for noise in NOISES]
    for seed in (0, 1):
        np.testing.assert_allclose(found.overlap.sel(seed=seed).squeeze(), exact, atol=2e-4)
    same(found.sel(seed=[1]), table(seeds=[1]))


def test_rows_are_kept_and_not_solved_again(tmp_path, capsys):
    first = table(out=tmp_path)
    files = ["row-00000.npz", "row-00001.npz", "sweep.json", "sweep.nc"]
    assert sorted(path.name for path in tmp_path.iterdir()) == files
    before = (tmp_path / files[0]).stat().st_mtime_ns
    (tmp_path / files[1]).write_bytes(b"half a row")
    same(first, table(out=tmp_path))
    assert (tmp_path / files[0]).stat().st_mtime_ns == before
    capsys.readouterr()
    same(first, table(out=tmp_path, progress=True))
    # no bar where nothing is left to do
    assert capsys.readouterr().err == "2 of 2 rows were solved before.\n"
    same(first, storage.load(tmp_path / "sweep.nc"))


@pytest.mark.parametrize("change", [{"seeds": 2}, {"solver": "gamp"}, {"stderr": 0.1}])
def test_a_folder_of_another_sweep_is_refused(tmp_path, change):
    table(out=tmp_path)
    name = "settings" if "stderr" in change else next(iter(change))
    with pytest.raises(ValueError, match=name):
        table(out=tmp_path, **change)
    with pytest.raises(ValueError, match="models"):  # the same values of another parameter
        smi.sweep(lambda noise: linear(2 * noise), ALPHAS, {"noise": NOISES}, out=tmp_path)


def test_a_folder_of_other_work_or_of_another_version_is_said(tmp_path):
    (tmp_path / "sweep.json").write_text('{"name": "another program"}')
    with pytest.raises(ValueError, match=r"^out: got .*does not describe a sweep\.$"):
        table(out=tmp_path)
    (tmp_path / "sweep.json").unlink()
    table(out=tmp_path)
    path = tmp_path / "sweep.json"
    path.write_text(path.read_text().replace(f'"{smi.__version__}"', '"0.0.1"'))
    with pytest.warns(UserWarning, match=r"begun by version 0\.0\.1"):
        table(out=tmp_path)


class Trap:
    """Runs when it is unpickled."""

    def __reduce__(self):
        return (pathlib.Path("unpickled").write_text, ("yes",))


def test_nothing_is_unpickled_from_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = table(out=tmp_path)
    trap = np.empty(1, object)
    trap[0] = Trap()
    np.savez(tmp_path / "row-00001.npz", overlap=trap)
    same(table(out=tmp_path), first)  # solved again
    assert not (tmp_path / "unpickled").exists()


def test_a_bad_point_is_a_code_and_a_message():
    with pytest.warns(UserWarning, match="3 of 6 points failed.*noise: got -1.0"):
        found = smi.sweep(linear, ALPHAS, {"noise": [0.5, -1.0]})
    good, bad = found.sel(noise=0.5), found.sel(noise=-1.0)
    assert (good.result.values == Result.SUCCESS).all()
    assert (bad.result.values == Result.INVALID).all()
    assert np.isnan(bad.overlap.values).all()
    assert all("noise" in str(message) for message in bad.message.values.ravel())

    with pytest.raises(ValueError, match=r"^noise: got -1\.0"):
        smi.sweep(linear, ALPHAS, {"noise": [-1.0, -2.0]})

    def faulty(model, alpha, key, previous):
        if alpha == 1.0:
            raise RuntimeError("no luck")
        return evolve(model, alpha, key, previous)

    with pytest.warns(UserWarning, match="1 of 3 points failed.*no luck"):
        found = smi.sweep(linear, ALPHAS, {"noise": [0.5]}, solver=faulty)
    codes = [Result.SUCCESS, Result.INVALID, Result.SUCCESS]
    np.testing.assert_array_equal(found.result.values.ravel(), codes)
    assert "no luck" in str(found.message.sel(alpha=1.0).values.item())


def test_points_that_did_not_converge_are_counted_and_selected(tmp_path):
    few = {"iteration": smi.Iteration(max_steps=1)}
    said = (
        r"^2 of 2 points did not converge \(2 MAX_STEPS; .* result > 1.*: Not converged: take more"
    )
    with pytest.warns(UserWarning, match=said):
        found = smi.sweep(smi.links.phase_retrieval, [0.7, 0.8], out=tmp_path, **few)
    assert (found.result > 1).all()
    stored = storage.load(tmp_path / "sweep.nc").result.attrs
    names = dict(zip(stored["flag_values"], stored["flag_meanings"].split(), strict=True))
    assert names == {int(code): code.name for code in Result}
    codes = np.array([Result.SUCCESS, Result.NONFINITE, Result.INVALID])
    table = xarray.Dataset({"result": ("alpha", codes), "message": ("alpha", ["", "", "no luck"])})
    table = table.assign_coords(alpha=[0.5, 1.0, 2.0])
    descent = Grid(linear, ALPHAS, {"noise": NOISES}, 1, "train", {})
    said = "1 of 3 points did not converge (NONFINITE; select them by result > 1). The first one"
    assert unconverged(descent, table) == f"{said}, alpha=1.0: " + Result.NONFINITE.training
    assert unconverged(descent, table.isel(alpha=[0, 2])) == ""


@pytest.mark.slow
def test_points_are_added_until_the_error_bar_is_met():
    """Phase retrieval above its threshold: half the error needs more points."""
    one = float(smi.sweep(smi.links.phase_retrieval, [0.7], stderr=1.0).stderr.squeeze())
    more = smi.sweep(smi.links.phase_retrieval, [0.7], stderr=0.5 * one)
    assert 0.0 < float(more.stderr.squeeze()) <= 0.5 * one
    same(more, smi.sweep(smi.links.phase_retrieval, [0.7], stderr=0.5 * one))


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        {"solver": "train", "dimension": 50, "steps": 100, "learning_rate": 0.1},
        {"solver": "gamp", "dimension": 200},
    ],
)
def test_runs_of_several_seeds_here_and_in_processes(words):
    pytest.importorskip("dask")
    here = smi.sweep(linear, [2.0], {"noise": [0.1]}, seeds=3, **words)
    assert here.cosine.dims == ("noise", "seed", "alpha", "index")
    assert (here.cosine > 0.8).all()  # six seeds of training: 0.93 to 0.98
    assert len(set(here.overlap.values.ravel())) == 3  # teachers, data and starts of their own
    same(here, smi.sweep(linear, [2.0], {"noise": [0.1]}, seeds=3, scheduler=2, **words))


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ({"alpha": []}, "alpha"), ({"alpha": [1.0, 0.5]}, "alpha"), ({"alpha": ["a"]}, "alpha"),
        ({"alpha": [-0.5, 1.0]}, "alpha"), ({"alpha": [0.0, 1.0]}, "alpha"),
        ({"parameters": {"noise": []}}, "noise"), ({"parameters": {"noise": [0.1, 0.1]}}, "noise"),
        ({"parameters": [{"noise": 1.0}, {}]}, "parameters"),
        ({"parameters": {"seed": [1]}}, "seed"), ({"parameters": {"stderr": [1]}}, "stderr"),
        ({"seeds": [-1, 2]}, "seeds"), ({"seeds": [0, 2**32]}, "seeds"), ({"seeds": 0}, "seeds"),
        ({"seeds": [1, 1]}, "seeds"), ({"solver": "anneal"}, "solver"),
        ({"key": 1}, "settings: got 'key'"), ({"sample": 512}, "settings: got 'sample'"),
        ({"solver": lambda model, alpha, key, previous: None, "most": 2}, "settings: got 'most'"),
        ({"solver": "train", "optimizer": "apply_updates"}, "optimizer: .*adam"),
        ({"scheduler": 0}, "scheduler"), ({"scheduler": "host"}, "scheduler"),
        ({"build": smi.links.sign()}, "^build: "),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_before_a_model_is_made(words, name):
    def never(**parameters):
        raise AssertionError(parameters)

    with pytest.raises(ValueError, match=name):
        smi.sweep(**({"build": never, "alpha": ALPHAS} | words))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_decay_only_where_it_is_asked_for(name):
    """Of adamw and lion by rate · decay a step, whatever the gradient: decoupled from it."""
    weights, still = jnp.ones(2), jnp.zeros(2)

    def step(decay):
        optimizer = make_optimizer(name, 0.1, 0.5, decay)
        return optimizer.update(still, optimizer.init(weights), weights)[0]

    np.testing.assert_array_equal(step(0.0), 0.0)
    moved = step(0.3)
    assert (np.asarray(moved) < 0.0).all()
    if name in ("adamw", "lion", "sgd"):
        np.testing.assert_allclose(moved, -0.1 * 0.3, rtol=1e-6)


def test_an_interruption_says_which_rows_are_kept(tmp_path):
    def stopped(model, alpha, key, previous):
        if float(model.channel.noise) > 0.3:
            raise KeyboardInterrupt
        return evolve(model, alpha, key, previous)

    with pytest.raises(KeyboardInterrupt, match=r"1 of 2 rows are kept in .*: the same call"):
        table(solver=stopped, out=tmp_path)


def test_an_interruption_that_was_lost_ends_the_sweep_at_the_next_row(tmp_path):
    def lost(model, alpha, key, previous):
        if float(model.channel.noise) > 0.3:
            with contextlib.suppress(KeyboardInterrupt):  # as in a callback of C++
                signal.raise_signal(signal.SIGINT)
        return evolve(model, alpha, key, previous)

    # a command in the background of a shell ignores the signal
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt, match=r"1 of 2 rows are kept in .*: the same call"):
            table(solver=lost, out=tmp_path)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


SCRIPT = """
import sys, jax
jax.config.update("jax_enable_x64", True)
import jaxsmi as smi
noises = [0.1 * k for k in range(1, 41)]
smi.sweep(lambda noise: smi.links.linear(noise), [0.5, 1.0, 2.0], {{"noise": noises}}, out={out!r})
"""


@pytest.mark.slow
def test_a_killed_sweep_goes_on_and_is_the_same(tmp_path):
    """kill -9 in the middle: the end is the sweep that nobody disturbed, bit for bit."""
    killed, undisturbed = tmp_path / "killed", tmp_path / "undisturbed"
    run = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(out=str(killed))],
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )
    deadline = time.monotonic() + 120
    while len(list(killed.glob("row-*.npz"))) < 3:
        assert run.poll() is None, "finished before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    run.send_signal(signal.SIGKILL)
    run.wait()
    assert 3 <= len(list(killed.glob("row-*.npz"))) < 40
    noises = [0.1 * k for k in range(1, 41)]
    sweep = lambda out: smi.sweep(linear, ALPHAS, {"noise": noises}, out=out)
    same(sweep(killed), sweep(undisturbed))


@pytest.mark.slow
def test_a_cluster_that_loses_a_worker_gives_the_same():
    distributed = pytest.importorskip("distributed")

    def slow(model, alpha, key, previous):
        time.sleep(0.1)
        return smi.state_evolution(model, alpha, key=key)

    noises = [0.1 * k for k in range(1, 31)]
    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with cluster, distributed.Client(cluster) as client:
        victim = next(iter(client.run(os.getpid).values()))
        killer = threading.Timer(8.0, os.kill, (victim, signal.SIGKILL))
        killer.start()
        there = smi.sweep(linear, ALPHAS, {"noise": noises}, scheduler=client, solver=slow)
        killer.join()
    assert (there.result.values == Result.SUCCESS).all()
    same(there, smi.sweep(linear, ALPHAS, {"noise": noises}, solver=slow))


# Files


@pytest.mark.parametrize("kind", ["state_evolution", "gamp"])
def test_a_solution_survives_the_file(tmp_path, kind):
    solution = synthetic.solution(kind)
    solution.history["record"] = {"loud": solution.history["residual"]}  # a tree of a user
    storage.save(solution, tmp_path / "a.nc", seed=3)
    loaded = storage.load(tmp_path / "a.nc")
    for name in ("alpha", *storage.SCALARS, *storage.MATRICES, *["weights"] * (kind == "gamp")):
        np.testing.assert_array_equal(loaded[name], getattr(solution, name))
    trajectory = solution.trajectory
    trajectory["record_loud"] = trajectory.pop("record")["loud"]
    np.testing.assert_array_equal(loaded["step"], trajectory.pop("step"))
    for name, values in trajectory.items():
        np.testing.assert_array_equal(loaded[f"history_{name}"], values)
    assert (loaded.attrs["kind"], loaded.attrs["seed"]) == (kind, 3)
    assert loaded["overlap"].dims == ("index", "index_")
    assert loaded["history_overlap"].dims == ("step", "index", "index_")
    assert loaded.sizes["step"] == 7  # the empty rows are gone
    assert list(loaded["name"].values) == ["layer 1", "layer 2"]


def test_the_file_says_how_it_was_made(tmp_path):
    storage.save(synthetic.solution(), tmp_path / "a.nc", note="a note", switch=True, sizes=[1, 2])
    attributes = storage.load(tmp_path / "a.nc").attrs
    assert attributes["jax"] == jax.__version__
    assert attributes["kind"] == "state_evolution"
    assert attributes["message"] == smi.Result.SUCCESS.remedy
    assert attributes["note"] == "a note"
    assert json.loads(attributes["switch"]) is True
    assert json.loads(attributes["sizes"]) == [1, 2]
    model = {"type": "Layers", "skip": [1.0, 0.5], "ranks": [1, 1]}
    assert json.loads(attributes["model_parameters"]) == model
    assert json.loads(attributes["key"]) == [0, 3]
    assert {"jaxsmi", "python", "device", "x64", "time"} <= attributes.keys()


def test_a_curve_is_in_ascending_alpha_and_gives_its_solutions_back(tmp_path):
    solutions = synthetic.curve()
    storage.save({"curve": solutions, "one": solutions[0]}, tmp_path / "a.nc")
    with pytest.raises(ValueError, match=r"^group: got None; allowed: one of curve, one\.$"):
        storage.load(tmp_path / "a.nc")
    curve = storage.load(tmp_path / "a.nc", "curve")
    np.testing.assert_array_equal(curve.alpha, [0.3, 0.6, 0.9])
    last = curve.history_overlap.isel(alpha=2).dropna("step")
    np.testing.assert_array_equal(last, solutions[0].trajectory["overlap"])
    with pytest.raises(ValueError, match="group: got 'two'; allowed: one of curve, one"):
        storage.load(tmp_path / "a.nc", "two")


def test_thresholds_survive_the_file(tmp_path):
    of = lambda a: Threshold(*map(np.asarray, (a, 0.1, [a, a], np.eye(2), np.zeros((2, 2)), 0)))
    one, grid = of(2.5), np.arange(3.0)
    matrices = np.ones((3, 2, 2))
    transition = FirstOrder("first order", of(3.0), None, of(1.5), grid, matrices, 2 * matrices)
    parts = {"one": one, "stairs": [of(1.0), of(2.0)], "transition": transition}
    storage.save(parts, tmp_path / "a.nc")
    loaded = {name: storage.load(tmp_path / "a.nc", name) for name in parts}
    for name in ("alpha", "stderr", "replicas", "subspace", "overlap", "result"):
        np.testing.assert_array_equal(loaded["one"][name], getattr(one, name))
    assert loaded["one"].equals(one.to_xarray())
    np.testing.assert_array_equal(loaded["stairs"].alpha, [1.0, 2.0])
    assert loaded["transition"].attrs["transition"] == "first order"
    assert float(loaded["transition"].algorithmic_alpha) == 3.0
    assert "information_theoretic_alpha" not in loaded["transition"]
    np.testing.assert_array_equal(loaded["transition"].informed, transition.informed)


def test_paths_that_do_not_fit_are_answered_in_a_sentence(tmp_path):
    solution = synthetic.solution()
    for path, said in {
        "a.pkl": r"path: got '.*a\.pkl'; allowed: a netCDF file: a path that ends with \.nc, .*",
        "a": r"path: got '.*a'; allowed: a netCDF file.*",
        "none/a.nc": r"path: got '.*none' \(No such file or directory\); allowed: a file in a .*",
    }.items():
        with pytest.raises(ValueError, match=f"^{said}$"):
            storage.save(solution, tmp_path / path)
    assert not list(tmp_path.iterdir())
    with pytest.raises(FileNotFoundError, match=r"^path: got '.*a\.nc'; there is no such file\.$"):
        storage.load(tmp_path / "a.nc")
    with pytest.raises(ValueError, match=r"^path: .* comes second: smi\.save\(item, path\)\.$"):
        storage.save(str(tmp_path / "a.nc"), solution)
    with pytest.raises(
        ValueError, match=r"^path: .* of a file that smi\.save\(item, path\) wrote\.$"
    ):
        storage.load(solution)
    (tmp_path / "a.nc").write_text("no netCDF")
    with pytest.raises(ValueError, match=r"^path: got '.*a\.nc'; allowed: a netCDF file, as .*$"):
        storage.load(tmp_path / "a.nc")


def test_a_batch_is_refused():
    batch = jax.tree.map(lambda leaf: leaf[None], synthetic.solution())
    with pytest.raises(ValueError, match="solution: got a batch with alpha of shape"):
        storage.to_xarray(batch)
    with pytest.raises(ValueError, match="solutions: got 'none'"):
        storage.stack([])


NEEDS = {  # of a package: an extra, and a call
    **dict.fromkeys(
        ("xarray", "h5netcdf", "h5py"), ("data", lambda: storage.to_xarray(synthetic.solution()))
    ),
    "dask.distributed": ("cluster", lambda: table(scheduler=2)),
    "matplotlib.pyplot": ("plot", plotting.import_pyplot),
}


@pytest.mark.parametrize("package", NEEDS)
def test_a_missing_package_comes_with_the_remedy(monkeypatch, package):
    extra, call = NEEDS[package]
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"pip install 'jaxsmi\[{extra}\]'"):
        call()


def test_parameters_are_ready_for_json():
    numbers = {"inf": jnp.inf, "array": np.array([1.0, np.nan]), "key": jax.random.key(1)}
    found = storage.parameters(numbers | {"big": jnp.zeros((20, 20)), "link": jnp.sin})
    assert found.pop("big").startswith("array of shape (20, 20)")
    assert found == {"link": "sin", "inf": None, "array": [1.0, None], "key": [0, 1]}
    json.dumps(found, allow_nan=False)


def test_names_of_indices():
    names = index_names(synthetic.Layers(jnp.ones(2), ranks=(2, 1)), 3)
    assert names == ["layer 1, index 1", "layer 1, index 2", "layer 2"]
    assert index_names(None, 2) == ["index 1", "index 2"]


def test_a_file_is_complete_or_not_there(tmp_path):
    """Two threads that write one file do not write into each other's."""
    path = tmp_path / "table.txt"
    with atomic_write(path) as one, atomic_write(path) as other:
        assert one != other
        one.write_text("one")
        other.write_text("other")
    assert path.read_text() == "one"  # the last to end

    def dies(temporary):
        temporary.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), atomic_write(path) as temporary:
        dies(temporary)
    assert path.read_text() == "one"
    assert list(tmp_path.iterdir()) == [path]

"""Sweeps: what they give, what they keep, and how they go on."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

import jaxsmi as smi
from jaxsmi.core.codes import Result

ALPHAS, NOISES = [0.5, 1.0, 2.0], [0.1, 0.5]
QUICK = {"samples": 512, "randomisations": 4}


def linear(noise):
    return smi.links.linear(noise)


def table(**more):
    return smi.sweep(linear, ALPHAS, {"noise": NOISES}, settings=QUICK, **more)


def same(one, other):
    """Bit for bit, NaN included."""
    assert set(one.data_vars) == set(other.data_vars)
    for name in one.data_vars:
        np.testing.assert_array_equal(one[name].values, other[name].values)


def test_a_grid_is_its_points():
    """The closed form q = q̂/(1 + q̂), q̂ = α/(1 - q + Δ), to the tolerance of the fixed point."""
    found = table(seeds=2)
    assert found.overlap.dims == ("noise", "seed", "alpha", "index", "index_")
    assert (found.result.values == Result.SUCCESS).all()
    for noise in NOISES:
        for alpha in ALPHAS:
            b = alpha - 1 + noise
            V = 0.5 * (-b + np.sqrt(b**2 + 4 * noise))  # V² + (α - 1 + Δ) V - Δ = 0
            q = found.overlap.sel(noise=noise, alpha=alpha).values
            np.testing.assert_allclose(q, 1 - V, atol=2e-4)


def test_one_seed_is_itself_in_any_company():
    all_seeds = table(seeds=3)
    same(all_seeds.sel(seed=[2]), table(seeds=[2]))


def test_rows_are_kept_and_not_solved_again(tmp_path):
    first = table(out=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "row-00000.npz",
        "row-00001.npz",
        "sweep.json",
    ]
    times = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    (tmp_path / "row-00001.npz").unlink()
    same(first, table(out=tmp_path))
    assert (tmp_path / "row-00000.npz").stat().st_mtime_ns == times[tmp_path / "row-00000.npz"]


@pytest.mark.parametrize("change", [{"seeds": 2}, {"key": 1}, {"solver": "gamp"}])
def test_a_folder_of_another_sweep_is_refused(tmp_path, change):
    table(out=tmp_path)
    with pytest.raises(ValueError, match=next(iter(change))):
        table(out=tmp_path, **change)
    with pytest.raises(ValueError, match="settings"):
        smi.sweep(
            linear, ALPHAS, {"noise": NOISES}, settings=QUICK | {"samples": 1024}, out=tmp_path
        )
    with pytest.raises(
        ValueError, match="models"
    ):  # the same values of another parameter of the model
        smi.sweep(
            lambda noise: smi.links.linear(2 * noise),
            ALPHAS,
            {"noise": NOISES},
            settings=QUICK,
            out=tmp_path,
        )


def test_a_bad_point_is_a_code_and_a_message():
    found = smi.sweep(linear, ALPHAS, {"noise": [0.5, -1.0]}, settings=QUICK)
    good, bad = found.sel(noise=0.5), found.sel(noise=-1.0)
    assert (good.result.values == Result.SUCCESS).all()
    assert (bad.result.values == Result.INVALID).all()
    assert np.isnan(bad.overlap.values).all()
    assert all("noise" in str(message) for message in bad.message.values.ravel())

    def faulty(model, alpha, key, before, **settings):
        if alpha == 1.0:
            raise RuntimeError("no luck")
        return smi.state_evolution(model, alpha, key=key, **settings)

    found = smi.sweep(linear, ALPHAS, {"noise": [0.5]}, solver=faulty, settings=QUICK)
    np.testing.assert_array_equal(
        found.result.values.ravel(), [Result.SUCCESS, Result.INVALID, Result.SUCCESS]
    )
    assert "no luck" in str(found.message.sel(alpha=1.0).values.item())


def test_a_list_of_points():
    points = [{"noise": 0.1}, {"noise": 0.5}]
    listed = smi.sweep(linear, ALPHAS, points, settings=QUICK)
    assert listed.overlap.dims == ("point", "seed", "alpha", "index", "index_")
    np.testing.assert_array_equal(listed.noise, NOISES)
    np.testing.assert_array_equal(listed.overlap.values, table().overlap.values)


def attention(rank_ratio):
    return smi.AttentionIndexed(2, rank_ratio)


@pytest.mark.slow
def test_matrix_models_are_solved_many_at_once(tmp_path):
    """70 rows in two programs of 64 and 6 rows, the same as one by one.

    And again from a folder where some are missing.
    """
    alphas, widths = [0.05, 0.1, 0.3], {"rank_ratio": list(np.linspace(0.1, 1.5, 70))}
    found = smi.sweep(attention, alphas, widths, out=tmp_path)
    for width in (0, 37, 69):
        for k, alpha in enumerate(alphas):
            alone = smi.state_evolution(attention(widths["rank_ratio"][width]), alpha)
            row = found.isel(rank_ratio=width, alpha=k, seed=0)
            assert int(row.result) == int(alone.result)
            np.testing.assert_allclose(
                row.error, alone.error, rtol=1e-11, atol=1e-14
            )  # sums in another order
    for number in (3, 69):
        (tmp_path / f"row-{number:05d}.npz").unlink()
    same(smi.sweep(attention, alphas, widths, out=tmp_path), found)
    bad = smi.sweep(
        attention, alphas, {"rank_ratio": [0.5, -1.0]}
    )  # one by one, where one of them cannot be made
    assert (bad.result.sel(rank_ratio=-1.0) == Result.INVALID).all()
    np.testing.assert_allclose(
        bad.error.sel(rank_ratio=0.5)[0, 1],
        smi.state_evolution(attention(0.5), 0.1).error,
        rtol=1e-11,
    )


@pytest.mark.slow
def test_samples_are_added_until_the_error_bar_is_met():
    """Phase retrieval above its threshold: half the error of 2048 points needs more of them."""
    one = smi.sweep(smi.links.phase_retrieval, [0.7], settings={"samples": 2048}).stderr.squeeze()
    many = {"settings": {"stderr": 0.5 * float(one)}}
    more = smi.sweep(smi.links.phase_retrieval, [0.7], **many)
    assert 0.0 < float(more.stderr.squeeze()) <= 0.5 * float(one)
    same(more, smi.sweep(smi.links.phase_retrieval, [0.7], **many))


def test_a_folder_of_other_work_is_refused_in_a_sentence(tmp_path):
    (tmp_path / "sweep.json").write_text('{"name": "another program"}')
    with pytest.raises(ValueError, match=r"^out: got .*does not describe a sweep\.$"):
        table(out=tmp_path)


def test_a_folder_of_another_version_is_said(tmp_path):
    table(out=tmp_path)
    path = tmp_path / "sweep.json"
    path.write_text(path.read_text().replace(f'"{smi.__version__}"', '"0.0.1"'))
    with pytest.warns(UserWarning, match=r"begun by version 0\.0\.1"):
        table(out=tmp_path)


class Trap:
    """What runs when it is unpickled."""

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


@pytest.mark.slow
def test_processes_are_asked_for_by_number_and_listen_to_nobody(monkeypatch):
    """Without Dask; what they are sent goes through pipes, no socket is opened."""
    monkeypatch.setitem(sys.modules, "dask", None)
    monkeypatch.setitem(sys.modules, "dask.distributed", None)

    def refused(*_):
        raise AssertionError("a socket listens")

    monkeypatch.setattr(socket.socket, "listen", refused)
    same(table(), table(scheduler=2))
    with pytest.raises(ValueError, match="scheduler"):
        table(scheduler=0)


@pytest.mark.slow
def test_training_and_processes_of_this_machine():
    words = {
        "solver": "train",
        "seeds": 2,
        "settings": {"dimension": 50, "steps": 100, "learning_rate": 0.1},
    }
    here = smi.sweep(linear, [2.0], {"noise": [0.1]}, **words)
    assert here.cosine.dims == ("noise", "seed", "alpha", "index")
    assert (here.cosine > 0.8).all()  # six seeds: 0.93 to 0.98
    same(here, smi.sweep(linear, [2.0], {"noise": [0.1]}, scheduler=2, **words))


@pytest.mark.slow
def test_message_passing_of_several_seeds():
    found = smi.sweep(
        linear, [1.0], {"noise": [0.5]}, solver="gamp", seeds=3, settings={"dimension": 200}
    )
    overlap = found.overlap.values.ravel()
    assert len(set(overlap)) == 3  # teachers, data and starts of their own
    assert overlap.mean() == pytest.approx(0.5, abs=0.1)  # one run: about 1/√D


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ({"alpha": []}, "alpha"), ({"alpha": [1.0, 0.5]}, "alpha"),
        ({"parameters": {"noise": []}}, "noise"), ({"parameters": {"noise": [0.1, 0.1]}}, "noise"),
        ({"parameters": [{"noise": 1.0}, {}]}, "parameters"),
        ({"parameters": {"seed": [1]}}, "seed"), ({"parameters": {"rho": [1]}}, "rho"),
        ({"seeds": [-1, 2]}, "seeds"), ({"seeds": [0, 2**32]}, "seeds"),
        ({"seeds": 0}, "seeds"), ({"solver": "anneal"}, "solver"), ({"key": 0.5}, "key"),
        ({"alpha": [-0.5, 1.0]}, "alpha"), ({"alpha": [0.0, 1.0]}, "alpha"),
        ({"alpha": ["a"]}, "alpha"), ({"settings": {"key": 1}}, "settings"),
        ({"settings": {"sample": 512}}, "settings: got 'sample'"),
        ({"solver": "gamp", "settings": {"samples": 512}}, "settings"),
        ({"solver": "train", "settings": {"optimizer": "apply_updates"}}, "optimizer: .*adam"),
    ],
)  # fmt: skip
def test_what_is_refused(words, name):
    """Before anything runs: no model is made."""

    def never(**parameters):
        raise AssertionError(parameters)

    with pytest.raises(ValueError, match=name):
        smi.sweep(never, **({"alpha": ALPHAS} | words))


def test_what_makes_the_models_must_be_callable():
    with pytest.raises(ValueError, match=r"^build: "):
        smi.sweep(smi.links.linear(0.1), ALPHAS)


def test_settings_of_a_function_are_those_that_it_names():
    def named(model, alpha, key, before, samples=512):
        return smi.state_evolution(model, alpha, key=key, samples=samples)

    with pytest.raises(ValueError, match=r"^settings: got 'sample'; allowed: .*samples"):
        smi.sweep(linear, ALPHAS, {"noise": [0.5]}, solver=named, settings={"sample": 512})
    found = smi.sweep(linear, [1.0], {"noise": [0.5]}, solver=named, settings={"samples": 256})
    assert (found.result.values == Result.SUCCESS).all()


SCRIPT = """
import sys, jax
jax.config.update("jax_enable_x64", True)
import jaxsmi as smi
noises = [0.1 * k for k in range(1, 41)]
smi.sweep(lambda noise: smi.links.linear(noise), [0.5, 1.0, 2.0], {{"noise": noises}},
          settings={{"samples": 512, "randomisations": 4}}, out={out!r})
"""


def test_a_killed_sweep_goes_on_and_is_the_same(tmp_path):
    """kill -9 in the middle.

    What was finished is kept, and the end is the sweep that nobody disturbed, bit for bit.
    """
    killed, whole = tmp_path / "killed", tmp_path / "whole"
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
    done = len(list(killed.glob("row-*.npz")))
    assert 3 <= done < 40
    noises = [0.1 * k for k in range(1, 41)]
    sweep = lambda out: smi.sweep(
        lambda noise: smi.links.linear(noise), ALPHAS, {"noise": noises}, settings=QUICK, out=out
    )
    same(sweep(killed), sweep(whole))


@pytest.mark.slow
def test_a_cluster_that_loses_a_worker_gives_the_same():
    """Two workers, one of them killed while rows are solved."""
    distributed = pytest.importorskip("dask.distributed")
    noises = [0.1 * k for k in range(1, 31)]
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        victim = next(iter(client.scheduler_info()["workers"].values()))["id"]
        pids = client.run(os.getpid)
        finished = []

        def slow(model, alpha, key, before, **settings):
            time.sleep(0.1)
            return smi.state_evolution(model, alpha, key=key, **settings)

        import threading

        def kill():
            time.sleep(8.0)
            os.kill(next(iter(pids.values())), signal.SIGKILL)
            finished.append(victim)

        killer = threading.Thread(target=kill)
        killer.start()
        there = smi.sweep(
            linear, ALPHAS, {"noise": noises}, settings=QUICK, scheduler=client, solver=slow
        )
        killer.join()
        here = smi.sweep(linear, ALPHAS, {"noise": noises}, settings=QUICK, solver=slow)
    assert finished
    assert (there.result.values == Result.SUCCESS).all()
    same(there, here)

"""What is stored comes back bit for bit, and says how it was made."""

import json
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsmi as smi
import synthetic
from jaxsmi.core import labelled, provenance
from jaxsmi.core.files import discard, whole
from jaxsmi.workbench import storage
from jaxsmi.workbench.store import Store

pytest.importorskip("xarray")
pytest.importorskip("h5py")

FIELDS = ("overlap", "stderr", "error", "alpha", "steps", "residual", "result", "covariance", "rho")


def same(one, other):
    assert one.kind == other.kind
    parts = lambda solution: [getattr(solution, name) for name in FIELDS]
    chex.assert_trees_all_equal(parts(one), parts(other))
    chex.assert_trees_all_equal(one.trajectory, other.trajectory)


@pytest.mark.parametrize("kind", ["state_evolution", "gamp"])
def test_a_solution_survives_the_file(tmp_path, kind):
    solution = synthetic.solution(kind)
    storage.save(solution, tmp_path / "a.nc", seed=3)
    loaded = storage.load(tmp_path / "a.nc")
    back = storage.from_xarray(loaded, model=solution.model)
    same(solution, back)
    if kind == "gamp":
        np.testing.assert_array_equal(back.weights, solution.weights)
    assert loaded.attrs["seed"] == 3
    assert loaded["overlap"].dims == ("index", "index_")
    assert loaded["history_overlap"].dims == ("step", "index", "index_")
    assert loaded.sizes["step"] == 7  # the empty rows are gone
    assert list(loaded["name"].values) == ["layer 1", "layer 2"]


def test_the_file_says_how_it_was_made(tmp_path):
    storage.save(synthetic.solution(), tmp_path / "a.nc", note="a note", switch=True, sizes=[1, 2])
    attributes = storage.load(tmp_path / "a.nc").attrs
    assert attributes["jax"] == jax.__version__
    assert attributes["kind"] == "state_evolution"
    assert attributes["message"] == "Converged."
    assert attributes["note"] == "a note"
    assert json.loads(attributes["switch"]) is True
    assert json.loads(attributes["sizes"]) == [1, 2]
    assert json.loads(attributes["model_parameters"]) == {
        "type": "Layers",
        "skip": [1.0, 0.5],
        "ranks": [1, 1],
    }
    assert json.loads(attributes["key"]) == [0, 3]
    assert attributes["time"].endswith("+00:00")
    assert {"jaxsmi", "python", "device", "x64"} <= attributes.keys()


def test_the_key_makes_the_same_numbers_again(tmp_path):
    solution = synthetic.solution(key=jax.random.key(11))
    storage.save(solution, tmp_path / "a.nc")
    key = jax.random.wrap_key_data(jnp.asarray(storage.load(tmp_path / "a.nc")["key"].values))
    np.testing.assert_array_equal(
        jax.random.normal(key, 3), jax.random.normal(jax.random.key(11), 3)
    )


def test_a_curve_is_in_ascending_alpha_and_gives_its_solutions_back(tmp_path):
    solutions = [
        synthetic.solution(alpha=alpha, steps=steps)
        for alpha, steps in [(0.9, 8), (0.3, 4), (0.6, 6)]
    ]
    storage.save(solutions, tmp_path / "curve.nc")
    curve = storage.load(tmp_path / "curve.nc")
    assert curve["overlap"].dims == ("alpha", "index", "index_")
    np.testing.assert_array_equal(curve["alpha"], [0.3, 0.6, 0.9])
    np.testing.assert_array_equal(curve["steps"], [4, 6, 8])
    for point, solution in enumerate([solutions[1], solutions[2], solutions[0]]):
        same(solution, storage.from_xarray(curve.isel(alpha=point)))
    with pytest.raises(ValueError, match="curve of 3 alphas"):
        storage.from_xarray(curve)


def test_a_dict_becomes_groups(tmp_path):
    one, two = synthetic.solution("gamp"), synthetic.solution()
    storage.save({"gamp": one, "theory": two, "curve": [two, one]}, tmp_path / "run.nc", seed=1)
    root = storage.load(tmp_path / "run.nc")
    assert root.attrs["groups"] == "gamp, theory, curve"
    assert root.attrs["seed"] == 1
    same(one, storage.from_xarray(storage.load(tmp_path / "run.nc", "gamp")))
    same(two, storage.from_xarray(storage.load(tmp_path / "run.nc", "theory")))
    assert storage.load(tmp_path / "run.nc", "curve").sizes["alpha"] == 2


def test_a_group_that_is_not_there_is_refused_with_those_that_are(tmp_path):
    one = synthetic.solution("gamp")
    storage.save({"gamp": one, "theory": one}, tmp_path / "run.nc")
    storage.save(one, tmp_path / "one.nc")
    with pytest.raises(ValueError, match=r"group: got 'Gamp'; allowed: one of gamp, theory\."):
        storage.load(tmp_path / "run.nc", "Gamp")
    with pytest.raises(ValueError, match="group: got 'gamp'; allowed: None: one item"):
        storage.load(tmp_path / "one.nc", "gamp")
    with pytest.raises(FileNotFoundError):
        storage.load(tmp_path / "none.nc", "gamp")
    (tmp_path / "words.nc").write_text("no netCDF")
    with pytest.raises(OSError, match=r"signature|words"):
        storage.load(tmp_path / "words.nc", "gamp")


@pytest.mark.parametrize("teacher", [True, False])
def test_a_data_set_survives_the_file(tmp_path, teacher):
    data = synthetic.data(teacher)
    storage.save(data, tmp_path / "data.nc")
    loaded = storage.load(tmp_path / "data.nc")
    np.testing.assert_array_equal(loaded["inputs"], data.inputs)
    np.testing.assert_array_equal(loaded["labels"], data.labels)
    assert loaded["inputs"].dims == ("sample", "token", "dimension")
    assert float(loaded["alpha"]) == data.alpha
    assert ("teacher" in loaded) == teacher


def test_the_alpha_of_a_matrix_data_set_is_in_its_file(tmp_path):
    """n/(dL), not n/d."""
    data = smi.Bilinear(2.0, 0.5).sample(jax.random.key(0), dimension=4, alpha=1.5)
    storage.save(data, tmp_path / "data.nc")
    assert float(storage.load(tmp_path / "data.nc")["alpha"]) == data.samples / (4 * 8) == 1.5


def test_a_batch_is_refused():
    batch = jax.tree.map(lambda leaf: leaf[None], synthetic.solution())
    with pytest.raises(ValueError, match="solution: got 'a batch with alpha of shape"):
        storage.to_xarray(batch)
    with pytest.raises(ValueError, match="solutions: got 'none'"):
        storage.stack([])


@pytest.mark.parametrize("package", ["xarray", "h5netcdf", "h5py"])
def test_a_missing_package_comes_with_the_remedy(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=r"pip install 'jaxsmi\[data\]'"):
        synthetic.solution().to_xarray()


def test_parameters_are_ready_for_json():
    found = provenance.parameters(
        {
            "big": jnp.zeros((20, 20)),
            "link": jnp.sin,
            "inf": jnp.inf,
            "array": np.array([1.0, np.nan]),
            "key": jax.random.key(1),
        }
    )
    assert found["big"].startswith("array of shape (20, 20)")
    assert found["link"] == "sin"
    assert found["inf"] is None
    assert found["array"] == [1.0, None]
    assert found["key"] == [0, 1]
    json.dumps(found, allow_nan=False)


def test_names_of_indices():
    assert labelled.index_names(synthetic.Layers(jnp.ones(2), ranks=(2, 1)), 3) == [
        "layer 1, index 1",
        "layer 1, index 2",
        "layer 2",
    ]
    assert labelled.index_names(None, 2) == ["index 1", "index 2"]


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    """Two that write the same file at the same time, as threads do, do not write into each
    other's; what a process has not ended it finds again."""
    path = tmp_path / "table.txt"
    with whole(path) as one, whole(path) as other:
        assert one != other
        assert one.suffix == other.suffix == ".txt"
        one.write_text("one")
        other.write_text("other")
    assert path.read_text() == "one"  # the last to end

    def dies(aside):
        aside.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), whole(path) as aside:
        dies(aside)
    assert path.read_text() == "one"
    aside.write_text("of one who had no time to remove it")
    discard(tmp_path)
    assert list(tmp_path.iterdir()) == [path]


def test_a_store_keeps_whole_entries_of_one_work(tmp_path):
    """Another description is refused by name, a file cut short is an entry that is missing."""
    store = Store(tmp_path / "new", {"alpha": [0.5], "key": 0})
    store.claim("work.json", "work", {"note": "aside"}, "out")
    store.claim("work.json", "work", {}, "out")  # the same work
    with pytest.raises(ValueError, match=r"^out: .*differs in key"):
        Store(store.folder, {"alpha": [0.5], "key": 1}).claim("work.json", "work", {}, "out")
    store.write("a.json", lambda handle: handle.write(b"[1, 2]"))
    (store.folder / "b.json").write_text("[1,")

    def read(path):
        return json.loads(path.read_text())

    files = {"a": "a.json", "b": "b.json", "c": "c.json"}
    assert store.finished(files, read) == {"a": [1, 2]}
    assert sorted(path.name for path in store.folder.iterdir()) == ["a.json", "b.json", "work.json"]

    def dies(handle):
        handle.write(b"[3")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.write("a.json", dies)
    assert store.finished(files, read) == {"a": [1, 2]}  # what was there before

"""Points that are drawn are the numbers of the solutions, and a figure carries its provenance."""

import dataclasses
import json
import sys
import xml.etree.ElementTree as xml

import numpy as np
import pytest

import synthetic
from jaxsmi.core.codes import Result
from jaxsmi.workbench import plotting, storage

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")


@pytest.fixture
def ax():
    from matplotlib.figure import Figure

    return Figure().subplots()


def drawn(ax, kind):
    """Ordinates of the lines of theory, the hollow markers of GAMP, or the crosses, in the order of
    the indices.
    """
    kinds = {("-", False): "theory", ("None", False): "gamp", ("None", True): "crosses"}
    return [
        line.get_ydata()
        for line in ax.lines
        if kinds[line.get_linestyle(), line.get_marker() == "x"] == kind
    ]


def test_squared_cosines_lie_on_the_overlap_over_the_second_moment(ax):
    theory, gamp = synthetic.solution(moment=4.0), synthetic.solution("gamp", moment=4.0)
    assert plotting.overlap_against_iteration(gamp, theory, ax) is ax
    for p in range(2):
        np.testing.assert_allclose(drawn(ax, "gamp")[p], gamp.trajectory["cosine"][:, p] ** 2)
        np.testing.assert_allclose(
            drawn(ax, "theory")[p], theory.trajectory["overlap"][:, p, p] / 4.0
        )
        np.testing.assert_allclose(drawn(ax, "gamp")[p], drawn(ax, "theory")[p])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        "layer 1",
        "layer 2",
        "state evolution",
        "GAMP",
    ]


def test_overlaps_are_drawn_as_they_are(ax):
    gamp = synthetic.solution("gamp", moment=4.0)
    plotting.overlap_against_iteration(
        gamp, ax=ax, quantity="overlap", names=["one", "two"], legend=False
    )
    np.testing.assert_allclose(drawn(ax, "gamp")[1], gamp.trajectory["overlap"][:, 1, 1])
    assert ax.get_legend() is None


@pytest.mark.parametrize("form", ["list", "generator", "file"])
def test_a_curve_has_its_error_band(ax, form):
    solutions = [
        synthetic.solution(alpha=alpha, steps=steps)
        for alpha, steps in [(0.9, 8), (0.3, 4), (0.6, 6)]
    ]
    gamp = synthetic.solution("gamp")
    curve = {"list": solutions, "generator": iter(solutions)}.get(form)
    if form == "file":
        pytest.importorskip("h5py")
        curve = storage.stack(solutions)
    plotting.overlap_against_alpha(curve, gamp, ax, bands=3.0)
    for p in range(2):
        expected = [float(solutions[i].overlap[p, p]) for i in (1, 2, 0)]
        np.testing.assert_allclose(drawn(ax, "theory")[p], expected)
        np.testing.assert_allclose(drawn(ax, "gamp")[p], [gamp.trajectory["cosine"][-1, p] ** 2])
        band = ax.collections[p].get_paths()[0].vertices
        at = band[np.isclose(band[:, 0], 0.6), 1]
        np.testing.assert_allclose([at.min(), at.max()], [expected[1] - 0.03, expected[1] + 0.03])
    assert ax.get_legend().get_texts()[0].get_text() == "layer 1"


def test_what_did_not_converge_is_a_cross(ax):
    solutions = [
        synthetic.solution(alpha=0.3),
        synthetic.solution(alpha=0.6, steps=5, result=Result.MAX_STEPS),
    ]
    plotting.overlap_against_alpha(solutions, ax=ax)
    for p in range(2):
        np.testing.assert_allclose(drawn(ax, "crosses")[p], [solutions[1].overlap[p, p]])


def test_a_converged_trajectory_stays_where_it_ended(ax):
    gamp, theory = synthetic.solution("gamp", steps=9), synthetic.solution(steps=5)
    plotting.overlap_against_iteration(gamp, theory, ax)
    np.testing.assert_allclose(drawn(ax, "theory")[0][-2:], theory.overlap[0, 0])
    unfinished = synthetic.solution(steps=5, result=Result.MAX_STEPS)
    other = plotting.overlap_against_iteration(gamp, unfinished, ax.figure.add_subplot())
    assert len(drawn(other, "theory")[0]) == 5


def test_a_run_that_broke_ends_at_its_last_finite_cosine(ax):
    gamp = synthetic.solution("gamp", result=Result.NONFINITE)
    broken = gamp.history["cosine"].at[6].set(np.nan)
    gamp = dataclasses.replace(gamp, history={**gamp.history, "cosine": broken})
    plotting.overlap_against_alpha(gamp=gamp, ax=ax)
    np.testing.assert_allclose(drawn(ax, "gamp")[0], broken[5, 0] ** 2)


def test_bad_input_is_named(ax, tmp_path):
    with pytest.raises(ValueError, match="quantity: got 'loss'"):
        plotting.overlap_against_iteration(synthetic.solution("gamp"), ax=ax, quantity="loss")
    with pytest.raises(ValueError, match="theory, gamp: got 'no solution'"):
        plotting.overlap_against_alpha([], ax=ax)
    with pytest.raises(ValueError, match=r"path: got .*\.jpg"):
        plotting.savefig(ax.figure, tmp_path / "a.jpg")


def test_without_matplotlib_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"pip install 'jaxsmi\[plot\]'"):
        plotting.overlap_against_iteration(synthetic.solution("gamp"))


def test_a_figure_says_how_it_was_made(ax, tmp_path):
    image = pytest.importorskip("PIL.Image")
    solution = synthetic.solution()
    plotting.overlap_against_iteration(theory=solution, ax=ax)
    for ending in ("png", "svg", "pdf"):
        plotting.savefig(ax.figure, tmp_path / f"a.{ending}", solution, seed=3, note="α")
    in_svg = next(
        xml.parse(tmp_path / "a.svg").iter("{http://purl.org/dc/elements/1.1/}description")
    ).text
    for words in (image.open(tmp_path / "a.png").text["Description"], in_svg):
        made = json.loads(words)
        assert made["seed"] == 3
        assert made["note"] == "α"
        assert made["model_parameters"]["skip"] == [1.0, 0.5]
        assert made["key"] == [0, 3]
    assert b"model_parameters" in (tmp_path / "a.pdf").read_bytes()


def stacked(*runs):
    import jax
    import jax.numpy as jnp

    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *runs)


def test_learning_curves_draw_the_mean_of_runs_that_ended_earlier_or_later(ax):
    key = synthetic.solution("gamp").key
    runs = stacked(
        synthetic.solution("gamp", steps=4, key=key), synthetic.solution("gamp", steps=9, key=key)
    )
    assert plotting.learning_curves(runs, ax, level=0.9) is ax
    lines = [line for line in ax.lines if len(line.get_xdata()) == 9]
    assert len(lines) == 2
    one, two = (np.array(runs.history["cosine"][n]) for n in range(2))
    one[4:] = one[3]  # the shorter run keeps what it had
    for p, line in enumerate(lines):
        np.testing.assert_allclose(line.get_ydata(), 0.5 * (one[:9, p] + two[:9, p]))
    np.testing.assert_allclose(runs.cosine, [one[3], two[8]])
    with pytest.raises(ValueError, match=r"^solution: "):
        plotting.learning_curves(synthetic.solution(), ax)


def test_one_panel_for_each_method():
    from matplotlib.figure import Figure

    from jaxsmi.descent.order import learned_at
    from jaxsmi.workbench.order import LearningOrder

    solutions = {"GAMP": synthetic.solution("gamp"), "Adam": synthetic.solution("gamp", steps=9)}
    order = LearningOrder(
        solutions,
        {name: learned_at(s)[None] for name, s in solutions.items()},
        0.5,
        {"GAMP": 1.2, "Adam": 15.0},
        {},
    )
    axes = list(Figure().subplots(1, 2))
    assert plotting.learning_order(order, axes) == axes
    assert [ax.get_title(loc="right") for ax in axes] == [
        r"GAMP, $\alpha=1.2$",
        r"Adam, $\alpha=15$",
    ]
    with pytest.raises(ValueError, match=r"^axes: got 1; allowed: 2"):
        plotting.learning_order(order, axes[:1])

"""Points that are drawn are the numbers of the solutions, and a figure carries its provenance."""

import dataclasses
import json
import pickle
import xml.etree.ElementTree as xml

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

import jaxsmi as smi
import synthetic
from jaxsmi.core.results import Result
from jaxsmi.core.solution import Estimate, LearnerSolution
from jaxsmi.descent.analysis import learned_at
from jaxsmi.thresholds.transitions import FirstOrder
from jaxsmi.workbench import plotting
from jaxsmi.workbench.order import LearningOrder

matplotlib.use("Agg")


@pytest.fixture
def ax():
    # where a subplot is; a high legend lowers subplots, and stays inside of these axes
    return Figure().add_axes((0.125, 0.11, 0.775, 0.77))


def drawn(ax, kind):
    """Ordinates of the lines of theory, the hollow markers of GAMP, or the crosses, in the order of
    the indices."""
    kinds = {False: "gamp", True: "crosses"}
    of = lambda x: kinds[x.get_marker() == "x"] if x.get_linestyle() == "None" else "theory"
    return [
        line.get_ydata()
        for line in ax.lines
        if of(line) == kind and len(line.get_xdata())
        if line.get_marker() != "|"  # an entry of the legend alone
    ]


BAND = "band: ± 2 s.e."


def labels(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_squared_cosines_lie_on_the_overlap_over_the_second_moment(ax):
    theory, gamp = synthetic.solution(moment=4.0), synthetic.solution("gamp", moment=4.0)
    assert plotting.overlap_against_iteration(gamp, theory, ax) is ax
    for p in range(2):
        np.testing.assert_allclose(drawn(ax, "gamp")[p], gamp.trajectory["cosine"][:, p] ** 2)
        np.testing.assert_allclose(
            drawn(ax, "theory")[p], theory.trajectory["overlap"][:, p, p] / 4.0
        )
        np.testing.assert_allclose(drawn(ax, "gamp")[p], drawn(ax, "theory")[p])
    kinds = ("state evolution", "GAMP")
    assert labels(ax) == [f"layer {p}, {kind}" for kind in kinds for p in (1, 2)]


@pytest.mark.parametrize("ax", ["x", Figure(), np.array([None])])
def test_axes_are_axes(ax):
    with pytest.raises(ValueError, match=r"ax: got .* allowed: axes of matplotlib"):
        synthetic.solution().plot(ax)


def test_wrong_axes_and_curves_are_named_by_their_kind(ax):
    with pytest.raises(ValueError, match=r"ax: got an array of shape \(2,\), of Axes; allowed"):
        synthetic.solution().plot(np.array([ax, ax]))
    with pytest.raises(ValueError, match=r"curves: got Sol.*; allowed: a list .* as \[curve\]"):
        plotting.risk_against_alpha(synthetic.solution(), ["ridge"])


def test_an_index_has_one_colour_and_each_model_its_own_lines_and_name(ax):
    first, second = synthetic.solution(), synthetic.solution("gamp", alpha=2.0)
    plotting.overlap_against_iteration(theory=first, ax=ax)
    plotting.overlap_against_iteration(second, ax=ax)
    plotting.overlap_against_iteration(theory=first, ax=ax)
    lines = [line for line in ax.lines if len(line.get_xdata())]
    assert [line.get_color() for line in lines] == 3 * [plotting.colour(p) for p in range(2)]
    assert [line.get_linestyle() for line in lines] == ["-", "-", "None", "None", "--", "--"]
    kinds = ["state evolution", "state evolution (2)", "GAMP"]  # lines before markers
    assert [x for x in labels(ax) if x] == ["layer 1", "layer 2", *kinds]
    plotting.overlap_against_iteration(theory=first, ax=ax)
    assert [x for x in labels(ax) if x][:2] == ["layer 1", "layer 2"]
    assert looks(ax) == {
        "layer 1": (plotting.colour(0), "-"),
        "layer 2": (plotting.colour(1), "-"),
        "state evolution": ("0.15", "-"),
        "GAMP": ("0.15", "o"),
        "state evolution (2)": ("0.15", "--"),
        "state evolution (3)": ("0.15", "-."),
    }


def learner_solution(kind, learner):
    """One index of which the cosine is 1/2."""
    solution, one = synthetic.solution(kind), jnp.eye(1)
    numbers = {"overlap": one, "teacher_overlap": 0.5 * one, "covariance": one, "stderr": 0.0 * one}
    fields = {field.name: getattr(solution, field.name) for field in dataclasses.fields(solution)}
    fields |= numbers | {"history": {}, "model": smi.links.sign(noise=0.1), "learner": learner}
    return LearnerSolution(**fields)


def test_learners_are_named_and_told_apart(ax):
    line = smi.links.linear()
    learners = {
        "logistic loss, ridge 0.1": smi.Erm(line, loss=smi.losses.logistic, ridge=0.1),
        "huber loss, ridge 0.01": smi.Erm(line, loss=smi.losses.huber(), ridge=0.01),
        "lambda loss, ridge 1, l1 0.5": smi.Erm(line, loss=lambda p, y: p * y, ridge=1.0, l1=0.5),
        "posterior of sign, noise 2.5": smi.Mismatched(smi.links.sign(noise=2.5)),
        "squared loss, nuclear 0.2": smi.MatrixErm(nuclear=0.2),
    }
    bayes = smi.curve(smi.links.sign(noise=0.1), [1.0], key=jax.random.key(0))
    assert labels(bayes.plot(ax)) == ["state evolution"]
    assert ax.get_ylabel() == "overlap $Q/S$"
    for learner in learners.values():
        plotting.overlap_against_alpha(learner_solution("state_evolution", learner), ax=ax)
    assert labels(ax) == ["Bayes", *learners]
    assert len({line.get_color() for line in ax.lines}) == 6
    bayes.plot(ax)
    assert labels(ax) == ["Bayes", *learners, "Bayes (2)"]
    assert ax.get_ylabel() == "squared cosine"
    assert ax.get_legend().get_title().get_text() == "sign, Gaussian prior, noise 0.1"
    # a run has the colour of its theory
    name, learner = next(iter(learners.items()))
    plotting.overlap_against_alpha(gamp=learner_solution("gamp", learner), ax=ax)
    assert labels(ax)[-1] == f"{name}, GAMP"
    assert ax.lines[-1].get_color() == ax.lines[1].get_color()


def test_of_several_runs_the_mean_is_drawn(ax):
    runs = [synthetic.solution("gamp", steps=steps, alpha=0.6) for steps in (5, 6, 6)]
    line = smi.Curve(tuple(synthetic.curve()))
    line.plot(ax, runs=[*runs, synthetic.solution("gamp", alpha=0.3)])
    for p in range(2):
        values = np.array([float(run.cosine[p]) ** 2 for run in runs])
        single, mean = drawn(ax, "gamp")[p]
        np.testing.assert_allclose(mean, values.mean())
        bars = [x for x in ax.collections if hasattr(x, "get_segments")][p].get_segments()
        half = 2.0 * values.std(ddof=1) / 3**0.5
        np.testing.assert_allclose(bars[1][:, 1], [mean - half, mean + half])
        np.testing.assert_allclose(bars[0][:, 1], single)
    assert ax.get_ylabel() == "squared cosine"
    assert labels(ax)[2:] == [
        BAND,
        "layer 1, GAMP",
        "layer 2, GAMP",
        "mean of 1 to 3, ± 2 s.e.",
    ]


def test_runs_of_which_some_recover_are_dots_and_bars_end_at_one(ax):
    """A mean and its bar do not say that runs are at two values."""
    sound = [synthetic.solution("gamp", steps=n, alpha=0.6) for n in (2, 2, 10)]
    Q = jnp.full((3, 2, 2), 0.5)
    found = FirstOrder("none", None, None, None, jnp.linspace(0.3, 0.9, 3), Q, Q)
    curve = smi.Curve(tuple(synthetic.curve()))
    for panel in (found.plot(ax, sound), curve.plot(ax.figure.add_subplot(), runs=sound)):
        dots = [x.get_offsets()[:, 1] for x in panel.collections if len(x.get_offsets()) == 3]
        for p in range(2):
            np.testing.assert_allclose(dots[p], [float(x.cosine[p]) ** 2 for x in sound])
        assert "single run" in labels(panel)
        assert not [x for x in panel.collections if hasattr(x, "get_segments")]
    two = [synthetic.solution("gamp", steps=n, alpha=0.6) for n in (5, 10)]  # 0.969, 0.999
    other = curve.plot(ax.figure.add_subplot(), runs=two)
    (bars,) = [x for x in other.collections if hasattr(x, "get_segments")]
    assert bars.get_segments()[0][1, 1] == 1.0


@pytest.mark.parametrize("panels", [1, 2])
def test_subplots_are_lowered_for_a_legend(panels):
    """Where no layout engine does it."""
    grid, Q = jnp.linspace(0.5, 2.5, 9), jnp.full((9, 1, 1), 0.5)
    found = FirstOrder("first order", *map(synthetic.threshold, (2.2, 1.2, 0.7)), grid, Q, 1.5 * Q)
    figure = Figure(figsize=(4.0 * panels, 2.7))
    for ax in np.ravel(figure.subplots(1, panels)):
        found.plot(ax)
        found.plot(ax)
    legends = [ax.get_legend().get_window_extent() for ax in figure.axes]
    for ax, legend in zip(figure.axes, legends, strict=True):
        assert ax.bbox.y1 <= legend.y0 < legend.y1 <= figure.bbox.y1
    assert [x.x1 for x in legends] == sorted(x.x1 for x in legends)
    assert not legends[0].overlaps(legends[-1]) or panels == 1


def test_runs_that_did_not_converge_are_crosses_outside_of_the_mean(ax):
    runs = [synthetic.solution("gamp", alpha=0.6) for _ in range(5)]
    missed = [synthetic.solution("gamp", alpha=0.6, steps=5, result=Result.MAX_STEPS)] * 2
    smi.Curve(tuple(synthetic.curve())).plot(ax, runs=[*runs, *missed])
    np.testing.assert_allclose(drawn(ax, "gamp")[0], [float(runs[0].cosine[0]) ** 2])
    np.testing.assert_allclose(drawn(ax, "crosses")[0], 2 * [float(missed[0].cosine[0]) ** 2])
    assert "not converged" in labels(ax)
    assert "layer 1, GAMP" in labels(ax)
    risk = plotting.risk_against_alpha([[*runs, *missed]], ["GAMP"], ax.figure.add_subplot())
    assert labels(risk) == ["not converged", "GAMP"]
    # of a minority there is no mean, and each is drawn
    few = plotting.risk_against_alpha([[runs[0], *missed]], ["GAMP"], ax.figure.add_subplot())
    assert labels(few) == ["not converged", "run, where most did not converge", "GAMP"]
    assert [float(runs[0].error)] in [np.asarray(x.get_ydata()).tolist() for x in few.lines]


def test_logarithmic_axes_have_short_labels(ax):
    plotting.risk_against_alpha([synthetic.curve()], ["theory"], ax)
    ax.set(xscale="log", yscale="log", xlim=(0.25, 6.0), ylim=(1e-6, 1.0))  # after the drawing
    figure = pickle.loads(pickle.dumps(ax.figure))
    figure.draw_without_rendering()
    (ax,) = figure.axes
    ticks = [ax.xaxis.get_major_formatter()(x) for x in (0.3, 0.5, 1.0, 2.0)]
    assert ticks == ["", "0.5", "1", "2"]
    assert ax.yaxis.get_major_formatter()(1e-3) == "$\\mathdefault{10^{-3}}$"


def test_a_high_legend_leaves_the_axes_their_height():
    ax = smi.Curve(tuple(synthetic.curve())).plot()
    for name in ("one", "two", "three"):
        smi.Curve(tuple(synthetic.curve())).plot(ax, label=f"{name}, a label of thirty letters")
        ax.figure.draw_without_rendering()
    assert ax.get_legend().get_texts()[0].get_fontsize() == 6
    assert ax.bbox.height / ax.figure.dpi > 1.3
    matplotlib.pyplot.close(ax.figure)


def test_runs_without_a_teacher_are_left_out_with_a_warning(ax):
    runs = [synthetic.solution("gamp", alpha=alpha) for alpha in (0.3, 0.6)]
    runs[1] = dataclasses.replace(runs[1], error=jnp.asarray(jnp.nan))
    with pytest.warns(UserWarning, match=r"^runs: runs without a teacher.* at α = 0\.6\.$"):
        plotting.risk_against_alpha([synthetic.curve(), runs], ["theory", "runs"], ax)
    np.testing.assert_array_equal(ax.lines[1].get_xdata(), [0.3])


def check_accelerated(fast, slow, gamp, ax):
    """Only plain steps are drawn beside a run, or on the axes of one."""
    allowed = r"^theory: got accelerated steps.*newton=False"
    with pytest.raises(ValueError, match=allowed):
        plotting.overlap_against_iteration(gamp, fast, ax)
    plotting.overlap_against_iteration(gamp, slow, ax)
    with pytest.raises(ValueError, match=allowed):
        fast.plot(ax)
    assert slow.plot(ax).get_xlabel() == "iteration"
    assert fast.plot(ax.figure.add_subplot()).get_xlabel() == "accelerated step"


def test_accelerated_steps_are_not_drawn_beside_iterations(ax):
    slow = synthetic.solution()
    fast = dataclasses.replace(slow, history=slow.history | {"residual": np.full(10, 1e-3)})
    check_accelerated(fast, slow, synthetic.solution("gamp"), ax)


@pytest.mark.slow
@pytest.mark.parametrize("learner", [None, smi.Erm(ridge=0.1)], ids=["Bayes", "ridge"])
def test_accelerated_steps_are_known_by_their_length(ax, learner):
    settings = {"key": jax.random.key(0), "averages": smi.Averages(256), "learner": learner}
    model, plain = smi.links.linear(0.5), smi.Iteration(newton=False)
    fast = smi.state_evolution(model, 1.0, **settings)
    slow = smi.state_evolution(model, 1.0, iteration=plain, **settings)
    check_accelerated(fast, slow, synthetic.solution("gamp"), ax)


def test_overlaps_are_drawn_as_they_are(ax):
    gamp = synthetic.solution("gamp", moment=4.0)
    plotting.overlap_against_iteration(
        gamp, ax=ax, quantity="overlap", names=["one", "two"], legend=False
    )
    np.testing.assert_allclose(drawn(ax, "gamp")[1], gamp.trajectory["overlap"][:, 1, 1])
    assert ax.get_legend() is None


@pytest.mark.parametrize("form", [list, iter])
def test_a_curve_has_its_error_band(ax, form):
    solutions = synthetic.curve()
    gamp = synthetic.solution("gamp")
    plotting.overlap_against_alpha(form(solutions), gamp, ax, bands=3.0)
    for p in range(2):
        expected = [float(solutions[i].overlap[p, p]) for i in (1, 2, 0)]
        np.testing.assert_allclose(drawn(ax, "theory")[p], expected)
        np.testing.assert_allclose(drawn(ax, "gamp")[p], [gamp.trajectory["cosine"][-1, p] ** 2])
        band = ax.collections[p].get_paths()[0].vertices
        at = band[np.isclose(band[:, 0], 0.6), 1]
        ends = [expected[1] - 0.03, min(expected[1] + 0.03, 1.0)]  # an overlap is at most one
        np.testing.assert_allclose([at.min(), at.max()], ends)


def test_what_did_not_converge_is_a_cross(ax):
    unfinished = synthetic.solution(alpha=0.6, steps=5, result=Result.MAX_STEPS)
    plotting.overlap_against_alpha([synthetic.solution(alpha=0.3), unfinished], ax=ax)
    for p in range(2):
        np.testing.assert_allclose(drawn(ax, "crosses")[p], [unfinished.overlap[p, p]])


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
    np.testing.assert_allclose(drawn(ax, "crosses")[0], broken[5, 0] ** 2)


def test_bad_input_is_named(ax, tmp_path):
    with pytest.raises(ValueError, match="quantity: got 'loss'"):
        plotting.overlap_against_iteration(synthetic.solution("gamp"), ax=ax, quantity="loss")
    table = smi.Dataset(np.ones((3, 2)), np.ones(3))
    with pytest.raises(ValueError, match=r"runs \(gamp\): got Data.*a list of runs smi\.gamp"):
        plotting.overlap_against_alpha(synthetic.curve(), table, ax)
    with pytest.raises(ValueError, match=r"curves\[0\]: got another table; .*table\.sel"):
        plotting.risk_against_alpha([synthetic.solution().to_xarray().drop_attrs()], ["a"], ax)
    with pytest.raises(ValueError, match="theory, gamp: got no solution"):
        plotting.overlap_against_alpha([], ax=ax)
    with pytest.raises(ValueError, match=r"path: got .*\.jpg"):
        plotting.savefig(ax.figure, tmp_path / "a.jpg")


def test_a_figure_says_how_it_was_made(ax, tmp_path):
    image = pytest.importorskip("PIL.Image")
    solution = synthetic.solution()
    plotting.overlap_against_iteration(theory=solution, ax=ax)
    for ending in ("png", "svg", "pdf"):
        plotting.savefig(ax.figure, tmp_path / f"a.{ending}", solution, seed=3, note="α")
    tags = xml.parse(tmp_path / "a.svg").iter("{http://purl.org/dc/elements/1.1/}description")
    in_svg = next(tags).text
    for words in (image.open(tmp_path / "a.png").text["Description"], in_svg):
        made = json.loads(words)
        assert (made["seed"], made["note"], made["key"]) == (3, "α", [0, 3])
        assert made["model_parameters"]["skip"] == [1.0, 0.5]
    assert b"model_parameters" in (tmp_path / "a.pdf").read_bytes()


def two_runs():
    """One that ended earlier, one later."""
    key = synthetic.solution().key
    runs = (synthetic.solution("gamp", steps=steps, key=key) for steps in (4, 9))
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *runs)


def test_learning_curves_draw_the_mean_of_runs_that_ended_earlier_or_later(ax):
    runs = two_runs()
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


def test_other_errors_of_learners_are_drawn_in_the_order_of_their_curves(ax):
    """Shares of wrong signs, say, with their bands."""
    curves, shares = [synthetic.curve(), synthetic.solution()], jnp.array([0.1, 0.3, 0.2])
    values = [Estimate(shares, jnp.array([0.01, 0.02, 0.03])), Estimate(shares[0], shares[1])]
    words = {"labels": ["Bayes", "logistic"], "quantity": "share of wrong signs"}
    plotting.risk_against_alpha(curves, values=values, ax=ax, **words)
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), [0.3, 0.6, 0.9])
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), shares[jnp.array([1, 2, 0])])
    np.testing.assert_array_equal(ax.lines[1].get_ydata(), shares[:1])
    band = ax.collections[0].get_paths()[0].vertices
    at = band[np.isclose(band[:, 0], 0.6), 1]
    np.testing.assert_allclose([at.min(), at.max()], [0.14, 0.26])
    assert ax.get_ylabel() == "share of wrong signs"
    with pytest.raises(ValueError, match=r"^values: got numbers of shapes \[\(3,\)\]"):
        plotting.risk_against_alpha(curves, values=values[:1], ax=ax, **words)
    values[0] = np.asarray(shares)  # of arrays there are no errors
    bare = plotting.risk_against_alpha(curves, values=values, ax=ax.figure.add_subplot(), **words)
    np.testing.assert_array_equal(bare.lines[0].get_ydata(), shares[jnp.array([1, 2, 0])])
    other = plotting.risk_against_alpha(curves, words["labels"], ax.figure.add_subplot())
    assert other.get_ylabel() == "mean squared error (plug-in)"
    other = plotting.risk_against_alpha(curves, words["labels"], other, values=values)
    assert other.get_ylabel() == "error"
    for quantity in ("test_loss", "cosine", "eror"):
        with pytest.raises(ValueError, match=f"quantity: got '{quantity}'"):
            plotting.risk_against_alpha(curves, words["labels"], ax, quantity=quantity)


def test_runs_of_a_learner_are_markers_in_the_colour_of_its_theory(ax):
    curves = [synthetic.curve(), synthetic.curve(), [synthetic.solution("gamp")]]
    plotting.risk_against_alpha(curves, ["Bayes", "ridge", "ridge, D = 500"], ax)
    bayes, ridge, runs = ax.lines
    assert runs.get_color() == ridge.get_color() != bayes.get_color()
    assert [line.get_linestyle() for line in (bayes, ridge, runs)] == ["-", "--", "None"]
    assert len(ax.collections) == 2  # bands of theory


def test_a_legend_has_runs_beside_their_theory(ax):
    runs = [synthetic.solution("gamp", alpha=0.6) for _ in range(3)]
    for k, run in enumerate(runs):
        runs[k] = dataclasses.replace(run, error=jnp.asarray(0.1 * k))
    missed = [synthetic.solution("gamp", alpha=0.6, result=Result.MAX_STEPS)]
    curves = [synthetic.curve(), synthetic.curve(), runs + missed, runs]
    wide = plotting.risk_against_alpha(curves, ["Bayes", "a", "a 1", "a 2"])
    beside = ["", "a 1", "a 2", "mean of 3, ± 2 s.e."]
    assert labels(wide) == ["Bayes", "a", "", "not converged", *beside]
    matplotlib.pyplot.close(wide.figure)


def test_methods_have_markers_of_their_own_and_learners_colours(ax):
    runs = [synthetic.solution("gamp", alpha=0.5)]
    curves = [synthetic.curve(), runs, runs] * 2
    plotting.risk_against_alpha(curves, ["a", "a 1", "a 2", "b", "b 1", "b 2"], ax)
    handles, names = ax.get_legend_handles_labels()
    lines = [getattr(handle, "lines", [handle])[0] for handle in handles]
    look = {name: (x.get_color(), x.get_marker()) for name, x in zip(names, lines, strict=True)}
    assert len({look[f"{learner} {method}"] for learner in "ab" for method in "12"}) == 4
    for learner in "ab":
        assert look[f"{learner} 1"][0] == look[f"{learner} 2"][0] == look[learner][0]
    for method in "12":
        assert look[f"a {method}"][1] == look[f"b {method}"][1]
    with pytest.raises(ValueError, match=r"labels: .*6 of them, one for each of the curves, runs"):
        plotting.risk_against_alpha(curves, ["a", "b"], ax)


def looks(ax):
    """Colour and marker, or line style, of each entry of the legend."""
    handles, names = ax.get_legend_handles_labels()
    mark = lambda x: x.get_marker() if x.get_linestyle() == "None" else x.get_linestyle()
    drawn = zip(handles, names, strict=True)
    return {name: (x.get_color(), mark(x)) for x, name in drawn if hasattr(x, "get_marker")}


def test_runs_are_paired_with_the_theory_of_their_learner_whatever_the_labels(ax):
    ridge, lasso = smi.Erm(ridge=0.1), smi.Erm(ridge=0.0, l1=0.1)
    learned = [learner_solution("state_evolution", one) for one in (ridge, lasso)]
    runs = [learner_solution("gamp", one) for one in (ridge, smi.Erm(ridge=0.1), lasso)]
    huber = learner_solution("gamp", smi.Erm(loss=smi.losses.huber(), ridge=0.1))
    train = synthetic.solution("train")
    curves = [*learned, *runs, huber, train]
    plotting.risk_against_alpha(curves, ["a"] * len(curves), ax)
    first, second, third = map(plotting.colour, range(3))
    assert looks(ax) == {
        "a": (first, "-"),
        "a, squared loss, l1 0.1": (second, "--"),
        "a, GAMP": (first, "o"),
        "a, GAMP (2)": (first, "D"),
        "a, GAMP (3)": (second, "o"),
        "a, GAMP (4)": (third, "o"),  # no theory of its learner
        "a, training": (second, "s"),
    }
    assert set(filter(None, labels(ax))) == set(looks(ax))
    plotting.risk_against_alpha([learned[0]], ["a"], ax)
    assert "a, squared loss, ridge 0.1" in labels(ax)
    # the same markers in the other figure
    other = ax.figure.add_subplot()
    plotting.overlap_against_alpha(learned[0], runs[0], other)
    plotting.overlap_against_alpha(gamp=dataclasses.replace(train, model=None), ax=other)
    assert [look[1] for look in looks(other).values()] == ["-", "o", "s", "s", "|"]


def test_runs_of_another_learner_are_refused(ax):
    ridge = learner_solution("gamp", smi.Erm(ridge=0.1))
    with pytest.raises(
        ValueError, match=r"runs of squared loss, ridge 0\.1; allowed: .* curve: Bayes"
    ):
        plotting.overlap_against_alpha(synthetic.curve(), ridge, ax)
    with pytest.raises(
        ValueError, match=r"runs of Bayes; .* .* curve: squared loss, ridge 0\.1\.$"
    ):
        plotting.overlap_against_alpha(gamp=[ridge, synthetic.solution("gamp")], ax=ax)
    grid, Q = jnp.arange(1.0, 4.0), jnp.full((3, 1, 1), 0.5)
    with pytest.raises(ValueError, match="runs of squared loss"):
        FirstOrder("none", None, None, None, grid, Q, Q).plot(ax, runs=ridge)


def test_theory_is_a_line_without_marks_and_a_point_alone_or_of_few_a_dot(ax):
    smi.Curve(tuple(synthetic.solution(alpha=0.1 * k) for k in range(8))).plot(ax)
    assert [line.get_marker() for line in ax.lines] == ["None", "None"]
    assert len({line.get_linestyle() for line in ax.lines}) == 2
    alone = smi.Curve((synthetic.solution(),)).plot(ax.figure.add_subplot()).lines[0]
    assert (alone.get_marker(), list(alone.get_markevery())) == (".", [0])
    few = smi.Curve(tuple(synthetic.curve())).plot(ax.figure.add_subplot()).lines[0]
    assert (few.get_marker(), list(few.get_markevery())) == (".", [0, 1, 2])


def test_a_band_is_explained_once_where_it_is_broader_than_its_line(ax):
    curve = synthetic.curve()
    exact = [dataclasses.replace(x, stderr=1e-4 * x.stderr) for x in curve]
    assert BAND not in labels(plotting.overlap_against_alpha(exact, ax=ax))
    for _ in range(2):
        plotting.overlap_against_alpha(curve, ax=ax)
    assert labels(ax).count(BAND) == 1 == labels(ax)[-1].count(BAND)
    three = plotting.overlap_against_alpha(curve, ax=ax.figure.add_subplot(), bands=3.0)
    assert labels(three)[-1] == "band: ± 3 s.e."


def test_a_transition_has_runs(ax):
    """As Q/S: cos²."""
    runs = [synthetic.solution("gamp", alpha=2.0, steps=n, moment=4.0) for n in (5, 6, 6)]
    Q = jnp.full((3, 2, 2), 0.5)
    found = FirstOrder("none", None, None, None, jnp.arange(1.0, 4.0), Q, Q, 4.0 * jnp.eye(2))
    found.plot(ax, runs=runs)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), 0.125)
    assert ax.get_ylabel() == "squared cosine"
    for p in range(2):
        np.testing.assert_allclose(
            drawn(ax, "gamp")[p], np.mean([x.cosine[p] ** 2 for x in runs]), rtol=1e-6
        )
    names = ["index 1, GAMP", "index 2, GAMP", "mean of 3, ± 2 s.e."]
    assert labels(ax)[-3:] == names
    assert looks(ax)["index 2, GAMP"] == (plotting.colour(1), "o")
    assert len([x for x in ax.collections if hasattr(x, "get_segments")]) == 2  # bars


def test_the_runs_of_a_sweep_are_drawn(ax):
    pytest.importorskip("xarray")
    steps = iter([5, 6, 6, 5, 6, 6])
    run = lambda model, alpha, key, last, learner: synthetic.solution("gamp", alpha, next(steps))
    learner, grid = smi.Erm(ridge=0.1), [0.3, 0.6]
    build = lambda noise: smi.links.linear(noise)
    table = smi.sweep(build, grid, {"noise": [0.1]}, seeds=3, solver=run, learner=learner)
    table = table.assign_attrs(solver='"gamp"')
    curve = smi.Curve(tuple(synthetic.curve()))
    one = table.sel(noise=0.1).drop_vars("model_hash")  # of another model
    with pytest.raises(ValueError, match=r"runs of squared loss, ridge 0\.1; allowed: .* Bayes"):
        curve.plot(ax, runs=one)
    del one.attrs["learner"]
    curve.plot(ax, runs=one)
    for p in range(2):
        np.testing.assert_allclose(drawn(ax, "gamp")[p], (one.cosine**2).mean("seed")[:, p])
    assert labels(ax)[2:] == [BAND, "layer 1, GAMP", "layer 2, GAMP", "mean of 3, ± 2 s.e."]
    (panel, _) = plotting.sweep(one.assign_attrs(learner="ridge"), plotting.canvas()).axes
    assert panel.get_ylabel() == "squared cosine"
    few = one.isel(alpha=0)
    risk = plotting.risk_against_alpha([curve, few], ["a", "a"], ax.figure.add_subplot())
    np.testing.assert_allclose(drawn(risk, "gamp"), [few.error.mean("seed", keepdims=True)])
    for wrong in (table, one.drop_attrs()):
        with pytest.raises(ValueError, match=r"^runs \(gamp\): got .*, of parameters table\.sel\("):
            curve.plot(ax, runs=wrong)
    theory = one.assign_attrs(solver='"state_evolution"')
    with pytest.raises(ValueError, match=r"^runs \(gamp\): got solutions of theory; allowed"):
        curve.plot(ax, runs=theory)
    plotting.risk_against_alpha([theory.isel(seed=[0])], ["a"], ax.figure.add_subplot())


@pytest.mark.parametrize("learner", [None, smi.Erm(ridge=0.1)])
def test_a_curve_that_was_saved_is_drawn_again(ax, tmp_path, learner):
    pytest.importorskip("h5netcdf")
    few = {"averages": smi.Averages(64), "key": jax.random.key(0), "learner": learner}
    curve = smi.curve(smi.links.linear(0.5), [0.5, 1.0], **few)
    smi.save(curve, tmp_path / "curve.nc")
    table = smi.load(tmp_path / "curve.nc")
    quantity = "error" if learner is None else "test_loss"
    draw = lambda x: (
        plotting.overlap_against_alpha(x, ax=ax.figure.add_subplot()),
        plotting.risk_against_alpha([x], ["a"], ax.figure.add_subplot(), quantity=quantity),
    )
    for own, again in zip(draw(curve), draw(table), strict=True):
        np.testing.assert_array_equal(own.lines[0].get_ydata(), again.lines[0].get_ydata())
        np.testing.assert_array_equal(
            *(x.collections[0].get_paths()[0].vertices for x in (own, again))
        )
        assert labels(own) == labels(again)
    if learner is not None:
        np.testing.assert_array_equal(curve.teacher_overlap, table.teacher_overlap)


@pytest.mark.parametrize(
    "learner", [None, pytest.param(smi.Erm(ridge=0.1), marks=pytest.mark.slow)]
)
def test_runs_of_another_model_are_refused(learner):
    """One wrong `.sel` would say that theory fails."""
    pytest.importorskip("xarray")
    words = {} if learner is None else {"learner": learner}
    table = smi.sweep(
        smi.links.linear, [0.5, 1.0], {"noise": [0.1, 0.2]}, solver="gamp", dimension=20, **words
    )
    curve = smi.curve(smi.links.linear(0.1), [0.5, 1.0], key=jax.random.key(0), **words)
    curve.plot(runs=table.sel(noise=0.1))
    with pytest.raises(ValueError, match=r"^runs \(gamp\): got runs of another model; allowed"):
        curve.plot(runs=table.sel(noise=0.2))
    # message passing itself gives the prior of a run another norm: nothing is known of its model
    run = dataclasses.replace(curve.solutions[0], kind="gamp", model=smi.links.linear(0.2))
    curve.plot(runs=[run])


def test_a_sweep_has_error_bands():
    """By the spread of several seeds, of one seed by its solution; points at which a seed did not
    converge are crosses."""
    xarray = pytest.importorskip("xarray")
    share = np.array([[0.2, 0.5], [0.3, 0.6], [0.4, 0.7]])  # (seed, alpha)
    axes = ("seed", "alpha", "index", "index_")
    fields = {"overlap": 4.0 * share, "covariance": 4.0 * (1.0 - share), "stderr": 0.04 + 0 * share}
    table = xarray.Dataset(
        {name: (axes, x[..., None, None]) for name, x in fields.items()}, {"alpha": [1.0, 2.0]}
    )
    table["result"] = (("seed", "alpha"), np.zeros((3, 2), int))
    for seeds, half in ((3, 2.0 * 0.1 / 3**0.5), (1, 0.02)):
        (panel,) = plotting.sweep(table.isel(seed=slice(seeds)), plotting.canvas()).axes
        middle = share[:seeds].mean(axis=0)
        np.testing.assert_allclose(panel.lines[0].get_ydata(), middle)
        band = panel.collections[0].get_paths()[0].vertices
        for x, y in zip((1.0, 2.0), middle, strict=True):
            at = band[np.isclose(band[:, 0], x), 1]
            np.testing.assert_allclose([at.min(), at.max()], [y - half, y + half])
    table.result[1, 1] = int(smi.Result.MAX_STEPS)
    (panel,) = plotting.sweep(table, plotting.canvas()).axes
    known, crosses, _ = panel.lines
    np.testing.assert_allclose(known.get_ydata(), [0.3, np.nan])
    np.testing.assert_allclose(crosses.get_ydata(), [np.nan, 0.6])
    assert labels(panel) == [BAND, "not converged"]


@pytest.mark.parametrize("values", [(2,), (2, 3), (11, 3)])
def test_each_value_of_a_parameter_is_named_once(values):
    """Also where nothing converged; many values have a colour bar."""
    xarray = pytest.importorskip("xarray")
    names = ("noise", "flip")[: len(values)]
    axes, ones = (*names, "seed", "alpha", "index", "index_"), np.ones((*values, 1, 2, 1, 1))
    fields = dict.fromkeys(("overlap", "covariance", "stderr"), (axes, ones))
    grid = {name: np.arange(float(n)) for name, n in zip(names, values, strict=True)}
    table = xarray.Dataset(fields, {"alpha": [1.0, 2.0], **grid})
    table["result"] = (axes[:-2], np.full(ones.shape[:-2], int(Result.MAX_STEPS)))
    table.result[0] = int(Result.SUCCESS)
    panel, *bar = plotting.sweep(table, plotting.canvas()).axes
    assert (len(bar), bar and bar[0].get_ylabel()) == ((1, "noise") if values[0] == 11 else (0, []))
    flips = [f"flip {k}" for k in range(3)] * (len(values) > 1)
    noises = ["noise 0", "noise 1"] * (not bar)
    assert sorted(filter(None, labels(panel))) == sorted([BAND, *flips, *noises, "not converged"])
    curves = [x for x in panel.lines if len(x.get_xdata()) and x.get_linestyle() != "None"]
    looks = {(x.get_color(), x.get_linestyle(), x.get_marker()) for x in curves}
    assert len(looks) == np.prod(values)
    assert len({x.get_color() for x in curves}) == values[0]


def test_a_transition_is_two_branches_with_gaps_at_their_ends_and_its_thresholds(ax):
    of = synthetic.threshold
    grid, Q = jnp.arange(1.0, 6.0), jnp.array([0.1, 0.2, 0.3, 0.4, 0.9])[:, None, None]
    informed = Q.at[1:].set(0.9)
    found = FirstOrder("first order", of(4.5), of(2.5), of(1.5), grid, Q, informed)
    assert found.plot(ax) is ax
    lower, upper, *lines = ax.lines
    np.testing.assert_array_equal(lower.get_ydata(), [0.1, 0.2, 0.3, 0.4, np.nan, 0.9])
    np.testing.assert_array_equal(upper.get_ydata(), [0.1, np.nan, *4 * [0.9]])
    assert [line.get_xdata()[0] for line in lines] == [1.5, 2.5, 4.5]
    assert len(ax.collections) + len(ax.patches) == 3  # their intervals
    names = ["uninformed", "informed", "spinodal", "information-theoretic", "algorithmic"]
    valued = [f"{name}, $\\alpha={a}$" for name, a in zip(names[2:], (1.5, 2.5, 4.5), strict=True)]
    assert labels(ax) == [*names[:2], *valued]
    # another one on the same axes: a threshold has one style, branches have colours of their own
    found.plot(ax)
    assert labels(ax) == [*names[:2], *valued, "uninformed (2)", "informed (2)"]
    others = [line for line in ax.lines[5:] if line.get_gid() == "threshold"]
    assert [x.get_linestyle() for x in others] == [x.get_linestyle() for x in lines]
    assert ax.lines[5].get_color() != lower.get_color()
    # a jump to a third branch, with an α on each side, is not drawn through
    third = grid.at[3].set(3.0 + 1e-9)
    (jumps, *_) = FirstOrder("none", None, None, None, third, Q, Q).plot(Figure().subplots()).lines
    np.testing.assert_array_equal(jumps.get_ydata(), [0.1, 0.2, 0.3, np.nan, 0.4, 0.9])
    # outside the grid
    ends = FirstOrder("first order", of(jnp.inf), of(0.0), of(0.0), grid, Q, informed)
    assert labels(ends.plot(ax.figure.add_subplot())) == [
        *names[:2],
        "spinodal and information-theoretic: at any α",
        "algorithmic: at no α",
    ]
    two = jnp.tile(Q, (1, 2, 2))
    ends = FirstOrder("first order", of(jnp.inf), of(0.0), of(0.0), grid, two, two)
    assert labels(ends.plot(ax.figure.add_subplot()))[-2:] == [
        "spinodal and information-theoretic: below 1",
        "algorithmic: above 5",
    ]
    none = FirstOrder("none", None, None, None, grid, two, two).plot(ax.figure.add_subplot())
    assert labels(none)[2:] == ["index 2, uninformed", "index 2, informed"]


def test_a_legend_names_the_model_where_all_curves_share_it(ax):
    few = {"averages": smi.Averages(64), "key": jax.random.key(0)}
    theory = lambda prior: smi.curve(smi.links.linear(0.5, prior=prior), [0.5, 1.0], **few)
    one = theory(None)
    title = lambda: ax.get_legend().get_title().get_text()
    assert labels(one.plot(ax)) == ["state evolution"]
    assert title() == "linear, Gaussian prior, noise 0.5"
    one.plot(ax)
    assert title() == "linear, Gaussian prior, noise 0.5"
    theory(smi.priors.Rademacher()).plot(ax)
    assert title() == "linear, noise 0.5"
    one.plot(ax)
    assert title() == "linear, noise 0.5"
    gauss, other = (f"state evolution, {prior} prior" for prior in ("Gaussian", "Rademacher"))
    assert labels(ax) == [gauss, f"{gauss} (2)", other, f"{gauss} (4)"]
    widths = [x.get_linewidth() for x in ax.lines]
    assert widths == sorted(set(widths), reverse=True)
    smi.curve(smi.links.linear(0.1), [0.5], **few).plot(ax)
    assert title() == "linear"
    assert labels(ax)[2:] == [
        f"{other}, noise 0.5",
        f"{gauss}, noise 0.5 (4)",
        f"{gauss}, noise 0.1",
    ]


def test_theory_of_descent_has_runs_beside_it():
    """Their mean, each run with the last value it had."""
    theory = synthetic.solution("descent_theory")
    runs = [dataclasses.replace(synthetic.solution("gamp", steps=n), kind="train") for n in (5, 8)]
    ax = theory.plot(runs=runs)
    each = [np.asarray(run.trajectory["cosine"]) ** 2 for run in runs]
    each[0] = np.pad(each[0], ((0, 3), (0, 0)), mode="edge")
    for p in range(2):
        np.testing.assert_allclose(drawn(ax, "gamp")[p], np.mean(each, axis=0)[:, p])
    columns = "layer 1, descent theory", "layer 2, descent theory", "mean of 2, ± 2 s.e."
    assert labels(ax) == [*columns, "layer 1, training", "layer 2, training", ""]
    with pytest.raises(ValueError, match="runs: got runs beside a run; allowed: None, or theory"):
        runs[0].plot(runs=runs)
    with pytest.raises(ValueError, match="a batch, or runs without a history; allowed: runs with"):
        theory.plot(runs=dataclasses.replace(runs[0], history={}))


def test_errors_are_drawn_relative_to_a_curve(ax):
    one = [dataclasses.replace(x, error=x.alpha) for x in synthetic.curve()]
    runs = [dataclasses.replace(one[0], error=jnp.asarray(0.45), kind="gamp")]  # at α = 0.9
    words = {"ax": ax, "relative_to": "Bayes"}
    plotting.risk_against_alpha([synthetic.curve(), one, runs], ["Bayes", "a", "a"], **words)
    np.testing.assert_allclose(drawn(ax, "theory"), [[1.0] * 3, [1.2, 2.4, 3.6]])
    np.testing.assert_allclose(drawn(ax, "gamp"), [[1.8]])
    assert ax.get_ylabel() == "plug-in error / Bayes"
    with pytest.raises(
        ValueError, match=r"relative_to: got one without α = \[0.3 0.6\]; allowed: a"
    ):
        plotting.risk_against_alpha([runs, one], ["Bayes", "a"], **words)
    with pytest.raises(ValueError, match="relative_to: got 'b'"):
        plotting.risk_against_alpha([one], ["a"], relative_to="b")


def test_markers_of_later_learners_are_smaller(ax):
    runs = [synthetic.solution("gamp", alpha=0.6)]
    plotting.risk_against_alpha([runs] * 3, ["a", "b", "c"], ax)
    sizes = np.array([x.get_markersize() for x in ax.lines])
    np.testing.assert_allclose(sizes[1:] / sizes[:-1], 0.75)
    assert {x.get_xdata()[0] for x in ax.lines} == {0.6}


def test_steps_are_integers(ax):
    plotting.overlap_against_iteration(theory=synthetic.solution(steps=2), ax=ax)
    ticks = ax.xaxis.get_major_locator().tick_values(0.0, 2.0)
    np.testing.assert_array_equal(ticks, np.round(ticks))


def test_one_panel_for_each_method():
    solutions = {"GAMP": synthetic.solution("gamp"), "Adam": synthetic.solution("gamp", steps=9)}
    learned = {name: learned_at(s)[None] for name, s in solutions.items()}
    order = LearningOrder(solutions, learned, 0.5, {"GAMP": 1.2, "Adam": 15.0})
    axes = list(Figure().subplots(1, 2))
    assert plotting.learning_order(order, axes) == axes
    titles = [r"GAMP, $\alpha=1.2$, Layers, $D=4$", r"Adam, $\alpha=15$, Layers, $D=4$"]
    assert [ax.get_legend().get_title().get_text() for ax in axes] == titles
    with pytest.raises(ValueError, match=r"^axes: got 1; allowed: 2"):
        plotting.learning_order(order, axes[:1])


# One style --------------------------------------------------------------------------------------

# How linear RGB is seen without the first, the second, the third cones [Machado et al. 2009]
SEEN = {
    "all": np.eye(3),
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritanopia": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}
TO_XYZ = [[0.4125, 0.3576, 0.1804], [0.2127, 0.7152, 0.0722], [0.0193, 0.1192, 0.9503]]


def apart(colours, seen):
    """The smallest distance of two colours in CIELAB, as they are seen; about 2 is just noticed."""
    rgb = np.array([matplotlib.colors.to_rgb(one) for one in colours])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    linear = np.clip(linear @ np.transpose(SEEN[seen]), 0, 1)
    xyz = linear @ np.transpose(TO_XYZ) / [0.95047, 1.0, 1.08883]
    x, y, z = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116).T
    lab = np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=1)
    gaps = np.linalg.norm(lab[:, None] - lab, axis=-1)
    return gaps[~np.eye(len(lab), dtype=bool)].min()


@pytest.mark.parametrize("seen", SEEN)
def test_colours_are_told_apart_with_any_vision(seen):
    """Categories, and the shades of up to six values; red beside green would not pass."""
    assert apart([plotting.colour(p) for p in range(7)], seen) > 15
    for count in range(2, 7):
        assert apart(plotting.shades(count), seen) > 12
    if seen == "deuteranopia":
        assert apart(["tab:red", "tab:green"], seen) < 15


def test_shades_go_from_dark_to_light():
    light = [sum(matplotlib.colors.to_rgb(one)) for one in plotting.shades(6)]
    assert light == sorted(light)


def test_the_style_is_that_of_the_figures_alone(ax):
    before = dict(matplotlib.rcParams)
    with plotting.style():
        assert matplotlib.rcParams["svg.fonttype"] == "none"
        assert matplotlib.rcParams["pdf.fonttype"] == 42
    plotting.overlap_against_iteration(theory=synthetic.solution(), ax=ax)
    assert dict(matplotlib.rcParams) == before


def test_letters_of_an_svg_are_letters(ax, tmp_path):
    ax.set_xlabel("sample complexity")
    plotting.savefig(ax.figure, tmp_path / "a.svg")
    assert ">sample complexity</text>" in (tmp_path / "a.svg").read_text(encoding="utf-8")


def test_a_band_ends_where_the_quantity_ends(ax):
    plotting.band(ax, [0, 1], [-0.2, 0.5], [0.3, 1.4], "k", within=(0.0, 1.0))
    heights = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (0.0, 1.0)
    runs = two_runs()
    scattered = runs.history["cosine"].at[1].multiply(-1.0)
    runs = dataclasses.replace(runs, history={**runs.history, "cosine": scattered})
    other = ax.figure.add_subplot()
    plotting.learning_curves(runs, other)
    for drawn_band in other.collections:
        assert np.abs(drawn_band.get_paths()[0].vertices[:, 1]).max() <= 1.0


def test_a_legend_has_each_label_once_and_what_marks_are(ax):
    for k in range(2):
        ax.plot([0], [k], label="published")
    plotting.legend(ax, {"message passing": {"marker": "o", "ls": "none"}})
    assert labels(ax) == ["published", "message passing"]


@pytest.mark.parametrize("layout", ["constrained", None])
@pytest.mark.parametrize("size", [(6.4, 4.8), (3.5, 2.7)])
def test_a_title_is_above_the_legend_and_whole(layout, size):
    ax = Figure(figsize=size, layout=layout).subplots()
    plotting.overlap_against_alpha(synthetic.curve(), ax=ax).set_title("both fit")
    pickle.loads(pickle.dumps(ax.figure)).draw_without_rendering()
    ax.figure.draw_without_rendering()
    legend, title = ax.get_legend().get_window_extent(), ax.title.get_window_extent()
    assert legend.y1 <= title.y0 < title.y1 <= ax.figure.bbox.y1


@pytest.mark.parametrize("layout", ["constrained", None])
def test_the_legend_of_two_curves_is_whole_in_a_saved_figure(layout, tmp_path):
    """Above the axes if a layout makes room there, else inside."""
    ax = Figure(figsize=(3.5, 2.7), layout=layout).subplots()
    for _ in range(2):
        plotting.overlap_against_alpha(synthetic.curve(), ax=ax)
    ax.figure.savefig(tmp_path / "a.png")
    box, room = ax.get_legend().get_window_extent(), ax.figure.bbox
    assert len([x for x in labels(ax) if x]) == 5
    assert room.x0 <= box.x0 < box.x1 <= room.x1
    assert room.y0 <= box.y0 < box.y1 <= room.y1

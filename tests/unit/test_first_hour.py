"""What a newcomer does in the first hour: own data, labels of other kinds, learners for classes,
curves, files, copies."""

import copy
import pickle
import warnings

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsmi as smi
import synthetic
from helpers import linear_overlap
from jaxsmi.core import driver
from jaxsmi.thresholds.stairs import Stairs
from jaxsmi.workbench import plotting

KEY = jax.random.key(0)
D = 200
LOGISTIC = smi.Erm(smi.links.linear(), loss=smi.losses.logistic, ridge=0.1)


@pytest.fixture(scope="module")
def own():
    """Inputs (N, D), a teacher (D,) and signs."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((3 * D, D)), rng.standard_normal(D)
    return x, w, np.sign(x @ w)


# Inputs --------------------------------------------------------------------------------------


def test_inputs_of_one_token_may_be_a_matrix(own):
    x, _, y = own
    data = smi.Dataset(x, y)
    assert data.inputs.shape == (3 * D, 1, D)
    np.testing.assert_array_equal(data.inputs[:, 0], x)
    model = smi.links.linear()
    np.testing.assert_allclose(model.predict(x[:1], x)[:, 0], x @ x[0] / D**0.5)
    with pytest.raises(ValueError, match=r"^inputs: got .*; allowed: .*of one token \(N, D\)\.$"):
        smi.Dataset(x[:, 0], y)


def test_standardised_columns_and_the_weights_of_them():
    """Means and variances are exact; W' x'/√D is W (x - x̄)/√D, also after whitening, and maps
    back."""
    rng = np.random.default_rng(1)
    x = 3.0 + rng.uniform(0.2, 9.0, 20) * rng.standard_normal((500, 2, 20))
    W = rng.standard_normal((2, 20))
    data = smi.Dataset(x, np.zeros(500), W)
    standard = data.standardise()
    np.testing.assert_allclose(np.mean(standard.inputs, 0), 0.0, atol=1e-12)
    np.testing.assert_allclose(np.mean(standard.inputs**2, (0, 1)), 1.0, rtol=1e-12)
    for there in (standard, standard.whiten(), standard.whiten(tokens=[[1.0, 0.3], [0.3, 1.0]])):
        np.testing.assert_allclose(there.unwhiten(there.teacher), W, rtol=1e-9)
        np.testing.assert_allclose(there.whitened(data.inputs), there.inputs, atol=1e-9)
        if there.whitening.tokens is None:
            fields = np.einsum("nmd,pd->nmp", there.inputs, there.teacher)
            np.testing.assert_allclose(fields, (x - x.mean(0)) @ W.T, atol=1e-9)
    assert smi.Dataset(x.astype(np.float32), np.zeros(500)).standardise().inputs.dtype == "float32"
    x[..., 3] = 7.1
    with pytest.raises(
        ValueError, match=r"1 of 20 columns .*; allowed: columns that vary: inputs\["
    ):
        smi.Dataset(x, np.zeros(500)).standardise()
    with pytest.raises(ValueError, match="that are not whitened yet"):
        data.whiten().whiten()
    with pytest.raises(ValueError, match=r"^data: got .*; allowed: .*data\.standardise\(\)\.$"):
        data.whitened(data.inputs)
    with pytest.raises(ValueError, match=r"^inputs: got .*; allowed: .*\(N, 2, 20\)\.$"):
        standard.whitened(x[:, 0])


@pytest.mark.parametrize("fault", ["scale 1e-3", "scale 10", "shift"])
def test_inputs_at_fault_are_named_by_the_code_with_the_remedy(own, fault):
    x, w, y = own
    faulty = {"scale 1e-3": 1e-3 * x, "scale 10": 10.0 * x, "shift": x + 0.5}[fault]
    data, model = smi.Dataset(faulty, y), smi.links.sign()
    with pytest.warns(UserWarning, match=r"data\.standardise\(\)") as caught:
        run = smi.gamp(model, data, key=KEY)
    # the numbers of the warning are those of the table that it names
    for moment in (table := data.second_moments(quick=True)).failing:
        assert f"{moment.name} (size {moment.size:.3f}: " in str(caught[0].message)
        assert f"{moment.size:9.3f}" in str(table)
    assert "size: distance" in str(table)
    assert int(run.result) == smi.Result.INPUTS
    assert not bool(run.converged)
    assert "data.standardise()" in run.message
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = smi.gamp(model, standard := data.standardise(), key=KEY)
    assert run.message == "Converged."
    found = standard.unwhiten(run.weights)[0]
    assert np.corrcoef(found, w)[0, 1] > 0.88  # theory at α = 3: 0.92, ± 1/√D


@pytest.mark.filterwarnings("error")
def test_arguments_are_refused_before_inputs_are_blamed(own):
    x, _, y = own
    model, data = smi.links.sign(), smi.Dataset(3.0 + x, y)
    for name, wrong in {"key": 0, "learner": "Bayes", "start": ()}.items():
        with pytest.raises(ValueError, match=f"^{name}: got"):
            smi.gamp(model, data, **{"key": KEY, name: wrong})
    bits = smi.Dataset(3.0 + x, y > 0)
    with pytest.raises(ValueError, match="take 2"):
        smi.gamp(model, bits, key=KEY)


@pytest.mark.slow
def test_a_minimum_of_a_risk_is_one_for_any_inputs(own):
    x, w, y = own
    learner, teacher = LOGISTIC, smi.links.sign()
    data = smi.Dataset(1e-3 * x, y, w[None], teacher)
    with pytest.warns(UserWarning, match="variance of the entries"):
        run = smi.gamp(teacher, data, learner=learner, key=KEY)
    assert bool(run.converged)
    assert float(run.gradient_norm) < 1e-4


# Labels --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (lambda y: y > 0, r"labels: .*; allowed: \+1 and -1: take 2 \* labels - 1\."),
        (lambda y: (y > 0).tolist(), r"labels: .*; allowed: \+1 and -1: take 2 \* labels - 1\."),
        (lambda y: 1 * (y > 0), r"labels: .*; allowed: \+1 and -1: take 2 \* labels - 1\."),
        (lambda y: 3.0 * y, r"labels: .*; allowed: \+1 and -1\."),
        (lambda y: 1.0, r"labels: got 1\.0; allowed: one label for each of the 600 inputs: .*"),
        (lambda y: y[1:], r"labels: .*\(599,\).*; allowed: one label for each of the 600 inputs.*"),
        (lambda y: np.where(y > 0, np.nan, y), r"labels: .* not finite.*; allowed: .*finite.*"),
        (lambda y: np.stack([y, y], 1), r"data\.labels: .*; allowed: one number a sample.*"),
    ],
)
def test_labels_of_another_kind_are_answered_in_a_sentence(own, labels, message):
    x, _, y = own
    flipped = smi.links.sign_committee(3, flip=0.1)
    for model, learner in ((smi.links.sign(), None), (smi.links.sign(), LOGISTIC), (flipped, None)):
        with pytest.raises(ValueError, match=f"^{message}$"):
            smi.gamp(model, smi.Dataset(x, labels(y)), key=KEY, learner=learner)
    signs = smi.Dataset(x, 2 * (y > 0) - 1)
    np.testing.assert_array_equal(signs.labels, y)


# Curves --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def line():
    few = smi.Averages(64)
    return smi.curve(smi.links.linear(0.5), [0.5, 1.0, 2.0], key=KEY, averages=few)


def test_a_curve_is_state_evolution_at_each_alpha(line):
    alpha = np.array([0.5, 1.0, 2.0])
    exact = linear_overlap(alpha, 0.5)
    np.testing.assert_allclose(line.alpha, alpha)
    np.testing.assert_allclose(line.overlap[:, 0, 0], exact, atol=1e-4)  # the tolerance
    np.testing.assert_allclose(line.cosine[:, 0] ** 2, exact, atol=1e-4)
    assert len(line) == 3
    assert float(line[1].alpha) == 1.0
    assert line.message == "3 SUCCESS. SUCCESS: Converged."
    assert "SUCCESS" in repr(line)


@pytest.mark.slow
def test_the_derivative_of_a_curve_under_jit():
    few = {"key": KEY, "averages": smi.Averages(64)}
    last = lambda noise: smi.curve(smi.links.linear(noise), [1.0, 2.0], **few).overlap[-1, 0, 0]
    slope = jax.grad(linear_overlap, 1)(2.0, 0.5)
    np.testing.assert_allclose(jax.jit(jax.grad(last))(0.5), slope, rtol=1e-3)


def test_a_curve_starts_next_to_the_fixed_point_before(line):
    """Neighbours in α are closer than the start: fewer steps, the same end to the tolerance."""
    cold = [
        smi.state_evolution(smi.links.linear(0.5), a, key=KEY, averages=smi.Averages(64))
        for a in line.alpha
    ]
    for warm, other in zip(line, cold, strict=True):
        assert int(warm.steps) <= int(other.steps)
        np.testing.assert_allclose(warm.overlap, other.overlap, atol=2e-4)
    with pytest.raises(ValueError, match=r"for several: smi\.curve\(model, alphas\)"):
        smi.state_evolution(smi.links.linear(0.5), [1.0, 2.0], key=KEY)
    with pytest.raises(ValueError, match=r"^name: got 'overlaps'"):
        line.values("overlaps")


def test_roots_have_curves():
    matrices = smi.curve(smi.AttentionIndexed(2, 0.5), [0.1, 0.2])
    assert [int(x) for x in matrices.result] == [smi.Result.SUCCESS, smi.Result.RECOVERED]


@pytest.mark.slow
def test_learners_have_curves():
    """The second α starts from the first: the same end to the tolerance 1e-8, in fewer steps."""
    settings = {"key": KEY, "learner": LOGISTIC, "averages": smi.Averages(1024)}
    curve = smi.curve(smi.links.sign(), [1.0, 1.2], **settings)
    cold = smi.state_evolution(smi.links.sign(), 1.2, **settings)
    np.testing.assert_allclose(curve[1].overlap, cold.overlap, rtol=1e-6)
    assert int(curve[1].steps) < int(cold.steps)
    ax = curve.plot()
    assert ax.get_ylabel() == "squared cosine"
    assert ax.get_legend().get_texts()[0].get_text() == "logistic loss, ridge 0.1"


def test_a_curve_is_drawn_stored_and_tabulated(line, tmp_path):
    ax = line.plot()
    label = ax.lines[0].get_label()
    assert line.plot(ax) is ax
    threshold = synthetic.threshold(0.7)
    assert threshold.plot(ax, "threshold") is ax
    assert line.plot(ax).lines[-1].get_label() == f"{label} (3)"  # the threshold is no curve
    assert line.plot(ax, "noise 1/2").lines[-1].get_label() == "noise 1/2"
    assert np.all(np.asarray(ax.lines[2].get_xdata()) == np.float64(0.7))
    first, second = ax.lines[2], threshold.plot(ax, "another").lines[-1]
    assert first.get_linestyle() != second.get_linestyle()
    table = line.to_dataframe()
    np.testing.assert_array_equal(table.index, line.alpha)
    np.testing.assert_array_equal(table["overlap_1"], line.overlap[:, 0, 0])
    assert list(table["code"]) == ["SUCCESS"] * 3
    smi.save(line, tmp_path / "line.nc", seed=0)
    stored = smi.load(tmp_path / "line.nc")
    np.testing.assert_array_equal(stored.overlap, line.overlap)
    assert stored.equals(line.to_xarray())
    np.testing.assert_array_equal(stored.cosine, line.cosine)
    with pytest.raises(ValueError, match=r"item: got Estimate.*pickle stores any other"):
        smi.save(smi.generalization_error(line[0].model, 0.5, key=KEY), tmp_path / "line.nc")


def test_a_run_that_was_saved_predicts(tmp_path):
    model = smi.links.linear(0.1)
    data = model.sample(KEY, dimension=30, alpha=2.0)
    run = smi.gamp(model, data, key=KEY)
    smi.save(run, tmp_path / "run.nc")
    labels = model.predict(smi.load(tmp_path / "run.nc"), data.inputs)
    np.testing.assert_array_equal(labels, model.predict(run, data.inputs))
    with pytest.warns(UserWarning, match="standardised"):
        model.predict(smi.load(tmp_path / "run.nc"), 3.0 * data.inputs + 1.0)


def test_the_errors_of_a_curve_are_those_of_its_solutions(line):
    model = line[0].model
    errors = smi.generalization_error(model, line, key=KEY)
    each = [smi.generalization_error(model, one, key=KEY) for one in line]
    np.testing.assert_array_equal(errors.value, jnp.stack([one.value for one in each]))
    np.testing.assert_array_equal(errors.stderr, jnp.stack([one.stderr for one in each]))


def test_a_threshold_has_the_colour_of_what_is_learned_there():
    at = lambda shares: synthetic.threshold(0.7, np.diag(shares))
    first, second = at([0.0, 1.0]), at([1.0, 0.0])
    ax = plotting.thresholds_against([[first, second], [first]])
    colours = lambda ax: [drawn[0].get_color() for drawn in ax.containers]
    assert colours(ax) == [plotting.colour(1), plotting.colour(0)]
    assert [drawn.get_label() for drawn in ax.containers] == ["index 2", "index 1"]
    stairs = Stairs([first, second], names=("layer 1", "layer 2"))
    rows = stairs.plot()
    said = [rf"layer {p} learned" "\n" rf"$\alpha=$ 0.700 ± 0.010" for p in (2, 1)]
    assert [x.get_text() for x in rows.get_yticklabels()] == said
    bars = [bar.get_segments()[0][:, 0] for bar in rows.collections]
    np.testing.assert_allclose(bars, 2 * [first.interval()])
    drawn = [line for line in stairs.plot(ax.figure.add_subplot()).lines if line.get_gid()]
    assert [x.get_color() for x in drawn] == [plotting.colour(1), plotting.colour(0)]
    assert [x.get_label() for x in drawn] == [rf"layer {p}, $\alpha=0.7$" for p in (2, 1)]
    empty = Stairs(message="Nothing is learned.").plot()
    assert (len(empty.lines), empty.get_title("right")) == (0, "Nothing is learned.")
    assert rows.get_xlim()[1] == rows.get_xticks()[-1] == rows.lines[0].get_xdata()[1]
    (label, *_) = Stairs([at([0.4, 0.6])]).plot().get_yticklabels()
    assert label.get_text().startswith("40% index 1 + 60% index 2\n")
    single = plotting.thresholds_against([[first], [first]], parameter="noise")
    assert (single.get_legend(), single.get_xlabel()) == (None, r"noise $\Delta$")
    ax = plotting.thresholds_against([[at([0.5, 0.5]), second]])
    assert colours(ax) == [plotting.colour(1), plotting.colour(0)]
    assert [drawn.get_label() for drawn in ax.containers] == ["index 1 and index 2", "index 1"]


# Copies and interruptions --------------------------------------------------------------------


def test_models_and_solutions_are_pickled_and_copied(line):
    scale = jnp.array(0.7)
    model = smi.MultiIndex(lambda z: scale * z[0, 0], indices=1, noise=0.1)
    for dumped in (cloudpickle.dumps(model), cloudpickle.dumps(copy.deepcopy(model))):
        other = pickle.loads(dumped)
        assert float(other.link(jnp.ones((1, 1)))) == float(scale)
    solution = line[0]
    for other in (pickle.loads(pickle.dumps(solution)), copy.deepcopy(solution)):
        assert repr((other, other.model)) == repr((solution, solution.model))
        # histories end in NaN, which equals itself here
        jax.tree.map(np.testing.assert_array_equal, dict(other.history), dict(solution.history))


@pytest.mark.parametrize("call", [pytest.param("gamp", marks=pytest.mark.slow), "state_evolution"])
def test_an_interrupted_run_leaves_nothing_behind(call, monkeypatch, capsys):
    model = smi.links.linear(0.5)
    if call == "gamp":
        data = model.sample(KEY, dimension=30, alpha=2.0)
        run = lambda: smi.gamp(model, data, key=KEY, progress=True)
    else:
        few = smi.Averages(64)
        run = lambda: smi.state_evolution(model, 1.0, key=KEY, averages=few, progress=True)
    before, update = run(), driver.Bar.update

    def interrupt(bar, *arguments):
        update(bar, *arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(driver.Bar, "update", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run()
    monkeypatch.undo()
    assert not driver.Bar._instances  # every bar is closed
    np.testing.assert_array_equal(run().overlap, before.overlap)


# Learners of classes -------------------------------------------------------------------------


@pytest.mark.slow
def test_the_share_of_errors_of_a_logistic_learner_is_an_angle():
    """arccos(cosine)/π, the angle between teacher and student over π, in theory and of a run."""
    teacher, share = smi.links.sign(), smi.losses.misclassification
    learner = LOGISTIC
    theory = smi.state_evolution(
        teacher, 2.0, key=KEY, learner=learner, averages=smi.Averages(4096)
    )
    M, Q = float(theory.teacher_overlap[0, 0]), float(theory.overlap[0, 0])
    np.testing.assert_allclose(theory.cosine, [M / Q**0.5], rtol=1e-12)
    assert Q > 4.0  # of a scale of its own, as S = 1
    exact = np.arccos(theory.cosine[0]) / np.pi
    for student in (teacher, smi.links.linear()):
        error = smi.generalization_error(student, theory, key=KEY, loss=share)
        np.testing.assert_allclose(error, (exact, 0.0), rtol=1e-9)
    # the squared distance of signs is four times that, and the logistic loss the test loss
    error = smi.generalization_error(teacher, theory, key=KEY)
    np.testing.assert_allclose(error.value, 4 * exact, rtol=1e-9)
    error = smi.generalization_error(smi.links.linear(), theory, key=KEY, loss=smi.losses.logistic)
    assert abs(error.value - theory.test_loss) < 4 * error.stderr
    data = teacher.sample(KEY, dimension=D, alpha=3.0)
    run = smi.gamp(teacher, data, key=KEY, learner=learner)
    error = smi.generalization_error(teacher, run, data=data, key=KEY, loss=share)
    np.testing.assert_allclose(error.value, np.arccos(run.cosine[0]) / np.pi, rtol=1e-9)
    with pytest.raises(ValueError, match="data: got None; allowed: the data of this run"):
        smi.generalization_error(teacher, run, key=KEY)
    assert isinstance(run.cosine, jax.Array)
    assert isinstance(theory.cosine, jax.Array)


@pytest.mark.slow
def test_theory_of_a_learner_is_drawn_and_stored_by_its_own_numbers():
    """Its overlap is the size of its weights: what was learned is M/√Q."""
    settings = {"key": KEY, "learner": smi.Erm(smi.links.linear(), ridge=0.1)}
    line = smi.curve(smi.links.linear(0.25), [0.5, 1.0], averages=smi.Averages(256), **settings)
    bayes = smi.curve(smi.links.linear(0.25), [0.5, 1.0], key=KEY, averages=smi.Averages(256))
    both = plotting.risk_against_alpha([bayes, line], ["Bayes", "ridge"])
    for drawn, curve in zip(both.lines, (bayes, line), strict=True):
        np.testing.assert_array_equal(drawn.get_ydata(), curve.error)
    drawn = line[1].plot().lines[0].get_ydata()
    np.testing.assert_allclose(drawn[-1], line[1].cosine[0] ** 2, rtol=1e-6)
    low, high = line.cosine[:, 0]
    between = 0.5 + 0.5 * (0.7 - low) / (high - low)
    np.testing.assert_allclose(smi.learned_at(list(line), 0.7), [between], rtol=1e-12)
    table = line.to_xarray()
    np.testing.assert_array_equal(table.train_loss, line.values("train_loss"))
    np.testing.assert_array_equal(table.teacher_overlap, line.values("teacher_overlap"))
    np.testing.assert_array_equal(table.test_loss_stderr[0], line[0].stderrs["test_loss"])


def test_classes_are_wrong_by_the_largest_score():
    share = smi.losses.misclassification
    scores = jnp.array([0.1, 2.0, -1.0])
    assert [float(share(scores, jnp.array(float(k)))) for k in range(3)] == [1.0, 0.0, 1.0]
    assert float(share(jnp.array([2.0]), jnp.array(1.0))) == 0.0


@pytest.mark.slow
def test_the_cosine_of_a_learned_matrix():
    attention = smi.AttentionIndexed(2, 0.5, "linear")
    theory = smi.state_evolution(attention, 0.5, learner=smi.MatrixErm(ridge=0.1))
    M, Q = theory.teacher_overlap[0, 0], theory.overlap[0, 0]
    # the error is ρ - 2M + Q
    np.testing.assert_allclose(theory.cosine[0], M / jnp.sqrt(Q * (theory.error + 2 * M - Q)))
    np.testing.assert_allclose(theory.plot().lines[0].get_ydata()[-1], theory.cosine[0] ** 2)

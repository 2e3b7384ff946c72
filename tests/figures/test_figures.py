"""Figures from recipes: comparisons that can fail, folders that resume, a gallery that opens."""

import functools
import json
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from figures import browser

from jaxsmi import sgd
from jaxsmi.cli import figure as cli_figures
from jaxsmi.cli import main as cli
from jaxsmi.core import provenance
from jaxsmi.papers import ARTICLES, RECIPES, common, gallery, making
from jaxsmi.papers.common import Drawn, axes_row, compare, published
from jaxsmi.papers.sequence_single_index import blind, lengths, students
from jaxsmi.workbench import storage

CALLS = []


def line(full=False, progress=False, reference=None, slope=1.0):
    """Figure 1: a line."""
    CALLS.append((full, reference))
    figure, (ax,) = axes_row()
    x = np.linspace(0, 1, 5)
    ax.plot(x, slope * x)
    close = compare("<line>", slope * x, x, 0.1, "same & near")
    far = compare("far", x + 1, x, 0.1, "known reason")
    return Drawn(figure, {"x": x, "y": slope * x}, 'A line of slope "one" <script>', [close, far])


def wrong(full=False, progress=False, reference=None):
    """Figure 2: none."""
    raise ValueError("nothing <b>here</b>")


@pytest.fixture
def two(monkeypatch):
    """The command with two recipes, of which the second fails."""
    CALLS.clear()
    recipes = {"bilinear-a": line, "quadratic-b": wrong}
    monkeypatch.setattr(cli_figures, "RECIPES", recipes)
    monkeypatch.delenv("JAXSMI_REFERENCE", raising=False)
    return recipes


def call(capsys, *words):
    code = cli.main(["figure", *map(str, words)])
    output = capsys.readouterr()
    return code, output.out, output.err


def test_a_comparison_is_the_largest_deviation_over_its_tolerance():
    found = compare("q", [1.0, 2.0, np.nan, 4.0], [1.1, 2.0, 3.0, 4.6], [0.2, 0.1, 0.1, 0.3])
    assert found.points == 3
    # deviations 0.1, 0, 0.6 over tolerances 0.2, 0.1, 0.3; exact but for rounding
    assert (found.largest, found.median, found.tolerance, found.ratio) == pytest.approx(
        (0.6, 0.1, 0.2, 2.0)
    )
    assert not found.agrees
    assert compare("q", 1.0, 1.05, 0.1).agrees
    assert not compare("q", [np.nan], [1.0], 0.1).agrees  # nothing compared is no agreement


def test_published_tables_are_read_or_absent(tmp_path):
    (tmp_path / "a.csv").write_text(",alpha,value\n0,0.5,2\n1,1.0,3\n")
    assert published(tmp_path, "a.csv")["value"].tolist() == [2.0, 3.0]
    assert published(tmp_path, "b.csv") is None
    assert published(None, "a.csv") is None
    assert "not at hand" in common.note(None)


def test_where_published_data_come_from(tmp_path, monkeypatch):
    """The flag before the environment, before the folder beside the project, before none."""
    monkeypatch.delenv("JAXSMI_REFERENCE", raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert making.folder_of_published() is None
    usual, other, named = tmp_path / "shared" / "reference", tmp_path / "other", tmp_path / "named"
    for folder in (usual, other, named):
        folder.mkdir(parents=True)
    assert making.folder_of_published().resolve() == usual
    monkeypatch.setenv("JAXSMI_REFERENCE", str(named))
    assert making.folder_of_published() == named
    assert making.folder_of_published(other) == other
    with pytest.raises(ValueError, match="--reference"):
        making.folder_of_published(tmp_path / "absent")


def test_all_goes_on_after_a_failure_and_says_so(two, capsys, tmp_path):
    code, out, err = call(capsys, "all", "--out", tmp_path, "--workers", 1, "--json", "--quick")
    assert code == 1
    assert err.splitlines()[-1] == "jaxsmi figure: 1 failed: quadratic-b"
    found = json.loads(out)
    assert list(found["failed"]) == ["quadratic-b"]
    assert "nothing" in found["failed"]["quadratic-b"]
    assert [one["agrees"] for one in found["figures"][0]["compared"]] == [True, False]
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept == {
        "bilinear-a.png",
        "bilinear-a.svg",
        "bilinear-a.pdf",
        "bilinear-a.nc",
        "bilinear-a.json",
        "quadratic-b.json",
        "index.html",
        "index.png",
        "index.nc",
        "index.txt",
    }
    assert storage.load(tmp_path / "bilinear-a.nc")["y"].values.tolist() == [0, 0.25, 0.5, 0.75, 1]
    record = json.loads((tmp_path / "bilinear-a.json").read_text())
    assert record["provenance"]["jaxsmi"] == provenance.version()
    page = (tmp_path / "index.html").read_text()
    assert "Failed: ValueError: nothing &lt;b&gt;here&lt;/b&gt;" in page


def test_every_file_of_a_figure_is_named(two, capsys, tmp_path):
    code, out, _ = call(capsys, "bilinear-a", "--out", tmp_path)
    assert code == 0
    written = re.findall(r"^Written: (.*)$", out, re.M)
    assert len(written) == len(set(written))
    assert set(written) == set(map(str, tmp_path.iterdir()))
    assert len(written) == 7


def test_what_is_finished_is_not_made_again(two, capsys, tmp_path):
    del two["quadratic-b"]
    words = ("all", "--out", tmp_path, "--workers", 1)
    code, out, _ = call(capsys, *words)
    assert code == 0
    assert "1 of 2 comparisons agree" in out
    assert {"index.png", "index.nc", "index.txt"} <= {path.name for path in tmp_path.iterdir()}
    assert len(CALLS) == 1
    call(capsys, *words)
    assert len(CALLS) == 1
    call(capsys, *words, "--full")  # other settings
    call(capsys, *words, "--full", "--reference", tmp_path)
    call(capsys, *words, "--full", "--reference", tmp_path, "--again")
    assert [(False, CALLS[0][1]), (True, CALLS[1][1]), (True, tmp_path), (True, tmp_path)] == CALLS
    (tmp_path / "bilinear-a.json").write_text("{")  # cut short
    call(capsys, *words, "--full", "--reference", tmp_path)
    assert len(CALLS) == 5
    with pytest.raises(SystemExit):
        cli.main(["figure", "all", "--quick", "--full", "--out", str(tmp_path)])


def test_the_gallery_escapes_everything_and_needs_nothing(two, tmp_path):
    drawn, record = making.draw("bilinear-a", functools.partial(line, slope=1.0))
    making.keep(drawn, record, tmp_path)
    page = gallery.page([record], ARTICLES)
    assert page.count("<script") == 1  # the search and the switch of the page itself
    assert "src=" not in page.replace('src="bilinear-a.png"', "")
    for ending in ("png", "svg", "pdf", "nc", "json"):
        assert f'href="bilinear-a.{ending}"' in page
    assert "<dt>x</dt><dd>0, 0.25, 0.5, 0.75, 1</dd>" in page  # parameters: the numbers themselves
    assert "def line(full=False" in page  # the recipe
    assert "http" not in page.replace("https://arxiv.org/abs/", "")  # links to the articles alone
    assert "&lt;line&gt;" in page
    assert "same &amp; near" in page
    assert 'alt="Figure 1: a line (slope = 1)"' in page
    assert page.count('class="no"') == 1
    assert page.count('class="yes"') == 1


def test_every_recipe_has_an_article_and_a_title():
    for name, recipe in RECIPES.items():
        assert len(making.title(recipe)) > 10, name
    assert len(RECIPES) == sum(len(article.recipes) for article in ARTICLES)


@pytest.mark.slow
def test_the_gallery_opens_in_a_browser(two, tmp_path):
    """No broken image, no message on the console, at two widths; and the check itself sees both."""
    if browser.browser() is None:
        pytest.skip("no Chromium on the PATH")
    drawn, record = making.draw("bilinear-a", line)
    making.keep(drawn, record, tmp_path)
    page = gallery.write([record], ARTICLES, tmp_path)
    for width in (1280, 500):
        assert browser.inspect(page, width) == (1, [], 0, False, [])
    for words, hidden in (("slope", 0), ("SLOPE+line", 0), ("0.75", 0), ("slope+absent", 1)):
        shown, messages = browser.visit(f"{page.as_uri()}?find={words}")
        assert not messages
        assert len(re.findall(r'<figure id="bilinear-a"[^>]* hidden=""', shown)) == hidden, words
    bad = (
        page.read_text()
        .replace("bilinear-a.png", "absent.png")
        .replace("</main>", "<script>console.error('x')</script></main>")
    )
    (tmp_path / "bad.html").write_text(bad)
    _, broken, _, _, messages = browser.inspect(tmp_path / "bad.html")
    assert broken == ["absent.png"]
    assert messages


@pytest.mark.slow
def test_two_processes_draw_what_one_does(capsys, tmp_path, monkeypatch):
    recipes = {name: RECIPES[name] for name in ("attention-indexed-3", "attention-indexed-5")}
    monkeypatch.setattr(cli_figures, "RECIPES", recipes)
    code, _, _ = call(capsys, "all", "--out", tmp_path, "--workers", 2)
    assert code == 0
    jax.config.update("jax_enable_x64", True)
    alone = RECIPES["attention-indexed-5"]().arrays
    for name, values in storage.load(tmp_path / "attention-indexed-5.nc").items():
        np.testing.assert_allclose(
            values, alone[str(name)], rtol=1e-12
        )  # one program, another process


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [name for name in RECIPES if name.startswith(("bilinear-1", "bilinear-2", "bilinear-4"))],
)
def test_theory_is_on_the_published_tables(name, reference):
    """Every row but those the tables themselves did not converge at.

    Tolerances are in the recipes.
    """
    drawn = RECIPES[name](reference=pathlib.Path(reference))
    assert drawn.compared
    for one in drawn.compared:
        print(one)
        assert one.agrees, one


@pytest.mark.slow
def test_published_curves_of_attention_indexed_models(reference):
    """Softmax, laid over the linear curves at 2α/3: all widths but 0.1, where two bands of the
    spectrum merge [print, section 1.9]; without the folder nothing is compared with print."""
    drawn = RECIPES["attention-indexed-3"](reference=pathlib.Path(reference))
    print(*drawn.compared, sep="\n")
    off = [one.what for one in drawn.compared if not one.agrees]
    assert off == ["linear, T = 2, ρ = 0.1"]
    assert [one.against for one in drawn.compared] == ["theory"] + 5 * ["published data"]
    alone = RECIPES["attention-indexed-3"]()
    assert [one.against for one in alone.compared] == ["theory"]
    assert alone.arrays.keys() == drawn.arrays.keys()


@pytest.mark.slow
def test_the_spectral_start_is_on_theory():
    """One eigenvalue stands out of the bulk; runs at D = 500 are where theory says, within the
    tolerances of the recipe."""
    drawn = RECIPES["spectral-start"]()
    edge, outlier = drawn.arrays["edge"], drawn.arrays["shown_outlier"]
    assert np.sum(drawn.arrays["eigenvalues"] > 0.5 * (edge + outlier)) == 1
    assert drawn.compared
    for one in drawn.compared:
        print(one)
        assert one.agrees, one


@pytest.mark.slow
def test_an_untied_query_and_key_are_slower_than_one_vector():
    """Flow on closed equations, runs on the flow; query and key pass an overlap of 1/2 with each
    other before either has one with the teacher."""
    drawn = RECIPES["online-sgd-query-key"]()
    assert len(drawn.compared) == 4
    for one in drawn.compared:
        print(one)
        assert one.agrees, one
    arrays = drawn.arrays
    half = {n: np.interp(0.5, arrays[f"{n}_flow_m"], arrays[f"{n}_flow_alpha"]) for n in
            ("tied", "untied")}  # fmt: skip
    assert half["untied"] > 1.5 * half["tied"]
    early = arrays["untied_flow_m"] < 0.2
    assert 0.4 < arrays["untied_flow_r"][early].max() < 0.6


@pytest.mark.slow
def test_all_learners_in_one_picture():
    """Each learns the last layer first, message passing before many passes before one; tolerances
    of the comparisons are in the recipe."""
    drawn = RECIPES["online-sgd-order"]()
    assert drawn.compared
    for one in drawn.compared:
        print(one)
        assert one.agrees, one
    chain = np.median(drawn.arrays["reached"], axis=0)
    flow = np.median(drawn.arrays["flow"], axis=0)
    passed = [np.interp(0.5, flow[:, p], drawn.arrays["flow_alpha"]) for p in range(2)]
    np.testing.assert_allclose(passed, chain, rtol=0.35)  # starts and noise differ by O(1/rate)
    seen = drawn.arrays["descent_alpha"]
    last = drawn.arrays["descent"][:, :, 1].max(axis=1)
    theory = np.interp(0.5, drawn.arrays["theory"][:, 1], drawn.arrays["alpha"])
    assert theory < seen[last > 0.5].min() < chain[1] < chain[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in RECIPES if name.startswith("empirical-risk-")])
def test_learners_are_on_closed_forms_runs_and_print(name):
    """Tolerances are in the recipes."""
    drawn = RECIPES[name]()
    assert drawn.compared
    for one in drawn.compared:
        print(one)
        assert one.agrees, one
    if name.endswith("signs"):  # an independent quadrature, to the digits it gives
        ends = drawn.arrays["known_margin"][[0, -1]]
        np.testing.assert_allclose(ends, [1.256380339, 0.09988867079], rtol=1e-8)
        cosines = drawn.arrays["known_cosine"][[0, -1]]
        np.testing.assert_allclose(cosines, [0.5121485, 0.9880864], rtol=2e-6)
    if name.endswith("attention"):  # nobody has a smaller error than Bayes
        bayes = np.interp(
            drawn.arrays["alpha"], drawn.arrays["alpha_bayes"], drawn.arrays["bayes_error"]
        )
        for ridge in ("0.1", "0.3"):
            assert np.all(drawn.arrays[f"ridge_{ridge}_error"] > 0.9 * bayes)


# The appendix of the article on SGD -------------------------------------------------------------


def test_injection_breaks_evenness():
    """Odd levels of attention vanish without it and are there with it, by the same numbers in both
    tokens, up to rounding."""
    plain = sgd.Attention(trace_norm="none")
    injected = students.Injected(plain, jnp.ones(2))
    assert float(injected(jnp.array([0.2, -0.3]))) == float(plain(jnp.array([1.2, 0.7])))
    even, odd = (np.asarray(sgd.coefficients(F, 2, 3))[..., 0] for F in (plain, injected))
    for n in ((1, 0), (3, 0), (1, 2)):
        assert abs(even[n]) < 1e-14
        assert abs(odd[n]) > 0.005
        np.testing.assert_allclose(odd[n], odd[n[::-1]], atol=1e-13)


def test_weighted_tokens_of_equal_weight_are_a_tied_network():
    """As functions; its flow to 1e-6, the tolerance of both integrators. Weights have norm one."""
    np.testing.assert_allclose(
        jnp.linalg.norm(students.random_weights(jax.random.key(0), 7)), 1.0, rtol=1e-12
    )
    equal = students.Weighted(jnp.full(2, 0.5**0.5), jax.nn.relu)
    fields = jnp.array([0.7, -0.2])
    np.testing.assert_allclose(equal(fields), sgd.Network(jax.nn.relu)(fields), rtol=1e-14)
    times = np.array([0.3, 1.0])
    path = students.flow_of_weighted(lengths.sum_of_fields(2), equal, 0.1, times, 0.4)
    expected = lengths.flow_of_linear_target(0.4, 0.1, times)
    np.testing.assert_allclose(path, expected, rtol=1e-6)


def test_passage_of_a_linear_target():
    """The integral is when the flow of the same page passes η, and it diverges at (1 + η)/(2γη)."""
    for gamma in (0.05, 0.8):
        time = lengths.passage_time(gamma, 0.03, 0.2)
        path = lengths.flow_of_linear_target(gamma, 0.03, np.array([0.5 * time, time]))
        np.testing.assert_allclose(path[-1], 0.2, rtol=1e-7)  # the tolerance of the integrator
    edge = 1.2 / (2 * 0.2)  # γ = Lγ_0 at L = (1 + η)/(2 γ_0 η)
    assert np.isfinite(lengths.passage_time(edge - 1e-6, 0.03, 0.2))
    assert lengths.passage_time(edge + 1e-6, 0.03, 0.2) == np.inf


def test_differences_are_seen_by_exponents_and_not_by_sums():
    """(z_1² - z_2²)/√2, and a sum of coefficients of zero."""
    series = blind.difference(2, 3)
    z = jnp.array([0.3, -1.2, 2.0])
    np.testing.assert_allclose(series(z), (0.3**2 - 1.2**2) / 2**0.5, rtol=1e-13)
    for order in (1, 2):
        target = blind.difference(order, 3)
        assert sgd.information_exponent(target, 3).order == order
        assert float(jnp.sum(target.orthonormal)) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("number", range(6, 14))
def test_the_appendix_on_sgd_agrees(number):
    """Closed forms, the flow, independent numbers and print; tolerances are in the recipes."""
    drawn = RECIPES[f"single-index-{number}"]()
    assert drawn.compared
    for one in drawn.compared:
        print(one)
        assert one.agrees, one

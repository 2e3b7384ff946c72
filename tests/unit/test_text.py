"""Text: files in, words to numbers, padding that nothing sees, and the experiment from end to
end.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxsmi import text
from jaxsmi.text.questions import held_out
from jaxsmi.text.vocabulary import PAD, UNKNOWN


def test_files_of_both_kinds_and_encodings(tmp_path):
    path = tmp_path / "questions.txt"
    path.write_text(
        "DESC:manner How did serfdom develop ?\n\nLOC Where is Zürich ?\n", encoding="utf-8"
    )
    assert text.load(path) == [
        text.Question("DESC", "manner", "How did serfdom develop ?"),
        text.Question("LOC", "", "Where is Zürich ?"),
    ]
    path.write_bytes("LOC:city Where is Zürich ?\n".encode("latin-1"))
    assert text.load(path)[0].text == "Where is Zürich ?"
    path.write_bytes(
        b"HUM\tWho is it ?\r\nLOC:x Where is a\x85 b c ?\n"
    )  # a tab; a byte that splitlines would split at
    assert [question.label for question in text.load(path)] == ["HUM", "LOC"]
    path.write_text("LOC:city Where ?\nnonsense\n")
    with pytest.raises(ValueError, match=r"line 2: got 'nonsense'; allowed: 'LABEL:sub text'"):
        text.load(path)
    path.write_text("\n")
    with pytest.raises(ValueError, match=r"^path: "):
        text.load(path)


def test_words_and_numbers():
    vocabulary = text.Vocabulary(["Who is who ?", "Who's there, who-ever ?"])
    assert vocabulary.words("Who's there, it's 1999?") == [
        "who's",
        "there",
        ",",
        "it's",
        "1999",
        "?",
    ]
    assert vocabulary.ids["?"] == 2  # the most frequent word with "who": by the alphabet
    assert vocabulary.ids["who"] == 3
    coded = vocabulary.encode(["Who is Dracula ?", "who who who who who who"], 5)
    assert coded.shape == (2, 5)
    assert list(coded[0]) == [3, vocabulary.ids["is"], UNKNOWN, 2, PAD]
    assert list(coded[1]) == [3] * 5
    assert len(vocabulary) == len(vocabulary.ids) + 2


@pytest.mark.slow
def test_padding_is_not_seen_and_the_network_is_its_equations():
    network = text.Classifier(20, 3, key=jax.random.key(0), width=8, hidden=4)
    ids = np.array([3, 7, 7, 11])
    short, padded = network(jnp.asarray(ids)), network(jnp.asarray([*ids, 0, 0, 0]))
    np.testing.assert_allclose(short, padded, rtol=0, atol=1e-5)  # float32
    E, W, A, b = (
        np.asarray(x, float)
        for x in (network.embedding, network.layers, network.head, network.bias)
    )
    X = E[ids]
    for w in W:
        scores = np.exp(X @ w.T @ w @ X.T / np.sqrt(4.0))
        X = X + scores / scores.sum(1, keepdims=True) @ X
    np.testing.assert_allclose(short, A @ X.mean(0) + b, rtol=1e-4, atol=1e-4)
    assert np.all(np.isfinite(network(jnp.zeros(4, int))))  # a question without words


def test_synthetic_questions_are_marked_and_even():
    questions = text.synthetic_questions(120, seed=1)
    assert {question.sub for question in questions} == {"synthetic"}
    labels, counts = np.unique([question.label for question in questions], return_counts=True)
    assert list(labels) == ["ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"]
    assert set(counts) == {20}
    assert text.synthetic_questions(120, seed=1) == questions
    assert not any("{" in question.text for question in questions)
    with pytest.raises(ValueError, match=r"^count: "):
        text.synthetic_questions(3)


@pytest.mark.slow
def test_the_experiment_from_end_to_end():
    questions = text.synthetic_questions(300)
    run = text.classify(questions, epochs=12, optimizer=optax.adamw(2e-3), records=24)
    assert run.test_accuracy[-1] > 0.9  # chance is 1/6
    assert run.train_loss[-1] < 0.3 * run.train_loss[1]
    np.testing.assert_allclose(run.similarity[-1], 1.0, atol=1e-6)
    assert np.all(run.similarity[0] < 0.99)
    assert np.all(np.diff(run.similarity, axis=0)[-12:] > -1e-3)  # settling
    assert run.predict(["Where was Newton born ?", "How many people live in Oslo ?"]) == [
        "LOC",
        "NUM",
    ]
    settled = text.settled_at(run)
    assert np.all((settled > 0) & (settled < 12))


def test_what_is_held_out_is_in_no_copy_among_the_rest():
    questions = [*text.synthetic_questions(240), text.Question("ODD", "", "a class of one ?")]
    for seed in range(5):
        kept, held = held_out(questions, jax.random.key(seed))
        assert len(kept) + len(held) == 241
        assert not {question.text for question in kept} & {question.text for question in held}
        assert {question.label for question in held} <= {question.label for question in kept}
        assert 20 < len(held) < 90


def test_bad_questions_are_named():
    questions = text.synthetic_questions(24)
    with pytest.raises(ValueError, match=r"^questions: .*two classes"):
        text.classify(questions[:1] * 10)
    with pytest.raises(ValueError, match=r"^test: .*'XYZ'"):
        text.classify(questions, [text.Question("XYZ", "", "what ?")])
    with pytest.raises(ValueError, match=r"^epochs: "):
        text.classify(questions, epochs=0)


def test_hugging_face_is_an_extra(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"jaxsmi\[text\]"):
        text.load_huggingface()

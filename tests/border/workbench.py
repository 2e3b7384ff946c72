"""Calls of sweeps and of text."""

import tempfile

import numpy as np

import jaxsmi as smi
from border.problems import KEY, LINEAR, Table

case = Table()

case(
    "sweep",
    smi.sweep,
    {"build": lambda: LINEAR, "alpha": [1.0]},
    build="function",
    alpha="positive array",
    parameters="mapping?",
    key="integer",
    seeds="seeds",
    solver="function",
    settings="mapping?",
    out="name?",
    scheduler="object?",
    progress="flag?",
)
QUESTIONS = smi.text.synthetic_questions(60)
case(
    "text.Classifier",
    smi.text.Classifier,
    {"words": 5, "classes": 2, "key": KEY},
    words="count",
    classes="count",
    key="key",
    width="count",
    hidden="count",
    depth="count",
    skip="real",
)
case(
    "text.Vocabulary",
    smi.text.Vocabulary,
    {"texts": ["who is it"]},
    texts="texts",
    size="count?",
)
case(
    "text.Vocabulary.encode",
    smi.text.Vocabulary(["who"]).encode,
    {"texts": ["who"], "length": 3},
    texts="texts",
    length="count",
)
case(
    "text.classify",
    smi.text.classify,
    {"questions": QUESTIONS},
    questions="sequence",
    test="sequence?",
    key="key?",
    epochs="count",
    optimizer="object?",
    batch_size="count",
    width="count",
    hidden="count",
    depth="count",
    skip="real",
    max_length="count",
    records="count",
    progress="flag?",
)
with tempfile.NamedTemporaryFile("w", delete=False) as _file:
    _file.write("A who is it\nB what is it\n")
case("text.load", smi.text.load, {"path": _file.name}, path="file")
_TEXT_RUN = smi.text.TextRun(*([None] * 6), np.array([[0.0], [1.0]]), *([None] * 4))
_TEXT_RUN = _TEXT_RUN._replace(epoch=np.array([0.0, 1.0]), result=smi.Result.SUCCESS)
case("text.settled_at", smi.text.settled_at, {"run": _TEXT_RUN}, run="object")
case(
    "text.synthetic_questions",
    smi.text.synthetic_questions,
    {},
    count="count",
    seed="count from 0",
)

"""Commands of the command line for its tests, and how they are called."""

import math

from jaxsmi.cli import main as cli

QUICK = {
    "gamp": ["--dimension", "300", "--alpha", "2", "--noise", "0.5"],
    "state-evolution": [
        "--alpha",
        "2",
        "0.5",
        "--noise",
        "0.5",
        "--samples",
        "256",
        "--randomisations",
        "2",
    ],
    "run": [
        "--dimension",
        "300",
        "--alpha",
        "2",
        "--noise",
        "0.5",
        "--samples",
        "256",
        "--randomisations",
        "2",
        "--points",
        "3",
        "--curve-steps",
        "300",
    ],
}

STAIRS = ["threshold", "sign-product", "--samples", 256]

GRID = """
model = "linear"
alpha = [0.5, 1.0]
[parameters]
noise = { from = 0.1, to = 0.8, points = 4, scale = "log" }
[settings]
samples = 512
"""


def finite(value):
    if isinstance(value, dict):
        return all(map(finite, value.values()))
    if isinstance(value, list):
        return all(map(finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def call(capsys, *words):
    code = cli.main([str(word) for word in words])
    output = capsys.readouterr()
    return code, output.out, output.err

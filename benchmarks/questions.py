"""What a user waits for: three questions to every ready-made link and to links of one's own.

    python benchmarks/questions.py ROWS.jsonl                    # all, about half an hour
    python benchmarks/questions.py ROWS.jsonl "two layers" sign  # some of the models
    python benchmarks/questions.py ROWS.jsonl --table            # what is there, in Markdown
    PYTHONPATH=TREE python benchmarks/questions.py OTHER.jsonl   # of another tree

Questions: `weak` the threshold of weak recovery, `theory` state evolution at one α, `entropy`
the free entropy at an overlap of .3. All with default points and tolerances, on one core
(`taskset -c 0`). Columns, in wall seconds: `cold` the call in a process that has compiled nothing,
`warm` the same with another key; `loop` four more calls, with other α (weak recovery: keys), and
`vmap` the same four at once, compiled; the answer and its standard error; the code.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp

import jaxsmi as smi

QUESTIONS = ("weak", "theory", "entropy")
own = smi.MultiIndex
MODELS = {  # and an α at which something is learned
    "linear": (lambda: smi.links.linear(0.5), 1.0),
    "sign": (smi.links.sign, 2.0),
    "noisy sign": (lambda: smi.links.sign(noise=0.1), 2.0),
    "phase retrieval": (smi.links.phase_retrieval, 0.9),
    "sign(z1 z2)": (lambda: smi.links.sign_product(2), 3.0),
    "sign(z1 z2 z3)": (lambda: smi.links.sign_product(3), 8.0),
    "z1 z2": (lambda: smi.links.product(2), 1.5),
    "z1² + sign(z1 z2 z3)": (smi.links.square_plus_sign_parity, 2.0),
    "logistic": (lambda: smi.links.logistic(2.0), 2.0),
    "softmax": (lambda: smi.links.softmax(3), 2.0),
    "poisson": (smi.links.poisson, 1.0),
    "relu": (lambda: smi.links.relu(0.1), 1.0),
    "hard tanh": (lambda: smi.links.hard_tanh(0.05), 1.0),
    "|z|": (lambda: smi.links.absolute(0.1), 1.0),
    "door": (smi.links.door, 2.0),
    "one layer": (lambda: smi.DeepAttention(1, 2), 0.3),
    "one layer, 3 tokens": (lambda: smi.DeepAttention(1, 3), 0.3),
    "two layers": (lambda: smi.DeepAttention(2, 2), 0.5),
    "two layers, skip .5": (lambda: smi.DeepAttention(2, 2, skip=0.5), 0.9),
    "own 1": (lambda: own(lambda z: jnp.sin(2 * z[0, 0]), indices=1, noise=0.05), 1.0),
    "own 2": (lambda: own(lambda z: jnp.tanh(z[0, 0]) * z[1, 0], indices=2, noise=0.05), 2.0),
    "own 3": (lambda: own(_three, indices=3, noise=0.1), 2.0),
    "own 2 tokens": (lambda: own(_attend, indices=1, tokens=2, noise=0.05), 1.0),
    "own 3 tokens": (lambda: own(_attend, indices=1, tokens=3, noise=0.05), 1.0),
}


def _three(z):
    return z[0, 0] * z[1, 0] + jax.nn.relu(z[2, 0])


def _attend(z):
    return jax.nn.softmax(z[0]) @ z[0]


def question(name, model, alpha):
    """A function of (key, α) that answers it by (value, standard error, code), and what varies in
    a loop of four calls."""
    keys = jax.random.split(jax.random.key(2), 4)
    alphas = alpha * jnp.array([0.9, 0.95, 1.05, 1.1])
    same_alpha, same_key = jnp.full(4, alpha), jnp.broadcast_to(keys[0], (4,))
    if name == "weak":

        def weak(key, alpha):
            found = smi.weak_recovery(model, key=key)
            return found.alpha, found.stderr, found.result

        return weak, (keys, same_alpha)
    if name == "theory":

        def theory(key, alpha):
            end = smi.state_evolution(model, alpha, key=key)
            return end.overlap[-1, -1], end.stderr[-1, -1], end.result

        return theory, (same_key, alphas)

    def entropy(key, alpha):
        value = smi.free_entropy(model, alpha, 0.3, key=key)
        return value.value, value.stderr, jnp.zeros((), int)

    return entropy, (same_key, alphas)


def timed(function, *arguments):
    """Seconds of a call, and its answer."""
    begun = time.perf_counter()
    answer = jax.block_until_ready(function(*arguments))
    return round(time.perf_counter() - begun, 3), answer


def measure(name, asked):
    """One row, in a process that has compiled nothing."""
    jax.config.update("jax_enable_x64", True)
    smi.setup(cache=None)
    build, alpha = MODELS[name]
    model = build()
    ask, four = question(asked, model, alpha)
    one = jnp.asarray(alpha)
    jax.block_until_ready(jax.random.key(0))
    try:
        cold, answer = timed(ask, jax.random.key(0), one)
    except ValueError as refused:
        return {"model": name, "question": asked, "refused": str(refused)}
    warm, _ = timed(ask, jax.random.key(1), one)
    loop, each = timed(lambda: [ask(*arguments) for arguments in zip(*four, strict=True)])
    at_once = jax.jit(jax.vmap(ask)).lower(*four).compile()
    vmap, all_at_once = timed(at_once, *four)
    gap = jnp.max(jnp.abs(jnp.stack([x[0] for x in each]) - all_at_once[0]))
    value, stderr, code = map(float, answer)
    return {
        "model": name,
        "question": asked,
        "cold": cold,
        "warm": warm,
        "loop": loop,
        "vmap": vmap,
        "gap": float(gap),
        "value": value,
        "stderr": stderr,
        "code": smi.Result(int(code)).name,
    }


def table(rows):
    """Cold and warm seconds of each question, and the largest ratio of vmap to a loop of calls that
    takes longer than a second."""
    by_model = {}
    for row in rows:
        by_model.setdefault(row["model"], {})[row["question"]] = row
    print("| model | weak recovery | state evolution | free entropy | vmap/loop |")
    print("|---|---:|---:|---:|---:|")
    for name, asked in by_model.items():
        each = [asked.get(question, {}) for question in QUESTIONS]
        cells = [f"{r['cold']:.1f} ({r['warm']:.2g})" if "cold" in r else "none" for r in each]
        ratios = [r["vmap"] / r["loop"] for r in asked.values() if r.get("loop", 0.0) > 1.0]
        ratio = f"{max(ratios):.2f}" if ratios else ""
        print("| " + " | ".join([name.replace("|", "\\|"), *cells, ratio]) + " |")


def main():
    """Every model and question, each in a process of its own; what is in the file stays."""
    if sys.argv[1] == "--measure":
        print(json.dumps(measure(*sys.argv[2:])))
        return
    path = Path(sys.argv[1])
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    if sys.argv[2:] == ["--table"]:
        table(rows)
        return
    done = {(row["model"], row["question"]) for row in rows}
    ours = ("JAX_COMPILATION_CACHE_DIR", "JAXSMI_CACHE")
    environment = {name: x for name, x in os.environ.items() if name not in ours}
    for name in sys.argv[2:] or MODELS:
        for asked in QUESTIONS:
            if (name, asked) in done:
                continue
            command = [sys.executable, __file__, "--measure", name, asked]
            run = subprocess.run(command, env=environment, capture_output=True, text=True)
            row = {"model": name, "question": asked, "failed": run.stderr[-300:]}
            if run.returncode == 0:
                row = json.loads(run.stdout.splitlines()[-1])
            print(row, flush=True)
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()

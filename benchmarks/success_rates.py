"""How often message passing learns what theory promises, from its spectral start and from a random
one, beside the spectral estimate alone: the table of docs/print.md, section 4 (the last column of
which is of an earlier version).

    python benchmarks/success_rates.py ROWS.jsonl [CELL ...]         e.g. two-layers:1000:0.5
    python benchmarks/success_rates.py ROWS.jsonl --table            what is there so far

A cell is MODEL:D:ALPHA, or MODEL:D:ALPHA:SEEDS; without any, all of the table are run (some hours
on one core). Each data set and start is one row of the file, appended as it ends: what is there is
not run again. A data set is learned if, in every direction that theory learns, |cosine| is above
half of theory's; `quiet` names the seeds of runs that end SUCCESS or RECOVERED with a cosine² more
than 0.2 below theory.
"""

import argparse
import collections
import json
import pathlib
import time

import jax
import numpy as np

import jaxsmi as smi

jax.config.update("jax_enable_x64", True)
MODELS = {
    "phase-retrieval": smi.links.phase_retrieval,
    "two-layers": lambda: smi.DeepAttention(2, 2),
    "three-layers": lambda: smi.DeepAttention(3, 2),
    "one-layer-2": lambda: smi.DeepAttention(1, 2),
    "one-layer-3": lambda: smi.DeepAttention(1, 3),
    "signs": lambda: smi.links.sign_product(2),
}
CELLS = [
    *(f"phase-retrieval:{D}:{alpha}" for D in (1000, 2000) for alpha in (0.7, 0.9, 1.1, 2.0)),
    *(f"two-layers:{D}:{alpha}" for D in (500, 1000) for alpha in (0.3, 0.5, 0.9, 1.2)),
    *(f"two-layers:{D}:1.2:64" for D in (100, 200)),
    "signs:500:4.0",
    "signs:1000:4.0",
    "one-layer-2:1000:0.3",
    "one-layer-3:1000:0.15",
    "three-layers:500:0.5:8",
]
STARTS = {"spectral": {}, "random": {"start": 1e-3}}
FIRST = 100
NAMES = {int(code): code.name for code in smi.Result}


def row(model, data, key, start):
    """One run, or the spectral estimate alone."""
    begun = time.perf_counter()
    if start == "vector":
        end = smi.spectral(model, data, key=key)
    else:
        end = smi.gamp(model, data, key=key, **STARTS[start])
    jax.block_until_ready(end.weights)
    return {
        "cosine2": (end.cosine**2).tolist(),
        "overlap": np.diag(end.overlap).tolist(),
        "result": NAMES[int(end.result)],
        "steps": int(end.steps),
        "seconds": round(time.perf_counter() - begun, 3),
    }


def measure(cell, starts, path):
    """The rows of a cell that are not in the file yet."""
    name, D, alpha, *seeds = cell.split(":")
    model = MODELS[name]()
    done = {(r["cell"], r["seed"], r["start"]) for r in rows_of(path)}
    for seed in range(FIRST, FIRST + int(seeds[0] if seeds else 24)):
        missing = [start for start in starts if (cell, seed, start) not in done]
        if not missing:
            continue
        key = jax.random.key(seed)
        data = model.sample(key, dimension=int(D), alpha=float(alpha))
        for start in missing:
            made = {"cell": cell, "seed": seed, "start": start, **row(model, data, key, start)}
            with path.open("a") as file:
                file.write(json.dumps(made) + "\n")
        print(cell, seed, flush=True)


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(path):
    """The table of what is in the file."""
    cells = collections.defaultdict(list)
    for r in rows_of(path):
        cells[r["cell"]].append(r)
    for cell, rows in cells.items():
        name, _, alpha, *_ = cell.split(":")
        model = MODELS[name]()
        theory = smi.state_evolution(model, float(alpha), key=jax.random.key(0))
        q = np.maximum(np.diag(theory.overlap), 0.0)
        told = " ".join(f"{x:.3f}" for x in q)
        print(f"{cell}  theory {told}")
        for start in ("vector", *STARTS):
            some = [r for r in rows if r["start"] == start]
            if some:
                print(f"    {start:9}{line(some, q, name)}")


def line(rows, q, name):
    """One start of one cell: how many learn each layer, all, mean cosine², the codes."""
    cosine2 = np.array([r["cosine2"] for r in rows])
    if name == "signs":  # the two are the same up to their order
        cosine2 = np.sort(cosine2, axis=1)
    wanted = q > 0.01
    above = np.sqrt(cosine2) > 0.5 * np.sqrt(q)
    each = " ".join(str(n) for n in above[:, wanted].sum(0))
    every = np.all(above[:, wanted], axis=1).sum()
    mean = " ".join(f"{x:.3f}" for x in cosine2[:, wanted].mean(0))
    codes = collections.Counter(r["result"] for r in rows)
    run = rows[0]["start"] != "vector"
    calm = [run and r["result"] in ("SUCCESS", "RECOVERED") for r in rows]
    quiet = [
        r["seed"]
        for r, c, still in zip(rows, cosine2, calm, strict=True)
        if still and np.any(c[wanted] < q[wanted] - 0.2)
    ]
    seconds = np.median([r["seconds"] for r in rows])
    counts = " ".join(f"{k} {n}" for k, n in codes.most_common())
    learned = f"{every:3} of {len(rows)} ({each}), cosine² {mean}"
    return f"{learned}; quiet {quiet}; {seconds:.1f} s; {counts}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=pathlib.Path, help="the file of rows")
    parser.add_argument("cells", nargs="*", default=CELLS)
    parser.add_argument("--table", action="store_true", help="print the table, run nothing")
    parser.add_argument("--starts", default=",".join(["vector", *STARTS]), help="with commas")
    arguments = parser.parse_intermixed_args()
    for cell in arguments.cells:
        if cell.split(":")[0] not in MODELS or cell.count(":") not in (2, 3):
            parser.error(f"cell: got {cell}; allowed: MODEL:D:ALPHA, MODEL one of {list(MODELS)}")
    for start in arguments.starts.split(","):
        if start not in ("vector", *STARTS):
            parser.error(f"--starts: got {start}; allowed: vector, {', '.join(STARTS)}")
    if arguments.table and not arguments.rows.exists():
        parser.error(f"rows: got {arguments.rows}; allowed: a file of rows that is there")
    if not arguments.table:
        for cell in arguments.cells:
            measure(cell, arguments.starts.split(","), arguments.rows)
    table(arguments.rows)


if __name__ == "__main__":
    main()

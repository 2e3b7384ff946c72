"""What the public border does with wrong arguments: every argument of every public function, each
of some twenty wrong values.

    python tests/fuzz.py [NAME ..]      a table, and all that is not clear; of these cases alone

A call is stopped where it begins to compute, so that thousands take a minute.
"""

import collections
import os
import sys
import tempfile
import time
import warnings

import jax

jax.config.update("jax_enable_x64", True)

import border  # noqa: E402  (double precision is chosen before arrays are made)

WORDS = ("clear", "accepted", "below", "silent", "slow")


def main(argv):
    warnings.simplefilter("ignore")
    os.chdir(tempfile.mkdtemp())  # of sweeps that are written
    cases = {t: c for t, c in border.CASES.items() if not argv or any(a in t for a in argv)}
    counts = collections.defaultdict(collections.Counter)
    longest = collections.Counter()
    for title, case in cases.items():
        start = time.perf_counter()
        verdict = border.judge(case, None, None, True)
        longest[title, "", "valid"] = time.perf_counter() - start
        if verdict.word != "accepted":
            print(f"{title}: the valid call: {verdict.word} {verdict.said}")
    for title, name, label in border.calls(cases):
        case = cases[title]
        start = time.perf_counter()
        fine = border.allowed(case.kinds[name], label)
        verdict = border.judge(case, name, border.VALUES[label], fine)
        longest[title, name, label] = time.perf_counter() - start
        counts[title][verdict.word] += 1
        if verdict.word not in ("clear", "accepted"):
            print(f"{verdict.word:7} {title}({name}={label}): {verdict.said}", flush=True)
    print(f"\n{'case':40}", *(f"{word:>9}" for word in WORDS))
    for title, count in counts.items():
        print(f"{title:40}", *(f"{count[word]:9}" for word in WORDS))
    total = sum(counts.values(), collections.Counter())
    print(f"{f'all {sum(total.values())} calls':40}", *(f"{total[word]:9}" for word in WORDS))
    for what, seconds in longest.most_common(12):
        print(f"{seconds:6.2f} s", *what)
    print(f"{sum(longest.values()):6.1f} s in all")


if __name__ == "__main__":
    main(sys.argv[1:])

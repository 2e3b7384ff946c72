"""Entries and groups of them, recorded to a file."""

from __future__ import annotations

import fnmatch
import gc
import json
import os
import platform
import re
import sys
import time
import warnings

import jax
import numpy as np
from parts import parts_of, written

import jaxsmi as smi

GROUPS = {}


def group(function):
    GROUPS[function.__name__] = function
    return function


class Recorder:
    """add(name, thunk): one entry."""

    def __init__(self):
        self.entries = {}

    def add(self, name, thunk):
        assert name not in self.entries, name
        begin = time.process_time()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = parts_of(thunk())
            entry = {"values": {}, "dtypes": {}}
            for part, value in found.items():
                if isinstance(value, str):
                    entry["values"][part], entry["dtypes"][part] = value, "str"
                else:
                    entry["values"][part] = written(np.asarray(value).tolist())
                    entry["dtypes"][part] = f"{np.asarray(value).dtype}{list(np.shape(value))}"
        except Exception as failure:  # the rest goes on
            message = re.sub(
                r"0x[0-9a-f]+", "0x..", f"{type(failure).__name__}: {failure}".splitlines()[0]
            )
            entry = {"raises": f"raises: {message}"}
        entry["seconds"] = round(time.process_time() - begin, 3)  # of the processor: it is shared
        self.entries[name] = entry
        shown = entry.get("raises", "")
        print(f"    {entry['seconds']:7.2f} s  {name}  {shown[:150]}", flush=True)


def record(path, only, again):
    print(f"jaxsmi: {smi.__file__}", flush=True)
    known = {"meta": {}, "groups": {}}
    if os.path.exists(path):
        with open(path) as handle:
            known = json.load(handle)
    names = [
        name
        for name in GROUPS
        if not only or any(fnmatch.fnmatch(name, pattern) for pattern in only)
    ]
    unknown = [pattern for pattern in only or [] if not fnmatch.filter(GROUPS, pattern)]
    if unknown:
        sys.exit(f"no such group: {unknown}; there are {', '.join(GROUPS)}")
    known["meta"] = {
        "jaxsmi": smi.__file__, "jax": jax.__version__, "numpy": np.__version__, "python": platform.python_version(),
        "device": str(jax.devices()[0]), "xla_flags": os.environ.get("XLA_FLAGS", ""), "cores": os.cpu_count(),
    }  # fmt: skip
    begin, clock = time.process_time(), time.perf_counter()
    for name in names:
        if name in known["groups"] and not again:
            print(f"{name}: there already")
            continue
        print(f"{name}", flush=True)
        recorder, start = Recorder(), (time.process_time(), time.perf_counter())
        try:
            GROUPS[name](recorder.add)
        except Exception as failure:  # something outside an entry
            recorder.entries["whole group"] = {
                "raises": f"raises: {type(failure).__name__}: {failure}".splitlines()[0],
                "seconds": 0,
            }
            print(f"    GROUP FAILED: {failure!r}")
        seconds, wall = (
            round(time.process_time() - start[0], 2),
            round(time.perf_counter() - start[1], 2),
        )
        known["groups"][name] = {"seconds": seconds, "wall": wall, "entries": recorder.entries}
        with open(f"{path}.new", "w") as handle:
            json.dump(known, handle, indent=None, separators=(",", ":"))
        os.replace(f"{path}.new", path)
        # a process can hold some thousands of compiled programs (vm.max_map_count)
        jax.clear_caches()
        gc.collect()
        print(
            f"  {len(recorder.entries)} entries, {seconds:.1f} s of the processor; in all {time.process_time() - begin:.1f} s, {time.perf_counter() - clock:.1f} s by the clock",
            flush=True,
        )
    entries = [e for g in known["groups"].values() for e in g["entries"].values()]
    total = sum(g["seconds"] for g in known["groups"].values())
    print(
        f"{len(entries)} entries in {len(known['groups'])} groups, {sum('raises' in e for e in entries)} raise, {total:.0f} s: {path}"
    )

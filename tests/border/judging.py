"""What an argument is replaced by, what it may be, and what becomes of such a call."""

import dataclasses
import itertools
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from unittest import mock

import equinox as eqx
import numpy as np

# What an argument is replaced by -------------------------------------------------------------

VALUES: dict[str, object] = {
    "None": None,
    "a word": "nonsense",
    "digits": "2",
    "NaN": float("nan"),
    "inf": float("inf"),
    "-1": -1,
    "0": 0,
    "0.5": 0.5,
    "2.0": 2.0,
    "1e300": 1e300,
    "10**30": 10**30,
    "True": True,
    "an empty list": [],
    "one number": np.array([2]),
    "two numbers": np.array([0.5, 0.25]),
    "an array (3, 5, 7)": np.zeros((3, 5, 7)),
    "NaNs": np.full(2, np.nan),
    "1j": 1j,
    "complex numbers": np.array([1j, 1j]),
    "an object": object(),
    "a mapping": {},
    "a class": dict,
    "a function of nothing": lambda: None,
    "a list of words": ["a"],
    "an old key": np.array([0, 1], np.uint32),
}
_LARGE = {"1e300", "10**30"}
_ARRAYS = {"one number", "two numbers", "an array (3, 5, 7)"}
_REAL = {"-1", "0", "0.5", "2.0", "1e300", "10**30", "an old key", *_ARRAYS}
_CALLABLE = {"a class", "a function of nothing"}

# what may be accepted, by kind of argument; "kind?" also takes None. Of arrays it depends on the
# other arguments: a refusal by name is as right as an answer.
KINDS: dict[str, set[str]] = {
    "count": set(),
    "count from 0": {"0"},
    "dimension": {"10**30"},
    "positive": {"0.5", "2.0", *_LARGE},
    "non-negative": {"0", "0.5", "2.0", *_LARGE},
    "non-negative or inf": {"0", "0.5", "2.0", "inf", *_LARGE},
    "fraction": {"0", "0.5"},
    "open unit": {"0.5"},
    "cosine": {"0.5"},
    "positive fraction": {"0.5"},
    "real": {"-1", "0", "0.5", "2.0", *_LARGE},
    "array": _REAL,
    "overlap": {"0", "0.5", "two numbers", "an array (3, 5, 7)"},
    "positive array": {"0.5", "2.0", "one number", "two numbers", *_LARGE},
    "non-negative array": {"0", "0.5", "2.0", "an old key", *_LARGE, *_ARRAYS},
    "fractions": {"0", "0.5", "two numbers"},
    "flag": {"True"},
    "key": {"an old key"},
    "cosines": {"-1", "0", "0.5", "two numbers"},
    "positive or inf": {"0.5", "2.0", "inf", *_LARGE},
    "zero": {"0"},
    "zeros": {"0", "an array (3, 5, 7)"},
    "list": {"an empty list"},
    "file": set(),
    "object": set(),
    "choice": set(),
    "name": {"a word", "digits"},
    "function": _CALLABLE,
    "sequence": set(),
    "mapping": {"a mapping"},
    "integer": {"-1", "0", "10**30"},
    "type": {"a class"},
    "seeds": {"one number", "an old key"},
    "tree": {*_REAL, "a mapping", "an empty list"},
    "texts": {"a list of words", "an empty list"},
    "start": {"0.5", "2.0", *_LARGE, "an array (3, 5, 7)", "two numbers"},
}


def allowed(kind: str, label: str) -> bool:
    """Whether an argument of a kind may be replaced by a value."""
    return label in KINDS[kind.removesuffix("?")] or (kind.endswith("?") and label == "None")


# What becomes of a call ----------------------------------------------------------------------


class Started(BaseException):
    """The call has begun to compute: all that is looked at was looked at."""


class Late(BaseException):
    """The call took more time of the processor than it was given."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """`word`: clear, accepted, below, silent or slow; and what was said."""

    word: str
    said: str = ""


@dataclasses.dataclass(frozen=True)
class Case:
    """A public call: the function, arguments of a small valid call, the kind of each argument, and
    by which other names a message may call it."""

    call: Callable
    valid: Mapping[str, object]
    kinds: Mapping[str, str]
    others: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    def names(self, name: str) -> set[str]:
        return {name, *self.others.get(name, ())}


_JITTED = type(eqx.filter_jit(len))
_jitted = _JITTED.__call__


def _started(function, *args, **keywords):
    """In place of the call of a jitted function: the start of the computation, but for moments of a
    prior, with which arguments are compared."""
    callers = [sys._getframe(k).f_code.co_name for k in (1, 2, 3)]
    if {"second_moment", "known"} & set(callers):
        return _jitted(function, *args, **keywords)
    raise Started


def run(call: Callable, seconds: float) -> object:
    """The answer of a call that is stopped where a program of the package is entered (its compiler
    is not asked), and after some time."""

    def late(*_: object) -> None:
        raise Late

    previous = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds, 0.2)  # again, where it fell into a callback
    try:
        with mock.patch.object(_JITTED, "__call__", _started):
            return call()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, previous)


def judge(case: Case, name: str | None, value: object, fine: bool, seconds: float = 2.0) -> Verdict:
    """What becomes of a call with one argument replaced (None: the valid call), where the value may
    be accepted (`fine`) or not."""
    given = dict(case.valid) if name is None else {**case.valid, name: value}
    try:
        answer = run(lambda: case.call(**given), seconds)
    except (Started, RecursionError):  # JAX calls itself where a trace was left before its end
        return Verdict("accepted" if fine else "silent", "computes")
    except Late:
        return Verdict("accepted" if fine else "slow", f"runs for more than {seconds} s")
    except Exception as error:
        return _of(error, case, name)
    if fine:
        return Verdict("accepted", type(answer).__name__)
    return Verdict("silent", " ".join(repr(answer).split())[:100])


def _of(error: Exception, case: Case, name: str | None) -> Verdict:
    last = traceback.extract_tb(error.__traceback__)[-1]
    message = " ".join(str(error).split())
    said = f"{type(error).__name__}: {message[:140]} ({last.filename[-40:]}:{last.lineno})"
    if isinstance(error, OSError) and name is not None and case.kinds[name] == "file":
        return Verdict("clear", said)  # it names the file
    ours = type(error) in (ValueError, TypeError) and "/jaxsmi/" in last.filename
    head = set(re.findall(r"\w+", message.split("; allowed")[0].split("got")[0]))
    clear = name is not None and ours and head & case.names(name) and "allowed:" in message
    return Verdict("clear" if clear else "below", said)


def calls(cases: Mapping[str, Case]) -> Iterator[tuple[str, str, str]]:
    """Case, argument and label of every replacement."""
    for title, case in cases.items():
        for name, label in itertools.product(case.kinds, VALUES):
            yield title, name, label

"""Values that replace an argument, the kinds of argument that accept them, and the verdict on a
call."""

import dataclasses
import re
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from unittest import mock

import equinox as eqx
import numpy as np

VALUES: dict[str, object] = {
    "None": None, "a word": "nonsense", "digits": "2", "NaN": float("nan"), "inf": float("inf"),
    "-1": -1, "0": 0, "0.5": 0.5, "2.0": 2.0, "1e300": 1e300, "10**30": 10**30, "True": True,
    "an empty list": [], "one number": np.array([2]), "two numbers": np.array([0.5, 0.25]),
    "an array (3, 5, 7)": np.zeros((3, 5, 7)), "NaNs": np.full(2, np.nan), "1j": 1j,
    "complex numbers": np.array([1j, 1j]), "an object": object(), "a mapping": {},
    "a class": dict, "a function of nothing": lambda: None, "a list of words": ["a"],
    "an old key": np.array([0, 1], np.uint32),
}  # fmt: skip
_LARGE = {"1e300", "10**30"}
_ARRAYS = {"one number", "two numbers", "an array (3, 5, 7)"}
_REAL = {"-1", "0", "0.5", "2.0", "an old key"} | _LARGE | _ARRAYS

# The values that a kind of argument may accept. "kind?" accepts None, too. Whether an array is
# right depends on the other arguments, so that an error that names it is as right as an answer.
KINDS: dict[str, set[str]] = {
    "count": set(),
    "count from 0": {"0"},
    "dimension": {"10**30"},
    "positive": {"0.5", "2.0"} | _LARGE,
    "positive or inf": {"0.5", "2.0", "inf"} | _LARGE,
    "positive fraction": {"0.5"},
    "non-negative": {"0", "0.5", "2.0"} | _LARGE,
    "non-negative or inf": {"0", "0.5", "2.0", "inf"} | _LARGE,
    "fraction": {"0", "0.5"},
    "open unit": {"0.5"},
    "interval": set(),
    "cosine": {"0.5"},
    "cosines": {"-1", "0", "0.5", "two numbers"},
    "real": {"-1", "0", "0.5", "2.0"} | _LARGE,
    "array": _REAL,
    "overlap": {"0", "0.5", "two numbers", "an array (3, 5, 7)"},
    "positive array": {"0.5", "2.0", "one number", "two numbers"} | _LARGE,
    "non-negative array": {"0", "0.5", "2.0", "an old key"} | _LARGE | _ARRAYS,
    "start": {"0.5", "2.0", "two numbers", "an array (3, 5, 7)"} | _LARGE,
    "seeds": {"one number", "an old key"},
    "tree": {"a mapping", "an empty list"} | _REAL,
    "flag": {"True"},
    "key": {"an old key"},
    "name": {"a word", "digits"},
    "type": {"a class"},
    "function": {"a class", "a function of nothing"},
    "list": {"an empty list"},
    "mapping": {"a mapping"},
    "object": set(),
    "choice": set(),
    "sequence": set(),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A public call: the function, valid arguments, the kind of each argument, and by which other
    names a message may call it."""

    call: Callable
    valid: Mapping[str, object]
    kinds: Mapping[str, str]
    synonyms: Mapping[str, set[str]]

    def accepts(self, name: str, label: str) -> bool:
        """The argument may be replaced by the value of this label."""
        kind = self.kinds[name]
        return label in KINDS[kind.removesuffix("?")] or (kind[-1] == "?" and label == "None")


class Started(BaseException):
    """The call has begun to compute: its validation has ended."""


class Late(BaseException):
    """The call took more processor time than its limit."""


_JITTED = type(eqx.filter_jit(len))
_call_jitted = _JITTED.__call__


def _start(function, *args, **keywords):
    """Stop where a jitted function is called, except for moments of a prior, with which arguments
    are compared."""
    callers = {sys._getframe(k).f_code.co_name for k in (1, 2, 3)}
    if callers & {"second_moment", "known"}:
        return _call_jitted(function, *args, **keywords)
    raise Started


def run(call: Callable, seconds: float) -> object:
    """The answer of a call that is stopped where it begins to compute, or after some time."""

    def late(*_: object) -> None:
        raise Late

    previous = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds, 0.2)  # repeated: a callback may swallow the first
    try:
        with mock.patch.object(_JITTED, "__call__", _start):
            return call()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, previous)


def judge(case: Case, name: str, value: object, accepted: bool, seconds: float = 5.0) -> str:
    """The verdict on a call with one argument replaced: "" where it is right, else a sentence.

    `accepted`: the value may be accepted.
    """
    try:
        answer = run(lambda: case.call(**{**case.valid, name: value}), seconds)
    except (Started, RecursionError):  # JAX calls itself where a trace was left before its end
        return "" if accepted else "it computes"
    except Late:
        return "" if accepted else f"it runs for more than {seconds} s"
    except Exception as error:
        return _judge_error(error, {name, *case.synonyms[name]})
    return "" if accepted else f"it returns {' '.join(repr(answer).split())[:100]}"


def _judge_error(error: Exception, names: set[str]) -> str:
    """ "" for an error of the library whose message names the argument and what is allowed."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    message = " ".join(str(error).split())
    ours = type(error) in (ValueError, TypeError) and "/jaxsmi/" in last.filename
    head = set(re.findall(r"\w+", message.split("; allowed")[0].split("got")[0]))
    if ours and head & names and "allowed:" in message:
        return ""
    return f"{type(error).__name__}: {message[:140]} ({last.filename[-40:]}:{last.lineno})"

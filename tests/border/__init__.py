"""The public border: a small valid call of every public function, and what each argument may be.

`CASES` is written down beside the signatures, not read from them: what an argument may be is said
here in words of this room, independently of the predicates of the package. `judge` calls a case
with one argument replaced and says what became of it; `fuzz.py` does so for all of them and prints
a table, `unit/test_border.py` holds it.
"""

from border import descent, inference, models, parts, sgd, workbench
from border.judging import VALUES, allowed, calls, judge
from border.problems import ADAM, ATTENTION, KEY

__all__ = ["ADAM", "ATTENTION", "CASES", "KEY", "VALUES", "allowed", "calls", "judge"]

CASES = models.case | parts.case | inference.case | descent.case | sgd.case | workbench.case

"""Wrong arguments of all public functions: what each argument may be, written independently of the
library, and a judge of what becomes of a call.

`cases` has a small valid call of each function. `judging` replaces one argument of it by one of
some twenty values. A right verdict is a ValueError that names the argument.
"""

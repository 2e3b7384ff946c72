"""Arrays and their letters, checks of arguments, results, data: what every other room passes
around. Its only equations are those of whitening and moments [theory: inputs, Eqs. (1) to (14)].

arrays: shape letters and precision. checks: what an argument must be. border: declared beside the
signature. inputs: stored ones. codes: what became of a run.
results: estimates, thresholds, solutions. data: data sets, stored or drawn again. driver: the one
loop. programs: what the compiler is told. cache: compiled programs on disk. files: written whole.
labelled: solutions as xarray. provenance: how a file was made. parts: what a room declares.
whitening: inputs with a covariance, and without. moments: whether inputs look like iid entries.
progress: bars. notices: warnings. words: misspelt ones. shown, summary: what solutions and data
say at the prompt.
"""

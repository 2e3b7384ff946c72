"""Arrays and their letters, checks of arguments, results, data: what every other room passes
around. No equation lives here.

arrays: shape letters and precision. checks: what an argument must be. codes: what became of a run.
results: estimates, thresholds, solutions. data: data sets, stored or drawn again. driver: the one
loop. labelled: solutions as xarray. provenance: how a file was made. parts: what a room declares.
"""

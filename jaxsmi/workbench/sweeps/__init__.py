"""Grids of problems: what is swept, how a row is solved, where rows are solved, and the folder that
keeps them.
"""

from jaxsmi.workbench.sweeps.folder import finished
from jaxsmi.workbench.sweeps.grid import planned, sweep
from jaxsmi.workbench.sweeps.rows import Sweep
from jaxsmi.workbench.sweeps.solvers import curve, warm_start

__all__ = ["Sweep", "curve", "finished", "planned", "sweep", "warm_start"]

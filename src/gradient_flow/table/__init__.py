"""One pass over memory, one small table; everything else is arithmetic on that table."""

from gradient_flow.table.measure import measure
from gradient_flow.table.table import GradientStats, GradientTable

__all__ = ["GradientStats", "GradientTable", "measure"]

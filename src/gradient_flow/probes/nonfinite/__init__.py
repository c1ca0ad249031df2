"""Where a NaN or Inf comes from: a step replayed operator by operator, to the first at fault and its line of code."""

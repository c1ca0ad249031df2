"""The documented names of the five tools: they translate arguments and results, and compute nothing themselves."""

"""Faults that the state of an optimizer shows: stale or lost moments, an eps that rules, updates that rounding swallows."""

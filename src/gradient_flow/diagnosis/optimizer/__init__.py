"""Faults that the state of an optimizer shows: stale moments, an eps that rules, updates that rounding swallows."""

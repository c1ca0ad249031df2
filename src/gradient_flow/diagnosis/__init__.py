"""Evidence in, verdicts out: pure functions of numbers, without torch."""

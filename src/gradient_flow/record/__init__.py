"""What is remembered of a run: in memory a bounded window, on disk one line per record."""

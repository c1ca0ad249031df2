"""What is remembered of a run: records of steps and looks, events, a bounded window, the run file, one reader."""

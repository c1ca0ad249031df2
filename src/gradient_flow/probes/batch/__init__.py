"""Which samples of a batch make a step spike or turn NaN."""

"""A training loop under watch: each step is measured, its record completed and handed to window, file and loggers."""

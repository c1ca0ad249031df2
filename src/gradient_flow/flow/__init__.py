"""A training loop under watch: measure each optimizer step, complete its record, and hand it to window, file and loggers."""

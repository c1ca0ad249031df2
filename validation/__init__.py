"""Labelled sick and healthy training set-ups that measure how well the diagnosis works. `python -m validation`."""

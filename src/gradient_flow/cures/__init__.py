"""Fixes that are tried on the model before they are advised."""

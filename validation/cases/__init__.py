"""The cases, by family and subject; each file holds one half."""

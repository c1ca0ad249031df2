"""Faults of the loop, the loss and the data: what is trained, in which order, by how much, on what."""

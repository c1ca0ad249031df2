"""What is done to gradients: decide from numbers first, then act."""

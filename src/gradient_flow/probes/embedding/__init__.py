"""Which rows of an embedding its gradient is in, and rules on them."""

"""How a mixture of experts routes: load and entropy of each router, and rules on them."""

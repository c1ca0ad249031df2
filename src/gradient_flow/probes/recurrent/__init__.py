"""How a recurrent network moves through time: Jacobians of its state, memory, rank, and rules on them."""

"""How a recurrent network moves through time: Jacobians of its state, memory length, rank, and what is wrong with them."""

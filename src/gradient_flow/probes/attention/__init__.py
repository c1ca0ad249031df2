"""Where attention looks: entropy, sparsity, differences between heads, spread of tokens, and what is wrong with them."""

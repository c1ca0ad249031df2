"""Where attention looks: entropy, sparsity, differences between heads, spread of tokens, and rules on them."""

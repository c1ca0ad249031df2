"""How a policy explores: entropy and spread of its actions over the states it met, and rules on them."""

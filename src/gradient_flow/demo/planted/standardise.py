"""A layer with a fault in it: try `gradient-flow demo --fault nan`, then repair it and run the demo again."""

from torch import Tensor, nn


class Standardise(nn.Module):
    """Every feature to mean 0 and spread 1 over the batch. The fault: what does not vary has spread 0."""

    def forward(self, x: Tensor) -> Tensor:
        """Standardise `x` (batch, features)."""
        centred = x - x.mean(dim=0)
        spread = x.std(dim=0)
        return centred / spread

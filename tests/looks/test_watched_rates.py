"""A rate that is too high for a network with attention: the verdict names the rate, and the rate that its user set."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gradient_flow as gf
from gradient_flow.diagnosis.issue import IssueSeverity

WORDS, LENGTH, WIDTH = 12, 16, 32


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(seen)
        return x + self.mlp(self.mix(x))


class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, text):
        return self.head(self.blocks(self.words(text) + self.places(torch.arange(text.shape[1]))))


def trained(rate):
    """Count on from a drawn word: the next is the last plus one. The schedule ends at a rate of zero."""
    torch.manual_seed(0)
    model = Writer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 80)
    with gf.watch(model, optimizer) as flow:
        for _ in range(80):
            text = (torch.randint(WORDS, (16, 1)) + torch.arange(LENGTH + 1)) % WORDS
            loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return flow.diagnose()


@pytest.mark.parametrize(("rate", "sick"), [(3e-3, False), (0.3, True)])
def test_attention_that_large_steps_threw_off_is_said_to_be_thrown_off_by_the_rate(rate, sick):
    alarms = [issue for issue in trained(rate) if issue.severity > IssueSeverity.LOW]
    assert bool(alarms) == sick
    if sick:
        assert alarms[0].code == "rate_too_high"
        assert str(alarms[0].advice[0]).startswith("Lower the learning rate from 0.3 to ")

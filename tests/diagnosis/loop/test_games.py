"""Games of a generator and a critic: the one that is won is named, those that go on are not."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gradient_flow as gf

STEPS = 240


class Game(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, outputs))
        self.critic = nn.Sequential(nn.Linear(outputs, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))


def ring():
    angle = 2 * math.pi * torch.rand(64)
    return 2 * torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(64, 2)


def clouds():
    return torch.randn(64, 2) * 0.4 + torch.tensor([1.5, -1.0])


def pictures():
    mix = torch.randn(8, 64, generator=torch.Generator().manual_seed(5))
    return (torch.randn(64, 8) @ mix).tanh()


def played(folder, real, *, rates=(1e-3, 1e-3), turns=1, real_label=1.0, saturating=False, seed=0):
    """A game of as many steps of the generator; the critic takes `turns` for each of them."""
    torch.manual_seed(seed)
    game = Game(real().shape[1])
    makes = torch.optim.Adam(game.generator.parameters(), lr=rates[0], betas=(0.5, 0.999))
    judges = torch.optim.Adam(game.critic.parameters(), lr=rates[1], betas=(0.5, 0.999))
    one, zero = torch.ones(64, 1), torch.zeros(64, 1)
    with gf.watch(game, [makes, judges], run=folder) as flow:
        for _ in range(STEPS):
            for _ in range(turns):
                fake = game.generator(torch.randn(64, 8)).detach()
                judges.zero_grad()
                loss = F.binary_cross_entropy_with_logits(game.critic(real()), real_label * one)
                (loss + F.binary_cross_entropy_with_logits(game.critic(fake), zero)).backward()
                judges.step()
            makes.zero_grad()
            answer = game.critic(game.generator(torch.randn(64, 8)))
            if saturating:
                (-F.binary_cross_entropy_with_logits(answer, zero)).backward()
            else:
                F.binary_cross_entropy_with_logits(answer, one).backward()
            makes.step()
    return flow.diagnose()


@pytest.mark.parametrize("seed", [0, 1])
def test_a_critic_that_wins_outright_is_named_with_both_losses(tmp_path, seed):
    found = played(tmp_path / "run", pictures, rates=(2e-5, 3e-3), turns=3, seed=seed)
    issue = found[0]
    assert (issue.code, issue.severity.name) == ("critic_wins", "HIGH")
    # The oracle: the losses that the file holds.
    run = gf.load_run(tmp_path / "run")
    owner, loss = run.series("optimizer"), run.series("loss")
    critic, generator = loss[owner == 1], loss[owner == 0]
    third = len(critic) // 3
    assert issue.evidence["critic_loss"] == pytest.approx(float(torch.tensor(critic[-third:]).quantile(0.5)), rel=0.05)
    assert issue.evidence["critic_loss"] < 0.03 < 4 < issue.evidence["generator_loss"]
    assert generator[-1] > 4 * generator[0]
    late = critic[[step >= issue.step for step in run.series("step")[owner == 1]]]
    assert (late < 0.03).mean() >= 0.8


@pytest.mark.parametrize(
    "settings",
    [
        {"real": ring},
        {"real": clouds},
        {"real": pictures},
        {"real": ring, "turns": 3},
        {"real": pictures, "real_label": 0.9},
        {"real": clouds, "rates": (1e-3, 4e-3)},
    ],
    ids=["ring", "clouds", "pictures", "three-turns", "smoothed", "fast-critic"],
)
def test_a_game_that_goes_on_is_not(tmp_path, settings):
    assert all(issue.code != "critic_wins" for issue in played(tmp_path / "run", **settings))

"""A small actor-critic on CartPole, with its policy watched: `python examples/reinforcement_learning.py`.

`--entropy-bonus -0.3` punishes exploring, so that the policy collapses and the alarm can be seen.
"""

import argparse

import gymnasium
import torch
from torch import nn

import gradient_flow as gf

DISCOUNT, REPORT_EVERY = 0.99, 25


class ActorCritic(nn.Module):
    """Logits of the actions, and the value of the state."""

    def __init__(self, observations, actions, width=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(observations, width), nn.Tanh())
        self.actor, self.critic = nn.Linear(width, actions), nn.Linear(width, 1)

    def forward(self, states):
        hidden = self.body(states)
        return self.actor(hidden), self.critic(hidden).squeeze(-1)


def action_extractor(output):
    """(logits, std, mean, value) of what the policy returns."""
    logits, value = output
    return logits, None, None, value


def play(environment, policy, seed):
    """One episode: its states, actions and rewards."""
    states, actions, rewards = [], [], []
    state, _ = environment.reset(seed=seed)
    done = False
    while not done:
        state = torch.as_tensor(state, dtype=torch.float32)
        with torch.no_grad():
            action = torch.multinomial(policy(state)[0].softmax(-1), 1).squeeze()
        states.append(state)
        actions.append(action)
        state, reward, terminated, truncated, _ = environment.step(action.item())
        rewards.append(float(reward))
        done = terminated or truncated
    return torch.stack(states), torch.stack(actions), rewards


def discounted(rewards):
    """The return that followed each step."""
    returns, total = [], 0.0
    for reward in reversed(rewards):
        total = reward + DISCOUNT * total
        returns.append(total)
    return torch.tensor(returns[::-1])


def loss_of(output, actions, returns, entropy_bonus):
    """Policy gradient with the critic as baseline, minus the bonus for entropy."""
    logits, value = output
    distribution = torch.distributions.Categorical(logits=logits)
    advantage = returns - value.detach()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
    actor = -(distribution.log_prob(actions) * advantage).mean()
    critic = nn.functional.smooth_l1_loss(value, returns)
    return actor + 0.5 * critic - entropy_bonus * distribution.entropy().mean()


def train(episodes, entropy_bonus, seed=0):
    """Train, and look at the policy now and then; gives what was found last."""
    torch.manual_seed(seed)
    environment = gymnasium.make("CartPole-v1")
    policy = ActorCritic(environment.observation_space.shape[0], int(environment.action_space.n))
    optimizer = torch.optim.Adam(policy.parameters(), lr=5e-3)
    analyzer = gf.RLPolicyAnalyzer(policy)
    earned = []
    for episode in range(1, episodes + 1):
        states, actions, rewards = play(environment, policy, seed + episode)
        returns = discounted(rewards)
        loss = loss_of(policy(states), actions, returns, entropy_bonus)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        earned.append(sum(rewards))
        if episode % REPORT_EVERY == 0 or episode == episodes:
            issues, stats = analyzer.analyze(
                lambda states=states: states,
                lambda output, actions=actions, returns=returns: loss_of(output, actions, returns, entropy_bonus),
                steps=3,
                action_extractor=action_extractor,
                returns=earned,  # a policy at its best may be certain; one that gave up may not
            )
            recent = earned[-REPORT_EVERY:]
            print(f"episode {episode:4d}: return {sum(recent) / len(recent):6.1f}")
            print(stats)
    environment.close()
    return analyzer, issues, stats


def main():
    """Train, then say what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--entropy-bonus", type=float, default=0.01)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # batches of one state: more threads only wait for each other
    analyzer, issues, stats = train(arguments.episodes, arguments.entropy_bonus)
    print()
    analyzer.print_summary(issues, stats)


if __name__ == "__main__":
    main()

"""Double deep Q-learning (van Hasselt et al. 2016) on the cart-pole. Environments, replay memory and learning are one
compiled step: nothing leaves the device while the agent plays.

python examples/dqn.py --steps 15000
"""

import argparse
import copy
import math

import weft
import weft.nn.functional as F
from weft import nn

CARTS, MEMORY, BATCH, LONGEST, DISCOUNT = 16, 8192, 128, 500, 0.99


def move(state, action):
    """Cart-poles [N, 4] (position, speed, angle, its speed) after a push to the left (0) or right (1); who fell."""
    x, speed, angle, spin = state.unbind(1)
    force = action.float() * 20 - 10
    drive = (force + 0.05 * spin**2 * angle.sin()) / 1.1
    turning = (9.8 * angle.sin() - angle.cos() * drive) / (0.5 * (4 / 3 - 0.1 * angle.cos() ** 2 / 1.1))
    push = drive - 0.05 * turning * angle.cos() / 1.1
    after = weft.stack([x + 0.02 * speed, speed + 0.02 * push, angle + 0.02 * spin, spin + 0.02 * turning], 1)
    return after, (after[:, 0].abs() > 2.4) | (after[:, 2].abs() > math.radians(12))


class Agent:
    """A Q-network, its slowly following copy, the carts it plays with and what it remembers."""

    def __init__(self):
        self.net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
        self.slow = copy.deepcopy(self.net).requires_grad_(False)
        self.optimizer = weft.optim.Adam(self.net.parameters(), lr=2.5e-4)
        self.state, self.age = weft.zeros(CARTS, 4), weft.zeros(CARTS)
        self.memory, self.seen = weft.zeros(MEMORY, 10), weft.zeros(1).long()  # state, action, state after, fell
        self.play = weft.compile(self.play)

    def play(self, exploration):
        """Move all carts once, remember it, and learn from a random batch of memories."""
        with weft.no_grad():
            is_random = weft.rand(CARTS) < exploration
            action = weft.where(is_random, weft.randint(0, 2, (CARTS,)), self.net(self.state).argmax(1))
            after, fell = move(self.state, action)
            rows = (self.seen + weft.arange(CARTS)) % MEMORY
            self.memory.index_copy_(0, rows, weft.cat([self.state, action.unsqueeze(1), after, fell.unsqueeze(1)], 1))
            self.seen.add_(CARTS)
            ends = fell | (self.age >= LONGEST)
            self.age.copy_(weft.where(ends, 0.0, self.age + 1))
            self.state.copy_(weft.where(ends.unsqueeze(1), weft.rand_like(after) * 0.1 - 0.05, after))

        picked = (weft.rand(BATCH) * self.seen.clamp(max=MEMORY)).long()
        state, action, after, fell = self.memory.index_select(0, picked).split([4, 1, 4, 1], 1)
        value = self.net(state).gather(1, action.long())
        future = self.slow(after).gather(1, self.net(after).detach().argmax(1, keepdim=True)) * (1 - fell)
        reward = 1 - after[:, :1].abs() / 2.4  # 1 in the middle of the track, 0 at its ends
        loss = F.smooth_l1_loss(value, reward + DISCOUNT * future)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        with weft.no_grad():
            for slow, fast in zip(self.slow.parameters(), self.net.parameters(), strict=True):
                slow.lerp_(fast, 0.01)

    @weft.no_grad()
    def mean_length(self):
        """How many steps 64 carts stand, up to LONGEST, without exploration."""

        def step(carry, _):
            state, fell = move(carry[0], self.net(carry[0]).argmax(1))
            return (state, carry[1] & ~fell), carry[1] & ~fell

        begin = weft.rand(64, 4) * 0.1 - 0.05, weft.ones(64, dtype=weft.bool)
        return weft.loop(step, begin, weft.zeros(LONGEST))[1].float().sum(0).mean().item()  # of [LONGEST, 64]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=15000)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--short", action="store_true", help="few steps, for the tests")
    options = parser.parse_args(arguments)
    steps = 3000 if options.short else options.steps

    weft.manual_seed(0)
    with weft.device(options.device):  # all tensors are made there
        agent = Agent()
        lengths = [agent.mean_length()]
        for number in range(1, steps + 1):
            agent.play(max(0.05, 1 - 2 * number / steps))
            if number % max(1, steps // 5) == 0:
                lengths.append(agent.mean_length())
                print(f"step {number:5}: the pole stands for {lengths[-1]:.0f} steps of {LONGEST}")
    return {"first_length": lengths[0], "length": max(lengths)}


if __name__ == "__main__":
    main()

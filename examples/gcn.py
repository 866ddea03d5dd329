"""A graph convolutional network on Zachary's karate club (1977): 34 members, 78 friendships, and the two groups into
which the club split. Only the two leaders' groups are known; the network finds the others'.

python examples/gcn.py --steps 200
"""

import argparse

import weft
from weft import nn
from weft.train import Trainer

# The friends of each member with a higher number.
FRIENDS = {
    0: [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 17, 19, 21, 31], 1: [2, 3, 7, 13, 17, 19, 21, 30],
    2: [3, 7, 8, 9, 13, 27, 28, 32], 3: [7, 12, 13], 4: [6, 10], 5: [6, 10, 16], 6: [16], 8: [30, 32, 33], 9: [33],
    13: [33], 14: [32, 33], 15: [32, 33], 18: [32, 33], 19: [33], 20: [32, 33], 22: [32, 33],
    23: [25, 27, 29, 32, 33], 24: [25, 27, 31], 25: [31], 26: [29, 33], 27: [33], 28: [31, 33], 29: [32, 33],
    30: [32, 33], 31: [32, 33], 32: [33],
}  # fmt: skip
INSTRUCTORS_GROUP = {0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 16, 17, 19, 21}  # the others followed member 33
LEADERS = [0, 33]
UNKNOWN = -100  # the class of members whose group is not given


class GCN(nn.Module):
    def __init__(self, edges, members, width=16):
        super().__init__()
        self.register_buffer("edges", edges)
        self.first, self.second = nn.GCNConv(members, width), nn.GCNConv(width, 2)

    def forward(self, x):  # [members, features] -> [members, 2]
        return self.second(self.first(x, self.edges).tanh(), self.edges)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--short", action="store_true", help="few steps, for the tests")
    options = parser.parse_args(arguments)

    pairs = [(member, friend) for member, friends in FRIENDS.items() for friend in friends]
    both_ways = weft.tensor(pairs + [(friend, member) for member, friend in pairs]).T  # [2, 156]
    groups = weft.tensor([0 if member in INSTRUCTORS_GROUP else 1 for member in range(34)])
    known = weft.full((34,), UNKNOWN)
    known[LEADERS] = groups[LEADERS]

    weft.manual_seed(0)
    model = GCN(both_ways, members=34)
    optimizer = weft.optim.Adam(model.parameters(), lr=0.02, weight_decay=5e-4)
    trainer = Trainer(model, nn.CrossEntropyLoss(ignore_index=UNKNOWN), optimizer, device=options.device)
    history = trainer.fit([(weft.eye(34), known)], epochs=60 if options.short else options.steps)

    found = trainer.predict(weft.eye(34)).argmax(1).cpu()
    correct = (found == groups).float().mean().item()
    print(
        f"{correct:.0%} of 34 members are in the right group; wrong: {(found != groups).nonzero().flatten().tolist()}"
    )
    return {"first_loss": history["loss"][0], "loss": history["loss"][-1], "accuracy": correct}


if __name__ == "__main__":
    main()

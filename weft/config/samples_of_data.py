"""Small data for first configurations: a text, a table that is made up, and a graph that was observed."""

from __future__ import annotations

import numpy as np

# William Shakespeare, sonnets 18, 29 and 116 (1609).
TEXT = """Shall I compare thee to a summer's day?
Thou art more lovely and more temperate:
Rough winds do shake the darling buds of May,
And summer's lease hath all too short a date;
Sometime too hot the eye of heaven shines,
And often is his gold complexion dimm'd;
And every fair from fair sometime declines,
By chance or nature's changing course untrimm'd;
But thy eternal summer shall not fade,
Nor lose possession of that fair thou ow'st;
Nor shall death brag thou wander'st in his shade,
When in eternal lines to time thou grow'st:
So long as men can breathe or eyes can see,
So long lives this, and this gives life to thee.

When, in disgrace with fortune and men's eyes,
I all alone beweep my outcast state,
And trouble deaf heaven with my bootless cries,
And look upon myself and curse my fate,
Wishing me like to one more rich in hope,
Featured like him, like him with friends possess'd,
Desiring this man's art and that man's scope,
With what I most enjoy contented least;
Yet in these thoughts myself almost despising,
Haply I think on thee, and then my state,
Like to the lark at break of day arising
From sullen earth, sings hymns at heaven's gate;
For thy sweet love remember'd such wealth brings
That then I scorn to change my state with kings.

Let me not to the marriage of true minds
Admit impediments. Love is not love
Which alters when it alteration finds,
Or bends with the remover to remove:
O no! it is an ever-fixed mark
That looks on tempests and is never shaken;
It is the star to every wandering bark,
Whose worth's unknown, although his height be taken.
Love's not Time's fool, though rosy lips and cheeks
Within his bending sickle's compass come:
Love alters not with his brief hours and weeks,
But bears it out even to the edge of doom.
If this be error and upon me proved,
I never writ, nor no man ever loved.
"""

# Zachary, "An information flow model for conflict and fission in small groups" (1977): friendships of the 34 members
# of a karate club, each with the members of higher number; and who stayed with the instructor when the club split.
KARATE_CLUB = """0 1 2 3 4 5 6 7 8 10 11 12 13 17 19 21 31
1 2 3 7 13 17 19 21 30
2 3 7 8 9 13 27 28 32
3 7 12 13
4 6 10
5 6 10 16
6 16
8 30 32 33
9 33
13 33
14 32 33
15 32 33
18 32 33
19 33
20 32 33
22 32 33
23 25 27 29 32 33
24 25 27 31
25 31
26 29 33
27 33
28 31 33
29 32 33
30 32 33
31 32 33
32 33"""
MEMBERS = 34
WITH_INSTRUCTOR = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 16, 17, 19, 21)
KNOWN = (0, 3, 6, 24, 30, 33)  # members whose side is known in training


def make_karate_club() -> dict[str, np.ndarray]:
    """The arrays of a graph: features (one per node), edges in both directions, classes, and which nodes train."""
    pairs = []
    for line in KARATE_CLUB.splitlines():
        source, *others = map(int, line.split())
        pairs += [(source, other) for other in others]
    edges = np.array(pairs, np.int64).T
    side = np.ones(MEMBERS, np.int64)
    side[list(WITH_INSTRUCTOR)] = 0
    train = np.zeros(MEMBERS, bool)
    train[list(KNOWN)] = True
    return {
        "x": np.eye(MEMBERS, dtype=np.float32),
        "edge_index": np.concatenate([edges, edges[::-1]], 1),
        "y": side,
        "train": train,
    }


def make_table() -> str:
    """A CSV table of flowers that are made up: measures of three species, drawn from a fixed seed."""
    draw = np.random.default_rng(0)
    centres = {"arctica": (4.1, 2.2, 1.3), "borealis": (5.6, 2.9, 3.9), "montana": (6.4, 2.4, 5.2)}
    rows = []
    for species, centre in centres.items():
        for _ in range(60):
            values = np.array(centre) + draw.normal(0, 0.45, 3)
            rows.append(",".join([f"{max(value, 0.1):.2f}" for value in values] + [species]))
    draw.shuffle(rows)
    return "\n".join(["stem_length,leaf_width,petal_length,species", *rows]) + "\n"

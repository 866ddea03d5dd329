"""A bidirectional LSTM that tags the words of sentences. Many words are verbs or nouns, depending on their neighbours;
sentences have different lengths, and padding does not count.

python examples/lstm_tagger.py --epochs 10
"""

import argparse
import random

import weft
from weft import nn
from weft.data import DataLoader, TensorDataset
from weft.train import Accuracy, ProgressBar, Trainer

TAGS = ("DET", "NOUN", "VERB", "ADJ", "AUX")
BOTH = ["fish", "run", "watch", "play", "walk", "cook", "drive", "plant", "train", "show"]  # nouns and verbs
WORDS = {
    "DET": ["the", "a", "this", "every", "my"],
    "NOUN": [*BOTH, "dog", "engine", "river", "child"],
    "VERB": [*BOTH, "see", "eat", "find"],
    "ADJ": ["small", "old", "red", "quick"],
    "AUX": ["can", "will", "must", "may"],
}
IGNORED = -100  # the tag of padding


def sentence(rng):
    """A list of (word, tag): a noun phrase, a verb, sometimes after an auxiliary, and another noun phrase."""

    def phrase():
        return ["DET", *["ADJ"] * rng.randint(0, 2), "NOUN"]

    tags = [*phrase(), *["AUX"] * rng.randint(0, 1), "VERB", *(phrase() if rng.random() < 0.7 else [])]
    return [(rng.choice(WORDS[tag]), tag) for tag in tags]


def encode(sentences):
    """Words [N, T] (0 is padding) and tags [N, T]."""
    numbers = {word: 1 + k for k, word in enumerate(sorted({word for words in WORDS.values() for word in words}))}
    longest = max(map(len, sentences))
    words = [[numbers[word] for word, _ in one] + [0] * (longest - len(one)) for one in sentences]
    tags = [[TAGS.index(tag) for _, tag in one] + [IGNORED] * (longest - len(one)) for one in sentences]
    return TensorDataset(weft.tensor(words), weft.tensor(tags)), len(numbers) + 1


class Tagger(nn.Module):
    def __init__(self, words, width=32):
        super().__init__()
        self.embedding = nn.Embedding(words, width, padding_idx=0)
        self.lstm = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, len(TAGS))

    def forward(self, words):  # [N, T] -> [N, classes, T], as cross entropy takes it
        states, _ = self.lstm(self.embedding(words))
        return self.head(states).transpose(1, 2)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--short", action="store_true", help="few epochs, for the tests")
    options = parser.parse_args(arguments)

    rng = random.Random(0)
    data, words = encode([sentence(rng) for _ in range(1200)])
    train, test = weft.data.random_split(data, [1000, 200], generator=weft.Generator(0))
    weft.manual_seed(0)
    model = Tagger(words)
    trainer = Trainer(
        model, nn.CrossEntropyLoss(ignore_index=IGNORED), weft.optim.Adam(model.parameters(), lr=5e-3),
        metrics=[Accuracy(ignore_index=IGNORED)], device=options.device, callbacks=[ProgressBar()],
    )  # fmt: skip
    history = trainer.fit(
        DataLoader(train, 40, shuffle=True, seed=0),
        DataLoader(test, 200),
        epochs=4 if options.short else options.epochs,
    )
    accuracy = history["val_accuracy"][-1]
    print(f"test accuracy {accuracy:.2%}")
    return {"first_loss": history["loss"][0], "loss": history["loss"][-1], "accuracy": accuracy}


if __name__ == "__main__":
    main()

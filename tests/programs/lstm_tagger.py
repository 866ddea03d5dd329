"""A bidirectional LSTM that tags the words of sentences of different lengths, with packed sequences."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

VOCABULARY, TAGS, PAD = 23, 5, 0


class Tagger(nn.Module):
    def __init__(self, embedding_dim=6, hidden_dim=5):
        super().__init__()
        self.hidden_dim = hidden_dim
        self.word_embeddings = nn.Embedding(VOCABULARY, embedding_dim, padding_idx=PAD)
        self.lstm = nn.LSTM(embedding_dim, hidden_dim, num_layers=2, bidirectional=True, batch_first=True, dropout=0.0)
        self.hidden2tag = nn.Linear(2 * hidden_dim, TAGS)

    def forward(self, sentences, lengths):
        embeds = self.word_embeddings(sentences)
        packed = pack_padded_sequence(embeds, lengths, batch_first=True, enforce_sorted=False)
        lstm_out, (hn, cn) = self.lstm(packed)
        lstm_out, _ = pad_packed_sequence(lstm_out, batch_first=True)
        tag_space = self.hidden2tag(lstm_out)
        return F.log_softmax(tag_space, dim=2)


def batches(count):
    rng = np.random.RandomState(0)
    for _ in range(count):
        lengths = rng.randint(2, 8, 4)
        words = [torch.tensor(rng.randint(1, VOCABULARY, n)) for n in lengths]
        tags = [w % TAGS for w in words]
        yield (
            pad_sequence(words, batch_first=True, padding_value=PAD),
            pad_sequence(tags, batch_first=True, padding_value=-1),
            torch.tensor(lengths),
        )


def make_model():
    torch.manual_seed(1)
    return Tagger().double()


def train(model, steps):
    loss_function = nn.NLLLoss(ignore_index=-1)
    optimizer = optim.Adam(model.parameters(), lr=0.05)
    scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.7)
    losses = []
    for sentences, tags, lengths in batches(steps):
        model.zero_grad()
        tag_scores = model(sentences, lengths)
        loss = loss_function(tag_scores.reshape(-1, TAGS), tags.reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=5.0)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses

"""Data that lives on the device, in the form that the Trainer takes (`weft.data.ResidentData`), as small as can be."""

import weft


class Rows:
    """Rows of tensors in batches; with `shuffle` in an order that follows from the seed and the epoch."""

    def __init__(self, tensors, batch_size, shuffle=True, seed=0):
        self.tensors = tuple(tensors)
        self.device = tensors[0].device
        self.length, self.batch_size, self.seed = len(tensors[0]), batch_size, seed
        self.batches = -(-self.length // batch_size)
        self.shuffle, self.epoch = shuffle, 0
        self.order = weft.arange(self.length, device=self.device)
        self.position = weft.zeros((1,), dtype=weft.int64, device=self.device)
        self.generator = weft.Generator()
        self._begin = weft.compile(self._start)
        weft.eval(self.order, self.position)

    def _start(self, first):
        if self.shuffle:
            self.order.copy_(weft.randperm(self.length, generator=self.generator, device=self.device))
        self.position.fill_(first)

    def start_epoch(self, epoch, first=0):
        self.epoch = epoch
        self.generator.manual_seed(self.seed * 1_000_003 + epoch)
        self._begin(first * self.batch_size)

    def count(self, number):
        return min(self.batch_size, self.length - number * self.batch_size)

    def next(self, count=None):
        size = count or self.batch_size
        rows = self.order.index_select(0, (self.position + weft.arange(size, device=self.device)) % self.length)
        self.position.add_(size)
        return tuple(one.index_select(0, rows) for one in self.tensors)

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass

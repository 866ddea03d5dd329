"""What users get wrong: type checkers find every line that ends in `# wrong` (tests/unit/test_typing.py)."""

import weft
import weft.nn as nn
import weft.nn.functional as F

x = weft.ones(2, 3)
weft.softmax(x, dimension=1)  # wrong
weft.softmax(x, "rows")  # wrong
x.sum(dims=1)  # wrong
x.sum(keepdim="yes")  # wrong
x.reshap(3, 2)  # wrong
weft.cat(x, dim="0")  # wrong
F.conv2d(x, x, strides=2)  # wrong
F.cross_entropy(x, [0, 1])  # wrong
F.linear(x)  # wrong
F.relu(3)  # wrong
weft.topk(x)  # wrong
print(x.max(1).value)  # wrong
weft.sofmax(x, 1)  # wrong
x.permute(1, "0")  # wrong
x.add_(x, beta=2)  # wrong
F.max_pool2d(x, kernel=2)  # wrong
nn.Linear("4", 8)  # wrong
nn.Conv2d(3, 8, kernel=3)  # wrong
weft.optim.AdamW([x], learning_rate=1e-3)  # wrong
nn.Lineer(4, 8)  # wrong

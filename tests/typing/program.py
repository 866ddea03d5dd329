"""What users write. Type checkers find nothing wrong here (tests/unit/test_typing.py)."""

import weft
import weft.nn.functional as F
from weft import Tensor

x: Tensor = weft.randn(4, 3, requires_grad=True)
w = weft.zeros((5, 3))
y = F.linear(x, w, bias=None).relu()
total: Tensor = y.sum(dim=-1, keepdim=True).mean()
total.backward()

probabilities = weft.softmax(input=y, dim=1)
values, indices = y.max(dim=1)
largest: Tensor = y.max()
best = y.max(1).indices
both = weft.max(y, 1, keepdim=True)
names: Tensor = both.values
top = weft.topk(y, k=2).values
ordered = y.sort(descending=True).values
left, right = weft.split(x, 2)
stacked = weft.stack([left, right], dim=0)
joined = weft.cat((left, right))
turned = x.permute(1, 0).reshape(-1, 2).view(3, 4).transpose(0, 1)
swapped = weft.permute(x, (1, 0))
chosen = weft.where(x > 0, x, 0.0)
power = (2.0 * x + 1) ** 2 / x - x.abs()
power += 1
half = x.to(weft.float16).half()
image = F.conv2d(weft.ones(1, 3, 8, 8), weft.ones(4, 3, 3, 3), stride=2, padding="valid", groups=1)
pooled: Tensor = F.max_pool2d(image, 2)
pooled, where = F.max_pool2d(image, 2, return_indices=True)
loss: Tensor = F.cross_entropy(y, weft.tensor([0, 1, 2, 3]), reduction="sum")
loss = F.mse_loss(x, x.detach())
normed = F.layer_norm(x, (3,), eps=1e-6)
w.clamp_(min=0.0, max=1.0).add_(1).mul_(w)
activated = F.relu(x, inplace=False)
product = x @ x.T
number: float = loss.item()
shape: tuple[int, ...] = x.shape


@weft.no_grad()
def update(parameter: Tensor, rate: float) -> Tensor:
    return parameter.sub_(rate * parameter)


update(w, 0.1)

"""What users write. Type checkers find nothing wrong here (tests/unit/test_typing.py)."""

import weft
import weft.nn as nn
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


class Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(4, width, bias=False)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList([nn.Linear(width, width) for _ in range(2)])
        self.scale = nn.Parameter(weft.ones(width))

    def forward(self, x: weft.Tensor) -> weft.Tensor:
        x = F.gelu(self.norm(self.first(x)))
        for block in self.blocks:
            x = x + block(x)
        return x * self.scale


model = Net(8).float().to("cpu")
optimizer = weft.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
scheduler = weft.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
cost: weft.Tensor = criterion(model(weft.ones(2, 4)), weft.tensor([0, 1]))
nn.utils.clip_grad_norm_(model.parameters(), 1.0)
state: dict[str, weft.Tensor] = dict(model.state_dict())

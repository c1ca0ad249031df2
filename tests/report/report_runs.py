"""Real runs that the tests of the report look at."""

import torch
from torch import nn

import gradient_flow as gf

HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>hacked=1</script>",
    "a&amp;b\"'`{{data}}`",
    "$\\frac{1}{2}$ __proto__",
    "x" * 200,
)
BAD_STEP = 31


def sick_run(folder, steps=60):
    """A stack of sigmoids, clipped, with NaN in the gradients of one step that the guard replaces."""
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Linear(16, 16), nn.Sigmoid())]
    model = nn.Sequential(*layers, nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    manager = gf.GradientManager(gf.GradientConfig(max_grad_norm=0.02))
    x, y = torch.randn(64, 16), torch.randint(0, 4, (64,))
    with gf.watch(model, optimizer, run=folder, layers_every=1, manager=manager) as flow:
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            flow.log(loss=loss.item(), accuracy=1 - 1 / step)
            (loss * float("nan") if step == BAD_STEP else loss).backward()
            optimizer.step()
    return folder


class Hostile(nn.Module):
    """Its parameters are called what nobody should call them."""

    def __init__(self):
        super().__init__()
        self.tensors = nn.ParameterDict()
        for name in HOSTILE:  # one by one: given at once they would be sorted
            self.tensors[name] = nn.Parameter(torch.eye(4) / 2)

    def forward(self, x):
        for tensor in self.tensors.values():
            x = torch.tanh(x @ tensor)
        return x


def hostile_run(folder, steps=12):
    """Ends in issues that carry the names."""
    torch.manual_seed(0)
    model, x = Hostile(), torch.randn(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gf.watch(model, optimizer, run=folder, layers_every=1) as flow:
        for step in range(steps):
            optimizer.zero_grad()
            loss = model(x).square().mean() * (float("nan") if step == 8 else 1.0)
            flow.log(**{"<b>loss</b>": 1.0})
            loss.backward()
            flow.step(optimizer) if step == 8 else optimizer.step()
    return folder


def wide_run(folder, steps=200, bad_step=101):
    """1,000 tensors, with one NaN in one of them at one step."""
    torch.manual_seed(0)
    blocks = [nn.ModuleDict({part: nn.Linear(2, 2) for part in ("attention", "mlp")}) for _ in range(250)]
    model = nn.ModuleDict({"blocks": nn.ModuleList(blocks)})
    parameters = list(model.parameters())
    sizes = [parameter.numel() for parameter in parameters]
    shape = torch.cat([torch.full((size,), 10.0 ** (-place / 250)) for place, size in enumerate(sizes)])
    gradients = shape.clone()  # of all tensors in one, so that a step is one operation
    for parameter, gradient in zip(parameters, gradients.split(sizes), strict=True):
        parameter.grad = gradient.view_as(parameter)
    with gf.watch(model, run=folder, layers_every=1) as flow:
        for step in range(1, steps + 1):
            torch.div(shape, step, out=gradients)
            if step == bad_step:
                parameters[500].grad[0] = float("nan")
            flow.step()
    return folder


def empty_run(folder):
    """Begun, and ended before its first step."""
    model = nn.Linear(2, 2)
    with gf.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), run=folder):
        pass
    return folder

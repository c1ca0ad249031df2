"""The lines of a training script that do what a treatment does, each from its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

Settings = Mapping[str, Any]
_SHOWN: Final = 16
"""Means and deviations that are written out in code."""


def _hook(lines: str) -> str:
    return f"# hooks do not survive a checkpoint: register them again after loading\n{lines}"


def listed(values: Any) -> str:
    """Values as a list that Python reads."""
    return repr(list(values))


def mapping(values: Mapping[Any, Any]) -> str:
    """The same of names and values."""
    return "{" + ", ".join(f"{name!r}: {_short(value)}" for name, value in values.items()) + "}"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else repr(value)


def rate_code(settings: Settings) -> str:
    """Another rate for every group."""
    return f"for group in optimizer.param_groups:\n    group['lr'] *= {settings['factor']:.4g}"


def warm_code(settings: Settings) -> str:
    """A schedule that rises."""
    steps = settings["steps"]
    return (
        f"schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / {steps}, total_iters={steps - 1})\n"
        "# and schedule.step() after every optimizer.step()"
    )


def group_code(name: str) -> Callable[[Settings], str]:
    """A setting of every group, by its name."""
    return lambda settings: f"for group in optimizer.param_groups:\n    group[{name!r}] = {settings[name]:g}"


def rescale_code(settings: Settings) -> str:
    """Weights and biases of layers, multiplied."""
    return (
        f"with torch.no_grad():\n    for path, factor in {mapping(settings['factors'])}.items():\n"
        "        for tensor in model.get_submodule(path).parameters(recurse=False):\n            tensor.mul_(factor)"
    )


def init_code(settings: Settings) -> str:
    """Weights drawn anew."""
    he, xavier = "kaiming_normal_(layer.weight, nonlinearity='relu')", "xavier_normal_(layer.weight)"
    how = f"    torch.nn.init.{he if settings['how'] == 'he' else xavier}\n"
    if settings["how"] == "he" and settings.get("head") in settings["layers"]:
        how = (
            f"    if path == {settings['head']!r}:  # no activation follows\n        torch.nn.init.{xavier}\n"
            f"    else:\n        torch.nn.init.{he}\n"
        )
    return (
        f"for path in {listed(settings['layers'])}:\n    layer = model.get_submodule(path)\n{how}"
        "    if layer.bias is not None:\n        torch.nn.init.zeros_(layer.bias)"
    )


def norm_code(settings: Settings) -> str:
    """A norm by hook."""
    return _hook(
        "def norm(layer, inputs, output):\n"
        "    if output.dim() > 2 and isinstance(layer, (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)):\n"
        "        return torch.nn.functional.group_norm(output, 1)\n"
        "    return torch.nn.functional.layer_norm(output, output.shape[-1:])\n"
        f"for path in {listed(settings['layers'])}:\n    model.get_submodule(path).register_forward_hook(norm)"
    )


def units_code(settings: Settings) -> str:
    """Rows of dead units drawn anew."""
    return (
        "with torch.no_grad():\n"
        f"    for path, units in {mapping(settings['units'])}.items():\n"
        "        layer = model.get_submodule(path)\n"
        "        fresh = torch.empty_like(layer.weight)\n"
        "        torch.nn.init.kaiming_normal_(fresh, nonlinearity='relu')\n"
        "        layer.weight[units] = fresh[units]\n"
        "        if layer.bias is not None:\n            layer.bias[units] = 0.0\n"
        "        for tensor in (layer.weight, layer.bias):  # what the optimizer remembers of them\n"
        "            for kept in optimizer.state.get(tensor, {}).values():\n"
        "                if torch.is_tensor(kept) and tensor is not None and kept.shape == tensor.shape:\n"
        "                    kept[units] = 0.0"
    )


def swap_code(settings: Settings) -> str:
    """Other activations."""
    return (
        f"for path, act in {mapping(settings['modules'])}.items():\n    parent, _, name = path.rpartition('.')\n"
        "    setattr(model.get_submodule(parent), name, getattr(torch.nn, act)())"
    )


def residual_code(settings: Settings) -> str:
    """Scaled branches by hook."""
    return _hook(
        f"def scaled(block, inputs, output):  # the branch, which is what the block adds, × {settings['scale']:.3g}\n"
        f"    return inputs[0] + {settings['scale']:.4g} * (output - inputs[0])\n"
        f"for path in {listed(settings['blocks'])}:\n    model.get_submodule(path).register_forward_hook(scaled)"
    )


def skip_code(settings: Settings) -> str:
    """Skip connections by hook."""
    return _hook(
        "def skip(layer, inputs, output):\n    return output + inputs[0]\n"
        f"for path in {listed(settings['blocks'])}:\n    model.get_submodule(path).register_forward_hook(skip)"
    )


def bypass_code(settings: Settings) -> str:
    """What a narrow layer takes, added behind the next."""
    return _hook(
        "def bypass(first, last):\n    kept = []\n"
        "    def add(layer, inputs, output):\n        x = kept.pop()\n"
        "        if x.shape != output.shape:\n"
        "            x = torch.nn.functional.adaptive_avg_pool2d(x, output.shape[2:])\n"
        "        return output + x\n"
        "    def keep(layer, inputs):\n        kept[:] = inputs[:1]\n"
        "    first.register_forward_pre_hook(keep)\n"
        "    last.register_forward_hook(add)\n"
        f"for first, last in {listed(map(tuple, settings['pairs']))}:\n"
        "    bypass(model.get_submodule(first), model.get_submodule(last))"
    )


def way_code(settings: Settings) -> str:
    """The same through new weights."""
    return _hook(
        "def way_around(first, last, width, wanted):\n"
        "    last.way_around = torch.nn.Linear(width, wanted, bias=False).to(last.weight)\n"
        "    optimizer.add_param_group({'params': [last.way_around.weight], 'lr': optimizer.param_groups[0]['lr']})\n"
        "    kept = []\n"
        "    def keep(layer, inputs):\n        kept[:] = inputs[:1]\n"
        "    first.register_forward_pre_hook(keep)\n"
        "    last.register_forward_hook(lambda layer, inputs, output: output + layer.way_around(kept.pop()))\n"
        f"for first, last, width, wanted in {listed(map(tuple, settings['pairs']))}:\n"
        "    way_around(model.get_submodule(first), model.get_submodule(last), width, wanted)"
    )


def place(settings: Mapping[str, Any]) -> str:
    """File and line."""
    return f"{str(settings['file']).replace(chr(92), '/').rpartition('/')[2]}, line {settings['line']}"


def attach_code(settings: Settings) -> str:
    """A line of the user's own file: shown as it is and as it should be, as comments."""
    lines = []
    for each in settings["lines"]:
        lines += [f"# {place(each)}: no `detach`, `.data` or `no_grad` here", f"# - {each['text']}"]
        if (mended := str(each["text"]).replace(".detach()", "").replace(".data", "")) != each["text"]:
            lines.append(f"# + {mended}")
    return "\n".join(lines)


def level_code(settings: Settings) -> str:
    """Samples beyond a limit, scaled."""
    lines = (
        "def level(module, inputs):\n    x = inputs[0]\n"
        "    size = x.square().mean(dim=tuple(range(1, x.dim())), keepdim=True).sqrt()\n"
        f"    module.factor = torch.where(size > {settings['limit']:.4g}, size / {settings['usual']:.4g}, 1.0)\n"
        "    return (x / module.factor, *inputs[1:])\n"
        "model.register_forward_pre_hook(level)"
    )
    if settings["restore"]:
        lines += (
            "\ndef back(module, inputs, output):\n"
            "    return output * module.factor.view(-1, *(1,) * (output.dim() - 1))\n"
            "model.register_forward_hook(back)"
        )
    return _hook(lines)


def outputs_code(settings: Settings) -> str:
    """Scaled outputs by hook."""
    return _hook(
        "from torch.utils._pytree import tree_flatten, tree_unflatten\n"
        f"factors = {mapping({int(at): factor for at, factor in settings['factors'].items()})}  # by place\n"
        "def scaled(model, inputs, output):\n"
        "    leaves, form = tree_flatten(output)\n"
        "    return tree_unflatten([x * factors.get(at, 1) for at, x in enumerate(leaves)], form)\n"
        "model.register_forward_hook(scaled)"
    )


_SAFE: Final = {
    **dict.fromkeys(("log", "log2", "log10"), "x.clamp_min(1e-6).log()"),
    "sqrt": "x.clamp_min(1e-8).sqrt()",
    **dict.fromkeys(("div", "reciprocal", "rsqrt"), "y = torch.where(y.abs() < 1e-8, 1.0, y) before you divide by it"),
    "pow": "x.clamp_min(1e-8).pow(p)",
    "exp": "x.clamp_max(43).exp()",
    **dict.fromkeys(("acos", "asin", "atanh"), "x.clamp(-1 + 1e-6, 1 - 1e-6)"),
    **dict.fromkeys(("softmax", "log_softmax"), "no row with nothing but -Inf: torch.finfo(x.dtype).min / 4 for -Inf"),
}
"""What to write in the place of an operator that gives NaN."""


def safe_code(settings: Settings) -> str:
    """A line of the user's own file: shown as it is, with the form to write."""
    lines = []
    for each in settings["lines"]:
        how = _SAFE.get(each["operator"], "torch.nan_to_num(..., 0.0, 0.0, 0.0) of what it takes and returns")
        lines += [f"# {place(each)}: `{each['operator']}` gives NaN or Inf here", f"# - {each['text']}", f"# + {how}"]
    return "\n".join(lines)


def qk_code(settings: Settings) -> str:
    """QK-norm by hook."""
    return _hook(
        "def norm_heads(x, heads):\n    x = x.unflatten(-1, (heads, -1))\n"
        "    return torch.nn.functional.rms_norm(x, x.shape[-1:]).flatten(-2)\n"
        "def qk_norm(heads, parts):  # parts: 1 for a projection of its own, 3 for queries, keys and values in one\n"
        "    def hook(layer, inputs, output):\n"
        "        first, *rest = output.chunk(parts, dim=-1)\n"
        "        kept = [norm_heads(each, heads) for each in (first, *rest[:1])] + rest[1:]\n"
        "        return torch.cat(kept, dim=-1)\n"
        "    return hook\n"
        f"for path, (heads, parts) in {mapping(settings['projections'])}.items():\n"
        "    model.get_submodule(path).register_forward_hook(qk_norm(heads, parts))"
    )


def standard_code(settings: Settings) -> str:
    """Standardised inputs."""
    count, image = len(settings["mean"]), settings["dim"] == 1
    if count <= _SHOWN:
        mean, std = (f"torch.tensor({[float(f'{each:.4g}') for each in settings[name]]})" for name in ("mean", "std"))
    else:  # nobody wants so many numbers in a script
        dims = "(0, 2, 3)" if image else "tuple(range(data.dim() - 1))"
        mean, std = f"data.mean({dims})", f"data.std({dims}).clamp_min(1e-6)"
    note = "" if count <= _SHOWN else f"# data: your training inputs in one tensor; {count} features\n"
    shape = ".view(-1, 1, 1)" if image else ""
    changed = "torch.nan_to_num((inputs - mean) / std, posinf=0.0, neginf=0.0)"
    return f"{note}mean = {mean}{shape}\nstd = {std}{shape}\ninputs = {changed}"


def forget_code(settings: Settings) -> str:
    """Open forget gates."""
    return (
        f"for path in {listed(settings['layers'])}:\n"
        "    for name, bias in model.get_submodule(path).named_parameters(recurse=False):\n"
        "        if name.startswith('bias'):  # torch adds two of them\n"
        "            quarter = len(bias) // 4  # input, forget, cell and output gate\n"
        f"            value = {settings['bias']:g} if name.startswith('bias_ih') else 0.0\n"
        "            torch.nn.init.constant_(bias[quarter : 2 * quarter], value)"
    )


def scaled_tensors_code(settings: Settings) -> str:
    """Tensors multiplied."""
    return (
        f"with torch.no_grad():\n    for name, factor in {mapping(settings['factors'])}.items():\n"
        "        model.get_parameter(name).mul_(factor)"
    )


def orthogonal_code(settings: Settings) -> str:
    """Recurrent weights drawn anew."""
    return (
        f"for name in {listed(settings['names'])}:\n    weight = model.get_parameter(name)\n"
        "    if 'weight_hh' in name:\n        for gate in weight.data.split(weight.shape[1]):\n"
        "            torch.nn.init.orthogonal_(gate)\n"
        "    else:\n        torch.nn.init.xavier_uniform_(weight)\n"
        "    for other, bias in model.get_submodule(name.rpartition('.')[0]).named_parameters(recurse=False):\n"
        "        if other.startswith('bias'):\n            torch.nn.init.zeros_(bias)"
    )


def add_code(settings: Settings) -> str:
    """One more group."""
    return (
        f"optimizer.add_param_group({{'params': [model.get_parameter(n) for n in {listed(settings['names'])}],\n"
        "                           'lr': optimizer.param_groups[0]['lr']})"
    )


ZEROS: Final = _hook(
    "def finite(x):\n    return torch.nan_to_num(x, 0.0, 0.0, 0.0)\n"
    "def zeros(layer, inputs, output):\n"
    "    if torch.is_tensor(output) and output.is_floating_point():\n"
    "        output = finite(output)\n"
    "        if output.requires_grad:\n            output.register_hook(finite)\n"
    "    return output\n"
    "def zero_gradients(optimizer, *_):\n"
    "    for p in model.parameters():\n"
    "        if p.grad is not None:\n            p.grad.nan_to_num_(0.0, 0.0, 0.0)\n"
    "for layer in model.modules():\n    layer.register_forward_hook(zeros)\n"
    "optimizer.register_step_pre_hook(zero_gradients)"
)

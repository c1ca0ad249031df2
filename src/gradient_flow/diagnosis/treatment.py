"""`Treatment`: a fix by name and numbers, without torch. Text, code and deed of a fix come from the same numbers.

What is done to a model is in `gradient_flow.cures.treatments`, registered under the same `kind`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from gradient_flow.diagnosis.words import plain

Settings = Mapping[str, Any]
_SHOWN: Final = 16
"""Means and deviations that are written out in code."""
_WITHOUT_NUMBERS: Final = ("skip_nonfinite", "zero_nonfinite")
"""Kinds that have no numbers at all."""


class Words(NamedTuple):
    """How a kind of treatment is called, advised and written down, each from its settings."""

    name: Callable[[Settings], str]
    advice: Callable[[Settings], str]
    code: Callable[[Settings], str]


@dataclass(frozen=True)
class Treatment:
    """One fix: what kind, and its numbers.

    >>> clip = Treatment("clip", {"norm": 0.5})
    >>> clip.name, clip.advice
    ('clip at 0.5', 'Clip the gradient norm at 0.5.')
    >>> print(clip.code)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)  # after backward(), before optimizer.step()
    """

    kind: str
    settings: Settings = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        """Whether its numbers are still to be taken from the model: `Treatment("norm")` names no layer yet."""
        return not self.settings and self.kind not in _WITHOUT_NUMBERS

    @property
    def name(self) -> str:
        """A few words."""
        return self.kind.replace("_", " ") if self.is_open else _words(self.kind).name(self.settings)

    @property
    def advice(self) -> str:
        """The same as a sentence that tells what to do."""
        return f"Try: {self.name}." if self.is_open else _words(self.kind).advice(self.settings)

    @property
    def code(self) -> str:
        """The lines to write into a training script; nothing while its numbers are open."""
        return "" if self.is_open else _words(self.kind).code(self.settings)

    def covers(self, other: Treatment) -> bool:
        """Whether the other is this one, or this one with its numbers."""
        return self == other or (self.is_open and self.kind == other.kind)

    def to_dict(self) -> dict[str, Any]:
        """Plain values that JSON can hold."""
        return {"kind": self.kind, "name": self.name, "settings": dict(self.settings)}

    @classmethod
    def from_dict(cls, plain_values: Mapping[str, Any]) -> Treatment:
        """What `to_dict` made plain values of."""
        return cls(str(plain_values["kind"]), dict(plain_values.get("settings") or {}))


class Advice(str):
    """A sentence of advice; `treatment` is the same as a deed, where it can be done mechanically.

    >>> advice = Advice("Clip the norm at 0.5: that affects 10% of your steps.", Treatment("clip", {"norm": 0.5}))
    >>> advice.treatment.name
    'clip at 0.5'
    """

    treatment: Treatment | None

    def __new__(cls, text: str, treatment: Treatment | None = None) -> Advice:
        """The text as it is."""
        made = super().__new__(cls, text)
        made.treatment = treatment
        return made


def treatment_of(advice: str) -> Treatment | None:
    """The treatment that an advice carries; None for one that only a person can follow."""
    return getattr(advice, "treatment", None)


def set_words(kind: str, words: Words) -> None:
    """Give a kind of treatment its words, as a treatment of a user's own needs."""
    WORDS[kind] = words


def _words(kind: str) -> Words:
    return WORDS.get(kind) or Words(
        lambda _: kind,
        lambda settings: f"Apply `{kind}` ({dict(settings)}).",
        lambda settings: f"# {kind}: {dict(settings)}",
    )


# ---- words --------------------------------------------------------------------------------------------------------


def some(names: Sequence[str], most: int = 3) -> str:
    """Some names in backticks.

    >>> some(["a", "b"]), some(["a", "b", "c", "d"])
    ('`a`, `b`', '`a`, `b` … `d`')
    """
    shown = [f"`{name}`" for name in names]
    return ", ".join(shown) if len(shown) <= most else f"{', '.join(shown[: most - 1])} … {shown[-1]}"


def many(count: int, what: str) -> str:
    """`1 layer`, `3 layers`."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def _hook(lines: str) -> str:
    return f"# hooks do not survive a checkpoint: register them again after loading\n{lines}"


def _listed(values: Any) -> str:
    return repr(list(values))


def _mapping(values: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f"{name!r}: {_short(value)}" for name, value in values.items()) + "}"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else repr(value)


def _rate_advice(settings: Settings) -> str:
    verb = "Lower" if settings["factor"] < 1 else "Raise"
    to = f" to {plain(settings['rate'])}" if settings.get("rate") else ""
    return f"{verb} the learning rate{to} (× {plain(settings['factor'])})."


def _rate_code(settings: Settings) -> str:
    return f"for group in optimizer.param_groups:\n    group['lr'] *= {settings['factor']:.4g}"


def _warm_code(settings: Settings) -> str:
    steps = settings["steps"]
    return (
        f"schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / {steps}, total_iters={steps - 1})\n"
        "# and schedule.step() after every optimizer.step()"
    )


def _group_code(name: str) -> Callable[[Settings], str]:
    return lambda settings: f"for group in optimizer.param_groups:\n    group[{name!r}] = {settings[name]:g}"


def _rescale_code(settings: Settings) -> str:
    return (
        f"with torch.no_grad():\n    for path, factor in {_mapping(settings['factors'])}.items():\n"
        "        for tensor in model.get_submodule(path).parameters(recurse=False):\n            tensor.mul_(factor)"
    )


def _init_code(settings: Settings) -> str:
    he, xavier = "kaiming_normal_(layer.weight, nonlinearity='relu')", "xavier_normal_(layer.weight)"
    how = f"    torch.nn.init.{he if settings['how'] == 'he' else xavier}\n"
    if settings["how"] == "he" and settings.get("head") in settings["layers"]:
        how = (
            f"    if path == {settings['head']!r}:  # no activation follows\n        torch.nn.init.{xavier}\n"
            f"    else:\n        torch.nn.init.{he}\n"
        )
    return (
        f"for path in {_listed(settings['layers'])}:\n    layer = model.get_submodule(path)\n{how}"
        "    if layer.bias is not None:\n        torch.nn.init.zeros_(layer.bias)"
    )


def _norm_code(settings: Settings) -> str:
    return _hook(
        "def norm(layer, inputs, output):\n"
        "    if output.dim() > 2 and isinstance(layer, (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)):\n"
        "        return torch.nn.functional.group_norm(output, 1)\n"
        "    return torch.nn.functional.layer_norm(output, output.shape[-1:])\n"
        f"for path in {_listed(settings['layers'])}:\n    model.get_submodule(path).register_forward_hook(norm)"
    )


def _units_code(settings: Settings) -> str:
    return (
        "with torch.no_grad():\n"
        f"    for path, units in {_mapping(settings['units'])}.items():\n"
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


def _swap_code(settings: Settings) -> str:
    return (
        f"for path, act in {_mapping(settings['modules'])}.items():\n    parent, _, name = path.rpartition('.')\n"
        "    setattr(model.get_submodule(parent), name, getattr(torch.nn, act)())"
    )


def _residual_code(settings: Settings) -> str:
    return _hook(
        f"def scaled(block, inputs, output):  # the branch, which is what the block adds, × {settings['scale']:.3g}\n"
        f"    return inputs[0] + {settings['scale']:.4g} * (output - inputs[0])\n"
        f"for path in {_listed(settings['blocks'])}:\n    model.get_submodule(path).register_forward_hook(scaled)"
    )


def _skip_code(settings: Settings) -> str:
    return _hook(
        "def skip(layer, inputs, output):\n    return output + inputs[0]\n"
        f"for path in {_listed(settings['blocks'])}:\n    model.get_submodule(path).register_forward_hook(skip)"
    )


def _bypass_code(settings: Settings) -> str:
    return _hook(
        "def bypass(first, last):\n    kept = []\n"
        "    def add(layer, inputs, output):\n        x = kept.pop()\n"
        "        if x.shape != output.shape:\n"
        "            x = torch.nn.functional.adaptive_avg_pool2d(x, output.shape[2:])\n"
        "        return output + x\n"
        "    def keep(layer, inputs):\n        kept[:] = inputs[:1]\n"
        "    first.register_forward_pre_hook(keep)\n"
        "    last.register_forward_hook(add)\n"
        f"for first, last in {_listed(map(tuple, settings['pairs']))}:\n"
        "    bypass(model.get_submodule(first), model.get_submodule(last))"
    )


def _way_code(settings: Settings) -> str:
    return _hook(
        "def way_around(first, last, width, wanted):\n"
        "    last.way_around = torch.nn.Linear(width, wanted, bias=False).to(last.weight)\n"
        "    optimizer.add_param_group({'params': [last.way_around.weight], 'lr': optimizer.param_groups[0]['lr']})\n"
        "    kept = []\n"
        "    def keep(layer, inputs):\n        kept[:] = inputs[:1]\n"
        "    first.register_forward_pre_hook(keep)\n"
        "    last.register_forward_hook(lambda layer, inputs, output: output + layer.way_around(kept.pop()))\n"
        f"for first, last, width, wanted in {_listed(map(tuple, settings['pairs']))}:\n"
        "    way_around(model.get_submodule(first), model.get_submodule(last), width, wanted)"
    )


def _place(settings: Mapping[str, Any]) -> str:
    return f"{str(settings['file']).replace(chr(92), '/').rpartition('/')[2]}, line {settings['line']}"


def _places(settings: Settings) -> str:
    return " and ".join(map(_place, settings["lines"]))


def _attach_code(settings: Settings) -> str:
    """A line of the user's own file: shown as it is and as it should be, as comments."""
    lines = []
    for each in settings["lines"]:
        lines += [f"# {_place(each)}: no `detach`, `.data` or `no_grad` here", f"# - {each['text']}"]
        if (mended := str(each["text"]).replace(".detach()", "").replace(".data", "")) != each["text"]:
            lines.append(f"# + {mended}")
    return "\n".join(lines)


def _level_code(settings: Settings) -> str:
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


def _outputs_code(settings: Settings) -> str:
    return _hook(
        "from torch.utils._pytree import tree_flatten, tree_unflatten\n"
        f"factors = {_mapping({int(at): factor for at, factor in settings['factors'].items()})}  # by place\n"
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


def _safe_code(settings: Settings) -> str:
    """A line of the user's own file: shown as it is, with the form to write."""
    lines = []
    for each in settings["lines"]:
        how = _SAFE.get(each["operator"], "torch.nan_to_num(..., 0.0, 0.0, 0.0) of what it takes and returns")
        lines += [f"# {_place(each)}: `{each['operator']}` gives NaN or Inf here", f"# - {each['text']}", f"# + {how}"]
    return "\n".join(lines)


def _qk_code(settings: Settings) -> str:
    return _hook(
        "def norm_heads(x, heads):\n    x = x.unflatten(-1, (heads, -1))\n"
        "    return torch.nn.functional.rms_norm(x, x.shape[-1:]).flatten(-2)\n"
        "def qk_norm(heads, parts):  # parts: 1 for a projection of its own, 3 for queries, keys and values in one\n"
        "    def hook(layer, inputs, output):\n"
        "        first, *rest = output.chunk(parts, dim=-1)\n"
        "        kept = [norm_heads(each, heads) for each in (first, *rest[:1])] + rest[1:]\n"
        "        return torch.cat(kept, dim=-1)\n"
        "    return hook\n"
        f"for path, (heads, parts) in {_mapping(settings['projections'])}.items():\n"
        "    model.get_submodule(path).register_forward_hook(qk_norm(heads, parts))"
    )


def _standard_code(settings: Settings) -> str:
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


def _forget_code(settings: Settings) -> str:
    return (
        f"for path in {_listed(settings['layers'])}:\n"
        "    for name, bias in model.get_submodule(path).named_parameters(recurse=False):\n"
        "        if name.startswith('bias'):  # torch adds two of them\n"
        "            quarter = len(bias) // 4  # input, forget, cell and output gate\n"
        f"            value = {settings['bias']:g} if name.startswith('bias_ih') else 0.0\n"
        "            torch.nn.init.constant_(bias[quarter : 2 * quarter], value)"
    )


def _scaled_tensors_code(settings: Settings) -> str:
    return (
        f"with torch.no_grad():\n    for name, factor in {_mapping(settings['factors'])}.items():\n"
        "        model.get_parameter(name).mul_(factor)"
    )


def _orthogonal_code(settings: Settings) -> str:
    return (
        f"for name in {_listed(settings['names'])}:\n    weight = model.get_parameter(name)\n"
        "    if 'weight_hh' in name:\n        for gate in weight.data.split(weight.shape[1]):\n"
        "            torch.nn.init.orthogonal_(gate)\n"
        "    else:\n        torch.nn.init.xavier_uniform_(weight)\n"
        "    for other, bias in model.get_submodule(name.rpartition('.')[0]).named_parameters(recurse=False):\n"
        "        if other.startswith('bias'):\n            torch.nn.init.zeros_(bias)"
    )


def _add_code(settings: Settings) -> str:
    return (
        f"optimizer.add_param_group({{'params': [model.get_parameter(n) for n in {_listed(settings['names'])}],\n"
        "                           'lr': optimizer.param_groups[0]['lr']})"
    )


_ZEROS: Final = _hook(
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


def _parts(settings: Settings) -> list[Treatment]:
    return [Treatment.from_dict(part) for part in settings["parts"]]


def _range(values: Mapping[str, float]) -> str:
    low, high = min(values.values()), max(values.values())
    return plain(low, 2) if f"{low:.2g}" == f"{high:.2g}" else f"{plain(low, 2)} to {plain(high, 2)}"


WORDS: Final[dict[str, Words]] = {
    "learning_rate": Words(
        lambda t: f"learning rate × {plain(t['factor'], 2)}",
        _rate_advice,
        _rate_code,
    ),
    "warm_up": Words(
        lambda t: f"warm-up over {t['steps']} steps",
        lambda t: f"Warm the learning rate up over {t['steps']} steps.",
        _warm_code,
    ),
    "clip": Words(
        lambda t: f"clip at {plain(t['norm'])}",
        lambda t: f"Clip the gradient norm at {plain(t['norm'])}.",
        lambda t: (
            f"torch.nn.utils.clip_grad_norm_(model.parameters(), {t['norm']:.4g})"
            "  # after backward(), before optimizer.step()"
        ),
    ),
    "skip_nonfinite": Words(
        lambda _: "skip steps with NaN",
        lambda _: "Skip steps whose gradients hold NaN or Inf.",
        lambda _: (
            "if all(p.grad is None or p.grad.isfinite().all() for p in model.parameters()):\n    optimizer.step()"
        ),
    ),
    "skip_spikes": Words(
        lambda t: f"skip steps with a norm above {plain(t['norm'])}",
        lambda t: f"Skip steps whose gradient norm is above {plain(t['norm'])}.",
        lambda t: (
            "gradients = [p.grad for p in model.parameters() if p.grad is not None]\n"
            f"if torch.nn.utils.get_total_norm(gradients) <= {t['norm']:.4g}:\n    optimizer.step()"
        ),
    ),
    "zero_nonfinite": Words(
        lambda _: "0 for NaN between layers",
        lambda _: "Put 0 in the place of NaN and Inf between layers, until what makes them is found.",
        lambda _: _ZEROS,
    ),
    "eps": Words(
        lambda t: f"eps {t['eps']:g}",
        lambda t: f"Set `eps` of the optimizer to {t['eps']:g}: at its present value it rules the step.",
        _group_code("eps"),
    ),
    "weight_decay": Words(
        lambda t: f"weight decay {t['weight_decay']:g}",
        lambda t: f"Set the weight decay to {t['weight_decay']:g}.",
        _group_code("weight_decay"),
    ),
    "optimizer": Words(
        lambda t: f"{t['name']} with rate {t['rate']:g}",
        lambda t: f"Train with {t['name']} at a learning rate of {t['rate']:g}.",
        lambda t: f"optimizer = torch.optim.{t['name']}(model.parameters(), lr={t['rate']:g})",
    ),
    "add_parameters": Words(
        lambda t: f"add {many(len(t['names']), 'parameter')} to the optimizer",
        lambda t: f"Give {some(t['names'])} to the optimizer.",
        _add_code,
    ),
    "rescale": Words(
        lambda t: f"rescale weights of {many(len(t['factors']), 'layer')} (× {_range(t['factors'])})",
        lambda t: f"Scale the initial weights of {some(list(t['factors']))} by {_range(t['factors'])}.",
        _rescale_code,
    ),
    "reinitialise": Words(
        lambda t: f"{'He' if t['how'] == 'he' else 'Xavier'} initialisation of {many(len(t['layers']), 'layer')}",
        lambda t: f"Initialise {some(t['layers'])} at random ({'He' if t['how'] == 'he' else 'Xavier'}), biases at 0.",
        _init_code,
    ),
    "reset_biases": Words(
        lambda t: f"biases of {many(len(t['layers']), 'layer')} at 0",
        lambda t: f"Start the biases of {some(t['layers'])} at 0.",
        lambda t: f"for path in {_listed(t['layers'])}:\n    torch.nn.init.zeros_(model.get_submodule(path).bias)",
    ),
    "revive": Words(
        lambda t: f"revive {many(sum(map(len, t['units'].values())), 'dead unit')}",
        lambda t: f"Draw the weights of the dead units in {some(list(t['units']))} anew.",
        _units_code,
    ),
    "scale_recurrent": Words(
        lambda t: f"recurrent weights × {_range(t['factors'])}",
        lambda t: f"Scale {some(list(t['factors']))} by {_range(t['factors'])}.",
        _scaled_tensors_code,
    ),
    "reinitialise_recurrent": Words(
        lambda t: "orthogonal recurrent weights",
        lambda t: f"Initialise {some(t['names'])} anew: recurrent weights orthogonal, input weights Xavier.",
        _orthogonal_code,
    ),
    "scale_queries": Words(
        lambda t: f"queries and keys × {_range(t['factors'])}",
        lambda t: f"Scale the queries and keys of {some(list(t['factors']))} by {_range(t['factors'])}.",
        lambda t: (
            f"with torch.no_grad():\n    for name, factor in {_mapping(t['factors'])}.items():\n"
            "        weight = model.get_parameter(name)  # rows: queries, keys, values\n"
            "        weight[: 2 * len(weight) // 3].mul_(factor)"
        ),
    ),
    "forget_gate": Words(
        lambda t: f"forget-gate bias {t['bias']:g}",
        lambda t: f"Start the forget-gate bias of {some(t['layers'])} at {t['bias']:g}.",
        _forget_code,
    ),
    "qk_norm": Words(
        lambda t: f"QK-norm in {many(len(t['projections']), 'projection')}",
        lambda t: f"Normalise queries and keys ({some(list(t['projections']))}).",
        _qk_code,
    ),
    "residual_scale": Words(
        lambda t: f"residual branches × {plain(t['scale'], 2)}",
        lambda t: f"Scale the residual branches of {some(t['blocks'])} by {plain(t['scale'], 2)}.",
        _residual_code,
    ),
    "skip": Words(
        lambda t: f"skip connections around {many(len(t['blocks']), 'layer')}",
        lambda t: f"Add a skip connection around {some(t['blocks'])}.",
        _skip_code,
    ),
    "bypass": Words(
        lambda t: f"skip connection around {some([pair[0] for pair in t['pairs']])}",
        lambda t: f"Add a skip connection around {some([pair[0] for pair in t['pairs']])}.",
        _bypass_code,
    ),
    "way_around": Words(
        lambda t: f"new weights around {some([pair[0] for pair in t['pairs']])}",
        lambda t: f"Lead what {some([pair[0] for pair in t['pairs']])} takes around it, through weights of its own.",
        _way_code,
    ),
    "reattach": Words(
        lambda t: f"keep the graph in {_places(t)}",
        lambda t: f"Keep the graph in {_places(t)}: no `detach`, `.data` or `no_grad` there.",
        _attach_code,
    ),
    "level_samples": Words(
        lambda t: (
            f"samples beyond {plain(t['limit'])} at the usual size{', outputs scaled back' if t['restore'] else ''}"
        ),
        lambda t: (
            f"Scale samples whose root mean square is above {plain(t['limit'])} to the usual {plain(t['usual'])}"
            f"{', and what the model returns for them back' if t['restore'] else ''}."
        ),
        _level_code,
    ),
    "together": Words(
        lambda t: " and ".join(part.name for part in _parts(t)),
        lambda t: " ".join(part.advice for part in _parts(t)),
        lambda t: "\n".join(part.code for part in _parts(t)),
    ),
    "scale_outputs": Words(
        lambda t: f"outputs × {_range(t['factors'])}",
        lambda t: f"Scale what the model returns by {_range(t['factors'])}.",
        _outputs_code,
    ),
    "safe_math": Words(
        lambda t: f"safe {some(list(dict.fromkeys(each['operator'] for each in t['lines'])))} in {_places(t)}",
        lambda t: f"Keep what is computed in {_places(t)} finite: that is where NaN or Inf is born.",
        _safe_code,
    ),
    "activation": Words(
        lambda t: f"{' and '.join(sorted(set(t['modules'].values())))} for {many(len(t['modules']), 'activation')}",
        lambda t: f"Use {' and '.join(sorted(set(t['modules'].values())))} in {some(list(t['modules']))}.",
        _swap_code,
    ),
    "norm": Words(
        lambda t: f"norm after {many(len(t['layers']), 'layer')}",
        lambda t: f"Normalise the outputs of {some(t['layers'])} (LayerNorm without parameters).",
        _norm_code,
    ),
    "standardise": Words(
        lambda _: "standardise inputs",
        lambda t: (
            f"Standardise the inputs: their means reach {plain(max(map(abs, t['mean'])), 2)} and their deviations "
            f"{plain(max(t['std']), 2)}."
        ),
        _standard_code,
    ),
}
"""Kind → its words."""

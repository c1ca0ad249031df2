"""Each treatment does what its numbers say, heals its planted fault, and is proposed only where it makes sense."""

import copy
import math

import pytest
import torch
from sick_models import batches, mlp
from torch import nn
from torch.nn.utils import parametrizations

import gradient_flow as gf
import gradient_flow.cures.treatments
from gradient_flow.cures.arms import run_arm
from gradient_flow.cures.batches import KeptBatches
from gradient_flow.cures.patient import Patient
from gradient_flow.cures.protocol import examine, planned
from gradient_flow.cures.registry import do
from gradient_flow.cures.work import Work
from gradient_flow.diagnosis.treatment import WORDS, Treatment

STEPS = 16


def patient_of(model, optimizer=None, *, fresh=True, data=None) -> Patient:
    input_fn, loss_fn = data or batches()
    kept = KeptBatches(input_fn, loss_fn)
    kept.draw(model, 12, 0)
    optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=3e-3)
    patient = Patient(model, optimizer, kept, list(range(8)), list(range(8, 12)), fresh, 0, STEPS)
    work = Work(patient, math.inf)
    examine(work)
    return patient


def proposed(patient: Patient, kind: str) -> list[Treatment]:
    return [treatment for treatment in planned(patient) if treatment.kind == kind]


def losses(patient: Patient, treatment: Treatment) -> tuple[float, ...]:
    """Held-out loss without and with a treatment, after as many steps."""
    return tuple(run_arm(patient, each, [STEPS]).losses[STEPS] for each in (None, treatment))


def heals(model, kind, optimizer=None, data=None, factor=0.9, fresh=True) -> Treatment:
    patient = patient_of(model, optimizer, fresh=fresh, data=data)
    tried = [(losses(patient, treatment), treatment) for treatment in proposed(patient, kind)]
    (before, after), treatment = min(tried, key=lambda each: each[0][1])
    assert after < factor * before or (not math.isfinite(before) and math.isfinite(after)), (before, after)
    return treatment


def test_a_lower_rate_heals_divergence():
    model = mlp()
    treatment = heals(model, "learning_rate", torch.optim.SGD(model.parameters(), lr=30.0))
    assert treatment.settings["factor"] < 1


def test_a_higher_rate_heals_one_that_is_far_too_small():
    model = mlp()
    treatment = heals(model, "learning_rate", torch.optim.SGD(model.parameters(), lr=1e-7), factor=0.99)
    assert treatment.settings["factor"] > 100  # by the update ratio, not by a fixed factor


def test_clipping_heals_steps_that_are_far_too_long():
    model = mlp()
    with torch.no_grad():
        model[4].weight.mul_(300)
    heals(model, "clip", torch.optim.SGD(model.parameters(), lr=0.05))


def test_another_optimizer_heals_a_loss_that_is_scaled_down():
    model = mlp()
    input_fn, loss_fn = batches()
    heals(model, "optimizer", torch.optim.SGD(model.parameters(), lr=0.01), (input_fn, lambda y: 1e-6 * loss_fn(y)))


def test_a_smaller_eps_heals_gradients_below_it():
    model = mlp()
    input_fn, loss_fn = batches()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, eps=1e-4)
    treatment = heals(model, "eps", optimizer, (input_fn, lambda y: 1e-4 * loss_fn(y)))
    assert treatment.settings["eps"] < 1e-6


def test_no_decay_heals_weights_that_decay_as_fast_as_they_learn():
    model = mlp()
    heals(model, "weight_decay", torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=200.0))


def test_parameters_that_were_forgotten_are_added():
    model = mlp()
    with torch.no_grad():
        model[0].weight.mul_(0.01)
    optimizer = torch.optim.Adam(model[4].parameters(), lr=3e-3)
    treatment = heals(model, "add_parameters", optimizer, factor=0.97)
    assert treatment.settings["names"] == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_rescaling_by_data_gives_every_layer_unit_variance():
    """The oracle: after the treatment the outputs that the batch has are measured again."""
    model = mlp(depth=3)
    with torch.no_grad():
        model[0].weight.mul_(1e-3)
        model[2].weight.mul_(50)
    patient = patient_of(model)
    (treatment,) = proposed(patient, "rescale")[-1:]
    with patient.treated(treatment):
        x, stds = patient.batches.batch(patient.held_out[0]), []
        for module in model:
            x = module(x)
            stds.append(float(x.detach().std()))
    assert [stds[at] for at in (0, 2, 4)] == pytest.approx([1, 1, 1], rel=0.3)


def test_rescaling_heals_weights_that_are_far_too_small():
    model = mlp(depth=4)
    with torch.no_grad():
        for layer in (model[0], model[2], model[4]):
            layer.weight.mul_(0.02)
    heals(model, "rescale")


def test_initialisation_heals_equal_units():
    model = mlp()
    with torch.no_grad():
        for layer in (model[0], model[2], model[4]):
            layer.weight.fill_(0.1)
    heals(model, "reinitialise")


@pytest.mark.parametrize("kind", ["reset_biases", "revive", "reinitialise"])
def test_biases_at_zero_and_new_weights_heal_dead_units(kind):
    model = mlp()
    with torch.no_grad():
        model[2].bias.fill_(-30)
    heals(model, kind)


def test_an_activation_that_leaks_heals_units_that_are_just_below_zero():
    model = mlp()
    with torch.no_grad():
        model[0].bias.fill_(-3)
        model[2].bias.fill_(-1)
    heals(model, "activation", torch.optim.Adam(model.parameters(), lr=0.03), factor=0.97)


def test_revival_touches_dead_units_and_their_optimizer_rows_only():
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    (model(torch.randn(8, 8)) ** 2).mean().backward()
    optimizer.step()
    before = copy.deepcopy(model.state_dict())
    do(Treatment("revive", {"units": {"2": [0, 3]}}), model, optimizer)
    changed = (model[2].weight != before["2.weight"]).any(dim=1).nonzero().flatten().tolist()
    assert changed == [0, 3]
    assert model[2].bias[[0, 3]].tolist() == [0, 0]
    for moment in ("exp_avg", "exp_avg_sq"):
        rows = optimizer.state[model[2].weight][moment]
        assert not rows[[0, 3]].any()
        assert rows[[1, 2]].any() or moment == "exp_avg_sq"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items() if name[0] != "2")


def test_a_norm_heals_a_signal_that_vanishes():
    model = mlp(depth=6, act=nn.Tanh)
    with torch.no_grad():
        for layer in list(model)[:-1:2]:
            layer.weight.mul_(0.05)
    heals(model, "norm")


def test_activations_that_are_modules_are_swapped_and_the_last_is_left_alone():
    model = nn.Sequential(*mlp(depth=6, act=nn.Sigmoid), nn.Sigmoid())
    patient = patient_of(model)
    for treatment in proposed(patient, "activation"):
        assert "13" not in treatment.settings["modules"]
        assert set(treatment.settings["modules"]) == {"1", "3", "5", "7", "9", "11"}


def test_standardised_inputs_heal_raw_ones():
    heals(mlp(), "standardise", data=batches(scale=1000.0))


def test_standardising_makes_means_zero_and_deviations_one():
    x = torch.randn(400, 3) * torch.tensor([1.0, 50.0, 0.01]) + torch.tensor([0.0, 7.0, -3.0])
    model = nn.Identity()
    seen = nn.Sequential(model)
    settings = {"mean": x.mean(0).tolist(), "std": x.std(0, correction=0).tolist(), "dim": -1}
    do(Treatment("standardise", settings), seen, torch.optim.SGD([torch.zeros(1)], lr=1))
    out = seen(x)
    torch.testing.assert_close(out.mean(0), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(out.std(0, correction=0), torch.ones(3), atol=1e-4, rtol=0)
    assert not seen(torch.full((1, 3), math.nan)).any()  # what is missing becomes the mean


class Residual(nn.Module):
    def __init__(self, width: int, scale: float) -> None:
        super().__init__()
        self.inner, self.scale = nn.Linear(width, width), scale

    def forward(self, x):
        return x + self.scale * self.inner(x)


def test_residual_branches_are_scaled_exactly():
    torch.manual_seed(0)
    block, x = Residual(6, 10.0), torch.randn(4, 6)
    wanted = x + 0.25 * (block(x) - x)
    model = nn.Sequential(block)
    do(Treatment("residual_scale", {"blocks": ["0"], "scale": 0.25}), model, torch.optim.SGD(model.parameters(), lr=1))
    torch.testing.assert_close(model(x), wanted)


def test_scaled_branches_heal_a_residual_net_that_explodes():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), *[Residual(16, 8.0) for _ in range(6)], nn.Linear(16, 1))
    heals(model, "residual_scale")


class Last(nn.Module):
    def __init__(self, rnn: nn.Module) -> None:
        super().__init__()
        self.rnn, self.out = rnn, nn.Linear(12, 1)

    def forward(self, x):
        return self.out(self.rnn(x.unsqueeze(-1))[0][:, -1])


def test_recurrent_weights_are_scaled_to_a_radius_of_one():
    torch.manual_seed(0)
    model = Last(nn.RNN(1, 12, batch_first=True))
    with torch.no_grad():
        model.rnn.weight_hh_l0.mul_(20)
    patient = patient_of(model)
    treatments = proposed(patient, "scale_recurrent")
    factors = [t.settings["factors"]["rnn.weight_hh_l0"] for t in treatments]
    radius = float(torch.linalg.eigvals(model.rnn.weight_hh_l0.detach().double()).abs().max())
    assert any(factor * radius == pytest.approx(1.0, rel=1e-6) for factor in factors)


def test_forget_gates_are_opened():
    model = Last(nn.LSTM(1, 12, batch_first=True))
    do(Treatment("forget_gate", {"layers": ["rnn"], "bias": 1.0}), model, torch.optim.SGD(model.parameters(), lr=1))
    gate = (model.rnn.bias_ih_l0 + model.rnn.bias_hh_l0)[12:24]
    assert gate.tolist() == [1.0] * 12


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = 2, nn.Linear(8, 24), nn.Linear(8, 1)

    def forward(self, x):
        tokens = x.unsqueeze(1) * torch.eye(8)  # (batch, 8, 8)
        q, k, v = self.qkv(tokens).chunk(3, dim=-1)
        return self.out((torch.softmax(q @ k.transpose(1, 2), -1) @ v).mean(1))


def test_qk_norm_gives_queries_and_keys_of_each_head_size_one_and_leaves_values():
    torch.manual_seed(0)
    model = Attention()
    patient = patient_of(model)
    (treatment,) = proposed(patient, "qk_norm")
    assert treatment.settings["projections"] == {"qkv": [2, 3]}
    x = torch.randn(5, 8)
    before = model.qkv(x)
    with patient.treated(treatment):
        after = model.qkv(x)
    sizes = after[:, :16].unflatten(-1, (4, 4)).square().mean(-1).sqrt()
    torch.testing.assert_close(sizes, torch.ones_like(sizes), atol=1e-4, rtol=0)
    assert torch.equal(after[:, 16:], before[:, 16:])
    assert torch.equal(model.qkv(x), before)  # and the hook is gone


def test_a_bypass_adds_what_the_narrow_layer_takes():
    model, x = narrow(), torch.randn(4, 8)
    hidden = model[1](model[0](x))
    wanted = model[5](model[4](model[3](model[2](hidden))) + hidden)
    do(Treatment("bypass", {"pairs": [["2", "4"]]}), model, sgd(model, 1.0))
    torch.testing.assert_close(model(x), wanted)


def test_a_bypass_of_a_narrow_layer_is_proposed_and_heals():
    treatment = heals(narrow(), "bypass")
    assert treatment.settings["pairs"] == [["2", "4"]]


def test_new_weights_around_a_narrow_layer_are_trained_and_heal():
    """24 features to 1 to 6: no plain skip connection fits."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 24), nn.SiLU(), nn.Linear(24, 1), nn.SiLU(), nn.Linear(1, 6))
    generator, target = torch.Generator().manual_seed(0), torch.zeros(1)

    def input_fn():
        nonlocal target
        x = torch.randn(32, 8, generator=generator)
        target = x[:, :6]
        return x

    data = (input_fn, lambda output: (output - target).square().mean())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    treatment = heals(model, "way_around", optimizer, data, factor=0.9, fresh=False)
    assert treatment.settings == {"pairs": [["2", "4", 24, 6]]}
    assert not hasattr(model[4], "way_around")  # as it was
    x, plain = torch.randn(3, 8), model(torch.zeros(3, 8))
    before = model(x)
    do(treatment, model, optimizer)
    assert model[4].way_around.weight in optimizer.param_groups[-1]["params"]
    torch.testing.assert_close(model(x), before + model[4].way_around(model[1](model[0](x))))
    assert plain.shape == (3, 6)


def test_smaller_queries_and_keys_leave_values_alone():
    model = nn.MultiheadAttention(8, 2)
    before = model.in_proj_weight.detach().clone()
    do(Treatment("scale_queries", {"factors": {"in_proj_weight": 0.1}}), model, torch.optim.SGD(model.parameters(), 1))
    torch.testing.assert_close(model.in_proj_weight[:16], 0.1 * before[:16])
    assert torch.equal(model.in_proj_weight[16:], before[16:])


def test_warm_up_rises_to_the_rate_and_stays():
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.8)
    do(Treatment("warm_up", {"steps": 4}), nn.Module(), optimizer)
    rates = []
    for _ in range(6):
        parameter.grad = torch.ones(1)
        optimizer.step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])


def test_steps_with_nan_are_skipped():
    parameter = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    do(Treatment("skip_nonfinite"), nn.Module(), optimizer)
    for gradient in (math.nan, 1.0):
        parameter.grad = torch.full((1,), gradient)
        optimizer.step()
    assert parameter.item() == 0.0


def test_zeros_for_nan_leave_the_other_samples_what_they_were():
    """A norm by hand without eps: NaN for the sample that is all zeros, forward and back."""

    class Norm(nn.Module):
        def forward(self, x):
            return x / x.square().mean(-1, keepdim=True).sqrt()

    model = nn.Sequential(nn.Linear(8, 4, bias=False), Norm(), nn.Linear(4, 1))
    x = torch.randn(5, 8)
    wanted = torch.autograd.grad(model(x).sum(), model[0].weight)
    with_zero = torch.cat([x, torch.zeros(1, 8)])
    do(Treatment("zero_nonfinite"), model, sgd(model, 1.0))
    output = model(with_zero)
    assert output.isfinite().all()
    torch.testing.assert_close(torch.autograd.grad(output.sum(), model[0].weight), wanted)


# ---- where it would be wrong --------------------------------------------------------------------------------------


class Lora(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.lora_A, self.lora_B = base, nn.Linear(8, 2, bias=False), nn.Linear(2, 24, bias=False)

    def forward(self, x):
        return self.base(x) + self.lora_B(self.lora_A(x))


def tied():
    model = mlp(width=8)
    model[2].weight = model[0].weight
    return model


def parametrized():
    model = mlp()
    parametrizations.weight_norm(model[0])
    return model


def with_lora():
    model = mlp()
    model[0] = Lora(model[0])
    return model


@pytest.mark.parametrize(
    ("make", "wrong"), [(tied, {"0", "2"}), (parametrized, {"0"}), (with_lora, {"0.base", "0.lora_A", "0.lora_B"})]
)
def test_weights_that_are_not_plain_are_not_overwritten(make, wrong):
    patient = patient_of(make())
    for treatment in planned(patient):
        for key in ("factors", "layers", "units"):
            if treatment.kind in ("rescale", "reinitialise", "reset_biases", "revive"):
                assert not wrong & set(treatment.settings.get(key, ())), treatment


def test_nothing_is_overwritten_unless_the_weights_are_new():
    kinds = {treatment.kind for treatment in planned(patient_of(mlp(), fresh=False))}
    assert kinds.isdisjoint({"rescale", "reinitialise", "reset_biases", "forget_gate", "reinitialise_recurrent"})
    assert "learning_rate" in kinds


def test_rescaling_before_a_norm_is_not_tried():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 1))
    with torch.no_grad():
        model[0].weight.mul_(100)
    patient = patient_of(model)
    assert all("0" not in t.settings["factors"] for t in proposed(patient, "rescale"))
    assert not proposed(patient, "norm")


def test_inputs_that_are_standard_are_left_alone():
    assert not proposed(patient_of(mlp()), "standardise")


# ---- words --------------------------------------------------------------------------------------------------------


class Cut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 24), nn.Linear(24, 1)

    def forward(self, x):
        hidden = torch.tanh(self.body(x))
        return self.head(hidden.detach())


def narrow():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 24), nn.SiLU(), nn.Linear(24, 1), nn.SiLU(), nn.Linear(1, 24), nn.Linear(24, 1))


def residual():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 12), Residual(12, 1.0), Residual(12, 1.0), nn.Linear(12, 1))


def burnt():
    model = mlp()
    with torch.no_grad():
        model[0].bias[:12] = -100.0
    return model


def multihead():
    torch.manual_seed(0)
    return Heads()


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.out = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 1)

    def forward(self, x):
        tokens = x.unsqueeze(1) * torch.eye(8)
        return self.out(self.attention(tokens, tokens, tokens)[0].mean(1))


BYPASS = Treatment("bypass", {"pairs": [["2", "4"]]})
LOG = {"file": "loss.py", "line": 3, "text": "return p.log()", "operator": "log", "outside": True}
"""A line of the user's own file, which has no code but a comment."""
OWN_LINES = ("reattach", "safe_math")


def some_of_it(model):
    return torch.optim.Adam(model[0].parameters(), lr=3e-3, weight_decay=1.0, eps=1.0)


MADE = {
    "sigmoid": lambda: mlp(act=nn.Sigmoid),
    "lstm": lambda: Last(nn.LSTM(1, 12, batch_first=True)),
    "attention": Attention,
    "cut": Cut,
    "narrow": narrow,
    "residual": residual,
    "burnt": burnt,
    "multihead": multihead,
}


@pytest.fixture(scope="module")
def everything():
    """Everything that is planned for some sick models, with the names of the models."""
    found = []
    for name in ("sigmoid", "lstm", "attention", "cut"):
        torch.manual_seed(0)
        model = MADE[name]()
        optimizer = some_of_it(model) if name == "sigmoid" else sgd(model, 1e-9)
        patient = patient_of(model, optimizer, data=batches(scale=100.0 if name == "sigmoid" else 1.0))
        found += [(name, treatment) for treatment in planned(patient)]
    found += [
        ("narrow", BYPASS),
        ("narrow", Treatment("way_around", {"pairs": [["2", "5", 24, 1]]})),
        ("burnt", Treatment("reset_biases", {"layers": ["0"]})),
        ("burnt", Treatment("reinitialise", {"layers": ["0"], "how": "he"})),
        ("lstm", Treatment("scale_recurrent", {"factors": {"rnn.weight_hh_l0": 0.5}})),
        ("multihead", Treatment("scale_queries", {"factors": {"attention.in_proj_weight": 0.5}})),
        ("burnt", Treatment("revive", {"units": {"0": list(range(12))}})),
        ("burnt", Treatment("skip_nonfinite")),
        ("burnt", Treatment("zero_nonfinite")),
        ("burnt", Treatment("skip_spikes", {"norm": 1.0})),
        ("burnt", Treatment("scale_outputs", {"factors": {"0": 0.25}})),
        ("burnt", Treatment("level_samples", {"usual": 0.7, "limit": 0.9, "restore": False})),
        ("burnt", Treatment("level_samples", {"usual": 0.7, "limit": 0.9, "restore": True})),
        ("burnt", Treatment("safe_math", {"lines": [LOG]})),
        ("narrow", Treatment("together", {"parts": [BYPASS.to_dict(), {"kind": "clip", "settings": {"norm": 1e9}}]})),
        ("residual", Treatment("residual_scale", {"blocks": ["1", "2"], "scale": 0.71})),
        ("residual", Treatment("skip", {"blocks": ["1.inner"]})),
    ]
    return found


IN_THE_LOOP = ("clip", "skip_nonfinite", "skip_spikes")
"""Their lines stand between backward and step."""


def trained(model, optimizer, x, *, lines="", bad=False, after=lambda: None):
    """Three steps by hand; the second batch may hold a NaN."""
    for at in range(3):
        inputs = x if at != 1 or not bad else x.clone().fill_diagonal_(math.nan)
        optimizer.zero_grad()
        if lines.startswith("mean"):
            names = {"torch": torch, "inputs": inputs}
            exec(lines, names)
            inputs = names["inputs"]
        (model(inputs) * 1e3).square().mean().backward()
        if lines.startswith(("if all", "gradients")):
            exec(lines, {"torch": torch, "model": model, "optimizer": optimizer})
            continue
        if lines.startswith("torch.nn.utils.clip"):
            exec(lines, {"torch": torch, "model": model})
        optimizer.step()
        after()
    return [parameter.detach() for parameter in model.parameters()]


def test_code_does_the_same_as_the_deed(everything):
    """The oracle of `code` is `apply`: both treat a copy, then both are trained for some steps."""
    checked = set()
    for name, treatment in everything:
        compile(treatment.code, treatment.name, "exec")
        if treatment.kind in OWN_LINES:
            continue  # a line in the user's own file
        torch.manual_seed(0)
        model = MADE[name]()
        ours, theirs = copy.deepcopy(model), copy.deepcopy(model)
        rate = 1e-2 if treatment.kind == "clip" else 1e-9  # a norm of a few against one of 1e6
        forgotten = treatment.kind in ("add_parameters", "eps", "weight_decay")
        one, other = (some_of_it(m) if forgotten else sgd(m, rate) for m in (ours, theirs))
        torch.manual_seed(1)
        one = do(treatment, ours, one)
        torch.manual_seed(1)
        names = {"torch": torch, "model": theirs, "optimizer": other}
        loop = treatment.kind in (*IN_THE_LOOP, "standardise")
        if not loop:
            exec(treatment.code, names)
        other, schedule = names["optimizer"], names.get("schedule")
        assert [group["lr"] for group in one.param_groups] == pytest.approx(
            [group["lr"] * (treatment.settings["steps"] if schedule else 1) for group in other.param_groups]
        )
        x = torch.randn(6, 8)
        after = schedule.step if schedule else lambda: None
        bad = treatment.kind in ("skip_nonfinite", "zero_nonfinite", "standardise")
        mine = trained(ours, one, x, bad=bad)
        yours = trained(theirs, other, x, lines=treatment.code if loop else "", bad=bad, after=after)
        torch.testing.assert_close(yours, mine, rtol=5e-3, atol=1e-4, msg=treatment.code)  # four digits
        checked.add(treatment.kind)
    assert checked == set(WORDS) - set(OWN_LINES)


def sgd(model, rate):
    return torch.optim.SGD(model.parameters(), lr=rate)


def test_every_treatment_has_words_of_its_own(everything):
    for _, treatment in everything:
        assert treatment.kind in WORDS
        assert treatment.name
        assert treatment.advice.endswith(".")
    assert {treatment.kind for _, treatment in everything} == set(WORDS)


def test_users_register_treatments_of_their_own():
    def propose(patient):
        yield Treatment("freeze_bias", {"layer": "0"})

    @gf.register_treatment("freeze_bias", proposed_by=propose)
    def freeze(model, optimizer, layer):
        model.get_submodule(layer).bias.requires_grad_(False)

    try:
        assert proposed(patient_of(mlp()), "freeze_bias")
    finally:
        gf.unregister_treatment("freeze_bias")
    with pytest.raises(gf.InputError, match="`kind` must be that of a registered treatment"):
        gf.unregister_treatment("freeze_bias")
    with pytest.raises(gf.InputError, match="`proposed_by` must be a function"):
        gf.register_treatment("x", proposed_by=3)
    with pytest.raises(gf.InputError, match="`against` must name types of issue"):
        gf.register_treatment("x", proposed_by=propose, against="WEATHER")

import copy
import gc
import math
import pickle
import weakref
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import gradient_flow as gf
from gradient_flow import GradientGainMonitor

WIDTH = 8


def stack(depth=4, width=WIDTH):
    return nn.ModuleList([nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(depth)])


def through(blocks, x):
    for block in blocks:
        x = block(x)
    return x


def reference_norms(blocks, x, loss_of=lambda y: y.square().sum()):
    """Norms of the output gradients in fp64, from `autograd.grad` on retained outputs."""
    outputs = []
    for block in blocks:
        x = block(x)
        outputs.append(x)
    gradients = torch.autograd.grad(loss_of(x), outputs)
    return [gradient.double().norm().item() for gradient in gradients]


@pytest.fixture
def blocks():
    torch.manual_seed(0)
    return stack()


@pytest.fixture
def x():
    return torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(1))


# ---- what is measured ---------------------------------------------------------------------------------------------


def test_norms_and_gains_are_those_of_autograd(blocks, x):
    expected = reference_norms(blocks, x)
    with GradientGainMonitor(blocks) as monitor:
        through(blocks, x).square().sum().backward()
    assert monitor.norms() == pytest.approx(expected, rel=1e-6)
    assert monitor.gains() == pytest.approx([a / b for a, b in pairwise(expected)], rel=1e-6)
    logs = [math.log(a / b) for a, b in pairwise(expected)]
    assert monitor.log_gains() == pytest.approx(logs, rel=1e-5)


@pytest.mark.parametrize(("kind", "order"), [("l2", 2), ("l1", 1), ("linf", math.inf)])
def test_every_norm_comes_from_one_recording(blocks, x, kind, order):
    gradients = []
    with GradientGainMonitor(blocks) as monitor:
        y = through(blocks, x)
        y.register_hook(gradients.append)
        y.square().sum().backward()
    last = torch.linalg.vector_norm(gradients[0].double(), ord=order).item()
    assert monitor.norms(norm_type=kind)[-1] == pytest.approx(last, rel=1e-6)
    assert monitor.norms(norm_type="mean")[-1] == pytest.approx(gradients[0].double().abs().mean().item(), rel=1e-6)


def test_norm_type_of_the_constructor_is_the_default(blocks, x):
    with GradientGainMonitor(blocks, norm_type="l1") as monitor:
        through(blocks, x).sum().backward()
    assert monitor.norms() == monitor.norms("l1") != monitor.norms("l2")


@pytest.mark.parametrize("c", [0.25, 1.0, 1.5])
@pytest.mark.parametrize("kind", ["l2", "l1", "linf", "mean"])
def test_orthogonal_blocks_times_c_have_gain_c(c, kind):
    blocks = [nn.Linear(16, 16, bias=False, dtype=torch.float64) for _ in range(5)]
    for block in blocks:
        # A permutation keeps every norm, not only the Euclidean one.
        block.weight.data = c * torch.eye(16, dtype=torch.float64)[torch.randperm(16)]
    with GradientGainMonitor(blocks, norm_type=kind) as monitor:
        through(blocks, torch.randn(3, 16, dtype=torch.float64)).square().sum().backward()
    assert monitor.gains() == pytest.approx([c] * 4, rel=1e-12)
    depth = monitor.gain_over_depth()
    assert depth.slope.value == pytest.approx(math.log10(c), abs=1e-12)
    assert depth.slope.error == pytest.approx(0, abs=1e-9)
    assert depth.total == pytest.approx(4 * math.log10(c), abs=1e-12)


MEAN_FIELD = {
    # sqrt(chi) of wide networks: gain of the gradient norm per layer.
    "He ReLU": (nn.ReLU, math.sqrt(2.0), 1.0, 12),
    "default ReLU": (nn.ReLU, math.sqrt(1 / 3), 0.408, 12),
    "Xavier sigmoid": (nn.Sigmoid, 1.0, 0.236, 12),
    "tanh sigma_w = 3": (nn.Tanh, 3.0, 1.364, 16),
}


@pytest.mark.parametrize(("activation", "sigma", "expected", "depth"), MEAN_FIELD.values(), ids=MEAN_FIELD)
def test_mean_field_gains(activation, sigma, expected, depth):
    torch.manual_seed(0)
    width = 1024
    blocks = []
    for _ in range(depth):
        linear = nn.Linear(width, width)
        nn.init.normal_(linear.weight, std=sigma / math.sqrt(width))
        nn.init.zeros_(linear.bias)
        blocks.append(nn.Sequential(linear, activation()))
    with GradientGainMonitor(blocks) as monitor:
        y = through(blocks, torch.randn(64, width))
        y.backward(torch.randn_like(y))
    settled = monitor.log_gains()[3:]  # the first layers still carry the statistics of the input
    assert math.exp(sum(settled) / len(settled)) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("scale", [1e-6, 1e4])
def test_gains_do_not_depend_on_the_scale_of_the_loss(blocks, x, scale):
    gains = []
    for factor in (1.0, scale):
        with GradientGainMonitor(blocks) as monitor:
            (factor * through(blocks, x).square().sum()).backward()
        gains.append((monitor.gains(), monitor.gain_over_depth().slope))
    assert gains[0][0] == pytest.approx(gains[1][0], rel=1e-5)
    assert gains[0][1].value == pytest.approx(gains[1][1].value, abs=1e-6)


def test_the_per_sample_norm_does_not_change_with_the_batch_size(blocks, x):
    norms = {}
    for copies in (1, 7):
        for per_sample in (True, False):
            with GradientGainMonitor(blocks, per_sample=per_sample) as monitor:
                through(blocks, x.repeat(copies, 1)).square().sum().backward()
            norms[copies, per_sample] = monitor.norms()
    assert norms[1, True] == pytest.approx(norms[7, True], rel=1e-5)
    assert norms[1, False] == pytest.approx([n / math.sqrt(7) for n in norms[7, False]], rel=1e-5)


def test_the_per_sample_norm_is_the_mean_over_samples(blocks, x):
    gradients = []
    with GradientGainMonitor(blocks, per_sample=True) as monitor:
        y = through(blocks, x)
        y.register_hook(gradients.append)
        y.square().sum().backward()
    assert monitor.norms()[-1] == pytest.approx(gradients[0].double().norm(dim=1).mean().item(), rel=1e-6)


# ---- missing, vanishing, non-finite -------------------------------------------------------------------------------


class Scaled(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor


def test_a_gradient_that_vanishes_below_eps_gives_inf_and_counts_as_vanishing(x):
    blocks = [nn.Linear(WIDTH, WIDTH), Scaled(1.0), Scaled(0.0), Scaled(1.0)]
    with GradientGainMonitor(blocks) as monitor:
        through(blocks, x).sum().backward()
    assert monitor.norms()[:2] == [0.0, 0.0]
    assert monitor.gains() == [math.inf, 0.0, 1.0]
    assert monitor.log_gains() == [math.inf, -math.inf, 0.0]
    stats = monitor.summary_stats()
    assert (stats["num_vanishing"], stats["num_damping"], stats["num_healthy"]) == (1, 1, 1)
    assert stats["mean_gain"] == 0.5
    assert stats["mean_log_gain"] == 0.0


def test_lists_keep_their_lengths_with_blocks_that_get_no_gradient(blocks, x):
    unused = nn.Linear(WIDTH, WIDTH)
    blocks = [*blocks[:2], unused, *blocks[2:]]
    with GradientGainMonitor(blocks) as monitor:
        through(blocks[:2] + blocks[3:], x).sum().backward()
    assert len(monitor.norms()) == 5
    assert len(monitor.gains()) == len(monitor.log_gains()) == 4
    assert monitor.norms()[2] is None
    assert monitor.gains()[1] is monitor.gains()[2] is None
    assert monitor.summary_stats()["num_missing"] == 2
    assert "no gradient" in monitor.report()


def test_an_output_that_needs_no_grad_is_missing(blocks, x):
    frozen = blocks[0].requires_grad_(False)
    with GradientGainMonitor(blocks) as monitor:
        through(blocks, x).sum().backward()
    assert frozen is blocks[0]
    assert monitor.norms()[0] is None
    assert all(norm is not None for norm in monitor.norms()[1:])


def test_a_frozen_block_amid_trained_ones_still_passes_gradient(blocks, x):
    blocks[2].requires_grad_(False)
    with GradientGainMonitor(blocks) as monitor:
        through(blocks, x).sum().backward()
    assert None not in monitor.norms()


def test_all_frozen_gives_none_for_every_block(blocks, x):
    blocks.requires_grad_(False)
    head = nn.Linear(WIDTH, 1)
    with GradientGainMonitor(blocks) as monitor:
        head(through(blocks, x)).sum().backward()
    assert monitor.norms() == [None] * 4
    assert monitor.summary_stats()["num_missing"] == 3
    assert math.isnan(monitor.summary_stats()["mean_gain"])
    assert "without grad" in monitor.report()


def test_non_finite_gradients_are_named_and_in_no_mean(blocks, x):
    with GradientGainMonitor(blocks) as monitor:
        y = through(blocks[:3], x)
        y = blocks[3](y)
        (y.sum() * float("nan")).backward()
    assert all(math.isnan(norm) for norm in monitor.norms())
    assert monitor.summary_stats()["num_nonfinite"] == 3
    assert "[NON-FINITE]" in monitor.report()


# ---- outputs of many kinds ----------------------------------------------------------------------------------------


class Returning(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.linear, self.wrap = nn.Linear(WIDTH, WIDTH), wrap

    def forward(self, x):
        return self.wrap(self.linear(x))


WRAPPINGS = {
    "tuple": (lambda h: (h, None), lambda o: o[0]),
    "list": (lambda h: [h, h.detach()], lambda o: o[0]),
    "tuple, tensor not first": (lambda h: (None, h), lambda o: o[1]),
    "nested": (lambda h: ((h, h.detach()), 1), lambda o: o[0][0]),
    "last_hidden_state": (lambda h: {"logits": h.detach(), "last_hidden_state": h}, lambda o: o["last_hidden_state"]),
    "hidden_states": (lambda h: {"a": h.detach(), "hidden_states": h}, lambda o: o["hidden_states"]),
    "all hidden states": (lambda h: {"hidden_states": (h.detach(), h)}, lambda o: o["hidden_states"][-1]),
    "only tensor": (lambda h: {"out": h, "loss": None}, lambda o: o["out"]),
}


@pytest.mark.parametrize(("wrap", "unwrap"), WRAPPINGS.values(), ids=WRAPPINGS)
def test_the_main_tensor_of_any_output_is_found(wrap, unwrap, x):
    blocks = [Returning(wrap), Returning(wrap)]
    with GradientGainMonitor(blocks) as monitor:
        h = unwrap(blocks[0](x))
        unwrap(blocks[1](h)).sum().backward()
    assert monitor.norms()[1] == pytest.approx(math.sqrt(5 * WIDTH))
    assert monitor.norms()[0] > 0


def test_hugging_face_outputs():
    from transformers.modeling_outputs import BaseModelOutput

    blocks = [Returning(lambda h: BaseModelOutput(last_hidden_state=h)) for _ in range(2)]
    with GradientGainMonitor(blocks) as monitor:
        h = blocks[0](torch.randn(5, WIDTH)).last_hidden_state
        blocks[1](h).last_hidden_state.sum().backward()
    assert None not in monitor.norms()


@pytest.mark.parametrize("wrap", [lambda h: {"a": h, "b": h + 1}, lambda h: ("text", 3), lambda h: 5])
def test_an_output_without_a_main_tensor_is_reported_and_stops_nothing(wrap, x):
    blocks = [nn.Linear(WIDTH, WIDTH), Returning(wrap)]
    with GradientGainMonitor(blocks) as monitor:
        blocks[1](blocks[0](x))
        blocks[0](x).sum().backward()
    assert monitor.norms()[1] is None
    assert "block 1 returned" in monitor.report()


@pytest.mark.parametrize("container", [list, tuple, nn.ModuleList, lambda b: nn.Sequential(*b), iter])
def test_containers_of_blocks(blocks, x, container):
    with GradientGainMonitor(container(list(blocks))) as monitor:
        through(blocks, x).sum().backward()
    assert len(monitor.norms()) == 4


# ---- ways to train ------------------------------------------------------------------------------------------------


def test_all_calls_of_a_block_in_one_forward_combine(x):
    block = nn.Linear(WIDTH, WIDTH)
    gradients = []
    with GradientGainMonitor([block]) as monitor:
        h = x
        for _ in range(3):
            h = block(h)
            h.register_hook(gradients.append)
        h.square().sum().backward()
    combined = torch.cat([g.flatten() for g in gradients]).double().norm().item()
    assert monitor.norms() == [pytest.approx(combined, rel=1e-6)]


def test_several_forwards_and_one_backward_combine(blocks, x):
    with GradientGainMonitor(blocks) as monitor:
        (through(blocks, x).sum() + through(blocks, 2 * x).sum()).backward()
    assert monitor.norms()[-1] == pytest.approx(math.sqrt(2 * 5 * WIDTH))


def test_blocks_that_share_a_submodule(x):
    shared = nn.Linear(WIDTH, WIDTH)
    blocks = [nn.Sequential(shared, nn.Tanh()), nn.Sequential(shared, nn.Tanh())]
    expected = reference_norms(blocks, x)
    with GradientGainMonitor(blocks) as monitor:
        through(blocks, x).square().sum().backward()
    assert monitor.norms() == pytest.approx(expected, rel=1e-6)


def test_an_in_place_operation_after_a_block_does_not_hide_its_output(x):
    blocks = [nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)]
    with GradientGainMonitor(blocks) as monitor:
        h = blocks[0](x)
        h.mul_(3.0)
        blocks[1](h).sum().backward()
    expected = 3 * (torch.ones(5, WIDTH) @ blocks[1].weight).double().norm().item()
    assert monitor.norms()[0] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("whole", [True, False], ids=["all blocks in one", "block by block"])
def test_checkpointing_gives_the_plain_numbers(blocks, x, use_reentrant, strict, whole):
    x.requires_grad_()
    expected = reference_norms(blocks, x)
    with GradientGainMonitor(blocks, strict_single_backward=strict) as monitor:
        for _ in range(2):
            h = x
            if whole:
                h = checkpoint(lambda h: through(blocks, h), h, use_reentrant=use_reentrant)
            else:
                for block in blocks:
                    h = checkpoint(block, h, use_reentrant=use_reentrant)
            h.square().sum().backward()
            assert monitor.norms() == pytest.approx(expected, rel=1e-6)
            monitor.reset()


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")  # the inner one runs under no_grad
def test_nested_reentrant_checkpoints_are_one_pass(blocks, x):
    x.requires_grad_()
    expected = reference_norms(blocks, x)

    def inner(h):
        for block in blocks[:2]:
            h = checkpoint(block, h, use_reentrant=True)
        return h

    with GradientGainMonitor(blocks) as monitor:
        h = checkpoint(inner, x, use_reentrant=True)
        for block in blocks[2:]:
            h = checkpoint(block, h, use_reentrant=True)
        h.square().sum().backward()
    assert monitor.norms() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("how", ["number", "scaler as loss_scale", "scaler"])
def test_loss_scaling_is_divided_out(blocks, x, how):
    expected = reference_norms(blocks, x)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    settings = {
        "number": {"loss_scale": 4096.0},
        "scaler as loss_scale": {"loss_scale": scaler},
        "scaler": {"scaler": scaler},
    }
    with GradientGainMonitor(blocks, **settings[how]) as monitor:
        scaler.scale(through(blocks, x).square().sum()).backward()
    assert monitor.norms() == pytest.approx(expected, rel=1e-5)


def test_autocast_and_mixed_dtypes(x):
    blocks = [nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, dtype=torch.float64), nn.Linear(WIDTH, WIDTH)]
    with GradientGainMonitor(blocks) as monitor, torch.autocast("cpu", dtype=torch.bfloat16):
        h = blocks[0](x)
        h = blocks[1](h.double())
        blocks[2](h.float()).float().sum().backward()
    assert all(norm is not None and norm > 0 for norm in monitor.norms())


def test_accumulation_sees_each_micro_batch(blocks, x):
    monitor = GradientGainMonitor(blocks, strict_single_backward=False)
    seen = []
    for micro_batch in x.split(1):
        (through(blocks, micro_batch).square().sum() / 5).backward()
        seen.append(monitor.norms())
        monitor.reset()
    monitor.close()
    expected = [reference_norms(blocks, m, lambda y: y.square().sum() / 5) for m in x.split(1)]
    for got, wanted in zip(seen, expected, strict=True):
        assert got == pytest.approx(wanted, rel=1e-5)


def test_permissive_mode_keeps_the_last_pass_alone(blocks, x):
    with GradientGainMonitor(blocks, strict_single_backward=False) as monitor:
        through(blocks, x).sum().backward()
        through(blocks[2:], x).sum().backward()
    assert monitor.norms()[0] is None  # no mixture of two passes
    assert monitor.norms()[3] is not None


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # raised inside torch.compile
def test_compiled_blocks(x):
    plain = stack(2)
    expected = reference_norms(plain, x)
    compiled = [torch.compile(block, backend="aot_eager") for block in plain]
    with GradientGainMonitor(compiled) as monitor:
        through(compiled, x).square().sum().backward()
    assert monitor.norms() == pytest.approx(expected, rel=1e-5)


def test_blocks_of_a_compiled_model(x):
    model = nn.Sequential(*stack(2))
    expected = reference_norms(model, x)
    compiled = torch.compile(model, backend="aot_eager")
    with GradientGainMonitor(model) as monitor:
        compiled(x).square().sum().backward()
    assert monitor.norms() == pytest.approx(expected, rel=1e-5)


def test_retain_graph_is_a_second_backward(blocks, x):
    with GradientGainMonitor(blocks) as monitor:
        loss = through(blocks, x).sum()
        loss.backward(retain_graph=True)
        first = monitor.norms()
        with pytest.raises(gf.MonitorStateError, match=r"reset\(\).*strict_single_backward=False"):
            loss.backward(retain_graph=True)
        assert monitor.norms() == first
        monitor.reset()
        loss.backward()
        assert monitor.norms() == first


def test_double_backward_measures_the_last_pass(blocks, x):
    x.requires_grad_()
    with GradientGainMonitor(blocks, strict_single_backward=False) as monitor:
        loss = through(blocks, x).square().sum()
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        plain = monitor.norms()
        (loss + slope.square().sum()).backward()
        with_penalty = monitor.norms()
    assert plain == pytest.approx(reference_norms(blocks, x), rel=1e-5)
    expected = reference_norms(
        blocks,
        x,
        lambda y: y.square().sum() + torch.autograd.grad(y.square().sum(), x, create_graph=True)[0].square().sum(),
    )
    assert with_penalty == pytest.approx(expected, rel=1e-5)


def test_a_pass_that_failed_does_not_spoil_the_next(blocks, x):
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, h):
            return h.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise ZeroDivisionError

    expected = reference_norms(blocks, x)
    with GradientGainMonitor(blocks, strict_single_backward=False) as monitor:
        h = Fails.apply(through(blocks[:2], x))
        with pytest.raises(ZeroDivisionError):
            through(blocks[2:], h).sum().backward()
        through(blocks, x).square().sum().backward()
    assert monitor.norms() == pytest.approx(expected, rel=1e-6)


# ---- do no harm ---------------------------------------------------------------------------------------------------


def test_weights_gradients_and_random_state_are_bit_identical():
    results = []
    for watched in (False, True):
        torch.manual_seed(3)
        blocks = nn.ModuleList([nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3)) for _ in range(3)])
        optimizer = torch.optim.AdamW(blocks.parameters(), lr=0.1)
        monitor = GradientGainMonitor(blocks, strict_single_backward=False) if watched else None
        for _ in range(5):
            optimizer.zero_grad()
            through(blocks, torch.randn(4, WIDTH)).square().sum().backward()
            if monitor:
                monitor.summary_stats()
            optimizer.step()
        state = [p.detach().clone() for p in blocks.parameters()] + [p.grad.clone() for p in blocks.parameters()]
        results.append([*state, torch.get_rng_state()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def hooks_of(blocks):
    return sum(len(block._forward_hooks) + len(block._backward_hooks) for block in blocks)


def test_no_hook_survives_close_pause_or_an_exception(blocks, x):
    with GradientGainMonitor(blocks) as monitor:
        y = through(blocks, x)
        assert hooks_of(blocks) == 4
        monitor.pause()
        assert hooks_of(blocks) == 0
        monitor.resume()
        assert hooks_of(blocks) == 4
        assert y._backward_hooks is None or len(y._backward_hooks) == 0
    assert hooks_of(blocks) == 0
    with pytest.raises(ZeroDivisionError), GradientGainMonitor(blocks):
        raise ZeroDivisionError
    assert hooks_of(blocks) == 0


def test_a_backward_outside_the_with_is_not_recorded_and_not_disturbed(blocks, x):
    with GradientGainMonitor(blocks) as monitor:
        loss = through(blocks, x).sum()
    loss.backward()
    assert blocks[0][0].weight.grad is not None
    assert monitor.norms() == [None] * 4
    assert "inside the `with`" in " ".join(monitor.report().split())


def test_only_a_row_is_kept_of_a_gradient(blocks, x):
    kept = []

    def remember(gradient):
        kept.append(weakref.ref(gradient))

    with GradientGainMonitor(blocks) as monitor:
        y = through(blocks, x)
        y.register_hook(remember)
        y.square().sum().backward()
        del y
        gc.collect()
        assert kept[0]() is None
        assert monitor.norms()[-1] > 0


def test_forwards_without_backward_do_not_pile_up(blocks, x):
    with GradientGainMonitor(blocks) as monitor:
        for _ in range(200):
            through(blocks, x)
        assert len(monitor._outputs._tensor_handles) <= 12 * len(blocks)


def test_copies_of_the_blocks_take_no_working_hook_along(blocks, x):
    with GradientGainMonitor(blocks) as monitor:
        copied, loaded = copy.deepcopy(blocks), pickle.loads(pickle.dumps(blocks))
        through(blocks, x).sum().backward()
        norms = monitor.norms()
        for other in (copied, loaded):
            (100 * through(other, x).sum()).backward()
        assert monitor.norms() == norms
    for other in (copied, loaded):
        through(other, x).sum().backward()


# ---- states and errors --------------------------------------------------------------------------------------------


def no_forward(blocks, x, monitor):
    pass


def no_backward(blocks, x, monitor):
    through(blocks, x)


def backward_of_an_earlier_forward(blocks, x, monitor):
    monitor.earlier.backward()


def reset_after_a_backward(blocks, x, monitor):
    through(blocks, x).sum().backward()
    monitor.reset()


def closed_before_the_backward(blocks, x, monitor):
    loss = through(blocks, x).sum()
    monitor.close()
    loss.backward()


@pytest.mark.parametrize(
    ("use", "what_to_do"),
    [
        (no_forward, "Create the monitor before the forward pass"),
        (no_backward, r"Call backward() on a loss"),
        (backward_of_an_earlier_forward, "Create the monitor before the forward pass"),
        (reset_after_a_backward, "no block has run since the monitor was attached (or reset)"),
        (closed_before_the_backward, "Call backward() inside the `with` block"),
    ],
)
def test_without_a_backward_every_list_holds_none_and_the_report_says_what_to_do(blocks, x, use, what_to_do, tmp_path):
    earlier = through(blocks, x).sum()
    with GradientGainMonitor(blocks) as monitor:
        monitor.earlier = earlier
        use(blocks, x, monitor)
        assert monitor.norms() == [None] * 4
        assert monitor.gains() == monitor.log_gains() == [None] * 3
        assert monitor.summary_stats()["num_missing"] == 3
        assert math.isnan(monitor.gain_over_depth().total)
        report = " ".join(monitor.report().split())
        assert "Block 0: no gradient" in report
        assert what_to_do in report
        assert monitor.table.missing == ("0", "1", "2", "3")
        assert len(monitor.table) == 0
        monitor.plot(tmp_path / "gains.png")
        assert "nan" in str(GradientGainMonitor.compare({"this": monitor}))


def test_a_monitor_read_too_early_records_the_next_backward(blocks, x):
    with GradientGainMonitor(blocks) as monitor:
        monitor.norms()
        through(blocks, x).sum().backward()
        assert None not in monitor.norms()


def test_records_can_be_read_after_close_but_nothing_else_done(blocks, x):
    with GradientGainMonitor(blocks) as monitor:
        through(blocks, x).sum().backward()
    assert len(monitor.norms()) == 4
    for use in (monitor.reset, monitor.pause, monitor.resume, monitor.__enter__):
        with pytest.raises(gf.MonitorStateError, match=r"after close\(\).*Create a new"):
            use()
    monitor.close()


LINEAR = nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "`blocks` is empty"),
        (([LINEAR, "x"],), r"`blocks\[1\]` must be a module, got str"),
        ((LINEAR,), "got a single Linear.*from_model"),
        ((None,), "`blocks` must be.*NoneType"),
        (([LINEAR, nn.ReLU(), LINEAR],), r"`blocks\[2\]` is the same module as `blocks\[0\]`"),
        (([LINEAR], "l3"), "`norm_type` must be one of l2, l1, linf, mean; got 'l3'"),
        (([LINEAR], "l2", True, -1.0), "`eps` must be.*-1.0"),
        (([LINEAR], "l2", True, float("nan")), "`eps` must be.*nan"),
    ],
)
def test_bad_arguments_are_refused_by_name(arguments, message):
    with pytest.raises(gf.InputError, match=message):
        GradientGainMonitor(*arguments)
    assert not LINEAR._forward_hooks


@pytest.mark.parametrize("bad", [0, -1.0, "big", True])
def test_a_bad_loss_scale_is_refused(bad):
    with pytest.raises(gf.InputError, match="`loss_scale`"):
        GradientGainMonitor([LINEAR], loss_scale=bad)


# ---- the report ---------------------------------------------------------------------------------------------------


def test_the_lines_of_the_report_are_those_of_the_document():
    blocks = [Scaled(1.0), Scaled(2.5), Scaled(0.25), Scaled(1.0)]
    x = torch.ones(4, requires_grad=True)
    with GradientGainMonitor(blocks) as monitor:
        through(blocks, x).sum().backward()
    lines = monitor.report().splitlines()
    assert "Gradient Gains (ratio of consecutive norms):" in lines
    assert "  Transition  0 to  1: gamma=2.5000, log_gamma=0.9163 [AMPLIFYING]" in lines
    assert "  Transition  1 to  2: gamma=0.2500, log_gamma=-1.3863 [DAMPING]" in lines
    assert "  Transition  2 to  3: gamma=1.0000, log_gamma=0.0000 [Healthy]" in lines
    assert "Summary Statistics:" in lines
    assert "  Mean gain: 1.2500" in lines
    assert "  Max gain: 2.5000" in lines
    assert "  Healthy (0.5 <= gamma <= 2.0): 1" in lines
    assert "  Damping (gamma < 0.5): 1" in lines
    assert "  Amplifying (gamma > 2.0): 1" in lines
    assert "heuristic" in monitor.report()
    assert max(map(len, lines)) <= 80


def test_the_summary_has_the_documented_keys(blocks, x):
    with GradientGainMonitor(blocks) as monitor:
        through(blocks, x).sum().backward()
    documented = {"mean_gain", "min_gain", "max_gain", "mean_log_gain", "num_amplifying", "num_damping"}
    documented |= {"num_healthy", "num_vanishing", "num_missing"}
    assert documented <= monitor.summary_stats().keys()


# ---- finding, comparing, drawing ----------------------------------------------------------------------------------


class Model(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.embed = nn.Linear(WIDTH, WIDTH)
        self.short = nn.ModuleList([nn.Tanh(), nn.Tanh()])
        self.layers = stack(depth)
        self.head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))

    def forward(self, x):
        return self.head(through(self.layers, self.embed(x)))


def test_from_model_takes_the_longest_list_of_one_type_and_says_so(x):
    model = Model(5)
    with GradientGainMonitor.from_model(model, norm_type="l1") as monitor:
        model(x).sum().backward()
    assert monitor.source == "layers: 5 x Sequential"
    assert monitor.names[0] == "layers.0"
    assert "layers: 5 x Sequential" in monitor.report()
    assert monitor.norm_type == "l1"


def test_from_model_falls_back_to_the_children(x):
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
    with GradientGainMonitor.from_model(model) as monitor:
        model(x).sum().backward()
    assert "children" in monitor.source
    assert len(monitor.norms()) == 3
    with pytest.raises(gf.InputError, match="no children"):
        GradientGainMonitor.from_model(nn.ReLU())


def monitored(depth, factor):
    blocks = [Scaled(factor) for _ in range(depth)]
    with GradientGainMonitor(blocks) as monitor:
        through(blocks, torch.ones(4, requires_grad=True)).sum().backward()
    return monitor


def test_compare_is_a_table_and_a_figure(tmp_path):
    comparison = GradientGainMonitor.compare({"level": monitored(5, 1.0), "damped": monitored(9, 0.1)})
    text = str(comparison)
    assert "-1.000 ± 0.000" in text
    assert "-8.00" in text
    assert max(map(len, text.splitlines())) <= 100
    assert comparison.gain_over_depth()["level"].total == 0
    figure = comparison.plot(tmp_path / "compare.png")
    assert (tmp_path / "compare.png").stat().st_size > 5000
    lines = figure.axes[0].get_lines()
    assert [line.get_label() for line in lines] == ["level", "damped"]
    assert lines[1].get_ydata()[0] == pytest.approx(2e-8)


def test_compare_refuses_what_cannot_be_compared():
    with pytest.raises(gf.InputError, match="monitors"):
        GradientGainMonitor.compare({})
    with pytest.raises(gf.InputError, match="monitors"):
        GradientGainMonitor.compare({"a": 1})
    other = monitored(3, 1.0)
    other.norm_type = "l1"
    with pytest.raises(gf.InputError, match="different norms"):
        GradientGainMonitor.compare({"a": monitored(3, 1.0), "b": other})


def test_the_plot_survives_gaps(blocks, x, tmp_path):
    blocks[0].requires_grad_(False)
    with GradientGainMonitor(blocks) as monitor:
        through(blocks, x).sum().backward()
    monitor.plot(tmp_path / "gaps.png")
    assert (tmp_path / "gaps.png").exists()


def test_the_table_holds_all_statistics_of_the_output_gradients(blocks, x):
    with GradientGainMonitor(blocks) as monitor:
        through(blocks, x).sum().backward()
    assert monitor.table["3"].norm == monitor.norms()[3]
    assert monitor.table["3"].mean_abs == 1.0
    assert math.isnan(monitor.table["3"].mean)  # not measured


def test_nothing_is_hooked_where_watching_is_switched_off(monkeypatch):
    monkeypatch.setenv("GRADIENT_FLOW_DISABLE", "1")
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    with gf.GradientGainMonitor(list(model)) as monitor:
        assert not any(module._forward_hooks for module in model.modules())
        model(torch.ones(1, 2)).sum().backward()
        assert monitor.norms() == [None, None]

"""Attention is seen however a model computes it, agrees with its own weights, and leaves everything as it was."""

import copy
import math
import pickle
import weakref
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from attention_models import Attention, Block, Gpt, eager, entropy_oracle, tiny_hugging_face
from gradient_flow.errors import GradientFlowWarning, MonitorStateError
from gradient_flow.probes.attention.row import AttentionRow
from gradient_flow.probes.attention.sums import attention_sums
from gradient_flow.probes.attention.tap import AttentionTap


class Seen:
    """What a tap hands on: reduced rows by layer, and token states in order."""

    def __init__(self):
        self.rows, self.blocks, self.states = {}, {}, []

    def keep(self, layer, sums):
        self.rows.setdefault(layer.name, []).append(AttentionRow.from_flat(sums.flat().tolist(), len(sums.peaks)))
        self.blocks[layer.name] = layer.block

    def tap(self, model):
        def tokens(state):
            self.states.append((state.block, state.after, state.chained, tuple(state.tokens.shape), state.tokens_at))

        return AttentionTap(model, reduce=attention_sums, keep=self.keep, tokens=tokens)

    @property
    def entropies(self):
        assert all(len(rows) == 1 for rows in self.rows.values())
        return {name: list(rows[0].entropy) for name, rows in self.rows.items()}


def watch(model, *args, **kwargs):
    seen = Seen()
    with seen.tap(model):
        output = model(*args, **kwargs)
    return seen, output


def hooks_of(model):
    return [h for m in model.modules() for h in (*m._forward_hooks.values(), *m._forward_pre_hooks.values())]


MASKS = {
    "none": {},
    "bool": {"attn_mask": torch.ones(6, 6, dtype=torch.bool).triu(1)},
    "float": {"attn_mask": torch.zeros(6, 6).masked_fill(torch.ones(6, 6).triu(1) > 0, -math.inf)},
    "padding": {"key_padding_mask": torch.tensor([[False] * 6, [False] * 3 + [True] * 3])},
    "hint": {"attn_mask": nn.Transformer.generate_square_subsequent_mask(6), "is_causal": True},
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_multihead_attention_agrees_with_its_own_weights(mask, need_weights, batch_first, training):
    torch.manual_seed(0)
    model = nn.MultiheadAttention(16, 4, batch_first=batch_first).train(training)
    x = torch.randn(2, 6, 16) * 2
    given = x if batch_first else x.transpose(0, 1)
    options = MASKS[mask]
    weights = model(given, given, given, need_weights=True, average_attn_weights=False, **options)[1]
    seen, _ = watch(model, given, given, given, need_weights=need_weights, **options)
    assert seen.entropies["model"] == pytest.approx(entropy_oracle(weights, weights > 0), rel=1e-4)
    assert seen.states[0] == ("model", False, False, tuple(given.shape), 1 if batch_first else 0)


def test_multihead_attention_without_batch_with_other_keys_and_with_added_keys():
    torch.manual_seed(0)
    model = nn.MultiheadAttention(16, 4)
    x = torch.randn(6, 16)
    weights = model(x, x, x, average_attn_weights=False)[1]
    assert watch(model, x, x, x)[0].entropies["model"] == pytest.approx(entropy_oracle(weights[None]), rel=1e-4)
    model = nn.MultiheadAttention(16, 2, kdim=8, vdim=5, add_bias_kv=True, add_zero_attn=True)
    q, k, v = torch.randn(4, 3, 16), torch.randn(7, 3, 8), torch.randn(7, 3, 5)
    weights = model(q, k, v, average_attn_weights=False)[1]
    for need in (True, False):
        seen, _ = watch(model, q, k, v, need_weights=need)
        assert seen.entropies["model"] == pytest.approx(entropy_oracle(weights), rel=1e-4)
        assert weights.shape[-1] == 9  # the two added keys count


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("mode", ["train", "eval", "no_grad", "inference"])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_transformer_encoder_is_seen_in_every_mode(norm_first, mode, padded):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 3).train(mode == "train")
    x = torch.randn(2, 6, 16)
    padding = torch.tensor([[False] * 6, [False] * 3 + [True] * 3]) if padded else None
    contexts = {"no_grad": torch.no_grad, "inference": torch.inference_mode}
    with contexts.get(mode, torch.enable_grad)():
        seen, _ = watch(model, x, src_key_padding_mask=padding)
    assert list(seen.rows) == [f"layers.{i}.self_attn" for i in range(3)]
    assert [seen.blocks[name] for name in seen.rows] == [f"layers.{i}" for i in range(3)]
    hidden = model.layers[0].norm1(x) if norm_first else x
    attention = model.layers[0].self_attn
    weights = attention(hidden, hidden, hidden, key_padding_mask=padding, average_attn_weights=False)[1]
    assert seen.entropies["layers.0.self_attn"] == pytest.approx(entropy_oracle(weights, weights > 0), rel=1e-4)
    assert [(block, after, chained) for block, after, chained, *_ in seen.states] == [
        *(("layers.0", False, False), ("layers.0", True, False)),
        *(("layers.1", False, True), ("layers.1", True, False)),
        *(("layers.2", False, True), ("layers.2", True, False)),
    ]


def test_decoder_layers_have_self_and_cross_attention():
    torch.manual_seed(0)
    model = nn.Transformer(16, 4, 2, 2, 32, batch_first=True)
    seen, _ = watch(model, torch.randn(2, 5, 16), torch.randn(2, 7, 16))
    encoder = [f"encoder.layers.{i}.self_attn" for i in range(2)]
    decoder = [f"decoder.layers.{i}.{name}" for i in range(2) for name in ("self_attn", "multihead_attn")]
    assert list(seen.rows) == encoder + decoder
    assert seen.blocks["decoder.layers.1.multihead_attn"] == "decoder.layers.1"


def test_scaled_dot_product_attention_with_masks_scale_and_grouped_heads():
    torch.manual_seed(0)
    mask = torch.rand(6, 6) < 0.7
    mask.fill_diagonal_(True)
    for options in ({}, {"attn_mask": mask}, {"is_causal": True}, {"scale": 2.0}, {"dropout_p": 0.5}):
        model = Attention(how=partial(F.scaled_dot_product_attention, **options))
        x = torch.randn(2, 6, 16)
        q, k, _ = model.qkv(x).view(2, 6, 3, 4, 4).permute(2, 0, 3, 1, 4)
        allowed = options.get("attn_mask", torch.ones(6, 6, dtype=torch.bool))
        allowed = allowed.tril() if "is_causal" in options else allowed
        scores = q @ k.mT * options.get("scale", 0.5)
        oracle = entropy_oracle(scores.masked_fill(~allowed, -math.inf).softmax(-1), allowed)
        assert watch(model, x)[0].entropies["model"] == pytest.approx(oracle, rel=1e-4)


@pytest.mark.parametrize("enable", [True, False])
def test_grouped_heads_are_counted_as_heads(enable):
    class Grouped(nn.Module):
        def forward(self, q, k):
            if not enable:
                k = k.repeat_interleave(3, 1)
            return F.scaled_dot_product_attention(q, k, k, **({"enable_gqa": True} if enable else {}))

    torch.manual_seed(0)
    q, k = torch.randn(2, 6, 5, 8), torch.randn(2, 2, 5, 8)
    weights = (q @ k.repeat_interleave(3, 1).mT / math.sqrt(8)).softmax(-1)
    assert watch(Grouped(), q, k)[0].entropies["model"] == pytest.approx(entropy_oracle(weights), rel=1e-4)


EAGER = [
    {"product": product, "softmax": softmax, "three_dimensions": product in ("bmm", "baddbmm")}
    for product in ("@", "matmul", "bmm", "baddbmm", "einsum")
    for softmax in ("method", "functional", "torch")
]


@pytest.mark.parametrize("options", EAGER, ids=lambda options: "-".join(map(str, options.values())))
@pytest.mark.parametrize("mask", [None, "bool", "float"])
@pytest.mark.parametrize("grad", [True, False])
def test_attention_written_out_agrees_with_the_fused_function(options, mask, grad):
    torch.manual_seed(0)
    allowed = torch.ones(6, 6, dtype=torch.bool).tril()
    mask = {None: None, "bool": allowed, "float": torch.zeros(6, 6).masked_fill(~allowed, -math.inf)}[mask]
    fused = nn.Sequential(*[Attention(how=partial(F.scaled_dot_product_attention, attn_mask=mask)) for _ in range(2)])
    written = copy.deepcopy(fused)
    for attention in written:
        attention.how = partial(eager, mask=mask, dropout=0.3, **options)
    x = torch.randn(2, 6, 16)
    with torch.set_grad_enabled(grad):
        expected, seen = watch(fused, x)[0], watch(written[:1], x)[0]
        assert list(watch(written, x)[0].rows) == ["0", "1"]
    assert seen.entropies["0"] == pytest.approx(expected.entropies["0"], rel=1e-4)


def test_a_sink_next_to_the_scores_is_seen():
    def with_sink(q, k, v):
        scores = torch.cat([q @ k.mT, torch.zeros(*q.shape[:-1], 1)], dim=-1)
        return scores.softmax(-1)[..., :-1] @ v

    assert len(watch(Attention(how=with_sink), torch.randn(2, 6, 16))[0].entropies["model"]) == 4


class Classifier(nn.Module):
    def forward(self, x):
        return F.softmax(F.linear(x, torch.ones(5, 8)), dim=-1)


class Router(nn.Module):
    """Mixture of experts: a softmax over experts, and a product with what they give."""

    def __init__(self, how):
        super().__init__()
        self.gate, self.how = nn.Parameter(torch.randn(8, 4)), how
        self.experts = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])

    def forward(self, x):
        shares = (x @ self.gate).softmax(-1)
        given = torch.stack([expert(x) for expert in self.experts], dim=-2)
        if self.how == "einsum":
            return torch.einsum("bte,bted->btd", shares, given)
        return (shares.unsqueeze(-2) @ given).squeeze(-2)


class SoftEmbedding(nn.Module):
    """A distribution over a vocabulary turned into a vector."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(9, 8))

    def forward(self, x):
        return (x @ self.embedding.T).softmax(-1) @ self.embedding


class LinearAttention(nn.Module):
    """Softmax over features and over tokens, no attention matrix."""

    def forward(self, x):
        return x.softmax(dim=-1) @ (x.softmax(dim=-2).transpose(-1, -2) @ x)


NOT_ATTENTION = [Classifier(), Router("einsum"), Router("product"), SoftEmbedding(), LinearAttention()]


@pytest.mark.parametrize("model", NOT_ATTENTION, ids=lambda model: type(model).__name__)
def test_other_softmaxes_are_not_mistaken_for_attention(model):
    seen, _ = watch(model, torch.randn(2, 6, 8))
    assert not seen.rows
    assert not seen.states


@pytest.mark.parametrize("kind", ["gpt2", "bert", "llama"])
@pytest.mark.parametrize("padded", [True, False])
def test_hugging_face_models_agree_with_their_own_weights(kind, padded):
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    eager_model, layers, heads = tiny_hugging_face(kind, "eager")
    fused_model, *_ = tiny_hugging_face(kind, "sdpa")
    fused_model.load_state_dict(eager_model.state_dict())
    tokens = {"input_ids": torch.randint(0, 30, (2, 7))}
    if padded:
        tokens["attention_mask"] = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
    eager_model.eval(), fused_model.eval()
    weights = eager_model(**tokens, output_attentions=True).attentions
    for model in (eager_model, fused_model):
        seen, _ = watch(model, **tokens)
        assert len(seen.rows) == layers
        for entropy, own in zip(seen.entropies.values(), weights, strict=True):
            assert len(entropy) == heads
            allowed = own > 0
            if padded and kind == "bert":  # rows of padding: the two implementations mask them alike
                allowed = tokens["attention_mask"].bool()[:, None, None]
            assert entropy == pytest.approx(entropy_oracle(own, allowed), rel=1e-3)


def models_that_train():
    encoder = {"dim_feedforward": 32, "dropout": 0.2, "batch_first": True}
    x, tokens = (torch.randn(2, 6, 16),), (torch.randint(0, 20, (2, 8)),)
    yield "encoder", nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, **encoder), 2), x
    yield "multihead", nn.MultiheadAttention(16, 4, dropout=0.2, batch_first=True), x * 3
    yield "fused", Gpt(how=partial(F.scaled_dot_product_attention, dropout_p=0.3, is_causal=True)), tokens
    yield "written out", Gpt(how=partial(eager, dropout=0.3)), tokens
    yield "router", Router("einsum"), (torch.randn(2, 6, 8),)


def first_of(output):
    return output[0] if isinstance(output, tuple) else getattr(output, "logits", output)


def run(model, inputs, watched):
    """Output, gradients and random state of one training step."""
    model.zero_grad()
    torch.manual_seed(3)
    seen = Seen()
    if watched:
        with seen.tap(model):
            output = first_of(model(*inputs))
            output.square().sum().backward()
    else:
        output = first_of(model(*inputs))
        output.square().sum().backward()
    return output.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None], torch.get_rng_state()


def assert_unchanged(model, inputs):
    plain, watched = run(model, inputs, False), run(model, inputs, True)
    assert torch.equal(plain[0], watched[0])
    assert all(torch.equal(a, b) for a, b in zip(plain[1], watched[1], strict=True))
    assert torch.equal(plain[2], watched[2])


@pytest.mark.parametrize("index", range(5))
@pytest.mark.parametrize("training", [True, False])
def test_outputs_gradients_and_random_state_are_bit_identical(index, training):
    torch.manual_seed(0)
    _, model, inputs = list(models_that_train())[index]
    assert_unchanged(model.train(training), inputs)
    assert not hooks_of(model)


@pytest.mark.parametrize("kind", ["gpt2", "bert", "llama"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_hugging_face_models_are_left_as_they_are(kind, implementation):
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model, *_ = tiny_hugging_face(kind, implementation)
    assert_unchanged(model.train(), (torch.randint(0, 30, (2, 7)),))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")  # torch's own fast path
@pytest.mark.parametrize("norm", [None, nn.LayerNorm(16)])
@pytest.mark.parametrize("padded", [True, False])
def test_without_the_inference_fast_path_outputs_agree_up_to_rounding(norm, padded):
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 3, norm=norm).eval()
    x = torch.randn(2, 6, 16)
    padding = torch.tensor([[False] * 6, [False] * 3 + [True] * 3]) if padded else None
    with torch.inference_mode():
        plain = model(x, src_key_padding_mask=padding)
        _, output = watch(model, x, src_key_padding_mask=padding)
    torch.testing.assert_close(output, plain, rtol=0, atol=2e-6)
    if padded:
        assert torch.equal(output[padding], plain[padding])  # zeros, or what the norm makes of them


def test_padding_keeps_its_values_where_the_fast_path_would_not_be_taken():
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2).eval()
    x, padding = torch.randn(2, 6, 16), torch.tensor([[False] * 6, [True] * 3 + [False] * 3])
    with torch.no_grad():  # padding on the left: each layer still has a fast path of its own
        plain = model(x, src_key_padding_mask=padding)
        torch.testing.assert_close(watch(model, x, src_key_padding_mask=padding)[1], plain, rtol=0, atol=2e-6)
    padding = padding.flip(1)
    assert torch.equal(model(x, src_key_padding_mask=padding), watch(model, x, src_key_padding_mask=padding)[1])


class Failing(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.fails = Attention(), True

    def forward(self, x):
        if self.fails:
            raise ValueError("mine")
        return self.attention(x)


def test_an_exception_goes_through_and_leaves_nothing_behind():
    model, seen = nn.Sequential(Attention(), Failing()), Seen()
    with pytest.raises(ValueError, match="mine"), seen.tap(model):
        model(torch.randn(2, 6, 16))
    assert not hooks_of(model)
    assert not torch.overrides._get_current_function_mode_stack()
    model[1].fails = False
    model(torch.randn(2, 6, 16))
    assert list(seen.rows) == ["0"]


def test_after_a_caught_exception_modules_still_have_their_own_names():
    model, seen = nn.Sequential(Attention(), Failing()), Seen()
    with seen.tap(model):
        with pytest.raises(ValueError, match="mine"):
            model(torch.randn(2, 6, 16))
        model[1].fails = False
        model(torch.randn(2, 6, 16))
    assert [(name, len(rows)) for name, rows in seen.rows.items()] == [("0", 2), ("1.attention", 1)]


@pytest.mark.parametrize("where", ["reduce", "keep", "tokens"])
def test_what_a_receiver_raises_becomes_one_warning(where):
    def fail(*_):
        raise RuntimeError("full disk")

    receivers = {"reduce": attention_sums, "keep": lambda *_: None, "tokens": lambda _: None, where: fail}
    model = Gpt(layers=2)
    tokens = torch.randint(0, 20, (2, 8))
    plain = model(tokens)
    with AttentionTap(model, **receivers):
        with pytest.warns(GradientFlowWarning, match="full disk") as warned:
            output = model(tokens)
        model(tokens)  # no second warning, which would be an error here
    assert len(warned) == 1
    assert torch.equal(output, plain)


def test_a_failure_to_follow_tensors_becomes_one_warning(monkeypatch):
    def fail(*_):
        raise RuntimeError("unheard of")

    monkeypatch.setattr("gradient_flow.probes.attention.written_out.EagerAttention.saw", fail)
    monkeypatch.setattr("gradient_flow.probes.attention.functions._dot_product_inputs", fail)
    model, seen = Gpt(layers=2), Seen()
    with seen.tap(model), pytest.warns(GradientFlowWarning, match="unheard of") as warned:
        model(torch.randint(0, 20, (2, 8)))
    assert len(warned) == 1


def test_copies_and_pickles_made_meanwhile_are_not_watched():
    model, seen = nn.Sequential(Block()), Seen()
    x = torch.randn(2, 6, 16)
    with seen.tap(model):
        twin, stored = copy.deepcopy(model), pickle.dumps(model)
        twin(x), pickle.loads(stored)(x)
    assert not seen.rows


def test_attention_outside_the_model_is_not_its_own():
    model, other, seen = Attention(), Attention(), Seen()
    with seen.tap(model):
        other(torch.randn(2, 6, 16))
    assert not seen.rows


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_under_checkpointing_is_not_seen_twice(reentrant):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Block()

        def forward(self, x):
            return checkpoint(self.block, x, use_reentrant=reentrant)

    model, seen = Checkpointed(), Seen()
    with seen.tap(model):
        model(torch.randn(2, 6, 16, requires_grad=True)).sum().backward()
    assert len(seen.rows["block.attention"]) == 1


def test_several_attentions_in_one_forward_are_told_apart():
    class Twice(nn.Module):
        def forward(self, x):
            return F.scaled_dot_product_attention(x, x, x) + F.scaled_dot_product_attention(x, -x, x)

    model = nn.Sequential(Twice())
    seen = Seen()
    with seen.tap(model):
        model(torch.randn(2, 3, 5, 4))
        model(torch.randn(2, 3, 5, 4))
    assert {name: len(rows) for name, rows in seen.rows.items()} == {"0": 2, "0#2": 2}


def test_other_function_modes_keep_working():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2)
    seen = Seen()
    with torch.device("cpu"), seen.tap(model):
        model(torch.randn(2, 6, 16))
    with seen.tap(model), torch.device("cpu"):
        model(torch.randn(2, 6, 16))
    assert [len(rows) for rows in seen.rows.values()] == [2, 2]


class Operators(TorchDispatchMode):
    """Names of all operators, for counting."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("how", [eager, F.scaled_dot_product_attention])
@pytest.mark.parametrize("watcher", [Operators, Functions])
def test_other_watchers_do_not_see_the_measurement(watcher, how):
    model, tokens = Gpt(how=how), torch.randint(0, 20, (2, 8))
    with watcher() as alone:
        model(tokens)
    with watcher() as beside, Seen().tap(model):
        model(tokens)
    assert beside.names == alone.names


def test_autocast_is_left_alone_and_does_not_round_the_statistics():
    torch.manual_seed(0)
    model, tokens = Gpt(), torch.randint(0, 20, (2, 8))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain = model(tokens)
        seen, output = watch(model, tokens)
    assert output.dtype == plain.dtype
    assert torch.equal(output, plain)
    assert len(seen.rows) == 3


@pytest.mark.filterwarnings("ignore")  # of the compiler's own
def test_compiled_models_are_seen():
    model = Gpt(layers=2)
    tokens = torch.randint(0, 20, (2, 8))
    seen, _ = watch(torch.compile(model, backend="eager"), tokens)
    assert list(seen.rows) == ["blocks.0.attention", "blocks.1.attention"]
    assert [seen.blocks[name] for name in seen.rows] == ["blocks.0", "blocks.1"]


def test_what_has_no_numbers_of_its_own_is_named_and_left_out():
    model, seen = Attention(how=eager), Seen()
    with seen.tap(model) as tap:
        torch.func.vmap(model)(torch.randn(3, 2, 6, 16))
        model.to("meta")(torch.randn(2, 6, 16, device="meta"))
    assert not seen.rows
    assert "without numbers" in tap.unreadable["model"]


def test_nothing_of_the_model_is_kept_alive():
    references = []

    def reduce(inputs):
        references.append(weakref.ref(inputs.rows))
        return attention_sums(inputs)

    for how in (eager, F.scaled_dot_product_attention):
        model = Gpt(how=how)
        with AttentionTap(model, reduce=reduce, keep=lambda *_: None, tokens=lambda _: None), torch.no_grad():
            model(torch.randint(0, 20, (2, 8)))
            assert len(references) == 3
            assert [reference() for reference in references] == [None] * 3
        references.clear()


def test_a_tap_is_entered_once_at_a_time():
    tap = Seen().tap(Attention())
    with tap, pytest.raises(MonitorStateError, match="entered already"):
        tap.__enter__()
    with tap:
        pass

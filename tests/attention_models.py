"""Models that compute attention in every way there is, and the entropy that their weights should show."""

import torch
import torch.nn.functional as F
from torch import nn


def entropy_oracle(weights, allowed=None):
    """Normalised entropy per head of weights (samples, heads, queries, keys) in fp64, over rows with a choice."""
    weights = weights.detach().double()
    allowed = torch.ones_like(weights, dtype=torch.bool) if allowed is None else allowed.expand(weights.shape)
    choices = allowed.sum(-1)
    entropy = torch.special.entr(weights).sum(-1) / choices.double().log()
    usable = choices >= 2
    return [entropy[:, head][usable[:, head]].mean().item() for head in range(weights.shape[1])]


class Attention(nn.Module):
    """Self-attention over (samples, tokens, features), computed by `how(q, k, v)`."""

    def __init__(self, width=16, heads=4, how=F.scaled_dot_product_attention):
        super().__init__()
        self.num_heads, self.how = heads, how
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        samples, tokens, width = x.shape
        q, k, v = self.qkv(x).view(samples, tokens, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        return self.out(self.how(q, k, v).transpose(1, 2).reshape(samples, tokens, width))


class Block(nn.Module):
    """Pre-LN transformer block; without `skip` only the attention."""

    def __init__(self, width=16, heads=4, how=F.scaled_dot_product_attention, skip=True):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, how)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.skip = skip

    def forward(self, x):
        if not self.skip:
            return self.attention(self.norm1(x))
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def causal(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Gpt(nn.Module):
    """A causal language model."""

    def __init__(self, layers=3, width=32, heads=4, vocabulary=20, tokens=16, how=causal, skip=True):
        super().__init__()
        self.embedding, self.position = nn.Embedding(vocabulary, width), nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList([Block(width, heads, how, skip) for _ in range(layers)])
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.embedding(tokens) + self.position(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def eager(q, k, v, *, product="@", softmax="method", dropout=0.0, mask=None, three_dimensions=False):
    """Attention written out, in the ways that models do it."""
    shape = q.shape
    if three_dimensions:
        q, k, v = (tensor.flatten(0, 1) for tensor in (q, k, v))
    if product == "@":
        scores = q @ k.transpose(-1, -2)
    elif product == "matmul":
        scores = torch.matmul(q, k.transpose(-1, -2))
    elif product == "bmm":
        scores = torch.bmm(q, k.transpose(1, 2))
    elif product == "baddbmm":
        scores = torch.baddbmm(torch.zeros(1, 1, k.shape[1]), q, k.transpose(1, 2))
    else:
        scores = torch.einsum("...qd,...kd->...qk", q, k)
    scores = scores / q.shape[-1] ** 0.5
    if mask is not None:
        scores = mask + scores if mask.is_floating_point() else scores.masked_fill(~mask, torch.finfo(q.dtype).min)
    if softmax == "method":
        weights = scores.softmax(dim=-1)
    elif softmax == "functional":
        weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    else:
        weights = torch.softmax(scores, scores.dim() - 1)
    weights = F.dropout(weights, dropout)
    mixed = torch.einsum("...qk,...kd->...qd", weights, v) if product == "einsum" else weights @ v
    return mixed.view(shape)


def tiny_hugging_face(kind, implementation):
    """A model of a few thousand weights, and its number of layers and heads."""
    import transformers

    small = {"vocab_size": 30, "attn_implementation": implementation}
    if kind == "gpt2":
        config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=4, n_positions=32, **small)
        return transformers.GPT2LMHeadModel(config), 2, 4
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    if kind == "bert":
        return transformers.BertForMaskedLM(transformers.BertConfig(**sizes, **small)), 2, 4
    config = transformers.LlamaConfig(num_key_value_heads=2, **sizes, **small)
    return transformers.LlamaForCausalLM(config), 2, 4

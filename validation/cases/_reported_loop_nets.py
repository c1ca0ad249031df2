"""Networks of the half `reported`'s programs, small, in the form in which people write them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from validation.nets import mlp

# --- networks


class Lenet(nn.Module):
    """Two convolutions with pooling, two linear layers."""

    def __init__(self, channels: int = 1, size: int = 8, classes: int = 10, width: int = 12) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(channels, width, 3, 1, 1), nn.Conv2d(width, 2 * width, 3, 1, 1)
        self.fc1, self.fc2 = nn.Linear(2 * width * (size // 4) ** 2, 48), nn.Linear(48, classes)

    def features(self, x: Tensor) -> Tensor:
        """What the linear layers get."""
        h = F.max_pool2d(F.relu(self.conv1(x)), 2)
        return F.max_pool2d(F.relu(self.conv2(h)), 2).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.relu(self.fc1(self.features(x))))


class Bottle(nn.Module):
    """A block of a residual network."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class Resnet(nn.Module):
    """A stem, two residual blocks, a mean over places, `fc`."""

    def __init__(self, channels: int = 3, classes: int = 6, width: int = 12) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width)
        self.layer1, self.layer2, self.fc = Bottle(width), Bottle(width), nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        """What `fc` gets."""
        return self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x))))).mean(dim=(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x))


class Unet(nn.Module):
    """Down, across, up, with a bridge; one logit or value per pixel."""

    def __init__(self, width: int = 8, norm: bool = True) -> None:
        super().__init__()
        make: Any = nn.BatchNorm2d if norm else (lambda _: nn.Identity())
        self.down, self.bn1 = nn.Conv2d(1, width, 3, 1, 1, bias=not norm), make(width)
        self.across, self.bn2 = nn.Conv2d(width, 2 * width, 3, 1, 1, bias=not norm), make(2 * width)
        self.up, self.join = nn.ConvTranspose2d(2 * width, width, 2, 2), nn.Conv2d(2 * width, width, 3, 1, 1)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.bn1(self.down(x)))
        b = F.relu(self.bn2(self.across(F.max_pool2d(a, 2))))
        return self.out(F.relu(self.join(torch.cat([a, self.up(b)], dim=1))))


class Waves(nn.Module):
    """Convolutions over time with batch norm, a mean, a linear layer."""

    def __init__(self, channels: int = 3, classes: int = 5, width: int = 16, norm: bool = True) -> None:
        super().__init__()
        make: Any = nn.BatchNorm1d if norm else (lambda _: nn.Identity())
        self.conv1, self.bn1 = nn.Conv1d(channels, width, 5, 1, 2, bias=not norm), make(width)
        self.conv2, self.bn2 = nn.Conv1d(width, width, 5, 2, 2, bias=not norm), make(width)
        self.fc = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        return self.fc(h.mean(dim=2))


class Lstm(nn.Module):
    """An LSTM over numbers; what it ends with says one value, as (N, 1)."""

    def __init__(self, dims: int = 1, width: int = 24, out: int = 1) -> None:
        super().__init__()
        self.lstm, self.fc = nn.LSTM(dims, width, batch_first=True), nn.Linear(width, out)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.lstm(x)[0][:, -1])


class Reader(nn.Module):
    """Vectors of words, an LSTM both ways, a mean, a linear layer."""

    def __init__(self, words: int = 40, classes: int = 2, width: int = 16) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.lstm, self.fc = nn.LSTM(width, width, batch_first=True, bidirectional=True), nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.lstm(self.words(x))[0].mean(dim=1))


class Tagger(nn.Module):
    """Vectors of words, an LSTM both ways, a layer that tags each of them."""

    def __init__(self, words: int = 24, kinds: int = 4, width: int = 16) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.lstm, self.fc = nn.LSTM(width, width, batch_first=True, bidirectional=True), nn.Linear(2 * width, kinds)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.lstm(self.words(x))[0])


class TextCnn(nn.Module):
    """Vectors of words, convolutions of three widths, the maximum of each, dropout."""

    def __init__(self, words: int = 48, kinds: int = 4, width: int = 16, p: float = 0.1) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.convs = nn.ModuleList(nn.Conv1d(width, 16, k) for k in (1, 2, 3))
        self.drop, self.fc = nn.Dropout(p), nn.Linear(48, kinds)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x).transpose(1, 2)
        return self.fc(self.drop(torch.cat([F.relu(conv(h)).amax(dim=2) for conv in self.convs], dim=1)))


class Attention(nn.Module):
    """Causal attention whose projections are layers of their own."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.o_proj = nn.Linear(width, width)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            each(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (self.q_proj, self.k_proj, self.v_proj)
        )
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(h.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """A block of a decoder."""

    def __init__(self, width: int, heads: int, p: float) -> None:
        super().__init__()
        self.ln1, self.attn, self.ln2 = nn.LayerNorm(width), Attention(width, heads), nn.LayerNorm(width)
        self.up, self.down, self.drop = nn.Linear(width, 3 * width), nn.Linear(3 * width, width), nn.Dropout(p)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attn(self.ln1(x)))
        return x + self.drop(self.down(F.gelu(self.up(self.ln2(x)))))


class Gpt(nn.Module):
    """Signs and places, two blocks, a last norm, a head of its own or tied."""

    def __init__(self, signs: int = 16, width: int = 32, depth: int = 2, length: int = 64, tied: bool = False) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(signs, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Layer(width, 4, 0.0) for _ in range(depth))
        self.ln, self.lm_head = nn.LayerNorm(width), nn.Linear(width, signs, bias=False)
        for table in (self.wte, self.wpe):
            nn.init.normal_(table.weight, std=0.1)
        if tied:
            self.lm_head.weight = self.wte.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
        for block in self.blocks:
            h = block(h)
        return self.lm_head(self.ln(h))


class Seq2seq(nn.Module):
    """A GRU reads, another writes and looks back at what was read."""

    def __init__(self, signs: int = 8, width: int = 24) -> None:
        super().__init__()
        self.encoder = nn.ModuleDict(
            {"words": nn.Embedding(signs, width), "gru": nn.GRU(width, width, batch_first=True, bidirectional=True)}
        )
        self.decoder = nn.ModuleDict(
            {
                "words": nn.Embedding(signs + 1, width),
                "gru": nn.GRU(width, width, batch_first=True),
                "query": nn.Linear(width, 2 * width),
                "out": nn.Linear(3 * width, signs),
            }
        )

    def forward(self, source: Tensor, shifted: Tensor) -> Tensor:
        memory, last = self.encoder["gru"](self.encoder["words"](source))
        h = self.decoder["gru"](self.decoder["words"](shifted), last.mean(dim=0, keepdim=True))[0]
        match = self.decoder["query"](h) @ memory.transpose(1, 2) / memory.shape[-1] ** 0.5
        return self.decoder["out"](torch.cat([h, match.softmax(dim=-1) @ memory], dim=-1))


class Gcn(nn.Module):
    """Two rounds over neighbours, beside the node itself."""

    def __init__(self, dim: int = 8, classes: int = 4, width: int = 24) -> None:
        super().__init__()
        self.conv1, self.own1 = nn.Linear(dim, width), nn.Linear(dim, width)
        self.conv2, self.own2 = nn.Linear(width, width), nn.Linear(width, width)
        self.out = nn.Linear(width, classes)

    def forward(self, x: Tensor, link: Tensor) -> Tensor:
        h = F.relu(self.conv1(link @ x) + self.own1(x))
        return self.out(F.relu(self.conv2(link @ h) + self.own2(h)))


class NeuMf(nn.Module):
    """Vectors of users and items: their product beside a deep part."""

    def __init__(self, users: int = 40, items: int = 30, width: int = 8) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(users, width), nn.Embedding(items, width)
        self.deep = nn.Sequential(nn.Linear(2 * width, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        self.out = nn.Linear(width + 8, 1)
        for table in (self.user, self.item):
            nn.init.normal_(table.weight, std=0.3)

    def forward(self, u: Tensor, i: Tensor) -> Tensor:
        a, b = self.user(u), self.item(i)
        return self.out(torch.cat([a * b, self.deep(torch.cat([a, b], dim=1))], dim=1)).squeeze(1)


class Embedder(nn.Module):
    """Two layers, then a vector of a few numbers."""

    def __init__(self, dim: int = 16, width: int = 32, out: int = 8) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(dim, width), nn.Linear(width, width), nn.Linear(width, out)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class Vae(nn.Module):
    """Mean and log-variance of a code, a sample of it, and what it decodes to."""

    def __init__(self, dim: int = 24, width: int = 32, code: int = 6) -> None:
        super().__init__()
        self.enc, self.mean, self.logvar = nn.Linear(dim, width), nn.Linear(width, code), nn.Linear(width, code)
        self.dec, self.out = nn.Linear(code, width), nn.Linear(width, dim)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = F.relu(self.enc(x))
        mean, logvar = self.mean(h), self.logvar(h)
        z = mean + torch.randn_like(mean) * (0.5 * logvar).exp() if self.training else mean
        return self.out(F.relu(self.dec(z))), mean, logvar


def divergence(mean: Tensor, logvar: Tensor) -> Tensor:
    """From the standard normal, per row."""
    return -0.5 * (1 + logvar - mean.square() - logvar.exp()).sum(dim=1)


def given_back(output: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
    """The error of what a VAE gives back."""
    return F.mse_loss(output[0], x)


# --- adapters


class Lora(nn.Module):
    """A frozen layer and a change of low rank."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A, self.lora_B = nn.Linear(base.in_features, rank, False), nn.Linear(rank, base.out_features, False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2 * self.lora_B(self.lora_A(x))


class Checkpointed(nn.Module):
    """A block whose inner values are computed again on the way back, as old versions of torch do it."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.block, x, use_reentrant=True)


# --- of single threads


class Chooser(nn.Module):
    """One network chooses a row of a table, another works with it."""

    def __init__(self, hard: bool) -> None:
        super().__init__()
        self.first, self.table, self.second = mlp([64, 32, 16]), nn.Embedding(16, 12), mlp([12, 24, 10])
        self.hard = hard

    def forward(self, x: Tensor) -> Tensor:
        choice = self.first(x.flatten(1))
        code = self.table(choice.argmax(dim=1)) if self.hard else choice.softmax(dim=1) @ self.table.weight
        return self.second(code)


class Patches(nn.Module):
    """A picture in patches, one layer of an encoder, a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.head = nn.Linear(4, 24), nn.Linear(24, 10)
        self.places = nn.Parameter(torch.zeros(1, 16, 24))
        self.layer = nn.TransformerEncoderLayer(24, 4, 48, 0.0, "gelu", batch_first=True, norm_first=True)

    def forward(self, x: Tensor) -> Tensor:
        parts = F.unfold(x, 2, stride=2).transpose(1, 2)
        return self.head(self.layer(self.patch(parts) + self.places).mean(dim=1))


class OwnLstm(nn.Module):
    """The same as torch's, in cells, as a library needs it that looks at each sample."""

    def __init__(self, old: nn.LSTM) -> None:
        super().__init__()
        self.forth = nn.LSTMCell(old.input_size, old.hidden_size)
        self.back = nn.LSTMCell(old.input_size, old.hidden_size)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        sides = []
        for cell, order in ((self.forth, range(x.shape[1])), (self.back, range(x.shape[1] - 1, -1, -1))):
            state, seen = None, []
            for t in order:
                state = cell(x[:, t], state)
                seen.append(state[0])
            sides.append(torch.stack(seen, dim=1))
        return torch.cat(sides, dim=-1), None


class Extracted(nn.Module):
    """An encoder, whose features a hook takes out, and a head."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.encoder, self.head, self.cut = Resnet(width=8), mlp([8, 16, 6], nn.GELU), cut
        self.encoder.fc = nn.Identity()  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        hook = self.encoder.layer2.register_forward_hook(lambda _m, _i, out: kept.append(out.clone()))
        self.encoder(x)
        hook.remove()
        h = kept[0].detach() if self.cut else kept[0]
        return self.head(h.mean(dim=(2, 3)))

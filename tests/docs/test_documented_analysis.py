"""Every Python block of document 002 as written, with the user's parts supplied."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gradient_flow as gf

BLOCKS = Path(__file__).parent / "documents" / "gradient_flow_analysis.md"


def blocks():
    """The document's code blocks under their titles; what an analyzer provides belongs to the block before it."""
    title, found = "", []
    for part in re.split(r"(^#+ [^\n]*$|^```python\n.*?^```$)", BLOCKS.read_text(), flags=re.M | re.S):
        if part.startswith("#"):
            title = part.lstrip("# ")
        elif part.startswith("```python"):
            code = part.removeprefix("```python\n").removesuffix("```")
            if title == "Provides":
                found[-1] = (found[-1][0], found[-1][1] + code)
            else:
                found.append((title, code))
    return found


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.encoder(x).mean(1))


def users_parts(title):
    torch.manual_seed(0)
    targets = torch.randint(10, (32,))
    if "Recurrent" in title:
        model, shape = Recurrent(), (32, 12, 8)
    elif "Transformer" in title:
        model, shape = Attending(), (32, 12, 16)
    else:
        model = nn.Sequential()
        model.add_module("encoder", nn.Sequential(nn.Linear(784, 64), nn.ReLU()))
        model.add_module("head", nn.Linear(64, 10))
        shape = (32, 784)
    names = {name: getattr(gf, name) for name in gf.__all__ if name[0].isupper() and name != "GradientFlowCallback"}
    names |= {"torch": torch, "F": F, "model": model, "targets": targets}
    names |= {"input_fn": lambda: torch.randn(*shape), "loss_fn": lambda output: F.cross_entropy(output, targets)}
    names["analyzer"] = gf.GradientFlowAnalyzer(model)
    # What the document's `action_extractor` finds in the output, here a discrete policy.
    return names | {"logits": torch.randn(32, 4), "std": None, "mean": None, "value": None}


@pytest.mark.parametrize(("title", "code"), blocks(), ids=lambda text: text if "\n" not in text else "")
def test_a_block_of_the_document_runs(title, code, capsys):
    names = users_parts(title)
    before = {name: value.clone() for name, value in names["model"].state_dict().items()}
    random = torch.random.get_rng_state()
    if re.search(r"^\s+return\b", code, flags=re.M) and "def " not in code:
        body = "\n".join("    " + line for line in code.splitlines())
        code = f"def check():\n{body}\ncheck()\n"
        names["issues"] = None
    exec(code, names)
    assert all(torch.equal(before[name], value) for name, value in names["model"].state_dict().items())
    assert torch.equal(random, torch.random.get_rng_state())
    if "print_summary" in code:
        assert capsys.readouterr().out.strip()


def test_the_document_is_here_whole():
    assert len(re.findall("^```python$", BLOCKS.read_text(), flags=re.M)) == 21


def test_the_documented_defaults_are_ours():
    """Every keyword that the reference section of the document sets with a comment is a parameter with that default."""
    for title, code in blocks():
        name = re.search(r"\d\. (\w+Analyzer)", title)
        if name is None:
            continue
        call = re.search(rf"{name[1]}\((.*?)\n\)", code, flags=re.S)[1]
        analyzer = getattr(gf, name[1])(nn.Linear(2, 2))
        for keyword, value in re.findall(r"^\s+(\w+)=([^,\s]+)", call, flags=re.M):
            explicit = getattr(gf, name[1])(nn.Linear(2, 2), **{keyword: eval(value)})
            assert vars(explicit).keys() == vars(analyzer).keys()
            left = {
                key: repr(each) for key, each in vars(analyzer).items() if isinstance(each, (bool, float, int, dict))
            }
            right = {
                key: repr(each) for key, each in vars(explicit).items() if isinstance(each, (bool, float, int, dict))
            }
            assert left == right, (name[1], keyword)

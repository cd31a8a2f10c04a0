"""Small language models: a GPT and an LSTM that predict the next token at every position.

They take windows of tokens (N×positions) and give logits as cross-entropy and the metrics want
them: N×tokens×positions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedrift.config.models import TEXT_DEFAULTS
from fedrift.errors import InputError

GPT, LSTM = TEXT_DEFAULTS["gpt"], TEXT_DEFAULTS["lstm"]
DEVIATION = 0.02  # of the initial weights, as in GPT-2


class Block(nn.Module):
    """Attention to everything before, then a small network; both are added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        nn.Module.__init__(self)
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, positions, width = x.shape
        split = (n, positions, 3, self.heads, width // self.heads)
        q, k, v = self.attention(self.norm1(x)).view(split).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).reshape(n, positions, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """A decoder with learned positions (Radford et al. 2019), small enough for a laptop."""

    head = "fc"

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int,
        layers: int = GPT["layers"],
        width: int = GPT["width"],
        heads: int = GPT["heads"],
        context: int | None = None,
    ) -> None:
        """`context` is the longest window it can read; that of the data if it is not said."""
        nn.Module.__init__(self)
        if width % heads:
            raise InputError(f"model 'gpt': width={width} must be a multiple of heads={heads}")
        if context is not None and context < input_shape[0]:
            raise InputError(
                f"model 'gpt': context={context} is shorter than the windows of the data, "
                f"{input_shape[0]}; give the data context={context} too"
            )
        self.context = context or input_shape[0]
        self.tokens = nn.Embedding(classes, width)
        self.positions = nn.Embedding(self.context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.fc = nn.Linear(width, classes, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                # What adds to the residual stream begins smaller the more blocks there are.
                adds = name.endswith(("project.weight", "down.weight"))
                nn.init.normal_(weight, std=DEVIATION / ((2 * layers) ** 0.5 if adds else 1.0))
            elif name.endswith("bias"):
                nn.init.zeros_(weight)

    def forward(self, x: Tensor) -> Tensor:
        where = torch.arange(x.shape[1], device=x.device)
        h = self.tokens(x) + self.positions(where)
        for block in self.blocks:
            h = block(h)
        return self.fc(self.norm(h)).transpose(1, 2)


class Lstm(nn.Module):
    """Embedded tokens, one or more layers of LSTM, a linear head."""

    head = "fc"

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int,
        layers: int = LSTM["layers"],
        width: int = LSTM["width"],
        embedding: int = LSTM["embedding"],
    ) -> None:
        nn.Module.__init__(self)
        self.context = input_shape[0]
        self.tokens = nn.Embedding(classes, embedding)
        self.lstm = nn.LSTM(embedding, width, layers, batch_first=True)
        self.fc = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.lstm(self.tokens(x))[0]).transpose(1, 2)


SAMPLES, STARTED, WRITTEN = 2, 24, 160  # texts, their given beginnings, how much is added
TEMPERATURE = 0.8


def continuations(module: nn.Module, windows: Tensor, labels: Tensor) -> list[Tensor]:
    """Some windows' first `STARTED` tokens, each with `WRITTEN` of the module after them. What a
    window was filled up with is no beginning."""
    rows = torch.linspace(0, len(windows) - 1, SAMPLES).long()
    lengths = (labels >= 0).sum(1).clamp(1, STARTED)
    starts = [windows[i, : lengths[i]].cpu() for i in rows]
    return [continued(module, start, WRITTEN, windows.shape[1], seed=0) for start in starts]


@torch.no_grad()
def continued(module: nn.Module, start: Tensor, length: int, context: int, seed: int) -> Tensor:
    """`length` more tokens after `start`, each drawn from what the module predicts."""
    random = torch.Generator().manual_seed(seed)
    tokens = start.clone()
    module.eval()
    for _ in range(length):
        logits = module(tokens[None, -context:])[0, :, -1].double() / TEMPERATURE
        drawn = torch.multinomial(torch.softmax(logits, 0), 1, generator=random)
        tokens = torch.cat((tokens, drawn))
    return tokens

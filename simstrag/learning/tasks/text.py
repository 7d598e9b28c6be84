"""A language model of characters on text that ships with Python."""

from __future__ import annotations

import pydoc_data.topics
from typing import TYPE_CHECKING

from simstrag.learning.tasks.task import LearningTask, TaskMaker, correct, cross_entropy, seeded

if TYPE_CHECKING:
    import torch

WINDOW = 32
"""Characters of a sample."""
LETTERS = 400_000
"""Characters of the text that are used."""
WIDTH = 32


def characters(seed: int) -> LearningTask:
    """The next character of the Python manual, from the 8 before it; a perceptron on embeddings.

    A sample is 32 characters, each predicted. The last tenth of the text is held out.
    """
    import torch
    from torch import nn

    topics = pydoc_data.topics.topics
    text = "".join(topics[name] for name in sorted(topics))[:LETTERS].encode("ascii", "replace")
    codes = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    known = codes.bincount().nonzero().flatten()
    tokens = torch.searchsorted(known, codes)
    seen = 8

    class Characters(nn.Module):
        """The 8 characters up to each position, embedded, in a perceptron."""

        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Parameter(0.1 * torch.randn(len(known), WIDTH))
            self.hidden = nn.Linear(seen * WIDTH, 128)
            self.scores = nn.Linear(128, len(known))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            vectors = self.embedding[x].unfold(1, seen, 1).flatten(2)
            out: torch.Tensor = self.scores(self.hidden(vectors).relu())
            return out

    windows = tokens.unfold(0, WINDOW + seen, WINDOW)
    inputs, targets = windows[:, :-1], windows[:, seen:]
    held_out = len(windows) // 10
    return LearningTask(
        seeded(Characters, seed), inputs[:-held_out], targets[:-held_out],
        inputs[-held_out:][:256], targets[-held_out:][:256], cross_entropy, correct,
        "share of held-out characters predicted",
    )  # fmt: skip


TEXT: dict[str, TaskMaker] = {"characters": characters}

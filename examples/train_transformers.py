"""Record a training of the Hugging Face Trainer: the line is `record(trainer, ...)`.

    torchrun --nproc-per-node 2 examples/train_transformers.py --out runs/transformers
    simstrag diagnose runs/transformers

A tiny GPT-2 learns random tokens.  With `--slow RANK` that rank is late with each batch.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from simstrag.ddp.frameworks.transformers import record

LATE, STEPS, BATCH, TOKENS, LENGTH = 0.05, 60, 4, 64, 16


class RandomTokens(Dataset[dict[str, Tensor]]):
    """Sequences of random tokens; each takes its share of the time by which a batch is late."""

    def __init__(self, is_slow: bool) -> None:
        self.pause = LATE / BATCH if is_slow else 0.0

    def __len__(self) -> int:
        return 2 * STEPS * BATCH

    def __getitem__(self, k: int) -> dict[str, Tensor]:
        time.sleep(self.pause)
        tokens = torch.randint(0, TOKENS, (LENGTH,), generator=torch.Generator().manual_seed(k))
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    """Train on this rank, which torchrun started."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", help="folder for the record")
    parser.add_argument("--slow", type=int, metavar="RANK")
    options = parser.parse_args()
    config = GPT2Config(
        vocab_size=TOKENS, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    arguments = TrainingArguments(
        f"{options.out or 'runs/transformers'}-logs", use_cpu=True, max_steps=STEPS,
        per_device_train_batch_size=BATCH, logging_steps=10, save_strategy="no", report_to="none",
        disable_tqdm=True, ddp_find_unused_parameters=False,
    )  # fmt: skip
    data = RandomTokens(arguments.process_index == options.slow)
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=data)
    record(trainer, options.out)
    trainer.train()


if __name__ == "__main__":
    main()

"""Workloads for GPUs: transformers' configurations with random weights and random inputs.

Nothing is downloaded: a model is built from its configuration class, never from a hub.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from simstrag.errors import InputError
from simstrag.workloads.workload import Batch, Parts, Workload, random_images, random_tokens

if TYPE_CHECKING:
    import torch
    from torch import nn


def model_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The loss that a model of transformers computes from the labels in its batch."""
    loss: torch.Tensor = model(**batch).loss
    return loss


def resnet50(side: int = 224, **sizes: Any) -> Parts:
    """ResNet-50 on 3x224x224 images and 1000 classes, 25.6 million parameters; SGD.

    Images and weights are channels-last, as a GPU's convolutions want them.
    """
    import torch

    library = _import_transformers("resnet50")
    model = library.ResNetForImageClassification(library.ResNetConfig(num_labels=1000, **sizes))
    model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return Parts(model, model_loss, optimizer, _images(side))


def vit_b16(side: int = 224, **sizes: Any) -> Parts:
    """ViT-B/16 on 3x224x224 images and 1000 classes, 86.6 million parameters; AdamW."""
    library = _import_transformers("vit_b16")
    config = library.ViTConfig(num_labels=1000, image_size=side, **sizes)
    model = library.ViTForImageClassification(config)
    return Parts(model, model_loss, _adamw(model), _images(side))


def bert_base(tokens: int = 128, **sizes: Any) -> Parts:
    """BERT-base, masked language model on 128 tokens, 109.5 million parameters; AdamW.

    Every token has a label, so that the head computes at all positions. Dropout is 0.1.
    """
    library = _import_transformers("bert_base")
    model = library.BertForMaskedLM(library.BertConfig(**sizes))
    return Parts(model, model_loss, _adamw(model), _tokens(tokens, model.config.vocab_size))


def gpt2(tokens: int = 512, **sizes: Any) -> Parts:
    """GPT-2 124M on 512 tokens, 124.4 million parameters; AdamW; dropout 0.1."""
    library = _import_transformers("gpt2")
    model = library.GPT2LMHeadModel(library.GPT2Config(use_cache=False, **sizes))
    return Parts(model, model_loss, _adamw(model), _tokens(tokens, model.config.vocab_size))


def _import_transformers(name: str) -> Any:
    try:
        import transformers
    except ImportError:
        raise InputError(
            f"workload '{name}': its model comes with transformers, which is not installed; "
            "pip install simstrag[models]"
        ) from None
    return transformers


def _adamw(model: nn.Module) -> torch.optim.Optimizer:
    import torch

    return torch.optim.AdamW(model.parameters(), lr=1e-4)


def _name(names: tuple[str, str], draw: Callable[[int], Batch]) -> Callable[[int], Batch]:
    """Batches under the names that models of transformers know."""
    return lambda samples: dict(zip(names, draw(samples), strict=True))


def _images(side: int) -> Callable[[int], Batch]:
    draw = random_images(3, side, side, classes=1000)

    def channels_last(samples: int) -> Batch:
        import torch

        images, labels = draw(samples)
        return images.contiguous(memory_format=torch.channels_last), labels

    return _name(("pixel_values", "labels"), channels_last)


def _tokens(tokens: int, vocabulary: int) -> Callable[[int], Batch]:
    return _name(("input_ids", "labels"), random_tokens(tokens, vocabulary))


LARGE = (
    Workload("resnet50", resnet50, (8, 16, 32, 64, 128, 256, 512), 128, "cuda"),
    Workload("vit_b16", vit_b16, (8, 16, 32, 64, 128, 256, 512), 128, "cuda"),
    Workload("bert_base", bert_base, (8, 16, 32, 64, 128, 256, 512), 128, "cuda"),
    Workload("gpt2", gpt2, (2, 4, 8, 16, 32, 64, 128), 32, "cuda"),
)

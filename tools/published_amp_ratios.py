"""Published gains of reduced precision: throughput with it over throughput without.

"read from source": figures in a repository or lecture.  "computed from raw data": by this project
from published tables.  On Ampere and later most figures called fp32 are TF32; here they are named
so.
"""

from __future__ import annotations

from pathlib import Path

from simstrag.profile.measurements import AmpRatio
from simstrag.profile.profile import Profile
from simstrag.profile.quantity import Quantity

READ, COMPUTED = "read from source", "computed from raw data"

NVIDIA = "NVIDIA DeepLearningExamples, READMEs, single GPU"
LAMBDA = "Lambda GPU benchmarks, CSV tables, single GPU; batches may differ between precisions"
NANOGPT = "Karpathy, build-nanogpt, lecture figures in tokens/s"

RatioRow = tuple[str, str, str, str, float, str, str]

LINES: tuple[RatioRow, ...] = (
    ("ResNet-50 v1.5", "A100 80GB", "tf32", "amp fp16", 2.63, NVIDIA, READ),
    ("ResNet-50 v1.5", "V100 16GB", "fp32", "amp fp16", 3.26, NVIDIA, READ),
    ("BERT-large pretraining, sequence 128", "A100", "tf32", "amp fp16", 1.83, NVIDIA, READ),
    ("BERT-large pretraining, sequence 512", "A100", "tf32", "amp fp16", 1.90, NVIDIA, READ),
    ("BERT-large pretraining, sequence 128", "V100", "fp32", "amp fp16", 4.48, NVIDIA, READ),
    ("BERT-large pretraining, sequence 512", "V100", "fp32", "amp fp16", 3.94, NVIDIA, READ),
    ("BERT-large SQuAD", "V100", "fp32", "amp fp16", 4.33, NVIDIA, READ),
    ("Transformer-XL base", "A100", "tf32", "amp fp16", 1.44, NVIDIA, READ),
    ("Transformer-XL base", "V100", "fp32", "amp fp16", 1.91, NVIDIA, READ),
    ("Transformer-XL base", "V100 (DGX-2H)", "fp32", "amp fp16", 2.04, NVIDIA, READ),
    ("Transformer-XL large", "V100 (DGX-2H)", "fp32", "amp fp16", 2.24, NVIDIA, READ),
    ("ResNet-50", "V100", "fp32", "amp fp16", 2.26, LAMBDA, COMPUTED),
    ("ResNet-50", "A100 80GB", "tf32", "amp fp16", 1.48, LAMBDA, COMPUTED),
    ("ResNet-50", "H100 SXM", "tf32", "amp fp16", 1.49, LAMBDA, COMPUTED),
    ("ResNet-50", "H200", "tf32", "amp fp16", 1.36, LAMBDA, COMPUTED),
    ("ResNet-50", "RTX 3090", "tf32", "amp fp16", 1.76, LAMBDA, COMPUTED),
    ("ResNet-50", "RTX 4090", "tf32", "amp fp16", 1.80, LAMBDA, COMPUTED),
    ("BERT-base SQuAD", "V100", "fp32", "amp fp16", 4.5, LAMBDA, COMPUTED),
    ("BERT-base SQuAD", "A100 80GB", "tf32", "amp fp16", 1.85, LAMBDA, COMPUTED),
    ("BERT-base SQuAD", "H100 SXM", "tf32", "amp fp16", 1.99, LAMBDA, COMPUTED),
    ("BERT-base SQuAD", "H200", "tf32", "amp fp16", 1.81, LAMBDA, COMPUTED),
    ("BERT-large SQuAD", "V100", "fp32", "amp fp16", 4.75, LAMBDA, COMPUTED),
    ("BERT-large SQuAD", "A100 80GB", "tf32", "amp fp16", 2.03, LAMBDA, COMPUTED),
    ("BERT-large SQuAD", "H100 SXM", "tf32", "amp fp16", 2.13, LAMBDA, COMPUTED),
    ("BERT-large SQuAD", "H200", "tf32", "amp fp16", 1.93, LAMBDA, COMPUTED),
    ("Transformer-XL base", "V100", "fp32", "amp fp16", 2.67, LAMBDA, COMPUTED),
    ("Transformer-XL base", "A100 80GB", "tf32", "amp fp16", 1.41, LAMBDA, COMPUTED),
    ("Transformer-XL base", "H100 SXM", "tf32", "amp fp16", 1.36, LAMBDA, COMPUTED),
    ("GNMT", "V100", "fp32", "amp fp16", 3.28, LAMBDA, COMPUTED),
    ("SSD", "V100", "fp32", "amp fp16", 2.20, LAMBDA, COMPUTED),
    ("Tacotron2", "V100", "fp32", "amp fp16", 1.01, LAMBDA, COMPUTED),
    ("WaveGlow", "V100", "fp32", "amp fp16", 1.00, LAMBDA, COMPUTED),
    ("GPT-2 124M", "A100", "fp32", "tf32", 3.06, NANOGPT, READ),
    ("GPT-2 124M", "A100", "fp32", "bf16", 3.4, NANOGPT, READ),
    ("GPT-2 124M", "A100", "tf32", "bf16", 1.11, NANOGPT, READ),
)
"""Model, device, full precision, reduced precision, ratio, source, evidence."""


def ratios(_traces: Path) -> Profile:
    """All of `LINES`; nothing of a folder of traces is read."""
    note = "of throughputs, as published, without spread"
    return Profile(
        name="published-amp-ratios",
        origin="derived",
        source="; ".join((NVIDIA, LAMBDA, NANOGPT)),
        missing=(
            "steps, all-reduce, parameter server",
            "spread of any figure, batch sizes, library versions",
            "strict fp32 on H100 and H200, which nobody published",
        ),
        note="Reduced precision of the Lambda tables is called fp16. Figures of one model and "
        "device differ between sources by up to 80 % (ResNet-50 on A100: 2.63 and 1.48): code, "
        "batches and data loading differ. Measure your own.",
        date="2026-11-21",
        command="python -m tools.public_profiles published-amp-ratios TRACES "
        "--out published-amp-ratios.json",
        device={"kind": "several"},
        software={},
        amp_ratios=tuple(
            AmpRatio(
                model=model, device=device, full=full, amp=amp, source=source, evidence=evidence,
                ratio=Quantity(value=ratio, kind="measured", note=note),
            )
            for model, device, full, amp, ratio, source, evidence in LINES
        ),
    )  # fmt: skip

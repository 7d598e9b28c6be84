"""The gradient noise scales that STAR's authors measured: a table per model, batch and epoch.

Source: directory `gradient_validation` of github.com/pcl-projects/Training-Sync-Mode at commit
6c596a7, released with Zhang & Shen, "Straggler Tolerant and Resilient DL Training on Homogeneous
GPUs" (STAR), 2025, arXiv:2512.09685; column `pgns`, rounded.

Three cautions:

- The files of eleven models are four data sets: byte-identical copies serve {alexnet, mobilenet},
  {resnet20, resnet32, resnet56}, {densenet121} and {googlenet, vgg13, vgg16, lstm, transformer},
  so a table named after one model may have been measured on another.
- They are noisy: neighbouring epochs and batches differ by factors of two and more, and some scales
  fall during training, where a noise scale is expected to grow.
- The released code interpolates the two parts of the ratio between batch sizes, then divides; here
  the ratio itself is interpolated, since the parts are not reproduced in full.
"""

from __future__ import annotations

import bisect
import math

EPOCH_SAMPLES = 50_000
"""Samples of one epoch: the training images of CIFAR-10."""

EPOCHS = 10
"""Epochs of a table, 0 to 9; later epochs are taken to be like the last."""

BATCHES = (64, 128, 256, 512, 1024)
"""Samples per update of the rows of a table."""

TABLES: dict[str, tuple[tuple[float, ...], ...]] = {
    "alexnet": (
        (69, 167, 286, 291, 398, 483, 493, 527, 908, 727),
        (371, 144, 439, 244, 297, 637, 434, 414, 617, 589),
        (553, 651, 391, 549, 501, 235, 502, 469, 583, 340),
        (2333, 1499, 1162, 1115, 468, 934, 740, 503, 1084, 572),
        (5193, 4586, 4756, 2671, 2533, 3628, 1728, 861, 1362, 1131),
    ),
    "resnet20": (
        (162, 105, 224, 409, 277, 414, 446, 534, 581, 545),
        (136, 414, 391, 233, 146, 392, 291, 487, 434, 444),
        (476, 167, 223, 371, 235, 263, 278, 449, 349, 447),
        (1992, 585, 807, 395, 332, 389, 455, 574, 775, 471),
        (1390, 1752, 2308, 1136, 1910, 851, 1027, 1400, 1438, 699),
    ),
    "densenet121": (
        (101, 229, 363, 333, 413, 577, 1071, 626, 650, 887),
        (180, 173, 244, 229, 398, 312, 576, 565, 664, 834),
        (179, 114, 178, 217, 264, 212, 263, 268, 603, 410),
        (390, 188, 230, 184, 183, 209, 161, 166, 264, 325),
        (1106, 161, 149, 316, 184, 186, 150, 114, 138, 215),
    ),
    "googlenet": (
        (296, 1908, 2158, 2345, 3172, 5334, 8286, 5269, 12072, 7209),
        (213, 589, 2021, 2363, 2698, 3226, 4589, 6925, 7937, 9375),
        (114, 217, 919, 1628, 1931, 2644, 3119, 4741, 5766, 5071),
        (114, 467, 483, 1040, 1564, 2425, 3737, 5272, 5304, 6160),
        (1508, 439, 611, 785, 3028, 1769, 3974, 5207, 9499, 5067),
    ),
}
"""Noise scales in samples: model to one row per batch size, one column per epoch."""


def noise_scale(table: str, batch: float, samples: float) -> float:
    """The noise scale of a table in samples, as STAR looks it up.

    batch: samples of an update of all ranks, N*b; clamped to the table and interpolated linearly.
    samples: samples applied so far; the epoch is round(samples/50000), halves up, at most 9.

    >>> noise_scale("resnet20", batch=128, samples=0), noise_scale("resnet20", 192, samples=0)
    (136.0, 306.0)
    """
    epoch = min(math.floor(samples / EPOCH_SAMPLES + 0.5), EPOCHS - 1)
    size = min(max(batch, BATCHES[0]), BATCHES[-1])
    above = max(bisect.bisect_left(BATCHES, size), 1)
    small, large = BATCHES[above - 1], BATCHES[above]
    low, high = (TABLES[table][row][epoch] for row in (above - 1, above))
    return low + (high - low) * (size - small) / (large - small)

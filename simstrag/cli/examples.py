"""What the help of each command shows at its end."""

__all__ = ["EXAMPLES", "examples"]

EXAMPLES = {
    "run": (
        "simstrag run examples/demo.yaml --policy korel --seed 3 --out runs/korel-3",
        "simstrag run examples/demo.yaml --policy ssp:bound=5 --timeline ssp.json.gz",
        "simstrag run examples/demo.yaml --json",
    ),
    "compare": (
        "simstrag compare examples/demo.yaml --sensitivity --out reports/demo",
        "simstrag compare examples/demo.yaml -p bsp -p korel --seeds 5 -o reports/two",
        "simstrag compare examples/demo.yaml --jobs 1 --json",
    ),
    "sensitivity": (
        "simstrag sensitivity examples/demo.yaml -k learner.c_tau --seeds 1",
    ),
    "sweep": (
        "simstrag sweep examples/study.yaml --out reports/study",
        "simstrag sweep examples/study.yaml --shard 1/16",
    ),
    "schema": ("simstrag schema study",),
    "policies": (
        "simstrag policies",
        "simstrag policies ssp:bound=5",
        "simstrag policies --json",
    ),
    "ddp": (
        "simstrag ddp digits --policy bsp --checkpoint 50 --out runs/real",
        "simstrag ddp examples/train.py --ranks 2 -- --policy asgd",
    ),
    "calibrate": (
        "simstrag calibrate --workload transformer --out profiles/mine",
        "simstrag calibrate --plan",
    ),
    "calibrate show": (
        "simstrag calibrate show profiles/mine",
        "simstrag calibrate show profiles/mine --plot mine.png",
    ),
    "calibrate compare": ("simstrag calibrate compare profiles/mine profiles/other",),
    "calibrate check": ("simstrag calibrate check profiles/mine --minutes 4",),
    "calibrate derive": ("simstrag calibrate derive profiles/mine --out again.json",),
    "calibrate import": (
        "simstrag calibrate import nccl-tests 2.log 8.log --out cluster.json",
    ),
    "calibrate workloads": ("simstrag calibrate workloads",),
    "validate": (
        "simstrag validate --workload digits --batch 256 --batch 384 --batch 512",
        "simstrag validate --profile profiles/digits --out reports/fidelity",
        "simstrag validate runs/mine --profile profiles/digits",
    ),
    "trace describe": (
        "simstrag trace describe slow.csv",
        "simstrag trace describe slow.csv --plot slow.png",
        "simstrag trace describe slow.csv --json",
    ),
    "trace generate": ("simstrag trace generate --severity uniform:1.2:3 --out drawn.csv",),
    "trace import": (
        "simstrag trace import utilisation load.csv --own gpu=0.6 --out others.csv",
    ),
    "trace resample": (
        "simstrag trace resample slow.csv --workers 64 --out more.csv",
    ),
    "report": (
        "simstrag report reports/demo",
        "simstrag report reports/demo --out page.html",
    ),
    "init": (
        "simstrag init slow.csv",
        "simstrag init slow.csv --out mine.yaml",
    ),
    "doctor": (
        "simstrag doctor",
        "simstrag doctor --json",
    ),
}  # fmt: skip


def examples(command: str) -> str:
    r"""The examples of a command as the end of its help, where no line is filled up.

    >>> examples("report").splitlines()[2]
    '  simstrag report reports/demo'
    """
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in EXAMPLES[command])))

"""The commands of `simstrag`, their groups, and the examples at the end of each help."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperGroup
from typer.main import get_command

from simstrag.cli import calibrate, calibrate_show
from simstrag.cli.advise import advise
from simstrag.cli.claims import claims
from simstrag.cli.cluster import cluster
from simstrag.cli.compare import compare
from simstrag.cli.console import print_line
from simstrag.cli.ddp import ddp
from simstrag.cli.demo import demo
from simstrag.cli.diagnose import diagnose
from simstrag.cli.doctor import doctor
from simstrag.cli.fit import fit
from simstrag.cli.init import init
from simstrag.cli.output import AnswerCommand, FileCommand, FixedCommand, Printing
from simstrag.cli.policies import policies
from simstrag.cli.record import record
from simstrag.cli.report import report
from simstrag.cli.run import run
from simstrag.cli.schema import schema
from simstrag.cli.sensitivity import sensitivity
from simstrag.cli.sweep import sweep
from simstrag.cli.trace import describe, generate, import_, resample
from simstrag.cli.validate import validate
from simstrag.cli.watch import watch

ABOUT = """\b
Compare straggler-mitigation policies for data-parallel training.
Start: simstrag demo. Exit codes: 0 done, 1 part failed, 2 mistake."""

EXAMPLES = {
    "demo": ("simstrag demo", "simstrag demo --out mine --open"),
    "run": (
        "simstrag run examples/demo.yaml --policy korel --seed 3 --out runs/korel-3",
        "simstrag run examples/demo.yaml --policy ssp:bound=5 --timeline ssp.json.gz",
    ),
    "compare": (
        "simstrag compare examples/demo.yaml --sensitivity --out reports/eleven",
        "simstrag compare examples/demo.yaml -p bsp -p korel --seeds 5 -o reports/two",
    ),
    "advise": (
        "simstrag advise examples/demo.yaml --out reports/advice",
        "simstrag advise slow.csv --step 0.35s --link 25Gbit --change A",
    ),
    "sensitivity": ("simstrag sensitivity examples/demo.yaml -k learner.c_tau --seeds 1",),
    "sweep": (
        "simstrag sweep examples/study.yaml --out reports/study",
        "simstrag sweep examples/study.yaml --shard 1/16",
    ),
    "cluster": (
        "simstrag cluster examples/cluster.yaml --out reports/cluster",
        "simstrag cluster examples/cluster.yaml --shard 1/16",
        "simstrag cluster examples/cluster.yaml --constants",
    ),
    "claims": ("simstrag claims --quick", "simstrag claims --only korel-delay --quick"),
    "validate": (
        "simstrag validate --workload digits --batch 256 --batch 384 --batch 512",
        "simstrag validate --profile profiles/digits --out reports/validation",
        "simstrag validate runs/mine --profile profiles/digits",
    ),
    "policies": (
        "simstrag policies",
        "simstrag policies ssp:bound=5",
        "simstrag policies mine.py:Patient --check",
    ),
    "ddp": (
        "simstrag ddp digits --policy bsp --checkpoint 50 --out runs/real",
        "simstrag ddp examples/train.py --ranks 2 -- --policy asgd",
    ),
    "watch": (
        "simstrag watch runs/mine --gpu-price 2",
        "simstrag watch runs/mine --html watch.html --metrics 9464",
        "simstrag watch host1/mine host2/mine --once",
    ),
    "record": (
        "simstrag record accelerate launch train.py",
        "simstrag record --out runs/job torchrun train.py",
    ),
    "report": (
        "simstrag report reports/demo/comparison",
        "simstrag report reports/demo/comparison --out page.html",
        "simstrag report reports/study --x server.service",
    ),
    "init": (
        "simstrag init slow.csv --out mine.yaml",
        "simstrag init slow.csv --step 0.35s --parameters 100e6 --link 25Gbit",
    ),
    "diagnose": (
        "simstrag diagnose steps.csv nvidia-smi.csv --out reports/slow",
        "simstrag diagnose runs/real --compare korel,lb_bsp --amp-ratio 1.6 --json",
    ),
    "whatif": ("simstrag whatif trace.parquet --gpu-price 2 --out reports/whatif",),
    "schema": ("simstrag schema study",),
    "doctor": ("simstrag doctor", "simstrag doctor --json"),
    "fit": ("simstrag fit examples/real-learning.yaml --policy ssp --policy backup",),
    "trace describe": (
        "simstrag trace describe slow.csv",
        "simstrag trace describe slow.csv --plot slow.png",
        "simstrag trace describe slow.csv --json",
    ),
    "trace generate": ("simstrag trace generate --severity uniform:1.2:3 --out drawn.csv",),
    "trace import": ("simstrag trace import utilisation load.csv --own gpu=0.6 --out mine.csv",),
    "trace resample": ("simstrag trace resample slow.csv --workers 64 --out more.csv",),
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
    "calibrate import": ("simstrag calibrate import nccl-tests 2.log 8.log --out cluster.json",),
    "calibrate workloads": ("simstrag calibrate workloads",),
}

COMMANDS: dict[str, dict[str, Any]] = {
    "Compare policies": {
        "demo": demo, "init": init, "compare": compare, "advise": advise,
        "sensitivity": sensitivity, "sweep": sweep, "cluster": cluster, "claims": claims,
        "run": run, "report": report, "policies": policies,
        "fit": fit,
    },
    "On real jobs and ranks": {
        "record": record, "watch": watch, "diagnose": diagnose, "whatif": diagnose,
        "trace": {
            "describe": describe, "generate": generate, "import": import_, "resample": resample,
        },
        "calibrate": {
            "show": calibrate_show.show, "compare": calibrate_show.compare,
            "check": calibrate.check, "derive": calibrate.derive, "import": calibrate.import_,
            "workloads": calibrate.workloads,
        },
        "ddp": ddp, "validate": validate,
    },
    "This installation": {"doctor": doctor, "schema": schema},
}  # fmt: skip
"""Each command's function, or the commands of its group, by the titles of the help."""
OPEN = ("record",)
"""Commands whose arguments are another command, with options of its own."""
OLD = ("whatif",)
"""Names that older scripts use, which the help leaves out."""
ANSWERS = (
    "policies", "watch", "doctor", "trace describe", "calibrate show",
    "calibrate compare", "calibrate check", "calibrate workloads",
)  # fmt: skip
"""Commands whose answer is what they print."""
WIDEST = 1000
"""Most characters in a line of help."""


class Grouped(Printing, TyperGroup):
    """Commands whose help lists those of a group together, and cuts no sentence."""

    modes: ClassVar[tuple[str, ...]] = ()

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write its options, then its commands below their titles."""
        super().format_options(ctx, formatter)
        panels = COMMANDS if ctx.parent is None else {"Commands": self.commands}
        for title, names in panels.items():
            shown = {name: self.commands[name] for name in names if not self.commands[name].hidden}
            with formatter.section(title):
                formatter.write_dl(
                    [(name, each.get_short_help_str(WIDEST)) for name, each in shown.items()]
                )


class Measuring(Grouped):
    """Commands of which the group is one, too."""

    modes = FileCommand.modes


PLAIN: dict[str, Any] = {
    "cls": Grouped,
    "no_args_is_help": True,
    "rich_markup_mode": None,  # no boxes: a help fits a screen
    "context_settings": {
        "help_option_names": ["-h", "--help"],
        "max_content_width": WIDEST,  # as wide as the terminal
    },
}


def command() -> Any:
    """The command line, ready to be called."""
    app = typer.Typer(name="simstrag", help=ABOUT, pretty_exceptions_enable=False, **PLAIN)
    app.callback(invoke_without_command=True)(_version)
    groups = {
        "trace": typer.Typer(help="Describe a contention trace, or make one of a log.", **PLAIN),
        "calibrate": typer.Typer(
            help="Measure this machine; look at, check and compare profiles.",
            **(PLAIN | {"cls": Measuring, "no_args_is_help": False}),
        ),
    }
    groups["calibrate"].callback(invoke_without_command=True)(calibrate.calibrate)
    for members in COMMANDS.values():
        for name, function in members.items():
            if name not in groups:
                _add(app, name, name, function)
                continue
            for each, of_group in function.items():
                _add(groups[name], each, f"{name} {each}", of_group)
            epilog = _epilog(name) if name in EXAMPLES else None
            app.add_typer(groups[name], name=name, epilog=epilog)
    return get_command(app)


def _add(app: typer.Typer, name: str, path: str, function: Callable[..., None]) -> None:
    """Add a command with the examples of its path."""
    kind = AnswerCommand if path in ANSWERS else FixedCommand if path == "schema" else FileCommand
    app.command(
        name, cls=kind,
        epilog=_epilog(path), hidden=path in OLD,
        context_settings={"allow_interspersed_args": path not in OPEN},
    )(function)  # fmt: skip


def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        print_line(f"simstrag {installed('simstrag')}")
        raise typer.Exit


def _epilog(path: str) -> str:
    """The examples of a command for the end of its help; \\b keeps its lines apart."""
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in EXAMPLES[path])))

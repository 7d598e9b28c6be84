"""The commands of `simstrag`, their groups, and the examples at the end of each help."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from simstrag.cli import calibrate, calibrate_show, predict
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
from simstrag.cli.learn import learn
from simstrag.cli.options import OUTPUT
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
    "learn": (
        "simstrag learn star_ml examples/demo.yaml --out mine.npz",
        "simstrag learn star_ml examples/demo.yaml --check shipped",
    ),
    "fit": ("simstrag fit examples/real-learning.yaml --policy ssp --policy backup",),
    "predict train": ("simstrag predict train examples/cluster.yaml --out lstm.npz",),
    "predict check": ("simstrag predict check lstm.npz examples/cluster.yaml",),
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

COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo, "run": run, "compare": compare, "advise": advise, "sensitivity": sensitivity,
    "sweep": sweep, "cluster": cluster, "record": record, "watch": watch, "diagnose": diagnose,
    "whatif": diagnose, "claims": claims, "validate": validate, "policies": policies, "ddp": ddp,
    "report": report,
    "init": init, "schema": schema, "doctor": doctor,
    "learn": learn, "fit": fit, "predict train": predict.train, "predict check": predict.check,
    "trace describe": describe, "trace generate": generate, "trace import": import_,
    "trace resample": resample,
    "calibrate show": calibrate_show.show, "calibrate compare": calibrate_show.compare,
    "calibrate check": calibrate.check, "calibrate derive": calibrate.derive,
    "calibrate import": calibrate.import_, "calibrate workloads": calibrate.workloads,
}  # fmt: skip
"""Each command's function, in the order of the help."""

GROUPS = {
    "Compare policies": (
        "demo",
        "init",
        "compare",
        "advise",
        "sensitivity",
        "sweep",
        "cluster",
        "claims",
        "run",
        "report",
        "policies",
        "predict",
        "learn",
        "fit",
    ),
    "On real jobs and ranks": (
        "record",
        "watch",
        "diagnose",
        "trace",
        "calibrate",
        "ddp",
        "validate",
    ),
    "This installation": ("doctor", "schema"),
}
"""The commands of each group of the help."""

OPEN = ("record",)
"""Commands whose arguments are another command, with options of its own."""
OLD = ("whatif",)
"""Names that older scripts use, which the help leaves out."""
OTHER = "Options"
"""The title of options without a group."""
WIDEST = 1000
"""Most characters in a line of help."""


def write_options(command: Any, ctx: Any, formatter: Any) -> None:
    """Write the parameters of a command below the titles of their groups, output last."""
    sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], OTHER: []}
    for parameter in command.get_params(ctx):
        group = getattr(parameter, "rich_help_panel", None) or OTHER
        title = "Arguments" if parameter.param_type_name == "argument" else group
        if record := parameter.get_help_record(ctx):
            sections.setdefault(title, []).append(record)
    output = sections.pop(OUTPUT, [])
    if len(sections) == 2 or not output:  # a short command
        sections[OTHER] = [*sections[OTHER][:-1], *output, *sections[OTHER][-1:]]
    else:  # --help is the last
        sections[OUTPUT] = [*output, sections[OTHER].pop()]
    for title, rows in sections.items():
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows)


class Command(TyperCommand):
    """A command whose help lists the options of a group together."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write its arguments and options."""
        write_options(self, ctx, formatter)


class Grouped(TyperGroup):
    """Commands whose help lists those of a group together, and cuts no sentence."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write its options, then its commands: those of `GROUPS`, then all others."""
        write_options(self, ctx, formatter)
        groups = GROUPS if ctx.parent is None else {}
        grouped = {name for names in groups.values() for name in names}
        others = {
            "Commands": [
                name
                for name, each in self.commands.items()
                if name not in grouped and not each.hidden
            ]
        }
        for title, names in {**groups, **others}.items():
            rows = [(name, self.commands[name].get_short_help_str(WIDEST)) for name in names]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


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
        "predict": typer.Typer(help="Train and check predictors of stragglers.", **PLAIN),
        "calibrate": typer.Typer(
            help="Measure this machine; look at, check and compare profiles.",
            **(PLAIN | {"no_args_is_help": False}),
        ),
    }
    groups["calibrate"].callback(invoke_without_command=True)(calibrate.calibrate)
    for path, function in COMMANDS.items():
        *group, name = path.split()
        owner = groups[group[0]] if group else app
        hidden = path in OLD
        settings = {"allow_interspersed_args": path not in OPEN}
        owner.command(
            name, cls=Command, epilog=_epilog(path), hidden=hidden, context_settings=settings
        )(function)
    app.add_typer(groups["trace"], name="trace")
    app.add_typer(groups["predict"], name="predict")
    app.add_typer(groups["calibrate"], name="calibrate", epilog=_epilog("calibrate"))
    return get_command(app)


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

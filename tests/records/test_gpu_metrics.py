"""Readers of GPU metrics: each tool's format, and the variants in which people have it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simstrag.errors import InputError
from simstrag.records import gpu_metrics, nvidia_smi, prometheus, utilisation
from simstrag.records.gpu_metrics import read_dmon, read_system
from simstrag.records.log_file import LogFile, Reader
from simstrag.records.nvidia_smi import read as read_smi
from simstrag.records.record import (
    GPU,
    LANES,
    PCIE,
    POWER,
    POWER_LIMIT,
    REASONS,
    SM_CLOCK,
    TEMPERATURE,
    Record,
)
from simstrag.traces.of_loads import trace_of_series
from simstrag.whatif.hardware import hardware, healthy_facts
from tests.support.damage import damaged, outcome
from tests.support.drawn_gpus import draw

READERS = (*nvidia_smi.READERS, *gpu_metrics.READERS, *prometheus.READERS, *utilisation.READERS)
PLAIN = """timestamp, index, utilization.gpu [%], clocks.current.sm [MHz], power.draw [W]
2026/11/20 10:00:00.463, 0, 98 %, 1980 MHz, 655.10 W
2026/11/20 10:00:00.469, 1, 97 %, 1200 MHz, 410.20 W
2026/11/20 10:00:05.463, 0, 98 %, 1965 MHz, 655.10 W
2026/11/20 10:00:05.469, 1, [N/A], 1185 MHz, [Not Supported]
"""


def file(text: str | bytes, name: str = "log.csv") -> LogFile:
    return LogFile(Path(name), text if isinstance(text, bytes) else text.encode())


def names_of(given: LogFile) -> list[str]:
    return [reader.name for reader in READERS if reader.recognise(given)]


def smi(text: str | bytes, **options: Any) -> Record:
    given = file(text)
    assert names_of(given)[:1] == ["nvidia-smi"]
    return read_smi([given], **options)


def values(record: Record, quantity: str, node: str) -> list[float]:
    series = record.series_of(quantity)
    assert series is not None
    return [float(v) for v in series.of_node(record.nodes.index(node))[1]]


def test_rows_of_nvidia_smi_are_series_of_cards() -> None:
    found = smi(PLAIN)
    assert found.nodes == ("GPU 0", "GPU 1")
    assert found.began == "2026-11-20T10:00:00"
    assert values(found, SM_CLOCK, "GPU 1") == [1200, 1185]
    assert values(found, GPU, "GPU 1") == [0.97]  # the second is a gap
    assert values(found, POWER, "GPU 1") == [410.2]
    series = found.series_of(SM_CLOCK)
    assert series is not None
    assert series.of_node(1)[0].tolist() == pytest.approx([0.006, 5.006])


VARIANTS: dict[str, Callable[[str], str | bytes]] = {
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "UTF-16 of PowerShell": lambda text: text.encode("utf-16"),
    "byte order mark": lambda text: text.encode("utf-8-sig"),
    "blank lines": lambda text: text.replace("\n", "\n\n"),
    "no units": lambda text: text.replace(" %", "").replace(" MHz", "").replace(" W", ""),
    "a header in the middle": lambda text: text + text.partition("\n")[0] + "\n",
    "a cut last line": lambda text: text + "2026/11/20 10:00:10.463, 0, 98 %, 19",
    "a last cell that is cut": lambda text: text + "2026/11/20 10:00:10.463, 0, 98 %, 1980 MHz, 6",
    "a message among rows": lambda text: text + "Unable to determine the device handle\n\n",
    "ISO 8601": lambda text: text.replace("2026/11/20 ", "2026-11-20T"),
    "as in Britain": lambda text: text.replace("2026/11/20 ", "20/11/2026 "),
    "as in America": lambda text: text.replace("2026/11/20 ", "11/20/2026 "),
    "semicolons and decimal commas": lambda text: (
        text.replace(", ", ";").replace("655.10", "655,10").replace("410.20", "410,20")
    ),
    "tabs": lambda text: text.replace(", ", "\t"),
    "quotes": lambda text: text.replace("98 %", '"98 %"'),
    "a greeting before it": lambda text: "Welcome to gpu01\n" + text,
    "no header": lambda text: text.partition("\n")[2],
    "capital letters": lambda text: text.replace("timestamp", "Timestamp"),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_log_of_nvidia_smi_is_read_in_every_variant(variant: str) -> None:
    found, right = smi(VARIANTS[variant](PLAIN)), smi(PLAIN)
    assert found.nodes == right.nodes
    for quantity in (GPU, SM_CLOCK, POWER):
        for node in right.nodes:
            assert values(found, quantity, node) == values(right, quantity, node)
    assert found.began[:10] == "2026-11-20"


def test_a_packed_log_is_the_log(tmp_path: Path) -> None:
    path = tmp_path / "smi.csv.gz"
    path.write_bytes(gzip.compress(PLAIN.encode()))
    assert len(read_smi([LogFile.open(path)]).nodes) == 2


def test_lines_that_are_no_samples_are_counted() -> None:
    message = "Unable to determine the device handle for GPU 0000:0B:00.0: GPU is lost."
    first, rest = PLAIN.split("\n", 1)
    (missing,) = smi(f"{first}\n{message}\n{rest}").missing
    assert missing == f"1 lines are no samples of nvidia-smi; the first is '{message}'"


@pytest.mark.parametrize("word", ["event", "throttle"])
def test_reasons_may_be_a_mask_or_a_column_each(word: str) -> None:
    mask = f"index, clocks_{word}_reasons.active\n0, 0x0000000000000064\n0, [N/A]\n"
    assert values(smi(mask), REASONS, "GPU 0") == [0x64]
    header = ", ".join(
        f"clocks_{word}_reasons.{r}" for r in ("sw_power_cap", "hw_thermal_slowdown", "gpu_idle")
    )
    flags = f"index, {header}\n0, Active, Not Active, [N/A]\n0, Active, Active, Not Active\n"
    assert values(smi(flags), REASONS, "GPU 0") == [4, 0x44]


def test_the_surest_of_several_columns_counts() -> None:
    text = (
        "index, utilization.gpu, power.draw.average, power.draw.instant, power.limit, "
        "enforced.power.limit, clocks.gr, clocks.sm, pcie.link.gen.current, pcie.link.gen.max, "
        "pcie.link.width.current, temperature.gpu, utilization.memory\n"
        "0, 50, 300, 310, 700, 650, 1000, 1100, 4, 5, 16, 61, 99\n"
        "0, 50, 300, 310, 700, 650, 1000, 1100, 4, 5, 16, 61, 99\n"
    )
    found = smi(text)
    right = {
        GPU: 0.5, POWER: 310, POWER_LIMIT: 650, SM_CLOCK: 1100, PCIE: 4, LANES: 16, TEMPERATURE: 61,
    }  # fmt: skip
    assert {each.quantity: float(each.value[0]) for each in found.series} == right


def test_a_log_without_times_counts_its_samples() -> None:
    found = smi("index, clocks.sm [MHz]\n0, 1980 MHz\n1, 1980 MHz\n0, 1980 MHz\n1, 1980 MHz\n")
    series = found.series_of(SM_CLOCK)
    assert series is not None
    assert series.time.tolist() == [0, 1, 0, 1]
    assert any("1 s apart, as the log has no times" in note for note in found.notes)


def test_cards_in_turn_are_told_apart_without_an_index() -> None:
    lines = [line.split(", ") for line in PLAIN.splitlines()]
    found = smi("\n".join(", ".join([line[0], *line[2:]]) for line in lines) + "\n")
    assert values(found, SM_CLOCK, "GPU 1") == [1200, 1185]
    assert any("2 GPUs in turn" in note for note in found.notes)


@pytest.mark.parametrize(
    "cell", ["GPU-8f1a7c52-0000-1111-2222-333344445555", "00000000:0B:00.0", "1563221011234"]
)
def test_cards_may_be_called_by_any_identifier(cell: str) -> None:
    column = "uuid" if cell.startswith("GPU") else "pci.bus_id" if ":" in cell else "serial"
    found = smi(f"{column}, clocks.sm [MHz]\n{cell}, 1980 MHz\n{cell}, 1965 MHz\n")
    assert found.nodes == (f"GPU {cell}" if cell.isdigit() else cell,)


def test_hosts_are_a_column_or_what_tells_the_files_apart() -> None:
    text = "hostname, index, clocks.sm\ngpu01, 0, 1980\ngpu02, 0, 1200\n"
    assert smi(text).nodes == ("gpu01/0", "gpu02/0")
    found = read_smi([file(PLAIN, f"smi-{host}.csv") for host in ("gpu01", "gpu02")])
    assert found.nodes == ("gpu01/0", "gpu01/1", "gpu02/0", "gpu02/1")


def test_models_of_cards_are_kept() -> None:
    text = "index, name, clocks.sm\n0, NVIDIA H100, 1980\n1, NVIDIA A100, 1410\n"
    assert smi(text).models == ("NVIDIA H100", "NVIDIA A100")


def test_without_header_and_units_the_way_out_is_said() -> None:
    rows = "2026/11/20 10:00:00.463, 98, 1980\n2026/11/20 10:00:05.463, 98, 1965\n"
    with pytest.raises(InputError, match=r"leave noheader \(and nounits\) out of --format=csv"):
        smi(rows)
    found = smi(rows, columns={SM_CLOCK: "3", GPU: "2"})
    assert values(found, SM_CLOCK, "GPU 0") == [1980, 1965]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("index, clocks.sm\n0, fast\n", r"log.csv: clocks.sm: 'fast' is not a number"),
        ("index, utilization.gpu\n0, 130\n", "more than 100 percent"),
        ("index, clocks.sm\n", "has no samples of nvidia-smi; log by nvidia-smi --query-gpu"),
        ("index, memory.used [MiB]\n0, 5 MiB\n", "no utilisation, clock, power or reason"),
        ("index, clocks_event_reasons.active\n0, warm\n", "no mask such as 0x"),
    ],
)
def test_a_log_that_cannot_be_read_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_smi([file(text)])
    assert "\n" not in str(caught.value)


# -- dcgmi dmon

DMON = """#Entity   GPUTL             SMCLK     POWER     TMPTR    DVCCTR
ID                                      W         C
GPU 0     97                1980      655.100   61       0
GPU 1     96                1200      410.500   88       32
#Entity   GPUTL             SMCLK     POWER     TMPTR    DVCCTR
ID                                      W         C
GPU 0     97                1980      655.100   61       9223372036854775792
GPU 1     N/A               1200      410.500   88       32
GPU 0     97
"""


def test_rows_of_dcgmi_dmon_are_counted_as_they_have_no_times() -> None:
    given = file(DMON, "dmon.txt")
    assert names_of(given) == ["dcgmi dmon"]
    found = read_dmon([given])
    assert values(found, GPU, "GPU 1") == [0.96]
    assert values(found, SM_CLOCK, "GPU 1") == [1200, 1200]
    assert values(found, REASONS, "GPU 0") == [0]  # a blank of DCGM is a gap
    assert values(found, REASONS, "GPU 1") == [32, 32]
    assert any("1 s apart, the default of its option -d" in note for note in found.notes)


def test_a_table_of_other_fields_says_which_to_ask_for() -> None:
    with pytest.raises(InputError, match="log by dcgmi dmon -e 203,100"):
        read_dmon([file("#Entity   FBUSD\nID\nGPU 0     28456\n")])


# -- W&B


@pytest.mark.parametrize("prefix", ["system/", "system.", "", "run-7 - system/"])
@pytest.mark.parametrize("is_json", [False, True])
def test_system_metrics_of_wandb_are_series(prefix: str, is_json: bool) -> None:
    rows: list[dict[str, Any]] = [
        {"_timestamp": 1.7e9 + 15 * k, f"{prefix}gpu.0.gpu": 98.5, f"{prefix}gpu.0.smClock": 1980,
         f"{prefix}gpu.1.powerWatts": 410.5, f"{prefix}gpu.0.memory": 3, f"{prefix}cpu": 9}
        for k in range(3)
    ]  # fmt: skip
    rows[1][f"{prefix}gpu.0.gpu"] = None
    text = "\n".join(map(json.dumps, rows))
    if not is_json:
        cells = [",".join("" if v is None else str(v) for v in row.values()) for row in rows]
        text = "\n".join([",".join(rows[0]), *cells])
    given = file(text)
    assert names_of(given)[0] == "wandb-system"
    found = read_system([given])
    host = "run-7/" if "run-7" in prefix else "GPU "
    assert values(found, GPU, f"{host}0") == [0.985, 0.985]
    assert values(found, POWER, f"{host}1") == [410.5] * 3
    assert found.began == "2023-11-14T22:13:20+00:00"


# -- Prometheus


def matrix(*series: tuple[dict[str, str], list[tuple[float, Any]]]) -> LogFile:
    result = [{"metric": labels, "values": points} for labels, points in series]
    return file(
        json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})
    )


def range_of(name: str, *cells: Any, start: float = 1.7e9, **labels: str) -> Any:
    where = {"__name__": name, "Hostname": "gpu01", "gpu": "0"} | labels
    return where, [(start + 15 * k, str(cell)) for k, cell in enumerate(cells)]


def test_metrics_of_dcgm_exporter_are_series() -> None:
    found = prometheus.read([
        matrix(
            range_of("DCGM_FI_DEV_GPU_UTIL", 97, 96),
            range_of("DCGM_FI_DEV_SM_CLOCK", 1980, "NaN"),
            range_of("DCGM_FI_DEV_POWER_USAGE", 655.1, 655.2),
            range_of("DCGM_FI_DEV_GPU_TEMP", 61, 61),
            range_of("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", 0, 96),
            range_of("DCGM_FI_DEV_THERMAL_VIOLATION", 0, 17),
        )
    ])  # fmt: skip
    right = {GPU: [0.97, 0.96], SM_CLOCK: [1980], POWER: [655.1, 655.2], TEMPERATURE: [61, 61],
             REASONS: [0, 96]}  # fmt: skip
    assert {s.quantity: s.value.tolist() for s in found.series} == right
    assert "Dropped: DCGM_FI_DEV_THERMAL_VIOLATION, which count and are no state." in found.notes


@pytest.mark.parametrize("name", ["CLOCK_THROTTLE_REASONS", "CLOCKS_EVENT_REASONS"])
def test_a_mask_of_bits_is_never_a_utilisation(name: str) -> None:
    given = matrix(range_of(f"DCGM_FI_DEV_{name}", 0, 96))
    assert prometheus.read([given]).series_of(GPU) is None
    with pytest.raises(InputError, match="is a mask of bits, and no utilisation"):
        prometheus.read([given], {"gpu": f"DCGM_FI_DEV_{name}"})


def test_the_ratio_of_a_busy_engine_is_a_share() -> None:
    found = prometheus.read([matrix(range_of("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.5, 0.25))])
    assert values(found, GPU, "gpu01") == [0.5, 0.25]


def test_two_pods_of_one_card_are_joined_and_the_end_of_the_first_is_cut() -> None:
    util = "DCGM_FI_DEV_GPU_UTIL"
    old = range_of(util, 50, 51, 51, 51, exported_pod="a")
    new = range_of(util, 70, 71, 72, start=1.7e9 + 30, exported_pod="b")
    found = prometheus.read([matrix(old, new)])
    assert found.nodes == ("gpu01",)
    assert values(found, GPU, "gpu01") == [0.5, 0.51, 0.7, 0.71, 0.72]


def test_values_without_a_name_are_percent_only_if_they_can_be() -> None:
    low, high = (matrix(({"node": "a"}, [(1.7e9, v)])) for v in ("62", "1980"))
    found = prometheus.read([low])
    assert values(found, GPU, "a") == [0.62]
    (unseen,) = found.unseen
    assert "SM_CLOCK" in unseen.remedy
    assert any(note.startswith("Assumed: the values are utilisations") for note in found.notes)
    with pytest.raises(InputError, match="has value, which is no load, clock or power"):
        prometheus.read([high])


def test_another_metric_is_refused_with_the_query_that_helps() -> None:
    with pytest.raises(InputError, match=r"DCGM_FI_DEV_FB_USED, which is no load.*query_range"):
        prometheus.read([matrix(range_of("DCGM_FI_DEV_FB_USED", 5))])


@pytest.mark.parametrize(
    ("name", "message"),
    [("f-instant", "query_range"), ("g-error", "exceeded maximum resolution of 11,000 points")],
)
def test_an_answer_without_a_range_says_what_to_ask_for(name: str, message: str) -> None:
    given = LogFile.open(f"tests/data/records/prometheus/{name}.json")
    assert names_of(given) == ["prometheus"]
    with pytest.raises(InputError, match=message):
        prometheus.read([given])


def test_a_panel_of_clocks_is_known_by_its_title_and_its_units() -> None:
    text = '"Time","gpu01","gpu02"\n2026-01-31 10:00:00,1.98 GHz,1200 MHz\n'
    given = file(text, "GPU SM Clocks-data-2026-01-31.csv")
    assert names_of(given) == ["prometheus"]
    assert values(prometheus.read([given]), SM_CLOCK, "gpu02") == [1200]


# -- all


@pytest.mark.parametrize(
    "text",
    [
        "rank,step,seconds\n0,0,1\n", "time,host,samples_per_second\n0,a,5\n", "", "\0\1",
        "timestamp,loss\n1,2\n", "index,name\n0,a\n", '{"loss": 1}', "[1, 2]", "Time,loss\n1,2\n",
        "step: 1 loss: 2\n", "name,memory.used\na,b\n", "2026/11/20 10:00:00.463 INFO started\n",
    ],
)  # fmt: skip
def test_foreign_files_are_not_claimed(text: str) -> None:
    assert names_of(file(text)) == []


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_damaged_files_end_in_an_error_of_ours(reader: Reader) -> None:
    """150 mutations of each kind: `recognise` never fails, `read` only with `InputError`."""
    texts = {
        "nvidia-smi": PLAIN + draw(1).text[:3000], "dcgmi dmon": DMON,
        "wandb-system": '{"_timestamp": 1.7e9, "gpu.0.gpu": 98, "system.gpu.0.temp": 61}\n' * 9,
        "prometheus": matrix(range_of("DCGM_FI_DEV_SM_CLOCK", 1980, "NaN", 7)).text,
        "utilisation": "time,node,gpu\n0,a,5\n1,a,6\n",
    }  # fmt: skip
    for k in range(150):
        given = file(damaged(texts[reader.name].encode(), f"{reader.name} {k}"))
        for each in READERS:
            each.recognise(given)
        assert "\n" not in outcome(lambda given=given: use(reader.read([given], None)))


def use(record: Record) -> None:
    """What is made of a record: causes, and a trace."""
    hardware(record)
    healthy_facts(record)
    trace_of_series(record, paths=["tests/data/records/nvidia-smi.csv"])

"""The paper's published figures, for comparison with ours.

Liu et al., "Personalized Federated Learning for Spatio-Temporal Forecasting: A Dual Semantic
Alignment-Based Contrastive Approach": test errors, on a scale that it does not name, for 100 cells
of Trentino (SMS, Call, Net). Those data were not available, so the size of our errors cannot be
compared with these; the order of the methods and the numbers sent can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fuels.report.tables import Cell, Column, Table

# MSE and MAE of each; only the main table has the average.
HEADINGS = [
    f"{data} {error}" for data in ("SMS", "Call", "Net", "average") for error in ("MSE", "MAE")
]
Errors = tuple[float, ...]
FUELS_ROW: Errors = (1.249, 0.541, 0.353, 0.311, 0.880, 0.488)

PERFORMANCE: dict[str, tuple[Errors, int | None]] = {
    "FUELS": ((*FUELS_ROW, 0.827, 0.446), 6144),
    "Solo": ((1.884, 0.604, 0.361, 0.294, 2.423, 0.654, 1.556, 0.517), None),
    "FedAvg": ((1.452, 0.533, 0.393, 0.300, 2.649, 0.638, 1.498, 0.490), 100737),
    "FedProx": ((1.495, 0.542, 0.394, 0.300, 2.528, 0.629, 1.472, 0.490), 100737),
    "FedRep": ((1.551, 0.557, 0.372, 0.299, 2.288, 0.625, 1.404, 0.494), 100737),
    "PerFedAvg": ((1.253, 0.553, 0.392, 0.336, 1.107, 0.543, 0.917, 0.478), 100737),
    "pFedMe": ((1.250, 0.549, 0.409, 0.335, 1.184, 0.546, 0.948, 0.476), 100737),
    "FedDA": ((1.937, 0.699, 1.055, 0.430, 3.589, 0.849, 2.193, 0.659), 100737),
}
ABLATION: dict[str, Errors] = {
    "FUELS": FUELS_ROW,
    "w/o inter": (1.340, 0.560, 0.392, 0.323, 0.983, 0.494),
    "w/o intra": (1.336, 0.566, 0.455, 0.334, 1.000, 0.488),
    "w/o p-aware": (1.324, 0.575, 0.400, 0.342, 1.252, 0.570),
    "w/o W": (1.480, 0.582, 0.445, 0.337, 1.627, 0.633),
}
NOISE: dict[str, Errors] = {
    "FedAvg": PERFORMANCE["FedAvg"][0][:6],
    "FUELS": FUELS_ROW,
    "FUELS + Laplace 1": (1.397, 0.563, 0.443, 0.335, 1.086, 0.531),
    "FUELS + Gaussian 1": (1.395, 0.564, 0.419, 0.328, 1.117, 0.531),
    "FUELS + exponential 1": (1.365, 0.554, 0.406, 0.320, 1.047, 0.514),
}
SIZES: dict[int, tuple[Errors, int]] = {
    2: ((3.588, 1.125, 1.692, 0.848, 4.500, 1.213), 96),
    4: ((2.910, 0.899, 1.265, 0.634, 3.899, 1.041), 192),
    8: ((2.060, 0.683, 0.775, 0.429, 2.559, 0.791), 384),
    16: ((1.709, 0.611, 0.568, 0.364, 2.039, 0.672), 768),
    32: ((1.445, 0.567, 0.471, 0.340, 1.289, 0.562), 1536),
    64: ((1.348, 0.551, 0.412, 0.321, 1.051, 0.517), 3072),
    128: (FUELS_ROW, 6144),
    256: ((1.272, 0.531, 0.318, 0.298, 0.997, 0.487), 12288),
    512: ((1.248, 0.538, 0.326, 0.300, 0.990, 0.486), 24576),
}
METR_LA: dict[str, tuple[float, float]] = {
    "FUELS": (0.125, 0.166),
    "FedAvg": (0.126, 0.167),
    "FedProx": (0.127, 0.166),
    "FedRep": (0.127, 0.164),
    "PerFedAvg": (0.143, 0.193),
    "pFedMe": (0.137, 0.173),
}
UNDER_THRESHOLD = {"FUELS": 87, "FedRep": 72, "pFedMe": 80, "PerFedAvg": 81}  # %, Net, MSE < 1.5

NOT_COMPARABLE = (
    "The paper's errors are for 100 cells of Trentino, whose data were not available: only the"
    " order of the rows and the numbers sent can be compared with ours, not the size of the errors."
)


def with_paper_errors(ours: Table, printed: Mapping[str, Sequence[float]], name: str = "") -> Table:
    """Our table with the paper's MSE and MAE after our errors; empty where it shows none."""
    heading = f"paper {name}".rstrip()
    rows: list[list[Cell]] = []
    for row in ours.rows:
        errors = printed.get(str(row[0]), ())
        rows.append([*row[:5], *([f"{error:.3f}" for error in errors] or ["", ""]), *row[5:]])
    papers = [Column(f"{heading} {measure}", "as printed") for measure in ("MSE", "MAE")]
    return Table([*ours.columns[:5], *papers, *ours.columns[5:]], rows, ours.title)


def table(
    rows: Mapping[str, Errors] | Mapping[str, tuple[Errors, int | None]],
    what: str,
    first: str = "method",
) -> Table:
    """A table of the paper, digit for digit."""
    cells: list[list[Cell]] = []
    sent: list[Any] = []
    for name, entry in rows.items():
        errors, *sent = entry if isinstance(entry[0], tuple) else (entry,)
        cells.append([name, *(f"{error:.3f}" for error in errors), *sent])
    given = HEADINGS[: len(cells[0]) - 1 - len(sent)]
    columns = [Column(first), *(Column(name, "as printed") for name in given)]
    if sent:
        columns.append(Column("sent", "numbers up per client and round"))
    return Table(columns, cells, f"The paper's figures, Trentino ({what})")

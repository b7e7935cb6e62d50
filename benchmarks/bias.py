"""How much of the test error of finished runs is the same mistake again and again.

    python benchmarks/bias.py RUN [RUN ...]

For each run folder: its MSE, the mean of forecast minus truth, and which share of the MSE is the
square of each client's mean error, alone and hour of the day by hour; in standard deviations of the
client's training part.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import polars as pl

from fuels.errors import FuelsError
from fuels.storage.models import load_models
from fuels.storage.run_folder import RunFolder


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    options = parser.parse_args()
    print("| run | MSE | mean error | clients' means | by the hour |\n|---|---|---|---|---|")
    for path in options.runs:
        try:
            method, mse, mean, client, hour = measured(path)
        except FuelsError as error:
            raise SystemExit(f"bias.py: {error}") from None
        print(f"| {method} | {mse:.4f} | {mean:+.3f} | {client:.0%} | {hour:.0%} |")


def measured(path: Path) -> tuple[str, float, float, float, float]:
    """Method, MSE, mean error, and the shares of clients' means and of their hours' means."""
    folder, settings, _ = RunFolder.reopen(path)
    if not folder.finished:
        raise FuelsError(f"{path}: this run is not finished; end it with fuels run --resume {path}")
    models = load_models(folder.models)
    scale = dict(zip(models.ids, models.std.tolist(), strict=True))
    std = pl.col("client").replace_strict(scale, return_dtype=pl.Float64)
    errors = (
        pl.read_parquet(folder.forecasts)
        .drop_nulls()
        .select(
            "client",
            pl.col("time").dt.hour().alias("hour"),
            ((pl.col("forecast") - pl.col("actual")) / std).alias("error"),
        )
    )
    mse = errors.select(pl.col("error").pow(2).mean()).item()

    def share(*groups: str) -> float:
        """Of the MSE that goes with the mean error of each group."""
        means = pl.col("error").mean().over(groups)
        return float(errors.select(means.pow(2).mean()).item() / mse)

    mean = float(errors.select(pl.col("error").mean()).item())
    return settings.method, float(mse), mean, share("client"), share("client", "hour")


if __name__ == "__main__":
    main()

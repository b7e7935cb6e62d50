"""`Forecaster.predict` for many clients: the call that fits its horizons against later calls.

Experts for the horizons of training are fitted by `fit`. The first call that asks for more steps
fits their experts too, as every call had to before they were remembered, so the ratio of the first
call to the later ones is what remembering saves.

    python benchmarks/predict.py [--clients 100] [--days 40] [--steps 24] [--calls 3]
"""

from __future__ import annotations

import argparse
import statistics
import time

from fuels import Forecaster, example_frame


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--days", type=int, default=40)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--calls", type=int, default=3)
    options = parser.parse_args()
    frame = example_frame(clients=options.clients, days=options.days)
    begun = time.perf_counter()
    forecaster = Forecaster(rounds=1).fit(frame)  # accuracy does not matter here
    print(f"fit, one round: {time.perf_counter() - begun:.1f} s")
    forecaster.predict(1)
    seconds = []
    for _ in range(options.calls + 1):
        begun = time.perf_counter()
        forecaster.predict(options.steps)
        seconds.append(time.perf_counter() - begun)
    first, later = seconds[0], statistics.median(seconds[1:])
    print(f"predict({options.steps}), {options.clients} clients: first call {first:.1f} s")
    print(f"later calls: median {later:.2f} s, {first / later:.1f} times as fast")


if __name__ == "__main__":
    main()

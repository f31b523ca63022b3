"""Products from quantised weights and from dequantised ones: python -m bench.quantised [--json FILE]

One thread, one matrix of the bench checkpoint's order; the least of many runs. What the CPU port does follows from it
(ADR 0007).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
import torch.nn.functional as F

from bench.machine import idleness, provenance
from splash.hal.fp8 import fp8_values
from splash.model.layers.linear import linear, packed

OUT, IN = 2048, 1024
ROWS = (1, 4, 16, 64)


def forms(rows: int) -> dict[str, Callable[[], torch.Tensor]]:
    """The product of `rows` rows and one weight, from each form that the weight can be kept in."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, IN, generator=generator)
    int8 = torch.randint(-127, 128, (OUT, IN), dtype=torch.int8, generator=generator)
    scales = torch.rand(OUT, generator=generator) / 100
    weight = int8.float() * scales[:, None]
    fp8 = (weight * 100).to(torch.float8_e4m3fn)
    tiles = torch.rand(OUT // 128, IN // 128, generator=generator)
    wide, narrow = packed(weight), weight.bfloat16()
    x_narrow, narrow_scales = x.bfloat16(), scales.bfloat16()
    weight_only = torch.ops.aten._weight_int8pack_mm

    def from_fp8() -> torch.Tensor:
        numbers = fp8_values(fp8).view(OUT // 128, 128, IN // 128, 128)
        return linear(x, numbers.mul_(tiles[:, None, :, None]).view(OUT, IN))

    return {
        "float32, dequantised when loaded": lambda: linear(x, wide),
        "float32, int8 converted at each use": lambda: linear(x, int8.float()) * scales,
        "float32, int8 kernel": lambda: weight_only(x, int8, scales),
        "float32, fp8 converted at each use": from_fp8,
        "bfloat16, dequantised when loaded": lambda: F.linear(x_narrow, narrow),
        "bfloat16, int8 kernel": lambda: weight_only(x_narrow, int8, narrow_scales),
    }


def seconds(call: Callable[[], torch.Tensor], *, budget_s: float = 0.4) -> float:
    """The least of as many runs as fit."""
    call()
    least, end = float("inf"), time.perf_counter() + budget_s
    while (started := time.perf_counter()) < end:
        call()
        least = min(least, time.perf_counter() - started)
    return least


@click.command(help=__doc__)
@click.option("--json", "json_file", type=click.Path(path_type=Path))
def main(json_file: Path | None) -> None:
    torch.set_num_threads(1)
    machine: dict[str, Any] = {**provenance(), "idleness": idleness()}
    table: dict[str, dict[str, float]] = {}
    for rows in ROWS:
        for name, call in forms(rows).items():
            table.setdefault(name, {})[str(rows)] = seconds(call)
    print(f"µs, [{OUT}, {IN}]  " + "".join(f"{rows:>5} rows" for rows in ROWS))
    for name, found in table.items():
        print(f"{name:36}" + "".join(f"{found[str(rows)] * 1e6:10.0f}" for rows in ROWS))
    if json_file is not None:
        json_file.write_text(json.dumps({**machine, "shape": [OUT, IN], "seconds": table}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())

"""Small results of runs, for the tests of what shows them."""

import math

from splash.sim.result import RequestTimes, RunResult, Sample, SwitchRecord, Targets, run_result

REASON = "<b>dop</b> & dcp: 12.1 ms against 14.9 ms"
"""With characters that a page must not take for its own."""


def run(layout: str = "auto", *, switches: int = 2, requests: int = 40, slower: float = 1.0) -> RunResult:
    """Forty requests over a minute, alternating between tp and dop; `slower` stretches all latencies."""
    return run_result(
        layout,
        requests=[
            RequestTimes(i, i + 0.25 * slower, i + (1.25 + i / 10) * slower, 100 + i, 11)
            for i in range(requests)
        ],
        gaps={0.1 * slower: 300, 0.14 * slower: 100},
        targets=Targets(ttft_s=1.0, tpot_s=0.4),
        preemptions=3,
        time_share={"tp": 0.4, "dop": 0.6},
        switches=[
            SwitchRecord(
                10.0 * i,
                ("tp", "dop")[i % 2],
                ("dop", "tp")[i % 2],
                REASON,
                0.5,
                3 << 30,
                12,
                outcome=("done", "superseded")[i % 2],
            )
            for i in range(switches)
        ],
        samples=[
            Sample(i / 2, "tp" if i % 40 < 20 else "dop", i % 17, i % 5, math.sin(i / 9) ** 2, 1000.0 + i)
            for i in range(100)
        ],
        decisions=100,
        steps=4000,
        wall_s=0.5,
    )

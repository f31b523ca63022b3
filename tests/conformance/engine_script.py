"""An engine for the job tests, run as a script: launches ranks, says who they are, and does as it is told."""

import sys
import time

from splash_cpu import SPEC


def main(mode: str) -> None:
    job = SPEC.loader().launch(2, "tests.conformance.entries:serve", None)
    if mode == "starting":
        print("started", flush=True)
        time.sleep(600)
    job.send("hello")
    answers = job.receive(60)
    try:
        print([(answer[1], answer[2]) for answer in answers], flush=True)
        if mode == "collective":  # rank 0 waits in a collective, rank 1 is elsewhere
            job.send(("reduce", 0))
        elif mode == "exit":
            sys.exit(0)
        time.sleep(600)
    except KeyboardInterrupt:
        job.send("still there?")
        print([answer[3] for answer in job.receive(10)], flush=True)
        job.close()
        print("closed", flush=True)


main(sys.argv[1])

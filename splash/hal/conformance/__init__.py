"""The shipped suite that a port must pass: `splash conformance --backend NAME`, and the ports' own tests."""

from splash.hal.conformance.suite import CheckResult, run

__all__ = ["CheckResult", "run"]

"""`splash doctor`: what this machine offers to each port, and what is missing."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

    from splash.hal.registry import PortStatus

PACKAGES = ("torch", "mpi4py", "mpich", "safetensors", "tokenizers", "numpy", "rich", "click")


@click.command("doctor")
def command() -> int:
    """Say per port what was found and why not, and which versions are in use.

    Exits with 1 if no port can run.
    """
    from splash.cli.hardware import NO_GPU_PORT, has_gpu_port
    from splash.cli.output import output_console
    from splash.hal.registry import ports

    console = output_console({})
    _show_machine(console)
    found = ports()
    for port in found:
        _show_port(console, port)
    if not found:
        console.print("no port is installed; install splash anew, it brings the CPU port")
    elif not has_gpu_port(found):
        console.print(f"\n{NO_GPU_PORT}; `splash run --hw NAME` simulates one, `splash sim --help` says how")
    return 0 if any(not port.problem for port in found) else 1


def _show_machine(console: Console) -> None:
    import splash
    from splash.core.env import config_dir

    versions = ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    console.print(f"splash   {splash.__version__}")
    console.print(f"python   {platform.python_version()}, {sys.executable}")
    console.print(f"packages {versions}")
    console.print(
        f"machine  {platform.system()} {platform.release()} {platform.machine()}, {_cores()}, {_memory()}"
    )
    console.print(f"profiles of your own: {config_dir()}", markup=False)


def _show_port(console: Console, port: PortStatus) -> None:
    from rich.markup import escape

    aliases = f" ({', '.join(port.aliases)})" if port.aliases else ""
    state = "[red]not usable[/]" if port.problem else "[green]ready[/]"
    console.print(f"\n[bold]{port.name}[/]{aliases}: {state}  {escape(port.summary)}")
    if port.problem:
        console.print(f"  {escape(port.problem)}")
    for device in port.devices:
        memory = f", {device.memory_bytes / 2**30:.1f} GiB" if device.memory_bytes else ""
        memory += f" ({device.free_bytes / 2**30:.1f} free)" if device.free_bytes is not None else ""
        arch = f", {device.arch}" if device.arch else ""
        console.print(f"  device {device.index}: {escape(device.name)}{arch}{memory}")
    if not port.problem:
        for text in _number_forms(port.name):
            console.print(f"  {text}")


def _number_forms(name: str) -> list[str]:
    """In which types a port computes, and what it makes of quantised weights and KV."""
    from splash.hal.registry import load_backend
    from splash.spec.quantisation import ELEMENTS
    from splash.spec.storage import KV_TYPES

    caps = load_backend(name).caps
    kept = [element for element in ELEMENTS if element in caps.kept_quantised]
    made = [element for element in ELEMENTS if element not in caps.kept_quantised]
    weights = [f"{', '.join(kept)} kept as stored"] if kept else []
    weights += [f"{', '.join(made)} dequantised when loaded"] if made else []
    fp8 = "read as packed" if caps.packed_kv else "unpacked at each read"
    return [
        f"computes in {', '.join(caps.dtypes)}",
        f"weights: {'; '.join(weights)}",
        f"KV: {', '.join(KV_TYPES)} (fp8 for latent attention, {fp8})",
    ]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _cores() -> str:
    """Those this process may use, of those there are."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{usable} of {os.cpu_count()} cores"


def _memory() -> str:
    try:
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return "memory unknown"
    return f"{pages * size / 2**30:.1f} GiB"

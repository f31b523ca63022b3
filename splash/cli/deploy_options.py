"""What `splash sim` and `splash plan` are told of a deployment: the same options, and what they mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from splash.cli.numbers import SHARE, Count

if TYPE_CHECKING:
    from splash.sim.deployment import SimDeployment
    from splash.sim.presets import Choice
    from splash.sim.settings import Settings


@dataclass(frozen=True, slots=True)
class DeployOptions:
    """As given; None is the model's usual setting."""

    model: str | None
    hw: str | None
    ranks: int | None
    memory_fraction: float | None
    dtype: str | None
    kv_dtype: str | None
    request_tokens: int | None

    def choice(self) -> Choice:
        """Model and hardware; ConfigError names what is not known."""
        from splash.core.env import config_dir
        from splash.sim.presets import choose

        return choose(self.model, self.hw, user_folder=config_dir())

    def settings(self, choice: Choice) -> Settings:
        from splash.sim.presets import adapted

        return adapted(
            choice.settings,
            ranks=self.ranks,
            memory_fraction=self.memory_fraction,
            weights=self.dtype,
            kv=self.kv_dtype,
            request_tokens=self.request_tokens,
        )

    def deploy(self) -> SimDeployment:
        """CapacityError, with numbers, where the model does not fit."""
        from splash.sim.deployment import deploy

        choice = self.choice()
        return deploy(choice.model.name, choice.model.spec, choice.profile, self.settings(choice))


OPTIONS = (
    click.option(
        "--model",
        metavar="NAME|DIR",
        help="A model by name, or the folder of a checkpoint.  [default: the hardware's usual one]",
    ),
    click.option(
        "--hw",
        metavar="NAME|FILE",
        help="A hardware profile by name or path.  [default: the model's usual hardware]",
    ),
    click.option("--ranks", type=Count(min=1), help="Ranks of the deployment.  [default: 8, or fewer]"),
    click.option(
        "--memory-fraction",
        type=SHARE,
        help="Share of a device's memory for weights and KV.  [default: the model's]",
    ),
    click.option(
        "--dtype", metavar="TYPE", help="How weights are stored: float32, bfloat16, fp8_block, int8."
    ),
    click.option("--kv-dtype", metavar="TYPE", help="How KV is stored: float32, bfloat16, fp8."),
    click.option(
        "--request-tokens",
        type=Count(min=1),
        help="Tokens of a typical request, over which a recurrent state is shared out.",
    ),
)


def with_deployment(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `OPTIONS` to a command, in this order in its help."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command

"""What all requests shall become: one layout, or an owner layout from which long requests are striped."""

from __future__ import annotations

from typing import NamedTuple

from splash.layout.layouts import Layout, Placement, layout_named, with_placement


class Target(NamedTuple):
    """Made by `target_named`. Long requests keep the projection, so no weights move for them."""

    layout: Layout
    striped_from: int | None = None
    """Tokens from which a request of an owner layout is striped; None: none is."""

    @property
    def name(self) -> str:
        return self.layout.name

    def __str__(self) -> str:
        """The layout, and that of long requests: `dp+cp from 32 K`."""
        if self.striped_from is None:
            return self.name
        thousands, rest = divmod(self.striped_from, 1024)
        bound = f"{self.striped_from:,}" if rest else f"{thousands:,} K"
        return f"{self.name}+{self.layout_of(self.striped_from)} from {bound}"

    def layout_of(self, num_tokens: int) -> Layout:
        """The layout of a request that is so long."""
        if self.striped_from is None or num_tokens < self.striped_from:
            return self.layout
        return with_placement(self.layout, Placement.STRIPED)


def target_named(name: str, striped_from: int | None = None) -> Target:
    """ConfigError if there is no such layout. Only owner layouts have anything to stripe."""
    layout = layout_named(name)
    return Target(layout, striped_from if layout.placement is Placement.OWNER else None)

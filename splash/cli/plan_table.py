"""What `splash plan` shows: memory by part, the KV of every layout, and the maps. At most 100 columns wide."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from splash.layout.layouts import LAYOUTS, Projection
from splash.sim.planner import Cell, Map, Plan
from splash.sim.target import Answer, Limit, Service
from splash.spec.model import MoESpec
from splash.spec.storage import index_gain, kv_storage
from splash.spec.tensors import Part
from splash.tui.palette import chip, ink
from splash.tui.units import plural, show_bytes, show_count, show_seconds

GIB = 1 << 30
LABEL = 5
"""Characters of the names of a map's rows."""
CELL = 14
"""Characters of a map's cells, a space before each; `NARROW` where they would not fit, without the lead."""
NARROW = 9
OWN = ", ".join(name for name, layout in LAYOUTS.items() if layout.projection is Projection.SHARDED)
FULL = ", ".join(name for name, layout in LAYOUTS.items() if layout.projection is Projection.FULL)

NO_SLOTS = (
    "It does not fit: a pool has a slot for every head shard, whatever the layout, so that requests can be switched"
    " to any.\nWhat layouts would hold without the slots of the others' shards:"
)

LATENCIES = (Limit.TTFT, Limit.TPOT)


def show_plan(console: Console, plan: Plan) -> None:
    """Everything but what was asked about a rate."""
    settings = plan.settings
    console.print(
        f"[bold]{plan.model}[/] on {settings.ranks} × {plan.profile.name} ({plan.profile.summary})",
        soft_wrap=True,
    )
    console.print(
        f"{settings.weights} weights, {settings.kv} KV, {_percent(settings.memory_fraction)} of memory",
        style="dim",
    )
    console.print(_memory_table(plan))
    if not plan.fits:
        if any(room.fits for room in plan.layouts.values()):
            console.print(NO_SLOTS, style="dim")
            console.print(_layout_table(plan))
        return
    console.print(_cache_table(plan))
    _show_cache_notes(console, plan)
    console.print(_layout_table(plan))
    _show_counted(console, plan)
    for each in plan.maps:
        _show_map(console, each, wide=_is_wide(console, each))
    for line in _legend(plan.maps, wide=any(_is_wide(console, each) for each in plan.maps)):
        console.print(line)


def _table(title: str, columns: Sequence[str], *, words: Iterable[str]) -> Table:
    """`words`: columns that are no numbers."""
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for name in columns:
        table.add_column(name, justify="left" if name in words else "right", no_wrap=name not in words)
    return table


# ---- memory


@dataclass(frozen=True, slots=True)
class _Unit:
    """Of memory: GiB for all figures, or for each its own where the weights are small beside the memory."""

    is_common: bool

    @classmethod
    def of(cls, plan: Plan) -> _Unit:
        return cls(plan.memory.weights.own >= GIB)

    def head(self, title: str, joint: str = " ") -> str:
        """A title, with the unit that all figures below it have."""
        return f"{title}{joint}GiB" if self.is_common else title

    def show(self, num_bytes: float) -> str:
        return f"{num_bytes / GIB:,.2f}" if self.is_common else show_bytes(num_bytes)


def _percent(share: float) -> str:
    """`85%`, `0.001%`."""
    return f"{100 * share:.3g}%"


def _memory_table(plan: Plan) -> Table:
    """A rank's, term by term, with the own head shard and with every one."""
    memory, unit = plan.memory, _Unit.of(plan)
    weights, ranks = memory.weights, memory.weights.ranks
    share = f"{_percent(memory.fraction)} of {unit.show(memory.device)}"
    sharers = plan.profile.memory.sharers(ranks)
    if sharers > 1:
        share += f"; {sharers} ranks share {unit.show(plan.profile.memory.capacity.value)}"
    title = f"{unit.head('Memory of a rank', ', ')}: {unit.show(memory.usable)} usable, {share}"
    table = _table(title, ("part", OWN, FULL, "what"), words=("part", "what"))
    others = (ranks - 1) * weights.shard
    for part in sorted(weights.parts, key=lambda each: -weights.parts[each]):
        size = weights.parts[part]
        name = "attention, own shard" if part is Part.ATTENTION else part.value
        table.add_row(name, unit.show(size), unit.show(size), _what(plan, part))
        if part is Part.ATTENTION and others:
            table.add_row(
                "attention, other shards", "–", unit.show(others), f"{ranks - 1}, with their scales"
            )
    if weights.scales:
        table.add_row(
            "scales", unit.show(weights.scales), unit.show(weights.scales), "of quantised matrices, float32"
        )
    table.add_row(
        "reserve",
        unit.show(memory.reserve),
        unit.show(memory.reserve),
        "vision tower, BF16, on every rank" if memory.reserve else "none",
        end_section=True,
    )
    own, full = plan.layouts["tp"], plan.layouts["dp"]
    table.add_row(
        "all of it",
        unit.show(own.weight_bytes + memory.reserve),
        unit.show(full.weight_bytes + memory.reserve),
    )
    states = " and states" if memory.state_bytes else ""
    table.add_row(f"left for KV{states}", unit.show(own.free_bytes), unit.show(full.free_bytes))
    return table


def _what(plan: Plan, part: Part) -> str:
    spec, ranks = plan.spec, plan.settings.ranks
    match part:
        case Part.ATTENTION:
            return f"{spec.attention.num_heads // ranks} of {spec.attention.num_heads} heads; changes place"
        case Part.EXPERTS:
            experts = next(ffn.num_experts for ffn in spec.ffns if isinstance(ffn, MoESpec))
            return f"{experts} a layer, whole ones divided over the ranks"
        case Part.SHARED | Part.DENSE | Part.VOCABULARY:
            return "divided over the ranks"
        case Part.INDEXER:
            return f"on every rank, {sum(spec.indexed)} of {spec.num_layers} layers"
        case Part.KDA:
            return f"{len(spec.kda_layers)} of {spec.num_layers} layers, sharded by head in every layout"
        case Part.LATENT | Part.NORMS | Part.ROUTER | Part.HYPER:
            return "on every rank"


def _cache_table(plan: Plan) -> Table:
    """What a token takes, term by term; `all ranks together` where a copy lies on one of them."""
    spec, memory = plan.spec, plan.memory
    table = _table(
        "Cache, bytes of a token, one copy", ("part", "layers", "a layer", "all layers"), words=("part",)
    )
    for field in plan.cached:
        name = "index keys" if field.name == "index" else field.name
        table.add_row(
            name,
            f"{field.layers} of {spec.num_layers}",
            f"{field.token_bytes:,.0f}",
            f"{field.layers * field.token_bytes:,.0f}",
        )
    table.add_row("all", "", "", f"{sum(field.layers * field.token_bytes for field in plan.cached):,.0f}")
    if memory.request_tokens:
        state = plan.settings.ranks * memory.state_bytes / memory.request_tokens
        layers = len(spec.kda_layers)
        table.add_row(
            f"recurrent state, shared out over {memory.request_tokens:,} tokens",
            f"{layers} of {spec.num_layers}",
            f"{state / layers:,.0f}",
            f"{state:,.0f}",
        )
    return table


def _show_cache_notes(console: Console, plan: Plan) -> None:
    spec, ranks = plan.spec, plan.settings.ranks
    gain = index_gain(spec, kv_storage(plan.settings.kv), ranks=ranks)
    if gain:
        console.print(
            f"Index keys on {sum(spec.indexed)} of {spec.num_layers} layers: {gain:.0%} more tokens than on all."
        )
    if plan.memory.state_bytes:
        console.print(
            f"KDA sharded by head: {show_bytes(plan.memory.weights.parts[Part.KDA])} of weights on a rank instead of"
            f" {show_bytes(plan.whole_kda_bytes)}, and {show_bytes(plan.memory.state_bytes)} of state a request."
        )


def _layout_table(plan: Plan) -> Table:
    """Memory of a rank, and tokens over all ranks."""
    unit = _Unit.of(plan)
    table = _table(
        f"Layouts ({plan.memory.block_size} tokens a block)",
        ("layout", unit.head("weights"), unit.head("for KV"), "KV tokens", "of tp's", "longest request"),
        words=("layout",),
    )
    base = plan.layouts["tp"].kv_tokens
    for name, room in plan.layouts.items():
        if room.fits:
            figures = show_count(room.kv_tokens), f"{room.kv_tokens / base:.2f} ×", _longest(plan, name)
        else:
            figures = "does not fit", "", ""
        table.add_row(
            Text(name, style=ink(name)), unit.show(room.weight_bytes), unit.show(room.free_bytes), *figures
        )
    return table


def _longest(plan: Plan, layout: str) -> str:
    tokens = plan.layouts[layout].longest_request
    return f"{tokens:,}" if tokens < plan.spec.max_position else f"{plan.spec.max_position:,} (the model's)"


def _show_counted(console: Console, plan: Plan) -> None:
    """What tables of capacity usually say."""
    rooms = {name: plan.counted[name] for name in ("tp", "dp", "dop")}
    weights = (rooms[name].weight_bytes + plan.memory.reserve for name in ("tp", "dp"))
    tokens = ", ".join(f"{name} {show_count(room.kv_tokens)}" for name, room in rooms.items())
    console.print(
        "Without scales, norms and hyper-connections, as capacity tables usually count:"
        f" weights {' / '.join(map(show_bytes, weights))}, tokens {tokens}."
    )


# ---- maps


def _is_wide(console: Console, each: Map) -> bool:
    """Whether there is room for the lead in its cells."""
    return console.width >= LABEL + len(each.columns) * (CELL + 1)


def _show_map(console: Console, each: Map, *, wide: bool) -> None:
    width = CELL if wide else NARROW
    if each.phase == "decode":
        title, rows, columns = "Decode: best layout by batch and context", "batch", "context"
    else:
        prompts = "one prompt" if each.prompts == 1 else f"{each.prompts} prompts at once"
        title = f"Prefill of {prompts}: best layout by rows of a step and prompt history"
        rows, columns = "rows", "history"
    console.print(f"\n[italic]{title}[/]")
    head = "".join(f" {show_tokens(tokens):<{width}}" for tokens in each.columns)
    console.print(f"{rows:>{LABEL}}{head.rstrip()}  {columns}"[: console.width], no_wrap=True)
    for name, cells in zip(each.rows, each.cells, strict=True):
        line = Text(f"{show_tokens(name):>{LABEL}}")
        for cell in cells:
            line.append(" ")
            line.append(_cell_text(cell, wide=wide).ljust(width), style=_style(cell))
        console.print(line, no_wrap=True, crop=True)


def _legend(maps: Sequence[Map], *, wide: bool) -> list[str]:
    """What the figures and marks mean that are shown."""
    cells = [cell for each in maps for row in each.cells for cell in row]
    lead = ", how much longer the second takes (=: under 0.5 %)" if wide else ""
    lines = [f"Cells: layout, time of a step (ms; s: seconds){lead}."]
    if any(cell.best not in (None, cell.fastest) for cell in cells):
        lines.append("*: a faster layout has no room for the KV.")
    if any(cell.best is None for cell in cells):
        lines.append("!: no layout has room for the KV; the fastest is shown.")
    return lines


def _cell_text(cell: Cell, *, wide: bool) -> str:
    """`dop*  12.3  +8%`."""
    name = cell.best or cell.fastest
    mark = "!" if cell.best is None else "" if name == cell.fastest else "*"
    lead = f" {_lead(cell.lead):>4}" if wide else ""
    return f"{name + mark:<4}{_milliseconds(cell.seconds[name]):>5}{lead}"


def _style(cell: Cell) -> Style | str:
    return "dim" if cell.best is None else chip(cell.best)


def _milliseconds(seconds: float) -> str:
    """Three figures or more in five characters: `8.95`, `12.3`, `1234`, `12.3s`."""
    value = seconds * 1e3
    if value < 9.995:
        return f"{value:.2f}"
    if value < 99.95:
        return f"{value:.1f}"
    return f"{value:.0f}" if value < 9999.5 else f"{seconds:.1f}s" if seconds < 99.95 else f"{seconds:.0f}s"


def _lead(lead: float | None) -> str:
    if lead is None:
        return ""
    if lead < 0.005:
        return "="
    return f"+{lead:.0%}" if lead < 0.995 else f"×{1 + lead:.1f}"


def show_tokens(tokens: int) -> str:
    """`512`, `16K`, `1M`: powers of two as people call them, others rounded."""
    if tokens < 1024 or (tokens < 10_240 and tokens % 1024):
        return str(tokens)
    if tokens < 1 << 20:
        return f"{tokens / 1024:.0f}K"
    return f"{tokens / (1 << 20):.3g}M"


# ---- a rate


def show_answer(console: Console, plan: Plan, answer: Answer) -> None:
    """The fewest ranks, or how far those go that there are; then what was tried."""
    traffic = answer.traffic
    wishes = [
        f"{traffic.rate:,g} requests a second of {traffic.prompt_tokens:,} + {traffic.output_tokens:,} tokens"
    ]
    wishes += [] if traffic.ttft_s is None else [f"TTFT within {show_seconds(traffic.ttft_s)}"]
    wishes += [] if traffic.tpot_s is None else [f"TPOT within {show_seconds(traffic.tpot_s)}"]
    console.print(f"[bold]{plan.model} on {plan.profile.name}[/]: {', '.join(wishes)}", soft_wrap=True)
    if answer.service is not None:
        console.print(
            Text.assemble(
                f"{answer.ranks} ranks are enough, in ",
                Text(answer.service.layout, style=ink(answer.service.layout)),
                f": {_figures(answer.service)}.",
            )
        )
    else:
        console.print(_shortfall(answer))
    console.print(_tried_table(answer))
    met = {service.limit for services in answer.tried.values() for service in services if service.limit}
    for limit in (limit for limit in Limit if limit in met):
        console.print(f"{_name(limit)}: {limit.value}", style="dim")


def _shortfall(answer: Answer) -> str:
    """How far the ranks go that there are."""
    none = f"No number of ranks up to {max(answer.tried)} does it"
    service = answer.most_service
    if service is None:
        return f"{none}: {answer.tried[max(answer.tried)][0].limit_said}."
    where = f"{answer.most_ranks} ranks in {service.layout}: {_figures(service)}"
    if answer.most is None:
        return f"{none}, nor a thousandth of it. The nearest are {where}."
    return f"{none}. The most is {answer.most:.3g} requests a second, by {where}."


def _tried_table(answer: Answer) -> Table:
    """What each number of ranks comes to in each layout: TPOT, or what is in the way."""
    table = _table("Tried: TPOT, or what is in the way", ("ranks", *LAYOUTS), words=tuple(LAYOUTS))
    for ranks, services in answer.tried.items():
        table.add_row(str(ranks), *map(_outcome, services))
    return table


def _outcome(service: Service) -> str:
    """`62 ms`, `TTFT 1.2 s`, `memory`."""
    if service.limit is None:
        return show_seconds(service.tpot_s)
    if service.limit in LATENCIES:
        figure = service.ttft_s if service.limit is Limit.TTFT else service.tpot_s
        return f"{_name(service.limit)} {show_seconds(figure)}"
    return _name(service.limit)


def _name(limit: Limit) -> str:
    """As cells and their legend have it."""
    return limit.name if limit in LATENCIES else limit.name.lower()


def _figures(service: Service) -> str:
    assert service.running is not None
    assert service.prompt_share is not None
    return (
        f"{plural(service.running, 'request')} at a time, TTFT {show_seconds(service.ttft_s)}, TPOT"
        f" {show_seconds(service.tpot_s)}, prompts take {service.prompt_share:.0%} of the time"
    )

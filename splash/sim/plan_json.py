"""A plan as JSON. Bytes are whole numbers, of one rank where the name does not say otherwise; times are seconds."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from splash.sim.planner import Cell, LayoutRoom, Plan
from splash.sim.target import Answer, Service
from splash.spec.storage import index_gain, kv_storage


def plan_json(plan: Plan, answer: Answer | None) -> dict[str, Any]:
    """All of a plan; `best` has the cells of all maps, none where the model does not fit."""
    maps = plan.maps if plan.fits else ()
    found: dict[str, Any] = {
        "deployment": {
            "model": plan.model,
            "hardware": plan.profile.name,
            "device": plan.profile.device,
            **asdict(plan.settings),
        },
        "fits": plan.fits,
        "lacking_bytes": max(0, plan.lacking),
        "would_fit": None if plan.fits else asdict(plan.remedies),
        "memory": _memory(plan),
        "layouts": {
            name: {**_room(room), "counted": _counted(plan.counted[name])}
            for name, room in plan.layouts.items()
        },
        "best": [_cell(each.phase, cell) for each in maps for row in each.cells for cell in row],
    }
    if answer is not None:
        found["target"] = _answer(answer)
    return found


def _memory(plan: Plan) -> dict[str, Any]:
    memory, spec = plan.memory, plan.spec
    weights = memory.weights
    return {
        "device_bytes": memory.device,
        "ranks_that_share_memory": plan.profile.memory.sharers(plan.settings.ranks),
        "usable_bytes": memory.usable,
        "reserve_bytes": memory.reserve,
        "parts": {part.value: size for part, size in weights.parts.items()},
        "scale_bytes": weights.scales,
        "shard_bytes": weights.shard,
        "own_weight_bytes": weights.own,
        "full_weight_bytes": weights.full,
        "block_size": memory.block_size,
        "page_bytes": memory.page_bytes,
        "token_bytes": sum(field.layers * field.token_bytes for field in plan.cached),
        "cached": [asdict(field) for field in plan.cached],
        "num_layers": spec.num_layers,
        "index_gain": index_gain(spec, kv_storage(plan.settings.kv), ranks=plan.settings.ranks),
        "whole_kda_bytes": plan.whole_kda_bytes,
        "state_bytes": memory.state_bytes,
        "request_tokens": memory.request_tokens,
    }


def _room(room: LayoutRoom) -> dict[str, Any]:
    return {
        "fits": room.fits,
        "weight_bytes_per_rank": room.weight_bytes,
        "free_bytes_per_rank": room.free_bytes,
        "kv_tokens": room.kv_tokens,
        "longest_request_tokens": room.longest_request,
    }


def _counted(room: LayoutRoom) -> dict[str, Any]:
    return {"weight_bytes_per_rank": room.weight_bytes, "kv_tokens": room.kv_tokens}


def _cell(phase: str, cell: Cell) -> dict[str, Any]:
    return {
        "phase": phase,
        "batch": cell.batch,
        "chunk": cell.chunk,
        "context": cell.context,
        "layout": cell.best,
        "lead": cell.lead,
        "fastest": cell.fastest,
        "seconds": dict(cell.seconds),
        "holding": [name for name in cell.seconds if name in cell.holding],
    }


def _answer(answer: Answer) -> dict[str, Any]:
    return {
        "traffic": asdict(answer.traffic),
        "ranks": answer.ranks,
        "layout": None if answer.service is None else answer.service.layout,
        "service": None if answer.service is None else _service(answer.service),
        "tried": {
            str(ranks): [_service(service) for service in services]
            for ranks, services in answer.tried.items()
        },
        "most": None
        if answer.most_service is None
        else {"rate": answer.most, "ranks": answer.most_ranks, **_service(answer.most_service)},
    }


def _service(service: Service) -> dict[str, Any]:
    return {**asdict(service), "limit": None if service.limit is None else service.limit.value}

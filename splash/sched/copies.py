"""The ledger of background copies: what is to be copied, within a budget, pinned until acknowledged."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from splash.kv.blocks import Block, KVStore
from splash.sched.step import PageCopy, ShardCopy


@dataclass(slots=True, eq=False)
class CopyGroup:
    """Copies that matter together: complete when `pending` is 0; a cancelled group sends nothing more."""

    pending: int = 0
    """Queued or in flight."""
    in_flight: int = 0
    cancelled: bool = False
    num_bytes: int = 0
    done_bytes: int = 0

    @property
    def complete(self) -> bool:
        return self.pending == 0


@dataclass(slots=True, eq=False)
class Draft:
    """One copy before it is sent. Pages are looked up when it is: an evacuation may have moved the source.

    A page draft has `block`; `dst_page` None means the block's own copy on the destination. A shard draft
    has `shard` and covers its bytes [first, stop).
    """

    group: CopyGroup
    src_rank: int
    dst_rank: int
    num_bytes: int
    first: int
    stop: int
    block: Block | None = None
    kv_group: int = 0
    dst_page: int | None = None
    shard: int = -1
    pins: tuple[tuple[int, int], ...] = field(default=(), repr=False)


@dataclass(slots=True)
class Traffic:
    """Bytes that arrived, [source][destination]."""

    kv: list[list[int]]
    weights: list[list[int]]
    evacuated_pages: int = 0

    @classmethod
    def empty(cls, ranks: int) -> Traffic:
        return cls([[0] * ranks for _ in range(ranks)], [[0] * ranks for _ in range(ranks)])


class CopyLedger:
    """Queues one draft list per destination, sends within a budget, settles on acknowledgement."""

    def __init__(self, store: KVStore) -> None:
        self._store = store
        self._ranks = store.topo.ranks
        self._queues: list[deque[Draft]] = [deque() for _ in range(self._ranks)]
        self._sent: dict[int, Draft] = {}
        self._next_id = 0
        self._outbox: list[tuple[PageCopy | ShardCopy, Draft]] = []
        self._traffic: Traffic | None = None
        """What arrived since it was taken last."""
        self._queued_into = [0] * self._ranks
        self._queued_out_of = [0] * self._ranks
        self._sent_into = [0] * self._ranks
        self._purge = False
        self._turn = 0
        """The destination that chooses first: in turn, so that no rank is always last."""
        self.num_acknowledged = 0
        """Copies that have ever completed: what shows progress."""
        self.pages_left = 0
        self.weight_bytes_left = 0

    def add(self, draft: Draft) -> None:
        draft.group.pending += 1
        draft.group.num_bytes += draft.num_bytes
        self._queues[draft.dst_rank].append(draft)
        self._queue(draft, 1)
        self._count(draft, 1)

    def cancel(self, group: CopyGroup) -> None:
        """Nothing more of the group is sent; what is under way will still be acknowledged."""
        group.cancelled = True
        self._purge = True

    @property
    def busiest_bytes(self) -> int:
        """Queued bytes of the busiest source or destination: what the rest of the queue waits for."""
        return max(*self._queued_into, *self._queued_out_of)

    def fill_outbox(self, budget: int, *, in_flight: int) -> None:
        """Choose what the next plan sends: at most `budget` bytes out of and into every rank, or one copy that is
        larger. A rank that still waits for more copies than those of the `in_flight` steps is sent none."""
        self._drop_cancelled()
        out = [budget] * self._ranks
        for draft in (d for _, d in self._outbox):
            out[draft.src_rank] -= draft.num_bytes
        self._turn = (self._turn + 1) % self._ranks
        for dst in (*range(self._turn, self._ranks), *range(self._turn)):
            queue = self._queues[dst]
            if not queue or self._sent_into[dst] > in_flight * budget:
                continue
            into = budget - sum(d.num_bytes for _, d in self._outbox if d.dst_rank == dst)
            while queue:
                draft = queue[0]
                left = min(into, out[draft.src_rank])
                if draft.num_bytes > left and left < budget:
                    break
                queue.popleft()
                self._queue(draft, -1)
                into -= draft.num_bytes
                out[draft.src_rank] -= draft.num_bytes
                self._pin(draft)
                self._outbox.append((self._message(self._next_id, draft), draft))
                self._next_id += 1

    def pass_idly(self, num_steps: int) -> None:
        """Steps have passed in which there was nothing to choose."""
        self._turn = (self._turn + num_steps) % self._ranks

    def take_outbox(self) -> tuple[PageCopy | ShardCopy, ...]:
        """The copies of the plan being made; those cancelled meanwhile are dropped."""
        messages: list[PageCopy | ShardCopy] = []
        for message, draft in self._outbox:
            if draft.group.cancelled:
                self._unpin(draft)
                self._drop(draft)
                continue
            draft.group.in_flight += 1
            self._sent_into[draft.dst_rank] += draft.num_bytes
            self._sent[message.id] = draft
            messages.append(message)
        self._outbox = []
        return tuple(messages)

    def acknowledge(self, ids: Iterable[int]) -> int:
        """Copies have completed: unpin their pages and count their bytes; returns those of the busiest destination."""
        into = [0] * self._ranks
        for copy_id in ids:
            traffic = self._traffic = self._traffic or Traffic.empty(self._ranks)
            draft = self._sent.pop(copy_id)
            self._sent_into[draft.dst_rank] -= draft.num_bytes
            into[draft.dst_rank] += draft.num_bytes
            self.num_acknowledged += 1
            self._unpin(draft)
            group = draft.group
            group.in_flight -= 1
            group.pending -= 1
            group.done_bytes += draft.num_bytes
            self._count(draft, -1)
            if draft.shard >= 0:
                traffic.weights[draft.src_rank][draft.dst_rank] += draft.num_bytes
            elif draft.src_rank == draft.dst_rank:
                traffic.evacuated_pages += 1
            else:
                traffic.kv[draft.src_rank][draft.dst_rank] += draft.num_bytes
        return max(into)

    @property
    def idle(self) -> bool:
        return not self._sent and not self._outbox and not any(self._queues)

    def take_traffic(self) -> Traffic | None:
        """What arrived since the last call; None if nothing did."""
        traffic, self._traffic = self._traffic, None
        return traffic

    def _message(self, copy_id: int, draft: Draft) -> PageCopy | ShardCopy:
        if draft.shard >= 0:
            return ShardCopy(copy_id, draft.dst_rank, draft.shard, draft.first, draft.stop)
        (_, src_page), (_, dst_page) = draft.pins
        return PageCopy(copy_id, draft.src_rank, src_page, draft.dst_rank, dst_page, draft.first, draft.stop)

    def _pin(self, draft: Draft) -> None:
        if draft.block is None:
            return
        copies = draft.block.copies
        src = copies[draft.kv_group, draft.src_rank]
        dst = copies[draft.kv_group, draft.dst_rank] if draft.dst_page is None else draft.dst_page
        draft.pins = (draft.src_rank, src), (draft.dst_rank, dst)
        for rank, page in draft.pins:
            self._store.pools[rank].pin(page)

    def _unpin(self, draft: Draft) -> None:
        for rank, page in draft.pins:
            self._store.pools[rank].unpin(page)
        draft.pins = ()

    def _drop_cancelled(self) -> None:
        if not self._purge:
            return
        self._purge = False
        for queue in self._queues:
            for draft in [d for d in queue if d.group.cancelled]:
                self._queue(draft, -1)
                self._drop(draft)
            kept = [d for d in queue if not d.group.cancelled]
            queue.clear()
            queue.extend(kept)

    def _queue(self, draft: Draft, sign: int) -> None:
        self._queued_into[draft.dst_rank] += sign * draft.num_bytes
        self._queued_out_of[draft.src_rank] += sign * draft.num_bytes

    def _drop(self, draft: Draft) -> None:
        draft.group.pending -= 1
        self._count(draft, -1)

    def _count(self, draft: Draft, sign: int) -> None:
        if draft.shard >= 0:
            self.weight_bytes_left += sign * draft.num_bytes
        else:
            self.pages_left += sign

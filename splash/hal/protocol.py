"""The port contract (DESIGN §7): communicator, pool, copier, attention, backend.

`import torch` and `import numpy` happen for type checking only, so that this module costs nothing to import.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from splash.hal.caps import Caps, DeviceInfo

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch


class Communicator(Protocol):
    """Collectives over ranks 0..size-1; all ranks call the same ones in the same order. Zero counts are legal.

    Results are bit-identical on all ranks where they are replicated (router choices depend on it).
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Sum over ranks, in place; contiguous float32, float64, bfloat16 or int64. Returns `x`."""
        ...

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """[size, *x.shape], in rank order; `x` contiguous and of one shape on all ranks."""
        ...

    def all_gather_v(self, x: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Concatenation along dim 0 in rank order; rank r gives counts[r] rows."""
        ...

    def all_to_all_v(
        self, send: torch.Tensor, send_counts: Sequence[int], recv_counts: Sequence[int]
    ) -> torch.Tensor:
        """1-D contiguous `send`, cut by `send_counts` (elements to each rank); returns what was received,
        concatenated in rank order, 1-D of sum(recv_counts) elements."""
        ...

    def broadcast(self, x: torch.Tensor, root: int) -> torch.Tensor:
        """In place from `root`. Returns `x`."""
        ...

    def reduce_scatter(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [size, ...]: the sum over ranks of part `rank`, [...]."""
        ...

    def barrier(self) -> None: ...


class Pool(Protocol):
    """One rank's memory for weights in slots and KV pages: flat bytes, page-aligned."""

    @property
    def bytes(self) -> torch.Tensor:
        """1-D uint8 view of this rank's pool."""
        ...

    def peer(self, rank: int) -> torch.Tensor:
        """1-D uint8 view of a peer's pool (this rank's own included); NotSupported where not mapped."""
        ...

    def close(self) -> None: ...


class ByteCopy(NamedTuple):
    """One transfer as bytes: `runs` are (source offset, destination offset, bytes) within the pools."""

    id: int
    src_rank: int
    dst_rank: int
    runs: tuple[tuple[int, int, int], ...]


class Copied(NamedTuple):
    """Copies that have completed: their ids, and the seconds that they took. What was copied at the same time counts
    once; where copies and computing take turns it is what they took from computing."""

    ids: tuple[int, ...] = ()
    seconds: float = 0.0


class Copier(Protocol):
    """Moves bytes between pools in the background of inference. Every rank is given the same list;
    one-sided ports act where `dst_rank` is their own rank, two-sided ones at both ends."""

    def submit(self, copies: Sequence[ByteCopy]) -> None:
        """Hand over copies; they may run now, between steps or in a thread."""
        ...

    def poll(self) -> Copied:
        """The copies into this rank that have completed since the last call. By their seconds the scheduler learns how
        many bytes may be copied beside a step."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class PagedKV:
    """One layer's pages on this rank as strided views of the pool; nothing is contiguous across pages.

    `k` [num_pages, block_size, kv_heads, d_k], `v` [num_pages, block_size, kv_heads, d_v].
    For MLA kv_heads is 1, `k` is latent and rope key, and `v` is its latent part.
    """

    k: torch.Tensor
    v: torch.Tensor


class SeqRows(NamedTuple):
    """Rows of one sequence that attend to the pages which this rank reads for it.

    `row` and `count`: the rows [row, row + count) of the query tensor. `start`: position of the first row.
    `pages`: int64 [n] in host memory, the local pages in order of their blocks: a view of the block table, perhaps
    with a stride, to be read only, and good until the next plan is applied. `first_block` and
    `block_step`: local page i is block first_block + i * block_step, so key positions are known.
    `num_keys`: local tokens at positions before start + count, always a prefix of the gathered pages;
    may be 0. A row attends to keys at positions up to its own.
    """

    row: int
    count: int  # type: ignore[assignment]  # not a tuple's
    start: int
    pages: npt.NDArray[np.int64]
    first_block: int
    block_step: int
    num_keys: int


class Attention(Protocol):
    """Paged attention over explicit strides. Returns output and log-sum-exp (natural log, fp32)."""

    def prepare(self, seqs: Sequence[SeqRows], block_size: int) -> Any:
        """Whatever of `seqs` does not depend on the layer (index tensors, offsets, groups), made once a step,
        for pages of `block_size` tokens (a gathered history is one page of any size). All that a device needs of
        it goes there at once.

        Opaque, immutable and good for every layer whose pages are those that `seqs` names.
        """
        ...

    def attend(
        self, q: torch.Tensor, kv: PagedKV, prepared: Any, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`q` [rows, heads, d_k] -> out [rows, heads, d_v] (dtype of q) and lse [rows, heads] fp32.

        `prepared` is `prepare(seqs, kv.k.shape[1])` of this port. heads is a multiple of kv_heads. Rows without a key
        give out 0 and lse -inf. `q` may have zero rows; rows that no sequence names are 0 and -inf. Only the
        first `num_keys` tokens of the gathered pages are read as numbers: the rest may be NaN.
        """
        ...

    def prepare_selection(self, seqs: Sequence[SeqRows], block_size: int, top_k: int, pool: int = 1) -> Any:
        """As `prepare`, for `select`: the same sequences may be read by both, and speak of tokens. `pool` consecutive
        ones have one key, `block_size` is a multiple of it."""
        ...

    def select(
        self, q: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, prepared: Any
    ) -> torch.Tensor:
        """The best `top_k` keys of each row, of those whose last token it sees among the pages it reads (MODELS §2.3).

        `q` [rows, heads, d], `weights` [rows, heads] fp32, `keys` [num_pages, block_size / pool, d] (strided). A key's
        score is Σ_h weights_h · relu(q_h · key · d^-½), in fp32. -> int64 [rows, top_k] as `hal.ranking` has them, each
        with the position of its last token, in any order within a row's first min(top_k, num_keys / pool) columns;
        the others, and rows that no sequence names, are NOTHING. NaN as for `attend`.
        """
        ...

    def attend_selected(
        self, q: torch.Tensor, kv: PagedKV, tokens: torch.Tensor, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`attend` over the named tokens alone, the same for all heads; kv_heads is 1.

        `tokens` int64 [rows, n]: page * block_size + offset of each, all different, or -1 for none; n may be 0.
        """
        ...

    def merge(self, outs: torch.Tensor, lses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Join partial attention over disjoint key sets.

        `outs` [parts, rows, heads, d_v] and `lses` [parts, rows, heads] fp32 -> [rows, heads, d_v] (dtype of
        `outs`) and [rows, heads] fp32. Merging only empty parts gives 0 and -inf.
        """
        ...


class JobClosed(Exception):
    """Raised by a rank's `receive` once the engine has closed the job; entry functions let it pass."""


class RankJob(Protocol):
    """Running ranks, as seen by the engine: messages to all of them and from each of them. Messages wait in order, both
    ways: the engine sends a plan while ranks still compute the one before.

    What a rank raises ends the job: `send` and `receive` raise it again if it is a SplashError, and
    RankFailure with the rank and its traceback otherwise.
    """

    @property
    def size(self) -> int: ...

    def send(self, message: Any) -> None:
        """The same picklable message to every rank. RankFailure as for `receive`."""
        ...

    def receive(self, timeout_s: float | None = None) -> list[Any]:
        """One message from every rank, in rank order.

        RankFailure, naming the rank, if one died, ended or took longer than `timeout_s`.
        """
        ...

    def close(self) -> None:
        """Ask the ranks to end, wait, and end those that do not; leaves nothing behind. May be repeated."""
        ...


@dataclass(frozen=True, slots=True)
class RankContext:
    """What a rank's entry function is given."""

    rank: int
    size: int
    comm: Communicator
    backend: Backend
    receive: Callable[[], Any]
    """Blocks (without spinning) for the next message of the engine; JobClosed when there will be none."""
    send: Callable[[Any], None]
    """One message to the engine."""


class Backend(Protocol):
    """A port: what a device offers to the engine. Neither its SPEC nor constructing and probing it import torch
    where that can be avoided: the engine's process may have no use for it."""

    @property
    def name(self) -> str: ...

    @property
    def caps(self) -> Caps: ...

    @property
    def device(self) -> str:
        """torch's device type for tensors of this port, e.g. "cpu"."""
        ...

    def probe(self) -> list[DeviceInfo]: ...

    def launch(self, size: int, entry: str, args: Any) -> RankJob:
        """Start `size` ranks, each running `entry` ("package.module:function") as
        function(context: RankContext, args)."""
        ...

    def pool(self, comm: Communicator, num_bytes: int) -> Pool:
        """Collective: every rank allocates `num_bytes` and maps its peers where the port can."""
        ...

    def copier(self, comm: Communicator, pool: Pool) -> Copier: ...

    def attention(self) -> Attention: ...

    def synchronize(self) -> None:
        """Returns when this rank's device has done all that it was asked to do; what is timed ends with it."""
        ...


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """What an entry point of group `splash.backends` names; importing it imports neither torch nor a driver."""

    name: str
    aliases: tuple[str, ...]
    summary: str
    loader: Callable[[], Backend]
    probe: Callable[[], list[DeviceInfo]]
    """Devices found; raises PortError, saying what is missing and what to install."""

"""`executor=TorchExecutor(...)`: the description of how a function runs on devices. `_running` is what does it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, cast, get_args

import torch

from ..._core._execution import BatchFunction, Copy, Executor
from ...policies.structures._counts import checked_count, checked_counts
from ..collation._pack import PackCollator
from ..device._device import Device
from ..device._ring import Results
from ._memory import Kinds
from ._running import DeviceExecutor
from ._worker import LaunchOrder

Mode = Literal["no_grad", "inference", "grad"]
OneDevice = None | str | torch.device | Device

_LEGAL: dict[str, tuple[Any, ...]] = {
    "mode": get_args(Mode),
    "results": get_args(Results),
    "copy": ("auto", True, False),
    "cuda_graphs": (True, False),
    "idempotent": (True, False),
}


@dataclass(frozen=True)
class TorchExecutor:
    """Runs a plain function on a device, with tensors that are there, and hands every caller rows of its own.

    Each device has a thread in which the function runs; it takes its batches one after the other. On an accelerator
    the next batch is copied in, and the last one's results are copied out, while one is computed. A batch for which
    there is not enough memory runs again in halves, and what fitted is remembered; an item that does not even fit
    alone fails alone. A device that is lost takes no more: its callers get ExecutorLost, `statistics().healthy` is
    false, and once no device is left everybody who calls gets ExecutorLost at once.

    device: its name, a torch.device or a SimulatedDevice; several for a worker each behind one queue. None: the
        accelerator, or the CPU if there is none. Looked for when the first batch comes, which fails if it is not there.
    mode: the gradient mode that the function runs in; with "grad" gradients reach the items, too, on the CPU.
    autocast: float16 or bfloat16, to compute in where that is safe; None: off.
    threads: intra-op threads of the CPU for each device; None: as many as torch takes.
    results: what callers get: tensors on the "host", on the "device", or "numpy" arrays.
    copy: whether callers get copies of their own; "auto" leaves out tensors in a list that nobody else has.
        False gives views, which keep whole batches. What comes from a device to the host is copied always.
    in_flight: batches at once on each device; None: 1 on the CPU, 2 elsewhere. `max_concurrent_batches` is for all.
    batch_sizes: the numbers of rows that the function gets. Fillers, copies of the first item, make up for what is
        missing, and nobody sees them; larger batches are cut. Numbers beyond the one that holds `max_batch_size` never
        occur, and no statistic counts fillers. None: any number.
    cuda_graphs: record the function for every shape and replay it; for a collation whose shapes are few (stack, or pad
        with sizes= or multiple_of=), with batch_sizes. Whatever cannot be recorded runs as usual. To be recorded, the
        function is called up to three times with the first batch of a shape, or with that of `warmup`.
    launch_order: shared with other executors, so that no two launch at once.
    idempotent: whether a batch may run again: after memory ran out, and with `on_error="bisect"` or `cuda_graphs=True`,
        which are refused otherwise.
    oom, fatal: exception classes that mean out of memory and a lost device, beside torch's own.
    on_fatal: called with the error that a device was lost by, once for each, before its callers hear of it. To end the
        process there, call os._exit or send it a signal: a SystemExit is raised in a thread, and ends nothing.

    Errors that callers get have forgotten the local variables of the frames they went through, since those would keep
    tensors alive. Raises TypeError or ValueError, naming the option, for what cannot work, and TypeError for async
    functions.

    >>> import torch
    >>> from batchlib import batched
    >>> from batchlib.torch import TorchExecutor, stack
    >>> layer = torch.nn.Linear(4, 2).eval()
    >>> apply = batched(lambda batch: layer(batch), collate=stack(), executor=TorchExecutor("cpu", mode="inference"))
    >>> apply.call(torch.zeros(4)).shape
    torch.Size([2])
    """

    device: OneDevice | Sequence[OneDevice] = None
    _: KW_ONLY
    mode: Mode = "no_grad"
    autocast: torch.dtype | None = None
    threads: int | None = None
    results: Results = "host"
    copy: Copy = "auto"
    in_flight: int | None = None
    batch_sizes: Sequence[int] | None = None
    cuda_graphs: bool = False
    launch_order: LaunchOrder | None = None
    idempotent: bool = True
    oom: Kinds = ()
    fatal: Kinds = ()
    on_fatal: Callable[[BaseException], object] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.device, Sequence) and not isinstance(self.device, str):
            self._set("device", tuple(self.device))
        if not self.devices:
            raise ValueError("device must name at least one device; None takes what there is")
        for device in self.devices:
            _check_device(device)
        for option, choices in _LEGAL.items():
            value = getattr(self, option)
            if not any([value == choice and type(value) is type(choice) for choice in choices]):
                raise ValueError(
                    f"{option} must be one of {', '.join(map(repr, choices))}, not {getattr(self, option)!r}"
                )
        for option in ("threads", "in_flight"):
            if getattr(self, option) is not None:
                self._set(option, checked_count(option, getattr(self, option)))
        if self.batch_sizes is not None:
            self._set("batch_sizes", checked_counts("batch_sizes", self.batch_sizes))
        _check("autocast", self.autocast, torch.dtype, "a torch.dtype")
        if self.autocast not in (None, torch.float16, torch.bfloat16):
            raise ValueError(f"autocast must be torch.float16, torch.bfloat16 or None, not {self.autocast}")
        _check("launch_order", self.launch_order, LaunchOrder, "a LaunchOrder")
        _check("on_fatal", self.on_fatal, Callable, "a function of an error")
        if self.cuda_graphs and not self.idempotent:
            raise TypeError(
                "cuda_graphs=True calls the function more than once with the batch that it records, and "
                "idempotent=False forbids that: leave one of them out"
            )
        for option in ("oom", "fatal"):
            self._set(option, _kinds(option, getattr(self, option)))

    def _set(self, option: str, value: Any) -> None:
        object.__setattr__(self, option, value)

    @property
    def devices(self) -> tuple[OneDevice, ...]:
        """Those that were named, as they were named."""
        return cast("tuple[OneDevice, ...]", self.device if isinstance(self.device, tuple) else (self.device,))

    @property
    def usual_concurrent_batches(self) -> int:
        """How many batches it runs at once."""
        return sum([self.in_flight or (2 if _staged(device) else 1) for device in self.devices])

    def start(self, function: BatchFunction) -> Executor:
        """A new executor. It begins no thread and touches no device before its first batch."""
        if function.is_async:
            raise TypeError(
                f"{function.name} is async, and TorchExecutor runs plain functions, in the threads of its devices: "
                "make it a plain function"
            )
        if self.batch_sizes and isinstance(function.collator, PackCollator):
            raise TypeError(f"{function.name}: a packed batch has no rows to fill: leave batch_sizes= out with pack()")
        if self.cuda_graphs and not (self.batch_sizes and getattr(function.collator, "fixed_shapes", False)):
            raise TypeError(
                f"{function.name}: cuda_graphs=True records the function for every shape, so shapes must be few: give "
                "batch_sizes=, and collate=stack() or pad() with sizes= or multiple_of="
            )
        return DeviceExecutor(self, function)


def _check_device(device: Any) -> None:
    if isinstance(device, str):
        try:
            torch.device(device)
        except RuntimeError as error:
            raise ValueError(f"device={device!r}: torch knows no such device; None takes what there is") from error
    elif device is not None and not isinstance(device, torch.device | Device):
        raise TypeError(
            f"device must be a name, a torch.device, a SimulatedDevice, several of them, or None, not {device!r}"
        )


def _staged(device: Any) -> bool:
    """Whether inputs are copied there. Asks without initialising any: the process may fork later."""
    if device is None:
        return torch.accelerator.device_count() > 0
    return device.staged if isinstance(device, Device) else torch.device(device).type != "cpu"


def _check(option: str, value: Any, kind: Any, legal: str) -> None:
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{option} must be {legal} or None, not {value!r}")


def _kinds(option: str, kinds: Any) -> Kinds:
    kinds = tuple(kinds) if isinstance(kinds, Sequence) else kinds
    if not isinstance(kinds, tuple) or not all(
        isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds
    ):
        raise TypeError(f"{option} must be a tuple of exception classes, not {kinds!r}")
    return kinds

"""Division of this host between the launches in flight: a set of devices for each, or one launch at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchx_cubicml.space.parameter import BindingKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torchx_cubicml.records.trial import Trial
    from torchx_cubicml.tuner.request import Prepared
    from torchx_cubicml.tuner.scheduler.jobs import JobRunner

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
ASSIGNED = "visible_devices"  # fact of a launch: its devices, as the value of that variable
_NO_DEVICES = "only NVIDIA devices can be divided, and none is visible on this host"
_DERIVED = "the space file derives the number of processes; give it choices to divide the devices between launches"
_NOT_STATED = "the command does not state the number of processes; give a number"
_ON_PROCESSORS = "the training runs on the processors of this host, which launches side by side would share"
_RESOURCES = ("-h", "--gpu")  # options of a component by which a launch asks for devices
_OTHER_HOSTS = "a cluster scheduler such as slurm can run them on hosts of their own"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """Division of a host between launches.

    Args:
        at_a_time: most launches in flight, >= 1.
        devices: devices to divide between them; empty if none are divided.
        per_launch: most devices that one launch takes.
        is_open: true while it is unknown whether the training uses devices.
        text: the sentence for the user; empty if the host is not shared.
    """

    at_a_time: int
    devices: tuple[str, ...] = ()
    per_launch: int = 0
    is_open: bool = False
    text: str = ""

    def free(self, taken: Iterable[Sequence[str] | None]) -> tuple[str, ...]:
        """Return the devices that no launch in flight has; none if the devices of one are unknown.

        Args:
            taken: devices of each launch in flight; ``None`` where unknown.
        """
        sets = list(taken)
        in_use = {device for each in sets for device in each or ()}
        return () if None in sets else tuple(device for device in self.devices if device not in in_use)

    def has_room(self, taken: Iterable[Sequence[str] | None]) -> bool:
        """Return whether one more launch may be in flight."""
        sets = list(taken)
        return len(sets) < self.at_a_time and (not self.devices or len(self.free(sets)) >= self.per_launch)


def share_host(prepared: Prepared, jobs: JobRunner, own_trials: Iterable[Trial], *, wanted: int) -> Sharing:
    """Return the share of the host that each of at most ``wanted`` launches in flight gets.

    Args:
        prepared: the checked request.
        jobs: the scheduler.
        own_trials: trials of this tune, which show whether the training uses devices.
        wanted: launches in flight that the user asks for.
    """
    if wanted == 1 or not jobs.shares_host:
        return Sharing(at_a_time=wanted)
    obstacle = jobs.why_indivisible or _why_indivisible(prepared)
    if obstacle:
        return _one_at_a_time(wanted, obstacle)
    uses_devices = _uses_devices(prepared, own_trials)
    if uses_devices is False:
        return _one_at_a_time(wanted, f"{_ON_PROCESSORS}; {_OTHER_HOSTS}")
    devices = jobs.devices(prepared.component.launch.env.get(VISIBLE_DEVICES))
    if not devices:
        return _one_at_a_time(wanted, f"{_NO_DEVICES}; {_OTHER_HOSTS}")
    per_launch = _most_devices(prepared)
    if per_launch is None:
        return _one_at_a_time(wanted, _DERIVED if _chosen_processes(prepared) is not None else _NOT_STATED)
    return divide(devices, per_launch=per_launch, wanted=wanted, uses_devices=uses_devices)


def divide(devices: Sequence[str], *, per_launch: int, wanted: int, uses_devices: bool | None) -> Sharing:
    """Return the devices of the host that each launch in flight gets.

    Args:
        devices: devices that the launches may use, at least one.
        per_launch: most devices that one launch takes.
        wanted: launches in flight that the user asks for, at least two.
        uses_devices: whether the training uses devices; ``None`` if unknown.
    """
    fit = min(wanted, len(devices) // per_launch)
    offered = f"{per_launch} of the {len(devices)} devices of this host ({VISIBLE_DEVICES}={','.join(devices)})"
    if fit < 2:
        return _one_at_a_time(wanted, f"each needs {offered}; side by side they need {2 * per_launch}")
    if uses_devices is None:
        text = (
            f"launches run one at a time until one shows that it trains on a device; then {fit} run at a time, "
            f"each on {offered}"
        )
        return Sharing(at_a_time=1, devices=tuple(devices), per_launch=per_launch, is_open=True, text=text)
    short = "" if fit == wanted else f", not {wanted}"
    text = f"launches run {fit} at a time{short}: each gets {offered}"
    return Sharing(at_a_time=fit, devices=tuple(devices), per_launch=per_launch, text=text)


def devices_of(prepared: Prepared, nproc_per_node: int | None) -> int | None:
    """Return the number of devices that a launch takes: one per process, or more if its component asks for more."""
    component = prepared.component
    asked = component.source.app.roles[component.role].resource.gpu
    return max(nproc_per_node, asked) if nproc_per_node is not None else None


def _one_at_a_time(wanted: int, why: str) -> Sharing:
    return Sharing(at_a_time=1, text=f"launches run one at a time, not {wanted}: {why}")


def _why_indivisible(prepared: Prepared) -> str:
    bindings = [parameter.binding for parameter in prepared.space.parameters if parameter.binding is not None]
    if any(binding.kind == BindingKind.ENV and binding.name == VISIBLE_DEVICES for binding in bindings):
        return f"the space file sets {VISIBLE_DEVICES} itself; take it out to divide the devices between launches"
    chosen = [each.binding for each in prepared.space.parameters if each.binding and len(each.choices) > 1]
    asked = [each.name for each in chosen if each.kind == BindingKind.COMPONENT and each.name in _RESOURCES]
    if asked:
        return f"launches differ in the devices that they ask for ({', '.join(asked)})"
    return ""


def _uses_devices(prepared: Prepared, own_trials: Iterable[Trial]) -> bool | None:
    component = prepared.component
    if component.source.app.roles[component.role].resource.gpu > 0:
        return True
    facts = [trial.observed for trial in own_trials if "device" in trial.observed]
    return all("devices_per_node" in each for each in facts) if facts else None


def _most_devices(prepared: Prepared) -> int | None:
    """Return the most devices that a launch of the space takes; ``None`` if the number of processes is unknown."""
    chosen = _chosen_processes(prepared)
    if chosen is None:
        return devices_of(prepared, prepared.component.launch.nproc_per_node)
    return devices_of(prepared, max(chosen, default=None))


def _chosen_processes(prepared: Prepared) -> list[int] | None:
    """Return the choices of the parameter for the processes per node, none if it is derived; ``None`` without one."""
    for parameter in prepared.space.parameters:
        binding = parameter.binding
        if binding is not None and binding.kind == BindingKind.TORCHRUN and binding.name == "nproc_per_node":
            return [choice for choice in parameter.choices if isinstance(choice, int)]
    return None

"""What happened and when, and when it would on other hardware. Imports nothing else of labkit."""

from labkit.trace.events import About, Event, Group, Step, Trace
from labkit.trace.hardware import CLUSTERS, DEVICES, LINKS, Cluster, Device, Link, this_machine
from labkit.trace.mark import mark
from labkit.trace.memory import Held
from labkit.trace.pick import Pick
from labkit.trace.span import span

__all__ = [
    "CLUSTERS",
    "DEVICES",
    "LINKS",
    "About",
    "Cluster",
    "Device",
    "Event",
    "Group",
    "Held",
    "Link",
    "Pick",
    "Step",
    "Trace",
    "mark",
    "span",
    "this_machine",
]

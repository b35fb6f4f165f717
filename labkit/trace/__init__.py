"""What happened and when: events, spans, measures, files. Imports nothing else of labkit."""

from labkit.trace.events import About, Event, Group, Step, Trace
from labkit.trace.span import span

__all__ = ["About", "Event", "Group", "Step", "Trace", "span"]

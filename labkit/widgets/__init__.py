"""What is seen. Imported when something is drawn: loads ipywidgets and matplotlib."""

from labkit.widgets.memory import MemoryBar
from labkit.widgets.timeline import Timeline

__all__ = ["MemoryBar", "Timeline"]

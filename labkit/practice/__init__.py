"""What a learner does: predictions, and the progress they leave. Content is data (TOML)."""

from labkit.practice.predict import Closed, Prediction, predict
from labkit.practice.progress import Progress

__all__ = ["Closed", "Prediction", "Progress", "predict"]

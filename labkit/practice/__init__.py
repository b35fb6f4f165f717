"""What a learner does: predictions, the ledger, and the progress they leave. Content is data."""

from labkit.practice.ledger import Ledger, ledger
from labkit.practice.predict import Closed, Prediction, predict
from labkit.practice.progress import Progress

__all__ = ["Closed", "Ledger", "Prediction", "Progress", "ledger", "predict"]

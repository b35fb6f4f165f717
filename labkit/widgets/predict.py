"""A prediction as it is seen: question, inputs, answer, one button; afterwards the gap in words.

The widget's state holds what the page shows and nothing else. Which choice is right, the numbers
that misconceptions give and their sentences stay in Python until the run is over. Without a kernel
(GitHub, a notebook that was only opened) the question stands there as plain HTML.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from labkit.widgets.joined import joined

if TYPE_CHECKING:
    from labkit.practice.predict import Prediction
    from labkit.practice.question import Question

_SKIP = "Lock an answer before you run the next cell, or just go on."


class Predict(anywidget.AnyWidget):
    """The widget of one `Prediction`; a click goes to it, and what it says is shown."""

    _esm = joined("front/page.js", "predict.js")
    _css = joined("front/theme.css", "front/card.css", "predict.css")

    asked = traitlets.Dict().tag(sync=True)
    state = traitlets.Dict().tag(sync=True)

    def __init__(self, prediction: Prediction) -> None:
        self.prediction = prediction
        self._refused = 0
        super().__init__(asked=_asked(prediction.question), state=_state(prediction))
        self.on_msg(self._said)

    def refresh(self) -> None:
        """Show how the prediction stands now."""
        self.state = _state(self.prediction)

    def _said(self, widget: Any, content: Any, buffers: Any) -> None:
        """What the page sends; refusals are shown there, since a click has no cell to fail in."""
        try:
            if "lock" in content:
                self.prediction.lock(content["lock"]["value"], content["lock"]["sure"])
            elif "again" in content:
                self.prediction.again()
        except (RuntimeError, ValueError) as refused:
            self._refused += 1  # two equal refusals both have to reach the page
            told = {"status": str(refused), "refused": self._refused}
            self.state = {**_state(self.prediction), **told}

    def __repr__(self) -> str:
        return repr(self.prediction)

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is None:
            return None
        data, metadata = bundle
        return {**data, "text/plain": repr(self), "text/html": _still(self.prediction)}, metadata


def _asked(question: Question) -> dict[str, Any]:
    """What never changes: the question without anything that tells the answer."""
    number = question.number
    return {
        "question": question.question,
        "inputs": [[name, value] for name, value in question.inputs.items()],
        "choices": [[choice.id, choice.text] for choice in question.choices],
        "number": None
        if number is None
        else {"unit": number.unit, "low": number.low, "high": number.high, "log": number.log},
    }


def _state(prediction: Prediction) -> dict[str, Any]:
    """How it stands: the learner's own answer, and the words once the run is over."""
    gap = prediction.gap
    told = [] if gap is None else list(gap.words)
    if gap is not None and gap.said is None:
        told.append(gap.because)  # who skipped may read why, too
    locked = {"value": prediction.value, "sure": prediction.sure} if prediction.locked else None
    return {
        "locked": locked,
        "closed": gap is not None,
        "told": [text for text in told if text],
        "status": _status(prediction),
        "again": gap is not None or prediction.earlier,
    }


def _status(prediction: Prediction) -> str:
    if prediction.locked:
        day = f" on {(prediction.when or '')[:10]}" if prediction.earlier else ""
        return f"Locked{day}: {prediction.said}."
    return "" if prediction.gap else _SKIP


def _still(prediction: Prediction) -> str:
    """The question for a page without a kernel; in an untouched run always the same."""
    question = prediction.question
    parts = [f"<p><b>{escape(question.question)}</b></p>"]
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>'
        for name, value in question.inputs.items()
    )
    if rows:
        parts.append(f"<table><caption>Given</caption><tbody>{rows}</tbody></table>")
    if question.choices:
        items = "".join(f"<li>{escape(choice.text)}</li>" for choice in question.choices)
        parts.append(f"<ul>{items}</ul>")
    elif question.number is not None:
        parts.append(f"<p>A number of {escape(question.number.unit)}.</p>")
    if prediction.locked:
        parts.append(f"<p>Locked: {escape(prediction.said)}.</p>")
    else:
        parts.append("<p>Not locked. Run the notebook to predict.</p>")
    return "".join(parts)

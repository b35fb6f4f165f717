// What is where: times and lanes to pixels and back, and the window, the stretch of time in view.

const SPANS = 0, COMPUTE = 1, COMMUNICATION = 2; // lanes, as in picture.py
const AXIS = 26, RIGHT = 10, SEEN_AT_MOST = 520; // pixels

class Layout {
  constructor(data, aligned = false) {
    this.width = 0;
    this.top = 0; // pixels scrolled down
    this.around = null; // limits, from the origin, that another picture beside this one asks for
    this.aligned = aligned; // count from the first step's start, as the picture beside this one does
    this.step = null;
    this.take(data);
    this.choose(null, false);
  }

  /** Other times for the same rows; the window stays until `choose`. */
  take(data) {
    this.data = data;
    this.above = data.steps.length > 1 ? 17 : 4; // room for the steps' numbers
    if (data.boxes.length) this.above = 17; // and for the prediction's word
    this.content = this.above + (data.rows.at(-1)?.bottom ?? 0) + 10;
    this.height = AXIS + Math.min(this.content, SEEN_AT_MOST);
  }

  fit(width) {
    this.width = width;
    this.left = width < 620 ? 58 : 136;
    this.inner = width - this.left - RIGHT;
  }

  /** Step `number`, or all steps, or the whole run; the axis then counts from the step's start. */
  choose(number, whole) {
    const { steps, home, extent, boxes } = this.data;
    this.step = steps.find(({ index }) => index === number) ?? null;
    this.whole = whole && !this.step;
    const spans = this.step ? Object.values(this.step.spans)
      : this.whole ? [extent] : [[home.start, home.end]];
    const starts = this.aligned && !this.step && !this.whole ? Object.values(steps[0]?.spans ?? {}) : spans;
    const from = Math.min(...(starts.length ? starts : spans).map((s) => s[0]));
    const predicted = boxes.filter(([step]) => !this.step || step === number).map((box) => box[3]);
    const to = Math.max(...spans.map((s) => s[1]), ...predicted);
    this.home = [from, to > from ? to + (to - from) * 0.005 : from + 1];
    this.since = this.step ? number : this.whole ? null : home.step ?? (this.aligned ? steps[0]?.index ?? null : null);
    this.origin = this.since === null && !this.aligned ? 0 : from;
    this.show(...this.home);
  }

  /** The window, counted from the origin. */
  get window() {
    return [this.from - this.origin, this.to - this.origin];
  }

  set window([from, to]) {
    this.show(from + this.origin, to + this.origin);
  }

  /** The longest window: all events, and the home; from the origin. */
  get own() {
    const { home, origin, data: { extent } } = this;
    return [Math.min(home[0], extent[0]) - origin, Math.max(home[1], extent[1]) - origin];
  }

  get limits() {
    const [low, high] = this.around ?? this.own;
    return [low + this.origin, high + this.origin];
  }

  get widest() {
    const [low, high] = this.limits;
    return this.to - this.from >= (high - low) * (1 - 1e-9);
  }

  show(from, to) {
    const [low, high] = this.limits;
    const least = (high - low) / 1e7;
    const length = Math.min(high - low, Math.max(to - from, least));
    this.from = Math.max(low, Math.min(from, high - length));
    this.to = this.from + length;
  }

  get zoomed() {
    return (this.home[1] - this.home[0]) / (this.to - this.from);
  }

  zoom(factor, around) {
    this.show(around - (around - this.from) * factor, around + (this.to - around) * factor);
  }

  pan(share) {
    const by = (this.to - this.from) * share;
    this.show(this.from + by, this.to + by);
  }

  scroll(by) {
    this.top = Math.max(0, Math.min(this.content - (this.height - AXIS), this.top + by));
  }

  x(time) {
    return this.left + ((time - this.from) / (this.to - this.from)) * this.inner;
  }

  time(x) {
    return this.from + ((Math.max(x, this.left) - this.left) / this.inner) * (this.to - this.from);
  }

  /** [y, height] of a lane, as `Row.lane` in rows.py has it. */
  place(rank, lane) {
    const row = this.data.rows[rank];
    const y = AXIS + this.above + row.top - this.top;
    if (lane === SPANS) return [y, 4];
    if (lane === COMPUTE) return [y + 6, row.compute];
    const gap = row.each > 4 ? 1 : 0; // to the next lane
    return [y + 9 + row.compute + (lane - COMMUNICATION) * row.each, row.each - gap];
  }

  /** [y, height] of all lanes of a rank. */
  extentOf(rank) {
    const { top, bottom } = this.data.rows[rank];
    return [this.place(rank, SPANS)[0], bottom - top];
  }

  /** [left, right, whether in the chosen step] of the parts of a rank's row, in pixels. */
  parts(rank) {
    const span = this.step?.spans[rank];
    if (!span) return [[this.left, this.width, true]];
    const [from, to] = span.map((time) => Math.max(this.left, Math.min(this.width, this.x(time))));
    return [[this.left, from, false], [from, to, true], [to, this.width, false]];
  }

  visible(rank) {
    const [y, tall] = this.extentOf(rank);
    return y < this.height && y + tall > AXIS;
  }

  /** The bars of a lane that may be in view: [first, past]. */
  inView([, , first, stop]) {
    const { start, reach } = this.data;
    return [lowerBound(reach, this.from, first, stop), lowerBound(start, this.to, first, stop)];
  }

  /** Middle of event `i`, or of the part of it that is in view. */
  middle(i) {
    const { start, end } = this.data;
    return (Math.max(start[i], Math.min(this.from, end[i])) + Math.min(end[i], Math.max(this.to, start[i]))) / 2;
  }

  /** The event under a point, or -1; up to 3 pixels beside it counts. */
  hit(x, y) {
    const { data } = this;
    if (x < this.left - 3 || y < AXIS) return -1;
    let best = -1, nearest = 4;
    for (const [rank, lane, first, stop] of data.lanes) {
      const [top, tall] = this.place(rank, lane);
      if (y < top || y > top + tall) continue;
      const past = lowerBound(data.start, this.time(x + 3), first, stop);
      const begin = Math.max(lowerBound(data.reach, this.time(x - 3), first, stop), past - 64);
      for (let i = past - 1; i >= begin; i--) {
        const left = this.x(data.start[i]), right = Math.max(this.x(data.end[i]), left + 1);
        const away = x < left ? left - x : x > right ? x - right : 0;
        if (away < nearest) [nearest, best] = [away, i];
        if (away === 0) break;
      }
    }
    return best;
  }

  /** Move so that event `i` can be seen. */
  reveal(i) {
    const { start, end, rank, lane } = this.data;
    const length = this.to - this.from;
    if (end[i] < this.from + length * 0.02 || start[i] > this.to - length * 0.02) {
      const middle = (start[i] + Math.min(end[i], start[i] + length)) / 2;
      this.show(middle - length / 2, middle + length / 2);
    }
    const [y, tall] = this.place(rank[i], lane[i]);
    if (y < AXIS) this.scroll(y - AXIS - 8);
    else if (y + tall > this.height) this.scroll(y + tall - this.height + 8);
  }

  // Walking from event to event.

  laneOf(i) {
    return this.data.lanes.findIndex(([, , first, stop]) => i >= first && i < stop);
  }

  /** Where the keyboard sets out: the first compute that starts in view, else the first event. */
  entrance() {
    const { data } = this;
    for (const [, number, first, stop] of data.lanes) {
      const i = lowerBound(data.start, this.from, first, stop);
      if (number === COMPUTE && i < stop && data.start[i] < this.to) return i;
    }
    return data.size ? 0 : -1;
  }

  along(i, by) {
    const [, , first, stop] = this.data.lanes[this.laneOf(i)];
    return Math.max(first, Math.min(stop - 1, i + by));
  }

  /** The first or, for `last`, the last event of the lane of `i`; of the chosen step, if any. */
  edge(i, last) {
    const { start, rank } = this.data;
    let [, , first, stop] = this.data.lanes[this.laneOf(i)];
    const span = this.step?.spans[rank[i]];
    if (span) [first, stop] = span.map((time) => lowerBound(start, time, first, stop));
    if (stop <= first) return i;
    return last ? stop - 1 : first;
  }

  /** The event of the next lane that is nearest in time. */
  across(i, by) {
    const { lanes, start, end } = this.data;
    const lane = lanes[this.laneOf(i) + by];
    if (!lane) return i;
    const wanted = this.middle(i);
    const after = Math.min(lowerBound(start, wanted, lane[2], lane[3]), lane[3] - 1);
    const before = Math.max(lane[2], after - 1);
    const away = (j) => Math.max(0, start[j] - wanted, wanted - end[j]);
    return away(before) <= away(after) ? before : after;
  }
}

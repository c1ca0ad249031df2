// Moments that are marked on the curves, each kind with a shape of its own, a key that explains it, and a switch.
{
  const STYLE = {
    nonfinite: { colour: "bad", shape: "bar", above: true },
    clip: { colour: "clip", shape: "bar", above: true },
    skip: { colour: "skip", shape: "bar", above: true },
    spike: { colour: "high", shape: "triangle", above: true },
    zero: { colour: "ink", shape: "square", above: true },
    rate: { colour: "run4", shape: "line" },
    epoch: { colour: "soft", shape: "dashes" },
    look: { colour: "run2", shape: "dot" },
  };
  const LANE = 8; // pixels of each kind that has a lane above the chart
  const MOST_LINES = 80; // more lines than this would hide the curve
  const off = new Set();

  const all = () => {
    const data = GF.state.data,
      { nonfinite = [], bad_loss = [], first, step } = data.series;
    const bad = nonfinite.flatMap((count, i) =>
      count > 0 ? [{ kind: "nonfinite", step: first[i], last: step[i], text: `${GF.steps(first[i], step[i])}: NaN or Inf.` }] : [],
    );
    const lost = bad_loss.flatMap((count, i) =>
      count > 0 && !(nonfinite[i] > 0)
        ? [{ kind: "nonfinite", step: first[i], last: step[i], text: `${GF.steps(first[i], step[i])}: the loss was NaN or Inf.` }]
        : [],
    );
    return [...bad, ...lost, ...(data.marks || [])];
  };
  GF.marksShown = () => all().filter(mark => !off.has(mark.kind));
  GF.marksAt = (from, to) => GF.marksShown().filter(mark => mark.step <= to && mark.last >= from);

  // The kinds with a lane above the chart, whether switched on or not: charts keep their size.
  const lanesOf = only => {
    const there = new Set((GF.state.data ? all() : []).map(mark => mark.kind));
    return Object.keys(STYLE).filter(kind => STYLE[kind].above && there.has(kind) && (!only || only.includes(kind)));
  };
  GF.markRoom = only => LANE * lanesOf(only).length;

  const shapes = {
    bar: (context, x, to, y, unit) => context.fillRect(x - unit, y, Math.max(2 * unit, to - x), 4 * unit),
    triangle: (context, x, _to, y, unit) => {
      context.beginPath();
      context.moveTo(x - 4 * unit, y);
      context.lineTo(x + 4 * unit, y);
      context.lineTo(x, y + 7 * unit);
      context.fill();
    },
    square: (context, x, _to, y, unit) => context.fillRect(x - 3 * unit, y, 6 * unit, 6 * unit),
    dot: (context, x, _to, y, unit) => {
      context.beginPath();
      context.arc(x, y, 3.2 * unit, 0, 7);
      context.fill();
    },
  };

  // On a chart: bars and symbols in lanes above it, where they cover no curve; looks along the bottom one, changes as lines from top to bottom.
  GF.paintMarks = (plot, only) => {
    const { left, top, width, height } = plot.bbox,
      unit = devicePixelRatio || 1,
      context = plot.ctx;
    const place = step => plot.valToPos(GF.axis.to(step), "x", true);
    const marks = GF.marksShown().filter(mark => !only || only.includes(mark.kind));
    const lanes = lanesOf(only),
      counts = {};
    for (const mark of marks) counts[mark.kind] = (counts[mark.kind] || 0) + 1;
    context.save();
    for (const mark of marks) {
      const style = STYLE[mark.kind],
        x = place(mark.step),
        to = mark.last > mark.step ? place(mark.last + 1) : x;
      if (!style || to < left || x > left + width) continue;
      context.fillStyle = context.strokeStyle = GF.colour(style.colour);
      if (style.shape === "line" || style.shape === "dashes") {
        const short = counts[mark.kind] > MOST_LINES;
        context.lineWidth = unit;
        context.setLineDash(style.shape === "dashes" ? [3 * unit, 4 * unit] : []);
        context.globalAlpha = style.shape === "dashes" ? 0.6 : 1;
        context.beginPath();
        context.moveTo(x, short ? top + height - 8 * unit : top);
        context.lineTo(x, top + height);
        context.stroke();
        context.globalAlpha = 1;
      } else {
        const y = style.shape === "dot" ? top + height : top - LANE * unit * (lanes.length - lanes.indexOf(mark.kind));
        shapes[style.shape](context, Math.max(left, x), Math.min(left + width, to), y, unit);
      }
    }
    if (GF.state.mark !== null) {
      const x = place(GF.state.mark);
      context.strokeStyle = GF.colour("ink");
      context.lineWidth = 1.5 * unit;
      context.setLineDash([]);
      if (x >= left && x <= left + width) {
        context.beginPath();
        context.moveTo(x, top);
        context.lineTo(x, top + height);
        context.stroke();
      }
    }
    context.restore();
  };

  const symbol = kind => {
    const canvas = GF.h("canvas", { width: 28, height: 24, class: "symbol", "aria-hidden": "true" }),
      context = canvas.getContext("2d"),
      style = STYLE[kind];
    context.fillStyle = context.strokeStyle = GF.colour(style.colour);
    if (shapes[style.shape]) shapes[style.shape](context, 14, 22, style.shape === "dot" ? 12 : 7, 1.6);
    else {
      context.lineWidth = 2;
      context.setLineDash(style.shape === "dashes" ? [4, 4] : []);
      context.moveTo(14, 1);
      context.lineTo(14, 23);
      context.stroke();
    }
    return canvas;
  };

  GF.showMarks = data => {
    const box = GF.el("time-marks"),
      counts = new Map();
    for (const mark of all()) counts.set(mark.kind, (counts.get(mark.kind) || 0) + 1);
    if (!GF.changed(box, [[...counts], document.documentElement.dataset.theme, [...off]])) return;
    const words = { nonfinite: "NaN or Inf", ...(data.mark_kinds || {}) };
    GF.fill(
      box,
      counts.size ? GF.h("span", { class: "hint" }, "Marks") : null,
      ...Object.keys(STYLE)
        .filter(kind => counts.has(kind))
        .map(kind =>
          GF.h(
            "button",
            {
              type: "button",
              "aria-pressed": String(!off.has(kind)),
              onclick: event => {
                if (!off.delete(kind)) off.add(kind);
                event.currentTarget.setAttribute("aria-pressed", String(!off.has(kind)));
                GF.charts.forEach(chart => chart.plot && chart.plot.redraw(false));
              },
            },
            symbol(kind),
            ` ${words[kind]} `,
            GF.h("span", { class: "count" }, GF.count(counts.get(kind))),
          ),
        ),
    );
  };
  GF.on("theme", () => GF.state.data && GF.showMarks(GF.state.data));
}

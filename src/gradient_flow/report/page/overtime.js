// All gradients together, the loss, the learning rate, and whatever else was logged, on one axis of steps.
{
  const charts = new Map();
  const wanted = new Set();
  const USUAL = new Set(["norm", "clipped_norm", "clip_threshold", "loss"]);
  const TITLES = {
    norm: "Gradient norm",
    clipped_norm: "Norm after clipping",
    clip_threshold: "Clip threshold",
    loss: "Loss",
    lr: "Learning rate",
    epoch: "Epoch",
    l1: "L1 norm",
    linf: "Largest magnitude",
    mean: "Mean of the gradients",
    variance: "Variance of the gradients",
    min: "Smallest gradient",
    max: "Largest gradient",
    zero_fraction: "Share of zeros",
    nan_count: "NaN elements",
    inf_count: "Inf elements",
    amp_scale: "Loss scale",
    skipped_steps: "Skipped steps",
  };
  GF.seriesTitle = name => TITLES[name] || name; // what a user logged keeps its own name
  const isRate = name => name === "lr" || /^lr(\/|\d)/.test(name);

  const has = line => line && line.max.some(value => value !== null && Number.isFinite(value));
  const lineOf = (lines, name, label, colour, extra) => {
    const line = lines[name];
    if (!has(line)) return null;
    const thinned = line.min && line.min.some((value, i) => value !== line.max[i]);
    return { label, colour, values: line.max, low: thinned ? line.min : null, ...extra };
  };
  GF.decadesOf = values => {
    // decades between the smallest and the largest; 0 where a value is not positive
    let low = Infinity,
      high = -Infinity;
    for (const value of values)
      if (value !== null && Number.isFinite(value)) {
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
    return low > 0 && high > 0 ? Math.log10(high / low) : 0;
  };

  GF.WIDE = 1.5; // decades from which on a curve gets a log scale by itself

  // Scale and smoothing that the reader chose, for all curves over time.
  const chosen = { scale: "auto", smooth: 0 };
  GF.scaleOf = automatic => (chosen.scale === "auto" ? automatic : chosen.scale === "log");
  // An exponential mean, corrected for its start; gaps stay gaps. What was recorded stays behind it, faint.
  GF.smoothed = (values, weight) => {
    let mean = 0,
      total = 0;
    return values.map(value => {
      if (value === null || !Number.isFinite(value)) return null;
      mean = weight * mean + (1 - weight) * value;
      total = weight * total + (1 - weight);
      return mean / total;
    });
  };
  GF.smoothLines = lines =>
    chosen.smooth
      ? lines.flatMap(line =>
          line.dash
            ? [line]
            : [
                { ...line, faint: true, width: 1 },
                { ...line, low: null, values: GF.smoothed(line.values, chosen.smooth), spanGaps: line.spanGaps },
              ],
        )
      : lines;
  for (const [id, name, read] of [
    ["time-scale", "scale", String],
    ["time-smooth", "smooth", Number],
  ])
    GF.el(id).addEventListener("change", event => {
      chosen[name] = read(event.target.value);
      GF.tell("curves");
    });
  GF.el("time-x").addEventListener("change", event => GF.axis.choose(event.target.value));
  GF.on("curves", () => {
    if (GF.state.data) draw(GF.state.data);
  });
  const offerAxes = data => {
    const kinds = GF.axis.kinds(data);
    GF.axis.renew(data);
    if (!GF.changed(GF.el("time-x"), kinds)) return;
    GF.fill(
      GF.el("time-x"),
      kinds.map(kind => GF.h("option", { value: kind }, kind)),
    );
    GF.el("time-x").value = GF.axis.kind;
  };

  const place = (key, title, spec, order) => {
    if (!charts.has(key)) charts.set(key, new GF.Chart(title, { height: key === "norm" ? 230 : 150 }));
    const chart = charts.get(key);
    if (chart.figure.parentNode !== GF.el("time-charts") || GF.el("time-charts").children[order] !== chart.figure)
      GF.el("time-charts").insertBefore(chart.figure, GF.el("time-charts").children[order] || null);
    chart.set(spec);
  };

  const draw = data => {
    const { series } = data,
      { lines } = series,
      x = series.step,
      kept = new Set();
    let order = 0;
    const put = (key, title, list, log, yLabel) => {
      const shown = list.filter(Boolean);
      if (!shown.length || !x.length) return;
      kept.add(key);
      place(
        key,
        title,
        {
          x,
          lines: key === "lr" ? shown : GF.smoothLines(shown),
          yLabel: yLabel || title.toLowerCase(),
          log: GF.scaleOf(log === undefined ? GF.decadesOf(shown.flatMap(line => line.values)) > GF.WIDE : log),
        },
        order++,
      );
    };
    put(
      "norm",
      "Gradient norm",
      [
        lineOf(lines, "norm", lines.clipped_norm ? "before clipping" : "norm", "accent", { spanGaps: false }),
        lineOf(lines, "clipped_norm", "after clipping", "run2", { spanGaps: false }),
        lineOf(lines, "clip_threshold", "clip threshold", "clip", { dash: [6, 4] }),
      ],
      true,
      "norm (L2)",
    );
    put("loss", "Loss", [lineOf(lines, "loss", "", "ink", {})]);
    put(
      "lr",
      "Learning rate",
      Object.keys(lines)
        .filter(isRate)
        .slice(0, 8)
        .map((name, i, all) =>
          lineOf(lines, name, all.length > 1 ? `group ${name.replace(/\D+/g, "") || 0}` : "", `run${i}`, {}),
        ),
    );
    for (const name of Object.keys(lines))
      if (wanted.has(name)) put(`+${name}`, GF.seriesTitle(name), [lineOf(lines, name, "", "ink", {})]);
    for (const [key, chart] of charts)
      if (!kept.has(key)) {
        chart.remove();
        charts.delete(key);
      }
    GF.el("time-charts").hidden = !kept.size;
  };
  const offerMore = data => {
    const others = Object.keys(data.series.lines).filter(
      name => !USUAL.has(name) && !isRate(name) && has(data.series.lines[name]),
    );
    const box = GF.el("time-more");
    if (!GF.changed(box, others)) return;
    GF.fill(
      box,
      others.length
        ? [
            GF.h("span", { class: "hint" }, "Also recorded:"),
            GF.h(
              "span",
              { class: "chips", role: "group", "aria-label": "Further series" },
              others.map(name =>
                GF.h(
                  "button",
                  {
                    type: "button",
                    "aria-pressed": String(wanted.has(name)),
                    onclick: event => {
                      if (!wanted.delete(name)) wanted.add(name);
                      event.currentTarget.setAttribute("aria-pressed", String(wanted.has(name)));
                      draw(GF.state.data);
                    },
                  },
                  GF.seriesTitle(name),
                ),
              ),
            ),
          ]
        : [],
    );
  };

  const table = data => {
    const { lines, step } = data.series;
    const rows = Object.keys(lines)
      .filter(name => has(lines[name]))
      .map(name => {
        const high = lines[name].max,
          low = lines[name].min || high;
        let most = -1,
          least = -1,
          last = -1;
        high.forEach((value, i) => {
          if (value === null || !Number.isFinite(value)) return;
          if (most < 0 || value > high[most]) most = i;
          if (least < 0 || low[i] < low[least]) least = i;
          last = i;
        });
        return GF.h(
          "tr",
          {},
          GF.h("th", { scope: "row" }, GF.seriesTitle(name)),
          ...[
            [low[least], step[least]],
            [high[most], step[most]],
            [high[last], step[last]],
          ].flatMap(([value, at]) => [
            GF.h("td", { class: "num" }, GF.number(value)),
            GF.h("td", { class: "num" }, GF.count(at)),
          ]),
        );
      });
    return GF.h(
      "table",
      { class: "rows" },
      GF.h(
        "thead",
        {},
        GF.h(
          "tr",
          {},
          ["Series", "Smallest", "at step", "Largest", "at step", "Last", "at step"].map((text, i) =>
            GF.h("th", { scope: "col", class: i ? "num" : null }, text),
          ),
        ),
      ),
      GF.h("tbody", {}, rows),
    );
  };
  const details = GF.el("time-table");
  const fillTable = () => {
    if (details.open && GF.state.data) GF.fill(details.querySelector("div"), table(GF.state.data));
  };
  details.addEventListener("toggle", fillTable);

  const emptyNote = GF.h("p", { class: "empty" }, "Nothing to draw yet: the curves begin with the first recorded step.");
  GF.showOverTime = data => {
    offerAxes(data);
    offerMore(data);
    GF.showMarks(data);
    draw(data);
    const none = !data.series.step.length;
    if (none && !emptyNote.parentNode) details.before(emptyNote);
    if (!none) emptyNote.remove();
    details.hidden = none;
    fillTable();
  };
  GF.on("layer", () =>
    charts.forEach(chart => {
      if (chart.plot) chart.plot.redraw(false);
    }),
  );
  GF.chartOf = key => charts.get(key);
}

// Two or more runs overlaid: norm and loss, any other series, and the norm of a layer; their issues side by side.
{
  const COLOURS = 6; // more do not stay apart for every eye
  const DASHES = [undefined, [7, 4], [2, 3], [9, 3, 2, 3]]; // runs beyond the colours are told apart by these
  const chosen = []; // ids in the order they were ticked
  const loaded = new Map();
  const charts = {};
  const layers = new Map(); // id → {name, step, values} of the layer that is overlaid
  const series = GF.el("compare-series"),
    layer = GF.el("compare-layer"),
    axis = GF.el("compare-x"),
    scale = GF.el("compare-scale"),
    smoothing = GF.el("compare-smooth");

  const lookOf = position => ({
    colour: `run${position % COLOURS}`,
    dash: DASHES[Math.floor(position / COLOURS) % DASHES.length],
  });

  GF.runLook = lookOf;

  const drop = key => {
    if (!charts[key]) return;
    charts[key].remove();
    delete charts[key];
  };
  // A curve over the chosen axis; a place that is not beyond the one before it, as in a pause of the clock, is left out.
  const placed = ([position, data, steps, values]) => {
    const at = GF.axis.placesOf(data, steps, axis.value),
      kept = at.map((_, i) => i).filter(i => Number.isFinite(at[i]) && (i === 0 || at[i] > at[i - 1])),
      weight = Number(smoothing.value),
      own = kept.map(i => values[i]);
    return [position, data.run.name, kept.map(i => at[i]), weight ? GF.smoothed(own, weight) : own];
  };
  // curves: [[position, data, steps, values]]
  const overlay = (key, title, curves, { log, yLabel }) => {
    const known = curves
      .map(placed)
      .filter(([, , , values]) => values.some(value => value !== null && Number.isFinite(value)));
    if (!known.length) return drop(key);
    if (!charts[key]) {
      charts[key] = new GF.Chart(title, { height: 240, shared: false });
      GF.el("compare-charts").append(charts[key].figure);
    }
    charts[key].title = title;
    const joined = uPlot.join(known.map(([, , steps, values]) => [steps, values]));
    const lines = known.map(([position, name], i) => ({
      label: name,
      ...lookOf(position),
      values: joined[i + 1].map(value => (value === undefined ? null : value)),
      spanGaps: true,
    }));
    const positive = lines.every(one => one.values.every(value => value === null || value > 0)),
      wide = log || GF.decadesOf(lines.flatMap(line => line.values)) > GF.WIDE,
      kind = axis.value,
      [first, last] = [joined[0][0], joined[0][joined[0].length - 1]];
    return charts[key].set({
      x: joined[0],
      lines,
      log: scale.value === "auto" ? wide && positive : scale.value === "log",
      yLabel,
      xLabel: GF.axis.label(kind),
      xFormat: value => GF.axis.format(value, kind),
      increments: GF.axis.increments(kind),
      endLabels: true,
      ownAxis: true,
      xLimits: [first, last > first ? last : first + 1],
      where: at => `${kind} ${GF.axis.format(joined[0][at], kind)}`,
    });
  };
  const lineCurves = (runs, line) =>
    runs.flatMap(([position, data]) =>
      data.series.lines[line] ? [[position, data, data.series.step, data.series.lines[line].max]] : [],
    );

  const column = ([position, data]) => {
    const mark = GF.h("span", { class: "dash" }),
      { colour, dash } = lookOf(position);
    mark.style.borderColor = `var(--${colour})`;
    mark.style.borderTopStyle = dash ? "dashed" : "solid";
    const issues = data.verdict.issues;
    return GF.h(
      "div",
      { "data-run": data.run.name },
      GF.h("h3", {}, GF.h("span", { class: "key" }, mark, data.run.name)),
      GF.h("p", {}, GF.prose(data.verdict.sentence)),
      issues.length
        ? GF.h(
            "ul",
            { class: "notes" },
            issues.map(issue => GF.h("li", {}, GF.badge(issue.severity), " ", ...GF.prose(issue.title))),
          )
        : null,
    );
  };

  const offer = runs => {
    const names = [...new Set(runs.flatMap(([, data]) => Object.keys(data.series.lines)))].filter(
      name => name !== "norm" && name !== "loss",
    );
    if (GF.changed(series, names)) {
      const before = series.value;
      GF.fill(
        series,
        GF.h("option", { value: "" }, "no other series"),
        names.map(name => GF.h("option", { value: name }, GF.seriesTitle(name))),
      );
      series.value = names.includes(before) ? before : "";
    }
    const tensors = [...new Set(runs.flatMap(([, data]) => data.layers.names))].slice(0, 5000);
    if (GF.changed(GF.el("compare-layers"), tensors))
      GF.fill(
        GF.el("compare-layers"),
        tensors.map(name => GF.h("option", { value: name })),
      );
  };

  const draw = () => {
    const runs = chosen.map((id, position) => [position, loaded.get(id), id]).filter(([, data]) => data);
    const show = runs.length > 1;
    GF.el("compare").hidden = !show;
    if (!show) return;
    offer(runs);
    // An axis that every run has: a run without epochs has no place among those that have them.
    for (const option of axis.options) option.disabled = runs.some(([, data]) => !GF.axis.kinds(data).includes(option.value));
    if (axis.selectedOptions[0].disabled) axis.value = "step";
    overlay("norm", "Gradient norm", lineCurves(runs, "norm"), { log: true, yLabel: "norm (L2)" });
    overlay("loss", "Loss", lineCurves(runs, "loss"), { log: false, yLabel: "loss" });
    if (series.value) overlay("series", GF.seriesTitle(series.value), lineCurves(runs, series.value), { log: false, yLabel: GF.seriesTitle(series.value).toLowerCase() });
    else drop("series");
    const one = runs.flatMap(([position, data, id]) => {
      const found = layers.get(id);
      return found && found.name === layer.value ? [[position, data, found.step, found.values]] : [];
    });
    if (one.length) overlay("layer", `Norm of ${layer.value}`, one, { log: true, yLabel: "norm (L2)" });
    else drop("layer");
    if (
      GF.changed(
        GF.el("compare-issues"),
        runs.map(([position, data]) => [position, data.run.name, data.verdict]),
      )
    )
      GF.fill(GF.el("compare-issues"), runs.map(column));
  };
  const fetchLayer = async id => {
    const name = layer.value;
    const data = loaded.get(id);
    if (!name || !data || !data.layers.index.has(name) || (layers.get(id) || {}).name === name) return;
    try {
      const answer = await GF.ask(GF.runPath(id, "/layer"), { name });
      if (layer.value === name) layers.set(id, { name, step: answer.step, values: answer.stats.norm });
    } catch (_) {
      layers.delete(id); /* gone meanwhile: it has no line */
    }
  };
  const drawLayer = async () => {
    await Promise.all(chosen.map(fetchLayer));
    draw();
  };
  for (const choice of [series, axis, scale, smoothing]) choice.addEventListener("change", draw);
  layer.addEventListener("change", drawLayer);

  GF.isCompared = id => chosen.includes(id);
  GF.compare = async (id, wanted) => {
    const at = chosen.indexOf(id);
    if (!wanted && at >= 0) chosen.splice(at, 1);
    if (wanted && at < 0) chosen.push(id);
    if (wanted && !loaded.has(id)) {
      try {
        loaded.set(id, GF.prepare(await GF.ask(GF.runPath(id), { cells: 1 })));
      } catch (problem) {
        GF.complain(problem);
      }
    }
    await drawLayer();
  };
  GF.renewCompared = async id => {
    if (!chosen.includes(id)) return;
    try {
      loaded.set(id, GF.prepare(await GF.ask(GF.runPath(id), { cells: 1 })));
      layers.delete(id);
      await drawLayer();
    } catch (_) {
      /* what is drawn stays until the next news */
    }
  };
  GF.refreshCompared = (id, data) => {
    if (loaded.has(id)) {
      loaded.set(id, data);
      draw();
    }
  };
}

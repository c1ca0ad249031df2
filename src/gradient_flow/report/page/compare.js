// Two or more runs overlaid: norm and loss in one chart each, their issues side by side.
{
  const MOST = 6;
  const chosen = []; // ids in the order they were ticked
  const loaded = new Map();
  const charts = {};

  const overlay = (key, title, runs, line, log) => {
    const known = runs.filter(
      ([, data]) => data.series.lines[line] && data.series.lines[line].max.some(value => value !== null),
    );
    if (!known.length) {
      if (charts[key]) {
        charts[key].remove();
        delete charts[key];
      }
      return;
    }
    if (!charts[key]) {
      charts[key] = new GF.Chart(title, { height: 220, shared: false });
      GF.el("compare-charts").append(charts[key].figure);
    }
    const joined = uPlot.join(known.map(([, data]) => [data.series.step, data.series.lines[line].max]));
    const lines = known.map(([position, data], i) => ({
      label: data.run.name,
      colour: `run${position % MOST}`,
      values: joined[i + 1].map(value => (value === undefined ? null : value)),
      spanGaps: true,
    }));
    const positive = lines.every(one => one.values.every(value => value === null || value > 0));
    charts[key].set({
      x: joined[0],
      lines,
      log: log && positive,
      ownAxis: true,
      xLimits: [joined[0][0], Math.max(joined[0][joined[0].length - 1], joined[0][0] + 1)],
      where: at => `step ${GF.count(joined[0][at])}`,
    });
  };

  const column = ([position, data]) => {
    const mark = GF.h("span", { class: "swatch" });
    mark.style.background = `var(--run${position % MOST})`;
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
        : GF.h("p", { class: "lead" }, "No issue was found."),
    );
  };

  const draw = () => {
    const runs = chosen.map((id, position) => [position, loaded.get(id)]).filter(([, data]) => data);
    const show = runs.length > 1;
    GF.el("compare").hidden = !show;
    if (!show) return;
    overlay("norm", "Gradient norm", runs, "norm", true);
    overlay("loss", "Loss", runs, "loss", false);
    if (
      GF.changed(
        GF.el("compare-issues"),
        runs.map(([position, data]) => [position, data.run.name, data.verdict]),
      )
    )
      GF.fill(GF.el("compare-issues"), runs.map(column));
  };

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
    draw();
  };
  GF.renewCompared = async id => {
    if (!chosen.includes(id)) return;
    try {
      loaded.set(id, GF.prepare(await GF.ask(GF.runPath(id), { cells: 1 })));
      draw();
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

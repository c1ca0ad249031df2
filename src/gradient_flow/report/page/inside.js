// What looks inside the model saw, over the steps: gain over depth, dead units, slopes, attention, recurrence. A dot
// is a value; the line between two of them is only there to guide the eye.
{
  const charts = new Map();

  const joined = curve => {
    const steps = [...new Set([...curve.lines.flatMap(line => line.step), ...(curve.band ? curve.band.step : [])])].sort(
      (a, b) => a - b,
    );
    const at = new Map(steps.map((step, i) => [step, i]));
    const spread = (own, values) => {
      const row = new Array(steps.length).fill(null);
      own.forEach((step, i) => (row[at.get(step)] = values[i]));
      return row;
    };
    return { steps, spread };
  };

  const draw = data => {
    const { curves = [], steps = [] } = data.looks || {},
      box = GF.el("inside-charts");
    const kept = new Set(curves.map(curve => curve.key));
    for (const [key, chart] of charts)
      if (!kept.has(key)) {
        chart.remove();
        charts.delete(key);
      }
    for (const curve of curves) {
      const { steps: x, spread } = joined(curve);
      if (!charts.has(curve.key)) {
        const chart = new GF.Chart(curve.title, { height: 210 });
        chart.figure.append(GF.h("p", { class: "hint" }, curve.hint));
        charts.set(curve.key, chart);
        box.append(chart.figure);
      }
      const lines = curve.lines.map((line, i) => ({
        label: line.label,
        colour: `run${i % 8}`,
        values: spread(line.step, line.values),
        points: true,
      }));
      if (curve.band)
        lines.unshift({
          label: `all ${curve.of} layers`,
          colour: "run7",
          values: spread(curve.band.step, curve.band.high),
          low: spread(curve.band.step, curve.band.low),
          width: 0.6,
        });
      const seen = lines.flatMap(line => [...line.values, ...(line.low || [])]).filter(value => value > 0);
      const log = curve.log ? GF.scaleOf(true) : false;
      charts.get(curve.key).set({
        x,
        lines,
        log,
        yLabel: curve.axis,
        yRange: curve.span ? [curve.span[0] - 0.02, curve.span[1] + 0.02] : log ? rangeWith(seen, curve.healthy) : undefined,
        zones: curve.healthy ? [{ low: curve.healthy[0], high: curve.healthy[1], colour: "healthy" }] : [],
        format: curve.percent ? GF.percent : GF.number,
        markKinds: ["rate", "epoch", "nonfinite"],
        notes: curve.healthy ? [GF.h("span", { class: "key" }, swatch("healthy"), "usual")] : [],
      });
    }
    GF.el("inside-empty").hidden = curves.length > 0;
    GF.el("inside-lead").hidden = !curves.length;
    const taken = new Set(steps),
      between = curves.some(curve => curve.lines.some(line => line.step.some(step => !taken.has(step))));
    GF.el("inside-count").textContent = curves.length
      ? `${GF.plural(steps.length, "look")}, at ${listed(steps)}${between ? "; some values are known at other steps too" : ""}.`
      : "";
    GF.el("inside-empty").textContent = steps.length
      ? "The looks at this run saw nothing that these curves show."
      : "No look inside the model was recorded. gf.watch(…) looks at some steps unless looks=False; a compiled model is not looked at.";
  };
  const listed = steps => {
    const texts = steps.map(GF.count);
    return `step ${(texts.length > 12 ? [...texts.slice(0, 6), "…", ...texts.slice(-3)] : texts).join(", ")}`;
  };
  const swatch = colour => {
    const box = GF.h("span", { class: "swatch" });
    box.style.background = GF.tinted(colour, 0.3);
    return box;
  };
  const rangeWith = (seen, healthy) => {
    const values = [...seen, ...(healthy || [])],
      low = Math.min(...values),
      high = Math.max(...values);
    return [10 ** Math.floor(Math.log10(low) - 0.01), 10 ** Math.ceil(Math.log10(high) + 0.01)];
  };

  GF.insideChart = key => charts.get(key);
  GF.on("curves", () => GF.state.data && draw(GF.state.data));
  GF.showInside = draw;
}

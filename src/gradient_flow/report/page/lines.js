// Line charts (uPlot) in the page's colours, with a caption that doubles as key and readout, one zoom and one cursor
// for all that share the axis of steps.
{
  const charts = new Set();

  const lastKnown = values => {
    let at = values.length - 1;
    while (at >= 0 && !Number.isFinite(values[at])) at--;
    return at;
  };

  class Chart {
    constructor(title, { height = 190, shared = true } = {}) {
      Object.assign(this, { title, height, shared, plot: null, shape: "", spec: null });
      this.caption = GF.h("figcaption", {});
      this.holder = GF.h("div", { class: "plot", role: "img", "aria-label": title });
      this.figure = GF.h("figure", {}, this.caption, this.holder);
      this.holder.style.minHeight = `${height}px`;
      this.watcher = new ResizeObserver(() => this.fit());
      this.watcher.observe(this.holder);
      charts.add(this);
    }

    remove() {
      this.watcher.disconnect();
      if (this.plot) this.plot.destroy();
      charts.delete(this);
      this.figure.remove();
    }

    // spec: {x, lines: [{label, colour, values, low, dash, points, alone}], log, yRange, zones, marks, format,
    // xFormat, onClick}
    set(spec) {
      this.spec = spec;
      const shape = JSON.stringify([
        spec.log,
        spec.lines.map(line => [line.label, line.colour, line.dash, line.points, !!line.low]),
      ]);
      if (this.plot && shape === this.shape) {
        this.plot.setData(this.columns());
        this.read(null);
      } else this.build(shape);
      this.describe();
    }

    clean(values) {
      // a log axis has no place for zero; NaN and null alike are gaps
      const log = this.spec.log;
      return Array.from(values, value =>
        value === null || !Number.isFinite(value) || (log && value <= 0) ? null : value,
      );
    }
    columns() {
      return [
        this.spec.x,
        ...this.spec.lines.flatMap(line =>
          line.low ? [this.clean(line.values), this.clean(line.low)] : [this.clean(line.values)],
        ),
      ];
    }

    xLimits() {
      if (this.spec.xLimits) return this.spec.xLimits;
      return this.shared
        ? GF.state.range || GF.whole(GF.state.data)
        : [this.spec.x[0], this.spec.x[this.spec.x.length - 1]];
    }

    build(shape) {
      const width = this.holder.clientWidth;
      if (!width) return; // not on screen yet: fit() comes back to it
      if (this.plot) this.plot.destroy();
      this.shape = shape;
      const spec = this.spec,
        bands = [],
        series = [{}];
      for (const line of spec.lines) {
        const stroke = GF.colour(line.colour),
          ends = {
            stroke,
            width: line.points === "only" ? 0 : line.width || 1.6,
            dash: line.dash,
            spanGaps: line.spanGaps !== false,
            points: line.points
              ? {
                  show: true,
                  size: line.points === "only" ? 5 : 6,
                  stroke,
                  fill: line.points === "only" ? GF.colour("bg") : stroke,
                  width: 1.4,
                }
              : { size: 4 },
          };
        if (line.points === "only") ends.paths = () => null;
        series.push(ends);
        if (line.low) {
          series.push({ stroke, width: 0, spanGaps: line.spanGaps !== false, points: { show: false } });
          bands.push({ series: [series.length - 2, series.length - 1], fill: GF.tinted(line.colour, 0.2) });
        }
      }
      const axis = {
        stroke: GF.colour("soft"),
        font: "11px system-ui, sans-serif",
        grid: { stroke: GF.colour("grid"), width: 1 },
        ticks: { stroke: GF.colour("grid"), width: 1, size: 4 },
      };
      const format = spec.format || GF.number;
      this.plot = new uPlot(
        {
          width,
          height: this.height,
          legend: { show: false },
          padding: [8, 16, 0, 0],
          series,
          bands,
          cursor: {
            y: false,
            drag: { x: this.shared, y: false, setScale: false },
            points: { size: 7 },
            bind: {
              dblclick: () => () => {
                if (this.shared) GF.resetZoom();
              },
            },
          },
          scales: {
            x: { time: false, range: () => this.xLimits() },
            y: {
              distr: spec.log ? 3 : 1,
              range: spec.yRange ? () => this.spec.yRange : spec.log ? GF.scales.logRange : GF.scales.linearRange,
            },
          },
          axes: [
            {
              ...axis,
              size: 30,
              gap: 4,
              space: 70,
              incrs: [
                1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7,
                1e8, 1e9,
              ],
              values: (_, ticks) => ticks.map(spec.xFormat || GF.count),
            },
            {
              ...axis,
              size: 54,
              gap: 4,
              ...(spec.log
                ? {
                    splits: GF.scales.decades,
                    values: (_, ticks) => ticks.map(GF.scales.powerText),
                    filter: (_, ticks) => ticks,
                  }
                : { values: (_, ticks) => ticks.map(format), space: 34 }),
            },
          ],
          hooks: {
            drawClear: [plot => this.zones(plot)],
            draw: [plot => this.marks(plot)],
            setCursor: [plot => this.moved(plot)],
            setSelect: [plot => this.selected(plot)],
            ready: [
              plot =>
                plot.over.addEventListener("click", () => {
                  if (spec.onClick && plot.cursor.idx !== null && plot.cursor.idx !== undefined)
                    this.spec.onClick(plot.cursor.idx);
                }),
            ],
          },
        },
        this.columns(),
        this.holder,
      );
      this.read(null);
    }

    zones(plot) {
      // bands of the y axis that mean something, drawn behind the lines
      const { left, top, width, height } = plot.bbox;
      for (const zone of this.spec.zones || []) {
        const ends = [zone.low, zone.high].map(value =>
          Math.max(top, Math.min(top + height, plot.valToPos(value, "y", true))),
        );
        plot.ctx.fillStyle = GF.tinted(zone.colour, zone.line ? 0.8 : 0.13);
        plot.ctx.fillRect(
          left,
          Math.min(...ends),
          width,
          Math.max(zone.line ? devicePixelRatio : 0, Math.abs(ends[1] - ends[0])),
        );
      }
    }

    marks(plot) {
      // steps that mean something: {from, to, colour} along the top edge, {at, colour} as a line
      const { left, top, width, height } = plot.bbox,
        scale = devicePixelRatio || 1;
      const marks = [...(this.spec.marks ? this.spec.marks() : [])];
      for (const mark of marks) {
        plot.ctx.fillStyle = GF.colour(mark.colour);
        if (mark.at !== undefined) {
          const x = plot.valToPos(mark.at, "x", true);
          if (x >= left && x <= left + width) plot.ctx.fillRect(x - scale / 2, top, Math.max(1, scale), height);
        } else {
          const from = Math.max(left, plot.valToPos(mark.from, "x", true)),
            to = Math.min(left + width, plot.valToPos(mark.to, "x", true));
          if (to >= left && from <= left + width)
            plot.ctx.fillRect(from - scale, top, Math.max(2 * scale, to - from), 4 * scale);
        }
      }
    }

    moved(plot) {
      const idx = plot.cursor.idx;
      this.read(plot.cursor.left >= 0 ? idx : null);
      if (this.shared && !this.spec.ownAxis)
        GF.tell("cursor", { step: plot.cursor.left >= 0 && idx !== null ? this.spec.x[idx] : null, from: this });
    }
    selected(plot) {
      if (!this.shared || plot.select.width < 4) return;
      const range = [plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x")];
      plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      if (range[1] - range[0] >= 1) GF.setRange(range, this);
    }
    point(step) {
      // the cursor of another chart
      if (!this.plot) return;
      if (step === null) {
        this.plot.setCursor({ left: -10, top: -10 }, false);
        this.read(null);
        return;
      }
      this.plot.setCursor({ left: this.plot.valToPos(step, "x"), top: 10 }, false);
      this.read(this.plot.cursor.idx);
    }

    read(idx) {
      const spec = this.spec,
        format = spec.format || GF.number;
      const idle = idx === null || idx === undefined,
        at = idle ? (spec.quiet ? -1 : spec.x.length - 1) : idx; // at rest: the last value
      const keys = spec.lines.map(line => {
        const dash = GF.h("span", { class: "dash" });
        dash.style.borderColor = `var(--${line.colour})`;
        dash.style.borderTopStyle = line.dash ? "dashed" : line.points === "only" ? "dotted" : "solid";
        const own = idle && at >= 0 ? lastKnown(line.values) : at,
          value = line.values[own],
          low = line.low ? line.low[own] : value;
        const text =
          own < 0 || at < 0
            ? ""
            : line.low && low !== value && low !== null
              ? `${format(low)} – ${format(value)}`
              : format(value);
        return GF.h(
          "span",
          { class: "key" },
          dash,
          line.label ? `${line.label} ` : "",
          GF.h("span", { class: "read" }, text),
        );
      });
      const where = idle ? "" : spec.where ? spec.where(at) : `step ${GF.count(spec.x[at])}`;
      GF.fill(
        this.caption,
        GF.h("span", { class: "title" }, this.title),
        ...keys,
        where ? GF.h("span", {}, where) : null,
        ...(spec.notes || []),
      );
    }
    describe() {
      const parts = this.spec.lines.map(line => {
        const finite = Array.from(line.values).filter(value => value !== null && Number.isFinite(value));
        return finite.length
          ? `${line.label || this.title}: from ${GF.number(finite.reduce((a, b) => Math.min(a, b)))} to ${GF.number(finite.reduce((a, b) => Math.max(a, b)))}, last ${GF.number(finite[finite.length - 1])}`
          : `${line.label}: no values`;
      });
      this.holder.setAttribute("aria-label", `${this.title}. ${parts.join(". ")}`);
    }
    fit() {
      if (!this.spec) return;
      if (!this.plot) this.build(this.shape || " ");
      else if (this.holder.clientWidth && this.holder.clientWidth !== this.plot.width)
        this.plot.setSize({ width: this.holder.clientWidth, height: this.height });
    }
    rescale() {
      if (this.plot) {
        const [min, max] = this.xLimits();
        this.plot.setScale("x", { min, max });
      }
    }
    restyle() {
      if (this.plot) this.build(this.shape);
    }
  }

  GF.Chart = Chart;
  GF.charts = charts;
  GF.on("theme", () => charts.forEach(chart => chart.restyle()));
  GF.on("range", () =>
    charts.forEach(chart => {
      if (chart.shared) chart.rescale();
    }),
  );
  GF.on("cursor", ({ step, from }) =>
    charts.forEach(chart => {
      if (chart.shared && chart !== from && chart.spec && !chart.spec.ownAxis) chart.point(step);
    }),
  );
}

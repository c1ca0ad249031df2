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
      const save = GF.h(
        "button",
        { type: "button", class: "quiet save", "aria-label": `Download “${title}” as PNG`, onclick: () => GF.saveChart(this) },
        "PNG",
      );
      this.figure = GF.h("figure", {}, this.caption, this.holder, save);
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

    // spec: {x, lines: [{label, colour, values, low, dash, points, faint}], log, yLabel, yRange, zones, marks, format,
    // xLabel, xFormat, xNames, endLabels, onClick}
    set(spec) {
      this.spec = spec;
      const shape = JSON.stringify([
        spec.log,
        spec.yLabel,
        this.shared ? GF.axis.kind : spec.xLabel,
        spec.xNames ? spec.xNames.length : 0,
        spec.lines.map(line => [line.label, line.colour, line.dash, line.points, line.faint, !!line.low]),
      ]);
      if (this.plot && shape === this.shape && this.plot.height === this.height + this.room) {
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
        this.shared ? Array.from(this.spec.x, GF.axis.to) : this.spec.x,
        ...this.spec.lines.flatMap(line =>
          line.low ? [this.clean(line.values), this.clean(line.low)] : [this.clean(line.values)],
        ),
      ];
    }

    get room() {
      // for the marks above the plot, which keeps its own height
      return this.shared && !this.spec.ownAxis ? GF.markRoom(this.spec.markKinds) : 0;
    }

    get lastLabel() {
      const last = this.xLimits()[1];
      return this.shared ? GF.axis.format(last) : (this.spec.xFormat || GF.count)(last);
    }
    beyond() {
      // half of the last label of the axis may stand beyond its end
      return Math.max(16, 3.5 * this.lastLabel.length);
    }
    get besides() {
      // for names at the ends of the lines
      return this.holder.clientWidth < 480 ? 72 : 118;
    }

    xLimits() {
      if (this.spec.xLimits) return this.spec.xLimits;
      return this.shared
        ? (GF.state.range || GF.wholeOfCurves(GF.state.data)).map(GF.axis.to)
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
        const stroke = line.faint ? GF.tinted(line.colour, 0.3) : GF.colour(line.colour),
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
      const names = spec.xNames,
        most = names ? Math.max(2, Math.floor((width - 160) / 17)) : 0;
      const title = text => (text ? { label: text, labelSize: 18, labelGap: 2, labelFont: "11px system-ui, sans-serif" } : {});
      this.plot = new uPlot(
        {
          width,
          height: this.height + this.room,
          legend: { show: false },
          padding: [() => 8 + this.room, spec.endLabels ? this.besides : spec.xNames ? 90 : () => this.beyond(), 0, 0],
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
              ...title(this.shared ? GF.axis.label() : spec.xLabel),
              gap: 4,
              ...(names
                ? {
                    size: 118,
                    rotate: -38,
                    splits: (_, __, low, high) => {
                      const every = Math.max(1, Math.ceil((high - low) / most)),
                        ticks = [];
                      for (let row = Math.max(0, Math.ceil(low - 1)); row < names.length && row + 1 <= high; row += every)
                        ticks.push(row + 1);
                      return ticks;
                    },
                    values: (_, ticks) =>
                      ticks.map(tick => GF.shorten(String(names[tick - 1] ?? ""), text => text.length <= 27)),
                  }
                : {
                    size: 30,
                    space: width < 400 ? Math.max(34, 7 * this.lastLabel.length) : 70,
                    incrs: this.shared ? GF.axis.increments() : spec.increments,
                    values: (_, ticks) =>
                      ticks.map(tick => (this.shared ? GF.axis.format(tick) : (spec.xFormat || GF.count)(tick))),
                  }),
            },
            {
              ...axis,
              ...title(spec.yLabel),
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
      // {from, to, colour}: stretches of this chart's own axis, along the top edge
      const { left, top, width } = plot.bbox,
        scale = devicePixelRatio || 1;
      for (const mark of this.spec.marks ? this.spec.marks() : []) {
        plot.ctx.fillStyle = GF.colour(mark.colour);
        const from = Math.max(left, plot.valToPos(mark.from, "x", true)),
          to = Math.min(left + width, plot.valToPos(mark.to, "x", true));
        if (to >= left && from <= left + width)
          plot.ctx.fillRect(from - scale, top, Math.max(2 * scale, to - from), 4 * scale);
      }
      if (this.shared && !this.spec.ownAxis) GF.paintMarks(plot, this.spec.markKinds);
      if (this.spec.endLabels) this.endLabels(plot);
    }
    endLabels(plot) {
      // The name of each line at its end, moved apart where two would touch.
      const scale = devicePixelRatio || 1,
        { left, top, width, height } = plot.bbox,
        gap = 13 * scale;
      const ends = this.spec.lines.flatMap((line, i) => {
        const values = plot.data[i + 1],
          at = lastKnown(values);
        return at < 0 ? [] : [{ line, y: plot.valToPos(values[at], "y", true) }];
      });
      ends.sort((a, b) => a.y - b.y);
      ends.forEach((end, i) => (end.y = Math.max(end.y, i ? ends[i - 1].y + gap : top + gap / 2)));
      for (let i = ends.length - 1; i >= 0; i--)
        ends[i].y = Math.min(ends[i].y, i + 1 < ends.length ? ends[i + 1].y - gap : top + height);
      plot.ctx.save();
      plot.ctx.font = `${11 * scale}px system-ui, sans-serif`;
      plot.ctx.textBaseline = "middle";
      plot.ctx.textAlign = "left";
      for (const { line, y } of ends) {
        plot.ctx.fillStyle = GF.colour(line.colour);
        const text = GF.shorten(line.label, part => plot.ctx.measureText(part).width <= (this.besides - 14) * scale);
        plot.ctx.fillText(text, left + width + 6 * scale, y);
      }
      plot.ctx.restore();
    }

    moved(plot) {
      const idx = plot.cursor.idx;
      this.read(plot.cursor.left >= 0 ? idx : null);
      if (this.shared && !this.spec.ownAxis)
        GF.tell("cursor", { step: plot.cursor.left >= 0 && idx !== null ? this.spec.x[idx] : null, from: this });
    }
    selected(plot) {
      if (!this.shared || plot.select.width < 4) return;
      const range = [plot.select.left, plot.select.left + plot.select.width].map(place =>
        GF.axis.from(plot.posToVal(place, "x")),
      );
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
      this.plot.setCursor({ left: this.plot.valToPos(GF.axis.to(step), "x"), top: 10 }, false);
      this.read(this.plot.cursor.idx);
    }

    read(idx) {
      const spec = this.spec,
        format = spec.format || GF.number;
      const idle = idx === null || idx === undefined,
        at = idle ? (spec.quiet ? -1 : spec.x.length - 1) : idx; // at rest: the last value
      const keys = spec.lines
        .filter(line => !line.faint)
        .map(line => {
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
      const where = idle ? "" : spec.where ? spec.where(at) : GF.stepText(spec.x[at]);
      const here =
        idle || !this.shared || spec.ownAxis || spec.where
          ? []
          : GF.marksAt(at ? spec.x[at - 1] + 1 : spec.x[at], spec.x[at]).slice(0, 2);
      GF.fill(
        this.caption,
        GF.h("span", { class: "title" }, this.title),
        ...keys,
        where ? GF.h("span", {}, where) : null,
        ...here.map(mark => GF.h("span", {}, ...GF.prose(mark.text))),
        ...(spec.notes || []),
      );
    }
    describe() {
      const parts = this.spec.lines.filter(line => !line.faint).map(line => {
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
        this.plot.setSize({ width: this.holder.clientWidth, height: this.height + this.room });
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

  // A step, with its epoch or time where the axis shows that.
  GF.stepText = step =>
    `step ${GF.count(step)}${GF.axis.kind === "step" ? "" : `, ${GF.axis.kind} ${GF.axis.format(GF.axis.to(step))}`}`;

  GF.Chart = Chart;
  GF.charts = charts;
  GF.on("theme", () => charts.forEach(chart => chart.restyle()));
  GF.on("axis", () => charts.forEach(chart => chart.shared && chart.spec && chart.set(chart.spec)));
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

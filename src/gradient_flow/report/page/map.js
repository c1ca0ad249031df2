// The gradient map: layers × steps. Here it is put on the canvas; what it shows is in mapstate.js, what the reader
// does in mapuse.js.
{
  const canvas = GF.el("map-canvas"),
    frame = GF.el("map-frame"),
    tip = GF.el("map-tip");
  const map = GF.map,
    view = GF.mapView;
  const layersNow = () => GF.state.data.layers;

  GF.drawMapLegend = () => {
    const scale = GF.h("canvas", { width: 256, height: 1, "aria-hidden": "true" }),
      context = scale.getContext("2d"),
      image = context.createImageData(256, 1);
    new Uint32Array(image.data.buffer).set(GF.ramp);
    context.putImageData(image, 0, 0);
    const { low, high, linear } = map.range,
      end = power => (linear ? GF.percent(power) : GF.number(Number((10 ** power).toPrecision(2))));
    const key = (colour, text) => {
      const box = GF.h("span", { class: "swatch" });
      box.style.background = `var(--${colour})`;
      return GF.h("span", { class: "key" }, box, text);
    };
    GF.fill(
      GF.el("map-legend"),
      GF.h(
        "span",
        { class: "scale" },
        GF.h("span", {}, `${map.titles[map.statistic]} ${end(low)}`),
        scale,
        GF.h("span", {}, end(high) + (linear ? "" : " (log scale)")),
      ),
      key("bad", "NaN or Inf"),
      linear ? null : key("zero-cell", "exactly zero"),
      key("blank", "no record"),
      ...GF.lanesOf(GF.state.data)
        .filter(([name]) => name !== "nonfinite")
        .map(([, label, colour]) => key(colour, `${label} step`)),
    );
  };

  const outline = (context, x, y, w, h, colour, thick) => {
    context.lineWidth = thick + 2;
    context.strokeStyle = GF.colour("bg");
    context.strokeRect(x, y, w, h);
    context.lineWidth = thick;
    context.strokeStyle = colour;
    context.strokeRect(x, y, w, h);
  };

  const paintMarks = context => {
    const { layout } = map,
      layers = layersNow();
    context.save();
    context.beginPath();
    context.rect(layout.gutter - 2, layout.top - 2, layout.plotWidth + 4, layout.plotHeight + 4);
    context.clip();
    const line = step => {
      const x = Math.round(map.xOf(step)) + 0.5;
      context.strokeStyle = GF.colour("cursor");
      context.globalAlpha = 0.7;
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(x, layout.top);
      context.lineTo(x, layout.top + layout.plotHeight);
      context.stroke();
      context.globalAlpha = 1;
    };
    if (map.other !== null) line(map.other);
    if (map.highlight) {
      const { rows, first, last } = map.highlight,
        wanted = new Set(rows);
      const from = first === null ? view.x0 : layers.edges.starts[GF.columnAt(layers, first)];
      const to =
        last === null || last === undefined
          ? view.x1
          : Math.max(layers.edges.ends[GF.columnAt(layers, last)], from + 1);
      let start = -1;
      for (let at = 0; at <= map.list.length; at++) {
        // rows that follow each other get one outline
        const hit = at < map.list.length && map.list[at].tensors.some(row => wanted.has(row));
        if (hit && start < 0) start = at;
        if (!hit && start >= 0) {
          outline(
            context,
            map.xOf(from),
            map.yOf(start),
            Math.max(3, map.xOf(to) - map.xOf(from)),
            Math.max(2, (at - start) * layout.rowHeight),
            GF.colour("cursor"),
            2,
          );
          start = -1;
        }
      }
    }
    if (map.cursor) {
      const { at, column } = map.cursor,
        x = map.xOf(layers.edges.starts[column]);
      outline(
        context,
        x,
        map.yOf(at),
        Math.max(3, map.xOf(layers.edges.ends[column]) - x),
        Math.max(3, layout.rowHeight),
        GF.colour("accent"),
        2,
      );
    }
    if (map.drag && map.drag.moved) {
      const { x0, y0, x1, y1 } = map.drag;
      context.fillStyle = GF.colour("accent");
      context.globalAlpha = 0.2;
      context.fillRect(Math.min(x0, x1), Math.min(y0, y1), Math.abs(x1 - x0), Math.abs(y1 - y0));
      context.globalAlpha = 1;
      outline(
        context,
        Math.min(x0, x1),
        Math.min(y0, y1),
        Math.abs(x1 - x0),
        Math.abs(y1 - y0),
        GF.colour("accent"),
        1,
      );
    }
    context.restore();
  };

  const severityOf = entry => {
    let worst = null;
    for (const row of entry.tensors) {
      const level = map.severities.get(row);
      if (level && (worst === null || GF.LEVELS.indexOf(level) > GF.LEVELS.indexOf(worst))) worst = level;
    }
    return worst;
  };

  // The cells are kept as a picture: moving the cursor redraws marks, not half a million cells.
  const kept = document.createElement("canvas");
  const draw = cellsToo => {
    const data = GF.state.data;
    if (!data || !data.layers.rows || !frame.clientWidth) return;
    [view.x0, view.x1] = GF.state.range || GF.whole(GF.state.data);
    const lanes = GF.lanesOf(data),
      scale = devicePixelRatio || 1;
    map.layout = GF.mapLayout(frame.clientWidth, view, lanes, GF.labelWidth(canvas.getContext("2d"), map.list), frame.getBoundingClientRect().top + scrollY);
    const w = Math.round(map.layout.width * scale),
      h = Math.round(map.layout.height * scale);
    if (canvas.width !== w || canvas.height !== h) {
      canvas.width = w;
      canvas.height = h;
      canvas.style.height = `${map.layout.height}px`;
      cellsToo = true;
    }
    const context = canvas.getContext("2d");
    if (cellsToo) {
      kept.width = w;
      kept.height = h;
      const inner = kept.getContext("2d");
      GF.paintCells(inner, map.layout, view, data.layers, map.cells.shades, scale);
      inner.setTransform(scale, 0, 0, scale, 0, 0);
      GF.paintLanes(inner, map.layout, view, data, lanes);
      GF.paintLabels(inner, map.layout, view, map.list, severityOf);
      GF.paintAxis(inner, map.layout, view);
    }
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, w, h);
    context.drawImage(kept, 0, 0);
    context.setTransform(scale, 0, 0, scale, 0, 0);
    paintMarks(context);
  };
  map.draw = draw;
  let cellsWanted = false;
  const drawSoon = GF.eachFrame(() => {
    const cellsToo = cellsWanted;
    cellsWanted = false;
    draw(cellsToo);
  });
  map.redraw = cellsToo => {
    cellsWanted = cellsWanted || cellsToo !== false;
    drawSoon();
  };

  map.showTip = (at, column, x, y) => {
    const { name, facts } = map.describe(at, column);
    GF.fill(
      tip,
      GF.h("b", { class: "name" }, name),
      GF.h("div", {}, facts[0][1]),
      GF.h(
        "dl",
        {},
        facts.slice(1).flatMap(([label, text]) => [GF.h("dt", {}, label), GF.h("dd", {}, text)]),
      ),
    );
    tip.hidden = false;
    const left = x + 18 + tip.offsetWidth > map.layout.width ? Math.max(0, x - tip.offsetWidth - 18) : x + 18;
    tip.style.left = `${left}px`;
    tip.style.top = `${Math.max(0, Math.min(y + 14, map.layout.height - tip.offsetHeight))}px`;
  };
  map.point = (at, column, said) => {
    map.cursor = { at, column };
    const layers = layersNow(),
      { name, facts } = map.describe(at, column);
    map.showTip(at, column, map.xOf(layers.edges.ends[column]), map.yOf(at));
    if (said) GF.el("map-say").textContent = `${name}, ${facts.map(pair => pair.join(" ").trim()).join(", ")}`;
    GF.tell("cursor", { step: layers.step[column], from: "map" });
    map.redraw(false);
  };

  GF.on("range", () => map.redraw());
  GF.on("highlight-off", () => {
    map.highlight = map.cursor = map.other = null;
  });
  GF.on("theme", () => {
    if (map.range) GF.drawMapLegend();
    map.redraw();
  });
  GF.on("cursor", ({ step, from }) => {
    if (from !== "map") {
      map.other = step;
      map.redraw(false);
    }
  });
  GF.on("highlight", mark => {
    map.highlight = mark.rows.length ? mark : null;
    if (GF.state.data.layers.rows && mark.row !== undefined) {
      GF.rows.search = "";
      GF.el("map-search").value = "";
      if (GF.rows.grouped) GF.reveal(mark.row);
      map.arrange(false);
      [view.y0, view.y1] = [0, map.list.length];
      GF.setRange(null, "map");
      draw(true);
      const at = map.list.findIndex(entry => entry.leaf && entry.tensors[0] === mark.row);
      if (at >= 0 && !mark.quiet) map.point(at, GF.columnAt(layersNow(), mark.first === null ? view.x0 : mark.first), true);
    } else {
      // Nothing of what was pointed at before stays beside it.
      map.cursor = null;
      tip.hidden = true;
      map.reset();
      map.highlight = mark.rows.length ? mark : null;
    }
    map.redraw();
  });
  new ResizeObserver(() => map.redraw()).observe(frame);

  GF.showMap = data => {
    const empty = data.layers.rows === 0 || data.layers.columns === 0;
    GF.el("map-body").hidden = empty;
    GF.el("map-lead").hidden = empty;
    GF.el("map-empty").hidden = !empty;
    GF.fill(
      GF.el("map-empty"),
      ...GF.prose(
        "This run has no per-layer record yet. It comes with the first step, and then every `layers_every` recorded steps of `gf.watch(…, run=…)`.",
      ),
    );
    if (empty) return;
    map.severities = new Map();
    for (const issue of data.verdict.issues)
      for (const row of GF.rowsOfIssue(issue)) {
        const level = issue.severity.toLowerCase(),
          before = map.severities.get(row);
        if (!before || GF.LEVELS.indexOf(level) > GF.LEVELS.indexOf(before)) map.severities.set(row, level);
      }
    map.arrange(true);
    map.redraw();
  };
}

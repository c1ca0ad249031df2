// What the gradient map shows at the moment: rows, cells, colours, the part that is zoomed into, and where a cell
// lies on the canvas.
{
  const view = { x0: 0, x1: 1, y0: 0, y1: 0 }; // steps and rows on screen; no rows before the first data
  const map = {
    list: [],
    cells: null,
    range: null,
    statistic: "norm",
    cursor: null,
    other: null,
    drag: null,
    highlight: null,
    layout: null,
    severities: new Map(),
  };
  GF.map = map;
  GF.mapView = view;
  GF.LEVELS = ["low", "medium", "high", "critical"];
  map.titles = { norm: "gradient norm", update_ratio: "update ratio", zero_fraction: "share of zeros" };

  map.arrange = keepRows => {
    const { layers } = GF.state.data;
    const before = [view.y0, view.y1],
      wasAll = view.y0 === 0 && view.y1 === map.list.length;
    map.list = GF.arrangeRows(layers);
    map.cells = GF.cellsOf(layers, map.list, map.statistic);
    map.range = GF.colourRange(layers.values[map.statistic], map.statistic === "zero_fraction");
    map.cells.shades = GF.shadesOf(map.cells, map.range);
    [view.y0, view.y1] =
      keepRows && !wasAll && before[1] <= map.list.length ? before : [0, Math.max(1, map.list.length)];
    if (map.cursor && map.cursor.at >= map.list.length) map.cursor = null;
    GF.el("map-folds").hidden = !GF.rows.grouped || GF.rows.search.trim() !== "";
    GF.el("map-group").checked = GF.rows.grouped;
    const shown = new Set(map.list.flatMap(entry => entry.tensors)).size;
    GF.el("map-count").textContent = map.list.length
      ? `${GF.plural(shown, "tensor")} of ${GF.count(layers.rows)} in ${GF.plural(map.list.length, "row")}, ${GF.plural(layers.columns, "column")}.`
      : "No layer has that in its name.";
    GF.el("map-lead").textContent =
      `A row is a ${map.list.some(entry => !entry.leaf && !entry.open) ? "module, all its tensors together, or a single tensor" : "tensor"}, ` +
      "from input (top) to output (bottom); colour is the size of its gradient.";
    GF.drawMapLegend();
  };

  map.xOf = step => map.layout.gutter + ((step - view.x0) / (view.x1 - view.x0)) * map.layout.plotWidth;
  map.yOf = row => map.layout.top + (row - view.y0) * map.layout.rowHeight;
  map.stepAt = x => view.x0 + ((x - map.layout.gutter) / map.layout.plotWidth) * (view.x1 - view.x0);
  map.rowAt = y => view.y0 + (y - map.layout.top) / map.layout.rowHeight;

  map.zoomTo = (x0, x1, y0, y1) => {
    const [first, last] = GF.whole(GF.state.data),
      n = Math.max(1, map.list.length);
    const height = Math.min(n, Math.max(1, y1 - y0)),
      width = Math.min(last - first, Math.max(1, x1 - x0));
    y0 = Math.max(0, Math.min(n - height, y0));
    x0 = Math.max(first, Math.min(last - width, x0));
    [view.y0, view.y1] = [Math.floor(y0), Math.min(n, Math.ceil(y0 + height))];
    GF.setRange(width >= last - first ? null : [x0, x0 + width], "map");
    map.redraw();
  };
  map.zoomBy = (factor, step, row) => {
    const rows = view.y1 - view.y0,
      height = rows > 8 || factor > 1 ? rows * factor : rows;
    const width = (view.x1 - view.x0) * factor,
      sx = (step - view.x0) / (view.x1 - view.x0),
      sy = (row - view.y0) / rows;
    map.zoomTo(step - sx * width, step + (1 - sx) * width, row - sy * height, row + (1 - sy) * height);
  };
  map.reset = () => {
    [view.y0, view.y1] = [0, Math.max(1, map.list.length)];
    map.highlight = null;
    GF.setRange(null, "map");
    map.redraw();
  };
  map.centre = () =>
    map.cursor
      ? [GF.state.data.layers.edges.starts[map.cursor.column], map.cursor.at + 0.5]
      : [(view.x0 + view.x1) / 2, (view.y0 + view.y1) / 2];

  map.describe = (at, column) => {
    const { layers } = GF.state.data,
      entry = map.list[at],
      row = entry.tensors[0],
      one = entry.tensors.length === 1;
    const value = name => layers.values[name][row * layers.columns + column],
      index = at * layers.columns + column;
    const facts = [["", GF.steps(layers.first[column], layers.step[column])]];
    if (one) {
      const bad = value("nonfinite");
      facts.push(
        ["norm", GF.number(value("norm"))],
        ["mean", GF.number(value("mean"))],
        ["std", GF.number(value("std"))],
        ["smallest", GF.number(value("min"))],
        ["largest", GF.number(value("max"))],
        ["zeros", GF.percent(value("zero_fraction"))],
        ["update ratio", GF.number(value("update_ratio"))],
      );
      if (bad > 0)
        facts.splice(
          1,
          facts.length,
          ["NaN or Inf", GF.plural(bad, "element")],
          ...facts.slice(1).filter(([, text]) => text !== "–"),
        );
    } else {
      facts.push(
        [map.titles[map.statistic], GF.number(map.cells.values[index])],
        ["", `${GF.plural(entry.tensors.length, "tensor")} together`],
      );
      if (map.cells.bad[index]) facts.push(["", "NaN or Inf inside"]);
    }
    return { name: entry.name, facts };
  };
  GF.resetZoom = map.reset;
}

// What the reader does with the gradient map: pointer, wheel, keys and the controls above it.
{
  const canvas = GF.el("map-canvas"),
    tip = GF.el("map-tip");
  const map = GF.map,
    view = GF.mapView;
  const layersNow = () => GF.state.data.layers;

  const cellUnder = event => {
    const box = canvas.getBoundingClientRect(),
      x = event.clientX - box.left,
      y = event.clientY - box.top;
    const at = Math.floor(map.rowAt(y)),
      inside = y >= map.layout.top && at >= view.y0 && at < Math.min(view.y1, map.list.length);
    return {
      x,
      y,
      at: inside ? at : -1,
      column: x >= map.layout.gutter ? GF.columnAt(layersNow(), Math.floor(map.stepAt(x))) : -1,
    };
  };
  const open = entry => {
    if (entry.leaf) GF.selectLayer(entry.name, null);
    else {
      GF.fold(entry.name);
      map.arrange(true);
      map.redraw();
    }
  };

  canvas.addEventListener("pointerdown", event => {
    if (event.button !== 0 || !map.layout) return;
    const cell = cellUnder(event);
    map.drag = { x0: cell.x, y0: cell.y, x1: cell.x, y1: cell.y, moved: false, touch: event.pointerType === "touch" };
    try {
      canvas.setPointerCapture(event.pointerId);
    } catch (_) {
      /* a made-up pointer */
    }
  });
  canvas.addEventListener("pointermove", event => {
    if (!map.layout || !GF.state.data) return;
    const cell = cellUnder(event),
      drag = map.drag;
    if (drag && drag.x0 >= map.layout.gutter) {
      drag.x1 = Math.max(map.layout.gutter, Math.min(map.layout.width, cell.x));
      drag.y1 = drag.touch ? map.layout.top + map.layout.plotHeight : cell.y;
      if (drag.touch) drag.y0 = map.layout.top;
      drag.moved = drag.moved || Math.abs(drag.x1 - drag.x0) > 5 || (!drag.touch && Math.abs(drag.y1 - drag.y0) > 5);
      tip.hidden = true;
      return map.redraw(false);
    }
    canvas.style.cursor = cell.column < 0 ? "pointer" : "crosshair";
    if (cell.at < 0 || cell.column < 0) {
      tip.hidden = true;
      map.cursor = null;
      return map.redraw(false);
    }
    map.cursor = { at: cell.at, column: cell.column };
    map.showTip(cell.at, cell.column, cell.x, cell.y);
    GF.tell("cursor", { step: layersNow().step[cell.column], from: "map" });
    return map.redraw(false);
  });
  canvas.addEventListener("pointerup", event => {
    const drag = map.drag;
    map.drag = null;
    if (!drag) return;
    if (drag.moved) {
      const steps = [map.stepAt(drag.x0), map.stepAt(drag.x1)].sort((a, b) => a - b),
        rows = [map.rowAt(drag.y0), map.rowAt(drag.y1)].sort((a, b) => a - b);
      // A drag along one axis is meant for that axis.
      const flat = Math.abs(drag.y1 - drag.y0) < 8 || drag.touch,
        narrow = Math.abs(drag.x1 - drag.x0) < 8;
      map.zoomTo(
        narrow ? view.x0 : steps[0],
        narrow ? view.x1 : steps[1],
        flat ? view.y0 : Math.floor(rows[0]),
        flat ? view.y1 : Math.ceil(rows[1]),
      );
      return;
    }
    const cell = cellUnder(event);
    if (cell.at >= 0) {
      if (cell.column >= 0) {
        GF.state.mark = layersNow().step[cell.column];
        GF.tell("step", GF.state.mark);
      }
      const entry = map.list[cell.at];
      if (entry.leaf) GF.selectLayer(entry.name, cell.column >= 0 ? GF.state.mark : null);
      else open(entry);
    }
    map.redraw(false);
  });
  canvas.addEventListener("pointercancel", () => {
    map.drag = null;
    map.redraw(false);
  });
  canvas.addEventListener("pointerleave", () => {
    if (!map.drag) {
      tip.hidden = true;
      map.cursor = null;
      GF.tell("cursor", { step: null, from: "map" });
      map.redraw(false);
    }
  });
  canvas.addEventListener("dblclick", map.reset);
  canvas.addEventListener(
    "wheel",
    event => {
      // the page keeps its wheel until the reader has turned to the map
      if (!(event.ctrlKey || event.metaKey || document.activeElement === canvas) || !map.layout) return;
      event.preventDefault();
      const cell = cellUnder(event);
      map.zoomBy(
        event.deltaY > 0 ? 1.25 : 0.8,
        map.stepAt(Math.max(map.layout.gutter, cell.x)),
        Math.max(view.y0, Math.min(view.y1, map.rowAt(cell.y))),
      );
    },
    { passive: false },
  );

  canvas.addEventListener("keydown", event => {
    if (!map.list.length || !map.layout) return;
    const layers = layersNow(),
      cursor = map.cursor || { at: view.y0, column: GF.columnAt(layers, view.x0) };
    const fast = event.shiftKey ? 10 : 1;
    const moves = {
      ArrowUp: [-fast, 0],
      ArrowDown: [fast, 0],
      ArrowLeft: [0, -fast],
      ArrowRight: [0, fast],
      Home: [0, -1e9],
      End: [0, 1e9],
      PageUp: [-20, 0],
      PageDown: [20, 0],
    };
    if (moves[event.key]) {
      const at = Math.max(0, Math.min(map.list.length - 1, cursor.at + moves[event.key][0]));
      const column = Math.max(0, Math.min(layers.columns - 1, cursor.column + moves[event.key][1]));
      const start = layers.edges.starts[column],
        end = layers.edges.ends[column],
        width = view.x1 - view.x0,
        height = view.y1 - view.y0;
      const y0 = at < view.y0 ? at : at >= view.y1 ? at - height + 1 : view.y0,
        x0 = start < view.x0 ? start : end > view.x1 ? end - width : view.x0;
      if (y0 !== view.y0 || x0 !== view.x0) {
        map.zoomTo(x0, x0 + width, y0, y0 + height);
        map.draw(true);
      }
      map.point(at, column, true);
    } else if (event.key === "+" || event.key === "=") map.zoomBy(0.7, ...map.centre());
    else if (event.key === "-" || event.key === "−") map.zoomBy(1 / 0.7, ...map.centre());
    else if (event.key === "0" || event.key === "Escape") map.reset();
    else if (event.key === "Enter") {
      GF.selectLayer(layers.names[map.list[cursor.at].tensors[0]], layers.step[cursor.column]);
      GF.tell("step", layers.step[cursor.column]);
    } else if (event.key === " ") {
      if (!map.list[cursor.at].leaf) open(map.list[cursor.at]);
    } else return;
    event.preventDefault();
  });
  canvas.addEventListener("blur", () => {
    tip.hidden = true;
  });

  const onInput = (id, what, action) => GF.el(id).addEventListener(what, action);
  onInput("map-search", "input", event => {
    GF.rows.search = event.target.value;
    map.arrange(false);
    map.redraw();
    GF.tell("search");
  });
  onInput("map-value", "change", event => {
    map.statistic = event.target.value;
    map.arrange(true);
    map.redraw();
  });
  onInput("map-group", "change", event => {
    GF.rows.chosen = GF.rows.grouped = event.target.checked;
    map.arrange(false);
    map.redraw();
  });
  onInput("map-expand", "click", () => {
    GF.foldAll(true);
    map.arrange(false);
    map.redraw();
  });
  onInput("map-collapse", "click", () => {
    GF.foldAll(false);
    map.arrange(false);
    map.redraw();
  });
  onInput("map-in", "click", () => map.zoomBy(0.7, ...map.centre()));
  onInput("map-out", "click", () => map.zoomBy(1 / 0.7, ...map.centre()));
  onInput("map-reset", "click", map.reset);
}

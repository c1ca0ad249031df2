// The pixels of the gradient map. Many cells may share a pixel: the largest is drawn, and what is not finite wins
// over all.
{
  const AXIS = 26,
    LANE = 7,
    LANE_GAP = 4,
    ABOVE = 3; // above the first lane: the letters of its name are higher than it

  GF.lanesOf = data =>
    [
      ["nonfinite", "NaN/Inf", "bad"],
      ["clipped", "clipped", "clip"],
      ["skipped", "skipped", "skip"],
    ].filter(([key]) => (data.series[key] || []).some(count => count > 0));

  const FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace",
    LETTERS = 11.5,
    SMALLEST = 9; // pixels: names of narrow rows are smaller, down to what can be read
  GF.labelWidth = (context, list) => {
    // what the longest name needs: letters of this font are all as wide as each other
    context.font = `${LETTERS}px ${FONT}`;
    return (
      20 +
      context.measureText("0").width *
        list.reduce(
          (most, entry) => Math.max(most, entry.label.length + 1.3 * Math.min(4, entry.depth) + (entry.leaf ? 0 : 2)),
          0,
        )
    );
  };

  GF.mapLayout = (width, view, lanes, wanted, above) => {
    const gutter = Math.round(Math.max(64, Math.min(280, Math.max(92, width * 0.28), wanted)));
    const top = lanes.length ? ABOVE + lanes.length * (LANE + LANE_GAP) + 2 : 2;
    const rows = view.y1 - view.y0;
    // All of it on the first screen, where that has the room.
    const room = Math.max(220, Math.min(innerHeight - above - top - AXIS - 44, 560));
    const plot = Math.round(Math.max(40, Math.min(room, rows * 20)));
    return {
      width,
      gutter,
      top,
      plotHeight: plot,
      plotWidth: Math.max(40, width - gutter - 2),
      height: top + plot + AXIS,
      rowHeight: plot / rows,
    };
  };

  // For each device pixel along an axis the first and last cell under it, -1 for none.
  const spans = (pixels, edge) => {
    const from = new Int32Array(pixels).fill(-1),
      to = new Int32Array(pixels).fill(-1);
    edge((index, start, end) => {
      const a = Math.max(0, Math.floor(start)),
        b = Math.min(pixels, Math.max(Math.floor(start) + 1, Math.ceil(end - 0.001)));
      for (let p = a; p < b; p++) {
        if (from[p] < 0) from[p] = index;
        to[p] = index;
      }
    });
    return { from, to };
  };

  // What each cell looks like, as a number that grows with what matters: nothing, zero, small to large, not finite.
  const BLANK = 0,
    ZERO = 1,
    RAMP = 2,
    BAD = 300;
  GF.shadesOf = (cells, range) => {
    const { values, bad } = cells,
      shades = new Uint16Array(values.length),
      unit = 255 / (range.high - range.low || 1);
    for (let at = 0; at < values.length; at++) {
      const value = values[at];
      if (bad[at]) shades[at] = BAD;
      else if (value > 0 || (range.linear && value === 0)) {
        const share = ((range.linear ? value : Math.log10(value)) - range.low) * unit;
        shades[at] = RAMP + (share <= 0 ? 0 : share >= 255 ? 255 : Math.round(share));
      } else shades[at] = value === 0 ? ZERO : BLANK;
    }
    return shades;
  };
  const paletteNow = () => {
    const palette = new Uint32Array(BAD + 1);
    palette[BLANK] = GF.packedColour("blank");
    palette[ZERO] = GF.packedColour("zero-cell");
    palette.set(GF.ramp, RAMP);
    palette[BAD] = GF.packedColour("bad");
    return palette;
  };

  GF.paintCells = (context, layout, view, layers, shades, scale) => {
    const w = Math.round(layout.plotWidth * scale),
      h = Math.round(layout.plotHeight * scale),
      { columns } = layers;
    if (w < 1 || h < 1) return;
    const perStep = w / (view.x1 - view.x0),
      perRow = h / (view.y1 - view.y0);
    const across = spans(w, put => {
      for (let c = 0; c < columns; c++) {
        const start = (layers.edges.starts[c] - view.x0) * perStep,
          end = (layers.edges.ends[c] - view.x0) * perStep;
        if (end > 0 && start < w) put(c, start, end);
      }
    });
    const down = spans(h, put => {
      for (let r = Math.floor(view.y0); r < Math.ceil(view.y1); r++)
        put(r, (r - view.y0) * perRow, (r + 1 - view.y0) * perRow);
    });
    const image = context.createImageData(w, h),
      pixels = new Uint32Array(image.data.buffer),
      palette = paletteNow();
    const gap = perRow >= 9 ? Math.max(1, Math.round(scale)) : 0; // a hairline between rows that are high enough
    const line = new Uint16Array(columns);
    let painted = -1; // the last line that was computed: the next ones of the same rows are copies of it
    for (let y = 0; y < h; y++) {
      const start = y * w,
        r0 = down.from[y],
        r1 = down.to[y];
      if (r0 < 0) {
        pixels.fill(palette[BLANK], start, start + w);
        continue;
      }
      if (gap && (y + gap >= h || down.from[y + gap] !== r0)) continue; // left transparent
      if (painted >= 0 && down.from[painted] === r0 && down.to[painted] === r1) {
        pixels.copyWithin(start, painted * w, (painted + 1) * w);
        continue;
      }
      painted = y;
      line.set(shades.subarray(r0 * columns, (r0 + 1) * columns));
      for (let r = r0 + 1; r <= r1; r++)
        for (let c = 0, at = r * columns; c < columns; c++, at++) if (shades[at] > line[c]) line[c] = shades[at];
      for (let x = 0; x < w; x++) {
        let most = BLANK;
        if (across.from[x] >= 0)
          for (let c = across.from[x]; c <= across.to[x]; c++) if (line[c] > most) most = line[c];
        pixels[start + x] = palette[most];
      }
    }
    context.putImageData(image, Math.round(layout.gutter * scale), Math.round(layout.top * scale));
  };

  GF.paintLanes = (context, layout, view, data, lanes) => {
    const perStep = layout.plotWidth / (view.x1 - view.x0);
    context.font = "10px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "right";
    lanes.forEach(([key, label, colour], at) => {
      const y = ABOVE + at * (LANE + LANE_GAP);
      context.fillStyle = GF.colour("grid");
      context.fillRect(layout.gutter, y, layout.plotWidth, LANE);
      context.fillStyle = GF.colour("soft");
      context.fillText(label, layout.gutter - 8, y + LANE / 2 + 0.5);
      context.fillStyle = GF.colour(colour);
      const counts = data.series[key],
        { first, step } = data.series;
      for (let i = 0; i < counts.length; i++) {
        if (!(counts[i] > 0)) continue;
        const a = Math.max(0, (first[i] - view.x0) * perStep),
          b = Math.min(layout.plotWidth, (step[i] + 1 - view.x0) * perStep);
        if (b > 0 && a < layout.plotWidth) context.fillRect(layout.gutter + a, y, Math.max(1.5, b - a), LANE);
      }
    });
  };

  GF.paintLabels = (context, layout, view, list, severityOf) => {
    context.font = `${Math.max(SMALLEST, Math.min(LETTERS, layout.rowHeight))}px ${FONT}`;
    context.textBaseline = "middle";
    context.textAlign = "left";
    const every = Math.max(1, Math.ceil((SMALLEST + 0.5) / layout.rowHeight));
    let before = -Infinity;
    const ink = GF.colour("ink"),
      soft = GF.colour("soft");
    for (let r = Math.ceil(view.y0 / every) * every; r < view.y1; r += every) {
      const entry = list[r];
      if (!entry) continue;
      const y = Math.max(
        layout.top + 6,
        Math.min(layout.top + layout.plotHeight - 6, layout.top + (r - view.y0 + 0.5) * layout.rowHeight),
      );
      if (y - before < SMALLEST + 0.4) continue; // would touch the name above
      before = y;
      const left = 12 + Math.min(4, entry.depth) * 9;
      const severity = severityOf(entry);
      if (severity) {
        context.fillStyle = GF.colour(severity);
        context.beginPath();
        context.arc(4, y, 3, 0, 7);
        context.fill();
      }
      context.fillStyle = entry.leaf ? ink : soft;
      const text = entry.leaf ? entry.label : `${entry.open ? "▾" : "▸"} ${entry.label}`;
      context.fillText(
        GF.shorten(text, part => context.measureText(part).width <= layout.gutter - left - 6),
        left,
        y,
      );
    }
  };

  GF.niceSteps = (low, high, most) => {
    const raw = Math.max(1, (high - low) / most),
      power = 10 ** Math.floor(Math.log10(raw));
    const unit = Math.max(
      1,
      [1, 2, 5, 10].map(m => m * power).find(size => size >= raw),
    );
    const ticks = [];
    for (let tick = Math.ceil(low / unit) * unit; tick <= high; tick += unit) ticks.push(tick);
    return ticks;
  };
  GF.paintAxis = (context, layout, view) => {
    const y = layout.top + layout.plotHeight;
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = GF.colour("soft");
    context.textBaseline = "top";
    for (const tick of GF.niceSteps(view.x0, view.x1, Math.max(2, layout.plotWidth / 90))) {
      const x = layout.gutter + ((tick - view.x0) / (view.x1 - view.x0)) * layout.plotWidth;
      const text = GF.count(tick),
        half = context.measureText(text).width / 2;
      context.fillRect(x, y, 1, 4);
      context.textAlign = "center";
      context.fillText(text, Math.min(x, layout.width - half - 1), y + 8);
    }
    context.textAlign = "left";
    context.fillText("step", 12, y + 8);
  };
}

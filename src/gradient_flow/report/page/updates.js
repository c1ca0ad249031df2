// Update-to-weight ratios: the middle and the spread over the weight tensors, against the band that is usually healthy.
{
  const LOW = 1e-4,
    USUAL = 1e-3,
    HIGH = 1e-2,
    LISTED = 8,
    FLOOR = 1e-9; // below the floor a weight stands still
  GF.healthyBand = [
    { low: LOW, high: HIGH, colour: "healthy" },
    { low: USUAL, high: USUAL, colour: "healthy", line: true },
  ];
  let chart = null;

  // Vectors are left out: a bias that begins at zero has a huge ratio and means nothing.
  const counted = layers =>
    layers.names.map((_, row) => row).filter(row => layers.isWeight[row] && !(layers.frozen || [])[row]);

  const spread = (layers, rows) => {
    const low = [],
      middle = [],
      high = [],
      room = new Float32Array(rows.length);
    for (let c = 0; c < layers.columns; c++) {
      let n = 0;
      for (const row of rows) {
        const value = layers.values.update_ratio[row * layers.columns + c];
        if (value >= 0 && value < Infinity) room[n++] = value;
      }
      const values = room.subarray(0, n).sort();
      low.push(values.length ? values[0] : null);
      high.push(values.length ? values[values.length - 1] : null);
      middle.push(values.length ? values[values.length >> 1] : null);
    }
    return { low, middle, high };
  };
  const last = (layers, row) => {
    for (let c = layers.columns - 1; c >= 0; c--) {
      const value = layers.values.update_ratio[row * layers.columns + c];
      if (Number.isFinite(value)) return value;
    }
    return NaN;
  };

  const outside = (layers, rows) => {
    const found = rows
      .map(row => [row, last(layers, row)])
      .filter(([, value]) => Number.isFinite(value) && (value < LOW || value > HIGH));
    found.sort((a, b) => Math.abs(Math.log10((b[1] || 1e-30) / USUAL)) - Math.abs(Math.log10((a[1] || 1e-30) / USUAL)));
    if (!found.length) return [GF.h("p", { class: "lead" }, "At the last record every weight is inside the band.")];
    return [
      GF.h(
        "p",
        { class: "lead" },
        `At the last record ${GF.plural(found.length, "weight is", "weights are")} outside the band${found.length > LISTED ? `; the furthest ${LISTED}` : ""}:`,
      ),
      GF.h(
        "ul",
        { class: "notes" },
        found.slice(0, LISTED).map(([row, value]) =>
          GF.h(
            "li",
            {},
            GF.h(
              "button",
              {
                type: "button",
                class: "link name",
                onclick: () => {
                  GF.selectLayer(layers.names[row], null);
                  GF.scrollTo(GF.el("layer"));
                },
              },
              layers.names[row],
            ),
            ` ${GF.number(value)}, ${value < LOW ? "hardly moves" : "moves far"}`,
          ),
        ),
      ),
    ];
  };

  const healthyKey = () => {
    const box = GF.h("span", { class: "swatch" });
    box.style.background = GF.tinted("healthy", 0.3);
    return GF.h("span", { class: "key" }, box, "healthy band");
  };
  const draw = () => {
    const { layers } = GF.state.data,
      rows = counted(layers),
      { low, middle, high } = spread(layers, rows);
    const own = layers.index.get(GF.state.layer);
    if (!chart) {
      chart = new GF.Chart("Update ratio", { height: 230 });
      GF.el("updates-chart").append(chart.figure);
    }
    const all = { label: "all weights", colour: "run7", values: high, low, width: 0.6 };
    const lines = [all, { label: "median", colour: "ink", values: middle }];
    if (own !== undefined)
      lines.push({
        label: layers.names[own],
        colour: "accent",
        values: Array.from(GF.row(layers, "update_ratio", own)),
        width: 2,
      });
    for (const line of lines)
      for (const key of ["values", "low"])
        if (line[key]) line[key] = line[key].map(value => (value === null || !(value < FLOOR) ? value : FLOOR));
    const seen = lines
      .flatMap(line => [...line.values, ...(line.low || [])])
      .filter(value => value > 0 && value < Infinity);
    const ends = [Math.min(LOW / 10, ...seen), Math.max(HIGH * 10, ...seen)].map(Math.log10);
    chart.set({
      x: layers.step,
      lines,
      log: true,
      yLabel: "‖ΔW‖ / ‖W‖",
      notes: [healthyKey()],
      yRange: [10 ** Math.floor(ends[0] + 1e-9), 10 ** Math.ceil(ends[1] - 1e-9)],
      zones: GF.healthyBand,
    });
  };

  GF.showUpdates = data => {
    const { layers } = data,
      rows = counted(layers);
    const none = !layers.columns || !rows.some(row => Number.isFinite(last(layers, row)));
    GF.el("updates-body").hidden = none;
    GF.el("updates-empty").hidden = !none;
    GF.el("updates-empty").textContent =
      "No update ratios in this run. They need the optimizer: gf.watch(model, optimizer, run=…) records them with each layer table.";
    if (none) return;
    draw();
    if (
      GF.changed(
        GF.el("updates-outside"),
        rows.map(row => last(layers, row)),
      )
    )
      GF.fill(GF.el("updates-outside"), outside(layers, rows));
  };
  GF.on("layer", () => {
    if (chart && GF.state.data.layers.columns) draw();
  });
}

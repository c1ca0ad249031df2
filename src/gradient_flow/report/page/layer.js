// One tensor over time: everything that was recorded of it.
{
  const pick = GF.el("layer-pick");
  const charts = {};
  let full = null; // the finer record that a server gives: {name, step, stats}

  const PANELS = [
    ["norm", "Norm", { axis: "norm (L2)", log: true, lines: [["norm", "", "accent"]] }],
    ["update_ratio", "Update ratio", { axis: "‖ΔW‖ / ‖W‖", log: true, zones: true, lines: [["update_ratio", "", "accent"]] }],
    [
      "extremes",
      "Extremes",
      {
        axis: "gradient",
        lines: [
          ["max", "max", "run1"],
          ["min", "min", "run0"],
        ],
      },
    ],
    ["mean", "Mean", { axis: "mean", lines: [["mean", "", "accent"]] }],
    ["std", "Standard deviation", { axis: "standard deviation", log: true, lines: [["std", "", "accent"]] }],
    ["zero_fraction", "Share of zeros", { axis: "share of elements", yRange: [0, 1.02], percent: true, lines: [["zero_fraction", "", "accent"]] }],
    ["nonfinite", "NaN and Inf elements", { axis: "elements", lines: [["nonfinite", "", "bad"]] }],
  ];

  const draw = () => {
    const { layers } = GF.state.data,
      row = layers.index.get(GF.state.layer);
    if (row === undefined) return;
    const finer = full && full.name === GF.state.layer ? full : null;
    const x = finer ? finer.step : layers.step;
    const values = name => (finer && finer.stats[name] ? finer.stats[name] : Array.from(GF.row(layers, name, row)));
    for (const [key, title, panel] of PANELS) {
      if (!charts[key]) {
        charts[key] = new GF.Chart(title, { height: 180 });
        GF.el("layer-charts").append(charts[key].figure);
      }
      const lines = panel.lines.map(([name, label, colour]) => ({ label, colour, values: values(name) }));
      charts[key].set({
        x,
        lines,
        log: panel.log,
        yRange: panel.yRange,
        zones: panel.zones ? GF.healthyBand : [],
        format: panel.percent ? GF.percent : GF.number,
        yLabel: panel.axis,
        where: key === "norm" ? undefined : () => "",
      }); // one of them says the step
    }
    GF.showExponents(GF.state.data, row);
  };

  const tell = () => {
    const data = GF.state.data,
      { layers } = data,
      row = layers.index.get(GF.state.layer);
    const shape = (layers.shapes || [])[row] || [],
      own = data.verdict.issues.filter(issue => GF.rowsOfIssue(issue).includes(row));
    GF.el("layer-title").textContent = "Layer";
    GF.fill(GF.el("layer-facts"), [
      GF.h("span", { class: "name" }, GF.state.layer),
      GF.h("span", {}, shape.length ? shape.join(" × ") : "scalar"),
      (layers.dtypes || [])[row] ? GF.h("span", {}, layers.dtypes[row].replace("torch.", "")) : null,
      (layers.groups || [])[row] ? GF.h("span", {}, layers.groups[row]) : null,
      GF.h("span", {}, `${row + 1} of ${layers.rows}`),
      (layers.frozen || [])[row] ? GF.h("span", {}, "frozen: no gradient by design") : null,
      GF.state.mark === null ? null : GF.h("span", {}, `marked: step ${GF.count(GF.state.mark)}`),
    ]);
    const box = GF.el("layer-issues");
    if (GF.changed(box, [GF.state.layer, own]))
      GF.fill(
        box,
        own.flatMap(issue => [
          GF.badge(issue.severity),
          " ",
          GF.h("button", { type: "button", class: "link", onclick: () => GF.jump(issue) }, ...GF.prose(issue.title)),
          " ",
        ]),
      );
    if (document.activeElement !== pick) pick.value = GF.state.layer;
  };

  const refine = async () => {
    // a served page asks for this one tensor in full
    const name = GF.state.layer,
      id = GF.state.runId;
    if (id === null || name === null) return;
    try {
      const answer = await GF.ask(GF.runPath(id, "/layer"), { name });
      if (GF.state.layer === name && GF.state.runId === id) {
        full = { name, ...answer };
        draw();
      }
    } catch (_) {
      full = null; /* the coarser record is on screen already */
    }
  };

  const choose = name => {
    if (GF.state.data.layers.index.has(name)) GF.selectLayer(name, null);
  };
  pick.addEventListener("change", () => choose(pick.value));
  pick.addEventListener("input", () => choose(pick.value));
  pick.addEventListener("blur", () => {
    if (GF.state.layer !== null) pick.value = GF.state.layer;
  });
  pick.addEventListener("focus", () => pick.select());
  const move = by => () => {
    const { layers } = GF.state.data,
      row = layers.index.get(GF.state.layer) || 0;
    GF.selectLayer(layers.names[(row + by + layers.rows) % layers.rows], undefined);
  };
  GF.el("layer-previous").addEventListener("click", move(-1));
  GF.el("layer-next").addEventListener("click", move(1));
  GF.on("layer", () => {
    full = null;
    tell();
    draw();
    refine();
  });

  // Which one to begin with: where the worst issue is, else the first.
  const first = data => {
    for (const issue of data.verdict.issues) {
      const rows = GF.rowsOfIssue(issue);
      if (rows.length) return data.layers.names[rows[0]];
    }
    return data.layers.names[0];
  };
  GF.showLayer = data => {
    const empty = !data.layers.rows || !data.layers.columns;
    GF.el("layer-body").hidden = empty;
    GF.el("layer-empty").hidden = !empty;
    GF.el("layer-empty").textContent = "Each tensor can be examined here once there is a per-layer record.";
    if (empty) return;
    const names = GF.el("layer-names");
    if (GF.changed(names, data.layers.names))
      GF.fill(
        names,
        data.layers.names.map(name => GF.h("option", { value: name })),
      );
    if (!data.layers.index.has(GF.state.layer)) return GF.selectLayer(first(data), null);
    tell();
    draw();
    refine();
  };
}

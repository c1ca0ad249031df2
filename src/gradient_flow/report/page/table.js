// The layers as a table: the same facts for those who cannot or do not want to read a map.
{
  const details = GF.el("layer-table");
  const sort = { by: null, down: true };
  const COLUMNS = [
    ["Layer", null],
    ["Norm, last", "last"],
    ["smallest", "least"],
    ["largest", "most"],
    ["Update ratio, last", "ratio"],
    ["Zeros, last", "zeros"],
    ["NaN/Inf", "bad"],
  ];

  const factsOf = (layers, row) => {
    const facts = { row, last: NaN, least: NaN, most: NaN, ratio: NaN, zeros: NaN, bad: 0 };
    for (let c = 0; c < layers.columns; c++) {
      const at = row * layers.columns + c,
        norm = layers.values.norm[at];
      if (Number.isFinite(norm)) {
        facts.last = norm;
        if (!(norm >= facts.least)) facts.least = norm;
        if (!(norm <= facts.most)) facts.most = norm;
      }
      if (Number.isFinite(layers.values.update_ratio[at])) facts.ratio = layers.values.update_ratio[at];
      if (Number.isFinite(layers.values.zero_fraction[at])) facts.zeros = layers.values.zero_fraction[at];
      if (layers.values.nonfinite[at] > 0) facts.bad += layers.values.nonfinite[at];
    }
    return facts;
  };
  const ordered = rows => {
    if (sort.by === null) return rows;
    const key = facts => (Number.isFinite(facts[sort.by]) ? facts[sort.by] : -Infinity);
    return rows.slice().sort((a, b) => (sort.down ? key(b) - key(a) : key(a) - key(b)));
  };
  const head = () =>
    COLUMNS.map(([label, key]) =>
      GF.h(
        "th",
        {
          scope: "col",
          class: key ? "num" : null,
          "aria-sort": key !== null && sort.by === key ? (sort.down ? "descending" : "ascending") : null,
        },
        GF.h(
          "button",
          {
            type: "button",
            onclick: () => {
              sort.down = sort.by === key ? !sort.down : true;
              sort.by = key;
              fill();
            },
          },
          label,
          sort.by === key && key ? (sort.down ? " ↓" : " ↑") : "",
        ),
      ),
    );

  const fill = () => {
    const data = GF.state.data;
    if (!details.open || !data || !data.layers.rows) return;
    const { layers } = data,
      search = GF.rows.search.trim().toLowerCase();
    const rows = ordered(
      layers.names.flatMap((name, row) =>
        !search || name.toLowerCase().includes(search) ? [factsOf(layers, row)] : [],
      ),
    );
    const cell = text => GF.h("td", { class: "num" }, text);
    GF.fill(
      details.querySelector("div"),
      GF.h(
        "table",
        { class: "rows" },
        GF.h("thead", {}, GF.h("tr", {}, head())),
        GF.h(
          "tbody",
          {},
          rows.map(facts =>
            GF.h(
              "tr",
              {},
              GF.h(
                "th",
                { scope: "row" },
                GF.h(
                  "button",
                  {
                    type: "button",
                    class: "link name",
                    onclick: () => {
                      GF.selectLayer(layers.names[facts.row], null);
                      GF.scrollTo(GF.el("layer"));
                    },
                  },
                  layers.names[facts.row],
                ),
              ),
              cell(GF.number(facts.last)),
              cell(GF.number(facts.least)),
              cell(GF.number(facts.most)),
              cell(GF.number(facts.ratio)),
              cell(GF.percent(facts.zeros)),
              cell(GF.count(facts.bad)),
            ),
          ),
        ),
      ),
    );
  };
  details.addEventListener("toggle", fill);
  GF.on("search", fill);
  GF.showTable = fill;
}

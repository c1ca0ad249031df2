// Fixes that were tried in this run, each against no treatment, and the lines for the best one.
{
  const COLUMNS = [
    ["outcome", "Outcome"],
    ["name", "Treatment"],
    ["loss", "Loss", "num"],
    ["untreated", "Untreated", "num"],
    ["steps", "After steps", "num"],
    ["issue", "Issue"],
    ["cost", "Cost in steps", "num"],
  ];
  const table = cure =>
    GF.h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": "Fixes tried" },
      GF.h(
        "table",
        { class: "rows" },
        GF.h("thead", {}, GF.h("tr", {}, COLUMNS.map(([, title, kind]) => GF.h("th", { scope: "col", class: kind || "" }, title)))),
        GF.h(
          "tbody",
          {},
          cure.trials.map(trial =>
            GF.h(
              "tr",
              { "aria-current": trial.best ? "true" : null, title: trial.reason || null },
              COLUMNS.map(([key, , kind]) => GF.h("td", { class: kind || "" }, trial[key])),
            ),
          ),
        ),
      ),
    );

  GF.showCures = data => {
    const cures = data.cures || [],
      body = GF.el("cures-body");
    GF.el("cures").hidden = !cures.length;
    GF.el("nav-cures").hidden = !cures.length;
    if (!GF.changed(body, cures)) return;
    GF.fill(
      body,
      cures.flatMap(cure => [
        GF.h("h3", {}, `At step ${GF.count(cure.step)}`),
        GF.h("p", {}, GF.prose(cure.message)),
        cure.symptoms ? GF.h("p", { class: "cause" }, GF.prose(`Before: ${cure.symptoms}`)) : null,
        table(cure),
        cure.code ? GF.h("pre", { tabindex: "0" }, GF.h("code", {}, cure.code)) : null,
      ]),
    );
  };
}

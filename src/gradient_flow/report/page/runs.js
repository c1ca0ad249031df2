// The list of runs that a server has: filtered, sorted, one of them open, several compared.
{
  const PAGE = 100;
  const ORDER = ["critical", "failed", "high", "medium", "low", "unknown", "healthy"];
  let runs = [],
    shown = PAGE;

  const sorters = {
    started: (a, b) => String(b.started || "").localeCompare(String(a.started || "")),
    name: (a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }),
    level: (a, b) => ORDER.indexOf(a.level || "unknown") - ORDER.indexOf(b.level || "unknown"),
    last_step: (a, b) => (b.last_step || 0) - (a.last_step || 0),
  };

  const rowOf = run =>
    GF.h(
      "tr",
      { "aria-current": run.id === GF.state.runId ? "true" : null },
      GF.h(
        "td",
        {},
        (() => {
          const box = GF.h("input", {
            type: "checkbox",
            "aria-label": `Compare ${run.name}`,
            onchange: event => GF.compare(run.id, event.currentTarget.checked),
          });
          box.checked = GF.isCompared(run.id);
          return box;
        })(),
      ),
      GF.h(
        "th",
        { scope: "row" },
        GF.h("button", { type: "button", class: "link name", onclick: () => GF.openRun(run.id) }, run.name),
      ),
      GF.h("td", {}, GF.badge(run.level || "unknown")),
      GF.h("td", { title: run.message || null }, run.status),
      GF.h("td", { class: "num" }, GF.count(run.last_step)),
      GF.h("td", {}, GF.when(run.started)),
    );

  const draw = () => {
    const search = GF.el("runs-filter").value.trim().toLowerCase();
    const found = runs
      .filter(run => !search || `${run.name} ${run.status} ${run.level || ""}`.toLowerCase().includes(search))
      .sort(sorters[GF.el("runs-sort").value]);
    GF.el("runs-count").textContent =
      found.length === runs.length ? GF.count(runs.length) : `${GF.count(found.length)} of ${GF.count(runs.length)}`;
    const body = GF.el("runs-table").tBodies[0];
    if (!GF.changed(body, [found.slice(0, shown), GF.state.runId, found.length])) return;
    const focused = body.contains(document.activeElement)
      ? [...body.querySelectorAll("input, button")].indexOf(document.activeElement)
      : -1;
    GF.fill(
      body,
      found.length
        ? found.slice(0, shown).map(rowOf)
        : [
            GF.h(
              "tr",
              {},
              GF.h(
                "td",
                { colspan: 6 },
                runs.length
                  ? "No run matches."
                  : 'No run in this folder yet. Start one with gf.watch(…, run="…") and it appears here.',
              ),
            ),
          ],
    );
    if (focused >= 0 && body.querySelectorAll("input, button")[focused])
      body.querySelectorAll("input, button")[focused].focus();
    GF.fill(
      GF.el("runs-more"),
      found.length > shown
        ? [
            GF.h(
              "button",
              {
                type: "button",
                onclick: () => {
                  shown += PAGE;
                  draw();
                },
              },
              `Show ${Math.min(PAGE, found.length - shown)} more`,
            ),
          ]
        : [],
    );
  };
  GF.el("runs-filter").addEventListener("input", () => {
    shown = PAGE;
    draw();
  });
  GF.el("runs-sort").addEventListener("change", draw);

  GF.drawRuns = draw;
  GF.loadRuns = async () => {
    const before = new Map(runs.map(run => [run.id, run.last_step]));
    runs = (await GF.ask("api/runs")).runs;
    for (const run of runs) if (before.has(run.id) && before.get(run.id) !== run.last_step) GF.renewCompared(run.id);
    GF.el("runs").hidden = runs.length === 1; // a single run needs no list
    GF.el("nav-runs").hidden = runs.length === 1;
    draw();
    return runs;
  };
}

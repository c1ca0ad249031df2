// The list of runs that a server has: filtered, sorted, one of them open, several compared.
{
  const PAGE = 100;
  const ORDER = ["critical", "failed", "high", "medium", "low", "unknown", "healthy"];
  let runs = [],
    settings = [], // names of what the runs differ in; a run has their values in the same order
    shown = PAGE;

  // A number that is not known comes last, whichever way the others are sorted.
  const byNumber = (name, sign) => (a, b) => {
    const [one, two] = [a[name], b[name]].map(value => (Number.isFinite(value) ? sign * value : Infinity));
    return one === two ? 0 : one - two;
  };

  const later = run => String(run.started || ""); // ISO times: their letters are in the order of time
  const byName = new Intl.Collator(undefined, { numeric: true });
  const sorters = {
    started: (a, b) => (later(a) < later(b) ? 1 : later(a) > later(b) ? -1 : 0),
    name: (a, b) => byName.compare(a.name, b.name),
    cause: (a, b) => byName.compare(a.cause || "\uffff", b.cause || "\uffff"),
    level: (a, b) => ORDER.indexOf(a.level || "unknown") - ORDER.indexOf(b.level || "unknown"),
    loss: byNumber("loss", 1),
    lr: byNumber("lr", -1),
    seconds: byNumber("seconds", -1),
    status: (a, b) => a.status.localeCompare(b.status),
    last_step: (a, b) => (b.last_step || 0) - (a.last_step || 0),
  };

  // What a run is found by: words anywhere, and conditions such as `lr > 0.003` on its settings and numbers.
  const CONDITION = /("[^"]+"|[^\s"<>=!]+)\s*(>=|<=|!=|==|>|<|=)\s*("[^"]*"|[^\s"]+)/g;
  const HOLDS = {
    ">": (a, b) => a > b,
    "<": (a, b) => a < b,
    ">=": (a, b) => a >= b,
    "<=": (a, b) => a <= b,
    "=": (a, b) => a === b,
    "==": (a, b) => a === b,
    "!=": (a, b) => a !== b,
  };
  const valueOf = (run, name) => {
    const places = [name, `config ${name}`].map(each => settings.findIndex(one => one.toLowerCase() === each));
    const place = places.find(each => each >= 0);
    return place === undefined ? run[name] : run.settings[place];
  };
  const condition = ([, name, how, wanted]) => {
    const plain = text => text.replaceAll('"', "").toLowerCase();
    return run => {
      const value = valueOf(run, plain(name));
      if (value === null || value === undefined) return false;
      const [one, two] = [Number(value), Number(plain(wanted))];
      return Number.isNaN(one) || Number.isNaN(two)
        ? HOLDS[how](String(value).toLowerCase(), plain(wanted))
        : HOLDS[how](one, two);
    };
  };
  const matcher = text => {
    const conditions = [...text.matchAll(CONDITION)].map(condition);
    const words = text.replace(CONDITION, " ").toLowerCase().split(/\s+/).filter(Boolean);
    return run => {
      if (!conditions.every(holds => holds(run))) return false;
      if (!words.length) return true;
      const fields = [run.name, run.status, run.level || "judging", run.type, run.cause, run.layer, ...run.settings];
      const all = fields.filter(Boolean).join(" ").toLowerCase();
      return words.every(word => all.includes(word));
    };
  };

  const issueOf = run => {
    if (!run.cause) return "";
    const where = run.layer && run.layer !== "model" ? [" in ", GF.h("code", {}, run.layer)] : [];
    const since = Number.isFinite(run.since) ? ` since step ${GF.count(run.since)}` : "";
    return [run.cause.replaceAll("_", " "), ...where, since];
  };
  const described = run =>
    settings
      .map((name, place) => (run.settings[place] === null ? null : `${name}: ${run.settings[place]}`))
      .filter(Boolean)
      .join("\n");

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
        GF.h(
          "button",
          { type: "button", class: "link name", title: described(run) || null, onclick: () => GF.openRun(run.id) },
          run.name,
        ),
      ),
      GF.h("td", {}, run.level ? GF.badge(run.level) : "judging…"),
      GF.h("td", {}, issueOf(run)),
      GF.h("td", { class: "num" }, GF.number(run.loss)),
      GF.h("td", { class: "num" }, GF.number(run.lr)),
      GF.h("td", { class: "num" }, GF.duration(run.seconds)),
      GF.h("td", { title: run.message || null }, run.status),
      GF.h("td", { class: "num" }, GF.count(run.last_step)),
      GF.h("td", {}, GF.when(run.started)),
    );

  const sort = GF.el("runs-sort");
  const heads = [...GF.el("runs-table").tHead.querySelectorAll("th[data-sort]")];
  for (const head of heads) {
    const choose = () => {
      sort.value = head.dataset.sort;
      draw();
    };
    GF.fill(head, GF.h("button", { type: "button", onclick: choose }, head.textContent));
  }

  // The sick runs by what they are sick of: a click leaves those.
  const drawCauses = () => {
    const counts = new Map();
    for (const run of runs) if (run.cause && run.level !== "low") counts.set(run.cause, (counts.get(run.cause) || 0) + 1);
    const judging = runs.filter(run => !run.level).length;
    const healthy = runs.filter(run => run.level === "healthy" || run.level === "low").length;
    const now = GF.el("runs-filter").value.trim();
    const causes = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 12);
    if (!GF.changed(GF.el("runs-causes"), [causes, healthy, judging, now])) return;
    GF.fill(
      GF.el("runs-causes"),
      GF.h("span", { class: "hint" }, `${GF.count(healthy)} healthy${judging ? `, ${GF.count(judging)} being judged` : ""}`),
      ...causes.map(([cause, count]) =>
        GF.h(
          "button",
          {
            type: "button",
            "aria-pressed": String(now === `cause = ${cause}`),
            onclick: () => {
              GF.el("runs-filter").value = now === `cause = ${cause}` ? "" : `cause = ${cause}`;
              shown = PAGE;
              draw();
            },
          },
          `${cause.replaceAll("_", " ")} `,
          GF.h("span", { class: "count" }, GF.count(count)),
        ),
      ),
    );
  };
  // Which settings go with it: asked for once the list is there, and again when verdicts have come.
  let askedFor = null;
  const drawSettings = async () => {
    const state = JSON.stringify(runs.map(run => run.level));
    if (askedFor === state || !runs.some(run => run.cause)) return;
    askedFor = state;
    const { settings: found } = await GF.ask("api/settings");
    GF.fill(
      GF.el("runs-settings"),
      found.length ? GF.h("p", {}, "Settings that go with it, beyond chance:") : null,
      found.length
        ? GF.h(
            "ul",
            { class: "notes" },
            found.map(one => GF.h("li", {}, `${one.cause.replaceAll("_", " ")}: ${one.sentence}`)),
          )
        : null,
    );
  };

  const draw = () => {
    drawCauses();
    for (const head of heads) head.setAttribute("aria-sort", head.dataset.sort === sort.value ? "other" : "none");
    const found = runs.filter(matcher(GF.el("runs-filter").value)).sort(sorters[GF.el("runs-sort").value]);
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
                { colspan: 10 },
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
    ({ runs, settings } = await GF.ask("api/runs"));
    for (const run of runs) if (before.has(run.id) && before.get(run.id) !== run.last_step) GF.renewCompared(run.id);
    GF.el("runs").hidden = runs.length === 1; // a single run needs no list
    GF.el("nav-runs").hidden = runs.length === 1;
    draw();
    drawSettings().catch(() => {}); // the list is there without it
    return runs;
  };
}

// The head of the page: which run, how it went in a sentence, and what is wrong with it.
{
  const OPEN_AT_ONCE = 1;

  GF.badge = level =>
    GF.h(
      "span",
      { class: "badge", "data-level": String(level || "unknown").toLowerCase() },
      String(level || "unknown").toLowerCase(),
    );

  const facts = data => {
    const run = data.run;
    const list = [
      run.last_step === null || run.last_step === undefined ? "no steps yet" : GF.steps(run.first_step, run.last_step),
      run.last_step !== null && run.recorded_steps !== run.last_step - run.first_step + 1
        ? `${GF.count(run.recorded_steps)} recorded`
        : null,
      GF.plural(run.tensors || 0, "tensor"),
      run.parameters ? `${GF.large(run.parameters)} parameters` : null,
      Number.isFinite(run.seconds) ? GF.duration(run.seconds) : null,
      run.started ? `started ${GF.when(run.started)}` : null,
    ];
    return list.filter(Boolean).map(text => GF.h("span", {}, text));
  };

  // Where a NaN was made is code, and a number in it stays as it was written.
  const CODE = new Set(["Operation", "Line", "Code", "Function"]);
  const phrases = issue =>
    issue.evidence.length
      ? GF.h(
          "dl",
          { class: "evidence" },
          issue.evidence.map(([name, text]) =>
            GF.h("div", {}, GF.h("dt", {}, name), GF.h("dd", {}, CODE.has(name) ? GF.h("code", {}, text) : GF.prose(text))),
          ),
        )
      : null;

  // Many numbers as bars, from the left or to both sides of zero; on a log scale where they span decades.
  const bars = chart => {
    const known = chart.values.map(value => (value === null ? NaN : chart.log ? Math.log10(value) : value)),
      finite = known.filter(Number.isFinite);
    const low = chart.log ? Math.min(...finite) - 0.3 : Math.min(0, ...finite),
      high = Math.max(chart.log ? -Infinity : chart.most || 0, ...finite),
      unit = 100 / (high - low || 1);
    const zero = chart.log ? 0 : -low * unit;
    return GF.h(
      "figure",
      { class: "bars" },
      GF.h("figcaption", {}, chart.title + (chart.log ? ", log scale" : "")),
      GF.h(
        "ul",
        {},
        chart.values.map((_, i) => {
          const bar = GF.h("span", { class: "bar" }),
            end = Number.isFinite(known[i]) ? (known[i] - low) * unit : zero;
          bar.style.left = `${Math.min(zero, end)}%`;
          bar.style.width = `${Math.abs(end - zero)}%`;
          return GF.h(
            "li",
            {},
            GF.h("span", { class: "name", title: chart.labels[i] }, chart.labels[i]),
            GF.h("span", { class: "track" }, bar),
            GF.h("span", { class: "amount" }, chart.texts[i]),
          );
        }),
      ),
      chart.left_out ? GF.h("p", { class: "hint" }, `and ${chart.left_out} more`) : null,
    );
  };

  const advice = issue =>
    issue.advice && issue.advice.length
      ? [
          GF.h("h3", {}, "What to do"),
          GF.h(
            "ol",
            {},
            issue.advice.map(one =>
              GF.h(
                "li",
                {},
                GF.prose(one.text),
                one.reason ? GF.h("span", { class: "reason" }, " ", GF.prose(one.reason)) : null,
              ),
            ),
          ),
        ]
      : [];

  const shownBy = issue => [
    ...(issue.evidence.length || issue.charts.length ? [GF.h("h3", {}, "Evidence")] : []),
    phrases(issue),
    ...issue.charts.map(bars),
  ];
  const follows = issue =>
    issue.consequences.length
      ? GF.h(
          "p",
          { class: "cause" },
          "Follows from it: ",
          ...GF.prose(issue.consequences.slice(0, 4).map(text => text.replace(/\.$/, "")).join("; ")),
          `${issue.consequences.length > 4 ? ` and ${issue.consequences.length - 4} more` : ""}.`,
        )
      : null;
  const more = issue => [
    issue.cause ? GF.h("p", { class: "cause" }, GF.prose(`Likely cause: ${issue.cause}`)) : null,
    ...advice(issue),
    ...shownBy(issue),
    follows(issue),
    issue.rule_url && /^https:\/\//.test(issue.rule_url)
      ? GF.h("p", {}, GF.h("a", { href: issue.rule_url, rel: "noopener noreferrer" }, "About this rule"))
      : null,
  ];

  const link = (issue, what, text, go) =>
    GF.h("button", { type: "button", class: "link jump", "data-issue": issue.id, "data-to": what, onclick: () => go(issue) }, text);
  // The page's headline is the first issue: its card does not say it again.
  const issueCard = (issue, position, { headline }) => {
    const level = issue.severity.toLowerCase(),
      said = position === 0 && headline;
    const since =
      issue.first_step === null || issue.first_step === undefined
        ? null
        : GF.h("span", { class: "count" }, `since step ${GF.count(issue.first_step)}`);
    return GF.h(
      "article",
      { class: "issue", "data-level": level, "aria-label": issue.title },
      GF.h(
        "div",
        { class: "head" },
        GF.badge(level),
        GF.h("h3", { class: said ? "what unseen" : "what" }, GF.prose(issue.title)),
        since,
        link(issue, "curve", "Show on curve", GF.showOnCurve),
        link(issue, "map", "Show on map", GF.jump),
      ),
      issue.text && !said ? GF.h("p", {}, GF.sentence(issue.text)) : null,
      GF.h(
        "details",
        { open: position < OPEN_AT_ONCE },
        GF.h("summary", {}, "Cause, advice, evidence"),
        more(issue),
      ),
    );
  };

  const nothingWrong = data => {
    if (!data.run.recorded_steps)
      return "No step has been recorded yet. The first one appears as soon as the optimizer takes it.";
    if (data.run.status === "silent") return "No problems found before the run went silent.";
    if (data.verdict.level === "unknown")
      return "There is no verdict yet. The map and the curves are already here.";
    if (data.verdict.level === "failed") return "Nothing else was found by the rules that this recording supports.";
    return "No problems found by the rules that this recording supports.";
  };

  // The numbers that somebody asks for first, of a run with nothing to explain.
  const atAGlance = data => {
    const { lines, clipped = [], nonfinite = [], bad_loss = [] } = data.series,
      known = name => ((lines[name] || {}).max || []).filter(value => value !== null && Number.isFinite(value)),
      middle = values => values.slice().sort((a, b) => a - b)[values.length >> 1];
    const total = counts => counts.reduce((sum, count) => sum + count, 0);
    const loss = known("loss"),
      norm = known("norm"),
      rate = known("lr");
    const { layers } = data,
      ratios = layers.columns
        ? layers.names.flatMap((_, row) => {
            const value = layers.values.update_ratio[row * layers.columns + layers.columns - 1];
            return layers.isWeight[row] && Number.isFinite(value) ? [value] : [];
          })
        : [];
    const of = data.run.recorded_steps;
    const facts = [
      loss.length ? ["Loss", loss.length > 1 ? `${GF.number(loss[0])} → ${GF.number(loss[loss.length - 1])}` : GF.number(loss[0])] : null,
      norm.length ? ["Gradient norm", `median ${GF.number(middle(norm))}, largest ${GF.number(norm.reduce((a, b) => Math.max(a, b)))}`] : null,
      rate.length ? ["Learning rate", rate[0] === rate[rate.length - 1] ? GF.number(rate[0]) : `${GF.number(rate[0])} → ${GF.number(rate[rate.length - 1])}`] : null,
      ratios.length ? ["Update / weight", `${GF.number(middle(ratios))} in the median (about 0.001 is usual)`] : null,
      total(clipped) ? ["Clipped", `${GF.plural(total(clipped), "step")} of ${GF.count(of)}`] : null,
      of ? ["NaN or Inf", total(nonfinite) + total(bad_loss) ? GF.plural(total(nonfinite) + total(bad_loss), "step") : "none"] : null,
    ].filter(Boolean);
    return facts.length
      ? GF.h(
          "dl",
          { class: "glance", "aria-label": "At a glance" },
          facts.flatMap(([name, text]) => [GF.h("dt", {}, name), GF.h("dd", {}, text)]),
        )
      : null;
  };

  GF.showSummary = data => {
    document.title = `${data.run.name} – gradient flow`;
    GF.el("run-name").textContent = data.run.name;
    const status = GF.el("run-status");
    status.hidden = false;
    status.textContent = data.run.status;
    const title = GF.el("verdict-title");
    const [, head, rest] = /^(.{7,160}?[:.!])\s+(.+)$/s.exec(data.verdict.sentence) || [
      null,
      data.verdict.sentence,
      "",
    ];
    GF.fill(
      title,
      GF.h("span", {}, GF.prose(head.replace(/:$/, ""))),
      rest ? " " : null,
      rest ? GF.h("span", { class: "rest" }, GF.sentence(rest)) : null,
    );
    title.dataset.level = data.verdict.level;
    GF.fill(GF.el("facts"), facts(data));
    const then = data.verdict.then; // what other rules said when the run ended
    GF.el("then").hidden = !then;
    GF.fill(GF.el("then"), then ? GF.prose(then) : []);
    const issues = data.verdict.issues,
      list = GF.el("issues");
    if (GF.changed(list, issues.length ? issues : [data.verdict.level, data.run.recorded_steps])) {
      const opened = new Map(
        [...list.querySelectorAll(".issue")].map(card => [
          card.getAttribute("aria-label"),
          card.querySelector("details").open,
        ]),
      );
      const headline = data.verdict.sentence.includes(issues.length ? issues[0].text : "");
      GF.fill(
        list,
        issues.length
          ? issues.map((issue, position) => issueCard(issue, position, { headline }))
          : [GF.h("p", { class: "empty" }, nothingWrong(data)), atAGlance(data)],
      );
      // Beside the map stand the issues; without one, the model.
      (issues.length ? GF.el("map") : list).after(GF.el("model"));
      list.querySelectorAll(".issue").forEach(card => {
        const name = card.getAttribute("aria-label");
        if (opened.has(name)) card.querySelector("details").open = opened.get(name);
      });
    }
    GF.el("made").textContent =
      `gradient-flow ${data.package}${GF.state.runId === null ? ". This file is self-contained: it loads nothing from the network." : ""}`;
  };

  const stepOf = issue => (issue.first_step === null || issue.first_step === undefined ? null : issue.first_step);
  const placeOf = issue => {
    const { layers } = GF.state.data,
      step = stepOf(issue),
      exact = layers.index.get(issue.layer);
    let rows = GF.rowsOfIssue(issue);
    if (!rows.length && step !== null && layers.columns) {
      // A module without weights has no row: where it made NaN, those that had it then show it.
      const column = GF.columnAt(layers, step);
      rows = layers.names.map((_, row) => row).filter(row => layers.values.nonfinite[row * layers.columns + column] > 0);
    }
    return { rows, row: exact !== undefined ? exact : rows[0] };
  };

  // To the place of an issue: the map scrolls into view with the rows and steps outlined, the layer opens at its
  // first step.
  GF.jump = issue => {
    const data = GF.state.data,
      { rows, row } = placeOf(issue),
      step = stepOf(issue);
    const everywhere = row === undefined && step !== null; // an issue of the whole model: the column of its step
    GF.tell("highlight", {
      rows: everywhere ? data.layers.names.map((_, at) => at) : rows,
      row,
      first: step,
      last: everywhere ? step : issue.last_step,
      level: issue.severity.toLowerCase(),
    });
    if (row !== undefined) GF.selectLayer(data.layers.names[row], step);
    else if (everywhere) {
      GF.state.mark = step;
      GF.tell("layer");
    }
    if (step !== null) GF.tell("step", step);
    GF.scrollTo(GF.el(data.layers.rows ? "map" : "time"));
    if (data.layers.rows) GF.el("map-canvas").focus({ preventScroll: true });
  };

  // To the curve that shows it: the norm around a spike, the profile over depth, a curve of the looks.
  const AROUND = 40; // steps on each side of a spike or a first NaN
  GF.showOnCurve = issue => {
    const data = GF.state.data,
      { row } = placeOf(issue),
      step = stepOf(issue);
    if (row !== undefined) GF.selectLayer(data.layers.names[row], step);
    else {
      GF.state.mark = step;
      GF.tell("layer");
    }
    if (step !== null) GF.tell("step", step);
    const known = {
      depth: () => (data.layers.columns ? GF.el("depth") : null),
      updates: () => (GF.el("updates-body").hidden ? null : GF.el("updates")),
      norm: () => (GF.chartOf("norm") || {}).figure,
      loss: () => (GF.chartOf("loss") || {}).figure,
    };
    const inside = key => (GF.insideChart(key) || {}).figure;
    const target =
      (known[issue.curve] ? known[issue.curve]() : inside(issue.curve)) ||
      (row !== undefined ? GF.el("layer") : null) ||
      known.norm() ||
      GF.el("time");
    if (issue.curve === "norm" && step !== null) {
      const [first, last] = GF.whole(data);
      if (last - first > 4 * AROUND) GF.setRange([Math.max(first, step - AROUND), Math.min(last, step + AROUND)], null);
    }
    GF.scrollTo(target);
    target.classList.add("found");
    setTimeout(() => target.classList.remove("found"), 2500);
    target.setAttribute("tabindex", "-1");
    target.focus({ preventScroll: true });
  };
}

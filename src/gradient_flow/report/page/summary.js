// The head of the page: which run, how it went in a sentence, and what is wrong with it.
{
  const OPEN_AT_ONCE = 3;

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
  const CODE = new Set(["operation", "line", "code", "function"]);
  const shown = (name, value) =>
    CODE.has(name) && typeof value === "string" ? GF.h("code", {}, value) : GF.value(value);

  const evidence = issue =>
    issue.evidence && issue.evidence.length
      ? GF.h(
          "dl",
          { class: "evidence" },
          issue.evidence.map(([name, value]) =>
            GF.h("div", {}, GF.h("dt", {}, String(name).replaceAll("_", " ")), GF.h("dd", {}, shown(name, value))),
          ),
        )
      : null;

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

  const more = issue => [
    issue.cause ? GF.h("p", { class: "cause" }, GF.prose(`Likely cause: ${issue.cause}`)) : null,
    ...advice(issue),
    issue.evidence && issue.evidence.length ? GF.h("h3", {}, "Evidence") : null,
    evidence(issue),
    issue.consequences && issue.consequences.length
      ? GF.h(
          "p",
          { class: "cause" },
          `Follows from it: ${issue.consequences.slice(0, 4).join("; ")}${issue.consequences.length > 4 ? ` and ${issue.consequences.length - 4} more` : ""}.`,
        )
      : null,
    issue.rule_url && /^https:\/\//.test(issue.rule_url)
      ? GF.h("p", {}, GF.h("a", { href: issue.rule_url, rel: "noopener noreferrer" }, "About this rule"))
      : null,
  ];

  const issueCard = (issue, position) => {
    const level = issue.severity.toLowerCase();
    const since =
      issue.first_step === null || issue.first_step === undefined
        ? null
        : GF.h("span", { class: "count" }, `since step ${GF.count(issue.first_step)}`);
    const head = GF.h(
      "button",
      { type: "button", class: "go", "data-issue": issue.id, onclick: () => GF.jump(issue) },
      GF.badge(level),
      GF.h("span", { class: "what" }, GF.prose(issue.title)),
      since,
      GF.h("span", { class: "jump" }, "Show the place"),
    );
    return GF.h(
      "article",
      { class: "issue", "data-level": level },
      head,
      issue.text ? GF.h("p", {}, GF.sentence(issue.text)) : null,
      GF.h("details", { open: position < OPEN_AT_ONCE }, GF.h("summary", {}, "Advice and evidence"), more(issue)),
    );
  };

  const nothingWrong = data => {
    if (!data.run.recorded_steps)
      return "No step has been recorded yet. The first one appears as soon as the optimizer takes it.";
    if (data.verdict.level === "unknown")
      return "There is no verdict yet. The curves and the map are already below.";
    if (data.verdict.level === "failed") return "Nothing else was found by the rules that this recording supports.";
    return "No problems found by the rules that this recording supports.";
  };

  GF.showSummary = data => {
    document.title = `${data.run.name} – gradient flow`;
    GF.el("run-name").textContent = data.run.name;
    const status = GF.el("run-status");
    status.hidden = false;
    status.textContent = data.run.status;
    const title = GF.el("verdict-title");
    const [, head, rest] = /^(.{12,160}?[:.!])\s+(.+)$/s.exec(data.verdict.sentence) || [
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
    if (GF.changed(list, [issues, data.run.recorded_steps === 0])) {
      const opened = new Map(
        [...list.querySelectorAll(".go")].map(head => [
          head.textContent,
          head.parentNode.querySelector("details").open,
        ]),
      );
      GF.fill(list, issues.length ? issues.map(issueCard) : [GF.h("p", { class: "empty" }, nothingWrong(data))]);
      list.querySelectorAll(".go").forEach(head => {
        if (opened.has(head.textContent)) head.parentNode.querySelector("details").open = opened.get(head.textContent);
      });
    }
    GF.el("made").textContent =
      `gradient-flow ${data.package}${GF.state.runId === null ? ". This file is self-contained: it loads nothing from the network." : ""}`;
  };

  // To the place of an issue: the map scrolls into view with the rows and steps outlined, the layer opens at its
  // first step.
  GF.jump = issue => {
    const data = GF.state.data,
      rows = GF.rowsOfIssue(issue);
    const step = issue.first_step === null || issue.first_step === undefined ? null : issue.first_step;
    const exact = data.layers.index.get(issue.layer);
    const row = exact !== undefined ? exact : rows[0];
    GF.tell("highlight", { rows, row, first: step, last: issue.last_step, level: issue.severity.toLowerCase() });
    if (row !== undefined) GF.selectLayer(data.layers.names[row], step);
    if (step !== null) GF.tell("step", step);
    GF.scrollTo(GF.el(data.layers.rows ? "map" : "time"));
    if (data.layers.rows) GF.el("map-canvas").focus({ preventScroll: true });
  };
}

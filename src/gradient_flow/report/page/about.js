// What the run was, settings, versions, what was noticed on reading, and what was thinned out to fit the page.
{
  const listOf = (title, entries) =>
    GF.h(
      "div",
      {},
      GF.h("h3", {}, title),
      entries.length
        ? GF.h(
            "dl",
            {},
            entries.flatMap(([name, value]) => [GF.h("dt", {}, name), GF.h("dd", {}, GF.value(value))]),
          )
        : GF.h("p", { class: "lead" }, "None were recorded."),
    );

  GF.showAbout = data => {
    const run = data.run,
      body = GF.el("about-body");
    if (GF.changed(body, [run.about, run.settings, run.versions, run.name])) {
      GF.fill(
        body,
        (run.about || []).length ? listOf("Training", run.about) : null,
        listOf("Settings of the watch", Object.entries(run.settings || {})),
        listOf("Versions", Object.entries(run.versions || {})),
      );
    }
    GF.el("truth").textContent = data.truth ? data.truth.text : "";
    GF.fill(
      GF.el("notes"),
      (run.notes || []).map(note => GF.h("li", {}, note)),
    );
    GF.el("notes").hidden = !(run.notes || []).length;
  };
}

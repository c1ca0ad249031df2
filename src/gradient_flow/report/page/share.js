// Taking something along: the verdict as Markdown, pictures, tables, and links to a place.
{
  const download = (name, blob) => {
    const link = GF.h("a", { href: URL.createObjectURL(blob), download: name });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };
  const fileName = (what, ending) =>
    `${GF.state.data.run.name}-${what}`.replace(/[^\p{L}\p{N}._-]+/gu, "-").slice(0, 120) + `.${ending}`;

  // Charts are drawn on a clear ground: a picture gets the page's colour and the chart's title.
  const picture = (source, title, lines) => {
    const scale = devicePixelRatio || 1,
      head = (30 + 16 * lines.length) * scale;
    const canvas = document.createElement("canvas"),
      context = canvas.getContext("2d");
    [canvas.width, canvas.height] = [source.width + 20 * scale, source.height + head + 8 * scale];
    context.fillStyle = GF.colour("bg");
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.fillStyle = GF.colour("ink");
    context.font = `600 ${14 * scale}px system-ui, sans-serif`;
    context.fillText(title, 10 * scale, 20 * scale);
    context.font = `${11 * scale}px system-ui, sans-serif`;
    lines.forEach(({ text, colour }, i) => {
      context.fillStyle = GF.colour(colour);
      context.fillText(text, 10 * scale, (36 + 16 * i) * scale);
    });
    context.drawImage(source, 10 * scale, head);
    return canvas;
  };
  const savePicture = (canvas, name) => canvas.toBlob(blob => blob && download(name, blob), "image/png");
  GF.saveChart = chart => {
    if (!chart.plot) return;
    const keys = chart.spec.lines
      .filter(line => line.label && !line.faint)
      .map(line => ({ text: `${line.dash ? "- -" : "—"} ${line.label}`, colour: line.colour }));
    const title = `${GF.state.data.run.name}: ${chart.title}`;
    savePicture(picture(chart.plot.ctx.canvas, title, keys), fileName(chart.title, "png"));
  };
  GF.el("map-png").addEventListener("click", () => {
    const { low, high, linear } = GF.map.range,
      ends = [low, high].map(end => (linear ? GF.percent(end) : GF.number(10 ** end)));
    const key = `${GF.map.titles[GF.map.statistic]} from ${ends[0]} (dark) to ${ends[1]} (bright); red: NaN or Inf`;
    const title = `${GF.state.data.run.name}: gradient map`;
    savePicture(picture(GF.el("map-canvas"), title, [{ text: key, colour: "soft" }]), fileName("map", "png"));
  });

  const quoted = value => {
    if (value === null || value === undefined || Number.isNaN(value)) return "";
    // A text that a spreadsheet would take for a formula gets a quote in front; numbers are left alone.
    const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const csv = rows => new Blob([rows.map(row => row.map(quoted).join(",")).join("\r\n") + "\r\n"], { type: "text/csv" });
  GF.seriesRows = data => {
    const { series } = data,
      names = Object.keys(series.lines),
      thinned = names.filter(name => series.lines[name].min.some((value, i) => value !== series.lines[name].max[i]));
    const head = ["step", "time", ...(series.epoch ? ["epoch at this step"] : [])];
    const columns = names.flatMap(name => (thinned.includes(name) ? [`${name} (lowest)`, `${name} (highest)`] : [name]));
    return [
      [...head, ...columns],
      ...series.step.map((step, i) => [
        step,
        (series.time || [])[i],
        ...(series.epoch ? [series.epoch[i]] : []),
        ...names.flatMap(name =>
          thinned.includes(name) ? [series.lines[name].min[i], series.lines[name].max[i]] : [series.lines[name].max[i]],
        ),
      ]),
    ];
  };
  GF.el("time-csv").addEventListener("click", () =>
    download(fileName("curves", "csv"), csv(GF.seriesRows(GF.state.data))),
  );
  GF.el("map-csv").addEventListener("click", () => {
    const { layers } = GF.state.data,
      name = GF.map.statistic;
    const rows = layers.names.map((layer, row) => [layer, ...GF.row(layers, name, row)]);
    download(fileName(name, "csv"), csv([["layer", ...layers.step.map(step => `step ${step}`)], ...rows]));
  });

  // What Markdown would obey in a name or a sentence is escaped; names in backticks stay code.
  const escaped = text =>
    String(text)
      .split(/(`[^`]+`)/)
      .map(part => (/^`[^`]+`$/.test(part) ? part : part.replace(/([\\*_{}[\]<>|#])/g, "\\$1")))
      .join("")
      .replace(/\s+/g, " ");
  GF.markdown = data => {
    const { verdict, run } = data,
      lines = [`**${escaped(verdict.sentence)}**`, ""];
    lines.push(`Run \`${run.name.replaceAll("`", "'")}\`, ${run.status}, ${GF.steps(run.first_step, run.last_step)}.`, "");
    verdict.issues.forEach((issue, i) => {
      const since = issue.first_step === null ? "" : `, since step ${issue.first_step}`;
      lines.push(`### ${issue.severity}: ${escaped(issue.title)}${since}`, "");
      if (issue.text && i) lines.push(escaped(issue.text), ""); // the first one's is the sentence above
      if (issue.cause) lines.push(`Likely cause: ${escaped(issue.cause)}`, "");
      issue.advice.forEach((one, at) => lines.push(`${at + 1}. ${escaped(one.text)}`));
      if (issue.evidence.length) lines.push("", ...issue.evidence.map(([name, text]) => `- ${escaped(name)}: ${escaped(text)}`));
      lines.push("");
    });
    return lines.join("\n").replace(/\n{3,}/g, "\n\n").trim() + "\n";
  };

  const say = (button, text) => {
    const before = button.dataset.label || (button.dataset.label = button.textContent);
    button.textContent = text;
    setTimeout(() => (button.textContent = before), 1600);
  };
  GF.copy = async (button, text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch (_) {
      const area = GF.h("textarea", { class: "unseen", "aria-hidden": "true" }); // no clipboard without https
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    say(button, "Copied");
  };
  GF.el("copy-markdown").addEventListener("click", event => GF.copy(event.currentTarget, GF.markdown(GF.state.data)));

  // A link to a place: the run where there are several, the layer, the marked step, the steps zoomed into.
  GF.placeHash = () => {
    const { runId, layer, mark, range } = GF.state,
      place = new URLSearchParams();
    if (runId !== null) place.set("run", runId);
    if (layer !== null) place.set("layer", layer);
    if (mark !== null) place.set("step", mark);
    if (range) place.set("steps", range.map(end => Math.round(end)).join("-"));
    return `#${place}`;
  };
  GF.askedPlace = () => new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
  GF.el("copy-link").addEventListener("click", event => {
    const url = location.href.replace(/#.*$/, "") + GF.placeHash();
    try {
      history.replaceState(null, "", GF.placeHash());
    } catch (_) {
      /* the address stays as it is */
    }
    GF.copy(event.currentTarget, url);
  });
  let gone = null;
  GF.goToPlace = () => {
    // once per run and address: news of a live run must not pull the reader back
    const place = GF.askedPlace(),
      key = `${GF.state.runId} ${location.hash}`,
      { layers } = GF.state.data;
    if (gone === key) return;
    gone = key;
    const step = place.has("step") && Number.isFinite(Number(place.get("step"))) ? Number(place.get("step")) : null;
    const layer = place.get("layer");
    if (layer !== null && layers.index.has(layer) && layers.columns) {
      GF.selectLayer(layer, step);
      GF.tell("highlight", { rows: [layers.index.get(layer)], row: layers.index.get(layer), first: step, last: step, quiet: true });
    } else if (step !== null) {
      GF.state.mark = step;
      GF.tell("layer");
    }
    if (step !== null) GF.tell("step", step);
    const ends = (place.get("steps") || "").split("-").map(Number);
    if (ends.length === 2 && ends.every(Number.isFinite) && ends[1] > ends[0]) GF.setRange(ends, null);
  };
}

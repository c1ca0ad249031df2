// The model as a tree of modules, coloured by health, folded by block; a click leads to the layer.
{
  const MANY = 12; // children that stand in columns rather than below each other
  const WORDS = { critical: "critical", high: "high", medium: "medium", low: "remark" };

  const worstOf = node => {
    let worst = null;
    for (const row of node.tensors) {
      const level = GF.map.severities.get(row);
      if (level && (worst === null || GF.LEVELS.indexOf(level) > GF.LEVELS.indexOf(worst))) worst = level;
    }
    return worst;
  };
  const dot = level => GF.h("span", { class: "health", "data-level": level || "healthy", "aria-hidden": "true" });
  const facts = (node, level) => {
    const { layers } = GF.state.data,
      frozen = node.tensors.every(row => (layers.frozen || [])[row]);
    return GF.h(
      "span",
      { class: "count" },
      [
        node.children.length ? GF.plural(node.tensors.length, "tensor") : ((layers.shapes || [])[node.tensors[0]] || []).join(" × "),
        frozen ? "frozen" : level ? WORDS[level] : null,
      ]
        .filter(Boolean)
        .join(", "),
    );
  };
  const show = row => {
    GF.selectLayer(GF.state.data.layers.names[row], null);
    GF.scrollTo(GF.el("layer"));
  };

  const leaf = node =>
    GF.h(
      "li",
      {},
      dot(worstOf(node)),
      GF.h("button", { type: "button", class: "link name", onclick: () => show(node.tensors[0]) }, node.label),
      " ",
      facts(node, worstOf(node)),
    );
  const branch = (node, open) => {
    const list = GF.h("ul", { class: node.children.length > MANY ? "many" : null }),
      level = worstOf(node);
    const fill = () => {
      if (!list.childNodes.length) GF.fill(list, node.children.map(child => (child.children.length ? branch(child, false) : leaf(child))));
    };
    const details = GF.h(
      "details",
      { open },
      GF.h("summary", {}, dot(level), GF.h("span", { class: "name" }, GF.labelOf(node)), " ", facts(node, level)),
      list,
    );
    details.addEventListener("toggle", () => details.open && fill());
    if (open) fill();
    return GF.h("li", {}, details);
  };

  GF.showModel = data => {
    const { layers } = data,
      empty = !layers.rows || !layers.columns;
    GF.el("model").hidden = empty;
    if (empty) return;
    const health = [...GF.map.severities],
      unknown = data.verdict.level === "unknown";
    GF.el("model").dataset.verdict = data.verdict.level; // what is not judged is not green
    // Modules without weights are no part of the tree of tensors; with an issue in one it is listed first.
    const others = data.verdict.issues.filter(
      issue =>
        issue.severity !== "LOW" &&
        issue.layer !== null &&
        !layers.names.some(name => name === issue.layer || name.startsWith(`${issue.layer}.`)),
    );
    if (!GF.changed(GF.el("model-tree"), [layers.names, health, others.map(issue => issue.layer), unknown])) return;
    const tree = GF.treeOf(layers.names);
    // Blocks side by side are the first level worth seeing: open a lone branch, and those with few children.
    const nodes = tree.children.map(node => (node.children.length ? branch(node, tree.children.length <= 4) : leaf(node)));
    const bare = others.map(issue =>
      GF.h(
        "li",
        {},
        dot(issue.severity.toLowerCase()),
        GF.h("button", { type: "button", class: "link name", onclick: () => GF.jump(issue) }, issue.layer),
        " ",
        GF.h("span", { class: "count" }, `no weights, ${WORDS[issue.severity.toLowerCase()]}`),
      ),
    );
    GF.fill(GF.el("model-tree"), bare, nodes);
    const sick = new Set(health.filter(([, level]) => level !== "low").map(([row]) => row)).size;
    const parts = [
      others.length ? `an issue in ${GF.plural(others.length, "module")} without weights` : null,
      sick ? `${GF.plural(sick, "tensor")} of ${GF.count(layers.rows)} in an issue` : null,
    ].filter(Boolean);
    const text =
      parts.join("; ") || (unknown ? "not judged yet" : null) || `no issue in any of ${GF.plural(layers.rows, "tensor")}`;
    GF.el("model-count").textContent = `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
  };
}

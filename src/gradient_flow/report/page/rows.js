// The rows of the map: tensors one by one, or folded into their modules; a search leaves what matches.
{
  const FITS = 60,
    FEW = 12,
    MOST = 300; // rows that can be read at once; that tell too little; that can still be told apart
  const isBlock = node => /^\d+(\.|$)/.test(node.label); // one of many alike, in a list of modules

  // One of many alike, and a tensor, are named with what they stand in: "blocks.2" and "ln.weight", where "2" and
  // "weight" alone would say nothing.
  GF.labelOf = node =>
    isBlock(node) || !node.children.length
      ? node.path.split(".").slice(-1 - node.label.split(".").length).join(".")
      : node.label;

  // A tree of modules: {label, path, tensors: [row], children}. A module with a single child is drawn together with it.
  GF.treeOf = names => {
    const root = { label: "", path: "", tensors: [], children: new Map() };
    names.forEach((name, row) => {
      const parts = name.split(".");
      let node = root;
      node.tensors.push(row);
      parts.forEach((part, depth) => {
        const path = parts.slice(0, depth + 1).join(".");
        const key = depth === parts.length - 1 ? "=" + row : part;
        if (!node.children.has(key)) node.children.set(key, { label: part, path, tensors: [], children: new Map() });
        node = node.children.get(key);
        node.tensors.push(row);
      });
    });
    return merged(root);
  };
  const merged = node => {
    node.children = [...node.children.values()].map(child => {
      let down = merged(child);
      while (down.children.length === 1)
        down = { ...down.children[0], label: `${down.label}.${down.children[0].label}` };
      return down;
    });
    return node;
  };

  const rows = { tree: null, names: null, grouped: false, chosen: null, open: new Set(), search: "", list: [] };
  GF.rows = rows;

  // Unfold level by level while all rows can still be read.
  const unfoldWhatFits = () => {
    rows.open.clear();
    let level = rows.tree.children,
      count = level.length;
    for (;;) {
      const groups = level.filter(node => node.children.length);
      const further = groups.reduce((sum, node) => sum + node.children.length, 0);
      // Too few rows say nothing: up to a row per block everything is unfolded, however many blocks there are.
      const toBlocks = groups.some(node => node.children.some(isBlock)) && !level.some(isBlock);
      if (!groups.length || (!toBlocks && count + further > (count < FEW ? MOST : FITS))) return;
      groups.forEach(node => rows.open.add(node.path));
      count += further;
      level = groups.flatMap(node => node.children);
    }
  };

  const listTree = (nodes, depth, list) => {
    for (const node of nodes) {
      const leaf = !node.children.length;
      list.push({
        label: GF.labelOf(node),
        name: node.path,
        tensors: node.tensors,
        depth,
        leaf,
        open: rows.open.has(node.path),
      });
      if (!leaf && rows.open.has(node.path)) listTree(node.children, depth + 1, list);
    }
    return list;
  };

  GF.arrangeRows = layers => {
    if (
      rows.names === null ||
      rows.names.length !== layers.names.length ||
      rows.names.some((name, i) => name !== layers.names[i])
    ) {
      rows.names = layers.names;
      rows.tree = GF.treeOf(layers.names);
      rows.grouped = rows.chosen === null ? layers.names.length > FITS : rows.chosen;
      unfoldWhatFits();
    }
    const search = rows.search.trim().toLowerCase();
    const single = (name, row) => ({ label: name, name, tensors: [row], depth: 0, leaf: true, open: false });
    if (search)
      rows.list = layers.names.flatMap((name, row) => (name.toLowerCase().includes(search) ? [single(name, row)] : []));
    else if (rows.grouped) rows.list = listTree(rows.tree.children, 0, []);
    else rows.list = layers.names.map(single);
    return rows.list;
  };
  GF.fold = path => {
    if (!rows.open.delete(path)) rows.open.add(path);
  };
  GF.foldAll = open => {
    rows.open.clear();
    const walk = node =>
      node.children.forEach(child => {
        if (child.children.length) {
          rows.open.add(child.path);
          walk(child);
        }
      });
    if (open) walk(rows.tree);
  };
  GF.reveal = row => {
    // unfold the modules around a tensor
    const walk = node =>
      node.children.forEach(child => {
        if (child.children.length && child.tensors.includes(row)) {
          rows.open.add(child.path);
          walk(child);
        }
      });
    walk(rows.tree);
  };

  // One value per row and column. A folded module has the norm of all its gradients together (roots of summed squares),
  // and the largest ratio or share among its tensors; what is not finite anywhere in it marks it.
  GF.cellsOf = (layers, list, statistic) => {
    const columns = layers.columns,
      values = new Float32Array(list.length * columns),
      bad = new Uint8Array(list.length * columns);
    const source = layers.values[statistic],
      nonfinite = layers.values.nonfinite;
    list.forEach((entry, at) => {
      const target = at * columns;
      if (entry.tensors.length === 1) {
        const from = entry.tensors[0] * columns;
        values.set(source.subarray(from, from + columns), target);
        for (let c = 0; c < columns; c++)
          bad[target + c] = nonfinite[from + c] > 0 || source[from + c] === Infinity ? 1 : 0;
        return;
      }
      const merged = new Float64Array(columns).fill(-1),
        together = statistic === "norm"; // -1: nothing yet
      for (const row of entry.tensors) {
        const from = row * columns;
        for (let c = 0; c < columns; c++) {
          const value = source[from + c];
          if (nonfinite[from + c] > 0) bad[target + c] = 1;
          if (!(value >= 0)) continue; // absent
          if (together) merged[c] = Math.max(0, merged[c]) + value * value;
          else if (value > merged[c]) merged[c] = value;
        }
      }
      for (let c = 0; c < columns; c++)
        values[target + c] = merged[c] < 0 ? NaN : together ? Math.sqrt(merged[c]) : merged[c];
    });
    return { values, bad, shades: null };
  };
}

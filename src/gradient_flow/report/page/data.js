// Where the data comes from: packed into this file, or asked from the server that gave the page.
{
  const bytesOf = text => {
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text); // newer browsers; several times as fast
    const binary = atob(text);
    const bytes = new Uint8Array(binary.length);
    for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
    return bytes;
  };

  GF.embedded = async () => {
    const holder = GF.el("gf-data");
    const text = holder ? holder.textContent.trim() : "";
    if (!text) return null;
    const stream = new Blob([bytesOf(text)]).stream().pipeThrough(new DecompressionStream("gzip"));
    return GF.prepare(await new Response(stream).json());
  };

  const token = new URLSearchParams(location.search).get("token");
  GF.url = (path, query) => {
    const url = new URL(path, location.origin + location.pathname);
    for (const [name, value] of Object.entries(query || {})) url.searchParams.set(name, value);
    if (token) url.searchParams.set("token", token);
    return url.toString();
  };
  GF.runPath = (id, rest) =>
    "api/run/" + (id === "." ? "-" : id.split("/").map(encodeURIComponent).join("/")) + (rest || "");
  GF.ask = async (path, query) => {
    const answer = await fetch(GF.url(path, query), { cache: "no-store" });
    if (!answer.ok) {
      let reason = "";
      try {
        const body = await answer.json();
        reason = body.error || body.detail || "";
      } catch (_) {
        /* not JSON: the status says enough */
      }
      throw new Error(reason ? String(reason) : `The server answered ${answer.status}.`);
    }
    return answer.json();
  };

  const LITTLE = new Uint8Array(Uint16Array.of(1).buffer)[0] === 1;
  const matrixOf = (packed, rows, columns) => {
    const values = new Float32Array(rows * columns).fill(NaN);
    if (!packed || !packed.data) return values;
    const bytes = bytesOf(packed.data),
      n = Math.min(values.length, bytes.length >> 2);
    if (LITTLE) values.set(new Float32Array(bytes.buffer, bytes.byteOffset, n));
    else for (let i = 0, view = new DataView(bytes.buffer); i < n; i++) values[i] = view.getFloat32(4 * i, true);
    return values;
  };

  GF.STATISTICS = ["norm", "mean", "std", "min", "max", "zero_fraction", "nonfinite", "update_ratio"];

  // Unpack the matrices and note what the parts of the page ask for again and again.
  GF.prepare = data => {
    const layers = data.layers || (data.layers = { names: [], step: [], first: [] });
    const rows = layers.names.length,
      columns = layers.step.length;
    layers.rows = rows;
    layers.columns = columns;
    layers.index = new Map(layers.names.map((name, row) => [name, row]));
    layers.values = {};
    for (const name of GF.STATISTICS) layers.values[name] = matrixOf((layers.matrix || {})[name], rows, columns);
    layers.matrix = null;
    if (layers.exponents) layers.exponents.values = Uint8Array.from(atob(layers.exponents.data), letter => letter.charCodeAt(0));
    layers.isWeight = layers.names.map((_, row) => ((layers.shapes || [])[row] || []).length > 1);
    layers.edges = edgesOf(layers.first, layers.step);
    data.series = data.series || { step: [], first: [], lines: {} };
    data.events = data.events || [];
    return data;
  };

  // Where each column of the map begins and ends on the axis of steps. A record holds until the next one, yet not
  // across a long pause.
  const edgesOf = (first, last) => {
    const starts = Float64Array.from(first),
      ends = Float64Array.from(last);
    const widths = [];
    for (let i = 1; i < starts.length; i++) widths.push(starts[i] - starts[i - 1]);
    const usual = widths.length ? widths.slice().sort((a, b) => a - b)[widths.length >> 1] : 1;
    for (let i = 0; i < starts.length; i++) {
      const next = i + 1 < starts.length ? starts[i + 1] : ends[i] + Math.max(1, usual - (ends[i] - starts[i]));
      ends[i] = Math.min(next, Math.max(ends[i] + 1, starts[i] + 3 * usual));
    }
    return { starts, ends };
  };

  GF.columnAt = (layers, step) => {
    let low = 0,
      high = layers.columns - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (layers.first[middle] <= step) low = middle;
      else high = middle - 1;
    }
    // A record stands for the steps until the next: for a step between two take the later one if it is the nearer.
    if (low + 1 < layers.columns && step > layers.step[low] && layers.first[low + 1] - step < step - layers.step[low])
      low++;
    return low;
  };
  GF.row = (layers, statistic, row) =>
    layers.values[statistic].subarray(row * layers.columns, (row + 1) * layers.columns);
  GF.whole = data => {
    const steps = [data.series.first && data.series.first[0], data.layers.first && data.layers.first[0]].filter(
      Number.isFinite,
    );
    const ends = [
      data.series.step[data.series.step.length - 1],
      data.layers.columns ? data.layers.edges.ends[data.layers.columns - 1] : NaN,
    ].filter(Number.isFinite);
    return steps.length ? [Math.min(...steps), Math.max(Math.max(...ends), Math.min(...steps) + 1)] : [0, 1];
  };
  // Curves end with the last step; the map's last column stands for as many steps as the others.
  GF.wholeOfCurves = data => {
    const [first, last] = GF.whole(data),
      end = data.series.step[data.series.step.length - 1];
    return [first, end > first ? end : last];
  };
  GF.rowsOfIssue = issue => {
    const names = GF.state.data.layers.names;
    const places = [...(issue.layers || []), ...(issue.layer ? [issue.layer] : [])];
    const rows = new Set();
    for (const place of places) {
      const exact = GF.state.data.layers.index.get(place);
      if (exact !== undefined) {
        rows.add(exact);
        continue;
      }
      names.forEach((name, row) => {
        if (name.startsWith(place + ".")) rows.add(row);
      });
    }
    return [...rows];
  };
}

// The profile over depth: the norm of every tensor from input to output at one step, with a slider through the run.
{
  let chart = null,
    column = -1,
    playing = 0;
  const slider = GF.el("depth-step"),
    play = GF.el("depth-play");

  const limits = layers => {
    // the same axis for all steps, so that playing shows movement and not rescaling
    let low = Infinity,
      high = -Infinity;
    for (const value of layers.values.norm)
      if (value > 0 && value < Infinity) {
        if (value < low) low = value;
        if (value > high) high = value;
      }
    if (high === -Infinity) return [1e-3, 1];
    const to = Math.ceil(Math.log10(high) + 0.05);
    return [10 ** Math.min(Math.floor(Math.log10(low)), to - 3), 10 ** to];
  };

  const draw = () => {
    const { layers } = GF.state.data,
      at = column,
      x = layers.names.map((_, row) => row + 1);
    const pick = weights =>
      layers.names.map((_, row) =>
        layers.isWeight[row] === weights ? layers.values.norm[row * layers.columns + at] : null,
      );
    if (!chart) {
      chart = new GF.Chart("Gradient norm", { height: 380, shared: false });
      GF.el("depth-chart").append(chart.figure);
    }
    const bad = layers.names.flatMap((_, row) =>
      layers.values.nonfinite[row * layers.columns + at] > 0 ? [{ from: row + 0.7, to: row + 1.3, colour: "bad" }] : [],
    );
    const weights = pick(true),
      rest = pick(false),
      few = x.length <= 150;
    chart.set({
      x,
      log: true,
      quiet: true,
      yRange: limits(layers),
      xLimits: [0.5, x.length + 0.5],
      lines: [
        weights.some(value => value !== null)
          ? { label: "weights", colour: "accent", values: weights, points: few }
          : null,
        rest.some(value => value !== null)
          ? { label: "biases and other vectors", colour: "low", values: rest, points: "only" }
          : null,
      ].filter(Boolean),
      marks: () => bad,
      where: row => `${row + 1}. ${layers.names[row]}`,
      xLabel: "tensors, from input to output",
      xNames: layers.names,
      yLabel: "norm (L2)",
      onClick: row => GF.selectLayer(layers.names[row], layers.step[column]),
    });
    const text = GF.steps(layers.first[at], layers.step[at]);
    GF.el("depth-value").textContent = text;
    slider.setAttribute("aria-valuetext", text);
  };
  const go = to => {
    const { layers } = GF.state.data;
    column = Math.max(0, Math.min(layers.columns - 1, to));
    slider.value = String(column);
    draw();
  };

  const stop = () => {
    clearInterval(playing);
    playing = 0;
    play.textContent = "Play";
    play.setAttribute("aria-pressed", "false");
  };
  play.addEventListener("click", () => {
    if (playing) return stop();
    const { layers } = GF.state.data,
      pace = Math.max(1, Math.round(layers.columns / 200)); // the whole run in about twenty seconds
    if (column >= layers.columns - 1) go(0);
    play.textContent = "Pause";
    play.setAttribute("aria-pressed", "true");
    playing = setInterval(() => {
      if (column >= GF.state.data.layers.columns - 1) stop();
      else go(column + pace);
    }, 100);
  });
  slider.addEventListener("input", () => {
    stop();
    go(Number(slider.value));
  });
  GF.on("step", step => {
    if (GF.state.data.layers.columns) {
      stop();
      go(GF.columnAt(GF.state.data.layers, step));
    }
  });

  GF.showDepth = data => {
    const { layers } = data,
      empty = !layers.rows || !layers.columns;
    GF.el("depth-body").hidden = empty;
    GF.el("depth-empty").hidden = !empty;
    GF.el("depth-empty").textContent = "No per-layer record yet, so there is no depth profile.";
    if (empty) return;
    const atEnd = column < 0 || column === Number(slider.max); // a live run takes the reader along unless they went back
    slider.max = String(layers.columns - 1);
    go(atEnd ? layers.columns - 1 : column);
  };
}

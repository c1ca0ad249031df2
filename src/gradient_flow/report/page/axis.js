// The horizontal axis of all charts that share it: steps, epochs or time. Charts keep their data by step; here is
// how a step becomes a place on the axis, and back.
{
  let kind = "step";
  let known = { steps: [], values: [] }; // of the chosen kind, both rising

  const between = (x, from, to) => {
    const n = from.length;
    if (!n) return x;
    let low = 0,
      high = n - 1;
    if (x <= from[0]) return n > 1 && from[1] > from[0] ? to[0] + ((x - from[0]) * (to[1] - to[0])) / (from[1] - from[0]) : to[0];
    if (x >= from[high]) {
      const run = n > 1 ? from[high] - from[high - 1] : 0;
      return run > 0 ? to[high] + ((x - from[high]) * (to[high] - to[high - 1])) / run : to[high];
    }
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (from[middle] <= x) low = middle;
      else high = middle;
    }
    const width = from[high] - from[low];
    return width > 0 ? to[low] + ((x - from[low]) * (to[high] - to[low])) / width : to[high];
  };

  const pairs = (data, which = kind) => {
    const values = which === "time" ? data.series.time : which === "epoch" ? data.series.epoch : null;
    const steps = [],
      rising = [];
    (values || []).forEach((value, i) => {
      if (value === null || (rising.length && value <= rising[rising.length - 1])) return;
      steps.push(data.series.step[i]);
      rising.push(value);
    });
    return { steps, values: rising };
  };

  const clock = seconds => {
    const round = Number(seconds.toPrecision(12));
    if (round < 60) return `${Number(round.toPrecision(3))} s`;
    if (round < 3600) return `${Math.floor(round / 60)}:${String(Math.round(round % 60)).padStart(2, "0")}`;
    return `${Math.floor(round / 3600)}:${String(Math.round((round % 3600) / 60)).padStart(2, "0")} h`;
  };

  GF.axis = {
    kinds: data =>
      ["step", "epoch", "time"].filter(
        each =>
          each === "step" ||
          (data.series[each] || []).filter(value => value !== null && value > (data.series[each][0] || 0)).length > 0,
      ),
    get kind() {
      return kind;
    },
    choose(wanted) {
      kind = wanted;
      if (GF.state.data) known = pairs(GF.state.data);
      GF.tell("axis");
    },
    renew(data) {
      if (!GF.axis.kinds(data).includes(kind)) kind = "step";
      known = pairs(data);
    },
    to: step => (kind === "step" ? step : between(step, known.steps, known.values)),
    from: x => (kind === "step" ? x : between(x, known.values, known.steps)),
    // Of another run, or of another kind than the one that is chosen for the page.
    placesOf(data, steps, which) {
      const { steps: own, values } = pairs(data, which);
      return which === "step" ? steps : steps.map(step => between(step, own, values));
    },
    label: (which = kind) => ({ step: "step", epoch: "epoch", time: "time since the start" })[which],
    format: (value, which = kind) => (which === "time" ? clock(value) : which === "epoch" ? GF.number(value) : GF.count(value)),
    increments: (which = kind) => {
      const whole = [1, 2, 5].flatMap(unit => [...Array(10).keys()].map(power => unit * 10 ** power)).sort((a, b) => a - b);
      if (which === "step") return whole;
      if (which === "epoch") return [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, ...whole];
      return [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400, 172800, 604800];
    },
  };
}

// The axes of the line charts: decades on log scales, some room on linear ones, few and round labels.
{
  const scales = {};
  GF.scales = scales;

  // At least two labels on an axis: whole decades, and where those are too few 2 and 5 between them.
  scales.decades = (_, __, low, high) => {
    const from = Math.ceil(Math.log10(low) - 1e-9),
      to = Math.floor(Math.log10(high) + 1e-9),
      stride = Math.max(1, Math.ceil((to - from) / 4));
    const ticks = [];
    for (let power = from - 1; power <= to; power += stride)
      for (const unit of to - from < 2 ? [1, 2, 5] : [1]) {
        const tick = unit * 10 ** power;
        if (tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9)) ticks.push(tick);
      }
    if (to - from >= 2) {
      ticks.length = 0;
      for (let power = from; power <= to; power += stride) ticks.push(10 ** power);
    }
    return ticks;
  };
  scales.powerText = value => {
    const power = Math.floor(Math.log10(value) + 1e-9),
      unit = Math.round(value / 10 ** power);
    return power >= -2 && power <= 3 ? String(Number((unit * 10 ** power).toPrecision(3))) : `${unit}e${power}`;
  };
  scales.logRange = (_, low, high) => {
    if (!(low > 0) || !(high > 0)) return [1e-3, 1];
    const from = Math.floor(Math.log10(low) + 1e-9),
      to = Math.ceil(Math.log10(high) - 1e-9);
    return [10 ** from, 10 ** Math.max(to, from + 1)];
  };
  scales.linearRange = (_, low, high) => {
    if (low === null || high === null || low === undefined) return [0, 1];
    const size = Math.max(Math.abs(low), Math.abs(high)),
      flat = high - low <= 1e-9 * size; // rounding is no movement
    const room = flat ? size * 0.1 || 1 : (high - low) * 0.08;
    return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
  };

  GF.tinted = (name, share) =>
    GF.colour(name) +
    Math.round(share * 255)
      .toString(16)
      .padStart(2, "0");
}

// The axes of the line charts: whole decades on log scales, some room on linear ones, few and round labels.
{
  const scales = {};
  GF.scales = scales;

  scales.decades = (_, __, low, high) => {
    const from = Math.ceil(Math.log10(low) - 1e-9),
      to = Math.floor(Math.log10(high) + 1e-9),
      stride = Math.max(1, Math.ceil((to - from) / 4));
    const ticks = [];
    for (let power = from; power <= to; power += stride) ticks.push(10 ** power);
    return ticks;
  };
  scales.powerText = value => {
    const power = Math.round(Math.log10(value));
    return power >= -2 && power <= 3 ? String(Number((10 ** power).toPrecision(3))) : `1e${power}`;
  };
  scales.logRange = (_, low, high) => {
    if (!(low > 0) || !(high > 0)) return [1e-3, 1];
    const from = Math.floor(Math.log10(low) + 1e-9),
      to = Math.ceil(Math.log10(high) - 1e-9);
    return [10 ** from, 10 ** Math.max(to, from + 1)];
  };
  scales.linearRange = (_, low, high) => {
    if (low === null || high === null || low === undefined) return [0, 1];
    const room = (high - low) * 0.08 || Math.abs(high) * 0.1 || 1;
    return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
  };

  GF.tinted = (name, share) =>
    GF.colour(name) +
    Math.round(share * 255)
      .toString(16)
      .padStart(2, "0");
}

// Colour for size: viridis (S. van der Walt and N. Smith, CC0), even in lightness and readable without red and green.
{
  const anchors = (
    "440154 470d60 48186a 482374 472d7b 453781 424086 3e4989 3b528b 375b8d 33638d 2f6b8e 2c728e 297a8e 26828e 23898e 21918c " +
    "1f988b 1fa088 22a785 28ae80 32b67a 3fbc73 4ec36b 5ec962 70cf57 84d44b 98d83e addc30 c2df23 d8e219 ece51b fde725"
  )
    .split(" ")
    .map(text => [0, 2, 4].map(at => parseInt(text.slice(at, at + 2), 16)));

  const packed = (r, g, b) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
  GF.ramp = new Uint32Array(256);
  for (let i = 0; i < 256; i++) {
    const at = (i / 255) * (anchors.length - 1),
      k = Math.min(anchors.length - 2, Math.floor(at)),
      part = at - k;
    GF.ramp[i] = packed(...[0, 1, 2].map(c => Math.round(anchors[k][c] + part * (anchors[k + 1][c] - anchors[k][c]))));
  }
  GF.packedColour = name => {
    const [r, g, b] = [1, 3, 5].map(at => parseInt(GF.colour(name).slice(at, at + 2), 16));
    return packed(r, g, b);
  };

  // The range of the colours, in decades: what most values span, at least three decades so that a level map looks
  // level,
  // and not stretched beyond four decades past the bulk by a single explosion.
  GF.colourRange = (values, linear) => {
    if (linear) return { low: 0, high: 1, linear };
    const found = [],
      stride = Math.max(1, Math.floor(values.length / 50000)); // some tens of thousands tell where the bulk is
    let least = Infinity,
      most = -Infinity;
    for (let i = 0; i < values.length; i++) {
      const value = values[i];
      if (!(value > 0) || value === Infinity) continue;
      if (value < least) least = value;
      if (value > most) most = value;
      if (i % stride === 0) found.push(Math.log10(value));
    }
    if (most === -Infinity) return { low: -3, high: 0, linear };
    const logs = Float64Array.from(found).sort();
    const at = share => (logs.length ? logs[Math.round(share * (logs.length - 1))] : Math.log10(most));
    const high = Math.min(Math.log10(most), at(0.98) + 4),
      low = Math.max(Math.log10(least), at(0.02) - 4);
    return { low: Math.min(low, high - 3), high, linear };
  };
}

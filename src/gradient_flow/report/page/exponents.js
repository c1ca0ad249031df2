// How large the elements of one gradient are: a column for each record that counted them, a row for each power of two.
{
  const HEIGHT = 236,
    LEFT = 58,
    BOTTOM = 34,
    TOP = 6;
  const LOWEST = -45; // the power of bin 2, the first that has one of its own
  const LIMITS = [
    [-14, "smallest normal fp16"],
    [-24, "smallest fp16"],
  ];
  const superscript = n => String(n).replace(/[-\d]/g, letter => (letter === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[letter]));
  const power = n => `2${superscript(n)}`;
  const binText = bin =>
    bin === 0 ? "below 2⁻¹²⁶" : bin === 1 ? "below 2⁻⁴⁵" : bin === 63 ? "2¹⁶ or more" : `${power(bin - 2 + LOWEST)} to ${power(bin - 1 + LOWEST)}`;

  const canvas = GF.h("canvas", { role: "img" }),
    caption = GF.h("figcaption", {}),
    figure = GF.h("figure", { class: "exponents", hidden: true }, caption, canvas);
  let drawn = null; // {found, row} on screen

  const shareAt = (found, row, look, bin) => found.values[(row * found.step.length + look) * found.bins + bin] / 255;
  const say = text =>
    GF.fill(
      caption,
      GF.h("span", { class: "title" }, "Size of its elements"),
      GF.h("span", {}, text || "share of elements with each power of two, a column per record; brighter is more, dashed lines are limits of fp16"),
    );

  const paint = () => {
    const width = figure.clientWidth;
    if (!drawn || !width) return;
    const { found, row } = drawn,
      looks = found.step.length,
      scale = devicePixelRatio || 1,
      [low, high] = drawn.used,
      beside = width > 480 ? 130 : 8, // for the names of the limits
      plot = { w: Math.min(width - LEFT - beside, 64 * looks), h: HEIGHT - TOP - BOTTOM };
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(HEIGHT * scale);
    canvas.style.height = `${HEIGHT}px`;
    const context = canvas.getContext("2d"),
      cell = { w: plot.w / looks, h: plot.h / (high - low) };
    drawn.plot = { ...plot, cell };
    context.scale(scale, scale);
    const yOf = bin => TOP + plot.h - (bin + 1 - low) * cell.h; // the largest on top
    context.fillStyle = GF.colour("blank");
    context.fillRect(LEFT, TOP, plot.w, plot.h);
    for (let look = 0; look < looks; look++)
      for (let bin = low; bin < high; bin++) {
        const share = shareAt(found, row, look, bin);
        if (!share) continue;
        const packed = GF.ramp[Math.min(255, Math.round(40 + 215 * Math.sqrt(share)))];
        context.fillStyle = `rgb(${packed & 255} ${(packed >> 8) & 255} ${(packed >> 16) & 255})`;
        context.fillRect(LEFT + look * cell.w, yOf(bin), Math.ceil(cell.w), Math.ceil(cell.h));
      }
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "right";
    context.fillStyle = GF.colour("soft");
    const every = Math.max(1, Math.ceil(18 / cell.h));
    for (let bin = low; bin < high; bin++) {
      const n = found.first + bin - 2 + LOWEST;
      if (found.first + bin >= 2 && found.first + bin < 63 && n % every === 0) context.fillText(power(n), LEFT - 8, yOf(bin) + cell.h);
    }
    context.textAlign = "center";
    context.textBaseline = "top";
    const steps = Math.max(1, Math.ceil(52 / cell.w));
    for (let look = 0; look < looks; look += steps)
      context.fillText(GF.count(found.step[look]), LEFT + (look + 0.5) * cell.w, TOP + plot.h + 4);
    context.fillText("step", LEFT + plot.w / 2, TOP + plot.h + 19);
    context.strokeStyle = GF.colour("high");
    context.textAlign = "left";
    context.textBaseline = "bottom";
    for (const [n, text] of LIMITS) {
      const bin = n - LOWEST + 2 - found.first; // the line lies below this row
      if (bin <= low || bin >= high) continue;
      const y = Math.round(yOf(bin) + cell.h) + 0.5;
      context.setLineDash([4, 3]);
      context.beginPath();
      context.moveTo(LEFT, y);
      context.lineTo(LEFT + plot.w, y);
      context.stroke();
      context.setLineDash([]);
      if (beside > 8) context.fillText(text, LEFT + plot.w + 6, y + 6);
    }
  };

  canvas.addEventListener("mousemove", event => {
    if (!drawn || !drawn.plot) return;
    const { found, row, plot } = drawn,
      box = canvas.getBoundingClientRect(),
      look = Math.floor((event.clientX - box.left - LEFT) / plot.cell.w),
      bin = drawn.used[0] + Math.floor((TOP + plot.h - (event.clientY - box.top)) / plot.cell.h);
    if (look < 0 || bin < drawn.used[0] || look >= found.step.length || bin >= drawn.used[1]) return say();
    say(`step ${GF.count(found.step[look])}, ${binText(found.first + bin)}: ${GF.percent(shareAt(found, row, look, bin))}`);
  });
  canvas.addEventListener("mouseleave", () => say());
  new ResizeObserver(paint).observe(figure);
  GF.on("theme", paint);

  GF.showExponents = (data, row) => {
    const found = data.layers.exponents,
      looks = found ? found.step.length : 0;
    let low = Infinity,
      high = -1;
    for (let look = 0; look < looks; look++)
      for (let bin = 0; bin < found.bins; bin++)
        if (shareAt(found, row, look, bin) > 0) [low, high] = [Math.min(low, bin), Math.max(high, bin)];
    const any = high >= 0;
    figure.hidden = !any;
    if (!figure.parentNode) GF.el("layer-charts").after(figure);
    if (!any) return;
    drawn = { found, row, used: [Math.max(0, low - 1), Math.min(found.bins, high + 2)] };
    const last = Array.from({ length: found.bins }, (_, bin) => shareAt(found, row, looks - 1, bin)),
      usual = found.first + last.indexOf(Math.max(...last));
    canvas.setAttribute("aria-label", `Size of its elements at ${GF.plural(looks, "record")}. At step ${GF.count(found.step[looks - 1])} most are ${binText(usual)}.`);
    say();
    paint();
  };
}

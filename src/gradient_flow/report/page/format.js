// Numbers, steps and durations as a person reads them.
{
  GF.number = value => {
    if (value === null || value === undefined || Number.isNaN(value)) return "–";
    if (!Number.isFinite(value)) return value > 0 ? "Inf" : "−Inf";
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size < 1e-3 || size >= 1e6) {
      const [digits, power] = value.toExponential(2).split("e");
      return digits.replace(/\.?0+$/, "").replace("-", "−") + "e" + Number(power);
    }
    if (Number.isInteger(value)) return GF.count(value);
    return String(Number(value.toPrecision(4))).replace("-", "−");
  };
  // Commas between thousands, as in the sentences of the verdict.
  GF.count = value =>
    value === null || value === undefined
      ? "–"
      : String(value)
          .replace(/\B(?=(\d{3})+(?!\d))/g, ",")
          .replace("-", "−");
  GF.percent = share => (Number.isFinite(share) ? `${Number((100 * share).toPrecision(3))} %` : "–");
  GF.plural = (n, one, many) => `${GF.count(n)} ${n === 1 ? one : many || one + "s"}`;
  GF.steps = (first, last) =>
    first === last || first === undefined || first === null
      ? `step ${GF.count(last)}`
      : `steps ${GF.count(first)}–${GF.count(last)}`;
  GF.large = n => {
    const unit = [
      [1e9, " B"],
      [1e6, " M"],
      [1e3, " k"],
    ].find(([size]) => n >= size);
    return unit ? Number((n / unit[0]).toPrecision(3)) + unit[1] : String(n);
  };
  GF.duration = seconds => {
    if (!Number.isFinite(seconds)) return "–";
    if (seconds < 90) return `${Number(seconds.toPrecision(2))} s`;
    if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
    return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
  };
  GF.when = text => {
    const date = text ? new Date(text) : null;
    return date && !Number.isNaN(date.getTime())
      ? date.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" })
      : "–";
  };
  // Words of the program with names in backticks: the names are set as code. Text in, nodes out; nothing is parsed
  // as HTML.
  GF.prose = text =>
    String(text)
      .split(/(`[^`]+`)/)
      .filter(Boolean)
      .map(part => (/^`[^`]+`$/.test(part) ? GF.h("code", {}, part.slice(1, -1)) : part));
  GF.sentence = text => GF.prose(String(text).charAt(0).toUpperCase() + String(text).slice(1));
  const longNumbers = /-?\d+\.\d{4,}(e[+-]?\d+)?/g;
  GF.value = value => {
    if (typeof value === "number") return GF.number(value);
    if (value === null || value === undefined) return "–";
    if (value === true || value === false) return value ? "yes" : "no";
    return (typeof value === "object" ? JSON.stringify(value) : String(value)).replace(longNumbers, digits =>
      GF.number(Number(digits)),
    );
  };
  // Long names keep both ends: the beginning says where, the end says what.
  GF.shorten = (name, fits) => {
    if (fits(name)) return name;
    let low = 1,
      high = name.length - 1;
    const cut = kept => name.slice(0, Math.floor(kept / 3)) + "…" + name.slice(name.length - Math.ceil((2 * kept) / 3));
    while (low < high) {
      const middle = Math.ceil((low + high) / 2);
      if (fits(cut(middle))) low = middle;
      else high = middle - 1;
    }
    return cut(low);
  };
}

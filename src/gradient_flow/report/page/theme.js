// Dark or light: as the system says until the reader chooses. Storage may be refused (file://, private windows); then
// the choice lasts for this visit.
{
  const system = matchMedia("(prefers-color-scheme: dark)");
  const recall = () => {
    try {
      return localStorage.getItem("gradient-flow-theme");
    } catch (_) {
      return null;
    }
  };
  const keep = theme => {
    try {
      localStorage.setItem("gradient-flow-theme", theme);
    } catch (_) {
      /* kept for this visit only */
    }
  };
  let chosen = recall();

  const apply = theme => {
    document.documentElement.dataset.theme = theme;
    const button = GF.el("theme"),
      other = theme === "dark" ? "Light" : "Dark";
    button.textContent = other;
    button.setAttribute("aria-label", `Switch to the ${other.toLowerCase()} theme`);
    GF.tell("theme");
  };
  const current = () => chosen || (system.matches ? "dark" : "light");
  GF.el("theme").addEventListener("click", () => {
    chosen = current() === "dark" ? "light" : "dark";
    keep(chosen);
    apply(chosen);
  });
  system.addEventListener("change", () => apply(current()));
  // Paper is white, whatever the screen.
  addEventListener("beforeprint", () => {
    document.querySelectorAll("#issues details").forEach(one => (one.open = true));
    apply("light");
  });
  addEventListener("afterprint", () => apply(current()));
  GF.startTheme = () => apply(current());
}

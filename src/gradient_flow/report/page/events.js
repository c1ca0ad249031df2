// What the guard and the clipper did, and what else happened, as a list that can be narrowed.
{
  const PAGE = 200;
  const off = new Set();
  let search = "",
    shown = PAGE;

  const matches = event =>
    !off.has(event.kind) &&
    (!search ||
      `${event.step} ${event.kind} ${event.text} ${(event.layers || []).join(" ")}`.toLowerCase().includes(search));
  const layerLinks = event =>
    (event.layers || [])
      .slice(0, 6)
      .flatMap(name => [
        " ",
        GF.state.data.layers.index.has(name)
          ? GF.h(
              "button",
              {
                type: "button",
                class: "link name",
                onclick: () => {
                  GF.selectLayer(name, event.step);
                  GF.tell("step", event.step);
                  GF.scrollTo(GF.el("layer"));
                },
              },
              name,
            )
          : GF.h("span", { class: "name" }, name),
      ])
      .concat((event.layers || []).length > 6 ? [` and ${event.layers.length - 6} more`] : []);

  const list = () => {
    const data = GF.state.data,
      all = data.events.filter(matches);
    GF.fill(
      GF.el("events-list"),
      all
        .slice(0, shown)
        .map(event =>
          GF.h(
            "tr",
            {},
            GF.h(
              "td",
              { class: "num" },
              event.last_step > event.step
                ? `${GF.count(event.step)}–${GF.count(event.last_step)}`
                : GF.count(event.step),
            ),
            GF.h("td", {}, event.kind),
            GF.h("td", {}, ...GF.prose(event.text), ...layerLinks(event)),
          ),
        ),
    );
    const total = data.events_total === undefined ? data.events.length : data.events_total;
    GF.el("events-count").textContent =
      `${GF.count(all.length)} of ${GF.plural(data.events.length, "event")}${total > data.events.length ? `; the run has ${GF.count(total)}, the newest are kept here` : ""}.`;
    GF.fill(
      GF.el("events-more"),
      all.length > shown
        ? [
            GF.h(
              "button",
              {
                type: "button",
                onclick: () => {
                  shown += PAGE;
                  list();
                },
              },
              `Show ${Math.min(PAGE, all.length - shown)} more`,
            ),
          ]
        : [],
    );
  };
  const chips = data => {
    const counts = new Map();
    for (const event of data.events) counts.set(event.kind, (counts.get(event.kind) || 0) + 1);
    if (!GF.changed(GF.el("events-kinds"), [...counts])) return;
    GF.fill(
      GF.el("events-kinds"),
      [...counts].map(([kind, count]) =>
        GF.h(
          "button",
          {
            type: "button",
            "aria-pressed": String(!off.has(kind)),
            onclick: event => {
              if (!off.delete(kind)) off.add(kind);
              event.currentTarget.setAttribute("aria-pressed", String(!off.has(kind)));
              list();
            },
          },
          `${kind} ${GF.count(count)}`,
        ),
      ),
    );
  };
  GF.el("events-filter").addEventListener("input", event => {
    search = event.target.value.trim().toLowerCase();
    shown = PAGE;
    list();
  });

  GF.showEvents = data => {
    const none = !data.events.length;
    GF.el("events-body").hidden = none;
    GF.el("events-empty").hidden = !none;
    GF.el("events-empty").textContent = "Nothing had to be clipped, skipped or repaired.";
    if (
      none ||
      !GF.changed(GF.el("events-list"), [data.events_total, data.events[0], data.events[data.events.length - 1]])
    )
      return;
    chips(data);
    list();
  };
}

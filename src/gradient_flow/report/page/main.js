// From data to page.
{
  const FIRST = [GF.showSummary, GF.showMap]; // what is above the fold
  const THEN = [
    GF.showModel,
    GF.showTable,
    GF.showLayer,
    GF.showOverTime,
    GF.showInside,
    GF.showDepth,
    GF.showUpdates,
    GF.showCures,
    GF.showEvents,
    GF.showAbout,
  ];
  let round = 0;
  // The browser puts on the screen what there is, and hears the reader, before the next part is drawn.
  // A page that is hidden gets no frames, and need not wait for one.
  const breath = () =>
    new Promise(done => (document.hidden ? setTimeout(done, 0) : requestAnimationFrame(() => setTimeout(done, 0))));
  GF.show = async data => {
    const mine = ++round,
      first = GF.state.data === null;
    GF.state.data = data;
    GF.el("page").hidden = false;
    GF.axis.renew(data);
    FIRST.forEach(part => part(data));
    if (first) {
      GF.map.draw(true);
      document.documentElement.dataset.map = "drawn";
    }
    for (const part of THEN) {
      if (first) await breath();
      if (mine !== round) return; // newer data is being shown
      part(data);
    }
    if (!GF.state.range)
      GF.charts.forEach(chart => {
        if (chart.shared) chart.rescale();
      });
    GF.goToPlace();
    document.documentElement.dataset.ready = "yes";
  };

  const start = async () => {
    GF.startTheme();
    const data = await GF.embedded();
    if (data) await GF.show(data);
    else if (location.protocol.startsWith("http")) await GF.startLive();
    else
      throw new Error(
        "This page has no run. Open it through `gradient-flow serve`, or write a report with `gradient-flow report RUN`.",
      );
  };
  start().catch(problem => {
    GF.complain(problem);
    document.documentElement.dataset.ready = "failed";
  });
}

// From data to page.
{
  GF.show = data => {
    GF.state.data = data;
    GF.el("page").hidden = false;
    for (const part of [
      GF.showSummary,
      GF.showMap,
      GF.showModel,
      GF.showTable,
      GF.showLayer,
      GF.showOverTime,
      GF.showInside,
      GF.showDepth,
      GF.showUpdates,
      GF.showEvents,
      GF.showAbout,
    ])
      part(data);
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
    if (data) GF.show(data);
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

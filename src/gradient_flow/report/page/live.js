// A served page: opens a run, hears from the server when it grows, fetches it again, and comes back after a broken
// connection.
{
  const badge = GF.el("live");
  let source = null,
    wait = 1000,
    timer = 0,
    loading = false,
    again = false,
    onScreen = null; // the run that the page shows

  const say = (state, text) => {
    badge.hidden = false;
    badge.dataset.state = state;
    if (badge.textContent !== text) badge.textContent = text;
  };
  GF.complain = problem => {
    const box = GF.el("problem");
    box.hidden = !problem;
    box.textContent = problem ? problem.message || String(problem) : "";
  };

  const fetchRun = async id => {
    if (loading) {
      again = true;
      return;
    }
    loading = true;
    const begun = performance.now();
    try {
      const data = GF.prepare(await GF.ask(GF.runPath(id)));
      if (id !== GF.state.runId) return;
      GF.complain(null);
      onScreen = id;
      await GF.show(data);
      GF.refreshCompared(id, data);
    } catch (problem) {
      if (id === GF.state.runId) GF.complain(problem);
    } finally {
      loading = false;
      // Leave the browser and the server most of the time: a large run comes less often.
      const pause = Math.max(500, 3 * (performance.now() - begun));
      if (again) {
        again = false;
        setTimeout(() => fetchRun(GF.state.runId), pause);
      }
    }
  };

  const listen = id => {
    clearTimeout(timer);
    if (source) source.close();
    // What is on the page goes along: the server tells at once if there is more, and the page asks for nothing twice.
    const truth = () => (onScreen === id ? GF.state.data.truth : {});
    const shown = onScreen === id ? { size: truth().size, judged: truth().judged, complete: truth().complete } : {};
    source = new EventSource(GF.url(GF.runPath(id, "/events"), shown));
    const own = source;
    own.onopen = () => {
      if (own === source) {
        wait = 1000;
        if (onScreen === id && GF.state.data.run.status === "finished") say("wait", "Reading the rest…");
        else say("live", "Live");
        if (onScreen !== id) fetchRun(id);
      }
    };
    own.addEventListener("changed", event => {
      let told = {};
      try {
        told = JSON.parse(event.data);
      } catch (_) {
        /* the news is that there is news */
      }
      // News of a run that has ended is about the reading of it: its end is told when all of it is read.
      if (badge.dataset.state !== "wait" || told.size !== truth().size)
        say("live", Number.isFinite(told.last_step) ? `Live, step ${GF.count(told.last_step)}` : "Live");
      fetchRun(id);
    });
    // The line stays open: a run that ended may be taken up again.
    own.addEventListener("ended", event => {
      say("ended", "Ended");
      let size = NaN;
      try {
        size = JSON.parse(event.data).size;
      } catch (_) {
        /* then it is asked for */
      }
      if (!truth().complete || truth().size !== size) fetchRun(id);
    });
    own.addEventListener("problem", event => {
      try {
        GF.complain(new Error(JSON.parse(event.data).error));
      } catch (_) {
        /* no reason given */
      }
    });
    own.onerror = () => {
      if (own !== source) return;
      own.close();
      say("retry", "Reconnecting…");
      timer = setTimeout(() => listen(id), wait);
      wait = Math.min(10000, wait * 1.6);
    };
  };

  const remember = id => {
    try {
      if (asked() !== id)
        history.replaceState(null, "", `${location.pathname}${location.search}#run=${encodeURIComponent(id)}`);
    } catch (_) {
      /* the address stays as it is */
    }
  };
  const asked = () => GF.askedPlace().get("run");
  // The address names the run, so a link to a section scrolls there and leaves the address alone.
  document.querySelectorAll(".sections a, .skip").forEach(link =>
    link.addEventListener("click", event => {
      if (GF.state.runId === null) return;
      event.preventDefault();
      const section = document.querySelector(link.getAttribute("href"));
      GF.scrollTo(section);
      section.setAttribute("tabindex", "-1");
      section.focus({ preventScroll: true });
    }),
  );

  GF.openRun = async id => {
    Object.assign(GF.state, { runId: id, range: null, layer: null, mark: null });
    say("wait", "Loading…");
    remember(id);
    GF.tell("highlight-off");
    await fetchRun(id);
    listen(id);
    GF.drawRuns();
    if (!GF.el("runs").hidden && GF.el("page").hidden === false) GF.scrollTo(GF.el("verdict"));
  };

  GF.startLive = async () => {
    const runs = await GF.loadRuns();
    setInterval(() => {
      if (!document.hidden) GF.loadRuns().catch(() => {});
    }, 5000);
    const wanted = runs.find(run => run.id === asked());
    if (wanted || runs.length === 1) await GF.openRun((wanted || runs[0]).id);
    else say("wait", runs.length ? "Choose a run" : "Waiting for a first run");
  };
}

"""The page as a dashboard: the list of runs, runs laid over each other, and training seen while it happens."""

import threading

import pytest
import torch
from report_runs import empty_run, hostile_run, sick_run
from selenium.webdriver import Keys
from torch import nn

import gradient_flow as gf
from browser import browser  # noqa: F401 (a fixture)
from gradient_flow.report.serve.server import DashboardServer

# ruff: noqa: F811 (the fixture's name is that of its import)


class Training:
    """A run that goes on when told to."""

    def __init__(self, folder):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.flow = gf.watch(self.model, self.optimizer, run=folder, layers_every=1)

    def steps(self, count):
        for _ in range(count):
            self.optimizer.zero_grad()
            loss = self.model(torch.randn(16, 4)).square().mean()
            self.flow.log(loss=loss.item())
            loss.backward()
            self.optimizer.step()


class Served:
    """A dashboard on a thread of its own."""

    def __init__(self, folder, **options):
        self.server = DashboardServer(folder, port=0, **options)
        started = threading.Event()
        self.thread = threading.Thread(target=self.server.serve, args=(started.set,))
        self.thread.start()
        assert started.wait(30)
        self.url = self.server.url

    def stop(self):
        self.server.stop()
        self.thread.join(30)
        assert not self.thread.is_alive()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    sick_run(folder / "sick")
    hostile_run(folder / "<img src=x onerror=alert(3)>")
    empty_run(folder / "deep" / "empty run")
    return folder


@pytest.fixture(scope="module")
def served(folder):
    dashboard = Served(folder)
    yield dashboard
    dashboard.stop()


def open_list(browser, url, **options):
    browser.open(url, ready=False, **options)
    browser.wait(lambda: browser.all("#runs-table tbody button"), "the runs are listed")


def names(browser):
    return [browser.js("return arguments[0].textContent", each) for each in browser.all("#runs-table tbody th")]


def open_run(browser, part):
    button = next(each for each in browser.all("#runs-table tbody th button") if part in each.text)
    button.click()
    browser.wait(lambda: part in browser.text("#run-name"), f"{part} is open")
    browser.settle()


def test_runs_are_listed_filtered_and_sorted(browser, served):
    open_list(browser, served.url)
    assert len(names(browser)) == 3
    browser.find("#runs-filter").send_keys("SICK")
    assert [name for name in names(browser) if "sick" in name] == names(browser) != []
    assert browser.text("#runs-count") == "1 of 3"
    browser.find("#runs-filter").send_keys(Keys.CONTROL, "a")
    browser.find("#runs-filter").send_keys("nothing like it")
    assert "No run matches" in browser.text("#runs-table tbody")
    browser.js("const f = GF.el('runs-filter'); f.value = ''; f.dispatchEvent(new Event('input'))")
    browser.js("const s = GF.el('runs-sort'); s.value = 'name'; s.dispatchEvent(new Event('change'))")
    by_name = names(browser)
    assert by_name == browser.js(
        "return arguments[0].slice().sort((a, b) => a.localeCompare(b, undefined, {numeric: true}))", by_name
    )
    browser.js("const s = GF.el('runs-sort'); s.value = 'last_step'; s.dispatchEvent(new Event('change'))")
    assert "sick" in names(browser)[0]
    assert browser.complaints() == []


def test_a_run_opens_and_its_address_can_be_kept(browser, served):
    open_list(browser, served.url)
    open_run(browser, "sick")
    assert browser.js("return GF.state.data.run.recorded_steps") == 60
    address = browser.driver.current_url
    assert "#run=" in address
    browser.open(address)
    assert browser.text("#run-name") == "sick"
    browser.wait(lambda: browser.text("#live") == "Ended", "a finished run is said to have ended")
    assert browser.complaints() == []


def tick(browser, name):
    """Click the box of a run, found anew: the list is drawn again when a verdict arrives."""
    browser.js(
        "[...document.querySelectorAll('#runs-table input')].find(box =>"
        " box.getAttribute('aria-label') === `Compare ${arguments[0]}`).click()",
        name,
    )


def overlaid(browser):
    """Title of each chart that compares → labels of its lines."""
    return dict(
        browser.js(
            """return [...GF.charts].filter(chart => chart.figure.parentNode.id === "compare-charts")
            .map(chart => [chart.title, chart.spec.lines.map(line => line.label)])"""
        )
    )


def test_two_runs_lie_over_each_other(browser, served):
    open_list(browser, served.url)
    chosen = [name for name in names(browser) if "empty" not in name]
    for name in chosen:
        tick(browser, name)
    browser.wait(lambda: browser.find("#compare").is_displayed(), "the comparison is shown")
    assert len(overlaid(browser)["Gradient norm"]) == 2
    columns = browser.all("#compare-issues > div")
    assert len(columns) == 2
    assert all(browser.js("return arguments[0].querySelectorAll('.badge').length", column) > 0 for column in columns)
    assert browser.all("img") == []
    assert browser.accessibility_findings() == []
    browser.js("GF.el('compare-series').value = 'l1'; GF.el('compare-series').dispatchEvent(new Event('change'))")
    assert len(overlaid(browser)["L1 norm"]) == 2
    layer = browser.js("return GF.el('compare-layers').options[0].value")
    browser.js(
        "const box = GF.el('compare-layer'); box.value = arguments[0]; box.dispatchEvent(new Event('change'))", layer
    )
    browser.wait(lambda: f"Norm of {layer}" in overlaid(browser), "the layer is overlaid")
    tick(browser, chosen[0])
    browser.wait(lambda: not browser.find("#compare").is_displayed(), "there is nothing to compare any more")
    assert browser.complaints() == []


def test_runs_beyond_the_colours_are_dashed(browser, served):
    open_list(browser, served.url)
    looks = browser.js(
        """const looks = Array.from({ length: 24 }, (_, at) => GF.runLook(at));
        return looks.map(look => `${look.colour} ${look.dash}`)"""
    )
    assert len(set(looks)) == 24
    assert len({look.split()[0] for look in looks}) == 6
    assert [look.split()[1] for look in looks[:7]] == ["undefined"] * 6 + ["7,4"]
    colours = browser.js("return Array.from({ length: 8 }, (_, at) => GF.colour(`run${at}`))")
    assert len(set(colours)) == 8


def overlaid_norm(browser):
    """x and y of the first line of the overlaid norms, and whether it has a log scale."""
    return browser.js(
        """const chart = [...GF.charts].find(one => one.figure.parentNode.id === "compare-charts");
        const { x, lines, log, xLabel } = chart.spec;
        return [x, lines.map(line => line.values), log, xLabel]"""
    )


def choose(browser, box, value):
    browser.js(
        "const box = GF.el(arguments[0]); box.value = arguments[1]; box.dispatchEvent(new Event('change'))", box, value
    )


def test_overlaid_runs_have_axes_and_smoothing_of_their_own(browser, tmp_path):
    for name, steps in (("one", 20), ("two", 30)):
        torch.manual_seed(steps)
        training = Training(tmp_path / name)
        training.steps(steps)
        training.flow.close()
    dashboard = Served(tmp_path)
    try:
        open_list(browser, dashboard.url)
        for name in ("one", "two"):
            tick(browser, name)
        browser.wait(lambda: browser.find("#compare").is_displayed(), "the comparison is shown")
        steps, values, log, label = overlaid_norm(browser)
        assert (steps, log, label) == (list(range(1, 31)), True, "step")
        choose(browser, "compare-scale", "linear")
        assert overlaid_norm(browser)[2] is False
        choose(browser, "compare-smooth", "0.9")
        smooth = overlaid_norm(browser)[1][0][:20]
        weights = [0.9**back for back in range(20)]
        for at in (0, 1, 19):
            expected = sum(weights[back] * values[0][at - back] for back in range(at + 1)) / sum(weights[: at + 1])
            assert smooth[at] == pytest.approx(expected, rel=1e-9)
        choose(browser, "compare-x", "time")
        seconds, _, _, label = overlaid_norm(browser)
        assert label == "time since the start"
        assert seconds == sorted(seconds)
        assert len(seconds) > 30  # each run has times of its own
        assert browser.js("return GF.el('compare-x').options[1].disabled")  # no epoch was logged
        assert browser.complaints() == []
    finally:
        dashboard.stop()


def test_hostile_names_are_text_here_too(browser, served):
    open_list(browser, served.url)
    open_run(browser, "<img")
    assert browser.all("img") == []
    assert len(browser.all("script")) == 1
    assert browser.complaints() == []


def test_the_page_follows_training(browser, tmp_path):
    training = Training(tmp_path / "run")
    training.steps(5)
    dashboard = Served(tmp_path / "run")
    try:
        browser.open(dashboard.url)
        assert not browser.find("#runs").is_displayed()  # a single run needs no list
        browser.wait(lambda: browser.text("#live").startswith("Live"), "the page says that it is live")
        browser.js("const s = GF.el('map-search'); s.value = 'weight'; s.dispatchEvent(new Event('input'))")
        browser.js("GF.selectLayer('2.weight', 3)")
        training.steps(20)
        browser.wait(lambda: browser.js("return GF.state.data.run.last_step") == 25, "the new steps are shown")
        assert browser.js("return [...GF.charts].find(c => c.title === 'Loss').plot.data[0].length") == 25
        assert browser.js("return GF.map.list.length") == 2  # what the reader had chosen is still chosen
        assert browser.js("return GF.state.layer") == "2.weight"
        browser.wait(lambda: browser.text("#depth-value") == "step 25", "the profile goes along")
        training.flow.close()
        browser.wait(lambda: browser.text("#live") == "Ended", "the end is told")
        browser.wait(lambda: browser.text("#run-status") == "finished", "the status follows")
        assert browser.complaints() == []
    finally:
        training.flow.close()
        dashboard.stop()


def test_a_finished_run_is_asked_for_once(browser, tmp_path):
    training = Training(tmp_path / "run")
    training.steps(5)
    training.flow.close()
    dashboard = Served(tmp_path / "run")
    try:
        browser.open(dashboard.url)
        browser.wait(lambda: browser.text("#live") == "Ended", "the end is told")
        browser.settle()
        assert [url.rpartition("/")[2] for url in browser.requests() if "/api/run/" in url].count("-") == 1
    finally:
        dashboard.stop()


def test_the_page_comes_back_after_the_server_was_away(browser, tmp_path):
    training = Training(tmp_path / "run")
    training.steps(5)
    dashboard = Served(tmp_path / "run")
    try:
        browser.open(dashboard.url)
        browser.wait(lambda: browser.text("#live").startswith("Live"), "the page says that it is live")
        dashboard.stop()
        browser.wait(lambda: browser.text("#live").startswith("Reconnecting"), "the loss is told")
        training.steps(5)
        again = DashboardServer(tmp_path / "run", port=dashboard.server.port)
        dashboard.server = again
        dashboard.thread = threading.Thread(target=again.serve)
        dashboard.thread.start()
        browser.wait(lambda: browser.text("#live").startswith("Live"), "the page is live again")
        browser.wait(lambda: browser.js("return GF.state.data.run.last_step") == 10, "what was missed is shown")
    finally:
        training.flow.close()
        dashboard.stop()


def test_the_token_goes_along(browser, folder):
    dashboard = Served(folder, token="a-secret/of ours")
    try:
        open_list(browser, dashboard.url.split("?")[0] + "?token=a-secret%2Fof%20ours")
        open_run(browser, "sick")
        browser.wait(lambda: browser.text("#live") in ("Live", "Ended"), "the stream lets the page in")
        asked = [url for url in browser.requests() if "/api/" in url]
        assert len(asked) >= 3
        assert all("token=a-secret" in url for url in asked)
        assert browser.complaints() == []
    finally:
        dashboard.stop()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_serious_accessibility_finding(browser, served, theme):
    open_list(browser, served.url, theme=theme)
    open_run(browser, "sick")
    assert browser.accessibility_findings() == []


def test_nothing_hangs_over_the_edge_at_360_pixels(browser, served):
    open_list(browser, served.url, width=360, height=740)
    open_run(browser, "sick")
    assert browser.js("return document.documentElement.scrollWidth") <= 360

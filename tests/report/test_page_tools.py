"""What the page offers beyond the map: the first screen, links to curves, marks, axes, the model, taking along."""

import csv
import json
import re
import time

import pytest
import torch
from report_runs import BAD_STEP, sick_run
from test_marks import EPOCH, eventful_run
from torch import nn

import gradient_flow as gf
from browser import browser  # noqa: F401 (a fixture)
from gradient_flow.report.data import page_data
from gradient_flow.report.write import write_report

# ruff: noqa: F811 (the fixture's name is that of its import)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tools")


@pytest.fixture(scope="module")
def sick(folder):
    return sick_run(folder / "sick")


@pytest.fixture(scope="module")
def eventful(folder):
    return eventful_run(folder / "eventful")


@pytest.fixture
def page(browser, sick):
    browser.open(write_report(sick).as_uri(), width=1440, height=900)
    yield browser
    assert browser.complaints() == []


@pytest.fixture
def events(browser, eventful):
    browser.open(write_report(eventful).as_uri(), width=1440, height=900)
    yield browser
    assert browser.complaints() == []


def choose(browser, control, value):
    browser.js(
        "const [id, value] = arguments; GF.el(id).value = value; GF.el(id).dispatchEvent(new Event('change'))",
        control,
        value,
    )
    browser.settle()


def is_on_screen(browser, selector):
    return browser.js(
        "const box = document.querySelector(arguments[0]).getBoundingClientRect();"
        "return box.top >= 0 && box.top < innerHeight - 100 && box.height > 0",
        selector,
    )


# --- the first screen ---


def test_sentence_and_map_are_on_the_first_screen_and_the_sentence_stands_once(page, sick):
    box = page.js("const b = GF.el('map-canvas').getBoundingClientRect(); return [b.top, b.bottom, scrollY]")
    assert box[2] == 0
    assert 0 < box[0] < box[1] <= 900
    message = page_data(sick)["verdict"]["issues"][0]["text"].replace("`", "")
    sentence = re.sub(r"\s+", " ", message).lower()
    shown = re.sub(r"\s+", " ", page.js("return document.querySelector('main').innerText")).lower()
    assert shown.count(sentence) == 1 + page.js(  # and in the list of what happened, where it was said at the end
        "return document.querySelector('#events-list').innerText.toLowerCase().includes(arguments[0]) ? 1 : 0", sentence
    )


def test_no_raw_internals_are_on_the_page(page):
    shown = page.js("return GF.el('issues').innerText + GF.el('verdict').innerText")
    assert not re.search(r"\b[A-Z]{4,}_[A-Z]+|\bTrue\b|\bFalse\b|\bnull\b|\bundefined\b|\[(CRITICAL|HIGH)\]", shown)
    assert page.js("return document.querySelectorAll('.bars .bar').length") > 0


# --- every issue leads to what shows it ---


def test_every_issue_has_both_links_and_each_leads_somewhere_on_screen(page, sick):
    issues = page_data(sick)["verdict"]["issues"]
    for issue in issues:
        for to in ("curve", "map"):
            page.js("scrollTo(0, 0)")
            page.click(f"[data-issue={issue['id']}][data-to={to}]")
            page.wait(
                lambda to=to: is_on_screen(page, "#map-canvas" if to == "map" else ".found"), f"the {to} is shown"
            )
            if issue["first_step"] is not None:
                assert page.js("return GF.state.mark") == issue["first_step"]


@pytest.mark.parametrize(
    ("curve", "shown"),
    [("depth", "#depth"), ("updates", "#updates"), ("norm", "#time-charts figure"), ("loss", "#time-charts figure")],
)
def test_a_curve_of_each_kind_is_found(page, curve, shown):
    page.js("GF.showOnCurve({ ...GF.state.data.verdict.issues[0], curve: arguments[0] })", curve)
    assert page.js("return document.querySelector('.found').matches(arguments[0])", shown)


def test_a_spike_is_shown_zoomed_in(browser, folder):
    long = eventful_run(folder / "long", steps=400)
    browser.open(write_report(long).as_uri(), width=1440)
    browser.js("GF.showOnCurve({ layer: null, layers: [], first_step: 60, curve: 'norm' })")
    low, high = browser.js("return GF.state.range")
    assert low <= 60 <= high
    assert high - low <= 80


def test_a_curve_of_looks_is_found_and_its_dots_are_the_looks(browser, folder):
    torch.manual_seed(0)
    stack = [part for _ in range(6) for part in (nn.Linear(16, 16), nn.Sigmoid())]
    model = nn.Sequential(*stack, nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gf.watch(model, optimizer, run=folder / "deep", looks=[3, 6, 12], budget=1.0):
        for _ in range(20):
            optimizer.zero_grad()
            model(torch.randn(64, 16)).square().mean().backward()
            optimizer.step()
    browser.open(write_report(folder / "deep").as_uri(), width=1440)
    spec = "GF.insideChart(arguments[0]).spec"
    assert browser.js(f"return {spec}.x", "gain") == [3, 6, 12]
    assert browser.js(f"return {spec}.lines.map(line => line.points)", "gain") == [True]
    assert browser.js(f"return {spec}.yLabel", "slope") == "share of the steepest"
    assert "3 looks, at step 3, 6, 12." in browser.text("#inside-count")
    browser.js("GF.showOnCurve({ ...GF.state.data.verdict.issues[0], curve: 'slope' })")
    assert browser.js("return document.querySelector('.found') === GF.insideChart('slope').figure")
    assert browser.complaints() == []


def test_without_looks_the_section_says_what_to_do(events, browser, folder):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gf.watch(model, optimizer, run=folder / "blind", looks=False):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    browser.open(write_report(folder / "blind").as_uri())
    assert browser.find("#inside-empty").is_displayed()
    assert "looks=False" in browser.text("#inside-empty")


# --- marks and axes ---


def test_marks_are_explained_and_can_be_switched_off(events):
    keys = {re.sub(r"[\s\d]+$", "", key.text).strip() for key in events.all("#time-marks button")}
    assert keys == {
        "learning rate changed",
        "a layer's gradient became exactly zero",
        "spike of the norm",
        "clipped",
        "look inside the model",
        "new epoch",
    }
    before = events.js("return GF.marksShown().length")
    events.js("[...document.querySelectorAll('#time-marks button')].find(b => /epoch/.test(b.textContent)).click()")
    assert events.js("return GF.marksShown().length") == before - 3


def test_the_cursor_names_the_mark_under_it(events):
    text = events.js(
        "const chart = GF.chartOf('norm'); chart.point(41); const text = chart.caption.textContent;"
        "chart.point(null); return text"
    )
    assert "The learning rate was raised" in text


def test_marks_are_drawn_where_they_happened(events):
    """The line of the rate's change is a column of its colour, at the pixel of its step."""
    found = events.js(
        """const chart = GF.chartOf("loss"), { plot } = chart, { ctx } = plot;
        chart.figure.scrollIntoView();
        const x = Math.round(plot.valToPos(GF.axis.to(41), "x", true)), { top, height } = plot.bbox;
        const wanted = GF.colour("run4").match(/[0-9a-f]{2}/gi).map(text => parseInt(text, 16));
        const copy = document.createElement("canvas"); // the page's own canvas is not made for being read
        [copy.width, copy.height] = [ctx.canvas.width, ctx.canvas.height];
        const context = copy.getContext("2d", { willReadFrequently: true });
        context.drawImage(ctx.canvas, 0, 0);
        const column = at => context.getImageData(at, top, 1, height).data;
        const count = at => { const data = column(at); let n = 0;
          for (let i = 0; i < data.length; i += 4)
            n += wanted.every((value, c) => Math.abs(data[i + c] - value) < 90) && data[i + 3] > 60 ? 1 : 0;
          return n / height; };
        return [Math.max(count(x - 1), count(x)), count(x + 12)]"""
    )
    assert found[0] > 0.8
    assert found[1] < 0.2


def test_every_chart_has_titles_on_both_axes_and_more_than_one_tick(events):
    charts = events.js(
        """return [...GF.charts].filter(chart => chart.plot).map(chart => [chart.title,
        chart.plot.axes.map(axis => axis.label), chart.plot.axes.map(axis => (axis._splits || []).length)])"""
    )
    assert len(charts) > 8
    for title, labels, ticks in charts:
        assert all(labels), title
        assert min(ticks) > 1, (title, ticks)


@pytest.mark.parametrize(("kind", "value"), [("step", 51), ("epoch", 2), ("time", None)])
def test_the_axis_is_step_epoch_or_time(events, eventful, kind, value):
    choose(events, "time-x", kind)
    if value is None:
        series = page_data(eventful)["series"]
        value = series["time"][series["step"].index(51)]
    assert events.js("return GF.axis.to(51)") == pytest.approx(value, abs=1e-6 if kind != "epoch" else 1)
    assert events.js("return GF.axis.from(GF.axis.to(40))") == pytest.approx(40, abs=1 if kind != "epoch" else EPOCH)
    label = {"step": "step", "epoch": "epoch", "time": "time since the start"}[kind]
    assert events.js("return GF.chartOf('norm').plot.axes[0].label") == label
    shown = events.js("return GF.chartOf('norm').plot.data[0]")
    assert shown == sorted(shown)


def test_scale_and_smoothing_change_the_curves_and_keep_what_was_recorded(events, eventful):
    choose(events, "time-scale", "linear")
    assert events.js("return GF.chartOf('norm').spec.log") is False
    choose(events, "time-scale", "log")
    assert events.js("return GF.chartOf('loss').spec.log") is True
    choose(events, "time-smooth", "0.9")
    faint, smooth = events.js("return GF.chartOf('loss').spec.lines.map(line => [...line.values])")
    recorded = page_data(eventful)["series"]["lines"]["loss"]["max"]
    assert faint == pytest.approx(recorded)
    mean = total = 0.0
    for value, shown in zip(recorded, smooth, strict=True):  # an exponential mean, corrected for its start
        mean, total = 0.9 * mean + 0.1 * value, 0.9 * total + 0.1
        assert shown == pytest.approx(mean / total, rel=1e-9)
    choose(events, "time-smooth", "0")
    assert len(events.js("return GF.chartOf('loss').spec.lines")) == 1


def test_the_depth_profile_names_its_layers(page, sick):
    names = page_data(sick)["layers"]["names"]
    shown = page.js("const plot = [...GF.charts].find(c => c.spec && c.spec.xNames).plot; return plot.axes[0]._values")
    assert [name for name in shown if name in names] == shown
    assert len(shown) == len(names)


# --- the model ---


def test_the_model_is_a_tree_coloured_by_health(page, sick):
    data = page_data(sick)
    assert page.js("return document.querySelectorAll('#model-tree > li').length") == 9
    worst = page.js("return document.querySelector('#model-tree > li .health').dataset.level")
    assert worst in {issue["severity"].lower() for issue in data["verdict"]["issues"]}
    page.js("document.querySelectorAll('#model-tree details').forEach(each => (each.open = true))")
    page.wait(lambda: page.all("#model-tree li li button"), "the tensors are listed")
    page.click("#model-tree li li button")
    assert page.js("return GF.state.layer") == "0.weight"


def test_a_thousand_tensors_open_as_a_row_per_block(browser, folder):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(2), nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            return x + self.down(self.up(self.norm(x)))

    class Net(nn.Module):
        def __init__(self, blocks):
            super().__init__()
            self.embed, self.head = nn.Linear(2, 2), nn.Linear(2, 1)
            self.layers = nn.ModuleList(Block() for _ in range(blocks))

        def forward(self, x):
            x = self.embed(x)
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    for blocks in (170, 340):
        model = Net(blocks)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        with gf.watch(model, optimizer, run=folder / f"wide{blocks}", looks=False, layers_every=1):
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.randn(4, 2)).sum().backward()
                optimizer.step()
        browser.open(write_report(folder / f"wide{blocks}").as_uri(), width=1440)
        assert browser.js("return GF.state.data.layers.rows") == 6 * blocks + 4
        rows = browser.js("return GF.map.list.map(entry => entry.name)")
        assert [name for name in rows if re.fullmatch(r"layers\.\d+", name)] == [f"layers.{i}" for i in range(blocks)]
        assert len(rows) < 2 * blocks


# --- taking it along ---


def test_the_verdict_as_markdown_says_it_once_and_escapes_what_markdown_obeys(page, sick):
    text = page.js("return GF.markdown(GF.state.data)")
    verdict = page_data(sick)["verdict"]
    assert text.startswith("**")
    for issue in verdict["issues"]:
        assert f"### {issue['severity']}: " in text
        for advice in issue["advice"]:
            assert advice["text"].split("`")[0].split("_")[0].strip() in text
    hostile = page.js(
        "return GF.markdown({run: {name: 'a`b', status: 'ok', first_step: 1, last_step: 2}, verdict:"
        "{sentence: '# [x](y) <b> `a_b`', issues: []}})"
    )
    assert hostile.startswith(r"**\# \[x\](y) \<b\> `a_b`**")


def test_curves_and_map_are_downloaded(page, sick, tmp_path):
    page.driver.execute_cdp_cmd("Page.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})

    def downloaded(button, name):
        page.js("document.querySelector(arguments[0]).click()", button)
        page.wait(lambda: (tmp_path / name).exists(), f"{name} is there")
        time.sleep(0.1)
        return tmp_path / name

    with downloaded("#time-csv", "sick-curves.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    series = page_data(sick)["series"]
    assert [int(row["step"]) for row in rows] == series["step"]
    assert [float(row["loss"]) for row in rows] == series["lines"]["loss"]["max"]
    assert rows[BAD_STEP - 1]["norm"] == ""
    with downloaded("#map-csv", "sick-norm.csv").open(newline="") as file:
        table = list(csv.reader(file))
    assert [row[0] for row in table[1:]] == page_data(sick)["layers"]["names"]
    for button, name in (("#map-png", "sick-map.png"), ("#time-charts .save", "sick-Gradient-norm.png")):
        picture = downloaded(button, name).read_bytes()
        assert picture.startswith(b"\x89PNG")
        assert len(picture) > 2000


def test_a_link_leads_back_to_the_same_place(page, sick):
    page.js("GF.selectLayer('4.weight', 20); GF.setRange([10, 40], null)")
    link = page.js("return location.href.replace(/#.*/, '') + GF.placeHash()")
    page.open(link, width=1440, height=900)
    assert page.js("return [GF.state.layer, GF.state.mark, GF.state.range]") == ["4.weight", 20, [10, 40]]
    assert page.text("#depth-value") == "step 20"
    page.open(f"{link.partition('#')[0]}#layer=no.such.layer&step=x&steps=9-1", width=1440)
    assert page.js("return GF.state.range") is None


def test_the_page_data_is_strict_json(eventful):
    data = page_data(eventful)
    assert json.loads(json.dumps(data, allow_nan=False))["marks"] == data["marks"]


def test_an_issue_in_a_module_without_weights_has_its_place_in_model_and_map(browser, folder):
    class Root(nn.Module):
        def forward(self, x):
            return x.sqrt()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Root(), nn.Linear(4, 1))
    with torch.no_grad():
        model[0].weight.fill_(1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    origin = {"found": True, "message": "`sqrt` in `1` made NaN.", "operator": "sqrt", "module": "1", "why": "Below 0."}
    with gf.watch(model, optimizer, run=folder / "root", layers_every=1, looks=False) as flow:
        for step in range(1, 21):
            optimizer.zero_grad()
            model(torch.ones(2, 4) * (-9 if step == 20 else 1)).sum().backward()
            optimizer.step()
        flow.add_event("forensics", step=20, origin=origin)
    browser.open(write_report(folder / "root").as_uri(), width=1440)
    assert browser.text("#model-tree > li:first-child").startswith("1 no weights, critical")
    assert "without weights" in browser.text("#model-count")
    browser.click("#issues [data-to=map]")
    assert browser.js("return GF.map.highlight.rows.length") == 3  # the last bias has a gradient whatever the values
    assert browser.js("return GF.state.mark") == 20
    assert browser.complaints() == []

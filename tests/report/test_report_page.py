"""The page in a real browser: it loads alone, says what the data says, every control works, names do no harm."""

import base64
import hashlib
import json
import re

import numpy as np
import pytest
from report_runs import BAD_STEP, HOSTILE, empty_run, hostile_run, sick_run, wide_run
from selenium.webdriver import ActionChains, Keys

from browser import browser  # noqa: F401 (a fixture)
from gradient_flow.diagnosis.issue import RULE_SET
from gradient_flow.record.run import load_run
from gradient_flow.report.data import matrix_of, page_data
from gradient_flow.report.headline import IN_WORK
from gradient_flow.report.html import render_page
from gradient_flow.report.write import write_report

# ruff: noqa: F811 (the fixture's name is that of its import)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def sick(folder):
    return sick_run(folder / "sick")


@pytest.fixture(scope="module")
def data(sick):
    return page_data(sick)


@pytest.fixture(scope="module")
def sick_page(sick):
    return write_report(sick).as_uri()


@pytest.fixture(scope="module")
def hostile_page(folder):
    return write_report(hostile_run(folder / "<b onclick=alert(2)>run<")).as_uri()


@pytest.fixture(scope="module")
def wide_page(folder):
    return write_report(wide_run(folder / "wide")).as_uri()


@pytest.fixture(scope="module")
def empty_page(folder):
    return write_report(empty_run(folder / "empty")).as_uri()


@pytest.fixture
def page(browser, sick_page):
    browser.open(sick_page)
    yield browser
    assert browser.complaints() == []


def view(browser):
    """Rows and steps that the map shows."""
    return browser.js("return [GF.mapView.y0, GF.mapView.y1, GF.mapView.x0, GF.mapView.x1]")


def place_on_map(browser, row, column):
    """Where a cell of the map is, from the canvas's centre, as the pointer needs it."""
    return browser.js(
        """const [row, column] = arguments, l = GF.map.layout, v = GF.mapView;
        const { starts, ends } = GF.state.data.layers.edges;
        const box = GF.el("map-canvas").getBoundingClientRect(), step = (starts[column] + ends[column]) / 2;
        const x = l.gutter + (step - v.x0) / (v.x1 - v.x0) * l.plotWidth, y = l.top + (row + 0.5 - v.y0) * l.rowHeight;
        return [Math.round(x - box.width / 2), Math.round(y - box.height / 2)]""",
        row,
        column,
    )


def point_at(browser, row, column):
    canvas = browser.find("#map-canvas")
    browser.js("arguments[0].scrollIntoView({block: 'center'})", canvas)
    x, y = place_on_map(browser, row, column)
    ActionChains(browser.driver).move_to_element_with_offset(canvas, x, y).perform()
    browser.settle()


def drag_on_map(browser, start, end):
    canvas = browser.find("#map-canvas")
    browser.js("arguments[0].scrollIntoView({block: 'center'})", canvas)
    (x0, y0), (x1, y1) = place_on_map(browser, *start), place_on_map(browser, *end)
    actions = ActionChains(browser.driver).move_to_element_with_offset(canvas, x0, y0).click_and_hold()
    actions.move_by_offset((x1 - x0) // 2, (y1 - y0) // 2).move_by_offset(
        x1 - x0 - (x1 - x0) // 2, y1 - y0 - (y1 - y0) // 2
    ).release().perform()
    browser.settle()


def press(browser, *keys):
    browser.find("#map-canvas").send_keys(*keys)
    browser.settle()


def pixels_of(browser, colour):
    """How many pixels of the map have the colour of that name."""
    return browser.js(
        """const { gutter, top, plotWidth, plotHeight } = GF.map.layout, wanted = GF.packedColour(arguments[0]);
        const copy = document.createElement("canvas"); // the page's own canvas is not made for being read
        [copy.width, copy.height] = [plotWidth, plotHeight];
        const context = copy.getContext("2d", { willReadFrequently: true });
        context.drawImage(GF.el("map-canvas"), -gutter, -top);
        const pixels = new Uint32Array(context.getImageData(0, 0, plotWidth, plotHeight).data.buffer);
        return pixels.reduce((count, pixel) => count + (pixel === wanted), 0)""",
        colour,
    )


# --- the file ---


def test_the_page_is_complete_small_and_allows_only_its_own_script():
    page = render_page(None)
    assert len(page.encode()) < 1_500_000
    assert re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=[\"'](?!data:)", page) == []
    script = re.search(r"<script>(.*)</script>", page, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    assert "unsafe" not in page.split("</head>")[0].split("<style>")[0]
    assert "{{" not in re.sub(r"<script>.*</script>", "", page, flags=re.DOTALL)


def test_names_cannot_leave_the_data(folder, data):
    hostile = {**data, "run": {**data["run"], "name": "</title><script>hacked=1</script>{{script}}"}}
    page = render_page(hostile)
    assert page.count("<script") == 2
    assert "hacked=1</script>" not in page
    assert render_page(hostile) == page


def test_the_same_run_gives_the_same_file(data):
    assert render_page(data) == render_page(data)


# --- loading ---


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_loads_alone_and_without_complaint(browser, sick_page, theme):
    browser.open(sick_page, theme=theme)
    assert browser.complaints() == []
    assert [url for url in browser.requests() if not url.startswith("data:")] == [sick_page]
    assert browser.js("return document.documentElement.dataset.theme") == theme


def test_the_policy_refuses_foreign_scripts_and_connections(browser, sick_page):
    browser.open(sick_page)
    browser.js(
        "const s = document.createElement('script'); s.textContent = 'window.foreign = 1'; document.body.append(s)"
    )
    assert browser.js("return window.foreign") is None
    refused = browser.driver.execute_async_script(
        "fetch('http://127.0.0.1:9/').then(() => arguments[0](false), () => arguments[0](true))"
    )
    assert refused
    assert any("Content Security Policy" in message for message in browser.complaints())


def test_it_says_what_the_data_says(page, data):
    sentence = data["verdict"]["sentence"].replace("`", "")
    assert (
        "".join(filter(str.isalnum, page.text("#verdict-title"))).lower()
        == "".join(filter(str.isalnum, sentence)).lower()
    )
    assert page.text("#run-name") == "sick"
    assert page.text("#run-status") == data["run"]["status"]
    cards = page.all(".issue")
    assert len(cards) == len(data["verdict"]["issues"]) > 0
    for card, issue in zip(cards, data["verdict"]["issues"], strict=True):
        text = page.js("return arguments[0].textContent", card)
        assert issue["severity"].lower() in text
        assert issue["title"].replace("`", "") in text
        assert all(advice["text"].replace("`", "") in text for advice in issue["advice"])
        assert all(name.replace("_", " ") in text for name, _ in issue["evidence"])
    assert data["truth"]["text"] == page.text("#truth")
    assert all(name in page.text("#about-body") for name in (*data["run"]["settings"], *data["run"]["versions"]))


def test_what_other_rules_said_and_where_a_nan_was_made_are_shown(browser, sick, folder):
    target = folder / "told"
    target.mkdir(exist_ok=True)
    origin = {"found": True, "message": "`sqrt` in `7` made NaN.", "operator": "sqrt", "module": "7", "why": "Below 0."}
    origin |= {"file": "/home/me/train.py", "line": 12, "code": "x.sqrt() / 0.00001234", "function": "forward"}
    told = json.dumps({"kind": "forensics", "step": BAD_STEP, "origin": origin}) + "\n"
    data = (sick / "run.jsonl").read_bytes().replace(b'"rule_set":%d' % RULE_SET, b'"rule_set":1')
    (target / "run.jsonl").write_bytes(data + told.encode())
    browser.open(write_report(target).as_uri())
    card = browser.text(".issue")
    assert all(words in card for words in ("Operationsqrt", "Linetrain.py:12", "Codex.sqrt() / 0.00001234"))
    assert browser.find("#then").is_displayed()
    assert browser.text("#then").startswith("At the time, rule set 1 said: NUMERICAL")
    assert "train.py:12" in browser.text("#events-list")
    assert browser.complaints() == []


def test_without_such_a_verdict_the_line_is_not_there(page):
    assert not page.find("#then").is_displayed()


# --- the map ---


def test_hovering_shows_the_recorded_values(page, sick):
    run = load_run(sick)
    row, column = 6, 20
    step = run.table_steps[column]
    point_at(page, row, column)
    tip = page.find("#map-tip")
    assert tip.is_displayed()
    table = run.table(step)
    shown = dict(re.findall(r"(norm|mean|std)\s+(\S+)", tip.text.replace("−", "-").replace("\n", " ")))
    assert table.names[row] in tip.text
    assert f"step {step}" in tip.text
    for name in ("norm", "mean", "std"):
        assert float(shown[name]) == pytest.approx(float(getattr(table, name)[row]), rel=6e-3)
    assert page.js("return GF.map.cursor.column") == column


def test_non_finite_cells_are_marked_and_only_those(page, data):
    bad = matrix_of(data["layers"], "nonfinite") > 0
    assert bad.any()
    page.js("GF.map.cursor = GF.map.highlight = null; GF.tell('range')")
    page.settle()
    columns, rows = bad.shape[1], bad.shape[0]
    layout = page.js("return [GF.map.layout.plotWidth, GF.map.layout.plotHeight]")
    expected = bad.sum() / (rows * columns) * layout[0] * layout[1]
    assert pixels_of(page, "bad") == pytest.approx(expected, rel=0.25)
    assert BAD_STEP in np.asarray(data["layers"]["step"])[bad.any(axis=0)]


def test_clipped_steps_have_a_lane(page, data):
    assert any(data["series"]["clipped"])
    assert "clipped" in page.js("return GF.lanesOf(GF.state.data).map(lane => lane[1])")
    assert "clipped step" in page.text("#map-legend")


def test_the_map_zooms_by_drag_wheel_keys_and_buttons_and_resets(page):
    whole = view(page)
    drag_on_map(page, (2, 10), (8, 30))
    rows, steps = view(page)[:2], view(page)[2:]
    assert rows == [2, 9]
    assert 9 < steps[0] < 13
    assert 29 < steps[1] < 33
    page.click("#map-reset")
    assert view(page) == whole

    drag_on_map(page, (4, 10), (4, 30))  # along one axis: the rows stay
    assert view(page)[:2] == whole[:2]
    assert view(page)[3] - view(page)[2] < 25
    press(page, Keys.ESCAPE)
    assert view(page) == whole

    press(page, "+")
    assert view(page)[3] - view(page)[2] == pytest.approx(0.7 * (whole[3] - whole[2]))
    press(page, "0")
    assert view(page) == whole

    page.click("#map-in")
    page.click("#map-in")
    smaller = view(page)[3] - view(page)[2]
    page.click("#map-out")
    assert smaller < view(page)[3] - view(page)[2] < whole[3] - whole[2]
    page.click("#map-reset")

    canvas = page.find("#map-canvas")
    page.js("arguments[0].focus()", canvas)
    page.js(
        "arguments[0].dispatchEvent(new WheelEvent('wheel', {deltaY: -1, clientX: innerWidth / 2, cancelable: true}))",
        canvas,
    )
    page.settle()
    assert view(page)[3] - view(page)[2] == pytest.approx(0.8 * (whole[3] - whole[2]))
    page.js("document.activeElement.blur()")
    before = view(page)
    page.js("arguments[0].dispatchEvent(new WheelEvent('wheel', {deltaY: -100, cancelable: true}))", canvas)
    assert view(page) == before  # without focus the wheel belongs to the page


def test_zoom_and_cursor_are_shared_with_the_charts(page):
    drag_on_map(page, (0, 10), (0, 30))
    steps = view(page)[2:]
    limits = page.js(
        "return [...GF.charts].filter(c => c.shared && c.plot).map(c => [c.plot.scales.x.min, c.plot.scales.x.max])"
    )
    assert len(limits) > 8
    assert all(limit == pytest.approx(steps) for limit in limits)
    page.click("#map-reset")
    over = page.find("#time-charts .u-over")
    page.js("arguments[0].scrollIntoView({block: 'center'})", over)
    ActionChains(page.driver).move_to_element(over).perform()
    page.settle()
    shown = page.js(
        """return [...document.querySelectorAll("#time-charts figcaption")]
            .map(caption => (/step (\\d+)/.exec(caption.textContent) || [])[1])"""
    )
    assert len(set(shown)) == 1
    assert page.js("return GF.map.other") == int(shown[0])
    drag = (
        ActionChains(page.driver)
        .move_to_element_with_offset(over, -200, 0)
        .click_and_hold()
        .move_by_offset(200, 0)
        .release()
    )
    drag.perform()
    page.settle()
    assert view(page)[3] - view(page)[2] < 30


def test_the_map_is_used_with_keys_alone(page, data):
    press(page, Keys.HOME, Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    said = page.text("#map-say")
    assert said.startswith(data["layers"]["names"][2])
    assert f"step {data['layers']['step'][1]}" in said
    press(page, Keys.ENTER)
    assert page.js("return GF.state.layer") == data["layers"]["names"][2]
    assert page.js("return document.activeElement.id") == "map-canvas"


def test_clicking_a_cell_opens_its_layer(page, data):
    point_at(page, 5, 12)
    ActionChains(page.driver).click().perform()
    page.settle()
    assert page.js("return GF.state.layer") == data["layers"]["names"][5]
    assert page.find("#layer-pick").get_attribute("value") == data["layers"]["names"][5]
    assert page.text("#depth-value") == f"step {data['layers']['step'][12]}"


def test_search_leaves_what_matches(page, data):
    matching = [name for name in data["layers"]["names"] if "bias" in name]
    page.find("#map-search").send_keys("BIAS")
    page.settle()
    assert page.js("return GF.map.list.map(row => row.name)") == matching
    page.click("#layer-table > summary")
    assert len(page.all("#layer-table tbody tr")) == len(matching)
    page.find("#map-search").send_keys(Keys.CONTROL, "a")
    page.find("#map-search").send_keys("nowhere")
    page.settle()
    assert "No layer" in page.text("#map-count")
    page.js("const s = GF.el('map-search'); s.value = ''; s.dispatchEvent(new Event('input'))")
    assert page.js("return GF.map.list.length") == len(data["layers"]["names"])


def test_the_table_of_layers_sorts_and_opens(page, data):
    norms = matrix_of(data["layers"], "norm")
    page.click("#layer-table > summary")
    page.click("#layer-table thead th:nth-child(4) button")
    first = page.text("#layer-table tbody tr th")
    assert first == data["layers"]["names"][int(np.nanargmax(np.nanmax(norms, axis=1)))]
    page.click("#layer-table thead th:nth-child(4) button")
    assert page.text("#layer-table tbody tr th") == data["layers"]["names"][int(np.nanargmin(np.nanmax(norms, axis=1)))]
    page.click("#layer-table tbody tr:nth-child(2) button")
    assert page.js("return GF.state.layer") == page.text("#layer-table tbody tr:nth-child(2) th")


@pytest.mark.parametrize("value", ["update_ratio", "zero_fraction"])
def test_other_values_can_colour_the_map(page, value):
    before = page.js("return GF.el('map-canvas').toDataURL()")
    page.js("const s = GF.el('map-value'); s.value = arguments[0]; s.dispatchEvent(new Event('change'))", value)
    page.settle()
    assert page.js("return GF.el('map-canvas').toDataURL()") != before
    assert value.split("_")[0].replace("zero", "zeros") in page.text("#map-legend")


# --- from the issue to its place ---


def test_an_issue_leads_to_its_place(page, data):
    issues = data["verdict"]["issues"]
    found = next(
        issue for issue in issues if issue["first_step"] is not None and issue["layer"] in data["layers"]["names"]
    )
    page.click(f"[data-issue={found['id']}][data-to=map]")
    page.settle()
    assert page.js("return GF.state.layer") == found["layer"]
    assert page.js("return GF.map.highlight.rows.length") >= 1
    row = data["layers"]["names"].index(found["layer"])
    assert row in page.js("return GF.map.highlight.rows")
    assert page.js("return GF.state.mark") == found["first_step"]
    assert page.text("#depth-value") == f"step {found['first_step']}"
    assert f"marked: step {found['first_step']}" in page.text("#layer-facts")
    top = page.js("return GF.el('map').getBoundingClientRect().top")
    assert -200 < top < 300
    assert page.js("return document.activeElement.id") == "map-canvas"
    assert page.find("#map-tip").is_displayed()


# --- the other parts ---


def test_an_issue_of_the_whole_model_leads_to_the_column_of_its_step(page, data):
    page.click(f"[data-issue={data['verdict']['issues'][0]['id']}][data-to=map]")
    step = data["layers"]["first"][5]
    page.js("GF.setRange([1, 4], null)")
    page.js("GF.jump({ layer: null, layers: [], first_step: arguments[0], severity: 'LOW' })", step)
    found = page.js("return [GF.map.highlight.rows.length, GF.map.highlight.first, GF.map.cursor, GF.state.range]")
    assert found == [len(data["layers"]["names"]), step, None, None]


def test_the_theme_switches_and_is_remembered(browser, sick_page):
    browser.open(sick_page, theme="light")
    light = browser.js("return getComputedStyle(document.body).backgroundColor")
    browser.click("#theme")
    assert browser.js("return document.documentElement.dataset.theme") == "dark"
    assert browser.js("return getComputedStyle(document.body).backgroundColor") != light
    browser.open(sick_page, theme="light")
    assert browser.js("return document.documentElement.dataset.theme") == "dark"
    browser.js("localStorage.clear()")
    browser.open(sick_page, theme="light")
    assert browser.js("return document.documentElement.dataset.theme") == "light"
    assert browser.complaints() == []


def test_the_profile_follows_the_slider_and_plays(page, data):
    norms, weights = matrix_of(data["layers"], "norm"), [len(shape) > 1 for shape in data["layers"]["shapes"]]
    slider = page.find("#depth-step")
    page.js("arguments[0].scrollIntoView({block: 'center'})", slider)
    slider.send_keys(Keys.HOME)
    assert page.text("#depth-value") == "step 1"
    slider.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert page.text("#depth-value") == "step 3"
    drawn = page.js("return [...GF.charts].find(c => c.figure.parentNode.id === 'depth-chart').plot.data[1]")
    expected = [float(norm) if weight else None for norm, weight in zip(norms[:, 2], weights, strict=True)]
    assert drawn == [value if value is None else pytest.approx(value) for value in expected]
    page.click("#depth-play")
    page.wait(lambda: int(page.text("#depth-value").split()[1]) > 5, "the profile plays")
    page.click("#depth-play")
    stopped = page.text("#depth-value")
    assert page.find("#depth-play").get_attribute("aria-pressed") == "false"
    page.settle()
    assert page.text("#depth-value") == stopped


def test_the_layer_can_be_picked_and_shows_every_statistic(page, data):
    names = data["layers"]["names"]
    page.js("const p = GF.el('layer-pick'); p.value = arguments[0]; p.dispatchEvent(new Event('input'))", names[3])
    assert page.js("return GF.state.layer") == names[3]
    titles = [page.js("return arguments[0].textContent", title) for title in page.all("#layer-charts .title")]
    assert titles == [
        "Norm",
        "Update ratio",
        "Extremes",
        "Mean",
        "Standard deviation",
        "Share of zeros",
        "NaN and Inf elements",
    ]
    for statistic, title in (
        ("mean", "Mean"),
        ("nonfinite", "NaN and Inf elements"),
        ("zero_fraction", "Share of zeros"),
    ):
        drawn = page.js("return [...GF.charts].find(c => c.title === arguments[0]).plot.data[1]", title)
        recorded = [
            None if np.isnan(value) else pytest.approx(float(value))
            for value in matrix_of(data["layers"], statistic)[3]
        ]
        assert drawn == recorded
    page.click("#layer-next")
    assert page.js("return GF.state.layer") == names[4]
    page.click("#layer-previous")
    assert page.js("return GF.state.layer") == names[3]


def test_the_curves_are_those_of_the_run(page, data, sick):
    titles = [page.js("return arguments[0].textContent", title) for title in page.all("#time-charts .title")]
    assert titles == ["Gradient norm", "Loss", "Learning rate"]
    norm = page.js("return [...GF.charts].find(c => c.title === 'Gradient norm' && c.shared).plot.data[1]")
    recorded = load_run(sick).series("norm")
    assert norm == [None if not np.isfinite(value) else pytest.approx(value) for value in recorded]
    assert "clip threshold" in page.text("#time-charts figcaption")
    chip = next(chip for chip in page.all("#time-more button") if chip.text == "accuracy")
    page.js("arguments[0].click()", chip)
    assert "accuracy" in [
        page.js("return arguments[0].textContent", title) for title in page.all("#time-charts .title")
    ]
    page.js("arguments[0].click()", chip)
    assert len(page.all("#time-charts figure")) == 3
    page.click("#time-table > summary")
    assert len(page.all("#time-table tbody tr")) == len(data["series"]["lines"])


def test_update_ratios_are_shown_against_the_healthy_band(page, data):
    ratios = matrix_of(data["layers"], "update_ratio")[[len(shape) > 1 for shape in data["layers"]["shapes"]]]
    chart = "[...GF.charts].find(c => c.figure.parentNode.id === 'updates-chart')"
    zones = page.js(f"return {chart}.spec.zones.map(z => [z.low, z.high])")
    assert zones == [[1e-4, 1e-2], [1e-3, 1e-3]]
    highest = page.js(f"return {chart}.plot.data[1]")
    assert highest == pytest.approx(
        [max(1e-9, float(np.nanmax(column))) for column in ratios.T]
    )  # below 1e-9: at the edge
    outside = sum((np.isfinite(row).any() and not 1e-4 <= row[np.isfinite(row)][-1] <= 1e-2) for row in ratios)
    assert str(outside) in page.text("#updates-outside") if outside else "every weight" in page.text("#updates-outside")


def test_events_can_be_filtered(page, data):
    assert len(page.all("#events-list tr")) == len(data["events"])
    kinds = {event["kind"] for event in data["events"]}
    assert {"nonfinite", "clip"} <= kinds
    chips = {chip.text.split()[0]: chip for chip in page.all("#events-kinds button")}
    assert set(chips) == kinds
    page.js("arguments[0].click()", chips["clip"])
    left = [event for event in data["events"] if event["kind"] != "clip"]
    assert len(page.all("#events-list tr")) == len(left) < len(data["events"])
    assert chips["clip"].get_attribute("aria-pressed") == "false"
    page.js("arguments[0].click()", chips["clip"])
    page.find("#events-filter").send_keys("nan")
    matching = [
        event
        for event in data["events"]
        if "nan" in f"{event['step']} {event['kind']} {event['text']} {' '.join(event['layers'])}".lower()
    ]
    assert len(page.all("#events-list tr")) == len(matching) > 0


def test_paper_shows_no_controls_and_is_white(browser, sick_page):
    browser.open(sick_page, theme="dark")
    browser.driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"media": "print", "features": [{"name": "prefers-color-scheme", "value": "dark"}]},
    )
    assert browser.js("return getComputedStyle(document.querySelector('.controls')).display") == "none"
    browser.js("dispatchEvent(new Event('beforeprint'))")
    assert browser.js("return document.documentElement.dataset.theme") == "light"
    browser.js("dispatchEvent(new Event('afterprint'))")
    assert browser.js("return document.documentElement.dataset.theme") == "dark"
    pdf = base64.b64decode(browser.driver.execute_cdp_cmd("Page.printToPDF", {})["data"])
    assert pdf.startswith(b"%PDF")
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


# --- hard cases ---


def test_hostile_names_are_text(browser, hostile_page):
    browser.open(hostile_page)
    assert browser.js("return GF.state.data.layers.names") == [f"tensors.{name}" for name in HOSTILE]
    for row in range(len(HOSTILE)):
        point_at(browser, row, 3)
        assert HOSTILE[row] in browser.text("#map-tip")
        browser.js("GF.selectLayer(arguments[0], 3)", f"tensors.{HOSTILE[row]}")
        assert HOSTILE[row] in browser.text("#layer-facts")
    browser.click("#layer-table > summary")
    for chip in browser.all("#time-more button"):
        browser.js("arguments[0].click()", chip)
    for card in browser.all(".issue .jump"):
        browser.js("arguments[0].click()", card)
    browser.settle()
    assert browser.js("return typeof hacked") == "undefined"
    assert browser.all("img, b[onclick], iframe") == []
    assert len(browser.all("script")) == 2
    assert "<b onclick=alert(2)>run<" in browser.text("#run-name")
    assert browser.complaints() == []
    assert [url for url in browser.requests() if not url.startswith(("data:", "file:"))] == []


def test_a_thousand_layers_are_grouped_searched_and_drawn(browser, wide_page):
    browser.open(wide_page)
    assert browser.js("return GF.state.data.layers.rows") == 1000
    assert browser.js("return GF.state.data.layers.columns") == 200
    assert browser.find("#map-group").is_selected()
    rows = browser.js("return GF.map.list.length")
    assert 12 <= rows <= 300
    assert pixels_of(browser, "bad") > 0  # one element of one tensor at one step, inside a folded module
    browser.click("#map-expand")
    assert browser.js("return GF.map.list.filter(row => row.leaf).length") == 1000
    assert pixels_of(browser, "bad") > 0
    browser.click("#map-collapse")
    assert browser.js("return GF.map.list.length") == 1
    press(browser, Keys.HOME, " ")
    assert browser.js("return GF.map.list.length") > 1
    browser.click("#map-group")
    assert browser.js("return GF.map.list.length") == 1000
    assert pixels_of(browser, "bad") > 0
    browser.find("#map-search").send_keys("blocks.77.")
    browser.settle()
    assert browser.js("return GF.map.list.map(row => row.name)") == [
        f"blocks.77.{part}.{kind}" for part in ("attention", "mlp") for kind in ("weight", "bias")
    ]
    assert browser.complaints() == []


def test_a_folded_module_has_the_norm_of_all_its_gradients(browser, wide_page, folder):
    browser.open(wide_page)
    browser.click("#map-collapse")
    total = load_run(folder / "wide").series("norm")
    shown = np.array(
        browser.js("return Array.from(GF.map.cells.values, v => Number.isFinite(v) ? v : null)"), dtype=float
    )
    finite = np.isfinite(total)
    assert shown[finite] == pytest.approx(total[finite], rel=1e-5)


def test_one_bad_step_stays_visible_on_a_narrow_screen(browser, wide_page):
    browser.open(wide_page, width=360, height=740)
    assert browser.js("return GF.map.layout.plotWidth < GF.state.data.layers.columns * 1.5")
    assert pixels_of(browser, "bad") > 0


def test_an_empty_run_has_kind_words(browser, empty_page):
    browser.open(empty_page)
    assert browser.text("#verdict-title")
    for part in ("map", "layer", "depth", "updates"):
        assert browser.find(f"#{part}-empty").is_displayed()
        assert not browser.find(f"#{part}-body").is_displayed()
        assert len(browser.text(f"#{part}-empty")) > 30
    assert "recorded" in browser.text("#issues")
    assert browser.complaints() == []


def test_a_page_without_data_says_what_to_do(browser, folder):
    path = folder / "no_data.html"
    path.write_text(render_page(None), encoding="utf-8")
    browser.open(path.as_uri(), ready=False)
    browser.wait(lambda: "gradient-flow serve" in browser.text("#problem"), "the page says that it has no data")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_no_serious_accessibility_finding(browser, sick_page, theme, width):
    browser.open(sick_page, theme=theme, width=width)
    browser.js("document.querySelectorAll('details').forEach(d => { d.open = true })")
    browser.settle()
    browser.click(".issue .jump[data-to=map]")
    assert browser.accessibility_findings() == []


def test_the_accessibility_check_can_fail(browser, sick_page):
    browser.open(sick_page)
    browser.js("GF.el('theme').textContent = ''; GF.el('theme').removeAttribute('aria-label')")
    assert any("button-name" in finding for finding in browser.accessibility_findings())


def test_the_empty_page_has_no_serious_accessibility_finding(browser, empty_page):
    browser.open(empty_page)
    assert browser.accessibility_findings() == []


@pytest.mark.parametrize("which", ["sick_page", "hostile_page", "wide_page", "empty_page"])
def test_nothing_hangs_over_the_edge_at_360_pixels(browser, which, request):
    browser.open(request.getfixturevalue(which), width=360, height=740)
    browser.js("document.querySelectorAll('details').forEach(d => { d.open = true })")
    browser.settle()
    assert browser.js("return document.documentElement.scrollWidth") <= 360


def test_focus_is_visible_and_the_first_stop_skips_to_the_verdict(page):
    ActionChains(page.driver).send_keys(Keys.TAB).perform()
    assert page.js("return document.activeElement.className") == "skip"
    assert page.js("return document.activeElement.getBoundingClientRect().left") >= 0
    ActionChains(page.driver).send_keys(Keys.ENTER).perform()
    assert page.js("return location.hash") == "#verdict"
    page.js("GF.el('map-reset').focus()")
    ActionChains(page.driver).send_keys(Keys.TAB).perform()
    style = page.js("const s = getComputedStyle(document.activeElement); return [s.outlineStyle, s.outlineWidth]")
    assert style[0] != "none"
    assert style[1] != "0px"


def test_a_pending_verdict_is_not_called_healthy(browser, data, tmp_path):
    page = tmp_path / "pending.html"
    page.write_text(render_page({**data, "verdict": IN_WORK}), encoding="utf-8")
    browser.open(page.as_uri())
    text = browser.js("return document.querySelector('main').innerText")
    assert "Verdict pending" in text
    assert "There is no verdict yet" in text
    assert "Not judged yet." in text
    assert "found anything to report" not in text

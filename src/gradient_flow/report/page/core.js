// What every part of the page stands on: elements, messages between parts, the state that they share.
"use strict";
const GF = {};
{
  GF.el = id => document.getElementById(id);

  // Names in a run are data: children given as strings become text nodes, and nothing here parses HTML.
  GF.h = (tag, attributes, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (name === "class") node.className = value;
      else node.setAttribute(name, value === true ? "" : String(value));
    }
    for (const child of children.flat()) {
      if (child === null || child === undefined) continue;
      node.append(child instanceof Node ? child : document.createTextNode(String(child)));
    }
    return node;
  };
  GF.fill = (node, ...children) => {
    node.replaceChildren(...children.flat().filter(child => child !== null && child !== undefined));
    return node;
  };

  const listeners = {};
  GF.on = (what, listener) => (listeners[what] = listeners[what] || []).push(listener);
  GF.tell = (what, value) => (listeners[what] || []).forEach(listener => listener(value));

  // The state shared by the charts and the map: the zoomed range of steps (null: all), the layer looked at, the
  // place jumped to.
  GF.state = { data: null, range: null, layer: null, mark: null, runId: null };
  GF.setRange = (range, from) => {
    const old = GF.state.range;
    if (old === range || (old && range && old[0] === range[0] && old[1] === range[1])) return;
    GF.state.range = range;
    GF.tell("range", from);
  };
  GF.selectLayer = (name, mark) => {
    GF.state.layer = name;
    GF.state.mark = mark === undefined ? GF.state.mark : mark;
    GF.tell("layer");
  };

  // Draw again only what changed: a list that is rebuilt under the reader's hands loses its focus.
  const shown = new WeakMap();
  GF.changed = (node, value) => {
    const text = JSON.stringify(value);
    if (shown.get(node) === text) return false;
    shown.set(node, text);
    return true;
  };

  GF.colour = name =>
    getComputedStyle(document.documentElement)
      .getPropertyValue("--" + name)
      .trim();
  GF.later = (milliseconds, action) => {
    let timer = 0;
    return (...values) => {
      clearTimeout(timer);
      timer = setTimeout(() => action(...values), milliseconds);
    };
  };
  GF.eachFrame = action => {
    let asked = false;
    return () => {
      if (asked) return;
      asked = true;
      requestAnimationFrame(() => {
        asked = false;
        action();
      });
    };
  };
  GF.scrollTo = node =>
    node.scrollIntoView({
      block: "start",
      behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth",
    });
}

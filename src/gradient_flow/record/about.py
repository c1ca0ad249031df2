"""What a run was: optimizers and their settings, precision, clipping, versions, commit, command line, `config=`.

`Run.about` is a plain mapping; it may arrive in parts, as optimizers join and a clip is seen. Here it is put together,
made into named facts, and compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gradient_flow.table.text import shorten

ABOUT: Final = "about"
"""The kind of line that describes a run."""
_PARTS: Final = ("amp", "clipping", "versions", "dtypes", "git", "config")
"""Mappings that a later line adds to."""
_WORDS: Final = {"foreach", "maximize", "capturable", "differentiable", "fused", "decoupled_weight_decay"}
"""Optimizer switches that only change speed, or that the class implies."""
_LONGEST: Final = 120
_MISSING: Final = "–"


def merged(about: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """A description with what a later line says: optimizers by their place, the rest by name.

    >>> merged({"seed": 1, "optimizers": [{"class": "SGD"}]}, {"optimizers": {"1": {"class": "Adam"}}})
    {'seed': 1, 'optimizers': [{'class': 'SGD'}, {'class': 'Adam'}]}
    """
    found = dict(about)
    for name, value in part.items():
        if name in ("kind", "step"):
            continue
        if name == "optimizers":
            found[name] = _with_optimizers(found.get(name), value)
        elif name in _PARTS and isinstance(value, Mapping):
            before = found.get(name)
            found[name] = {**(before if isinstance(before, Mapping) else {}), **value}
        else:
            found[name] = value
    return found


def _with_optimizers(known: Any, described_now: Any) -> list[Mapping[str, Any]]:
    if isinstance(described_now, list):
        return [each for each in described_now if isinstance(each, Mapping)]
    optimizers = list(known) if isinstance(known, list) else []
    for number, described in described_now.items() if isinstance(described_now, Mapping) else ():
        if not isinstance(described, Mapping) or not str(number).isdigit() or int(number) > len(optimizers):
            continue  # damaged
        optimizers[int(number) : int(number) + 1] = [described]
    return optimizers


def about_facts(about: Mapping[str, Any]) -> dict[str, Any]:
    """A description as named values, in the order they are shown.

    >>> about_facts({"optimizers": [{"class": "SGD", "groups": [{"lr": 0.1}]}], "config": {"data": {"size": 3}}})
    {'optimizer': 'SGD', 'lr': 0.1, 'config data/size': 3}
    """
    facts: dict[str, Any] = {}
    optimizers = [each for each in about.get("optimizers") or () if isinstance(each, Mapping)]
    for number, optimizer in enumerate(optimizers):
        label = "optimizer" if number == 0 else f"optimizer {number + 1}"
        prefix = "" if number == 0 else f"{label} "
        facts[label] = optimizer.get("class")
        facts |= {f"{prefix}{name}": value for name, value in _settings(optimizer).items()}
        if optimizer.get("scheduler"):
            facts[f"{prefix}schedule"] = optimizer["scheduler"]
    amp, clipping, git = (_mapping(about.get(name)) for name in ("amp", "clipping", "git"))
    facts |= {f"mixed precision {name}": value for name, value in amp.items()}
    facts |= {"clipping" if name == "by" else f"clipping {name}": value for name, value in clipping.items()}
    facts |= {name: about[name] for name in ("device", "seed") if name in about}
    facts |= {f"parameters in {name}": value for name, value in _mapping(about.get("dtypes")).items()}
    facts |= {"commit": git["commit"]} if "commit" in git else {}
    facts |= {"uncommitted changes": git["dirty"]} if "dirty" in git else {}
    facts |= {"command": about["command"]} if "command" in about else {}
    facts |= {f"version of {name}": value for name, value in _mapping(about.get("versions")).items()}
    return facts | {f"config {name}": value for name, value in _flat(_mapping(about.get("config")))}


def about_rows(about: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A description for a person: names and short texts."""
    facts = about_facts(about)
    rows: dict[str, str] = {}
    for number, optimizer in enumerate(about.get("optimizers") or ()):
        label = "optimizer" if number == 0 else f"optimizer {number + 1}"
        own = {name: value for name, value in _settings(optimizer).items() if value != 0 and not _is_dull(name, value)}
        words = ", ".join(f"{name} {shown(value)}" for name, value in own.items())
        rows[label] = f"{optimizer.get('class')}{f' ({words})' if words else ''}"
        if optimizer.get("scheduler"):
            rows["schedule" if number == 0 else f"{label} schedule"] = shown(optimizer["scheduler"])
    for label, part in (("mixed precision", "amp"), ("clipping", "clipping")):
        known = _mapping(about.get(part))
        words = ", ".join(shown(value) if name == "by" else f"{name} {shown(value)}" for name, value in known.items())
        if words:
            rows[label] = words
    for name in ("device", "seed"):
        if name in facts:
            rows[name] = shown(facts[name])
    dtypes, git, versions = (_mapping(about.get(name)) for name in ("dtypes", "git", "versions"))
    if dtypes:
        rows["parameters"] = ", ".join(f"{shown(count)} tensors in {name}" for name, count in dtypes.items())
    if "commit" in git:
        rows["commit"] = f"{str(git['commit'])[:12]}{', with uncommitted changes' if git.get('dirty') else ''}"
    if "command" in about:
        rows["command"] = shorten(str(about["command"]), 4 * _LONGEST)
    if versions:
        rows["versions"] = ", ".join(f"{name} {value}" for name, value in versions.items())
    rows |= {name: shown(value) for name, value in facts.items() if name.startswith("config ")}
    return list(rows.items())


def differences(first: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """What differs between two descriptions: `optimizer: AdamW → SGD`, `lr: 0.001 → 10`.

    Settings that only one of two optimizers of different classes has come with its class.
    """
    ours, theirs = about_facts(first), about_facts(other)
    another = {name for name in (*ours, *theirs) if name.startswith("optimizer") and ours.get(name) != theirs.get(name)}
    settings = {name for each in (first, other) for name in _names_of_settings(each)} if another else set()
    found = []
    for name in dict.fromkeys((*ours, *theirs)):
        one, two = ours.get(name), theirs.get(name)
        if one == two or (name in settings and (name not in ours or name not in theirs)):
            continue
        if _is_dull(name, one) and _is_dull(name, two):
            continue
        found.append(f"{name}: {shown(one)} → {shown(two)}")
    return found


def shown(value: Any) -> str:
    """A value in a few letters.

    >>> shown(1e-08), shown([0.9, 0.999]), shown(None), shown(10.0)
    ('1e-08', '(0.9, 0.999)', '–', '10')
    """
    if value is None:
        return _MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(shown(item) for item in value[:8])}{', …' if len(value) > 8 else ''})"
    return shorten(str(value), _LONGEST)


def _settings(optimizer: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of an optimizer by name; where its parameter groups differ, one value for each."""
    listed = optimizer.get("groups")
    groups = [group for group in listed if isinstance(group, Mapping)] if isinstance(listed, list) else []
    found: dict[str, Any] = {}
    for name in dict.fromkeys(name for group in groups for name in group):
        values = [group.get(name) for group in groups]
        found[name] = values[0] if all(value == values[0] for value in values) else values
    return found


def _names_of_settings(about: Mapping[str, Any]) -> set[str]:
    optimizers = [each for each in about.get("optimizers") or () if isinstance(each, Mapping)]
    return {
        f"{'' if number == 0 else f'optimizer {number + 1} '}{name}"
        for number, optimizer in enumerate(optimizers)
        for name in _settings(optimizer)
    }


def _is_dull(name: str, value: Any) -> bool:
    """Whether a setting is not worth a word unless another run has another."""
    return value is None or value is False or value in ([], {}, "") or name.rpartition(" ")[2] in _WORDS


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _flat(settings: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in settings.items():
        path = f"{before}{name}"
        found += _flat(value, f"{path}/") if isinstance(value, Mapping) and value else [(path, value)]
    return found

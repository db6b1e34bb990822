"""SVG that is safe to put inside a page: drawing elements only, ids of its own, nothing that runs or loads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from xml.etree import ElementTree

# fmt: off
_ELEMENTS = {
    "svg", "g", "defs", "path", "use", "clipPath", "rect", "circle", "ellipse", "line", "polyline", "polygon",
    "pattern", "title", "desc",
}
_ATTRIBUTES = {
    "id", "d", "x", "y", "x1", "y1", "x2", "y2", "cx", "cy", "r", "rx", "ry", "width", "height", "points", "viewBox",
    "transform", "href", "role", "aria-labelledby", "clip-path", "clip-rule", "fill", "fill-opacity", "fill-rule",
    "opacity", "stroke", "stroke-dasharray", "stroke-dashoffset", "stroke-linecap", "stroke-linejoin",
    "stroke-miterlimit", "stroke-opacity", "stroke-width", "patternUnits",
}
# fmt: on
_REFERENCE = re.compile(r"url\(#([^)\s]+)\)")


def parse(svg: str) -> ElementTree.Element:
    """The drawing in ``svg`` without what does not belong in a page.

    Kept are the drawing elements and attributes listed above; scripts, links, images, embedded HTML, event handlers,
    comments, metadata and style sheets are dropped. ``style="fill: red"`` becomes ``fill="red"``, so that the page
    can forbid inline styles.

    Raises:
        ValueError: for text that is no SVG drawing, or that declares a document type (entities can explode).
    """
    if "<!DOCTYPE" in svg or "<!ENTITY" in svg:
        raise ValueError("a drawing must start at <svg and declare no document type")
    try:
        root = ElementTree.fromstring(svg)
    except ElementTree.ParseError as error:
        raise ValueError(f"not an SVG drawing ({error}): {svg!r:.80}") from error
    if _local(root.tag) != "svg":
        raise ValueError(f"expected an <svg> element, got <{_local(root.tag)}>")
    for element in root.iter():
        element.tag = _local(element.tag)
        for child in list(element):
            if _local(child.tag) not in _ELEMENTS:
                element.remove(child)
        attributes = {_local(name): value for name, value in element.attrib.items()}
        attributes.update(_declarations(attributes.pop("style", "")))
        element.attrib.clear()
        element.attrib.update({name: value for name, value in attributes.items() if _allowed(name, value)})
    for name in ("width", "height"):  # The page decides the size; the viewBox keeps the shape.
        root.attrib.pop(name, None)
    return root


def to_text(root: ElementTree.Element, id_prefix: str) -> str:
    """The drawing as text, its ids renumbered behind ``id_prefix`` so that two drawings share a page."""
    names: dict[str, str] = {}
    for element in root.iter():
        if "id" in element.attrib:
            names[element.attrib["id"]] = element.attrib["id"] = f"{id_prefix}{len(names)}"
    for element in root.iter():
        for name, value in element.attrib.items():
            if name == "href":
                element.attrib[name] = "#" + names.get(value[1:], "")
            elif name == "aria-labelledby":
                element.attrib[name] = " ".join(names[part] for part in value.split() if part in names)
            elif name != "id":
                element.attrib[name] = _REFERENCE.sub(lambda found: f"url(#{names.get(found[1], '')})", value)
    return ElementTree.tostring(root, encoding="unicode")


def describe(root: ElementTree.Element, title: str, description: str) -> None:
    """Give the drawing a name, and a description in words, for readers who do not see it."""
    for position, (tag, words) in enumerate((("title", title), ("desc", description))):
        element = ElementTree.Element(tag, {"id": f"described-{tag}"})
        element.text = words
        root.insert(position, element)
    root.attrib.update({"role": "img", "aria-labelledby": "described-title described-desc"})


def recolour(root: ElementTree.Element, colours: Mapping[str, str]) -> None:
    """Replace fill and stroke colours, written exactly as in ``colours``."""
    for element in root.iter():
        for name in ("fill", "stroke"):
            if element.attrib.get(name) in colours:
                element.attrib[name] = colours[element.attrib[name]]


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _declarations(style: str) -> dict[str, str]:
    pairs = (declaration.partition(":") for declaration in style.split(";"))
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def _allowed(name: str, value: str) -> bool:
    if name not in _ATTRIBUTES:
        return False
    if name == "href":
        return value.startswith("#")
    return "url(" not in _REFERENCE.sub("", value).lower()

"""What makes a page unreadable, found in a browser that shows it."""

from dataclasses import dataclass
from typing import Any

from browser import Visit

# of the Web Content Accessibility Guidelines, for text of any size
LEAST_CONTRAST = 4.5
LEAST_PX = 12

# every text that is shown, with its element; folded ones are opened first
SCRIPT = r"""
(() => {
  document.querySelectorAll("details").forEach(one => { one.open = true; });
  const canvas = document.createElement("canvas").getContext("2d", {
    willReadFrequently: true });
  const known = new Map();
  const rgba = color => {
    if (!known.has(color)) {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = color;
      canvas.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
      known.set(color, [r, g, b, a / 255]);
    }
    return [...known.get(color)];
  };
  const over = (top, below) => [0, 1, 2].map(
    i => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const luminance = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map(c => c / 255).map(
      c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const around = element => {
    const found = [];
    for (let one = element; one; one = one.parentElement) found.unshift(one);
    return found;
  };
  const blank = document.createElement("div");
  blank.style.backgroundColor = "Canvas";
  document.body.append(blank);
  const bottom = rgba(getComputedStyle(blank).backgroundColor);
  blank.remove();
  const contrast = element => {
    const styles = around(element).map(one => getComputedStyle(one));
    const below = styles.reduce(
      (color, style) => over(rgba(style.backgroundColor), color), bottom);
    const ink = rgba(getComputedStyle(element).color);
    ink[3] *= styles.reduce((product, style) => product * Number(style.opacity), 1);
    const [light, dark] = [over(ink, below), below].map(luminance)
      .sort((a, b) => b - a);
    return (light + 0.05) / (dark + 0.05);
  };
  const texts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, element = node.parentElement;
    const range = document.createRange();
    range.selectNodeContents(node);
    const shown = element.checkVisibility() && range.getClientRects().length;
    if (node.data.trim() && shown) texts.push([node, element]);
  }
  const broken = [];
  for (const [node] of texts) {
    for (const match of node.data.matchAll(/\b(gloo|nccl|replay)-\d+\b/g)) {
      const range = document.createRange();
      range.setStart(node, match.index);
      range.setEnd(node, match.index + match[0].length);
      const lines = new Set([...range.getClientRects()].map(box => box.top));
      if (lines.size > 1) broken.push(match[0]);
    }
  }
  const small = px => texts.filter(
    ([, element]) => parseFloat(getComputedStyle(element).fontSize) < px);
  const faint = texts.map(([node, element]) => [contrast(element), node.data.trim()])
    .filter(([ratio]) => ratio < LEAST_CONTRAST);
  const root = document.documentElement;
  return {
    texts: texts.length,
    too_wide: Math.max(root.scrollWidth, document.body.scrollWidth) - innerWidth,
    faint: faint.map(([ratio, text]) => `${ratio.toFixed(2)}: ${text.slice(0, 60)}`),
    small: small(LEAST_PX).map(([node]) => node.data.trim().slice(0, 60)),
    no_alt: [...document.images].filter(one => !(one.getAttribute("alt") || "").trim())
      .map(one => one.src.slice(0, 60)),
    not_drawn: [...document.images].filter(one => !one.complete || !one.naturalWidth)
      .map(one => one.src.slice(0, 60)),
    broken,
  };
})()
"""


@dataclass(frozen=True)
class Found:
    """``texts`` that were looked at; and every fault by its name: pixels that the page
    is wider than its window, texts with less contrast than LEAST_CONTRAST or smaller
    than LEAST_PX, pictures without words for them or without a picture, names of runs
    in two lines, addresses elsewhere, and complaints.
    """

    texts: int
    faults: dict[str, Any]


def look_at(visit: Visit) -> Found:
    """Open all that is folded on the page, and look at it."""
    script = SCRIPT.replace("LEAST_CONTRAST", str(LEAST_CONTRAST))
    seen = visit.evaluate(script.replace("LEAST_PX", str(LEAST_PX)))
    texts, seen["too_wide"] = seen.pop("texts"), max(seen["too_wide"], 0)
    inside = ("file:", "data:", "about:")
    seen["elsewhere"] = [one for one in visit.asked if not one.startswith(inside)]
    seen["complaints"] = visit.complaints
    return Found(texts, {name: fault for name, fault in seen.items() if fault})

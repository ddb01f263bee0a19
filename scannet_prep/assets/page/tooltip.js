/** The box beside the mouse that describes the point under it. */
class Tooltip {
  constructor() {
    this.box = document.getElementById("tooltip");
  }

  /** @param {[string, string][]} rows names and texts */
  show(rows) {
    const list = document.createElement("dl");
    list.append(...makeRows(rows));
    this.box.replaceChildren(list);
    this.box.hidden = false;
  }

  /** Move beside a point of the window, to the side with enough room. */
  place(x, y) {
    const { offsetWidth: width, offsetHeight: height } = this.box;
    this.box.style.left = `${Math.max(4, x + width + 24 > innerWidth ? x - width - 12 : x + 14)}px`;
    this.box.style.top = `${Math.max(4, y + height + 24 > innerHeight ? y - height - 12 : y + 14)}px`;
  }

  hide() {
    this.box.hidden = true;
  }
}

/** Make the terms and texts of a list. They come from files, so they are set as text and never as markup. */
function makeRows(rows) {
  const make = (name, textContent) => Object.assign(document.createElement(name), { textContent });
  return rows.flatMap(([name, text]) => [make("dt", name), make("dd", text)]);
}

/** The categories of a colouring: name, colour, share; each can be switched on and off. */
class Legend {
  #rows = [];
  #hidden = new Set();

  /** @param {() => void} changed is called when categories were switched. */
  constructor(changed) {
    this.root = document.getElementById("legend");
    this.list = document.getElementById("categories");
    this.summary = document.getElementById("summary");
    this.search = document.getElementById("search");
    this.changed = changed;
    this.search.addEventListener("input", () => this.#filter());
    document.getElementById("all").addEventListener("click", () => this.#switchListed(true));
    document.getElementById("none").addEventListener("click", () => this.#switchListed(false));
    this.list.addEventListener("change", (event) => this.#switch([this.#rowOf(event)], event.target.checked));
    this.list.addEventListener("click", (event) => {
      if (event.target.classList.contains("only")) this.#showOnly(this.#rowOf(event));
    });
  }

  /** Show a colouring; `hidden` has the numbers of its categories that are off, and is kept up to date. */
  show(coloring, hidden) {
    this.#hidden = hidden;
    this.root.hidden = coloring.categories.length === 0;
    const total = coloring.categories.reduce((sum, category) => sum + category.count, 0);
    this.#rows = coloring.categories.map((category, index) => makeRow(category, index, category.count / total));
    this.list.replaceChildren(...this.#rows.map((row) => row.item));
    this.search.value = "";
    this.refresh();
    this.#filter();
  }

  /** Show what is on and off. */
  refresh() {
    for (const row of this.#rows) row.box.checked = !this.#hidden.has(row.index);
    this.#summarize();
  }

  #rowOf(event) {
    return this.#rows[Number(event.target.closest("li").dataset.index)];
  }

  #switch(rows, isOn) {
    for (const row of rows) {
      if (isOn) this.#hidden.delete(row.index);
      else this.#hidden.add(row.index);
    }
    this.refresh();
    this.changed();
  }

  #switchListed(isOn) {
    this.#switch(this.#rows.filter((row) => !row.item.hidden), isOn);
  }

  #showOnly(row) {
    for (const other of this.#rows) this.#hidden.add(other.index);
    this.#switch([row], true);
  }

  #filter() {
    const words = this.search.value.trim().toLowerCase();
    for (const row of this.#rows) row.item.hidden = !row.name.includes(words);
    this.#summarize();
  }

  #summarize() {
    const listed = this.#rows.filter((row) => !row.item.hidden).length;
    const parts = [listed === this.#rows.length ? `${listed} listed` : `${listed} of ${this.#rows.length} listed`];
    if (this.#hidden.size) parts.push(`${this.#hidden.size} hidden`);
    this.summary.textContent = parts.join(", ");
  }
}

/** A line of the legend. Names come from files: they are set as text, never as markup. */
function makeRow(category, index, share) {
  const make = (name, className, text) => {
    const element = document.createElement(name);
    element.className = className;
    element.textContent = text;
    return element;
  };
  const item = make("li", "", ""), label = make("label", "", "");
  const box = make("input", "", ""), swatch = make("span", "swatch", "");
  const only = make("button", "only", "only");
  item.dataset.index = index;
  box.type = "checkbox";
  only.type = "button";
  only.setAttribute("aria-label", `Show only ${category.name}`);
  swatch.style.background = category.color;
  label.title = `${category.name}: ${countOf(category.count, "vertex", "vertices")}`;
  label.append(box, swatch, make("span", "name", category.name), make("span", "share", formatShare(share)));
  item.append(label, only);
  return { item, box, index, name: category.name.toLowerCase() };
}

function countOf(number, one, many) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

function formatShare(share) {
  if (share > 0 && share < 0.001) return "< 0.1 %";
  return `${(100 * share).toFixed(1)} %`;
}

/** The number of lines that are made at a time: a scene may have thousands of segments, and layout takes time. */
const LEGEND_LINES = 200;

/** The categories of a colouring: name, colour, share; each can be switched on and off. */
class Legend {
  #categories = [];
  #listed = []; // numbers of the categories whose names match the search
  #shown = 0; // the number of these that have a line
  #total = 1;
  #hidden = new Set();

  /** @param {() => void} changed called after categories have been switched on or off. */
  constructor(changed) {
    this.root = document.getElementById("legend");
    this.list = document.getElementById("categories");
    this.more = document.getElementById("more");
    this.summary = document.getElementById("summary");
    this.search = document.getElementById("search");
    this.changed = changed;
    this.search.addEventListener("input", () => this.#filter());
    this.more.addEventListener("click", () => this.#extend());
    document.getElementById("all").addEventListener("click", () => this.#switch(this.#listed, true));
    document.getElementById("none").addEventListener("click", () => this.#switch(this.#listed, false));
    this.list.addEventListener("change", ({ target }) => this.#switch([numberOf(target)], target.checked));
    this.list.addEventListener("click", ({ target }) => {
      if (target.classList.contains("only")) this.#showOnly(numberOf(target));
    });
  }

  /** Show a colouring; `hidden` is the set of the numbers of its hidden categories, which the legend updates. */
  show(coloring, hidden) {
    this.#hidden = hidden;
    this.#categories = coloring.categories;
    this.#total = coloring.categories.reduce((sum, category) => sum + category.count, 0);
    this.root.hidden = coloring.categories.length === 0;
    this.search.value = "";
    this.#filter();
  }

  #switch(numbers, isOn) {
    for (const number of numbers) {
      if (isOn) this.#hidden.delete(number);
      else this.#hidden.add(number);
    }
    for (const box of this.list.querySelectorAll("input")) box.checked = !this.#hidden.has(numberOf(box));
    this.#summarize();
    this.changed();
  }

  #showOnly(number) {
    for (const other of this.#categories.keys()) this.#hidden.add(other);
    this.#switch([number], true);
  }

  #filter() {
    const words = this.search.value.trim().toLowerCase();
    this.#listed = [...this.#categories.keys()].filter((number) => this.#categories[number].name.toLowerCase().includes(words));
    this.#shown = 0;
    this.list.replaceChildren();
    this.#extend();
    this.#summarize();
  }

  /** Make the lines of the next listed categories. */
  #extend() {
    const next = this.#listed.slice(this.#shown, this.#shown + LEGEND_LINES);
    const rows = next.map((number) => makeRow(this.#categories[number], number, this.#total, !this.#hidden.has(number)));
    this.list.append(...rows);
    this.#shown += rows.length;
    this.more.hidden = this.#shown === this.#listed.length;
    this.more.textContent = `${countOf(this.#listed.length - this.#shown, "more", "more")}: show the next, or search by name`;
  }

  #summarize() {
    const listed = this.#listed.length, all = this.#categories.length;
    const parts = [listed === all ? `${listed} listed` : `${listed} of ${all} listed`];
    if (this.#hidden.size) parts.push(`${this.#hidden.size} hidden`);
    this.summary.textContent = parts.join(", ");
  }
}

/** Return the number of the category whose line contains an element. */
function numberOf(element) {
  return Number(element.closest("li").dataset.number);
}

/** Make a line of the legend. Names come from files, so they are set as text and never as markup. */
function makeRow(category, number, total, isOn) {
  const make = (name, className, text) => {
    const element = document.createElement(name);
    element.className = className;
    element.textContent = text;
    return element;
  };
  const line = make("li", "", "");
  const label = make("label", "", "");
  const box = make("input", "", "");
  const swatch = make("span", "swatch", "");
  const only = make("button", "only", "only");
  line.dataset.number = number;
  box.type = "checkbox";
  box.checked = isOn;
  only.type = "button";
  only.setAttribute("aria-label", `Show only ${category.name}`);
  swatch.style.background = category.color;
  label.title = `${category.name}: ${countOf(category.count, "vertex", "vertices")}`;
  label.append(box, swatch, make("span", "name", category.name), make("span", "share", formatShare(category.count / total)));
  line.append(label, only);
  return line;
}

function countOf(number, one, many) {
  // The first call of toLocaleString takes a tenth of a second.
  const digits = String(number).replace(/\B(?=(\d{3})+$)/g, ",");
  return `${digits} ${number === 1 ? one : many}`;
}

function formatShare(share) {
  if (share > 0 && share < 0.001) return "< 0.1 %";
  return `${(100 * share).toFixed(1)} %`;
}

/** A list in columns, of which only the visible rows exist in the page. */

const GAP = 16; // between items, in pixels
const MIN_ITEM_WIDTH = 220;
const SPARE_ROWS = 1; // above and below the window, for the tab key

class Grid {
  #items = [];
  #shown = new Map(); // the element of each visible item, by the item
  #columns = 1;
  #rowHeight = 1;
  #isDue = false;

  /**
   * @param {HTMLElement} list the list; items are placed in it
   * @param {(width: number) => number} heightOf returns the height of an item of some width
   * @param {(item: object) => HTMLElement} make makes the element of an item when it becomes visible
   */
  constructor(list, heightOf, make) {
    this.list = list;
    this.heightOf = heightOf;
    this.make = make;
    addEventListener("scroll", () => this.#update(), { passive: true });
    new ResizeObserver(() => this.#update()).observe(list.parentElement);
  }

  /** Show items, from the first to the last. Elements of items that stay visible are kept. */
  show(items) {
    this.#items = items;
    this.#place();
  }

  /** Call a function with each visible item and its element. */
  forEachVisible(change) {
    for (const [item, element] of this.#shown) change(item, element);
  }

  /** Scroll to an item, and focus its link. */
  reveal(item) {
    const index = this.#items.indexOf(item);
    if (index < 0) return;
    this.#place();
    const top = Math.floor(index / this.#columns) * this.#rowHeight;
    scrollTo(0, this.#offset() + top - (innerHeight - this.#rowHeight) / 2);
    this.#place();
    this.#shown.get(item)?.querySelector("a").focus({ preventScroll: true });
  }

  /** The distance of the list from the beginning of the page. */
  #offset() {
    return this.list.getBoundingClientRect().top + scrollY;
  }

  #update() {
    if (this.#isDue) return;
    this.#isDue = true;
    requestAnimationFrame(() => {
      this.#isDue = false;
      this.#place();
    });
  }

  /** Remove the elements that are not visible any more, and add those that are. */
  #place() {
    const width = this.list.clientWidth;
    this.#columns = Math.max(1, Math.floor((width + GAP) / (MIN_ITEM_WIDTH + GAP)));
    const itemWidth = (width - GAP * (this.#columns - 1)) / this.#columns;
    const itemHeight = this.heightOf(itemWidth);
    this.#rowHeight = itemHeight + GAP;
    const rowCount = Math.ceil(this.#items.length / this.#columns);
    this.list.style.height = `${rowCount * this.#rowHeight}px`;

    const above = scrollY - this.#offset();
    const firstRow = Math.floor(above / this.#rowHeight) - SPARE_ROWS;
    const endRow = Math.ceil((above + innerHeight) / this.#rowHeight) + SPARE_ROWS;
    const first = Math.max(0, firstRow * this.#columns);
    const visible = this.#items.slice(first, Math.max(first, endRow * this.#columns));

    const isVisible = new Set(visible);
    for (const [item, element] of this.#shown) {
      if (isVisible.has(item)) continue;
      element.remove();
      this.#shown.delete(item);
    }
    visible.forEach((item, number) => {
      const index = first + number;
      let element = this.#shown.get(item);
      if (!element) {
        element = this.make(item);
        this.#shown.set(item, element);
      }
      const column = index % this.#columns, row = Math.floor(index / this.#columns);
      Object.assign(element.style, {
        width: `${itemWidth}px`,
        height: `${itemHeight}px`,
        translate: `${column * (itemWidth + GAP)}px ${row * this.#rowHeight}px`,
      });
      // For screen readers, which do not see the items without an element.
      element.ariaSetSize = this.#items.length;
      element.ariaPosInSet = index + 1;
      // The tab key follows the order of the elements. Moving one would take its focus.
      if (this.list.children[number] !== element) this.list.insertBefore(element, this.list.children[number] ?? null);
    });
  }
}

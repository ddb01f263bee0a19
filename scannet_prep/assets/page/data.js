/** The scenes of the page. Their descriptions are JSON; their arrays are compressed text in blocks beside it. */

const ARRAY_TYPES = { 1: Uint8Array, 2: Uint16Array, 4: Uint32Array };

/**
 * Decode an array. A block holds the differences of neighbouring rows, column by column, byte by byte, as base64 of raw
 * deflate.
 * @param {{block: string, rows: number, columns: number, bytes: number}} array
 */
async function decodeArray({ block, rows, columns, bytes }) {
  const text = document.getElementById(block).textContent;
  const packed = decodeBase64(text);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  const planes = new Uint8Array(await new Response(stream).arrayBuffer());
  if (planes.length !== rows * columns * bytes) throw new Error(`${block} has ${planes.length} bytes`);
  const values = new ARRAY_TYPES[bytes](rows * columns);
  for (let column = 0; column < columns; column++) {
    const start = column * bytes * rows;
    let value = 0;
    for (let row = 0; row < rows; row++) {
      const first = start + row;
      // A loop over the bytes takes twice as long.
      let difference = planes[first];
      if (bytes > 1) difference |= planes[first + rows] << 8;
      if (bytes > 2) difference |= (planes[first + 2 * rows] << 16) | (planes[first + 3 * rows] << 24);
      // 32 bits, of which the array keeps those of its type: the sums wrap around.
      value = (value + difference) | 0;
      values[row * columns + column] = value;
    }
  }
  return values;
}

function decodeBase64(text) {
  // Newer browsers have a faster function.
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  return bytes;
}

/** A scene, whose arrays are decoded on their first use. */
class Scene {
  #arrays;
  #decoded = new Map();

  constructor(description) {
    const { arrays, ...fields } = description;
    this.#arrays = arrays;
    Object.assign(this, fields);
    this.size = description.grid.map((cells) => cells * description.step);
    this.center = this.size.map((length, axis) => description.origin[axis] + length / 2);
    this.radius = Math.max(0.1, Math.hypot(...this.size) / 2);
  }

  coloring(name) {
    return this.colorings.find((coloring) => coloring.name === name);
  }

  /** Decode one of the scene's arrays, once. */
  async #array(array) {
    if (!array) return null;
    if (!this.#decoded.has(array.block)) this.#decoded.set(array.block, decodeArray(array));
    return this.#decoded.get(array.block);
  }

  /** uint16 (V, 3), in steps from the origin. */
  positions() {
    return this.#array(this.#arrays.positions);
  }

  /** uint8 (V, 3), with 128 for 0, from the colours of the normals; null if the scene has none. */
  async normals() {
    const coloring = this.coloring("normals");
    return coloring ? this.values(coloring) : null;
  }

  /**
   * uint32 (F, 3); null if the scene has none. The second and third corner are stored as differences from the first, each
   * added to those of all rows before.
   */
  async corners() {
    const stored = await this.#array(this.#arrays.faces);
    if (!stored) return null;
    const corners = stored.slice();
    let second = 0, third = 0; // as stored for the triangle before
    for (let i = 0; i < corners.length; i += 3) {
      corners[i + 1] = corners[i] + stored[i + 1] - second;
      corners[i + 2] = corners[i] + stored[i + 2] - third;
      second = stored[i + 1];
      third = stored[i + 2];
    }
    return corners;
  }

  /** The colours of a colouring, uint8 (V, 3), or its indices of categories, (V,). */
  values(coloring) {
    return this.#array(coloring.values);
  }

  /** uint32 (V,), the number of each vertex in the mesh. */
  vertexNumbers() {
    return this.#array(this.#arrays.order);
  }

  /** Return the lowest and the highest corner of each category of a colouring, in metres. */
  async boxes(coloring) {
    const [positions, values] = await Promise.all([this.positions(), this.values(coloring)]);
    const low = coloring.categories.map(() => [Infinity, Infinity, Infinity]);
    const high = coloring.categories.map(() => [-Infinity, -Infinity, -Infinity]);
    values.forEach((number, vertex) => {
      for (let axis = 0; axis < 3; axis++) {
        const at = this.origin[axis] + positions[3 * vertex + axis] * this.step;
        if (at < low[number][axis]) low[number][axis] = at;
        if (at > high[number][axis]) high[number][axis] = at;
      }
    });
    return coloring.categories.map((_, number) => ({ low: low[number], high: high[number] }));
  }

  /** Return the lowest and the highest corner of one category. */
  async box(coloring, number) {
    return (await this.boxes(coloring))[number];
  }

  /** Return the coordinates of a vertex, in metres. */
  async point(vertex) {
    const positions = await this.positions();
    return this.origin.map((start, axis) => start + positions[3 * vertex + axis] * this.step);
  }

  /** Describe a vertex, as pairs of a name and a text. */
  async describe(vertex) {
    const rows = [["vertex", String((await this.vertexNumbers())[vertex])]];
    for (const coloring of this.colorings) {
      if (!coloring.categories.length) continue;
      const category = coloring.categories[(await this.values(coloring))[vertex]];
      // The title has a plural, such as "instances".
      const text = category.note ? `${category.name}, ${category.note}` : category.name;
      rows.push([coloring.title.replace(/\b(instance|segment)s\b/, "$1"), text]);
      if (category.raw) rows.push(["raw category", category.raw]);
      if (category.object !== undefined) rows.push(["object id", String(category.object)]);
    }
    rows.push(["x, y, z", `${formatPoint(await this.point(vertex))} m`]);
    return rows;
  }
}

function formatPoint(point) {
  return point.map((at) => at.toFixed(3)).join(", ");
}

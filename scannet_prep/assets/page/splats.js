/** The sizes of round points. */

// The radius of a disc in distances between neighbours: the discs of a surface leave no hole.
const RADIUS = 1.2;
// Limits, as factors of the mean radius.
const MIN_RADIUS = 0.4;
const MAX_RADIUS = 1.6;
// The page stores vertices in the order of cells that are so wide, as powers of 2, along a Z-order curve. So larger cells
// are stored in one piece, too.
const STORED_BITS = 10;
// The smaller cells are at least so wide, so that there are at most 32 of them along each side.
const SMALLEST_BITS = 5;

/**
 * Estimate the radius of the disc of each vertex from the density around it. The area of a surface in a cell is the number
 * of smaller cells that it passes through; the square root of area divided by vertices is their distance.
 * @param {Uint16Array} positions (V, 3), in steps
 * @param {number} meanRadius in steps
 * @returns {Uint16Array} (V,), in steps
 */
function estimateRadii(positions, meanRadius) {
  const smallBits = Math.max(SMALLEST_BITS, Math.ceil(Math.log2(1.4 * meanRadius)));
  const cellBits = Math.max(STORED_BITS, smallBits + 2);
  const sideBits = cellBits - smallBits;
  const mask = (1 << sideBits) - 1;
  const radii = new Uint16Array(positions.length / 3);
  const lastCells = new Int32Array(1 << (3 * sideBits)).fill(-1); // in which each smaller cell was seen last
  const cellOf = (i) => positions[i] >> cellBits;
  const smallOf = (i) => (positions[i] >> smallBits) & mask;
  for (let start = 0, end = 0, cell = 0; start < radii.length; start = end, cell++) {
    const x = cellOf(3 * start), y = cellOf(3 * start + 1), z = cellOf(3 * start + 2);
    let passed = 0;
    for (; end < radii.length; end++) {
      const i = 3 * end;
      if (cellOf(i) !== x || cellOf(i + 1) !== y || cellOf(i + 2) !== z) break;
      const small = (((smallOf(i) << sideBits) | smallOf(i + 1)) << sideBits) | smallOf(i + 2);
      if (lastCells[small] === cell) continue;
      lastCells[small] = cell;
      passed++;
    }
    const radius = RADIUS * 2 ** smallBits * Math.sqrt(passed / (end - start));
    radii.fill(Math.ceil(Math.min(MAX_RADIUS * meanRadius, Math.max(MIN_RADIUS * meanRadius, radius))), start, end);
  }
  return radii;
}

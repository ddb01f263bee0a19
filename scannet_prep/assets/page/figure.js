/** A picture of the view to save: larger than on the screen, with a legend or a transparent background. */

const INKS = { light: "#1e1e1e", dark: "#e1e1e1" };

/** Return the numbers of the categories that are in the picture, by drawing the numbers of the vertices. */
function findSeenCategories({ drawing, camera, view, values }) {
  const { gl } = drawing;
  const { width, height } = drawing.canvas;
  const target = gl.createFramebuffer();
  gl.bindFramebuffer(gl.FRAMEBUFFER, target);
  const buffers = [[gl.RGBA8, gl.COLOR_ATTACHMENT0], [gl.DEPTH_COMPONENT24, gl.DEPTH_ATTACHMENT]].map(([format, attachment]) => {
    const buffer = gl.createRenderbuffer();
    gl.bindRenderbuffer(gl.RENDERBUFFER, buffer);
    gl.renderbufferStorage(gl.RENDERBUFFER, format, width, height);
    gl.framebufferRenderbuffer(gl.FRAMEBUFFER, attachment, gl.RENDERBUFFER, buffer);
    return buffer;
  });
  gl.viewport(0, 0, width, height);
  gl.clearColor(0, 0, 0, 0);
  gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
  drawing.drawNumbers(camera, view, view.hasMesh && drawing.hasTriangles);
  const pixels = new Uint8Array(4 * width * height);
  gl.readPixels(0, 0, width, height, gl.RGBA, gl.UNSIGNED_BYTE, pixels);
  gl.bindFramebuffer(gl.FRAMEBUFFER, null);
  gl.deleteFramebuffer(target);
  for (const buffer of buffers) gl.deleteRenderbuffer(buffer);

  const seen = new Set();
  for (let i = 0; i < pixels.length; i += 4) {
    if (pixels[i + 3]) seen.add(values[pixels[i] | (pixels[i + 1] << 8) | (pixels[i + 2] << 16)]);
  }
  return seen;
}

/**
 * Make a picture of the view.
 * @param {Viewer} viewer
 * @param {{scale: number, hasLegend: boolean, isTransparent: boolean}} options
 * @returns {HTMLCanvasElement}
 */
function makeFigure(viewer, { scale, hasLegend, isTransparent }) {
  const picture = isTransparent ? drawTransparent(viewer, scale) : viewer.snapshot(scale, viewer.view.background);
  const { categories } = viewer.coloring;
  const unit = scale * devicePixelRatio;
  const colors = {
    ink: INKS[isTransparent || viewer.options.light.value ? "light" : "dark"],
    paper: isTransparent ? "#fff" : cssColor(viewer.view.background),
  };
  viewer.overlay.paint(picture.getContext("2d"), unit, colors);
  if (!hasLegend || !categories.length) return picture;
  const seen = findSeenCategories(viewer);
  const listed = categories.filter((_, number) => seen.has(number));
  const total = categories.reduce((sum, category) => sum + category.count, 0);
  return addLegend(picture, listed, total, {
    unit,
    ink: colors.ink,
    background: isTransparent ? "transparent" : colors.paper,
  });
}

/** Draw the view on black and on white: where they differ, the background is visible. */
function drawTransparent(viewer, scale) {
  const white = viewer.snapshot(scale, [1, 1, 1]);
  const black = viewer.snapshot(scale, [0, 0, 0]);
  const { width, height } = black;
  const context = black.getContext("2d");
  const image = context.getImageData(0, 0, width, height);
  const onBlack = image.data;
  const onWhite = white.getContext("2d").getImageData(0, 0, width, height).data;
  for (let i = 0; i < onBlack.length; i += 4) {
    const opacity = 255 - (onWhite[i + 1] - onBlack[i + 1]);
    for (let channel = 0; channel < 3; channel++) onBlack[i + channel] = (255 * onBlack[i + channel]) / Math.max(1, opacity);
    onBlack[i + 3] = opacity;
  }
  context.putImageData(image, 0, 0);
  return black;
}

/** Add a column with names, colours and shares. If there are too many, the last line counts the omitted ones. */
function addLegend(picture, categories, total, { unit, ink, background }) {
  const line = Math.round(20 * unit), margin = Math.round(12 * unit), symbol = Math.round(12 * unit);
  const lineCount = Math.max(1, Math.floor((picture.height - 2 * margin) / line));
  const listed = categories.length > lineCount ? categories.slice(0, lineCount - 1) : categories;
  const rows = listed.map(({ name, color, count }) => ({ name, color, share: formatShare(count / total) }));
  if (listed.length < categories.length) rows.push({ name: `and ${categories.length - listed.length} more`, share: "" });

  const font = `${13 * unit}px system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif`;
  const ruler = document.createElement("canvas").getContext("2d");
  ruler.font = font;
  const widest = (texts) => Math.ceil(Math.max(0, ...texts.map((text) => ruler.measureText(text).width)));
  const nameWidth = Math.min(widest(rows.map(({ name }) => name)), 240 * unit);
  const width = nameWidth + widest(rows.map(({ share }) => share)) + 3 * margin + line;

  const figure = Object.assign(document.createElement("canvas"), { width: picture.width + Math.round(width), height: picture.height });
  const context = figure.getContext("2d");
  if (background !== "transparent") {
    context.fillStyle = background;
    context.fillRect(0, 0, figure.width, figure.height);
  }
  context.drawImage(picture, 0, 0);
  context.font = font;
  context.textBaseline = "middle";
  rows.forEach(({ name, color, share }, number) => {
    const middle = margin + (number + 0.5) * line;
    const left = picture.width + margin;
    if (color) {
      context.fillStyle = color;
      context.fillRect(left, middle - symbol / 2, symbol, symbol);
    }
    context.fillStyle = ink;
    context.textAlign = "left";
    context.fillText(name, left + line, middle, nameWidth);
    context.textAlign = "right";
    context.fillText(share, figure.width - margin, middle);
  });
  return figure;
}

function cssColor(parts) {
  return `rgb(${parts.map((part) => Math.round(255 * part)).join(" ")})`;
}

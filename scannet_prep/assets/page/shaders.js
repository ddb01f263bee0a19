/** The programs of the graphics card: for surfaces, round points, lines, and the finished picture. */

// The part that triangles and round points share.
const SCENE_VERTEX = `#version 300 es
precision highp float;
precision highp int;
uniform mat4 clipFromGrid;
uniform bool hasCategories, hasBacks;
uniform vec3 low, high;  // corners of the clip box, in the frame of position
uniform vec4 eye;  // in the frame of position; the last number is 0 if the camera is infinitely far away
uniform vec3 light;  // the direction towards the light
uniform highp sampler2D palette;  // of each category: red, green, blue, and the brightness without light
in vec3 position;
in vec3 color;
in uint category;
in vec3 normal;  // integers, with 128 for 0
in uint state;  // 1: shown, 2: selected
out vec3 shade;
out float lit, inside;  // lit: from 0 to 1
flat out vec4 categoryShade;
flat out float isOn, isSelected;
flat out int vertex;

void describe(int number, vec3 unit) {
  ivec2 texel = ivec2(category & 255u, category >> 8);
  bool hasNormal = unit != vec3(0.0);
  lit = hasNormal ? clamp(dot(unit, light), 0.0, 1.0) : 1.0;
  shade = color;
  categoryShade = texelFetch(palette, texel, 0);
  isOn = float(state & 1u);
  isSelected = float(state >> 1);
  bool isInside = all(greaterThanEqual(position, low)) && all(lessThanEqual(position, high));
  inside = isInside ? 1.0 : 0.0;
  vertex = number;
}
`;

const SURFACE_SHADER = `${SCENE_VERTEX}
void main() {
  describe(gl_VertexID, (normal - 128.0) / 127.5);
  gl_Position = clipFromGrid * vec4(position, 1.0);
}`;

// A point is a disc in the plane of its surface. It is drawn as a square, from which its outside is cut off.
const SPLAT_SHADER = `${SCENE_VERTEX}
uniform float splatScale;  // a factor of all radii
uniform float metrePixels;  // the length of a metre at a distance of 1
uniform float step;  // the unit of position, in metres
uniform float depthSlope;  // the change of the depth per metre, at a distance of 1
uniform vec3 right, up, back;  // of the camera
in uint radius;  // of the disc, in the unit of position
flat out vec2 slope;  // how much farther the surface gets to the right and up
flat out float discDepth;  // the change of the depth for the radius of the disc

// A surface that is seen edge-on keeps some width.
const float MIN_FACING = 0.3;
// The disc contains the middle of at least one pixel.
const float MIN_PIXELS = 1.5;
const float MAX_PIXELS = 200.0;

void main() {
  vec3 unit = (normal - 128.0) / 127.5;
  describe(gl_VertexID, unit);
  gl_Position = clipFromGrid * vec4(position, 1.0);
  vec3 toEye = eye.xyz - position * eye.w;
  float facing = dot(unit, toEye) / dot(back, toEye);
  bool isBack = !hasBacks && facing < 0.0;
  slope = vec2(dot(unit, right), dot(unit, up)) / (max(MIN_FACING, abs(facing)) * (facing < 0.0 ? -1.0 : 1.0));
  float distance = gl_Position.w;
  float metres = splatScale * float(radius) * step;
  discDepth = metres * depthSlope / (distance * distance);
  gl_PointSize = clamp(2.0 * metres * metrePixels / distance, MIN_PIXELS, MAX_PIXELS);
  // Move hidden points out of the picture.
  if (isBack || isOn * inside < 0.5) gl_Position = vec4(2.0, 2.0, 2.0, 1.0);
}`;

// The two ways to cut off what is outside. A triangle is hidden if one of its corners is outside the clip box.
const SURFACE_FRAGMENT = `#version 300 es
precision highp float;
precision highp int;
in float inside;
flat in float isOn;

void cut() {
  if (isOn < 0.5 || inside < 0.999) discard;
}
`;

const SPLAT_FRAGMENT = `#version 300 es
precision highp float;
precision highp int;
flat in vec2 slope;
flat in float discDepth;

void cut() {
  vec2 offset = vec2(2.0, -2.0) * (gl_PointCoord - 0.5);
  float farther = dot(slope, offset);
  if (dot(offset, offset) + farther * farther > 1.0) discard;
  gl_FragDepth = gl_FragCoord.z + discDepth * farther;
}
`;

// The class of a triangle is that of one corner, so that its colour is in the legend and not a mixture. Colours that are
// measured, such as those of the scan, have no light.
const COLOR_MAIN = `
uniform bool hasCategories;
in vec3 shade;
in float lit;
flat in vec4 categoryShade;
flat in float isSelected;
out vec4 result;

void main() {
  cut();
  vec3 shown = hasCategories ? categoryShade.rgb * mix(categoryShade.a, 1.0, lit) : shade;
  result = vec4(shown, isSelected);
}`;

const NUMBER_MAIN = `
uniform bool isPoints;
flat in int vertex;
out vec4 result;

void main() {
  cut();
  ivec3 bytes = ivec3(vertex, vertex >> 8, vertex >> 16) & 255;
  result = vec4(vec3(bytes) / 255.0, isPoints ? 1.0 : 0.5);
}`;

const LINE_VERTEX_SHADER = `#version 300 es
uniform mat4 clipFromScene;
in vec3 position;
in vec3 color;
out vec3 shade;

void main() {
  shade = color;
  gl_Position = clipFromScene * vec4(position, 1.0);
}`;

const LINE_SHADER = `#version 300 es
precision mediump float;
in vec3 shade;
out vec4 result;

void main() {
  result = vec4(shade, 0.0);
}`;

// One triangle that covers the picture.
const FINISH_VERTEX_SHADER = `#version 300 es
void main() {
  gl_Position = vec4(gl_VertexID == 1 ? 3.0 : -1.0, gl_VertexID == 2 ? 3.0 : -1.0, 0.0, 1.0);
}`;

// Eye-dome lighting: a pixel is darker if those around it are nearer to the camera. Pixels on opposite sides are averaged,
// so that a plane stays even at any angle: the nearness, 1 / distance, of a plane is linear in the picture. On each side,
// the farther one of two pixels counts: a sliver that is one pixel wide is no edge.
const FINISH_SHADER = `#version 300 es
precision highp float;
uniform highp sampler2D colors;  // alpha is 1 where the vertex is selected
uniform highp sampler2D depths;
uniform bool hasEdges, hasOutline, isOrthographic;
uniform float nearnessStart;  // nearness is this number minus the depth, up to a factor
uniform float depthScale;  // of an orthographic camera
uniform int reach;  // pixels
uniform vec2 scale;  // the size of the unfinished picture divided by that of the canvas
out vec4 result;

const float STRENGTH = 16.0;
const float DARKEST = 0.45;
const vec3 OUTLINE = vec3(1.0, 0.0, 0.78);
const ivec2 SIDES[4] = ivec2[4](ivec2(1, 0), ivec2(0, 1), ivec2(1, 1), ivec2(1, -1));

float depthBeside(ivec2 pixel, ivec2 side, ivec2 last) {
  float first = texelFetch(depths, clamp(pixel + reach * side, ivec2(0), last), 0).r;
  float second = texelFetch(depths, clamp(pixel + (reach + 1) * side, ivec2(0), last), 0).r;
  return max(first, second);
}

void main() {
  ivec2 pixel = ivec2(scale * gl_FragCoord.xy);
  ivec2 last = textureSize(colors, 0) - 1;
  vec4 color = texelFetch(colors, pixel, 0);
  float depth = texelFetch(depths, pixel, 0).r;
  float shadow = 0.0;
  float selected = 0.0;
  for (int i = 0; i < 4; i++) {
    if (hasEdges && depth < 1.0) {
      float d1 = depthBeside(pixel, SIDES[i], last);
      float d2 = depthBeside(pixel, -SIDES[i], last);
      float mean = (d1 + d2) / 2.0;
      float step = isOrthographic ? (depth - mean) * depthScale : (depth - mean) / (nearnessStart - depth);
      // The background is no neighbour.
      if (max(d1, d2) < 1.0) shadow += max(0.0, step);
    }
    if (hasOutline) {
      ivec2 one = clamp(pixel + reach * SIDES[i], ivec2(0), last);
      ivec2 other = clamp(pixel - reach * SIDES[i], ivec2(0), last);
      selected = max(selected, max(texelFetch(colors, one, 0).a, texelFetch(colors, other, 0).a));
    }
  }
  result = vec4(color.rgb * max(DARKEST, exp(-STRENGTH * shadow)), 1.0);
  if (hasOutline && color.a < 0.5 && selected >= 0.5) result = vec4(OUTLINE, 1.0);
}`;

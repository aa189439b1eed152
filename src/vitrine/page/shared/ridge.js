// The paper's few-shot classifier: regularised least squares in closed form, in float64.
// The same numbers as evaluation/ridge.py: features normalised by mean and deviation, a constant feature of 100,
// targets of -1 and 1, l2 of 1024. N examples, R features, K classes.
const BIAS_FEATURE = 100;
const STD_FLOOR = 1e-5;
export const L2 = 1024;

// rows: N arrays of R numbers; labels: N numbers from 0. Returns weight (K x R) and bias (K) on raw features.
export function solve(rows, labels, numClasses, l2 = L2) {
  const N = rows.length;
  const R = rows[0].length;
  const mean = new Float64Array(R);
  const std = new Float64Array(R);
  for (const row of rows) for (let r = 0; r < R; r++) mean[r] += row[r] / N;
  for (const row of rows) for (let r = 0; r < R; r++) std[r] += (row[r] - mean[r]) ** 2 / N;
  for (let r = 0; r < R; r++) std[r] = Math.sqrt(std[r]) + STD_FLOOR;
  const X = rows.map((row) => Float64Array.from(row, (value, r) => (value - mean[r]) / std[r]));
  // There are usually fewer examples than features, so solve the small system: W = Xt (X Xt + l2 I)^-1 Y.
  const gram = X.map((a, i) => Float64Array.from(X, (b, j) => dot(a, b) + BIAS_FEATURE ** 2 + (i === j ? l2 : 0)));
  const lower = cholesky(gram);
  const weight = [];
  const bias = [];
  for (let k = 0; k < numClasses; k++) {
    const dual = backward(lower, forward(lower, Float64Array.from(labels, (label) => (label === k ? 1 : -1))));
    const row = new Float64Array(R);
    X.forEach((x, n) => { for (let r = 0; r < R; r++) row[r] += x[r] * dual[n]; });
    let offset = BIAS_FEATURE ** 2 * dual.reduce((sum, value) => sum + value, 0);
    for (let r = 0; r < R; r++) {
      row[r] /= std[r];
      offset -= row[r] * mean[r];
    }
    weight.push(row);
    bias.push(offset);
  }
  return { weight, bias };
}

export function scores({ weight, bias }, features) {
  return weight.map((row, k) => dot(row, features) + bias[k]);
}

function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

function cholesky(matrix) {
  const lower = matrix.map(() => new Float64Array(matrix.length));
  for (let i = 0; i < matrix.length; i++) {
    for (let j = 0; j <= i; j++) {
      let sum = matrix[i][j];
      for (let k = 0; k < j; k++) sum -= lower[i][k] * lower[j][k];
      lower[i][j] = i === j ? Math.sqrt(sum) : sum / lower[j][j];
    }
  }
  return lower;
}

function forward(lower, right) {
  const solved = right.slice();
  for (let i = 0; i < solved.length; i++) {
    for (let k = 0; k < i; k++) solved[i] -= lower[i][k] * solved[k];
    solved[i] /= lower[i][i];
  }
  return solved;
}

function backward(lower, right) {
  const solved = right.slice();
  for (let i = solved.length - 1; i >= 0; i--) {
    for (let k = i + 1; k < solved.length; k++) solved[i] -= lower[k][i] * solved[k];
    solved[i] /= lower[i][i];
  }
  return solved;
}

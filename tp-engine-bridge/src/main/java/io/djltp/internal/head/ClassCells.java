package io.djltp.internal.head;

import ai.djl.ndarray.NDArray;

import io.djltp.internal.Errors;
import io.djltp.internal.torch.HostReads;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.torch.TorchScope;
import io.djltp.internal.update.UnitRows;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.LongOptional;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptional;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.TensorVector;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.jspecify.annotations.Nullable;

import java.util.Arrays;

/**
 * An inverted file over the classes of a linear layer: each class is in the cell whose mean has the
 * most similar direction. A search computes the logits of the classes in some cells, those that
 * promise most, with the weight as it is.
 *
 * <p>Cells are found by spherical k-means (Dhillon and Modha, 2001) of the weight's rows, with the
 * bias as one more column. A cell promises the mean logit of its classes, and more the wider it is.
 *
 * @param features the features of the layer
 * @param means the mean of the rows of each cell, [cells, features]
 * @param biases the mean of the biases of each cell, [cells]
 * @param spreads how far rows are from the mean of their cell, the root of the mean square, [cells]
 * @param sizes the number of classes in each cell, [cells]
 * @param order the classes, one cell after another, ascending in each, [classes]
 * @param probes how many cells a search looks into
 */
public record ClassCells(
        int features,
        float[] means,
        float[] biases,
        float[] spreads,
        int[] sizes,
        int[] order,
        int probes) {

    private static final double CELLS = 4; // times the root of the number of classes
    private static final int ROWS_OF_A_CELL = 32; // that k-means learns from
    private static final int ITERATIONS = 6;
    private static final int CHUNK = 1 << 22; // similarities that exist at a time
    private static final double WIDTH = 0.25; // by how many spreads a cell promises more

    /**
     * Finds the cells of a layer.
     *
     * @param weight the weight, [classes, features]
     * @param bias the bias, [classes], or {@code null}
     * @param unit whether rows of the weight count as if their length was 1
     * @param length the usual length of the features
     * @return the cells
     * @throws IllegalArgumentException if the weight or the bias has a value that is not finite
     */
    @SuppressWarnings("try") // a scope is used by being open
    public static ClassCells build(
            NDArray weight, @Nullable NDArray bias, boolean unit, double length) {
        long classes = weight.getShape().get(0);
        int features = (int) weight.getShape().get(1);
        try (TorchScope scope = TorchScope.withoutGraph()) {
            Rows rows = new Rows(new ChunkedLinear(weight, bias, null, unit), features, length);
            long cells = Math.max(1, Math.min(classes, Math.round(CELLS * Math.sqrt(classes))));
            TensorOptions options = rows.linear.rows(rows.range(0, 1)).options();
            Tensor centers = centers(rows, classes, cells);
            Tensor cellOf = torch.zeros(new long[] {classes}, rows.integers);
            Tensor sums = torch.zeros(new long[] {cells, features + 1L}, options);
            Tensor squares = torch.zeros(new long[] {cells}, options);
            long chunk = Math.max(1, CHUNK / cells);
            for (long start = 0; start < classes; start += chunk) {
                try (PointerScope inner = new PointerScope()) {
                    long size = Math.min(chunk, classes - start);
                    Tensor part = rows.of(rows.range(start, start + size));
                    Tensor nearest = part.matmul(centers.t()).argmax(new LongOptional(1), false);
                    cellOf.narrow(0, start, size).copy_(nearest);
                    sums.index_add_(0, nearest, part);
                    Tensor weights = part.narrow(1, 0, features);
                    squares.index_add_(0, nearest, squareSums(weights));
                }
            }
            Tensor counts = cellOf.bincount(new TensorOptional(), cells);
            Tensor divisor = counts.clamp_min(new Scalar(1)).to(ScalarType.Float);
            Tensor means = sums.div(divisor.unsqueeze(1));
            Tensor weights = means.narrow(1, 0, features).contiguous();
            Tensor spreads =
                    squares.div(divisor).sub(squareSums(weights)).clamp_min(new Scalar(0)).sqrt();
            double[] found = HostReads.doubles(spreads);
            float[] biases = floats(means.select(1, features).mul(new Scalar(length)));
            for (int i = 0; i < found.length; i++) {
                Errors.check(
                        Double.isFinite(found[i]) && Float.isFinite(biases[i]),
                        "The weight or the bias of the %s classes has values that are not finite",
                        classes);
            }
            return new ClassCells(
                    features,
                    floats(weights),
                    biases,
                    floats(spreads),
                    ints(counts),
                    ints(cellOf.argsort(true, 0, false)),
                    1);
        }
    }

    /**
     * Returns the same cells for searches that look into another number of them.
     *
     * @param number how many cells a search looks into
     * @return the cells
     */
    public ClassCells withProbes(int number) {
        return new ClassCells(features, means, biases, spreads, sizes, order, number);
    }

    /** The rows to be put into cells. */
    private record Rows(ChunkedLinear linear, int features, double length, TensorOptions integers) {

        Rows(ChunkedLinear linear, int features, double length) {
            this(
                    linear,
                    features,
                    length,
                    linear.options().dtype(new ScalarTypeOptional(ScalarType.Long)));
        }

        Tensor range(long from, long to) {
            return torch.arange(new Scalar(from), new Scalar(to), integers);
        }

        /** Returns rows of the weight and of what the bias adds to features of length 1. */
        Tensor of(Tensor classes) {
            Tensor rows = linear.unitRows(classes);
            Tensor bias =
                    linear.bias() == null
                            ? rows.new_zeros(new long[] {rows.size(0)})
                            : linear.bias().index_select(0, classes).to(ScalarType.Float);
            Tensor column = bias.div(new Scalar(length)).unsqueeze(1);
            return torch.cat(new TensorVector(rows, column), 1);
        }
    }

    private static Tensor squareSums(Tensor rows) {
        return rows.square().sum(new long[] {1}, false, new ScalarTypeOptional());
    }

    private static Tensor unit(Tensor rows) {
        return rows.mul(UnitRows.inverseLengths(rows).unsqueeze(1));
    }

    /** Finds the directions of cells, by a part of the classes. */
    @SuppressWarnings("try") // a scope is used by being open
    private static Tensor centers(Rows rows, long classes, long cells) {
        long size = Math.min(classes, ROWS_OF_A_CELL * cells);
        Tensor places =
                rows.range(0, size).mul_(new Scalar(classes)).floor_divide(new Scalar(size));
        Tensor sample = unit(rows.of(places));
        long step = size / cells;
        Tensor seeds = rows.range(0, cells).mul_(new Scalar(step));
        Tensor centers = sample.index_select(0, seeds);
        long chunk = Math.max(1, CHUNK / cells);
        for (int i = 0; i < ITERATIONS; i++) {
            try (PointerScope inner = new PointerScope()) {
                Tensor sums = torch.zeros_like(centers);
                for (long start = 0; start < size; start += chunk) {
                    try (PointerScope each = new PointerScope()) {
                        Tensor part = sample.narrow(0, start, Math.min(chunk, size - start));
                        sums.index_add_(
                                0,
                                part.matmul(centers.t()).argmax(new LongOptional(1), false),
                                part);
                    }
                }
                // a cell without rows begins anew, at another one
                Tensor empty = squareSums(sums).eq(new Scalar(0)).unsqueeze(1);
                Tensor others = seeds.add(new Scalar((i + 1) % step));
                centers.copy_(torch.where(empty, sample.index_select(0, others), unit(sums)));
            }
        }
        return centers;
    }

    private static float[] floats(Tensor tensor) {
        double[] values = HostReads.doubles(tensor);
        float[] all = new float[values.length];
        for (int i = 0; i < all.length; i++) {
            all[i] = (float) values[i];
        }
        return all;
    }

    private static int[] ints(Tensor tensor) {
        return Arrays.stream(HostReads.doubles(tensor)).mapToInt(value -> (int) value).toArray();
    }

    /**
     * Returns how many cells come before that of some classes, in the order in which a search takes
     * them.
     *
     * @param rows the features, [rows, features]
     * @param classes classes of each row, int64 [rows, k]
     * @return the numbers, by row
     */
    @SuppressWarnings("try") // a scope is used by being open
    public int[] placesOf(NDArray rows, NDArray classes) {
        int[] cellOf = new int[order.length];
        int end = 0;
        for (int cell = 0, i = 0; cell < sizes.length; cell++) {
            for (end += sizes[cell]; i < end; i++) {
                cellOf[order[i]] = cell;
            }
        }
        try (TorchScope scope = TorchScope.withoutGraph();
                OnRank all = new OnRank(this, null, TensorView.of(rows).tensor())) {
            Tensor promises = all.promises(TensorView.of(rows).tensor());
            Tensor places = promises.argsort(true, 1, true).argsort(true, 1, false);
            double[] asked = HostReads.doubles(TensorView.of(classes).tensor());
            long[] cells = new long[asked.length];
            for (int i = 0; i < cells.length; i++) {
                cells[i] = cellOf[(int) asked[i]];
            }
            Tensor index = HostReads.toDevice(places.device(), cells);
            return ints(places.gather(1, index.view(classes.getShape().getShape())));
        }
    }

    /**
     * Returns which share of the classes the cells have that a search looks into.
     *
     * @param rows the features, [rows, features]
     * @return the mean of the rows, 0 to 1
     */
    @SuppressWarnings("try") // a scope is used by being open
    public double share(NDArray rows) {
        Tensor x = TensorView.of(rows).tensor();
        try (TorchScope scope = TorchScope.withoutGraph();
                OnRank all = new OnRank(this, null, x)) {
            double looked = 0;
            for (int cell : ints(all.promises(x).topk(probes, 1, true, false).get1())) {
                looked += sizes[cell];
            }
            return looked / x.size(0) / order.length;
        }
    }

    /** The cells with the classes of one rank, on its device. */
    static final class OnRank implements AutoCloseable {

        private final ClassCells cells;
        private final int[] starts; // of the cells among the columns
        private final long[] columns;
        private final Tensor means;
        private final Tensor biases;
        private final Tensor widths;
        private final Tensor spreads;
        private final Tensor logCounts; // of classes on all ranks
        private final Tensor logShares; // of this rank

        /**
         * Takes the classes of a rank.
         *
         * @param cells the cells
         * @param shard the classes of the rank, or {@code null} for all
         * @param like a tensor on the rank's device
         */
        OnRank(ClassCells cells, @Nullable ClassShard shard, Tensor like) {
            this.cells = cells;
            int[] places = shard == null ? null : shard.columns();
            int count = cells.sizes.length;
            starts = new int[count + 1];
            long[] found = new long[cells.order.length];
            float[] counts = new float[count];
            float[] shares = new float[count];
            int taken = 0;
            for (int cell = 0, i = 0, end = 0; cell < count; cell++) {
                for (end += cells.sizes[cell]; i < end; i++) {
                    int column = places == null ? cells.order[i] : places[cells.order[i]];
                    if (column >= 0) {
                        found[taken++] = column;
                    }
                }
                starts[cell + 1] = taken;
                int size = Math.max(1, cells.sizes[cell]);
                counts[cell] = (float) Math.log(size);
                shares[cell] = (float) Math.log((taken - starts[cell]) / (double) size);
            }
            columns = Arrays.copyOf(found, taken);
            Tensor rows = HostReads.toDevice(like.device(), cells.means);
            means = rows.view(count, cells.features).retainReference();
            biases = kept(like, cells.biases);
            spreads = kept(like, cells.spreads);
            float[] promised = cells.spreads.clone();
            for (int cell = 0; cell < count; cell++) {
                promised[cell] *= (float) WIDTH;
            }
            widths = kept(like, promised);
            logCounts = kept(like, counts);
            logShares = kept(like, shares); // -infinity for none
        }

        private static Tensor kept(Tensor like, float... values) {
            return HostReads.toDevice(like.device(), values).retainReference();
        }

        boolean isOf(@Nullable ClassCells others) {
            return cells == others;
        }

        private Tensor meanLogits(Tensor x) {
            return torch.addmm(biases, x, means.t());
        }

        private static Tensor lengths(Tensor x) {
            return squareSums(x).sqrt_().unsqueeze(1);
        }

        private Tensor promises(Tensor x) {
            return meanLogits(x).add_(lengths(x).mul(widths));
        }

        /**
         * Finds the best classes of this rank in the cells that promise most.
         *
         * @param x the features, [rows, features]
         * @param linear the layer
         * @param shard the classes of this rank
         * @param k how many classes are wanted
         * @param withSum whether the sum of the exponentials of all logits is estimated: those of
         *     other cells as if their logits were normally distributed
         * @return the best, or {@code null} if the cells of a row have fewer than {@code k} classes
         */
        @SuppressWarnings("try") // a scope is used by being open
        ChunkTopK.@Nullable Found search(
                Tensor x, ChunkedLinear linear, ClassShard shard, int k, boolean withSum) {
            int rows = (int) x.size(0);
            int taken = Math.min(cells.probes, cells.sizes.length);
            Tensor chosen = promises(x).topk(taken, 1, true, true).get1();
            int[] places = ints(chosen);
            for (int row = 0; row < rows; row++) {
                long count = 0;
                for (int i = 0; i < taken; i++) {
                    count += cells.sizes[places[row * taken + i]];
                }
                if (count < k) {
                    return null;
                }
            }
            long[] shape = {rows, k};
            TensorOptions wide = x.options().dtype(new ScalarTypeOptional(ScalarType.Double));
            Tensor values = torch.full(shape, new Scalar(Double.NEGATIVE_INFINITY), wide);
            Tensor classes = torch.full(shape, new Scalar(Double.POSITIVE_INFINITY), wide);
            Tensor sums = null;
            if (withSum) {
                Tensor sigma = lengths(x).mul(spreads);
                sigma.div_(new Scalar(Math.sqrt(cells.features)));
                // where so few numbers are drawn the largest rule, as in a random energy model
                Tensor many = sigma.square().mul_(new Scalar(0.5)).add_(logCounts);
                Tensor deviation = logCounts.add(logCounts).sqrt_();
                Tensor rest = torch.where(sigma.lt(deviation), many, sigma.mul(deviation));
                rest.add_(meanLogits(x)).add_(logShares);
                rest.scatter_(1, chosen, new Scalar(Double.NEGATIVE_INFINITY));
                sums = rest.to(ScalarType.Double).logsumexp(new long[] {1}, false);
            }
            for (int row = 0; row < rows; row++) {
                try (PointerScope inner = new PointerScope()) {
                    long[] found = columns(places, row * taken, taken);
                    if (found.length == 0) {
                        continue;
                    }
                    Tensor index = HostReads.toDevice(x.device(), found);
                    Tensor logits = linear.unitRows(index).mv(x.select(0, row));
                    if (linear.bias() != null) {
                        logits.add_(linear.bias().index_select(0, index));
                    }
                    if (sums != null) {
                        Tensor own = logits.to(ScalarType.Double).logsumexp(new long[] {0}, false);
                        Tensor sum = sums.select(0, row);
                        sum.copy_(torch.logaddexp(sum, own));
                    }
                    ChunkTopK.Best best = best(logits, index, Math.min(k, found.length));
                    long size = best.values().size(1);
                    values.narrow(0, row, 1).narrow(1, 0, size).copy_(best.values());
                    classes.narrow(0, row, 1)
                            .narrow(1, 0, size)
                            .copy_(shard.classesOf(best.classes()));
                }
            }
            return new ChunkTopK.Found(
                    values, classes, sums, sums == null ? null : torch.ones_like(sums));
        }

        private long[] columns(int[] places, int from, int count) {
            int size = 0;
            for (int i = from; i < from + count; i++) {
                size += starts[places[i] + 1] - starts[places[i]];
            }
            long[] found = new long[size];
            int at = 0;
            for (int i = from; i < from + count; i++) {
                int start = starts[places[i]];
                int length = starts[places[i] + 1] - start;
                System.arraycopy(columns, start, found, at, length);
                at += length;
            }
            return found;
        }

        /** Of equal logits, that of the lower class comes first; NaN comes before all. */
        private static ChunkTopK.Best best(Tensor logits, Tensor index, int k) {
            Tensor limit = logits.topk(k, 0, true, true).get0().select(0, k - 1);
            Tensor near = logits.lt(limit).logical_not_().nonzero().squeeze(1);
            Tensor found = index.index_select(0, near);
            Tensor order = found.argsort(true, 0, false);
            Tensor sorted = near.index_select(0, order);
            return ChunkTopK.sorted(
                    logits.index_select(0, sorted).unsqueeze(0),
                    found.index_select(0, order).unsqueeze(0),
                    k);
        }

        @Override
        public void close() {
            for (Tensor each :
                    new Tensor[] {means, biases, widths, spreads, logCounts, logShares}) {
                each.close();
            }
        }
    }
}

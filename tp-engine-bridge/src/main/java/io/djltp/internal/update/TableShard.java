package io.djltp.internal.update;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.Errors;
import io.djltp.internal.libtorch.LibTorch;
import io.djltp.internal.torch.HostReads;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.torch.TorchScope;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

import java.util.Arrays;
import java.util.List;

/**
 * The rows of a table that one rank holds. Ids count the rows of all ranks; looked up is what the
 * rank holds, and zeros for the rest, so that the sum over the ranks is the row.
 *
 * <p>A row that is looked up several times gets its gradients in the order of the ids, on every
 * rank as without ranks: libtorch adds up each row of an embedding's gradient in that order, and
 * what a rank does not hold is a gradient of zero for its first row, which changes no bit of it.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class TableShard {

    private final Cut cut;
    private final int rank;
    private final long paddingIndex;

    /**
     * Creates the shard of a rank.
     *
     * @param cut which rows each rank holds, each row on one of them
     * @param rank the rank
     * @param paddingIndex the id whose row has no gradient, or -1
     */
    public TableShard(Cut cut, int rank, long paddingIndex) {
        this.cut = cut;
        this.rank = rank;
        this.paddingIndex = paddingIndex;
    }

    /**
     * Checks ids. It reads one number from the device, so that a GPU is waited for once.
     *
     * @param ids the ids, of any shape and numeric type
     * @param what the table, for errors
     * @throws IllegalArgumentException if an id is none of the table's, or no whole number
     */
    public void check(NDArray ids, String what) {
        try (TorchScope scope = TorchScope.withoutGraph()) {
            Tensor given = TensorView.of(ids).tensor();
            Tensor inside = given.ge(new Scalar(0L)).logical_and_(given.lt(new Scalar(rows())));
            if (given.is_floating_point()) { // as an integer, 1.5 would be 1
                inside.logical_and_(given.eq(given.floor()));
            }
            if (HostReads.number(inside.all()) != 0) {
                return;
            }
            long place = inside.reshape(-1).logical_not_().nonzero().reshape(-1).get(0).item_long();
            throw Errors.argument(
                    "%s was asked for the id %s, at the position %s of ids %s: the ids of a"
                            + " vocabulary of %s are the whole numbers 0 to %s",
                    what,
                    idAt(given, place),
                    TensorView.position(place, ids.getShape()),
                    ids.getShape(),
                    rows(),
                    rows() - 1);
        }
    }

    private long rows() {
        return cut.getLength();
    }

    private static String idAt(Tensor ids, long place) {
        Tensor id = ids.reshape(-1).select(0, place);
        return ids.is_floating_point() ? "" + id.item_double() : "" + id.item_long();
    }

    /**
     * Looks rows up, as autograd records it.
     *
     * @param table the rows of the rank, [rows/p, features]
     * @param ids the ids, [x1, ..., xn], of any numeric type
     * @return the rows that the rank holds, zeros elsewhere, [x1, ..., xn, features], attached to
     *     the manager of {@code ids}
     */
    public NDArray rows(NDArray table, NDArray ids) {
        try (TorchScope scope = TorchScope.open()) {
            Tensor places = places(ids);
            Tensor values = TensorView.of(table).tensor();
            boolean whole = cut.getRanks() == 1;
            Tensor index = whole ? places : places.clamp_min(new Scalar(0L));
            // what is not held must not be taken for padding, nor padding for another row
            long padding = paddingIndex < 0 ? -1 : placeOf(paddingIndex);
            Tensor rows = torch.embedding(values, index, padding, false, false);
            if (!whole) {
                Tensor other = places.lt(new Scalar(0L)).unsqueeze(-1);
                rows = rows.masked_fill(other, new Scalar(0.0f));
            }
            return TensorView.toArray(rows, ids.getManager());
        }
    }

    /**
     * Returns a copy that autograd records as one: what it is made of may be kept as a leaf.
     *
     * @param leaf the array
     * @param like an array whose manager the copy gets
     * @return the copy
     */
    public static NDArray copy(NDArray leaf, NDArray like) {
        try (TorchScope scope = TorchScope.open()) {
            return TensorView.toArray(TensorView.of(leaf).tensor().clone(), like.getManager());
        }
    }

    /**
     * Returns some rows of an array.
     *
     * @param array the array, [x1, ..., xn, features]
     * @param positions which rows, counted over x1 to xn
     * @param manager the manager of the result
     * @return the rows, [positions, features]
     */
    public static NDArray pick(NDArray array, long[] positions, NDManager manager) {
        try (TorchScope scope = TorchScope.withoutGraph()) {
            Tensor all = TensorView.of(array).tensor().detach();
            Tensor index = HostReads.toDevice(all.device(), positions);
            Tensor rows = all.reshape(-1, all.size(-1)).index_select(0, index);
            return TensorView.toArray(rows, manager);
        }
    }

    /**
     * Returns where the rank holds the rows of ids.
     *
     * @param ids the ids, [x1, ..., xn], of any numeric type
     * @return the places of the rows among those of the rank, -1 where it does not hold the row, or
     *     the row has no gradient
     */
    public long[] trainedPlaces(NDArray ids) {
        try (NDArray copy = ids.toType(DataType.INT64, true)) {
            return Arrays.stream(HostReads.longs(copy))
                    .map(id -> id == paddingIndex ? -1 : placeOf(id))
                    .toArray();
        }
    }

    private long placeOf(long id) {
        return place(cut.getRanges(rank), id);
    }

    /**
     * Returns the place of an element among those of some ranges.
     *
     * @param ranges the ranges that a rank holds
     * @param element the number of the element on the axis
     * @return its place in the rank's shard, or -1 if it is in none of the ranges
     */
    public static long place(List<ShardRange> ranges, long element) {
        long before = 0;
        for (ShardRange range : ranges) {
            if (element >= range.start() && element < range.end()) {
                return before + element - range.start();
            }
            before += range.length();
        }
        return -1;
    }

    /** Returns the places of all ids, -1 for what the rank does not hold, int64. */
    private Tensor places(NDArray ids) {
        Tensor rows = TensorView.of(ids).tensor().detach().to(ScalarType.Long);
        return cut.getRanks() == 1 ? rows : places(cut.getRanges(rank), rows);
    }

    /**
     * Returns the places of elements among those of some ranges, as {@link #place}.
     *
     * @param ranges the ranges that a rank holds
     * @param elements the numbers of the elements on the axis, int64
     * @return the places, int64, in the shape of the elements
     */
    public static Tensor places(List<ShardRange> ranges, Tensor elements) {
        LibTorch.load(); // may be the first call of all
        Tensor places = torch.full_like(elements, new Scalar(-1L));
        long before = 0;
        for (ShardRange range : ranges) {
            Tensor inside = elements.ge(new Scalar(range.start()));
            inside.logical_and_(elements.lt(new Scalar(range.end())));
            Tensor here = elements.add(new Scalar(before - range.start()));
            places = torch.where(inside, here, places);
            before += range.length();
        }
        return places;
    }
}

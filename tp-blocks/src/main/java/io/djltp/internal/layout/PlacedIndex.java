package io.djltp.internal.layout;

import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.index.dim.NDIndexAll;
import ai.djl.ndarray.index.dim.NDIndexElement;
import ai.djl.ndarray.index.dim.NDIndexFixed;
import ai.djl.ndarray.index.dim.NDIndexSlice;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.layout.PlacedOperation.Operand;
import io.djltp.internal.layout.Placement.AxisPart;

import org.jspecify.annotations.Nullable;

import java.util.ArrayList;
import java.util.List;
import java.util.stream.IntStream;

/**
 * What an index or a split takes of an array whose features are sharded: all of them, or one of
 * several things that a layer has stacked, such as the queries of an attention.
 */
final class PlacedIndex {

    private final String name;
    private final Object[] args;
    private final ForwardPass pass;
    private List<NDIndexElement> elements = List.of(); // one for each axis of the array
    private @Nullable NDIndex localIndex;

    PlacedIndex(String name, Object[] args, ForwardPass pass) {
        this.name = name;
        this.args = args;
        this.pass = pass;
    }

    /** Returns the elements of this rank's part that are asked for, or null for the caller's. */
    @Nullable NDIndex local() {
        return localIndex;
    }

    boolean prepare(int own) {
        NDIndex index = index();
        List<NDIndexElement> known = index == null ? null : elements(index, own);
        if (known == null) {
            return false;
        }
        elements = known;
        return true;
    }

    private @Nullable NDIndex index() {
        for (Object arg : args) {
            if (arg instanceof NDIndex given) {
                return given;
            }
            if (arg instanceof long[] numbers) {
                return new NDIndex(numbers);
            }
        }
        for (int i = 0; i < args.length; i++) {
            if (args[i] instanceof String text) {
                Object[] more = i + 1 < args.length ? (Object[]) args[i + 1] : new Object[0];
                for (Object each : more) {
                    if (!(each instanceof Number)) {
                        return null;
                    }
                }
                return new NDIndex(text, more);
            }
        }
        return null;
    }

    private static @Nullable List<NDIndexElement> elements(NDIndex index, int own) {
        List<NDIndexElement> given = index.getIndices();
        List<NDIndexElement> all = new ArrayList<>();
        int ellipsis = index.getEllipsisIndex();
        int missing = own - given.size();
        for (int i = 0; i < given.size(); i++) {
            if (i == ellipsis) {
                for (int k = 0; k < missing; k++) {
                    all.add(new NDIndexAll());
                }
            }
            NDIndexElement element = given.get(i);
            boolean simple =
                    element instanceof NDIndexAll
                            || element instanceof NDIndexFixed
                            || element instanceof NDIndexSlice;
            if (!simple) {
                return null;
            }
            all.add(element);
        }
        while (all.size() < own) {
            all.add(new NDIndexAll());
        }
        return all;
    }

    @Nullable AxisPart move(AxisPart at) {
        NDIndexElement element = elements.get(at.axis());
        boolean whole = element instanceof NDIndexAll;
        if (element instanceof NDIndexSlice slice) {
            ShardRange range = range(slice, at.length());
            whole = range != null && range.start() == 0 && range.length() == at.length();
        }
        if (!whole) {
            return null;
        }
        if ("set".equals(name)) {
            return at;
        }
        int fixed = 0;
        for (int i = 0; i < at.axis(); i++) {
            fixed += elements.get(i) instanceof NDIndexFixed ? 1 : 0;
        }
        return at.on(at.axis() - fixed);
    }

    private static @Nullable ShardRange range(NDIndexSlice slice, long length) {
        if (slice.getStep() != null && slice.getStep() != 1) {
            return null;
        }
        long start = slice.getMin() == null ? 0 : slice.getMin();
        long end = slice.getMax() == null ? length : slice.getMax();
        start = start < 0 ? start + length : start;
        end = Math.min(length, end < 0 ? end + length : end);
        return start < 0 || end < start ? null : new ShardRange(start, end - start);
    }

    /** Takes one of several things that are stacked, such as the queries of an attention. */
    @Nullable Placement stackedPart(Operand operand, @Nullable AxisPart moved) {
        AxisPart at = operand.placement().part();
        if (moved != null || !(elements.get(at.axis()) instanceof NDIndexSlice slice)) {
            localIndex(operand, null);
            return null;
        }
        ShardRange range = range(slice, at.length());
        Cut cut = range == null ? null : partOf(operand.placement(), range);
        if (cut == null || elements.stream().anyMatch(NDIndexFixed.class::isInstance)) {
            return null;
        }
        localIndex(operand, range);
        return operand.placement().withLayout(cut, AxisPart.of(at.axis(), cut.getLength()));
    }

    /** Replaces an index of the whole by that of this rank's part. */
    private void localIndex(Operand operand, @Nullable ShardRange range) {
        AxisPart at = operand.placement().part();
        NDIndex local = new NDIndex();
        for (int i = 0; i < elements.size(); i++) {
            NDIndexElement element = elements.get(i);
            if (i == at.axis()) {
                if (range == null) {
                    local.addAllDim();
                } else {
                    long start = localStart(operand.placement(), range);
                    local.addSliceDim(start, start + localLength(operand.placement(), range));
                }
            } else {
                add(local, element);
            }
        }
        localIndex = local;
        for (int i = 0; i < args.length; i++) {
            if (args[i] instanceof NDIndex) {
                args[i] = local;
            }
        }
    }

    /** Adds an element that holds no array to an index. */
    static void add(NDIndex index, NDIndexElement element) {
        if (element instanceof NDIndexFixed fixed) {
            index.addIndices(fixed.getIndex());
        } else if (element instanceof NDIndexSlice slice) {
            index.addIndices(
                    text(slice.getMin())
                            + ":"
                            + text(slice.getMax())
                            + (slice.getStep() == null ? "" : ":" + slice.getStep()));
        } else {
            index.addAllDim();
        }
    }

    private static String text(@Nullable Long number) {
        return number == null ? "" : number.toString();
    }

    @Nullable List<Placement> split(Operand operand) {
        AxisPart at = operand.placement().part();
        if (!operand.placement().isStacked() || at.outer() > 1 || at.inner() > 1 || at.unit() > 1) {
            return null;
        }
        long[] starts;
        if (args[0] instanceof long[] given) {
            starts = given.clone();
        } else {
            long sections = (Long) args[0];
            long each = at.length() / sections;
            starts = IntStream.range(1, (int) sections).mapToLong(i -> i * each).toArray();
        }
        List<Placement> parts = new ArrayList<>();
        long[] local = new long[starts.length];
        for (int i = 0; i <= starts.length; i++) {
            long start = i == 0 ? 0 : starts[i - 1];
            long end = i == starts.length ? at.length() : starts[i];
            ShardRange range = new ShardRange(start, end - start);
            Cut cut = partOf(operand.placement(), range);
            if (cut == null) {
                return null;
            }
            parts.add(operand.placement().withLayout(cut, AxisPart.of(at.axis(), cut.getLength())));
            if (i < starts.length) {
                local[i] =
                        localStart(operand.placement(), range)
                                + localLength(operand.placement(), range);
            }
        }
        args[0] = local;
        return parts;
    }

    /** Returns how a part of stacked features is sharded, or null if a rank has none of it. */
    private static @Nullable Cut partOf(Placement placement, ShardRange part) {
        Cut cut = placement.cut();

        AxisPart at = placement.part();
        if (at.outer() > 1 || at.inner() > 1 || at.unit() > 1 || !placement.isStacked()) {
            return null;
        }
        List<List<ShardRange>> ranges = new ArrayList<>();
        for (int rank = 0; rank < cut.getRanks(); rank++) {
            List<ShardRange> own = new ArrayList<>();
            for (ShardRange range : cut.getRanges(rank)) {
                long start = Math.max(range.start(), part.start());
                long end = Math.min(range.end(), part.end());
                if (start < end) {
                    own.add(new ShardRange(start - part.start(), end - start));
                }
            }
            if (own.isEmpty()) {
                return null;
            }
            ranges.add(own);
        }
        return Cut.of(part.length(), cut.getRanks(), ranges::get);
    }

    /** Returns how many of this rank's features come before a part. */
    private long localStart(Placement placement, ShardRange part) {
        return pass.ownRanges(placement.cut()).stream()
                .mapToLong(range -> Math.min(range.end(), part.start()) - range.start())
                .filter(before -> before > 0)
                .sum();
    }

    private long localLength(Placement placement, ShardRange part) {
        ShardRange behind = new ShardRange(part.end(), 0);
        return localStart(placement, behind) - localStart(placement, part);
    }
}

package io.djltp.sharding;

import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;

import java.util.ArrayList;
import java.util.List;
import java.util.stream.Collectors;

/** Cuts an axis part by part: a rank's shard is its share of each, one after another. */
final class Segmented extends ShardingStrategy.OneAxis {

    private final List<AxisPart> parts;

    Segmented(int axis, List<AxisPart> parts) {
        super(axis);
        if (parts.isEmpty()) {
            throw new IllegalArgumentException("A segmented axis needs one part or more");
        }
        this.parts = List.copyOf(parts);
    }

    /** {@inheritDoc} */
    @Override
    public Cut cut(Shape shape, int size) {
        int cutAxis = axis(shape);
        long length = shape.get(cutAxis);
        long covered = parts.stream().mapToLong(AxisPart::getLength).sum();
        if (covered != length) {
            String sum =
                    parts.stream()
                            .map(part -> String.valueOf(part.getLength()))
                            .collect(Collectors.joining(" + "));
            throw new IllegalArgumentException(
                    "the segments cover "
                            + (parts.size() > 1 ? sum + " = " : "")
                            + covered
                            + " of "
                            + length
                            + " elements of axis "
                            + cutAxis
                            + " under the strategy "
                            + this
                            + ". Give parts whose lengths sum up to that of the axis");
        }
        return stack(parts, length, size);
    }

    /** Returns the cut of parts that lie one after another. */
    static Cut stack(List<AxisPart> parts, long length, int size) {
        List<Cut> cuts = parts.stream().map(part -> part.cut(size)).toList();
        return Cut.of(
                length,
                size,
                rank -> {
                    List<ShardRange> ranges = new ArrayList<>();
                    long start = 0;
                    for (Cut part : cuts) {
                        for (ShardRange range : part.getRanges(rank)) {
                            append(ranges, range.movedBy(start));
                        }
                        start += part.getLength();
                    }
                    return ranges;
                });
    }

    /** Ranges that touch are one: cuts that do the same are equal. */
    private static void append(List<ShardRange> ranges, ShardRange range) {
        int last = ranges.size() - 1;
        if (range.length() == 0) {
            return;
        }
        if (last >= 0 && ranges.get(last).end() == range.start()) {
            ShardRange before = ranges.get(last);
            ranges.set(last, new ShardRange(before.start(), before.length() + range.length()));
        } else {
            ranges.add(range);
        }
    }

    /** {@inheritDoc} */
    @Override
    Kind kind() {
        HeadPart first = parts.get(0).heads();
        if (first == null || axis < 0 || axis > 1) {
            return Kind.OTHER;
        }
        if (parts.size() == 1) {
            return axis == 0 ? Kind.HEAD_AWARE_ROWWISE : Kind.HEAD_AWARE_COLUMNWISE;
        }
        return axis == 0 && isStack() ? Kind.STACKED_QKV : Kind.OTHER;
    }

    private boolean isStack() {
        if (parts.size() != 3 || !parts.get(1).equals(parts.get(2))) {
            return false;
        }
        HeadPart keys = parts.get(1).heads();
        return keys != null && keys.isUsedBy(parts.get(0).heads());
    }

    /** {@inheritDoc} */
    @Override
    public boolean equals(Object other) {
        return other instanceof Segmented
                && ((Segmented) other).axis == axis
                && ((Segmented) other).parts.equals(parts);
    }

    /** {@inheritDoc} */
    @Override
    public int hashCode() {
        return 31 * axis + parts.hashCode();
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        if (isStackedQkv() && parts.get(0).heads().chosen() == null) {
            HeadPart keys = parts.get(1).heads();
            return "stackedQkv("
                    + keys.queries()
                    + ", "
                    + keys.keyValues()
                    + ", "
                    + keys.dim()
                    + ")";
        }
        return parts.stream()
                .map(AxisPart::toString)
                .collect(Collectors.joining(", ", "segmented(" + axis + ", ", ")"));
    }
}
